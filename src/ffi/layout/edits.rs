//! Layout: caches in place
//!
//! Functions on the memory of one cache, without a handle. key and value are the buffers of the layout. Calls that
//! write a cache must not overlap other calls on it.

use crate::ffi::cache::{mnnkv_layout, pairs};
use crate::ffi::given::{apart, checked, edit};
use crate::ffi::panic::body;
use crate::ffi::pointer::{self, Out};
use crate::ffi::status::mnnkv_status;
use crate::layout;
use crate::status::bail;
use crate::sys::pages;
use std::ffi::c_void;

/// Copies tokens begin .. begin + count of a cache to dense rows [head][token], which have the same bytes for every
/// packing. May run on several threads for one cache.
/// key_out, value_out: kv_heads * count rows each. A row is head_dim elements; TQ: its records; K INT8: head_dim codes,
/// then f32 scale, bias and key sum; V INT8: head_dim codes, and after all rows the f32 scales [head][2][head_dim]
/// that they share, scales before biases.
/// cap_each: capacity of each in bytes, at least the larger size of both: with INT8 K and V that is K's, kv_heads * count *
/// (head_dim + 12), or V's, kv_heads * (count + 8) * head_dim.
/// INVALID_ARGUMENT: if the range exceeds max_tokens, or an output overlaps another buffer
/// BUFFER_TOO_SMALL: if cap_each is too small; mnnkv_last_error has the size needed
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
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
    body!({
        let given = checked(layout)?;
        let layout = &given.layout;
        let range = layout.range(begin, count)?;
        let (key_len, rows_len) = (layout.dense_key_bytes(range.count()), layout.dense_value_bytes(range.count()));
        let value_len = rows_len + layout.scale_bytes();
        let (key_out, value_out) = given.outputs(key, value, (key_out, key_len), (value_out, value_len), cap_each)?;
        let cache = given.cache_ref(key, value)?;
        layout::gather(&cache, range, key_out, value_out)?;
        layout::gather_scales(&cache, &mut value_out[rows_len..])
    })
}

/// Copies dense rows to tokens begin .. begin + count of a cache, the inverse of gather; the packing may be another.
/// Padding and other tokens are not written. V INT8: mnnkv_kv_changed must follow. With begin 0 the cache takes the scales
/// of value_in: if they are others, all of its tokens must be written, or lose their values. With another begin the cache
/// must have the same.
/// len_each: bytes of key_in and of value_in, exactly those of the range; of the larger one where K and V differ.
/// INVALID_ARGUMENT: if the range exceeds max_tokens, len_each differs from that of the range, a buffer overlaps the
/// cache, or V has other scales
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
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
    body!({
        let given = checked(layout)?;
        let layout = &given.layout;
        let range = layout.range(begin, count)?;
        let (key_len, rows_len) = (layout.dense_key_bytes(range.count()), layout.dense_value_bytes(range.count()));
        let value_len = rows_len + layout.scale_bytes();
        if len_each != key_len.max(value_len) {
            bail!(InvalidArgument, "len_each is {len_each}; {} expected for {count} tokens", key_len.max(value_len));
        }
        given.apart(key, value, (key_in, key_len, "key_in"))?;
        given.apart(key, value, (value_in, value_len, "value_in"))?;
        let key_in = pointer::input_bytes(key_in, key_len, "key_in")?;
        let value_in = pointer::input_bytes(value_in, value_len, "value_in")?;
        let mut cache = given.cache(key, value)?;
        layout::scatter_scales(&mut cache, range, &value_in[rows_len..])?;
        layout::scatter(&mut cache, range, key_in, &value_in[..rows_len])
    })
}

/// Moves count tokens from src to dst, as memmove. Tokens of src outside of dst keep their contents. V INT8:
/// mnnkv_kv_changed must follow.
/// INVALID_ARGUMENT: if a range exceeds max_tokens
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_kv_move(
    layout: *const mnnkv_layout,
    key: *mut c_void,
    value: *mut c_void,
    src: u32,
    dst: u32,
    count: u32,
) -> mnnkv_status {
    body!(edit(layout, key, value, |cache| layout::move_tokens(cache, src, dst, count)))
}

/// Keeps the tokens below base and those of the reserve pairs, and closes the gaps (eviction, truncation).
/// reserve_pairs: n_pairs times (offset, length), offsets relative to base as in MNN's KVMeta, ascending and disjoint,
/// within kv_len - base; none keeps only the tokens below base.
/// kv_len: tokens in the cache.
/// new_len: base plus all lengths; contents of later tokens are undefined. V INT8 needs no mnnkv_kv_changed.
/// INVALID_ARGUMENT: if a pair, base or kv_len is out of range; no byte has moved
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
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
    body!(edit(layout, key, value, |cache| {
        apart(cache, reserve_pairs, n_pairs.saturating_mul(2), "reserve_pairs")?;
        apart(cache, new_len, 1, "new_len")?;
        let pairs = pairs(reserve_pairs, n_pairs, "reserve_pairs")?;
        let new_len = Out::new(new_len, "new_len")?;
        new_len.set(layout::compact(cache, base, pairs, kv_len)?);
        Ok(())
    }))
}

/// Sets tokens begin .. begin + count to zero. Padding and other tokens are not written. V INT8: mnnkv_kv_changed must
/// follow if the cache has tokens among them.
/// INVALID_ARGUMENT: if the range exceeds max_tokens
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_kv_zero(
    layout: *const mnnkv_layout,
    key: *mut c_void,
    value: *mut c_void,
    begin: u32,
    count: u32,
) -> mnnkv_status {
    body!(edit(layout, key, value, |cache| {
        layout::zero(cache, cache.layout.range(begin, count)?);
        Ok(())
    }))
}

/// Sets tokens begin .. begin + count and their padding to zero, and returns the whole pages within them to the system.
/// Addresses stay valid; writing takes memory again. K is released in groups of h_pack tokens, V in flash blocks. V
/// INT8: the first flash block keeps its scales; others lose theirs until mnnkv_kv_appended. Key and value sums stay.
/// bytes: bytes that left memory; pages that were not resident do not count. Linux and Android drop private anonymous
/// memory (madvise MADV_DONTNEED); shared, file-backed, locked and hugetlbfs memory is only set to zero. macOS uses
/// MADV_FREE_REUSABLE, Windows trims the working set. Other systems release nothing.
/// INVALID_ARGUMENT: if the range exceeds max_tokens
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_kv_release(
    layout: *const mnnkv_layout,
    key: *mut c_void,
    value: *mut c_void,
    begin: u32,
    count: u32,
    bytes: *mut u64,
) -> mnnkv_status {
    body!(edit(layout, key, value, |cache| {
        apart(cache, bytes, 1, "bytes")?;
        let bytes = Out::new(bytes, "bytes")?;
        let range = cache.layout.range(begin, count)?;
        bytes.set(layout::release(cache, range, &mut pages::give_back));
        Ok(())
    }))
}
