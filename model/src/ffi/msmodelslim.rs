//! Exports of the reader of model::msmodelslim.

use crate::msmodelslim::{Granularity, Model, NormUse, Tag, check_path, quantize};
use mnnkv::dtype::Dtype;
use mnnkv::ffi::panic::guard;
use mnnkv::ffi::pointer::{self, Out, Sized32, SizedOut};
use mnnkv::ffi::status::mnnkv_status;
use mnnkv::ffi::version;
use mnnkv::status::{Error, Result, bail};
use mnnkv::sys::memory;
use std::ffi::{c_char, c_void};

/// mnnkv_msmodelslim_linear_info::tag: not quantised.
pub const MNNKV_MSMODELSLIM_FLOAT: u32 = 1;
/// mnnkv_msmodelslim_linear_info::tag: weights in 8 bits.
pub const MNNKV_MSMODELSLIM_W8A16: u32 = 2;
/// mnnkv_msmodelslim_linear_info::tag: weights and inputs in 8 bits, one scale for all inputs.
pub const MNNKV_MSMODELSLIM_W8A8: u32 = 3;
/// mnnkv_msmodelslim_linear_info::tag: as W8A8, of sparse weights.
pub const MNNKV_MSMODELSLIM_W8A8S: u32 = 4;
/// mnnkv_msmodelslim_linear_info::tag: weights in 8 bits, scales of inputs found at run time.
pub const MNNKV_MSMODELSLIM_W8A8_DYNAMIC: u32 = 5;
/// mnnkv_msmodelslim_linear_info::tag: what W8A8 and W8A8_DYNAMIC need, both.
pub const MNNKV_MSMODELSLIM_W8A8_MIX: u32 = 6;
/// mnnkv_msmodelslim_linear_info::tag: another type of the format, which the library lists and does not read.
pub const MNNKV_MSMODELSLIM_OTHER: u32 = 7;

/// mnnkv_msmodelslim_linear_info::granularity: not quantised.
pub const MNNKV_SCALE_NONE: u32 = 0;
/// mnnkv_msmodelslim_linear_info::granularity: one scale for the whole weight.
pub const MNNKV_SCALE_TENSOR: u32 = 1;
/// mnnkv_msmodelslim_linear_info::granularity: one scale for each row.
pub const MNNKV_SCALE_CHANNEL: u32 = 2;
/// mnnkv_msmodelslim_linear_info::granularity: one scale for each group_size columns of a row.
pub const MNNKV_SCALE_GROUP: u32 = 3;

/// mnnkv_msmodelslim_name: the linears.
pub const MNNKV_MSMODELSLIM_LINEARS: u32 = 1;
/// mnnkv_msmodelslim_name: the norms.
pub const MNNKV_MSMODELSLIM_NORMS: u32 = 2;
/// mnnkv_msmodelslim_name: the layers with KV scales.
pub const MNNKV_MSMODELSLIM_KV_LAYERS: u32 = 3;

/// A directory of quantised weights as msmodelslim writes them, open for reading: a handle from mnnkv_msmodelslim_open.
///
/// It holds the headers, not the tensors: those are read in pieces when they are asked for, and never mapped, so that a
/// file that shrinks gives IO. Functions name linears, norms and KV layers by their numbers from 0 on: linears and
/// norms in the order of their names, KV layers in the order of their layers. mnnkv_msmodelslim_get_info says how many
/// there are. A handle never changes: its functions may run on several threads at once.
pub struct mnnkv_msmodelslim(Model);

/// A directory as a whole. Set struct_size before the call; the fields it covers are written.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_msmodelslim_info {
    /// sizeof(mnnkv_msmodelslim_info)
    pub struct_size: u32,
    /// 1 when KV scales are declared: kv_cache_type or kv_quant_type.
    pub kv_declared: u32,
    /// Weights with two dimensions, those that are not quantised included.
    pub linears: u64,
    /// Norms.
    pub norms: u64,
    /// Layers with KV scales.
    pub kv_layers: u64,
    /// Files with weights.
    pub weight_files: u64,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// 0.
    pub reserved: [u32; 2],
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_msmodelslim_info {
    const MIN: usize = 56;
}
const _: () = assert!(size_of::<mnnkv_msmodelslim_info>() == 56);

/// A linear. Set struct_size before the call; the fields it covers are written.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_msmodelslim_linear_info {
    /// sizeof(mnnkv_msmodelslim_linear_info)
    pub struct_size: u32,
    /// MNNKV_MSMODELSLIM_FLOAT to MNNKV_MSMODELSLIM_OTHER.
    pub tag: u32,
    /// MNNKV_SCALE_*.
    pub granularity: u32,
    /// 1 when there is a float bias. With W8A8, W8A8S and W8A8_MIX quant_bias contains it already.
    pub bias: u32,
    /// Rows: outputs.
    pub n: u64,
    /// Columns: inputs.
    pub k: u64,
    /// Columns with one scale; 0 unless there are groups.
    pub group_size: u64,
    /// Bytes of all its tensors.
    pub bytes: u64,
    /// 0.
    pub reserved: [u32; 2],
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_msmodelslim_linear_info {
    const MIN: usize = 56;
}
const _: () = assert!(size_of::<mnnkv_msmodelslim_linear_info>() == 56);

/// # Safety
/// `model` is NULL or live.
unsafe fn with(model: *const mnnkv_msmodelslim, body: impl FnOnce(&Model) -> Result<()>) -> mnnkv_status {
    guard(|| {
        // SAFETY: passed on.
        body(unsafe { &pointer::reference(model, "model")?.0 })
    })
}

/// A number from C that counts something in memory.
fn count(value: u64, name: &str) -> Result<usize> {
    match usize::try_from(value) {
        Ok(value) => Ok(value),
        Err(_) => bail!(InvalidArgument, "{name} is {value}; more than this machine can count"),
    }
}

/// Checks the directory at path (UTF-8, zero-terminated) and reports everything that is wrong with it as JSON:
/// {"errors": 1, "warnings": 0, "findings": [{"severity": "error", "kind": "missing_tensor", "tensor": "...", "file":
/// "...", "text": "..."}, ...]}. An error is what cannot be used or gives wrong numbers, a warning what other readers
/// may refuse or read otherwise; the words of kind are stable. Files, names, types, shapes, and every number of scales,
/// offsets and codes are checked; tensors are read once, in pieces. A directory that is broken, or not there, is no
/// failure of the call: the report says so.
///
/// text: room for cap bytes. len: the length of the text with the zero at its end. BUFFER_TOO_SMALL: *len is what is
/// needed; the next call reads everything again, so begin with room for a report, such as 64 KiB. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_msmodelslim_check_json(
    path: *const c_char,
    text: *mut c_char,
    cap: usize,
    len: *mut usize,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller vouches for its pointers.
        let (path, out, len) = unsafe {
            (pointer::path(path, "path")?, pointer::output(text.cast::<u8>(), cap, "text")?, Out::new(len, "len")?)
        };
        pointer::put_text(&check_path(path)?.json()?, out, &len)
    })
}

/// Opens the directory at path (UTF-8, zero-terminated). abi_version: MNNKV_ABI_VERSION. out: the handle, to be given
/// to mnnkv_msmodelslim_destroy.
///
/// NOT_FOUND: no such directory, or no weights or description in it. INVALID_ARGUMENT: path is no directory, or several
/// files could be its description or index. CORRUPT: a document or a file's header is broken; a layer that is broken is
/// an error only when it is used. IO: something cannot be read. UNSUPPORTED: another ABI. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_msmodelslim_open(
    path: *const c_char,
    abi_version: u32,
    out: *mut *mut mnnkv_msmodelslim,
) -> mnnkv_status {
    guard(|| {
        version::check_abi(abi_version)?;
        // SAFETY: the caller vouches for its pointers.
        let (path, out) = unsafe { (pointer::path(path, "path")?, Out::new(out, "out")?) };
        out.set(Box::into_raw(memory::boxed(mnnkv_msmodelslim(Model::open(path)?))?));
        Ok(())
    })
}

/// Closes a directory. NULL is ignored. No other call may be under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_msmodelslim_destroy(model: *mut mnnkv_msmodelslim) {
    if model.is_null() {
        return;
    }
    guard(|| {
        // SAFETY: the caller says the handle is from open and not destroyed yet.
        drop(unsafe { Box::from_raw(model) });
        Ok(())
    });
}

/// How many linears, norms and KV layers there are. Set info->struct_size first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_msmodelslim_get_info(
    model: *const mnnkv_msmodelslim,
    info: *mut mnnkv_msmodelslim_info,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(model, |model| {
            let info = SizedOut::new(info, "info")?;
            info.set(&mnnkv_msmodelslim_info {
                struct_size: size_of::<mnnkv_msmodelslim_info>() as u32,
                kv_declared: model.description().kv_cache_type.is_some().into(),
                linears: model.linears().len() as u64,
                norms: model.norms().len() as u64,
                kv_layers: model.kv_layers().len() as u64,
                weight_files: model.weight_files() as u64,
                bytes: model.bytes(),
                reserved: [0; 2],
            });
            Ok(())
        })
    }
}

/// Everything that is in the directory, as JSON: an object with model_quant_type, version, group_size, kv_cache_type,
/// bytes, and the lists linears (name, tag, n, k, granularity, group_size, bias, bytes, error), norms (name, len, bias,
/// smoothed, error) and kv (prefix, layer, key_channels, value_channels, error). What cannot be used has a text in
/// error.
///
/// text: room for cap bytes. len: the length of the text with the zero at its end. BUFFER_TOO_SMALL: *len is what is
/// needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_msmodelslim_layers_json(
    model: *const mnnkv_msmodelslim,
    text: *mut c_char,
    cap: usize,
    len: *mut usize,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(model, |model| {
            let (out, len) = (pointer::output(text.cast::<u8>(), cap, "text")?, Out::new(len, "len")?);
            pointer::put_text(&model.layers_json()?, out, &len)
        })
    }
}

/// The name of number index of list: MNNKV_MSMODELSLIM_LINEARS (without ".weight"), MNNKV_MSMODELSLIM_NORMS (the same)
/// or MNNKV_MSMODELSLIM_KV_LAYERS (the attention module, or its merged linear). text, cap, len: as
/// mnnkv_msmodelslim_layers_json. NOT_FOUND: the list is shorter. INVALID_ARGUMENT: another list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_msmodelslim_name(
    model: *const mnnkv_msmodelslim,
    list: u32,
    index: u64,
    text: *mut c_char,
    cap: usize,
    len: *mut usize,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(model, |model| {
            let (out, len) = (pointer::output(text.cast::<u8>(), cap, "text")?, Out::new(len, "len")?);
            let index = count(index, "index")?;
            let name = match list {
                MNNKV_MSMODELSLIM_LINEARS => model.linears().get(index).map(|linear| &linear.name),
                MNNKV_MSMODELSLIM_NORMS => model.norms().get(index).map(|norm| &norm.name),
                MNNKV_MSMODELSLIM_KV_LAYERS => model.kv_layers().get(index).map(|layer| &layer.prefix),
                _ => bail!(InvalidArgument, "list is {list}; linears (1), norms (2) or KV layers (3) expected"),
            };
            match name {
                Some(name) => pointer::put_text(name, out, &len),
                None => bail!(NotFound, "index is {index}; the list is shorter"),
            }
        })
    }
}

/// The number of the linear of this name (zero-terminated, without ".weight"). NOT_FOUND: there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_msmodelslim_find(
    model: *const mnnkv_msmodelslim,
    name: *const c_char,
    linear: *mut u64,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(model, |model| {
            let (name, linear) = (pointer::text(name, "name")?, Out::new(linear, "linear")?);
            linear.set(model.find_linear(name)? as u64);
            Ok(())
        })
    }
}

/// What the linear of this number is. Set info->struct_size first. NOT_FOUND: there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_msmodelslim_get_linear_info(
    model: *const mnnkv_msmodelslim,
    linear: u64,
    info: *mut mnnkv_msmodelslim_linear_info,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(model, |model| {
            let info = SizedOut::new(info, "info")?;
            let linear = model.linear(count(linear, "linear")?)?;
            info.set(&mnnkv_msmodelslim_linear_info {
                struct_size: size_of::<mnnkv_msmodelslim_linear_info>() as u32,
                tag: match linear.tag {
                    Tag::Float => MNNKV_MSMODELSLIM_FLOAT,
                    Tag::W8A16 => MNNKV_MSMODELSLIM_W8A16,
                    Tag::W8A8 => MNNKV_MSMODELSLIM_W8A8,
                    Tag::W8A8S => MNNKV_MSMODELSLIM_W8A8S,
                    Tag::W8A8Dynamic => MNNKV_MSMODELSLIM_W8A8_DYNAMIC,
                    Tag::W8A8Mix => MNNKV_MSMODELSLIM_W8A8_MIX,
                    Tag::C8 | Tag::Other(_) => MNNKV_MSMODELSLIM_OTHER,
                },
                granularity: match linear.granularity {
                    Granularity::None => MNNKV_SCALE_NONE,
                    Granularity::Tensor => MNNKV_SCALE_TENSOR,
                    Granularity::Channel => MNNKV_SCALE_CHANNEL,
                    Granularity::Group(_) => MNNKV_SCALE_GROUP,
                },
                bias: linear.bias.into(),
                n: linear.n as u64,
                k: linear.k as u64,
                group_size: linear.granularity.group_size() as u64,
                bytes: linear.bytes,
                reserved: [0; 2],
            });
            Ok(())
        })
    }
}

/// Codes of 0 .. 255 as the signed ones that files of this format have: code - 128. Their offset, less 128, and their
/// scale go on. codes, signed_codes: n each; they may not overlap. n 0 is legal. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_msmodelslim_signed(codes: *const u8, n: usize, signed_codes: *mut i8) -> mnnkv_status {
    guard(|| {
        pointer::disjoint((codes.cast(), n, "codes"), (signed_codes.cast(), n, "signed_codes"))?;
        let (codes, out) =
            // SAFETY: the caller vouches for its pointers.
            unsafe { (pointer::input(codes, n, "codes")?, pointer::output(signed_codes, n, "signed_codes")?) };
        out.iter_mut().zip(codes).for_each(|(to, code)| *to = quantize::signed(*code));
        Ok(())
    })
}

/// Writes rows row_begin .. row_begin + rows of a linear's weight as numbers: rows * k elements of dtype
/// (MNNKV_DTYPE_F16, BF16 or F32), row-major, rounded to nearest even from fp32.
///
/// W8A16, W8A8_DYNAMIC, W8A8_MIX: (code - weight_offset) * weight_scale. W8A8, W8A8S: code * weight_scale where the
/// file has that, else code * (deq_scale / input_scale). FLOAT: the numbers themselves. Memory during the call: a byte
/// for each code, so take some rows at a time.
/// out: room for out_bytes bytes, in the byte order of the machine; needs no alignment. rows 0 is legal. NOT_FOUND: no
/// such linear. INVALID_ARGUMENT: rows that it does not have, or another dtype. BUFFER_TOO_SMALL: out_bytes;
/// mnnkv_last_error says what is needed. UNSUPPORTED: another type of quantisation. CORRUPT: its tensors do not fit
/// each other, or a scale is no positive number; the message names it. IO: the file cannot be read, or has become
/// shorter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_msmodelslim_dequantize(
    model: *const mnnkv_msmodelslim,
    linear: u64,
    row_begin: u64,
    rows: u64,
    dtype: u32,
    out: *mut c_void,
    out_bytes: usize,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(model, |model| {
            let out = pointer::output_bytes(out, out_bytes, "out")?;
            let linear = count(linear, "linear")?;
            let rows = range(row_begin, rows)?;
            let dtype = Dtype::from_code(dtype, "dtype")?;
            let needed = rows.len().saturating_mul(model.linear(linear)?.k).saturating_mul(dtype.bytes());
            // Rows that are not there are refused as such, whatever room there is for them.
            let out = match out.get_mut(..needed) {
                Some(out) => out,
                None if rows.end > model.linear(linear)?.n => &mut [],
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

/// Some outputs of a linear of type W8A8, W8A8S or W8A8_MIX, computed as the hardware does: inputs are quantised, codes
/// are multiplied and summed in whole numbers, and the sums turned back: y = (sum of x code * weight code, plus
/// quant_bias) * deq_scale. A float bias is part of quant_bias.
///
/// x: tokens rows of k floats. y: tokens rows of rows floats, for the outputs row_begin .. row_begin + rows; room for
/// y_cap floats. Inputs are quantised with a division; hardware that multiplies with the reciprocal may round a tie
/// otherwise. NOT_FOUND, UNSUPPORTED, CORRUPT, IO: as mnnkv_msmodelslim_dequantize. INVALID_ARGUMENT: rows that it does
/// not have, or NaN in x. BUFFER_TOO_SMALL: y_cap; mnnkv_last_error says what is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_msmodelslim_linear_w8a8(
    model: *const mnnkv_msmodelslim,
    linear: u64,
    row_begin: u64,
    rows: u64,
    x: *const f32,
    tokens: usize,
    y: *mut f32,
    y_cap: usize,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(model, |model| {
            let linear = count(linear, "linear")?;
            let rows = range(row_begin, rows)?;
            let k = model.linear(linear)?.k;
            let inputs = tokens.saturating_mul(k);
            let bytes = |floats: usize| floats.saturating_mul(size_of::<f32>());
            pointer::disjoint((x.cast(), bytes(inputs), "x"), (y.cast(), bytes(y_cap), "y"))?;
            let (x, y) = (pointer::input(x, inputs, "x")?, pointer::output(y, y_cap, "y")?);
            let needed = tokens.saturating_mul(rows.len());
            let y = match y.get_mut(..needed) {
                Some(y) => y,
                None if rows.end > model.linear(linear)?.n => &mut [],
                None => return Err(Error::too_small("y_cap (y)", y_cap, needed)),
            };
            model.linear_w8a8(linear, rows, x, tokens, y)
        })
    }
}

/// Factors and summands of a norm, fp32. quantized: 1 = for quantised linears behind it (the pair of its name with
/// ".module" where there is one), 0 = for float ones (the plain pair). Without a bias in the files bias is zeros.
///
/// weight, bias: room for cap floats each. len: how many there are. BUFFER_TOO_SMALL: *len is what is needed.
/// NOT_FOUND: no such norm, or no plain pair. CORRUPT: its tensors do not fit each other. IO: as
/// mnnkv_msmodelslim_dequantize.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_msmodelslim_norm(
    model: *const mnnkv_msmodelslim,
    norm: u64,
    quantized: u32,
    weight: *mut f32,
    bias: *mut f32,
    cap: usize,
    len: *mut usize,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(model, |model| {
            let usage = match quantized {
                0 => NormUse::Float,
                1 => NormUse::Quantized,
                _ => bail!(InvalidArgument, "quantized is {quantized}; 0 or 1 expected"),
            };
            let to = FloatPair::new((weight, "weight"), (bias, "bias"), cap, len)?;
            let found = model.norm(count(norm, "norm")?, usage)?;
            to.set(&found.weight, &found.bias)
        })
    }
}

/// Scales and offsets of a layer's KV cache, fp32, as mnnkv_c8_scales takes them. kv_layer: a number in
/// MNNKV_MSMODELSLIM_KV_LAYERS, which is the layer's own only where all layers have scales. values: 0 = of keys, 1 = of
/// values. Offsets that the file does not have are zeros.
///
/// scale, offset: room for cap floats each. len: how many there are: one for each channel, or 1, which is for all of
/// them. BUFFER_TOO_SMALL: *len is what is needed. NOT_FOUND: no such layer. CORRUPT: its tensors do not fit each
/// other, or a scale is no positive number. IO: as mnnkv_msmodelslim_dequantize.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_msmodelslim_kv_scales(
    model: *const mnnkv_msmodelslim,
    kv_layer: u64,
    values: u32,
    scale: *mut f32,
    offset: *mut f32,
    cap: usize,
    len: *mut usize,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(model, |model| {
            if values > 1 {
                bail!(InvalidArgument, "values is {values}; 0 (keys) or 1 (values) expected");
            }
            let to = FloatPair::new((scale, "scale"), (offset, "offset"), cap, len)?;
            let found = model.kv_scales(count(kv_layer, "kv_layer")?)?;
            match values {
                0 => to.set(&found.key_scale, &found.key_offset),
                _ => to.set(&found.value_scale, &found.value_offset),
            }
        })
    }
}

/// Two arrays of one length that C has room for.
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
