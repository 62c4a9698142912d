//! Quantised caches of MNN: the library against an oracle of MNN's formulas, which `quantised/model.rs` tests in its turn.

#[path = "quantised/c_abi.rs"]
mod c_abi;
mod common;
#[path = "quantised/model.rs"]
mod model;
#[path = "quantised/portable.rs"]
mod portable;
#[path = "common/quantised/mod.rs"]
mod quantised;
#[path = "quantised/refused.rs"]
mod refused;
#[path = "quantised/schedules.rs"]
mod schedules;

use mnnkv::dtype::Dtype;
use mnnkv::layout::{Cache, CacheRef, Int8Unit, Kind, Layout, Spec, TokenRange};
use proptest::prelude::*;
use quantised::{Kind as Form, MnnCache, Shape, Unit, kinds};

/// The description of a shape.
fn spec(shape: &Shape) -> Spec {
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

fn layout(cache: &MnnCache) -> Layout {
    Layout::new(&spec(&cache.shape)).unwrap()
}

/// The cache as the library edits it.
fn edit<'a>(layout: &'a Layout, cache: &'a mut MnnCache) -> Cache<'a> {
    let MnnCache { shape, key, value, key_sum, value_sum, .. } = cache;
    let key_sum = if shape.key == Form::Int8 { &mut key_sum[..] } else { &mut [] };
    let value_sum = if shape.value == Form::Int8 { &mut value_sum[..] } else { &mut [] };
    Cache::with_sums(layout, key, value, key_sum, value_sum).unwrap()
}

/// The cache as the library reads it.
fn view<'a>(layout: &'a Layout, cache: &'a MnnCache) -> CacheRef<'a> {
    let key_sum = if cache.shape.key == Form::Int8 { &cache.key_sum[..] } else { &[] };
    CacheRef::with_sums(layout, &cache.key, &cache.value, key_sum).unwrap()
}

fn range(layout: &Layout, begin: usize, count: usize) -> TokenRange {
    layout.range(begin as u32, count as u32).unwrap()
}

/// Every unit, mode and float, few heads and dims.
fn shapes() -> impl Strategy<Value = Shape> {
    let units = prop::sample::select(vec![(16, 4), (4, 8), (4, 64), (8, 8), (4, 32)]);
    let packs = prop::sample::select(vec![(1, 4), (1, 8), (1, 16), (2, 64)]);
    let dims = prop_oneof![prop::sample::select(vec![32usize, 64, 80]), 1usize..50];
    let gaps = prop_oneof![Just((0, 0)), (0usize..9, 0usize..9)];
    (9usize..15, units, 1usize..3, dims, packs, prop::sample::select(vec![2usize, 4]), 1usize..200, gaps).prop_map(
        |(mode, (l, h), heads, dims, pack, elem, max, gaps)| {
            let (key, value) = kinds(mode);
            // A record is 32 dims.
            let dims = if mode > 10 { dims.div_ceil(32) * 32 } else { dims };
            let gaps = (4 * gaps.0, 4 * gaps.1);
            Shape { key, value, unit: Unit { l, h }, heads, dims, pack, elem, block: 64, max, gaps }
        },
    )
}
