//! Caches
//!
//! A layer's KV cache is two buffers of the host.

use super::given::{Given, checked};
use super::layout::mnnkv_int8;
use super::panic::body;
use super::pointer::{self, Out, Sized32};
use super::status::mnnkv_status;
use crate::dtype::Dtype;
use crate::layout::{Kind, Pair};
use crate::status::Result;
use std::ffi::c_void;

/// Element types: IEEE 754 binary16, bfloat16, IEEE 754 binary32.
pub const MNNKV_DTYPE_F16: u32 = 1;
pub const MNNKV_DTYPE_BF16: u32 = 2;
pub const MNNKV_DTYPE_F32: u32 = 3;
/// MNN's quantised caches (layout.h): 8, 3 and 4 bits.
pub const MNNKV_DTYPE_INT8: u32 = 4;
pub const MNNKV_DTYPE_TQ3: u32 = 5;
pub const MNNKV_DTYPE_TQ4: u32 = 6;

const _: () = assert!(
    MNNKV_DTYPE_F16 == Dtype::F16.code()
        && MNNKV_DTYPE_BF16 == Dtype::Bf16.code()
        && MNNKV_DTYPE_F32 == Dtype::F32.code()
        && MNNKV_DTYPE_INT8 == Dtype::Int8.code()
        && MNNKV_DTYPE_TQ3 == Kind::TQ3
        && MNNKV_DTYPE_TQ4 == Kind::TQ4
        && Dtype::ALL.len() == 4
);

/// The arrangement of a cache: one buffer for K and one for V, in each one region per KV head.
///
/// With D = head_dim, lP = l_pack, hP = h_pack, F = flash_block and UP(a, b) = a / b rounded up, the element of token t
/// and dimension d has this index within its head:
///
///   K  (t/hP)*UP(D,lP)*lP*hP + (d/lP)*hP*lP + (t%hP)*lP + d%lP
///   V  (t/F)*UP(D,hP)*s + (d/hP)*s + (u/lP)*hP*lP + (d%hP)*lP + u%lP    with u = t%F, s = UP(F,lP)*lP*hP
///
/// This is the cache of MNN 3.6 (CPUKVCacheManager). Its l_pack/h_pack: Arm64 f16 1/16, f32 1/8; Arm32 f32 1/4; Arm
/// bf16 1/8, with ARMv8.6 4/8; SME2 f16 2/64, f32 1/64; x86 f32 1/4, with AVX-512 1/8; x86 bf16 8/4. Elements that only
/// complete a pack are padding. Only mnnkv_kv_release writes padding.
///
/// A row-major cache (llama.cpp) has l_pack = h_pack = 1. With N = kv_heads * head_dim * bytes per element:
///
///   K, V [head][token][dim] both strides 0, flash_block 1
///   K [token][head][dim]    key_token_stride N
///   V [token][head][dim]    value_token_stride N, flash_block 1
///   V [head][dim][token]    value_token_stride 0, flash_block max_tokens (transposed V)
///
/// K and V are two buffers that do not overlap: K and V of a token in one interleaved buffer have no layout.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_layout {
    /// sizeof(mnnkv_layout)
    pub struct_size: u32,
    /// MNNKV_DTYPE_* of K.
    pub key_dtype: u32,
    /// MNNKV_DTYPE_* of V.
    pub value_dtype: u32,
    /// KV heads (not query heads), at least 1.
    pub kv_heads: u32,
    /// Elements per head and token, at least 1.
    pub head_dim: u32,
    /// MNN's eP, which packs queries; not read.
    pub e_pack: u32,
    /// MNN's lP of floating-point K and V, at least 1.
    pub l_pack: u32,
    /// MNN's hP of floating-point K and V, at least 1.
    pub h_pack: u32,
    /// Tokens per flash block of V, at least 1: 64 with flash attention, max_tokens without.
    pub flash_block: u32,
    /// Tokens that the buffers have room for, at least 1.
    pub max_tokens: u32,
    /// Bytes from one head of K to the next, a multiple of the element size (INT8: 4, TQ: 2). 0 = side by side. A head stride is
    /// at least the size of a head, or all heads of a token fit into its token stride.
    pub key_head_stride: u64,
    /// The same of V.
    pub value_head_stride: u64,
    /// Bytes from one token of K to the next of the same head, a multiple of the element size; only with h_pack 1, and 0 where
    /// quantised. 0 = side by side. With a token stride, head stride 0 means that heads of a token lie side by side in it.
    pub key_token_stride: u64,
    /// The same of V; only with flash_block 1.
    pub value_token_stride: u64,
    /// K INT8: its packing and the arrays beside it (layout.h). Not read otherwise.
    pub int8: *const mnnkv_int8,
}

// SAFETY: repr(C), begins with a u32, integers and raw pointers only.
unsafe impl Sized32 for mnnkv_layout {
    const MIN: usize = 72;
}
const _: () = assert!(std::mem::offset_of!(mnnkv_layout, int8) == mnnkv_layout::MIN);

/// Reserve pairs as C has them: 2 * n_pairs numbers.
///
/// # Safety
/// A non-NULL `pairs` is readable for 2 * `n_pairs` numbers.
pub(super) unsafe fn pairs<'a>(pairs: *const i32, n_pairs: usize, name: &str) -> Result<&'a [Pair]> {
    // SAFETY: passed on; a pair is two neighbouring numbers.
    unsafe { pointer::input(pairs.cast::<Pair>(), n_pairs, name) }
}

/// A layer's cache at the time of a call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_cache {
    /// sizeof(mnnkv_cache)
    pub struct_size: u32,
    /// Packing, strides and max_tokens may change between calls (a larger buffer); heads, head_dim and dtypes not.
    pub layout: *const mnnkv_layout,
    /// The buffer of K, of the size that mnnkv_layout_check returns.
    pub key: *mut c_void,
    /// The buffer of V, likewise.
    pub value: *mut c_void,
    /// In: physical tokens in the cache. Out, on success of begin and keep: the new number.
    pub kv_len: u32,
}

// SAFETY: repr(C), begins with a u32, integers and raw pointers only.
unsafe impl Sized32 for mnnkv_cache {
    const MIN: usize = size_of::<mnnkv_cache>();
}

/// Checks a layout, and returns the bytes of each buffer: all heads, to the end of the last one.
/// INVALID_ARGUMENT: if a field is out of range, or a buffer would not fit in memory
/// UNSUPPORTED: if a quantised cache is none of MNN's
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_layout_check(
    layout: *const mnnkv_layout,
    key_bytes: *mut u64,
    value_bytes: *mut u64,
) -> mnnkv_status {
    body!({
        let Given { layout, .. } = checked(layout)?;
        let (key_bytes, value_bytes) = (Out::new(key_bytes, "key_bytes")?, Out::new(value_bytes, "value_bytes")?);
        key_bytes.set(layout.key_bytes() as u64);
        value_bytes.set(layout.value_bytes() as u64);
        Ok(())
    })
}
