//! INT8 caches: K with scales, biases and key sums, V with scales and value sums.

use crate::common::{Random, Rivals, Table};
use crate::{plan, row};
use mnnkv::layout::{self, Cache, CacheRef, Int8Unit, Kind, Layout, Pair, Spec, TokenRange};
use std::hint::black_box;

/// Tokens of a value block.
const F: usize = 64;

/// A cache and the arrays beside it.
#[derive(Clone)]
struct Buffers {
    key: Vec<u8>,
    value: Vec<u8>,
    key_sums: Vec<u8>,
    value_sums: Vec<u8>,
}

/// Dense rows, and the scales of V.
#[derive(Clone, PartialEq)]
struct Tokens {
    keys: Vec<u8>,
    values: Vec<u8>,
    scales: Vec<u8>,
}

impl Buffers {
    fn cache<'a>(&'a mut self, layout: &'a Layout) -> Cache<'a> {
        let Buffers { key, value, key_sums, value_sums } = self;
        Cache::with_sums(layout, key, value, key_sums, value_sums).unwrap()
    }

    fn gather(&self, layout: &Layout, range: TokenRange, to: &mut Tokens) {
        let cache = CacheRef::with_sums(layout, &self.key, &self.value, &self.key_sums).unwrap();
        layout::gather(&cache, range, &mut to.keys, &mut to.values).unwrap();
        layout::gather_scales(&cache, &mut to.scales).unwrap();
    }

    fn scatter(&mut self, layout: &Layout, range: TokenRange, from: &Tokens) {
        let mut cache = self.cache(layout);
        layout::scatter_scales(&mut cache, range, &from.scales).unwrap();
        layout::scatter(&mut cache, range, &from.keys, &from.values).unwrap();
    }
}

/// Plain loops: MNN's formula for every byte.
#[derive(Clone, Copy)]
struct Formula {
    heads: usize,
    dims: usize,
    max: usize,
    l: usize,
    h: usize,
}

impl Formula {
    fn key_block(&self) -> usize {
        self.h * (self.dims.next_multiple_of(self.l) + 8)
    }

    fn key_head(&self) -> usize {
        self.max.div_ceil(self.h) * self.key_block()
    }

    fn key(&self, t: usize, d: usize) -> usize {
        let Formula { l, h, .. } = *self;
        t / h * self.key_block() + d / l * h * l + t % h * l + d % l
    }

    /// The bias is 4 * h bytes behind.
    fn key_scale(&self, t: usize) -> usize {
        t / self.h * self.key_block() + self.dims.next_multiple_of(self.l) * self.h + 4 * (t % self.h)
    }

    fn value_block(&self) -> usize {
        self.dims.div_ceil(self.h) * 72 * self.h
    }

    fn value_head(&self) -> usize {
        self.max.div_ceil(F) * self.value_block()
    }

    fn value(&self, t: usize, d: usize) -> usize {
        let (Formula { l, h, .. }, u) = (*self, t % F);
        t / F * self.value_block() + d / h * 72 * h + u / l * h * l + d % h * l + u % l
    }

    /// The bias is 4 * h bytes behind.
    fn value_scale(&self, block: usize, d: usize) -> usize {
        block * self.value_block() + d / self.h * 72 * self.h + F * self.h + 4 * (d % self.h)
    }

    fn key_sum(&self, head: usize, t: usize) -> usize {
        (head * self.max.next_multiple_of(self.h) + t) * 4
    }

    fn value_sum(&self, head: usize, block: usize, d: usize) -> usize {
        ((head * self.max.div_ceil(F) + block) * self.dims.next_multiple_of(self.h) + d) * 4
    }

    /// Noise with finite scales, the same in every value block.
    fn noise(&self, layout: &Layout, random: &mut Random) -> Buffers {
        let (key, value) = (random.bytes(layout.key_bytes()), random.bytes(layout.value_bytes()));
        let sums = (vec![0; layout.key_sum_bytes()], vec![0; layout.value_sum_bytes()]);
        let mut made = Buffers { key, value, key_sums: sums.0, value_sums: sums.1 };
        let mut float = |to: &mut [u8]| to.copy_from_slice(&(random.below(2000) as f32 / 1000.0 - 1.0).to_ne_bytes());
        for head in 0..self.heads {
            let key = &mut made.key[head * self.key_head()..];
            for t in 0..self.max {
                float(&mut made.key_sums[self.key_sum(head, t)..][..4]);
                [0, 4 * self.h].iter().for_each(|lane| float(&mut key[self.key_scale(t) + lane..][..4]));
            }
            let value = &mut made.value[head * self.value_head()..];
            for (d, lane) in (0..self.dims).flat_map(|d| [(d, 0), (d, 4 * self.h)]) {
                let first = self.value_scale(0, d) + lane;
                float(&mut value[first..][..4]);
                for block in 1..self.max / F {
                    value.copy_within(first..first + 4, self.value_scale(block, d) + lane);
                }
            }
        }
        made
    }

    fn gather(&self, from: &Buffers, count: usize, to: &mut Tokens) {
        let row = self.dims + 12;
        for head in 0..self.heads {
            let (key, value) = (&from.key[head * self.key_head()..], &from.value[head * self.value_head()..]);
            for t in 0..count {
                let keys = &mut to.keys[(head * count + t) * row..][..row];
                let values = &mut to.values[(head * count + t) * self.dims..][..self.dims];
                for d in 0..self.dims {
                    keys[d] = key[self.key(t, d)];
                    values[d] = value[self.value(t, d)];
                }
                let scale = self.key_scale(t);
                keys[self.dims..][..4].copy_from_slice(&key[scale..][..4]);
                keys[self.dims + 4..][..4].copy_from_slice(&key[scale + 4 * self.h..][..4]);
                keys[self.dims + 8..].copy_from_slice(&from.key_sums[self.key_sum(head, t)..][..4]);
            }
            for d in 0..self.dims {
                let (scale, to) = (self.value_scale(0, d), &mut to.scales[(head * 2 * self.dims + d) * 4..]);
                to[..4].copy_from_slice(&value[scale..][..4]);
                to[4 * self.dims..][..4].copy_from_slice(&value[scale + 4 * self.h..][..4]);
            }
        }
    }

    fn scatter(&self, from: &Tokens, count: usize, to: &mut Buffers) {
        let row = self.dims + 12;
        for head in 0..self.heads {
            let key = &mut to.key[head * self.key_head()..];
            let value = &mut to.value[head * self.value_head()..];
            for t in 0..count {
                let keys = &from.keys[(head * count + t) * row..][..row];
                let values = &from.values[(head * count + t) * self.dims..][..self.dims];
                for d in 0..self.dims {
                    key[self.key(t, d)] = keys[d];
                    value[self.value(t, d)] = values[d];
                }
                let scale = self.key_scale(t);
                key[scale..][..4].copy_from_slice(&keys[self.dims..][..4]);
                key[scale + 4 * self.h..][..4].copy_from_slice(&keys[self.dims + 4..][..4]);
                to.key_sums[self.key_sum(head, t)..][..4].copy_from_slice(&keys[self.dims + 8..]);
            }
            for (block, d) in (0..count.div_ceil(F)).flat_map(|block| (0..self.dims).map(move |d| (block, d))) {
                let (scale, from) = (self.value_scale(block, d), &from.scales[(head * 2 * self.dims + d) * 4..]);
                value[scale..][..4].copy_from_slice(&from[..4]);
                value[scale + 4 * self.h..][..4].copy_from_slice(&from[4 * self.dims..][..4]);
            }
        }
    }

    fn move_token(&self, cache: &mut Buffers, head: usize, src: usize, dst: usize) {
        let (key, value) = (&mut cache.key[head * self.key_head()..], &mut cache.value[head * self.value_head()..]);
        for d in 0..self.dims {
            key[self.key(dst, d)] = key[self.key(src, d)];
            value[self.value(dst, d)] = value[self.value(src, d)];
        }
        for lane in [0, 4 * self.h] {
            let from = self.key_scale(src) + lane;
            key.copy_within(from..from + 4, self.key_scale(dst) + lane);
        }
        let from = self.key_sum(head, src);
        cache.key_sums.copy_within(from..from + 4, self.key_sum(head, dst));
    }

    fn compact(&self, cache: &mut Buffers, pairs: &[Pair]) {
        for head in 0..self.heads {
            let mut kept = 0;
            for src in pairs.iter().flat_map(|[offset, len]| *offset as usize..(*offset + *len) as usize) {
                self.move_token(cache, head, src, kept);
                kept += 1;
            }
            let value = &mut cache.value[head * self.value_head()..];
            for (t, d) in (kept..self.max).flat_map(|t| (0..self.dims).map(move |d| (t, d))) {
                value[self.value(t, d)] = 0;
            }
            for (block, d) in (0..self.max.div_ceil(F)).flat_map(|block| (0..self.dims).map(move |d| (block, d))) {
                let float = |at: usize| f32::from_ne_bytes(*value[at..].first_chunk().unwrap());
                let at = self.value_scale(block, d);
                let (scale, bias) = (float(at), float(at + 4 * self.h));
                let tokens = block * F..((block + 1) * F).min(kept).max(block * F);
                let sum = tokens.fold(0f32, |sum, t| sum + (f32::from(value[self.value(t, d)] as i8) * scale + bias));
                cache.value_sums[self.value_sum(head, block, d)..][..4].copy_from_slice(&sum.to_ne_bytes());
            }
        }
    }
}

/// Mode 10 with this unit.
pub fn bench(table: &mut Table, kv_heads: u32, l_pack: u32, h_pack: u32, tokens: u32) {
    let name = format!("INT8, lP8 {l_pack}, hP8 {h_pack}");
    let spec = Spec {
        key: Kind::Int8,
        value: Kind::Int8,
        int8: Int8Unit { l_pack, h_pack },
        ..crate::packing::flash(kv_heads, 128, 16, tokens)
    };
    let layout = Layout::new(&spec).unwrap();
    let (l, h) = (l_pack as usize, h_pack as usize);
    let formula = black_box(Formula { heads: kv_heads as usize, dims: 128, max: tokens as usize, l, h });
    let mut cache = formula.noise(&layout, &mut Random(3));
    let all = layout.range(0, tokens).unwrap();
    layout::changed(&mut cache.cache(&layout), all, tokens).unwrap();
    gather_and_scatter(table, &layout, &formula, &cache, &name);
    for (kind, aligned) in [("block plan", true), ("any plan", false)] {
        let (medians, bytes) = compact(&layout, &formula, &cache, &plan(tokens as usize, aligned));
        row(table, &format!("compact, {kind}"), &name, bytes, &medians);
    }
}

fn gather_and_scatter(table: &mut Table, layout: &Layout, formula: &Formula, cache: &Buffers, name: &str) {
    let tokens = layout.max_tokens();
    let range = layout.range(0, tokens as u32).unwrap();
    let (keys, values) = (layout.dense_key_bytes(tokens), layout.dense_value_bytes(tokens));
    let mut dense = Tokens { keys: vec![0; keys], values: vec![0; values], scales: vec![0; layout.scale_bytes()] };
    let (mut other, mut gathered) = (dense.clone(), dense.clone());
    cache.gather(layout, range, &mut dense);
    formula.gather(cache, tokens, &mut other);
    assert!(dense == other, "gather");
    let (mut ours, mut theirs) = (cache.clone(), cache.clone());
    ours.key.fill(0);
    ours.value.fill(0);
    ours.key_sums.fill(0);
    ours.scatter(layout, range, &dense);
    assert!(ours.key == cache.key && ours.value == cache.value && ours.key_sums == cache.key_sums, "scatter");

    let copy_from = Random(5).bytes(keys + values);
    let mut copy_to = vec![0; keys + values];
    let medians = Rivals::new()
        .add("gather", || cache.gather(layout, range, &mut gathered))
        .add("element loop", || formula.gather(cache, tokens, &mut other))
        .add("memcpy", || black_box(&mut copy_to).copy_from_slice(black_box(&copy_from)))
        .run(1500);
    row(table, "gather", name, keys + values, &medians);
    // A host calls `changed` after it.
    let medians = Rivals::new()
        .add("scatter and changed", || {
            ours.scatter(layout, range, &dense);
            layout::changed(&mut ours.cache(layout), range, tokens as u32).unwrap();
        })
        .add("element loop", || formula.scatter(&dense, tokens, &mut theirs))
        .add("memcpy", || black_box(&mut copy_to).copy_from_slice(black_box(&copy_from)))
        .run(1500);
    row(table, "scatter and changed", name, keys + values, &medians);
}

/// Medians of ours, the element loop and memcpy, and the bytes that stay.
fn compact(layout: &Layout, formula: &Formula, cache: &Buffers, pairs: &[Pair]) -> (Vec<(&'static str, f64)>, usize) {
    let tokens = layout.max_tokens();
    let kept: usize = pairs.iter().map(|pair| pair[1] as usize).sum();
    let bytes = layout.dense_key_bytes(kept) + layout.dense_value_bytes(kept);
    let (mut ours, mut theirs) = (cache.clone(), cache.clone());
    layout::compact(&mut ours.cache(layout), 0, pairs, tokens as u32).unwrap();
    formula.compact(&mut theirs, pairs);
    // K of later tokens may be anything.
    let keys = layout.dense_key_bytes(kept);
    let mut live = Tokens { keys: vec![0; keys], values: vec![0; bytes - keys], scales: vec![0; layout.scale_bytes()] };
    let mut other = live.clone();
    formula.gather(&ours, kept, &mut live);
    formula.gather(&theirs, kept, &mut other);
    assert!(live == other && ours.value == theirs.value && ours.value_sums == theirs.value_sums, "compact");

    let copy_from = Random(5).bytes(bytes);
    let mut copy_to = vec![0; bytes];
    let medians = Rivals::new()
        .add("compact", || {
            layout::compact(&mut ours.cache(layout), 0, pairs, tokens as u32).unwrap();
        })
        .add("element loop", || formula.compact(&mut theirs, pairs))
        .add("memcpy", || black_box(&mut copy_to).copy_from_slice(black_box(&copy_from)))
        .run(1500);
    (medians, bytes)
}
