//! The time of attention scores relative to their attention: one decode step and one prefill, one thread.

mod common;
#[path = "scores/flash.rs"]
mod flash;

use common::{Rivals, Table};
use flash::{DIM, Prefill, TILE};
use half::{bf16, f16};
use mnnkv::dtype::Dtype;
use mnnkv::h2o::{Accumulator, CheckedTile, Tile, mass_to_f64};
use std::hint::black_box;
use std::time::Instant;

const TOKENS: usize = 4096;
const HEADS: usize = 32;
const BLOCK_TOKENS: usize = 64;

fn numbers(len: usize, seed: u64) -> Vec<f32> {
    let mut random = common::Random(seed);
    (0..len).map(|_| (random.next() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

fn bytes(values: &[f32], dtype: Dtype) -> Vec<u8> {
    match dtype {
        Dtype::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_ne_bytes()).collect(),
        Dtype::Bf16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_ne_bytes()).collect(),
        _ => values.iter().flat_map(|v| v.to_ne_bytes()).collect(),
    }
}

/// Adds the tiles of a step, one query row per head.
fn gather(scores: &mut Accumulator, dtype: Dtype, values: &[u8], scales: &[f32], sums: &[f32]) {
    let tile_bytes = TILE * dtype.bytes();
    let tiles = TOKENS / TILE;
    for ((values, scales), sum) in values.chunks_exact(tiles * tile_bytes).zip(scales.chunks_exact(tiles)).zip(sums) {
        for (i, data) in values.chunks_exact(tile_bytes).enumerate() {
            let tile = Tile {
                dtype,
                pack: 0,
                queries: 1,
                heads: 1,
                tokens: TILE,
                token_begin: i * TILE,
                first: i == 0,
                last: i + 1 == tiles,
                data,
                update_scale: Some(&scales[i..=i]),
                row_sum: (i + 1 == tiles).then_some(std::slice::from_ref(sum)),
            };
            scores.add(&CheckedTile::new(black_box(&tile)).unwrap()).unwrap();
        }
    }
}

/// Each row of each head sums to 1.
fn check(scores: &Accumulator, rows: usize) {
    let total: f64 = scores.sums().masses.iter().map(|mass| mass_to_f64(*mass)).sum();
    assert!((total / rows as f64 - 1.0).abs() < 1e-2 && scores.sums().rows == rows as u64, "{total} of {rows}");
}

fn decode(table: &mut Table, kv_heads: usize) {
    let tiles = HEADS * TOKENS / TILE;
    let queries = numbers(HEADS * DIM, 3);
    let keys = numbers(kv_heads * TOKENS * DIM, 4);
    let values = numbers(kv_heads * TOKENS * DIM, 5);
    let mut step = flash::Decode::new(HEADS, TOKENS);
    step.run(&queries, &keys, &values);
    let attention = |step: &mut flash::Decode| step.run(black_box(&queries), &keys, &values);

    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        let data = bytes(&step.tiles, dtype);
        let (scales, sums) = (step.scales.clone(), step.sums.clone());
        let mut scores = Accumulator::default();
        let medians = Rivals::new()
            .add("attention", || attention(&mut step))
            .add("scores", || {
                scores.start(BLOCK_TOKENS, usize::MAX, 0);
                gather(&mut scores, dtype, &data, &scales, &sums);
            })
            .run(1500);
        check(&scores, HEADS);
        // After an attention the tiles have left the first caches; here, as in a host, they are cached.
        let warm = Rivals::new()
            .add("one head", || {
                scores.start(BLOCK_TOKENS, usize::MAX, 0);
                for _ in 0..HEADS {
                    let tiles = TOKENS / TILE;
                    gather(&mut scores, dtype, &data[..TOKENS * dtype.bytes()], &scales[..tiles], &sums[..1]);
                }
            })
            .run(200);
        let times = [medians[0].1, medians[1].1, warm[0].1];
        report(table, &format!("decode, {kv_heads} KV heads, {}", dtype.name()), times, tiles);
    }
}

fn prefill(table: &mut Table, causal: bool) {
    let tiles = TOKENS / TILE;
    let mut attention = Prefill::new(&numbers(TOKENS * DIM, 6), &numbers(TOKENS * DIM, 7), &numbers(TOKENS * DIM, 8));
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        let mut scores = Accumulator::default();
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..9 {
            // The scores of a tile are timed after its softmax, as in a host. Conversion to another type is not timed.
            let (mut others, mut ours) = (0.0, 0.0);
            scores.start(BLOCK_TOKENS, usize::MAX, 0);
            let begin = Instant::now();
            attention.run(causal, |i, values, scale, sums| {
                let converting = Instant::now();
                let narrow = if dtype == Dtype::F32 { Vec::new() } else { bytes(values.as_flattened(), dtype) };
                // f32 needs no copy: the accumulator reads the tile of the attention.
                let data = if dtype == Dtype::F32 { flash::as_bytes(values) } else { &narrow };
                let tile = Tile {
                    dtype,
                    pack: 16,
                    queries: TOKENS,
                    heads: 1,
                    tokens: TILE,
                    token_begin: i * TILE,
                    first: i == 0,
                    last: i + 1 == tiles,
                    data,
                    update_scale: Some(scale),
                    row_sum: (i + 1 == tiles).then_some(sums),
                };
                let lap = Instant::now();
                scores.add(&CheckedTile::new(black_box(&tile)).unwrap()).unwrap();
                ours += lap.elapsed().as_secs_f64();
                drop(narrow);
                others += converting.elapsed().as_secs_f64();
            });
            times[0].push(begin.elapsed().as_secs_f64() - others);
            times[1].push(ours);
            check(&scores, TOKENS);
        }
        let [attention, scores] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        });
        let masked = if causal { "masked" } else { "all" };
        report(table, &format!("prefill, {masked}, {}", dtype.name()), [attention, scores, f64::NAN], tiles);
    }
}

/// Seconds of attention, of its scores, and of scores whose tiles are in the first cache, or NaN.
fn report(table: &mut Table, name: &str, [attention, scores, warm]: [f64; 3], tiles: usize) {
    let per_tile = |seconds: f64| format!("{:.0}", seconds * 1e9 / tiles as f64);
    table.row([
        name.to_string(),
        format!("{:.0}", attention * 1e6),
        format!("{:.1}", scores * 1e6),
        format!("{:.2} %", 100.0 * scores / attention),
        per_tile(scores),
        if warm.is_nan() { String::new() } else { per_tile(warm) },
    ]);
}

fn main() {
    let headers = ["step, tiles", "attention us", "scores us", "share", "ns a tile", "ns a cached tile"];
    let mut table = Table::new("scores", &format!("one thread, {} attention", flash::name()), &headers);
    decode(&mut table, 32);
    decode(&mut table, 8);
    prefill(&mut table, false);
    prefill(&mut table, true);
    table.print();
}
