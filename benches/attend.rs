//! Attention over K in 8 bits and V in 4, beside loops over dense rows of f32 and f16, and beside a loop that only reads
//! the bytes of the format. One decoding step of 30 layers, the shape of SmolLM2-135M unless the table says another.
//!
//! `cargo bench --bench attend`; `-- quick` runs the main table alone.

mod common;

use common::{Rivals, Table};
use mnnkv::attend::{self, Block, EncodeWork, Placed, Queries, Round, Shape, Step, Tokens, Work};
use mnnkv::dtype::Dtype;
use mnnkv::layout::{CacheRef, Layout, Spec};
use std::sync::Mutex;

/// Layers of a step.
const LAYERS: usize = 30;
/// Raw tokens of each layer: sink and newest ones.
const RAW: usize = 80;

/// Numbers of a bell curve, the same in each run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        let mut sum = -2.0;
        for _ in 0..4 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            sum += (self.0 >> 40) as f32 / (1 << 24) as f32;
        }
        sum * 1.7
    }
}

#[derive(Clone, Copy)]
struct Model {
    kv_heads: usize,
    group: usize,
    dims: usize,
}

struct Layer {
    blocks: Vec<Placed>,
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
    fn new(model: Model, tokens: usize) -> Self {
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
        let (shape, mut work) = (Shape::new(dims).unwrap(), EncodeWork::default());
        // The same numbers in other memory for each block, so that it is made quickly.
        let rows: Vec<f32> = (0..attend::BLOCK * dims * 8).map(|_| noise.next()).collect();
        let floats =
            |bytes: usize, noise: &mut Noise| (0..bytes / 4).flat_map(|_| noise.next().to_ne_bytes()).collect();
        let layers = (0..LAYERS).map(|_| {
            let blocks = (0..(tokens - RAW) / attend::BLOCK).map(|at| {
                let read = |head: usize, k: &mut [f32], v: &mut [f32]| {
                    let from = (at + head) % 7 * k.len();
                    k.copy_from_slice(&rows[from..from + k.len()]);
                    v.copy_from_slice(&rows[from + 64..from + 64 + k.len()]);
                    Ok(())
                };
                let block = Block::encode(shape, kv_heads, &mut work, read).unwrap().unwrap();
                Placed::new(block, (at * attend::BLOCK) as u32).unwrap()
            });
            Layer {
                blocks: blocks.collect(),
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
        let heads = |block: &Placed| (0..self.model.kv_heads).map(|h| block.block().head_bytes(h).len()).sum::<usize>();
        self.layers.iter().flat_map(|layer| &layer.blocks).map(heads).sum()
    }

    /// One step of all layers; the output of the last.
    fn step(&self, threads: usize) -> f32 {
        let Model { kv_heads, group, dims } = self.model;
        let heads = kv_heads * group;
        let rounds: Vec<Round> = self.layers.iter().map(|_| Round::default()).collect();
        let out = Mutex::new(0.0);
        let run = |part: usize| {
            let mut work = Work::default();
            for (layer, round) in self.layers.iter().zip(&rounds) {
                let layer = if std::env::var_os("SAME").is_some() { &self.layers[0] } else { layer };
                let tokens = Tokens {
                    shape: Shape::new(dims).unwrap(),
                    blocks: &layer.blocks,
                    cache: CacheRef::new(&self.layout, &layer.key, &layer.value).unwrap(),
                    raw: RAW,
                    positions: &[[0, RAW as i32 - 1]],
                    logical: self.tokens as u32,
                };
                let queries = Queries {
                    dtype: Dtype::F32,
                    heads,
                    rows: 1,
                    dims,
                    head_stride: dims * 4,
                    row_stride: heads * dims * 4,
                    scale: 0.0,
                    data: &self.queries,
                };
                let step = Step { queries, is_causal: true, window: None, soft_cap: None, sinks: None, mask: None };
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
                for block in layer.blocks.iter().skip(part).step_by(threads) {
                    for head in 0..self.model.kv_heads {
                        let words = block.block().head_bytes(head).as_chunks::<8>().0;
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

fn main() {
    let quick = std::env::args().any(|arg| arg == "quick");
    let smol = Model { kv_heads: 3, group: 3, dims: 64 };
    let mut table = Table::new("attend", "ms of a step, 1 / 2 threads", &["tokens", "k8v4", "reading it", "GB/s"]);
    for tokens in [1024, 4096, 8192, 16384, 32768].into_iter().filter(|tokens| !quick || *tokens <= 8192) {
        let chat = Chat::new(smol, tokens);
        let mut cells = [Vec::new(), Vec::new(), Vec::new()];
        for threads in [1, 2] {
            let times = Rivals::new()
                .add("k8v4", || {
                    std::hint::black_box(chat.step(threads));
                })
                .add("reading it", || {
                    std::hint::black_box(chat.read(threads));
                })
                .run(1500);
            cells[0].push(format!("{:.2}", times[0].1 * 1e3));
            cells[1].push(format!("{:.2}", times[1].1 * 1e3));
            cells[2].push(format!("{:.1}", chat.bytes() as f64 / times[0].1 / 1e9));
        }
        table.row(std::iter::once(tokens.to_string()).chain(cells.map(|cell| cell.join(" / "))));
    }
    table.print();
}
