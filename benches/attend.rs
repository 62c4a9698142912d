//! Attention over K in 8 bits and V in 4, beside loops over dense rows of f32 and f16, and beside a loop that only reads
//! the bytes of the format. One decoding step of 30 layers: SmolLM2-135M has 3 KV heads x 3 and 64 elements.
//!
//! `cargo bench --bench attend`; `-- quick` leaves the longer chats out.

mod common;

use common::{Noise, Rivals, Table};
use mnnkv::attend::{self, Block, Blocks, EncodeWork, Format, Queries, Round, Shape, Step, Tokens, Widths, Work};
use mnnkv::dtype::Dtype;
use mnnkv::layout::{CacheRef, Layout, Spec};
use std::sync::Mutex;

/// Layers of a step.
const LAYERS: usize = 30;
/// Raw tokens of each layer: sink and newest ones.
const RAW: usize = 80;

#[derive(Clone, Copy)]
struct Model {
    kv_heads: usize,
    group: usize,
    dims: usize,
}

struct Layer {
    blocks: Blocks,
    key: Vec<u8>,
    value: Vec<u8>,
}

struct Chat {
    model: Model,
    layout: Layout,
    layers: Vec<Layer>,
    queries: Vec<u8>,
    tokens: usize,
}

impl Chat {
    fn new(model: Model, tokens: usize, format: Format) -> Self {
        let Model { kv_heads, group, dims } = model;
        let layout = Layout::new(&Spec {
            key: Dtype::F32.into(),
            value: Dtype::F32.into(),
            kv_heads: kv_heads as u32,
            head_dim: dims as u32,
            l_pack: 1,
            h_pack: 8,
            int8: Default::default(),
            flash_block: 64,
            max_tokens: 128,
            key_head_stride: 0,
            value_head_stride: 0,
            key_token_stride: 0,
            value_token_stride: 0,
        })
        .unwrap();
        let mut noise = Noise(1);
        let (shape, mut work, mut block) = (Shape::new(dims).unwrap(), EncodeWork::default(), Block::default());
        // The same numbers in other memory for each block, so that it is made quickly.
        let rows: Vec<f32> = (0..attend::BLOCK * dims * 8).map(|_| noise.wide()).collect();
        let floats =
            |bytes: usize, noise: &mut Noise| (0..bytes / 4).flat_map(|_| noise.wide().to_ne_bytes()).collect();
        let layers = (0..LAYERS).map(|_| {
            let count = (tokens - RAW) / attend::BLOCK;
            let (mut blocks, mut widths) = (Blocks::NONE, Widths::default());
            blocks.reserve(shape, kv_heads, count).unwrap();
            for at in 0..count {
                let read = |head: usize, k: &mut [f32], v: &mut [f32]| {
                    let from = (at + head) % 7 * k.len();
                    k.copy_from_slice(&rows[from..from + k.len()]);
                    v.copy_from_slice(&rows[from + 64..from + 64 + k.len()]);
                    Ok(())
                };
                let widths = (format == Format::K4V4).then_some(&mut widths);
                block.encode(shape, kv_heads, widths, &mut work, read).unwrap().unwrap();
                blocks.push(&block, (at * attend::BLOCK) as u32, u64::MAX).unwrap();
            }
            Layer {
                blocks,
                key: floats(layout.key_bytes(), &mut noise),
                value: floats(layout.value_bytes(), &mut noise),
            }
        });
        let layers = layers.collect();
        let queries = floats(kv_heads * group * dims * 4, &mut noise);
        Chat { model, layout, layers, queries, tokens }
    }

    /// Bytes of the blocks.
    fn bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.blocks.code_bytes()).sum()
    }

    /// One step of all layers; the output of the last.
    fn step(&self, threads: usize) -> f32 {
        self.chunk(1, threads)
    }

    /// The same of several rows.
    fn chunk(&self, rows: usize, threads: usize) -> f32 {
        let Model { kv_heads, group, dims } = self.model;
        let heads = kv_heads * group;
        let rounds: Vec<Round> = self.layers.iter().map(|_| Round::default()).collect();
        let out = Mutex::new(0.0);
        let run = |part: usize| {
            let mut work = Work::default();
            for (layer, round) in self.layers.iter().zip(&rounds) {
                let tokens = Tokens {
                    shape: Shape::new(dims).unwrap(),
                    blocks: &layer.blocks,
                    source: None,
                    weighs: false,
                    learns: false,
                    cache: CacheRef::new(&self.layout, &layer.key, &layer.value).unwrap(),
                    raw: RAW,
                    missing: 0,
                    positions: &[],
                    logical: self.tokens as u32,
                };
                let queries = Queries {
                    dtype: Dtype::F32,
                    heads,
                    rows,
                    dims,
                    head_stride: dims * 4,
                    row_stride: heads * dims * 4,
                    scale: 0.0,
                    data: &self.queries,
                };
                let step = Step { queries, is_causal: false, window: None, soft_cap: None, sinks: None, mask: None };
                let mut last = 0.0;
                let mut write = |_: usize, _: usize, x: &[f32]| last = x[0];
                attend::attend(&tokens, &step, (part as u32, threads as u32), round, &mut work, &mut write).unwrap();
                *out.lock().unwrap() += last;
            }
        };
        std::thread::scope(|scope| {
            (1..threads).for_each(|part| drop(scope.spawn(move || run(part))));
            run(0);
        });
        out.into_inner().unwrap()
    }

    /// Reads all bytes of the blocks.
    fn read(&self, threads: usize) -> u64 {
        let run = |part: usize| {
            let mut sum = 0u64;
            for layer in &self.layers {
                let (blocks, heads) = (&layer.blocks, layer.blocks.heads());
                for block in (part..blocks.list().len()).step_by(threads) {
                    for line in (0..heads).filter_map(|head| blocks.lines(block as u32, head)).flatten() {
                        let words = line.0.as_chunks::<8>().0;
                        sum = words.iter().fold(sum, |sum, word| sum.wrapping_add(u64::from_ne_bytes(*word)));
                    }
                }
            }
            sum
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|part| scope.spawn(move || run(part))).collect();
            others.into_iter().fold(run(0), |sum, thread| sum.wrapping_add(thread.join().unwrap()))
        })
    }
}

/// Attention over dense rows `[head][token][dim]`, f32 or f16: the loops that engines have.
#[cfg(target_arch = "x86_64")]
mod dense {
    use super::{LAYERS, Model};
    use std::arch::x86_64::*;

    pub struct Dense {
        pub model: Model,
        pub tokens: usize,
        pub key: Vec<u16>,
        pub value: Vec<u16>,
        pub queries: Vec<f32>,
    }

    /// Most query heads that share a KV head.
    const MOST: usize = 8;

    impl Dense {
        /// Numbers of 2 or of 4 bytes.
        pub fn new(model: Model, tokens: usize, bytes: usize) -> Self {
            let count = LAYERS * model.kv_heads * tokens * model.dims * bytes / 2;
            let queries =
                (0..model.kv_heads * model.group * model.dims).map(|i| (i % 17) as f32 / 17.0 - 0.5).collect();
            // 1.0 and its like, in either type.
            let words = || (0..count).map(|i| 0x3C00 + (i % 64) as u16).collect();
            Dense { model, tokens, key: words(), value: words(), queries }
        }

        pub fn step(&self, threads: usize, is_half: bool) {
            let heads = LAYERS * self.model.kv_heads;
            let run = |part: usize| {
                let mut weights = vec![0.0; MOST * self.tokens];
                let mut out = vec![0.0; MOST * self.model.dims];
                for head in (part * heads / threads)..((part + 1) * heads / threads) {
                    // SAFETY: the caller has seen these features.
                    unsafe {
                        match is_half {
                            true => self.head::<true>(head, &mut weights, &mut out),
                            false => self.head::<false>(head, &mut weights, &mut out),
                        }
                    }
                }
                std::hint::black_box(&out);
            };
            std::thread::scope(|scope| {
                (1..threads).for_each(|part| drop(scope.spawn(move || run(part))));
                run(0);
            });
        }

        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn head<const HALF: bool>(&self, head: usize, weights: &mut [f32], out: &mut [f32]) {
            let Model { group, dims, kv_heads } = self.model;
            let row = dims * if HALF { 1 } else { 2 };
            let first = head * self.tokens * row;
            let queries = &self.queries[head % kv_heads * group * dims..][..group * dims];
            macro_rules! eight {
                ($from:expr) => {
                    match HALF {
                        true => _mm256_cvtph_ps(_mm_loadu_si128($from.as_ptr().cast())),
                        false => _mm256_loadu_ps($from.as_ptr().cast()),
                    }
                };
            }
            let step = if HALF { 8 } else { 16 };
            // SAFETY: the caller has the features; every chunk has the numbers of a vector.
            unsafe {
                for token in 0..self.tokens {
                    let key = &self.key[first + token * row..][..row];
                    let mut sums = [_mm256_setzero_ps(); MOST];
                    for (at, key) in key.chunks_exact(step).enumerate() {
                        let key = eight!(key);
                        for (g, sum) in sums[..group].iter_mut().enumerate() {
                            *sum = _mm256_fmadd_ps(key, _mm256_loadu_ps(queries[g * dims + 8 * at..].as_ptr()), *sum);
                        }
                    }
                    for (g, sum) in sums[..group].iter().enumerate() {
                        let mut lanes = [0.0f32; 8];
                        _mm256_storeu_ps(lanes.as_mut_ptr(), *sum);
                        weights[g * self.tokens + token] = lanes.iter().sum::<f32>() * 0.125;
                    }
                }
                for weights in weights.chunks_exact_mut(self.tokens).take(group) {
                    let peak = weights.iter().copied().fold(f32::MIN, f32::max);
                    // A cheap stand-in for an exponential, in favour of these loops.
                    weights.iter_mut().for_each(|w| *w = 1.0 / (1.0 + (peak - *w) * (peak - *w)));
                }
                out.fill(0.0);
                for token in 0..self.tokens {
                    let value = &self.value[first + token * row..][..row];
                    for (at, value) in value.chunks_exact(step).enumerate() {
                        let value = eight!(value);
                        for g in 0..group {
                            let to = out[g * dims + 8 * at..].as_mut_ptr();
                            let weight = _mm256_set1_ps(weights[g * self.tokens + token]);
                            _mm256_storeu_ps(to, _mm256_fmadd_ps(weight, value, _mm256_loadu_ps(to)));
                        }
                    }
                }
            }
        }
    }
}

/// Medians of a step: k8v4, k4v4, a loop that reads the bytes of k8v4, and dense rows of f32 and f16.
fn row(model: Model, tokens: usize, threads: usize) -> ([f64; 5], [usize; 2]) {
    let chats = [Format::K8V4, Format::K4V4].map(|format| Chat::new(model, tokens, format));
    let ours = |at: usize| {
        let chat = &chats[at];
        move || {
            std::hint::black_box(chat.step(threads));
        }
    };
    let reading = || {
        std::hint::black_box(chats[0].read(threads));
    };
    let rivals = Rivals::new().add("k8v4", ours(0)).add("k4v4", ours(1)).add("reading it", reading);
    let mut times = [f64::NAN; 5];
    let bytes = chats.each_ref().map(Chat::bytes);
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("f16c") {
        let dense = [4, 2].map(|bytes| dense::Dense::new(model, tokens, bytes));
        let rivals = rivals.add("f32", || dense[0].step(threads, false)).add("f16", || dense[1].step(threads, true));
        times.iter_mut().zip(rivals.run(1500)).for_each(|(to, (_, time))| *to = time);
        return (times, bytes);
    }
    times.iter_mut().zip(rivals.run(1500)).for_each(|(to, (_, time))| *to = time);
    (times, bytes)
}

/// A chunk of a prompt behind `tokens` tokens: floating-point operations per second.
fn chunk(model: Model, format: Format, (tokens, rows): (usize, usize), threads: usize) -> f64 {
    let mut chat = Chat::new(model, tokens, format);
    chat.queries = chat.queries.repeat(rows);
    let time = Rivals::new()
        .add("chunk", || {
            std::hint::black_box(chat.chunk(rows, threads));
        })
        .run(1500)[0]
        .1;
    let Model { kv_heads, group, dims } = model;
    4.0 * (dims * kv_heads * group * rows * tokens * LAYERS) as f64 / time
}

/// Seconds of the encoding of a block of one head, in k8v4 and in k4v4.
fn encoding(dims: usize) -> [f64; 2] {
    let (shape, mut noise) = (Shape::new(dims).unwrap(), Noise(2));
    let rows: Vec<f32> = (0..2 * attend::BLOCK * dims).map(|_| noise.wide()).collect();
    let (keys, values) = rows.split_at(attend::BLOCK * dims);
    let encode = |widths: Option<Widths>| {
        let (mut work, mut block, mut widths) = (EncodeWork::default(), Block::default(), widths);
        move || {
            let read = |_: usize, k: &mut [f32], v: &mut [f32]| {
                k.copy_from_slice(keys);
                v.copy_from_slice(values);
                Ok(())
            };
            block.encode(shape, 1, widths.as_mut(), &mut work, read).unwrap().unwrap();
        }
    };
    let times = Rivals::new().add("k8v4", encode(None)).add("k4v4", encode(Some(Widths::default()))).run(1000);
    [times[0].1, times[1].1]
}

fn main() {
    let quick = std::env::args().any(|arg| arg == "quick");
    let smol = Model { kv_heads: 3, group: 3, dims: 64 };
    let headers = ["shape", "tokens", "k8v4 ms", "GB/s", "of reading", "of f32", "of f16", "k4v4 ms", "of k8v4"];
    let mut table = Table::new("attend", "a step of 30 layers, 1 / 2 threads", &headers);
    let shape = |kv_heads, group, dims| Model { kv_heads, group, dims };
    let mut rows: Vec<(Model, usize)> = [1024, 4096, 8192, 16384, 32768].map(|tokens| (smol, tokens)).to_vec();
    rows.extend([(2, 1, 128), (2, 4, 128), (2, 8, 128), (1, 4, 256)].map(|(h, g, d)| (shape(h, g, d), 4096)));
    if quick {
        rows.retain(|row| row.1 == 4096);
    }
    for (model, tokens) in rows {
        let mut cells = [const { Vec::new() }; 7];
        for threads in [1, 2] {
            let ([ours, few, reading, f32s, f16s], bytes) = row(model, tokens, threads);
            cells[0].push(format!("{:.2}", ours * 1e3));
            cells[1].push(format!("{:.1}", bytes[0] as f64 / ours / 1e9));
            let shares = [reading / ours, ours / f32s, ours / f16s];
            shares.iter().zip(&mut cells[2..5]).for_each(|(share, cell)| cell.push(format!("{share:.2}")));
            cells[5].push(format!("{:.2}", few * 1e3));
            cells[6].push(format!("{:.2}", few / ours));
        }
        let name = format!("{} KV heads x {}, D {}", model.kv_heads, model.group, model.dims);
        table.row([name, tokens.to_string()].into_iter().chain(cells.map(|cell| cell.join(" / "))));
    }
    table.print();
    let mut table =
        Table::new("attend.prompt", "chunks of 256 tokens, GFLOP/s on 1 / 2 threads", &["tokens", "k8v4", "k4v4"]);
    for tokens in [1024, 4096] {
        let cell = |format| {
            [1, 2].map(|threads| format!("{:.0}", chunk(smol, format, (tokens, 256), threads) / 1e9)).join(" / ")
        };
        table.row([tokens.to_string(), cell(Format::K8V4), cell(Format::K4V4)]);
    }
    table.print();
    let mut table = Table::new("attend.encode", "us for 64 tokens of a KV head", &["D", "k8v4", "k4v4", "ratio"]);
    for dims in [64, 128, 256] {
        let [bytes, few] = encoding(dims).map(|seconds| seconds * 1e6);
        table.row([dims.to_string(), format!("{bytes:.1}"), format!("{few:.1}"), format!("{:.2}", few / bytes)]);
    }
    table.print();
}
