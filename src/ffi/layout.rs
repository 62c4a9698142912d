//! Exports of the layout room.

use super::cache::{buffers, buffers_mut, checked, checked_cache, mnnkv_layout, pairs};
use super::panic::guard;
use super::pointer::{self, Out};
use super::status::mnnkv_status;
use crate::layout::{self, Layout};
use crate::status::{Error, Result, bail};
use crate::sys::pages;
use std::ffi::c_void;

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
