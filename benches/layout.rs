//! gather, scatter and compact beside memcpy of the same bytes and a loop that computes every index.
//!
//! Every operation is checked against the element loop before it is timed.

mod common;
#[path = "layout/int8.rs"]
mod int8;
#[path = "../tests/common/packing.rs"]
mod packing;

use common::{Random, Rivals, Table, cells};
use mnnkv::dtype::Dtype;
use mnnkv::layout::{self, Cache, CacheRef, Layout, Pair, Spec};
use packing::Packing;
use std::hint::black_box;

/// Plain loops: the full formula for every element.
#[derive(Clone, Copy)]
struct Formula {
    packing: Packing,
    head_bytes: (usize, usize),
}

impl Formula {
    fn new(spec: Spec) -> Self {
        let packing = Packing { spec };
        Formula { packing, head_bytes: packing.head_bytes() }
    }

    fn compact<const N: usize>(&self, key: &mut [u8], value: &mut [u8], pairs: &[Pair]) {
        let key = elements_mut::<N>(key);
        let value = elements_mut::<N>(value);
        for head in 0..self.packing.spec.kv_heads as usize {
            let key = &mut key[head * self.head_bytes.0 / N..];
            let value = &mut value[head * self.head_bytes.1 / N..];
            let mut dst = 0;
            for [offset, len] in pairs {
                let (src, len) = (*offset as usize, *len as usize);
                for i in 0..len {
                    for d in 0..self.packing.spec.head_dim as usize {
                        key[self.packing.key(dst + i, d)] = key[self.packing.key(src + i, d)];
                        value[self.packing.value(dst + i, d)] = value[self.packing.value(src + i, d)];
                    }
                }
                dst += len;
            }
        }
    }

    fn gather<const N: usize>(&self, key: &[u8], value: &[u8], tokens: usize, keys: &mut [u8], values: &mut [u8]) {
        let key = elements::<N>(key);
        let value = elements::<N>(value);
        let keys = elements_mut::<N>(keys);
        let values = elements_mut::<N>(values);
        let dims = self.packing.spec.head_dim as usize;
        for head in 0..self.packing.spec.kv_heads as usize {
            let key = &key[head * self.head_bytes.0 / N..];
            let value = &value[head * self.head_bytes.1 / N..];
            for t in 0..tokens {
                for d in 0..dims {
                    keys[(head * tokens + t) * dims + d] = key[self.packing.key(t, d)];
                    values[(head * tokens + t) * dims + d] = value[self.packing.value(t, d)];
                }
            }
        }
    }

    fn scatter<const N: usize>(&self, keys: &[u8], values: &[u8], tokens: usize, key: &mut [u8], value: &mut [u8]) {
        let keys = elements::<N>(keys);
        let values = elements::<N>(values);
        let key = elements_mut::<N>(key);
        let value = elements_mut::<N>(value);
        let dims = self.packing.spec.head_dim as usize;
        for head in 0..self.packing.spec.kv_heads as usize {
            let key = &mut key[head * self.head_bytes.0 / N..];
            let value = &mut value[head * self.head_bytes.1 / N..];
            for t in 0..tokens {
                for d in 0..dims {
                    key[self.packing.key(t, d)] = keys[(head * tokens + t) * dims + d];
                    value[self.packing.value(t, d)] = values[(head * tokens + t) * dims + d];
                }
            }
        }
    }
}

/// Keeps 1 token in 3.5, in blocks of 64 or in runs of any length at any place.
fn plan(tokens: usize, aligned: bool) -> Vec<Pair> {
    let mut random = Random(7);
    let mut pairs = Vec::new();
    let mut at = 0;
    while at < tokens {
        let (skip, len) = if aligned { (64 * random.below(6), 64) } else { (random.below(320), 1 + random.below(127)) };
        at += skip;
        let len = len.min(tokens.saturating_sub(at));
        if len > 0 {
            pairs.push([at as i32, len as i32]);
        }
        at += len;
    }
    pairs
}

/// A byte buffer as elements of alignment 1.
fn elements<const N: usize>(bytes: &[u8]) -> &[[u8; N]] {
    bytes.as_chunks::<N>().0
}

fn elements_mut<const N: usize>(bytes: &mut [u8]) -> &mut [[u8; N]] {
    bytes.as_chunks_mut::<N>().0
}

fn bench<const N: usize>(table: &mut Table, name: &str, spec: Spec) {
    let layout = Layout::new(&spec).unwrap();
    let formula = black_box(Formula::new(spec));
    let tokens = spec.max_tokens as usize;
    let mut random = Random(3);
    let key = random.bytes(layout.key_bytes());
    let value = random.bytes(layout.value_bytes());
    let range = layout.range(0, spec.max_tokens).unwrap();
    let dense = layout.dense_key_bytes(tokens);

    // gather and scatter
    let (mut keys, mut values) = (vec![0; dense], vec![0; dense]);
    let (mut other_keys, mut other_values) = (vec![0; dense], vec![0; dense]);
    layout::gather(&CacheRef::new(&layout, &key, &value).unwrap(), range, &mut keys, &mut values).unwrap();
    formula.gather::<N>(&key, &value, tokens, &mut other_keys, &mut other_values);
    assert!(keys == other_keys && values == other_values, "gather");
    let (mut k, mut v) = (key.clone(), value.clone());
    layout::scatter(&mut Cache::new(&layout, &mut k, &mut v).unwrap(), range, &keys, &values).unwrap();
    assert!(k == key && v == value, "scatter");

    let copy_from = random.bytes(2 * dense);
    let mut copy_to = vec![0; 2 * dense];
    let medians = Rivals::new()
        .add("gather", || {
            layout::gather(&CacheRef::new(&layout, &key, &value).unwrap(), range, &mut keys, &mut values).unwrap()
        })
        .add("element loop", || formula.gather::<N>(&key, &value, tokens, &mut other_keys, &mut other_values))
        .add("memcpy", || black_box(&mut copy_to).copy_from_slice(black_box(&copy_from)))
        .run(1500);
    row(table, "gather", name, 2 * dense, &medians);
    let medians = Rivals::new()
        .add("scatter", || {
            layout::scatter(&mut Cache::new(&layout, &mut k, &mut v).unwrap(), range, &keys, &values).unwrap()
        })
        .add("element loop", {
            let (mut k, mut v) = (key.clone(), value.clone());
            let (keys, values) = (&keys, &values);
            move || formula.scatter::<N>(keys, values, tokens, &mut k, &mut v)
        })
        .add("memcpy", || black_box(&mut copy_to).copy_from_slice(black_box(&copy_from)))
        .run(1500);
    row(table, "scatter", name, 2 * dense, &medians);

    // compact
    for (kind, aligned) in [("block plan", true), ("any plan", false)] {
        let pairs = plan(tokens, aligned);
        let kept: usize = pairs.iter().map(|p| p[1] as usize).sum();
        let bytes = 2 * layout.dense_key_bytes(kept);
        let (mut k, mut v) = (key.clone(), value.clone());
        let (mut ok, mut ov) = (key.clone(), value.clone());
        layout::compact(&mut Cache::new(&layout, &mut k, &mut v).unwrap(), 0, &pairs, spec.max_tokens).unwrap();
        formula.compact::<N>(&mut ok, &mut ov, &pairs);
        let check = layout.range(0, kept as u32).unwrap();
        let dense = layout.dense_key_bytes(kept);
        layout::gather(&CacheRef::new(&layout, &k, &v).unwrap(), check, &mut keys, &mut values).unwrap();
        layout::gather(&CacheRef::new(&layout, &ok, &ov).unwrap(), check, &mut other_keys, &mut other_values).unwrap();
        assert!(keys[..dense] == other_keys[..dense] && values[..dense] == other_values[..dense], "compact");
        let medians = Rivals::new()
            .add("compact", || {
                layout::compact(&mut Cache::new(&layout, &mut k, &mut v).unwrap(), 0, &pairs, spec.max_tokens).unwrap();
            })
            .add("element loop", || formula.compact::<N>(&mut ok, &mut ov, &pairs))
            .add("memcpy", || black_box(&mut copy_to[..bytes]).copy_from_slice(black_box(&copy_from[..bytes])))
            .run(1500);
        row(table, &format!("compact, {kind}"), name, bytes, &medians);
    }
}

/// Rivals: the element loop, memcpy.
fn row(table: &mut Table, operation: &str, name: &str, bytes: usize, medians: &[(&'static str, f64)]) {
    table.row([format!("{operation}, {name}")].into_iter().chain(cells(bytes, medians)));
}

fn main() {
    let mut table = Table::new("layout", "one thread", &["operation, packing", "MB/s", "x element loop", "x memcpy"]);
    let base = packing::flash(8, 128, 16, 4096);
    bench::<2>(&mut table, "f16, hP 16", base);
    bench::<4>(&mut table, "f32, hP 8", Spec { key: Dtype::F32.into(), value: Dtype::F32.into(), h_pack: 8, ..base });
    bench::<2>(&mut table, "f16, lP 2, hP 64 (SME2)", Spec { l_pack: 2, h_pack: 64, ..base });
    int8::bench(&mut table, 8, 4, 8, 4096);
    table.print();
}
