//! The oracle's caches as the library sees them.
#![allow(dead_code)]

use crate::quantised::{Kind as Form, MnnCache, Shape};
use mnnkv::dtype::Dtype;
use mnnkv::layout::{Cache, CacheRef, Int8Unit, Kind, Layout, Spec, TokenRange};

/// The description of a shape.
pub fn spec(shape: &Shape) -> Spec {
    let kind = |form| match form {
        Form::Float => Kind::Float(if shape.elem == 2 { Dtype::F16 } else { Dtype::F32 }),
        Form::Int8 => Kind::Int8,
        Form::Tq3 => Kind::Tq3,
        Form::Tq4 => Kind::Tq4,
    };
    let (key_head_stride, value_head_stride) = shape.strides();
    Spec {
        key: kind(shape.key),
        value: kind(shape.value),
        kv_heads: shape.heads as u32,
        head_dim: shape.dims as u32,
        l_pack: shape.pack.0 as u32,
        h_pack: shape.pack.1 as u32,
        int8: Int8Unit { l_pack: shape.unit.l as u32, h_pack: shape.unit.h as u32 },
        flash_block: shape.block as u32,
        max_tokens: shape.max as u32,
        key_head_stride: key_head_stride as u64,
        value_head_stride: value_head_stride as u64,
        key_token_stride: 0,
        value_token_stride: 0,
    }
}

pub fn layout(cache: &MnnCache) -> Layout {
    Layout::new(&spec(&cache.shape)).unwrap()
}

/// The cache as the library edits it.
pub fn edit<'a>(layout: &'a Layout, cache: &'a mut MnnCache) -> Cache<'a> {
    let MnnCache { shape, key, value, key_sum, value_sum, .. } = cache;
    let key_sum = if shape.key == Form::Int8 { &mut key_sum[..] } else { &mut [] };
    let value_sum = if shape.value == Form::Int8 { &mut value_sum[..] } else { &mut [] };
    Cache::with_sums(layout, key, value, key_sum, value_sum).unwrap()
}

/// The cache as the library reads it.
pub fn view<'a>(layout: &'a Layout, cache: &'a MnnCache) -> CacheRef<'a> {
    let key_sum = if cache.shape.key == Form::Int8 { &cache.key_sum[..] } else { &[] };
    CacheRef::with_sums(layout, &cache.key, &cache.value, key_sum).unwrap()
}

pub fn range(layout: &Layout, begin: usize, count: usize) -> TokenRange {
    layout.range(begin as u32, count as u32).unwrap()
}
