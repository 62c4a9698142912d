//! Compressor: learned compressors (.bin), which make groups of tokens one. Read a file, run it on caches

use crate::compressor::{Compressor, CompressorOptions, Segments};
use crate::file::ModelFile;
use mnnkv::ffi::handle;
use mnnkv::ffi::panic::guard;
use mnnkv::ffi::pointer::{self, Out, Sized32, SizedOut};
use mnnkv::ffi::status::mnnkv_status;
use mnnkv::status::{Result, bail};
use std::ffi::{c_char, c_void};

/// mnnkv_compressor_options::segments: the tokens after the image.
pub const MNNKV_SEGMENT_TEXT: u32 = 1;
/// mnnkv_compressor_options::segments: the image at the start of the cache.
pub const MNNKV_SEGMENT_IMAGE: u32 = 2;

/// A learned compressor of KV caches (FastCache, arXiv 2503.08461): a handle from mnnkv_compressor_open or _create.
/// Immutable; its functions may run on several threads at once, on different caches.
///
/// A file in InfiniLM's weights format, version 1, has small networks for every layer of a model. They turn the K, and
/// the V, of compression_factor neighbouring tokens of a head into those of one token. A host runs them once, after the
/// prompt. The cache becomes shorter and stays lossy; later tokens are appended as usual.
///
///   mnnkv_compressor* file = NULL;
///   uint32_t old_len = 0, new_len = 0;
///   if (mnnkv_compressor_open("compressor.bin", MNNKV_ABI_VERSION, &file) == MNNKV_OK &&
///       mnnkv_compressor_run_caches(file, 0, NULL, caches, layers, &old_len, &new_len) == MNNKV_OK) { ... }
///   mnnkv_compressor_destroy(file);
///
/// The prompt may begin with an image of image_kv_len tokens. With 12 blocks per layer the image has networks of its
/// own; with 6 it stays unchanged. Image and text are compressed separately: floor(length / factor) groups become as
/// many tokens, and the remaining tokens follow them unchanged. A segment of fewer groups than min_seq_len stays
/// unchanged. All layers have the same new length: mnnkv_compressor_new_len.
///
/// Positions: compressed keys are made of keys after RoPE and have no positions of their own. The position of the next
/// token depends on the training of the model: LLaVA's compressor continues at the new length, MiniCPM-V's at the
/// original length. Attention sees the new length in both cases.
pub struct mnnkv_compressor(Compressor);

/// The header of a weights file. Set struct_size before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_compressor_info {
    /// sizeof(mnnkv_compressor_info)
    pub struct_size: u32,
    /// MNNKV_DTYPE_F16, BF16 or F32: element type of the weights in the file. Caches may have another one.
    pub dtype: u32,
    /// Layers of the model.
    pub layers: u32,
    /// 12, or 6 without networks for images.
    pub blocks_per_layer: u32,
    /// Elements per head and token of the caches that it compresses.
    pub head_dim: u32,
    /// Tokens that become one.
    pub compression_factor: u32,
    /// Groups that a segment must have to be compressed.
    pub min_seq_len: u32,
    /// KV heads as the converter wrote them, mostly 0: the networks apply to any number.
    pub num_heads: u32,
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_compressor_info {
    const MIN: usize = 32;
}
const _: () = assert!(size_of::<mnnkv_compressor_info>() == 32);

/// Options of a compression. Zero every field, then set struct_size. NULL means all zeros.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct mnnkv_compressor_options {
    /// sizeof(mnnkv_compressor_options)
    pub struct_size: u32,
    /// Tokens that become one; 0 or 1 = the factor of the file. Any other factor is INVALID_ARGUMENT.
    pub factor: u32,
    /// Groups that a segment must have to be compressed; 0 = as the file.
    pub min_seq_len: u32,
    /// Image tokens at the start of the cache; values above the length mean all.
    pub image_kv_len: u32,
    /// Segments to compress: MNNKV_SEGMENT_TEXT, MNNKV_SEGMENT_IMAGE or both; 0 = both.
    pub segments: u32,
    /// Must be 0.
    pub reserved: [u32; 3],
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_compressor_options {
    const MIN: usize = 32;
}
const _: () = assert!(size_of::<mnnkv_compressor_options>() == 32);

impl mnnkv_compressor_options {
    /// The checked options.
    ///
    /// # Safety
    /// As [`pointer::options`].
    pub(super) unsafe fn given(options: *const Self) -> Result<CompressorOptions> {
        // SAFETY: passed on.
        unsafe { pointer::options(options, "options") }?.unwrap_or_default().check()
    }

    fn check(&self) -> Result<CompressorOptions> {
        pointer::reserved(&self.reserved, "options")?;
        let both = MNNKV_SEGMENT_TEXT | MNNKV_SEGMENT_IMAGE;
        let segments = match self.segments {
            MNNKV_SEGMENT_TEXT => Segments::Text,
            MNNKV_SEGMENT_IMAGE => Segments::Image,
            other if other == 0 || other == both => Segments::All,
            other => bail!(InvalidArgument, "options->segments is {other:#x}; TEXT (1) and IMAGE (2) are known"),
        };
        let mnnkv_compressor_options { factor, min_seq_len, image_kv_len: image_len, .. } = *self;
        Ok(CompressorOptions { factor, min_seq_len, image_len, segments })
    }
}

/// # Safety
/// `out` is NULL or writable.
unsafe fn create(
    abi_version: u32,
    out: *mut *mut mnnkv_compressor,
    read: impl FnOnce() -> Result<Compressor>,
) -> mnnkv_status {
    // SAFETY: passed on.
    guard(|| unsafe { handle::create(abi_version, out, || Ok(mnnkv_compressor(read()?))) })
}

/// # Safety
/// `compressor` is NULL or live.
pub(super) unsafe fn with(
    compressor: *const mnnkv_compressor,
    body: impl FnOnce(&Compressor) -> Result<()>,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: passed on.
        body(unsafe { &pointer::reference(compressor, "compressor")?.0 })
    })
}

/// Reads a weights file. path: UTF-8, zero-terminated; links are followed. The weights stay in memory in the type of
/// the file, and the file is closed. abi_version: MNNKV_ABI_VERSION. out: the handle; mnnkv_compressor_destroy frees
/// it. Messages have the offset and the field, and name blocks by layer, number and network (tk, tv, ik, iv: text or
/// image, K or V). Any thread.
/// CORRUPT: if the file has another format or is cut off, counts, shapes or flags contradict each other, or a weight is
///   not finite.
/// UNSUPPORTED: if the version or element type of the file is not supported, or the ABI differs.
/// NOT_FOUND: if no file has this name.
/// INVALID_ARGUMENT: if path is not a file.
/// IO: if reading fails.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_compressor_open(
    path: *const c_char,
    abi_version: u32,
    out: *mut *mut mnnkv_compressor,
) -> mnnkv_status {
    // SAFETY: the caller guarantees its pointers.
    unsafe {
        create(abi_version, out, || {
            let path = pointer::path(path, "path")?;
            Compressor::read(&ModelFile::open(path)?).map_err(|e| e.within(path.display()))
        })
    }
}

/// As mnnkv_compressor_open, of a file of len bytes in memory. bytes is not retained.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_compressor_create(
    bytes: *const c_void,
    len: usize,
    abi_version: u32,
    out: *mut *mut mnnkv_compressor,
) -> mnnkv_status {
    // SAFETY: the caller guarantees its pointers.
    unsafe { create(abi_version, out, || Compressor::read(pointer::input_bytes(bytes, len, "bytes")?)) }
}

/// Frees the handle. NULL is ignored. No other call on the handle may run.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_compressor_destroy(compressor: *mut mnnkv_compressor) {
    // SAFETY: the caller guarantees a live handle.
    unsafe { handle::destroy(compressor) }
}

/// Writes the header of the file. Set info->struct_size first. Any thread.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_compressor_get_info(
    compressor: *const mnnkv_compressor,
    info: *mut mnnkv_compressor_info,
) -> mnnkv_status {
    // SAFETY: the caller guarantees its pointers.
    unsafe {
        with(compressor, |file| {
            let info = SizedOut::new(info, "info")?;
            let header = file.header();
            info.set(&mnnkv_compressor_info {
                struct_size: 0,
                dtype: header.dtype as u32,
                layers: header.layers,
                blocks_per_layer: header.blocks_per_layer,
                head_dim: file.head_dim() as u32,
                compression_factor: header.factor,
                min_seq_len: header.min_seq_len,
                num_heads: header.num_heads,
            });
            Ok(())
        })
    }
}

/// Writes the length of a cache of kv_len tokens after compression; kv_len itself if nothing is compressed. options:
/// NULL = the defaults of the file. Any thread.
/// INVALID_ARGUMENT: if options->factor is not that of the file, or options->segments has unknown bits.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_compressor_new_len(
    compressor: *const mnnkv_compressor,
    options: *const mnnkv_compressor_options,
    kv_len: u32,
    new_len: *mut u32,
) -> mnnkv_status {
    // SAFETY: the caller guarantees its pointers.
    unsafe {
        with(compressor, |file| {
            let options = mnnkv_compressor_options::given(options)?;
            let new_len = Out::new(new_len, "new_len")?;
            new_len.set(file.plan(kv_len as usize, &options)?.new_len() as u32);
            Ok(())
        })
    }
}
