//! Exports of the layout room.

use super::panic::guard;
use super::pointer::{self, Out, Sized32};
use super::status::mnnkv_status;
use crate::dtype::Dtype;
use crate::layout::{self, Layout, Pair, Spec};
use crate::status::{Error, Result, bail};
use crate::sys::pages;
use std::ffi::c_void;

/// IEEE 754 binary16.
pub const MNNKV_DTYPE_F16: u32 = 1;
/// bfloat16.
pub const MNNKV_DTYPE_BF16: u32 = 2;
/// IEEE 754 binary32.
pub const MNNKV_DTYPE_F32: u32 = 3;
/// One byte, as MNN's int8 cache (attention_mode 9 and 10). gear encodes it; layouts and the store answer UNSUPPORTED in
/// this version.
pub const MNNKV_DTYPE_INT8: u32 = 4;
/// MNN's 3-bit cache. Not in this version: UNSUPPORTED.
pub const MNNKV_DTYPE_TQ3: u32 = 5;
/// MNN's 4-bit cache. Not in this version: UNSUPPORTED.
pub const MNNKV_DTYPE_TQ4: u32 = 6;

const _: () = assert!(
    MNNKV_DTYPE_F16 == Dtype::F16 as u32
        && MNNKV_DTYPE_BF16 == Dtype::Bf16 as u32
        && MNNKV_DTYPE_F32 == Dtype::F32 as u32
);

/// A layer's packed KV cache: one buffer for K, one for V, in each one region per KV head. With D = head_dim,
/// lP = l_pack, hP = h_pack, F = flash_block and UP(a, b) = a / b rounded up, an element lies within its head at
///
///   K [max_tokens/hP][D/lP][hP][lP]
///     (t/hP)*UP(D,lP)*lP*hP + (d/lP)*hP*lP + (t%hP)*lP + d%lP
///   V [max_tokens/F][D/hP][F/lP][hP][lP], u = t%F
///     (t/F)*UP(D,hP)*s + (d/hP)*s + (u/lP)*hP*lP + (d%hP)*lP + u%lP      with s = UP(F,lP)*lP*hP
///
/// as in MNN 3.6 (CPUKVCacheManager). Lanes and dims that only fill up a packing unit are padding; no function but
/// mnnkv_kv_release writes them.
///
/// MNN's packing, element type first: Arm 64 fp16 f16 1/16, Arm 64 f32 1/8, Arm 32 f32 1/4, Arm bf16 1/8 (ARMv8.6:
/// 4/8), SME2 f32 1/64 and f16 2/64, x86 SSE and AVX2 f32 1/4, x86 AVX-512 f32 1/8, x86 bf16 8/4 (l_pack/h_pack).
///
/// Row-major caches, as llama.cpp has them, are packings of one, with N = kv_heads * head_dim and S bytes an element:
///
///   K [token][head][dim]        l_pack 1, h_pack 1, key_token_stride N*S
///   V [token][head][dim]        flash_block 1, value_token_stride N*S (flash attention)
///   V [head][dim][token]        flash_block max_tokens, no value_token_stride (transposed)
///
///   mnnkv_layout l = {0};                   // K and V of a tensor row per token, f16
///   l.struct_size = sizeof l;
///   l.key_dtype = l.value_dtype = MNNKV_DTYPE_F16;
///   l.kv_heads = 8; l.head_dim = 128; l.max_tokens = n_ctx;
///   l.l_pack = l.h_pack = 1;
///   l.key_token_stride = 8 * 128 * 2;       // ggml's nb of the token dimension
///   l.flash_block = 1; l.value_token_stride = 8 * 128 * 2;
///   // or, where V is transposed: l.flash_block = n_ctx; l.value_token_stride = 0;
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_layout {
    /// sizeof(mnnkv_layout)
    pub struct_size: u32,
    /// MNNKV_DTYPE_* of K: F16, BF16 or F32.
    pub key_dtype: u32,
    /// MNNKV_DTYPE_* of V.
    pub value_dtype: u32,
    /// KV heads (not query heads), at least 1.
    pub kv_heads: u32,
    /// Elements per head and token, at least 1.
    pub head_dim: u32,
    /// MNN's eP. It packs the query and enters no KV index; any value.
    pub e_pack: u32,
    /// MNN's lP, at least 1.
    pub l_pack: u32,
    /// MNN's hP, at least 1.
    pub h_pack: u32,
    /// Tokens per value block, at least 1: 64 with flash attention, max_tokens without.
    pub flash_block: u32,
    /// Tokens the buffers have room for, at least 1.
    pub max_tokens: u32,
    /// Bytes from one head's K to the next, a multiple of the element size; 0 = heads lie side by side.
    pub key_head_stride: u64,
    /// Bytes from one head's V to the next, a multiple of the element size; 0 = heads lie side by side.
    pub value_head_stride: u64,
    /// Bytes from one token's K to the next of the same head, a multiple of the element size, where h_pack is 1: a
    /// row-major cache. 0 = tokens lie side by side. With a token stride, key_head_stride 0 means that the heads of a
    /// token lie side by side inside it (INVALID_ARGUMENT where they do not fit), and any head stride that keeps them
    /// inside the token stride, or apart by whole heads, is accepted.
    pub key_token_stride: u64,
    /// As key_token_stride, for V, where flash_block is 1.
    pub value_token_stride: u64,
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_layout {
    const MIN: usize = 72;
}
const _: () = assert!(size_of::<mnnkv_layout>() == 72);

/// The type of a cache whose elements are not quantised.
fn float(code: u32, what: &str) -> Result<Dtype> {
    match code {
        4..=6 => {
            bail!(Unsupported, "{what} is {code} (a quantised cache); this version takes F16 (1), BF16 (2) and F32 (3)")
        }
        _ => Dtype::float_from_code(code, what),
    }
}

impl mnnkv_layout {
    fn check(&self) -> Result<Layout> {
        Layout::new(&Spec {
            key_dtype: float(self.key_dtype, "layout->key_dtype")?,
            value_dtype: float(self.value_dtype, "layout->value_dtype")?,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            l_pack: self.l_pack,
            h_pack: self.h_pack,
            flash_block: self.flash_block,
            max_tokens: self.max_tokens,
            key_head_stride: self.key_head_stride,
            value_head_stride: self.value_head_stride,
            key_token_stride: self.key_token_stride,
            value_token_stride: self.value_token_stride,
        })
    }
}

/// The checked form of a layout that C handed over.
///
/// # Safety
/// As [`pointer::options`].
pub unsafe fn checked(ptr: *const mnnkv_layout) -> Result<Layout> {
    // SAFETY: passed on.
    unsafe { pointer::required(ptr, "layout") }?.check()
}

/// K and V of a cache to read.
///
/// # Safety
/// Both buffers are as long as the layout says.
pub unsafe fn buffers<'a>(layout: &Layout, key: *const c_void, value: *const c_void) -> Result<(&'a [u8], &'a [u8])> {
    // SAFETY: passed on.
    unsafe {
        Ok((
            pointer::input_bytes(key, layout.key_bytes(), "key")?,
            pointer::input_bytes(value, layout.value_bytes(), "value")?,
        ))
    }
}

/// K and V of a cache to edit.
///
/// # Safety
/// Both buffers are as long as the layout says, and nobody else touches them during the call.
pub unsafe fn buffers_mut<'a>(
    layout: &Layout,
    key: *mut c_void,
    value: *mut c_void,
) -> Result<(&'a mut [u8], &'a mut [u8])> {
    pointer::disjoint((key, layout.key_bytes(), "key"), (value, layout.value_bytes(), "value"))?;
    // SAFETY: passed on; the two do not overlap.
    unsafe {
        Ok((
            pointer::output_bytes(key, layout.key_bytes(), "key")?,
            pointer::output_bytes(value, layout.value_bytes(), "value")?,
        ))
    }
}

/// A layout and the cache it describes, to edit.
///
/// # Safety
/// As [`checked`] and [`buffers_mut`].
pub unsafe fn checked_cache<'a>(
    layout: *const mnnkv_layout,
    key: *mut c_void,
    value: *mut c_void,
) -> Result<(Layout, &'a mut [u8], &'a mut [u8])> {
    // SAFETY: passed on.
    unsafe {
        let layout = checked(layout)?;
        let (key, value) = buffers_mut(&layout, key, value)?;
        Ok((layout, key, value))
    }
}

/// Reserve pairs as C has them: 2 * n_pairs numbers.
///
/// # Safety
/// A non-NULL `pairs` is readable for 2 * `n_pairs` numbers.
pub(super) unsafe fn pairs<'a>(pairs: *const i32, n_pairs: usize, name: &str) -> Result<&'a [Pair]> {
    // SAFETY: passed on; a pair is two neighbouring numbers.
    unsafe { pointer::input(pairs.cast::<Pair>(), n_pairs, name) }
}

/// # Safety
/// As the exports below.
unsafe fn index(
    layout: *const mnnkv_layout,
    element: *mut u64,
    look_up: impl FnOnce(&Layout) -> Result<u64>,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller vouches for its pointers.
        let (layout, element) = unsafe { (checked(layout)?, Out::new(element, "element")?) };
        element.set(look_up(&layout)?);
        Ok(())
    })
}

/// Checks a layout. key_bytes, value_bytes: sizes of the two buffers, all heads, up to the end of the last head.
/// INVALID_ARGUMENT names the field that is wrong; UNSUPPORTED is a quantised dtype. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_layout_check(
    layout: *const mnnkv_layout,
    key_bytes: *mut u64,
    value_bytes: *mut u64,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller vouches for its pointers.
        let layout = unsafe { checked(layout) }?;
        // SAFETY: as above.
        let key_bytes = unsafe { Out::new(key_bytes, "key_bytes") }?;
        // SAFETY: as above.
        let value_bytes = unsafe { Out::new(value_bytes, "value_bytes") }?;
        key_bytes.set(layout.key_bytes() as u64);
        value_bytes.set(layout.value_bytes() as u64);
        Ok(())
    })
}

/// Where K of one token and dim lies within its head, in elements. For tests and debugging: to copy tokens, gather.
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_key_index(
    layout: *const mnnkv_layout,
    token: u32,
    dim: u32,
    element: *mut u64,
) -> mnnkv_status {
    // SAFETY: passed on.
    unsafe { index(layout, element, |layout| layout.key_index(token, dim)) }
}

/// Where V of one token and dim lies within its head, in elements. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_value_index(
    layout: *const mnnkv_layout,
    token: u32,
    dim: u32,
    element: *mut u64,
) -> mnnkv_status {
    // SAFETY: passed on.
    unsafe { index(layout, element, |layout| layout.value_index(token, dim)) }
}

/// Copies tokens begin .. begin + count out of a packed cache.
///
/// key, value: the buffers of the layout. key_out, value_out: dense rows [head][token][dim], kv_heads * count *
/// head_dim elements each; cap_each is the capacity of each in bytes. No buffer may overlap another that is written.
/// INVALID_ARGUMENT: the range is not inside max_tokens. BUFFER_TOO_SMALL: cap_each; mnnkv_last_error says what is
/// needed. Any thread, also on the same cache as long as nobody writes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_kv_gather(
    layout: *const mnnkv_layout,
    key: *const c_void,
    value: *const c_void,
    begin: u32,
    count: u32,
    key_out: *mut c_void,
    value_out: *mut c_void,
    cap_each: usize,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller vouches for its pointers.
        let layout = unsafe { checked(layout) }?;
        let range = layout.range(begin, count)?;
        let (key_len, value_len) = (layout.dense_key_bytes(range.count()), layout.dense_value_bytes(range.count()));
        if cap_each < key_len.max(value_len) {
            return Err(Error::too_small("cap_each (bytes)", cap_each, key_len.max(value_len)));
        }
        pointer::disjoint((key_out, key_len, "key_out"), (value_out, value_len, "value_out"))?;
        for (out, len, name) in [(key_out, key_len, "key_out"), (value_out, value_len, "value_out")] {
            pointer::disjoint((out, len, name), (key, layout.key_bytes(), "key"))?;
            pointer::disjoint((out, len, name), (value, layout.value_bytes(), "value"))?;
        }
        // SAFETY: the caller vouches for its pointers; outputs overlap nothing.
        let ((key, value), key_out, value_out) = unsafe {
            (
                buffers(&layout, key, value)?,
                pointer::output_bytes(key_out, key_len, "key_out")?,
                pointer::output_bytes(value_out, value_len, "value_out")?,
            )
        };
        layout::gather(&layout, key, value, range, key_out, value_out)
    })
}

/// Copies dense rows [head][token][dim] into tokens begin .. begin + count of a packed cache; the inverse of gather.
///
/// len_each: bytes in each of key_in and value_in, exactly those of the range (where K and V have element types of
/// different size: those of the larger, and the smaller one's bytes lie at the start of its buffer). Padding and
/// other tokens are untouched. One thread per cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_kv_scatter(
    layout: *const mnnkv_layout,
    key_in: *const c_void,
    value_in: *const c_void,
    len_each: usize,
    begin: u32,
    count: u32,
    key: *mut c_void,
    value: *mut c_void,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller vouches for its pointers.
        let layout = unsafe { checked(layout) }?;
        let range = layout.range(begin, count)?;
        let (key_len, value_len) = (layout.dense_key_bytes(range.count()), layout.dense_value_bytes(range.count()));
        if len_each != key_len.max(value_len) {
            bail!(InvalidArgument, "len_each is {len_each}; {} expected for {count} tokens", key_len.max(value_len));
        }
        for (input, len, name) in [(key_in, key_len, "key_in"), (value_in, value_len, "value_in")] {
            pointer::disjoint((input, len, name), (key, layout.key_bytes(), "key"))?;
            pointer::disjoint((input, len, name), (value, layout.value_bytes(), "value"))?;
        }
        // SAFETY: the caller vouches for its pointers; the cache overlaps no input.
        let (key_in, value_in, (key, value)) = unsafe {
            (
                pointer::input_bytes(key_in, key_len, "key_in")?,
                pointer::input_bytes(value_in, value_len, "value_in")?,
                buffers_mut(&layout, key, value)?,
            )
        };
        layout::scatter(&layout, key_in, value_in, range, key, value)
    })
}

/// Moves count tokens from src to dst inside a packed cache, as memmove: the ranges may overlap. Tokens of src that
/// are not in dst keep what they hold. One thread per cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_kv_move(
    layout: *const mnnkv_layout,
    key: *mut c_void,
    value: *mut c_void,
    src: u32,
    dst: u32,
    count: u32,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller vouches for its pointers.
        let (layout, key, value) = unsafe { checked_cache(layout, key, value) }?;
        layout::move_tokens(&layout, key, value, src, dst, count)
    })
}

/// Evicts tokens: keeps tokens below base and the reserve pairs, closes the gaps, and says the new length.
///
/// reserve_pairs: n_pairs times (offset, length), relative to base as in MNN's KVMeta, ascending and disjoint, inside
/// kv_len - base; a length may be 0. n_pairs 0 keeps only tokens below base. kv_len: tokens now in the cache.
/// new_len: base plus all lengths. Tokens from *new_len on hold anything afterwards.
/// INVALID_ARGUMENT: a pair or the lengths are wrong; all are checked before the first byte moves. One thread per
/// cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_kv_compact(
    layout: *const mnnkv_layout,
    key: *mut c_void,
    value: *mut c_void,
    base: u32,
    reserve_pairs: *const i32,
    n_pairs: usize,
    kv_len: u32,
    new_len: *mut u32,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller vouches for its pointers.
        let (layout, key, value) = unsafe { checked_cache(layout, key, value) }?;
        // SAFETY: as above.
        let pairs = unsafe { pairs(reserve_pairs, n_pairs, "reserve_pairs") }?;
        // SAFETY: as above.
        let new_len = unsafe { Out::new(new_len, "new_len") }?;
        new_len.set(layout::compact(&layout, key, value, base, pairs, kv_len)?);
        Ok(())
    })
}

/// Sets tokens begin .. begin + count to zero bits. Padding and other tokens are untouched. One thread per cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_kv_zero(
    layout: *const mnnkv_layout,
    key: *mut c_void,
    value: *mut c_void,
    begin: u32,
    count: u32,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller vouches for its pointers.
        let (layout, key, value) = unsafe { checked_cache(layout, key, value) }?;
        layout::zero(&layout, key, value, layout.range(begin, count)?)
    })
}

/// As mnnkv_kv_zero, and gives the whole memory pages inside the range back to the system; the addresses stay valid
/// and take memory again when written. Padding of the released tokens is zeroed, too, so that it keeps no page.
///
/// bytes: what left memory (pages that were not in memory do not count). The contents are zero whatever the memory is;
/// pages go back where the system can drop them. Linux and Android: private anonymous memory (malloc, new, anonymous
/// mmap) by madvise(MADV_DONTNEED); shared memory, file mappings, locked memory and huge pages of hugetlbfs are zeroed
/// and stay. macOS: MADV_FREE_REUSABLE. Windows trims the working set. Elsewhere tokens are only zeroed and bytes is 0.
/// K goes back in whole groups of h_pack tokens, V in whole flash blocks, as far as they cover pages. One thread per
/// cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_kv_release(
    layout: *const mnnkv_layout,
    key: *mut c_void,
    value: *mut c_void,
    begin: u32,
    count: u32,
    bytes: *mut u64,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller vouches for its pointers.
        let (layout, key, value) = unsafe { checked_cache(layout, key, value) }?;
        // SAFETY: as above.
        let bytes = unsafe { Out::new(bytes, "bytes") }?;
        let range = layout.range(begin, count)?;
        bytes.set(layout::release(&layout, key, value, range, &mut pages::give_back)?);
        Ok(())
    })
}

/// Where a cache of kv_len tokens holds nothing: *begin is kv_len, *count what is left up to max_tokens, and *bytes how
/// much of the two buffers that is, the tails of every head.
///
/// What eviction leaves behind: mnnkv_kv_release(begin, count) gives its pages back, in place, and counts how many were
/// in memory; buffers of kv_len tokens would be this much smaller. Padding is not counted.
/// INVALID_ARGUMENT: kv_len over max_tokens. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_kv_tail(
    layout: *const mnnkv_layout,
    kv_len: u32,
    begin: *mut u32,
    count: *mut u32,
    bytes: *mut u64,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller vouches for its pointers.
        let (layout, begin, count, bytes) = unsafe {
            let layout = checked(layout)?;
            (layout, Out::new(begin, "begin")?, Out::new(count, "count")?, Out::new(bytes, "bytes")?)
        };
        let tail = layout.tail(kv_len)?;
        begin.set(tail.begin() as u32);
        count.set(tail.count() as u32);
        bytes.set((layout.dense_key_bytes(tail.count()) + layout.dense_value_bytes(tail.count())) as u64);
        Ok(())
    })
}
