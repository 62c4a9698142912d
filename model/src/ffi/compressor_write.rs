//! Compressor: write a file

use crate::compressor::{LinearWeights, Weights};
use mnnkv::dtype::Dtype;
use mnnkv::ffi::panic::guard;
use mnnkv::ffi::pointer::{self, Out, Sized32};
use mnnkv::ffi::status::mnnkv_status;
use mnnkv::status::{Error, Result, bail};
use mnnkv::sys::memory;
use std::borrow::Cow;
use std::ffi::{c_char, c_void};

/// The header of a new weights file. There are no defaults: NULL is INVALID_ARGUMENT, and 0 means 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_compressor_header {
    /// sizeof(mnnkv_compressor_header)
    pub struct_size: u32,
    /// MNNKV_DTYPE_F16, BF16 or F32: element type of the weights in the file.
    pub dtype: u32,
    /// Layers of the model, at least 1.
    pub layers: u32,
    /// 6 (tk, tv) or 12 (tk, tv, ik, iv).
    pub blocks_per_layer: u32,
    /// Elements per head and token.
    pub head_dim: u32,
    /// Tokens that become one, at least 2.
    pub compression_factor: u32,
    /// Groups that a segment must have to be compressed; 2 is usual.
    pub min_seq_len: u32,
    /// KV heads of the model; 0 is usual.
    pub num_heads: u32,
    /// Must be 0.
    pub reserved: [u32; 4],
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_compressor_header {
    const MIN: usize = 48;
}
const _: () = assert!(size_of::<mnnkv_compressor_header>() == 48);

/// A linear layer of a compressor: y[r] = weight[r][0] * x[0] + weight[r][1] * x[1] + ... + bias[r].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_compressor_linear {
    /// Outputs.
    pub rows: u32,
    /// Inputs.
    pub cols: u32,
    /// rows * cols numbers, row-major.
    pub weight: *const f32,
    /// rows numbers, or NULL for none.
    pub bias: *const f32,
}

/// An error of one of several linear layers.
fn of(index: usize, error: &Error) -> Error {
    error.within(format_args!("linears[{index}]"))
}

/// # Safety
/// Non-NULL pointers are readable as in the header.
unsafe fn weights<'a>(
    header: *const mnnkv_compressor_header,
    linears: *const mnnkv_compressor_linear,
    n_linears: usize,
) -> Result<Weights<'a>> {
    // SAFETY: passed on.
    let (header, linears) = unsafe {
        (
            pointer::required(header, "header")?,
            pointer::input::<mnnkv_compressor_linear>(linears, n_linears, "linears")?,
        )
    };
    pointer::reserved(&header.reserved, "header")?;
    let dtype = Dtype::from_code(header.dtype, "header->dtype")?;
    let (layers, per_layer) = (header.layers, header.blocks_per_layer);
    let expected = u64::from(layers) * u64::from(per_layer);
    if expected == 0 || expected != n_linears as u64 {
        bail!(InvalidArgument, "n_linears is {n_linears}; {layers} layers of {per_layer} blocks in header");
    }
    let mut all = Vec::new();
    memory::reserve(&mut all, layers as usize)?;
    for (layer, blocks) in linears.chunks_exact(per_layer as usize).enumerate() {
        let mut row = Vec::new();
        memory::reserve(&mut row, blocks.len())?;
        for (block, linear) in blocks.iter().enumerate() {
            let index = layer * per_layer as usize + block;
            let (rows, cols) = (linear.rows as usize, linear.cols as usize);
            let Some(len) = rows.checked_mul(cols) else {
                bail!(InvalidArgument, "weight of linears[{index}]: {rows} x {cols} overflows memory");
            };
            // SAFETY: passed on.
            let (weight, bias) = unsafe {
                let bias = match linear.bias.is_null() {
                    true => None,
                    false => Some(pointer::input(linear.bias, rows, "bias").map_err(|e| of(index, &e))?),
                };
                (pointer::input(linear.weight, len, "weight").map_err(|e| of(index, &e))?, bias)
            };
            let linear = LinearWeights { rows, cols, weight: Cow::Borrowed(weight), bias: bias.map(Cow::Borrowed) };
            memory::push(&mut row, linear)?;
        }
        memory::push(&mut all, row)?;
    }
    let mnnkv_compressor_header { num_heads, head_dim, compression_factor: factor, min_seq_len, .. } = header;
    Ok(Weights { dtype, num_heads, head_dim, factor, min_seq_len, layers: all })
}

/// Writes weights as a file for mnnkv_compressor_open and InfiniLM.
///
/// linears: n_linears = layers * blocks_per_layer linear layers, layer by layer; in a layer tk, tv, ik and iv (text or
/// image, K or V), the first, second and third linear layer of each. The first has compression_factor * head_dim
/// columns, the last head_dim rows, and the rows of each are the columns of the next. Numbers are rounded to nearest
/// even. path: UTF-8, zero-terminated. The file replaces one of the same name once it is complete on disk; a link is replaced,
/// not followed, and permissions are those of a new file. Until then it is .<name>.part in the same folder, so that a name has
/// at most 249 bytes where the system allows 255. Any thread.
/// INVALID_ARGUMENT: if shapes contradict each other, in which case no number is read, or a number is not finite in dtype
///   (65520 in F16); the message names layer, block and index.
/// NOT_FOUND: if the folder does not exist.
/// IO: if writing fails.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_compressor_write_file(
    header: *const mnnkv_compressor_header,
    linears: *const mnnkv_compressor_linear,
    n_linears: usize,
    path: *const c_char,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller guarantees its pointers.
        let (weights, path) = unsafe { (weights(header, linears, n_linears)?, pointer::path(path, "path")?) };
        weights.to_file(path)
    })
}

/// As mnnkv_compressor_write_file, to memory. dst: room for cap bytes. len: bytes of the file. Any thread.
/// BUFFER_TOO_SMALL: if cap is below the length; *len is the length.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_compressor_write(
    header: *const mnnkv_compressor_header,
    linears: *const mnnkv_compressor_linear,
    n_linears: usize,
    dst: *mut c_void,
    cap: usize,
    len: *mut usize,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller guarantees its pointers.
        let (weights, dst, len) = unsafe {
            (weights(header, linears, n_linears)?, pointer::output_bytes(dst, cap, "dst")?, Out::new(len, "len")?)
        };
        weights.check()?;
        let needed = usize::try_from(weights.file_bytes()).unwrap_or(usize::MAX);
        let Some(file) = dst.get_mut(..needed) else {
            len.set(needed);
            return Err(Error::too_small("cap", cap, needed));
        };
        let mut at = 0;
        weights.write(|bytes| {
            file[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
            Ok(())
        })?;
        len.set(needed);
        Ok(())
    })
}
