//! Caches as C hands them over: element types, layouts, buffers.

use super::pointer::{self, Sized32};
use crate::dtype::Dtype;
use crate::layout::{Layout, Pair, Spec};
use crate::status::{Result, bail};
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
    MNNKV_DTYPE_F16 == Dtype::F16.code()
        && MNNKV_DTYPE_BF16 == Dtype::Bf16.code()
        && MNNKV_DTYPE_F32 == Dtype::F32.code()
        && MNNKV_DTYPE_INT8 == Dtype::Int8.code()
        && Dtype::ALL.len() == 4
);

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

/// A layer's cache as it is now.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_cache {
    /// sizeof(mnnkv_cache)
    pub struct_size: u32,
    /// What the buffers look like. Packing and max_tokens may change from call to call (a cache that has grown); heads,
    /// head_dim and element types may not.
    pub layout: *const mnnkv_layout,
    /// K of all heads.
    pub key: *mut c_void,
    /// V of all heads.
    pub value: *mut c_void,
    /// In: physical tokens in the cache. Out, on success of begin and keep: how many there are now.
    pub kv_len: u32,
}

// SAFETY: repr(C), begins with a u32, integers and raw pointers only.
unsafe impl Sized32 for mnnkv_cache {
    const MIN: usize = size_of::<mnnkv_cache>();
}
