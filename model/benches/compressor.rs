//! The learned compressor on a layer of LLaVA-1.5-7B, beside a general sgemm with the same three products.

#[path = "../../benches/common/mod.rs"]
mod common;

use common::{Random, Rivals, Table};
use half::{bf16, f16};
use mnnkv::dtype::Dtype;
use mnnkv_model::compressor::{Compressor, CompressorOptions, LinearWeights, Tokens, Weights, Workspace};
use std::hint::black_box;

const HEADS: usize = 32;
const DIM: usize = 128;
const FACTOR: usize = 5;
const TOKENS: usize = 600;
const GROUPS: usize = TOKENS / FACTOR;
/// Rows that go through a network.
const ROWS: usize = HEADS * GROUPS;
/// Rows and columns of the three linear layers.
const SHAPES: [(usize, usize); 3] = [(DIM, FACTOR * DIM), (DIM, DIM), (DIM, DIM)];

fn numbers(len: usize, scale: f32, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..len).map(|_| ((random.next() >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale).collect()
}

fn bytes(values: &[f32], dtype: Dtype) -> Vec<u8> {
    match dtype {
        Dtype::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_ne_bytes()).collect(),
        Dtype::Bf16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_ne_bytes()).collect(),
        _ => values.iter().flat_map(|v| v.to_ne_bytes()).collect(),
    }
}

fn floats(bytes: &[u8], dtype: Dtype) -> Vec<f32> {
    let two = bytes.as_chunks::<2>().0;
    match dtype {
        Dtype::F16 => two.iter().map(|b| f16::from_ne_bytes(*b).to_f32()).collect(),
        Dtype::Bf16 => two.iter().map(|b| bf16::from_ne_bytes(*b).to_f32()).collect(),
        _ => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_ne_bytes(*b)).collect(),
    }
}

/// `c = a * weight^T`, row-major.
fn sgemm(a: &[f32], linear: &LinearWeights, c: &mut [f32]) {
    let (rows, cols) = (linear.rows, linear.cols);
    let m = a.len() / cols;
    assert!(a.len() == m * cols && linear.weight.len() == rows * cols && c.len() == m * rows);
    // SAFETY: the three matrices are as long as the shapes say.
    unsafe {
        matrixmultiply::sgemm(
            m,
            cols,
            rows,
            1.0,
            a.as_ptr(),
            cols as isize,
            1,
            linear.weight.as_ptr(),
            1,
            cols as isize,
            0.0,
            c.as_mut_ptr(),
            rows as isize,
            1,
        );
    }
}

/// The network with a general sgemm.
fn reference(network: &[LinearWeights], input: &[f32]) -> Vec<f32> {
    let mut x = input.to_vec();
    for (slot, linear) in network.iter().enumerate() {
        let mut y = vec![0.0; ROWS * linear.rows];
        sgemm(&x, linear, &mut y);
        for row in y.chunks_mut(linear.rows) {
            for (y, bias) in row.iter_mut().zip(linear.bias.as_deref().unwrap()) {
                *y += bias;
                if slot < 2 {
                    *y = y.max(0.0);
                }
            }
        }
        x = y;
    }
    x
}

fn main() {
    let networks: Vec<LinearWeights> = (0..2)
        .flat_map(|network| SHAPES.iter().zip(0..).map(move |(shape, slot)| (network, slot, *shape)))
        .map(|(network, slot, (rows, cols))| LinearWeights {
            rows,
            cols,
            weight: numbers(rows * cols, (3.0 / cols as f32).sqrt(), 10 * network + slot + 1).into(),
            bias: Some(numbers(rows, 0.1, 10 * network + slot + 100).into()),
        })
        .collect();
    let weights = Weights {
        dtype: Dtype::F32,
        num_heads: 0,
        head_dim: DIM as u32,
        factor: FACTOR as u32,
        min_seq_len: 2,
        layers: vec![networks],
    };
    let file = Compressor::read(&weights.to_bytes().unwrap()[..]).unwrap();
    let plan = file.plan(TOKENS, &CompressorOptions::default()).unwrap();
    assert_eq!(plan.new_len(), GROUPS);
    let planes = [numbers(HEADS * TOKENS * DIM, 1.0, 7), numbers(HEADS * TOKENS * DIM, 1.0, 8)];
    let work: usize = 2 * ROWS * SHAPES.iter().map(|(rows, cols)| 2 * rows * cols).sum::<usize>();
    let headers = ["cache", "ms", "GFLOP/s", "matrixmultiply", "ratio"];
    let mut table = Table::new("compressor", &format!("one thread, {:.2} GFLOP", work as f64 / 1e9), &headers);
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        let cache = planes.each_ref().map(|plane| bytes(plane, dtype));
        let exact = cache.each_ref().map(|plane| floats(plane, dtype));
        let len = ROWS * DIM * dtype.bytes();
        let (mut key, mut value, mut memory) = (vec![0; len], vec![0; len], Workspace::default());
        let (mut hidden, mut out) = (vec![0.0; ROWS * DIM], vec![0.0; ROWS * DIM]);
        let layer = &weights.layers[0];
        let medians = Rivals::new()
            .add("three sgemm", || {
                for (network, input) in layer.chunks_exact(3).zip(&exact) {
                    sgemm(black_box(input), &network[0], &mut hidden);
                    sgemm(&hidden, &network[1], &mut out);
                    sgemm(&out, &network[2], &mut hidden);
                }
                black_box(&hidden);
            })
            .add("compressor", || {
                let [k, v] = &cache;
                let tokens = Tokens { dtype, heads: HEADS };
                file.run(0, &plan, tokens, black_box(k), v, &mut key, &mut value, &mut memory).unwrap();
            })
            .run(2500);
        let tolerance = if dtype == Dtype::F32 { 1e-4 } else { 0.1 };
        for ((network, input), result) in layer.chunks_exact(3).zip(&exact).zip([&key, &value]) {
            let (result, expected) = (floats(result, dtype), reference(network, input));
            for (ours, theirs) in result.iter().zip(&expected) {
                assert!((ours - theirs).abs() <= tolerance * theirs.abs().max(1.0), "{ours} {theirs}");
            }
        }
        let rate = |i: usize| work as f64 / medians[i].1 / 1e9;
        table.row([
            dtype.name().to_string(),
            format!("{:.1}", medians[1].1 * 1e3),
            format!("{:.0}", rate(1)),
            format!("{:.0}", rate(0)),
            format!("{:.2}", rate(1) / rate(0)),
        ]);
    }
    table.print();
}
