//! State: a state buffer compressed bit for bit
//!
//! For cached prompts, which are byte buffers. The host describes the tensors inside of the buffer; all other bytes are opaque,
//! and without any description all bytes are. A blob decodes without the description. integrations/llama.cpp/README.md has its
//! bytes. No handle: the calls share nothing, may run on any threads, and keep no memory.
//!
//! mnnkv_state_encode and mnnkv_state_decode start threads that end with the call. Equal input makes equal blobs, whatever
//! the number of threads and the CPU.

use crate::state::{self, Form, Tensor};
use mnnkv::dtype::Dtype;
use mnnkv::ffi::panic::{guard, guard_or};
use mnnkv::ffi::pointer::{self, Out};
use mnnkv::ffi::status::mnnkv_status;
use mnnkv::status::Result;
use mnnkv::sys::memory;
use std::ffi::c_void;

/// A tensor inside of a buffer: consecutive words, or consecutive blocks of a few words and then codes of single bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_state_tensor {
    /// MNNKV_DTYPE_F16, _BF16, _F32 or _INT8 (also any bytes) of the words.
    pub dtype: u32,
    /// Bytes of a block, such as 34 for one scale and 32 codes; 0: words all through.
    pub block_bytes: u16,
    /// Bytes of the words that a block begins with; 0 without blocks.
    pub scale_bytes: u16,
    /// Where it begins.
    pub offset: u64,
    /// At least 1: whole words, or whole blocks.
    pub bytes: u64,
}

/// # Safety
/// As the exports.
unsafe fn given_tensors(tensors: *const mnnkv_state_tensor, count: usize) -> Result<Vec<Tensor>> {
    // SAFETY: passed on.
    let tensors = unsafe { pointer::input(tensors, count, "tensors") }?;
    let mut out = Vec::new();
    memory::reserve(&mut out, count)?;
    for (at, given) in tensors.iter().enumerate() {
        let dtype = Dtype::from_code(given.dtype, "dtype").map_err(|e| e.within(format_args!("tensors[{at}]")))?;
        // A number beyond the address space is out of range of any buffer.
        let [offset, bytes] = [given.offset, given.bytes].map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        let form = Form { dtype, block: given.block_bytes, scale: given.scale_bytes };
        memory::push(&mut out, Tensor { offset, bytes, form })?;
    }
    Ok(out)
}

/// The largest blob of src_len bytes with these tensors: a little over src_len. 0 where mnnkv_state_encode would return
/// INVALID_ARGUMENT or UNSUPPORTED.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_state_bound(
    src_len: usize,
    tensors: *const mnnkv_state_tensor,
    n_tensors: usize,
) -> usize {
    guard_or(0, || {
        // SAFETY: passed on.
        let tensors = unsafe { given_tensors(tensors, n_tensors) }?;
        state::bound(src_len, &tensors)
    })
}

/// Encodes a buffer, bit for bit. src may have any length, also 0.
/// tensors: n_tensors descriptions in the order of their offsets; no two share a byte.
/// threads: the calling one included; 0 = as many as cores.
/// dst: dst_cap bytes, at least mnnkv_state_bound. Bytes after *dst_len are undefined.
/// dst_len: bytes written.
/// INVALID_ARGUMENT: if a tensor is out of range, begins before the end of the one before, or is no whole words or blocks; the
/// text names its index
/// UNSUPPORTED: if a dtype is TQ3 or TQ4
/// BUFFER_TOO_SMALL: if dst_cap is below mnnkv_state_bound, which is then *dst_len
/// OUT_OF_MEMORY: if memory is refused
///
/// Working memory: per thread at most 9 MiB. After a failure the contents of dst are undefined.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_state_encode(
    src: *const c_void,
    src_len: usize,
    tensors: *const mnnkv_state_tensor,
    n_tensors: usize,
    threads: u32,
    dst: *mut c_void,
    dst_cap: usize,
    dst_len: *mut usize,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: an export is unsafe; the header is its contract, and that of the functions it calls.
        let ((src, dst, dst_len), tensors) =
            unsafe { (pointer::buffers((src, src_len), (dst, dst_cap), dst_len)?, given_tensors(tensors, n_tensors)?) };
        dst_len.set_len(state::encode(src, &tensors, threads as usize, dst))
    })
}

/// Returns the decoded length that a blob claims: limit it before allocating for a blob from elsewhere. All of the blob
/// but its sections is checked.
/// CORRUPT, UNSUPPORTED, OUT_OF_MEMORY: as mnnkv_state_decode
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_state_decoded_size(
    src: *const c_void,
    src_len: usize,
    size: *mut usize,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: as above.
        let (src, size) = unsafe { (pointer::input_bytes(src, src_len, "src")?, Out::new(size, "size")?) };
        size.set(state::decoded_len(src)?);
        Ok(())
    })
}

/// Decodes a blob. It is not trusted: every changed bit and every missing byte is CORRUPT.
/// threads: as for mnnkv_state_encode.
/// dst: dst_cap bytes. Contents are undefined after a failure; bytes after *dst_len are not written.
/// dst_len: bytes written.
/// CORRUPT: if the blob is malformed; the text has the section and its bytes in the blob
/// UNSUPPORTED: if the blob is of a later version
/// BUFFER_TOO_SMALL: if dst_cap is too small; *dst_len is the size needed
/// OUT_OF_MEMORY: if memory is refused
///
/// Working memory: per thread at most seven times the longest section, which has about 1 MiB, and 256 KiB.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_state_decode(
    src: *const c_void,
    src_len: usize,
    threads: u32,
    dst: *mut c_void,
    dst_cap: usize,
    dst_len: *mut usize,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: as above.
        let (src, dst, dst_len) = unsafe { pointer::buffers((src, src_len), (dst, dst_cap), dst_len) }?;
        dst_len.set_len(state::decode(src, threads as usize, dst))
    })
}
