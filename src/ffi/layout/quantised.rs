//! Quantised: MNN's INT8 and TurboQuant caches
//!
//!   attention_mode   1, 2, 9   10     3, 11   12    5, 13   14
//!   key_dtype        INT8      INT8   TQ3     TQ3   TQ4     TQ4
//!   value_dtype      float     INT8   float   TQ3   float   TQ4
//!
//! flash_block is 64 from mode 8 on, max_tokens below. MNN's modes 4 and 6 (12 and 14 without flash attention) are
//! refused: MNN overruns its buffer of softmax weights. All functions of this header, stores and sessions take these caches.
//! Codes, scales, biases and key sums are moved as they are, never computed again. With D = head_dim, F = 64, l and h the
//! packs of mnnkv_int8 and UP(a, b) = a / b rounded up, a head is
//!
//!   K INT8   UP(max_tokens,h) blocks: codes [UP(D,l)][h][l], h f32 scales, h f32 biases
//!   V INT8   UP(max_tokens,F) blocks of UP(D,h) groups: codes [F/l][h][l], h f32 scales, h f32 biases (of dims)
//!   TQ3/4    max_tokens tokens of D/32 records: f16 scale, 32 indices of 3 or 4 bits
//!
//! The flash blocks of an INT8 V share the scales of the first one. MNN's kernels read V right only if each block has
//! them, codes after the last token are 0, and value_sum is the sum of the tokens; those of x86 do without the last
//! two. mnnkv_kv_compact and sessions keep V so (mnnkv_session_abort clears what was appended); they do not mend scales. A host
//! of an INT8 V calls
//!
//!   mnnkv_kv_appended    after each append, before attention; with a session, too
//!   mnnkv_kv_changed     after mnnkv_kv_scatter, _move and _zero, after writing tokens in place, after a truncation of
//!                        its own (with a session mnnkv_session_keep truncates), and with kv_len 0 and all tokens before
//!                        it uses the memory of a cleared cache again; with a session only between begin and end, since
//!                        stored tokens read as zero otherwise
//!   mnnkv_kv_release     without a session, for a tail that was released, again after an append that began at a
//!                        multiple of 64: MNN has written scales to all blocks
//!
//! An INT8 layer without tokens must not get an append of one token: MNN would keep its scales for all later tokens.

use crate::ffi::cache::mnnkv_layout;
use crate::ffi::given::edit;
use crate::ffi::panic::body;
use crate::ffi::pointer::Sized32;
use crate::ffi::status::mnnkv_status;
use crate::layout;
use std::ffi::c_void;

/// Packing of an INT8 cache, and the arrays that MNN (CPUKVCacheManager) has beside it. Lengths are in bytes. No call
/// retains them, and MNN replaces the arrays when a cache grows: fetch them for each call. mnnkv_layout_check and other
/// calls without buffers read only l_pack and h_pack.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_int8 {
    /// sizeof(mnnkv_int8)
    pub struct_size: u32,
    /// MNN's lP8. lP8 and hP8 are 16 and 4 (x86 SSE, plain C, old Arm), 4 and 8 (AVX2, Arm sdot), 4 and 64 (AVX-512), 8 and 8
    /// (Arm i8mm), 4 and 32 (SME2). mnnkv_layout's l_pack and h_pack are those of a floating-point V.
    pub l_pack: u32,
    /// MNN's hP8.
    pub h_pack: u32,
    /// Must be 0.
    pub reserved: u32,
    /// f32 [head][UP(max_tokens,h) * h] (mKeySum), moved with the tokens.
    pub key_sum: *mut f32,
    /// Bytes of key_sum.
    pub key_sum_bytes: u64,
    /// V INT8: f32 [head][UP(max_tokens,F)][UP(D,h) * h] (mValueSum), summed anew where tokens change. Not read
    /// otherwise.
    pub value_sum: *mut f32,
    /// Bytes of value_sum.
    pub value_sum_bytes: u64,
}

// SAFETY: repr(C), begins with a u32, integers and raw pointers only.
unsafe impl Sized32 for mnnkv_int8 {
    const MIN: usize = size_of::<mnnkv_int8>();
}

/// Declares that the host (MNN) has appended tokens begin .. begin + count. V INT8: gives the flash blocks that they
/// touch the scales of the first one, which MNN itself copies only if begin % 64 is 0; a block that came with growth,
/// or was released, has none. Sums stay: MNN has added the tokens. Other caches stay as they are.
/// INVALID_ARGUMENT: if the range exceeds max_tokens
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_kv_appended(
    layout: *const mnnkv_layout,
    key: *mut c_void,
    value: *mut c_void,
    begin: u32,
    count: u32,
) -> mnnkv_status {
    body!(edit(layout, key, value, |cache| {
        layout::appended(cache, cache.layout.range(begin, count)?);
        Ok(())
    }))
}

/// Declares that tokens begin .. begin + count were written, moved or removed other than by mnnkv_kv_compact or a
/// session, and that the cache has kv_len tokens now. Plain truncation from 100 to 80 tokens: begin 80, count 20,
/// kv_len 80. The range of a truncation must reach to the old length. V INT8: sets codes of the range from kv_len on to
/// zero, sums the values of its flash blocks anew, and sets all later sums to 0. Other caches stay as they are.
/// INVALID_ARGUMENT: if the range or kv_len exceeds max_tokens
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_kv_changed(
    layout: *const mnnkv_layout,
    key: *mut c_void,
    value: *mut c_void,
    begin: u32,
    count: u32,
    kv_len: u32,
) -> mnnkv_status {
    body!(edit(layout, key, value, |cache| {
        let range = cache.layout.range(begin, count)?;
        layout::changed(cache, range, kv_len)
    }))
}
