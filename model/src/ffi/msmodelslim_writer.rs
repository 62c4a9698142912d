//! msmodelslim: write a directory

use crate::msmodelslim::{Tag, WriteOptions, Writer};
use crate::safetensors::FileDtype;
use mnnkv::ffi::handle;
use mnnkv::ffi::panic::{Handle, guard};
use mnnkv::ffi::pointer::{self, Sized32};
use mnnkv::ffi::status::mnnkv_status;
use mnnkv::status::{Result, Status, bail, error};
use std::ffi::{c_char, c_void};

/// A new directory of quantised weights: a handle from mnnkv_msmodelslim_writer_create. One thread at a time.
///
/// Declare everything with its shape, then append the contents in the same order:
///
///   mnnkv_msmodelslim_writer_tensor, _linear, _kv              once for each
///   mnnkv_msmodelslim_writer_append, _append_rows, _append_kv  one by one; a tensor or linear in pieces
///   mnnkv_msmodelslim_writer_finish                            the directory is complete
///
/// The files are quant_model_weights.safetensors, or its parts and their index, and quant_model_description.json. The
/// description is written last and marks a complete directory. Tensors are contiguous in the order of declaration. An
/// int8 weight whose size is not a multiple of 4 leaves later tensors unaligned, which some readers refuse: declare it
/// last. INVALID_ARGUMENT before finish, and OUT_OF_MEMORY, change nothing; the call may be repeated.
pub struct mnnkv_msmodelslim_writer(Handle<Option<Writer>>);

/// Options of a writer. Zero every field, then set struct_size. NULL means all zeros.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct mnnkv_msmodelslim_writer_options {
    /// sizeof(mnnkv_msmodelslim_writer_options)
    pub struct_size: u32,
    /// 1 = weights have offsets, which runtimes read differently. 0 = offsets are zero.
    pub asymmetric: u32,
    /// Columns per scale, a divisor of every linear's k; 0 = one scale per row.
    pub group_size: u64,
    /// Bytes of tensors after which a part ends; 0 = one file without an index.
    pub part_bytes: u64,
    /// Must be 0.
    pub reserved: [u32; 2],
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_msmodelslim_writer_options {
    const MIN: usize = 32;
}
const _: () = assert!(size_of::<mnnkv_msmodelslim_writer_options>() == 32);

/// # Safety
/// `writer` is NULL or live.
unsafe fn with(writer: *mut mnnkv_msmodelslim_writer, body: impl FnOnce(&mut Writer) -> Result<()>) -> mnnkv_status {
    guard(|| {
        // SAFETY: passed on.
        let writer = unsafe { pointer::reference(writer, "writer") }?;
        writer.0.with("writer", |writer| match writer {
            Some(writer) => body(writer),
            None => bail!(InvalidArgument, "the writer has finished"),
        })
    })
}

/// Prepares a directory at path (UTF-8, zero-terminated). An existing one must have no quantised weights or
/// description; otherwise its parent must exist. Nothing is written before the first contents. abi_version:
/// MNNKV_ABI_VERSION. out: the handle; mnnkv_msmodelslim_writer_destroy frees it. options: NULL = one file, a scale per
/// row, no offsets. A relative path stays valid when the working directory changes. Any thread.
/// INVALID_ARGUMENT: if path is not a directory or has weights, or an option is out of range.
/// IO: if path cannot be examined.
/// UNSUPPORTED: if the ABI differs.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_msmodelslim_writer_create(
    path: *const c_char,
    options: *const mnnkv_msmodelslim_writer_options,
    abi_version: u32,
    out: *mut *mut mnnkv_msmodelslim_writer,
) -> mnnkv_status {
    // SAFETY: the caller guarantees its pointers.
    guard(|| unsafe {
        handle::create(abi_version, out, || {
            let options = pointer::options(options, "options")?.unwrap_or_default();
            let path = pointer::path(path, "path")?;
            pointer::reserved(&options.reserved, "options")?;
            if options.asymmetric > 1 {
                bail!(InvalidArgument, "options->asymmetric is {}; 0 or 1 expected", options.asymmetric);
            }
            let Ok(group_size) = usize::try_from(options.group_size) else {
                bail!(
                    InvalidArgument,
                    "options->group_size is {}; at most {} expected",
                    options.group_size,
                    usize::MAX
                );
            };
            let (part_bytes, symmetric) = (options.part_bytes, options.asymmetric == 0);
            let writer = Writer::new(path, WriteOptions { part_bytes, group_size, symmetric })?;
            Ok(mnnkv_msmodelslim_writer(Handle::new(Some(writer))))
        })
    })
}

/// Frees a writer and removes its files unless it finished. NULL is ignored. Accepts a handle that returns INTERNAL. No
/// other call on the handle may run.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_msmodelslim_writer_destroy(writer: *mut mnnkv_msmodelslim_writer) {
    // SAFETY: the caller guarantees a live handle.
    unsafe { handle::destroy(writer) }
}

/// Declares a tensor that is copied unchanged. tag: the word for the description, such as "FLOAT" or the type of its
/// layer. dtype: a name of safetensors, such as "F16", "BF16", "F32", "I8". Texts are zero-terminated. shape: rank
/// dimensions, outermost first; rank 0 is a single number.
/// INVALID_ARGUMENT: if the name is declared already or has no dot, a word is unknown, the size overflows, or contents
///   have begun.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_msmodelslim_writer_tensor(
    writer: *mut mnnkv_msmodelslim_writer,
    name: *const c_char,
    tag: *const c_char,
    dtype: *const c_char,
    shape: *const u64,
    rank: usize,
) -> mnnkv_status {
    // SAFETY: the caller guarantees its pointers.
    unsafe {
        with(writer, |writer| {
            let name = pointer::text(name, "name")?;
            let (tag, dtype) = (pointer::text(tag, "tag")?, pointer::text(dtype, "dtype")?);
            let shape = pointer::input(shape, rank, "shape")?;
            let unknown = |what, word| error!(InvalidArgument, "{what} is {word:?}, which is unknown");
            let tag = Tag::from_word(tag).ok_or_else(|| unknown("tag", tag))?;
            let dtype = FileDtype::from_name(dtype).ok_or_else(|| unknown("dtype", dtype))?;
            writer.tensor(name, tag, dtype, shape)
        })
    }
}

/// Declares a linear's weight of n rows by k columns that comes as floats and is quantised to W8A16: name.weight,
/// name.weight_scale and name.weight_offset. name: zero-terminated. A bias is a tensor of its own.
/// INVALID_ARGUMENT: if the name is declared already, n or k is 0, group_size does not divide k, or contents have
///   begun.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_msmodelslim_writer_linear(
    writer: *mut mnnkv_msmodelslim_writer,
    name: *const c_char,
    n: usize,
    k: usize,
) -> mnnkv_status {
    // SAFETY: the caller guarantees its pointers.
    unsafe { with(writer, |writer| writer.linear(pointer::text(name, "name")?, n, k)) }
}

/// Declares the KV scales of a layer (C8). prefix: the name of its attention module, zero-terminated. channels: KV
/// heads times head_dim.
/// INVALID_ARGUMENT: if the name is declared already, channels is 0, or contents have begun.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_msmodelslim_writer_kv(
    writer: *mut mnnkv_msmodelslim_writer,
    prefix: *const c_char,
    channels: usize,
) -> mnnkv_status {
    // SAFETY: the caller guarantees its pointers.
    unsafe { with(writer, |writer| writer.kv(pointer::text(prefix, "prefix")?, channels)) }
}

/// Appends len bytes, little-endian, to a declared tensor. After NOT_FOUND or IO only destroy is legal.
/// INVALID_ARGUMENT: if another tensor is next, len exceeds the rest, or these are the first contents and the directory has
///   got weights or a description.
/// NOT_FOUND: if the parent of the directory does not exist, or the directory was removed or renamed.
/// IO: if writing fails, or another program has created a file of the same name; that file stays.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_msmodelslim_writer_append(
    writer: *mut mnnkv_msmodelslim_writer,
    name: *const c_char,
    data: *const c_void,
    len: usize,
) -> mnnkv_status {
    // SAFETY: the caller guarantees its pointers.
    unsafe {
        with(writer, |writer| {
            let (name, data) = (pointer::text(name, "name")?, pointer::input_bytes(data, len, "data")?);
            writer.append(name, data)
        })
    }
}

/// Appends count floats, whole rows, to a declared linear. INVALID_ARGUMENT writes nothing.
/// INVALID_ARGUMENT: if another is next, count is not a multiple of k or exceeds the rest, a number is not finite, or,
///   with asymmetric, the range of numbers overflows f32.
/// NOT_FOUND: if the parent of the directory does not exist, or the directory was removed or renamed.
/// IO: if writing fails, or another program has created a file of the same name; that file stays.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_msmodelslim_writer_append_rows(
    writer: *mut mnnkv_msmodelslim_writer,
    name: *const c_char,
    weights: *const f32,
    count: usize,
) -> mnnkv_status {
    // SAFETY: the caller guarantees its pointers.
    unsafe {
        with(writer, |writer| {
            let (name, weights) = (pointer::text(name, "name")?, pointer::input(weights, count, "weights")?);
            writer.append_rows(name, weights)
        })
    }
}

/// Appends the KV scales of a declared layer, channels floats each. key_offset, value_offset: integers from -128 to
/// 127, or NULL for zeros, which all runtimes read alike.
/// INVALID_ARGUMENT: if another one is next, channels differs, a scale is not finite or below 2^-100, or an offset is not a
///   code.
/// NOT_FOUND: if the parent of the directory does not exist, or the directory was removed or renamed.
/// IO: if writing fails, or another program has created a file of the same name; that file stays.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_msmodelslim_writer_append_kv(
    writer: *mut mnnkv_msmodelslim_writer,
    prefix: *const c_char,
    key_scale: *const f32,
    key_offset: *const f32,
    value_scale: *const f32,
    value_offset: *const f32,
    channels: usize,
) -> mnnkv_status {
    // SAFETY: the caller guarantees its pointers.
    unsafe {
        with(writer, |writer| {
            let prefix = pointer::text(prefix, "prefix")?;
            let optional = |offset: *const f32, name| match offset.is_null() {
                true => Ok(None),
                false => pointer::input(offset, channels, name).map(Some),
            };
            let key = (pointer::input(key_scale, channels, "key_scale")?, optional(key_offset, "key_offset")?);
            let value =
                (pointer::input(value_scale, channels, "value_scale")?, optional(value_offset, "value_offset")?);
            writer.append_kv(prefix, key, value)
        })
    }
}

/// Completes the directory. Afterwards only destroy is legal, except after OUT_OF_MEMORY. Any other failure
/// removes the files.
/// INVALID_ARGUMENT: if contents are missing, or nothing was declared.
/// NOT_FOUND: if the directory was removed or renamed.
/// IO: if writing fails, or another program has created a file of the same name; that file stays.
/// OUT_OF_MEMORY: if memory was refused; nothing has changed, and the call may be repeated.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_msmodelslim_writer_finish(writer: *mut mnnkv_msmodelslim_writer) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller guarantees its pointers.
        let writer = unsafe { pointer::reference(writer, "writer") }?;
        writer.0.with("writer", |place| {
            let Some(writer) = place else { bail!(InvalidArgument, "the writer has finished") };
            let result = writer.finish();
            if !matches!(&result, Err(e) if e.status() == Status::OutOfMemory) {
                *place = None;
            }
            result
        })
    })
}
