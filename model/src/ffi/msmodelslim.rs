//! msmodelslim: read directories of quantised weights. Check, dequantise, compute

use crate::msmodelslim::{Model, NormUse, check_path};
use mnnkv::dtype::Dtype;
use mnnkv::ffi::handle;
use mnnkv::ffi::panic::guard;
use mnnkv::ffi::pointer::{self, Out, Sized32, SizedOut};
use mnnkv::ffi::status::mnnkv_status;
use mnnkv::status::{Error, Result, bail};
use std::ffi::{c_char, c_void};

/// A directory of quantised weights as msmodelslim writes them, open for reading: a handle from mnnkv_msmodelslim_open.
/// Immutable; its functions may run on several threads at once.
///
/// The handle holds headers, not tensors, and one open file for each weight file. Tensors are read in pieces on demand and
/// never mapped; a file that shrinks is IO. Linears and norms have the names of their weights in the model, without
/// ".weight"; KV scales have the name of their attention module.
pub struct mnnkv_msmodelslim(Model);

/// A linear. Set struct_size before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_msmodelslim_linear_info {
    /// sizeof(mnnkv_msmodelslim_linear_info)
    pub struct_size: u32,
    /// 1: mnnkv_msmodelslim_linear_w8a8 computes it (W8A8, W8A8S, W8A8_MIX). 0: it does not.
    pub int8_inputs: u32,
    /// Rows: outputs.
    pub n: u64,
    /// Columns: inputs.
    pub k: u64,
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_msmodelslim_linear_info {
    const MIN: usize = 24;
}
const _: () = assert!(size_of::<mnnkv_msmodelslim_linear_info>() == 24);

/// # Safety
/// `model` is NULL or live.
unsafe fn with(model: *const mnnkv_msmodelslim, body: impl FnOnce(&Model) -> Result<()>) -> mnnkv_status {
    guard(|| {
        // SAFETY: passed on.
        body(unsafe { &pointer::reference(model, "model")?.0 })
    })
}

/// A count from C as a usize.
fn count(value: u64, name: &str) -> Result<usize> {
    match usize::try_from(value) {
        Ok(value) => Ok(value),
        Err(_) => bail!(InvalidArgument, "{name} is {value}; more than this machine can count"),
    }
}

/// Checks the directory at path (UTF-8, zero-terminated) and writes all findings as JSON: {"errors": 1, "warnings": 0,
/// "findings": [{"severity": "error", "kind": "missing_tensor", "tensor": "...", "file": "...", "text": "..."}, ...]}.
/// An error makes the directory unusable or its numbers wrong. A warning marks content that other readers may refuse or
/// read differently. The words of kind are stable; docs/tools.md lists them. The check covers files, names, types,
/// shapes, and every number of scales, offsets and codes; it reads tensors once, in pieces. A broken or missing directory
/// is a finding, not a failure of the call.
///
/// text: room for cap bytes. len: length of the text with its terminating zero. Any thread.
/// BUFFER_TOO_SMALL: if cap is below the length; *len is the length. The next call reads everything again: begin with
///   64 KiB.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_msmodelslim_check_json(
    path: *const c_char,
    text: *mut c_char,
    cap: usize,
    len: *mut usize,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller guarantees its pointers.
        let (path, out, len) = unsafe {
            (pointer::path(path, "path")?, pointer::output(text.cast::<u8>(), cap, "text")?, Out::new(len, "len")?)
        };
        pointer::put_text(&check_path(path)?.json()?, out, &len)
    })
}

/// Opens the directory at path (UTF-8, zero-terminated). abi_version: MNNKV_ABI_VERSION. out: the handle;
/// mnnkv_msmodelslim_destroy frees it. A broken layer fails only when it is used. Any thread.
/// NOT_FOUND: if the directory, its weights or its description does not exist.
/// INVALID_ARGUMENT: if path is not a directory, one of its files is not a regular file, or several files could be its
///   description or index.
/// CORRUPT: if a JSON document or the header of a file is malformed.
/// IO: if reading fails.
/// UNSUPPORTED: if the ABI differs.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_msmodelslim_open(
    path: *const c_char,
    abi_version: u32,
    out: *mut *mut mnnkv_msmodelslim,
) -> mnnkv_status {
    // SAFETY: the caller guarantees its pointers.
    guard(|| unsafe {
        handle::create(abi_version, out, || Ok(mnnkv_msmodelslim(Model::open(pointer::path(path, "path")?)?)))
    })
}

/// Frees the handle. NULL is ignored. No other call on the handle may run.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_msmodelslim_destroy(model: *mut mnnkv_msmodelslim) {
    // SAFETY: the caller guarantees a live handle.
    unsafe { handle::destroy(model) }
}

/// Writes the size of a linear by its name. Set info->struct_size first.
/// NOT_FOUND: if the linear does not exist.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_msmodelslim_get_linear_info(
    model: *const mnnkv_msmodelslim,
    linear: *const c_char,
    info: *mut mnnkv_msmodelslim_linear_info,
) -> mnnkv_status {
    // SAFETY: the caller guarantees its pointers.
    unsafe {
        with(model, |model| {
            let info = SizedOut::new(info, "info")?;
            let linear = model.linear(pointer::text(linear, "linear")?)?;
            info.set(&mnnkv_msmodelslim_linear_info {
                struct_size: size_of::<mnnkv_msmodelslim_linear_info>() as u32,
                int8_inputs: linear.tag.has_static_input().into(),
                n: linear.n as u64,
                k: linear.k as u64,
            });
            Ok(())
        })
    }
}

/// Writes rows row_begin .. row_begin + rows of a linear's weight as rows * k numbers of dtype (MNNKV_DTYPE_F16, BF16
/// or F32), row-major, rounded to nearest even from fp32.
///
/// W8A16, W8A8_DYNAMIC, W8A8_MIX: (code - weight_offset) * weight_scale. W8A8, W8A8S: code * weight_scale if the file
/// has that, else code * (deq_scale / input_scale). FLOAT: the numbers themselves. The call allocates the bytes of these
/// rows in the file, their scales and offsets, and a row of floats: convert some rows at a time.
/// out: room for out_bytes bytes, little-endian, of any alignment. rows 0 is legal.
/// INVALID_ARGUMENT: if the rows or dtype do not exist.
/// BUFFER_TOO_SMALL: if out_bytes is too small; mnnkv_model_last_error has the required bytes.
/// NOT_FOUND: if the linear does not exist.
/// UNSUPPORTED: if dtype is INT8, TQ3 or TQ4, or the type of quantisation is not supported.
/// CORRUPT: if its tensors contradict each other, or a scale is not positive; the message names the tensor.
/// IO: if a file cannot be read or became shorter.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_msmodelslim_dequantize(
    model: *const mnnkv_msmodelslim,
    linear: *const c_char,
    row_begin: u64,
    rows: u64,
    dtype: u32,
    out: *mut c_void,
    out_bytes: usize,
) -> mnnkv_status {
    // SAFETY: the caller guarantees its pointers.
    unsafe {
        with(model, |model| {
            let out = pointer::output_bytes(out, out_bytes, "out")?;
            let linear = model.linear(pointer::text(linear, "linear")?)?;
            let rows = range(row_begin, rows)?;
            let dtype = Dtype::float_from_code(dtype, "dtype")?;
            let needed = rows.len().saturating_mul(linear.k).saturating_mul(dtype.bytes());
            // Rows out of range are refused before the size of the buffer is checked.
            let out = match out.get_mut(..needed) {
                Some(out) => out,
                None if rows.end > linear.n => &mut [],
                None => return Err(Error::too_small("out_bytes (out)", out_bytes, needed)),
            };
            model.dequantize(linear, rows, dtype, out)
        })
    }
}

fn range(begin: u64, len: u64) -> Result<std::ops::Range<usize>> {
    match begin.checked_add(len) {
        Some(end) => Ok(count(begin, "row_begin")?..count(end, "row_begin + rows")?),
        None => bail!(InvalidArgument, "row_begin is {begin}, rows is {len}; their sum is more than 2^64"),
    }
}

/// Computes outputs of a linear of type W8A8, W8A8S or W8A8_MIX as the hardware does: y = (sum of x code * weight code,
/// plus quant_bias) * deq_scale, with quantised inputs and integer sums. The sum is rounded to f32 before the product.
/// quant_bias includes a float bias.
///
/// x: tokens rows of k floats. y: tokens rows of rows floats, for the outputs row_begin .. row_begin + rows; room for
/// y_cap floats. Inputs are divided by the scale; hardware that multiplies by the reciprocal may round a tie
/// differently. Infinite inputs saturate.
/// INVALID_ARGUMENT: if the rows do not exist, or x contains NaN.
/// BUFFER_TOO_SMALL: if y_cap is too small; mnnkv_model_last_error has the required floats.
/// NOT_FOUND: if the linear does not exist.
/// UNSUPPORTED: if the type of quantisation is not supported.
/// CORRUPT: if its tensors contradict each other, or a scale is not positive; the message names the tensor.
/// IO: if a file cannot be read or became shorter.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_msmodelslim_linear_w8a8(
    model: *const mnnkv_msmodelslim,
    linear: *const c_char,
    row_begin: u64,
    rows: u64,
    x: *const f32,
    tokens: usize,
    y: *mut f32,
    y_cap: usize,
) -> mnnkv_status {
    // SAFETY: the caller guarantees its pointers.
    unsafe {
        with(model, |model| {
            let linear = model.linear(pointer::text(linear, "linear")?)?;
            let rows = range(row_begin, rows)?;
            let inputs = tokens.saturating_mul(linear.k);
            let bytes = |floats: usize| floats.saturating_mul(size_of::<f32>());
            pointer::disjoint((x.cast(), bytes(inputs), "x"), (y.cast(), bytes(y_cap), "y"))?;
            let (x, y) = (pointer::input(x, inputs, "x")?, pointer::output(y, y_cap, "y")?);
            let needed = tokens.saturating_mul(rows.len());
            let y = match y.get_mut(..needed) {
                Some(y) => y,
                None if rows.end > linear.n => &mut [],
                None => return Err(Error::too_small("y_cap (y)", y_cap, needed)),
            };
            model.linear_w8a8(linear, rows, x, tokens, y)
        })
    }
}

/// Writes weight and bias of a norm as fp32. quantized: 1 = the pair for quantised linears (".module" in its name, if
/// present), 0 = the plain pair for float linears. bias is zeros if the files have none.
///
/// weight, bias: room for cap floats each. len: floats of each.
/// BUFFER_TOO_SMALL: if cap is below the length; *len is the length.
/// NOT_FOUND: if the norm or its plain pair does not exist.
/// CORRUPT: if its tensors contradict each other.
/// IO: if a file cannot be read or became shorter.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_msmodelslim_norm(
    model: *const mnnkv_msmodelslim,
    norm: *const c_char,
    quantized: u32,
    weight: *mut f32,
    bias: *mut f32,
    cap: usize,
    len: *mut usize,
) -> mnnkv_status {
    // SAFETY: the caller guarantees its pointers.
    unsafe {
        with(model, |model| {
            let usage = match quantized {
                0 => NormUse::Float,
                1 => NormUse::Quantized,
                _ => bail!(InvalidArgument, "quantized is {quantized}; 0 or 1 expected"),
            };
            let norm = model.norm(pointer::text(norm, "norm")?)?;
            let to = FloatPair::new((weight, "weight"), (bias, "bias"), cap, len)?;
            let found = model.norm_parameters(norm, usage)?;
            to.set(&found.weight, &found.bias)
        })
    }
}

/// Writes the KV scales and offsets of a layer as fp32, for mnnkv_c8_dequantize, which refuses scales below 2^-100 and
/// offsets that are not integers from -128 to 127: errors of mnnkv_msmodelslim_check_json. module: the attention module, or
/// its merged linear, such as "model.layers.3.self_attn". values: 0 = keys, 1 = values. Offsets are zeros if the files have
/// none.
///
/// scale, offset: room for cap floats each. len: floats of each: one per channel, or 1 for all channels.
/// BUFFER_TOO_SMALL: if cap is below the length; *len is the length.
/// NOT_FOUND: if the layer does not exist.
/// CORRUPT: if its tensors contradict each other, or a scale is not positive.
/// IO: if a file cannot be read or became shorter.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_msmodelslim_kv_scales(
    model: *const mnnkv_msmodelslim,
    module: *const c_char,
    values: u32,
    scale: *mut f32,
    offset: *mut f32,
    cap: usize,
    len: *mut usize,
) -> mnnkv_status {
    // SAFETY: the caller guarantees its pointers.
    unsafe {
        with(model, |model| {
            let layer = model.kv_layer(pointer::text(module, "module")?)?;
            let side = match values {
                0 => &layer.key,
                1 => &layer.value,
                _ => bail!(InvalidArgument, "values is {values}; 0 (keys) or 1 (values) expected"),
            };
            let to = FloatPair::new((scale, "scale"), (offset, "offset"), cap, len)?;
            let (scale, offset) = model.kv_scales(layer, side)?;
            to.set(&scale, &offset)
        })
    }
}

/// Two output arrays of one length.
struct FloatPair<'a> {
    first: &'a mut [f32],
    second: &'a mut [f32],
    len: Out<usize>,
}

impl FloatPair<'_> {
    /// # Safety
    /// Non-NULL pointers are writable for `cap` floats, `len` for its value.
    unsafe fn new(first: (*mut f32, &str), second: (*mut f32, &str), cap: usize, len: *mut usize) -> Result<Self> {
        let bytes = cap.saturating_mul(size_of::<f32>());
        pointer::disjoint((first.0.cast(), bytes, first.1), (second.0.cast(), bytes, second.1))?;
        // SAFETY: passed on.
        unsafe {
            Ok(FloatPair {
                first: pointer::output(first.0, cap, first.1)?,
                second: pointer::output(second.0, cap, second.1)?,
                len: Out::new(len, "len")?,
            })
        }
    }

    fn set(self, first: &[f32], second: &[f32]) -> Result<()> {
        let needed = first.len();
        self.len.set(needed);
        if self.first.len() < needed {
            return Err(Error::too_small("cap", self.first.len(), needed));
        }
        self.first[..needed].copy_from_slice(first);
        self.second[..needed].copy_from_slice(second);
        Ok(())
    }
}
