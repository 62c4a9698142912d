//! A chat: a session with a cache for each layer, and the attention over what the caches have.

use crate::llama::{Projected, Shape};
use mnnkv::arch::{self, PANEL, Product};
use mnnkv::dtype::Dtype;
use mnnkv::gear::{Frequencies, Pairing};
use mnnkv::h2o::{CheckedTile, Tile};
use mnnkv::layout::{self, Cache, Int8Unit, Layout, Spec};
use mnnkv::session::{Queries, Session};
use mnnkv::status::Result;
use mnnkv::store::KeyRotation;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// Tokens of a flash block, as MNN has them on x86.
const FLASH_BLOCK: usize = 64;
/// Query rows that attend at once.
const ROWS: usize = 64;

/// The packed buffers of a layer: K is `[head][token / PANEL][dim][PANEL]`, V is
/// `[head][token / FLASH_BLOCK][dim / PANEL][FLASH_BLOCK][PANEL]`. Both are what a matrix product reads.
struct Buffers {
    key: Vec<[f32; PANEL]>,
    value: Vec<[f32; PANEL]>,
    /// Tokens that they have.
    len: u32,
}

/// Tokens and times over the steps of a chat.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measured {
    /// Calls of the layers that tokens are evicted from.
    pub(super) calls: u64,
    /// Tokens in their caches, and the chat's, summed over calls.
    pub(super) resident: u64,
    pub(super) logical: u64,
    /// The largest excess over the budget, in tokens.
    pub(super) over: i64,
    /// Inside the session, of all layers.
    pub(super) library: Duration,
}

impl Measured {
    /// Whether a cache had fewer tokens than the chat.
    pub(super) fn has_evicted(&self) -> bool {
        self.resident < self.logical
    }
}

/// A session and its caches.
pub(super) struct Chat {
    session: Session,
    shape: Shape,
    layout: Layout,
    buffers: Vec<Buffers>,
    /// First layer that is measured, and the tokens of the chat per token of the budget.
    evicted: (usize, f64),
    pub(super) measured: Measured,
    work: Work,
}

/// Memory of the attention, reused by every call.
#[derive(Default)]
struct Work {
    zeros: Vec<[f32; PANEL]>,
    /// Softmax rows of one head.
    rows: Vec<[f32; PANEL]>,
    output: Vec<[f32; PANEL]>,
    dense: [Vec<f32>; 2],
    tile: Vec<f32>,
}

impl Chat {
    /// An empty chat with room for `tokens` tokens. Layers from `first_evicted` on are measured against one token in `ratio`.
    pub(super) fn new(shape: &Shape, config: &str, tokens: usize, first_evicted: usize, ratio: f64) -> Result<Chat> {
        let layout = Layout::new(&Spec {
            key: Dtype::F32.into(),
            value: Dtype::F32.into(),
            kv_heads: shape.kv_heads as u32,
            head_dim: shape.dims as u32,
            l_pack: 1,
            h_pack: PANEL as u32,
            int8: Int8Unit::default(),
            flash_block: FLASH_BLOCK as u32,
            max_tokens: tokens.next_multiple_of(FLASH_BLOCK) as u32,
            key_head_stride: 0,
            value_head_stride: 0,
            key_token_stride: 0,
            value_token_stride: 0,
        })?;
        let panels = |bytes: usize| vec![[0.0; PANEL]; bytes / size_of::<[f32; PANEL]>()];
        let session = Session::new(config.as_bytes(), b"", shape.layers as u32, 1)?;
        let buffers = || Buffers { key: panels(layout.key_bytes()), value: panels(layout.value_bytes()), len: 0 };
        Ok(Chat {
            session,
            shape: *shape,
            buffers: (0..shape.layers).map(|_| buffers()).collect(),
            layout,
            evicted: (first_evicted, ratio),
            measured: Measured::default(),
            work: Work::default(),
        })
    }

    /// Names the rotation of the keys to the session. Must come before the first step.
    pub(super) fn name_rotation(&self) -> Result<()> {
        let frequencies = Frequencies::Theta(self.shape.theta as f32);
        let rotation = KeyRotation { pairing: Pairing::Half, dims: self.shape.dims, frequencies };
        self.session.rotation(None, Some(&rotation))
    }

    /// Its session.
    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// One step of a layer: appends keys and values, and attends with the queries of the last of their rows. Adds the
    /// outputs of these to `output`, `[row][query head][dim]`.
    pub(super) fn step(&mut self, layer: usize, rows: &Projected<'_>, output: &mut [f32]) -> Result<()> {
        let Shape { heads, kv_heads, dims, .. } = self.shape;
        let Chat { session, layout, buffers, work, measured, .. } = self;
        let (number, buffers) = (layer as u32, &mut buffers[layer]);
        let added = rows.key.len() / (kv_heads * dims);
        let attending = rows.query.len() / (heads * dims);

        let start = Instant::now();
        let before = buffers.len;
        buffers.len = session.begin_step(number, Some(buffers.cache(layout)?), before, added as u32)?;
        measured.library += start.elapsed();

        let appended = layout.range(buffers.len, added as u32)?;
        let [key, value] = &mut work.dense;
        by_head(rows.key, kv_heads, dims, key);
        by_head(rows.value, kv_heads, dims, value);
        layout::scatter(&mut buffers.cache(layout)?, appended, key.as_bytes(), value.as_bytes())?;
        buffers.len += added as u32;

        let start = Instant::now();
        let queries = Queries {
            dtype: Dtype::F32,
            heads,
            rows: attending,
            dims,
            head_stride: dims * size_of::<f32>(),
            row_stride: heads * dims * size_of::<f32>(),
            scale: 0.0,
            data: rows.query.as_bytes(),
        };
        session.queries(number, &queries)?;
        let scored = session.scored_rows(number, added as u32)?.rows as usize;
        measured.library += start.elapsed();

        let len = buffers.len as usize;
        for head in 0..heads {
            // Rows that no query is given for stay zero, as those that are not scored.
            let tile = &mut work.tile;
            tile.clear();
            tile.resize(if scored > 0 { added * len } else { 0 }, 0.0);
            for first in (0..attending).step_by(ROWS) {
                let count = ROWS.min(attending - first);
                let seen = len - attending + first + count;
                let block = Block { head, first, count, seen, first_seen: len - attending + first + 1 };
                let width = block.softmax(&self.shape, rows.query, buffers, &mut work.rows, &mut work.zeros);
                block.output(&self.shape, buffers, &work.rows, width, &work.zeros, &mut work.output, output);
                for (row, values) in work.rows.as_flattened().chunks_exact(width).enumerate() {
                    let row = added - attending + first + row;
                    if row >= added - scored {
                        tile[row * len..][..seen].copy_from_slice(&values[..seen]);
                    }
                }
            }
            if scored > 0 {
                let start = Instant::now();
                let tile = Tile {
                    dtype: Dtype::F32,
                    pack: 0,
                    queries: added,
                    heads: 1,
                    tokens: len,
                    token_begin: 0,
                    first: true,
                    last: true,
                    data: tile.as_bytes(),
                    update_scale: None,
                    row_sum: None,
                };
                session.scores(number, 0, &CheckedTile::new(&tile)?)?;
                measured.library += start.elapsed();
            }
        }
        let start = Instant::now();
        let tiles = if scored > 0 { heads as u32 } else { 0 };
        session.end(number, tiles, added as u32, buffers.cache(layout)?, len as u32)?;
        measured.library += start.elapsed();
        self.measure(layer)
    }

    /// Leaves the first `tokens` tokens of the chat.
    pub(super) fn keep(&mut self, tokens: usize) -> Result<()> {
        let Chat { session, layout, buffers, .. } = self;
        for (number, buffers) in buffers.iter_mut().enumerate() {
            let len = buffers.len;
            buffers.len = session.keep(number as u32, &[[0, tokens as i32]], buffers.cache(layout)?, len)?;
        }
        Ok(())
    }

    /// Compares the tokens of a layer with the budget.
    fn measure(&mut self, layer: usize) -> Result<()> {
        let (first, ratio) = self.evicted;
        if layer >= first {
            let lengths = self.session.lengths(layer as u32)?;
            let budget = (f64::from(lengths.logical) / ratio).ceil() as i64;
            let measured = &mut self.measured;
            measured.calls += 1;
            measured.resident += u64::from(lengths.physical);
            measured.logical += u64::from(lengths.logical);
            measured.over = measured.over.max(i64::from(lengths.physical) - budget);
        }
        Ok(())
    }
}

impl Buffers {
    fn cache<'a>(&'a mut self, layout: &'a Layout) -> Result<Cache<'a>> {
        Cache::new(layout, self.key.as_mut_slice().as_mut_bytes(), self.value.as_mut_slice().as_mut_bytes())
    }
}

/// Query rows of one head that attend at once.
struct Block {
    head: usize,
    /// The step's query rows.
    first: usize,
    count: usize,
    /// Tokens that the last row sees, and the first.
    seen: usize,
    first_seen: usize,
}

impl Block {
    /// Writes softmax rows, with zeros behind what each row sees; returns their width.
    fn softmax(
        &self,
        shape: &Shape,
        query: &[f32],
        buffers: &Buffers,
        rows: &mut Vec<[f32; PANEL]>,
        zeros: &mut Vec<[f32; PANEL]>,
    ) -> usize {
        let Shape { heads, dims, .. } = *shape;
        let width = self.seen.next_multiple_of(FLASH_BLOCK);
        let panels = width / PANEL;
        zeros.resize(panels.max(dims.div_ceil(PANEL)), [0.0; PANEL]);
        rows.resize(self.count * panels, [0.0; PANEL]);
        let product = Product {
            a: &query[(self.first * heads + self.head) * dims..],
            stride: heads * dims,
            depth: dims,
            panels: &shape.head_of(&buffers.key, self.head)[..panels * dims],
            bias: &zeros[..panels],
        };
        (arch::model_kernels().product)(&product, rows);
        let scale = 1.0 / (dims as f32).sqrt();
        for (row, values) in rows.as_flattened_mut().chunks_exact_mut(width).enumerate() {
            let (seen, hidden) = values.split_at_mut(self.first_seen + row);
            hidden.fill(0.0);
            let greatest = seen.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            seen.iter_mut().for_each(|x| *x = ((*x - greatest) * scale).exp());
            let factor = 1.0 / seen.iter().sum::<f32>();
            seen.iter_mut().for_each(|x| *x *= factor);
        }
        width
    }

    /// Adds the values, weighted by softmax rows.
    #[expect(clippy::too_many_arguments, reason = "buffers are borrowed apart")]
    fn output(
        &self,
        shape: &Shape,
        buffers: &Buffers,
        rows: &[[f32; PANEL]],
        width: usize,
        zeros: &[[f32; PANEL]],
        sums: &mut Vec<[f32; PANEL]>,
        output: &mut [f32],
    ) {
        let Shape { heads, dims, .. } = *shape;
        let panels = dims.div_ceil(PANEL);
        sums.resize(self.count * panels, [0.0; PANEL]);
        let value = shape.head_of(&buffers.value, self.head);
        for (number, block) in value.chunks_exact(FLASH_BLOCK * panels).take(width / FLASH_BLOCK).enumerate() {
            let product = Product {
                a: &rows.as_flattened()[number * FLASH_BLOCK..],
                stride: width,
                depth: FLASH_BLOCK,
                panels: block,
                bias: &zeros[..panels],
            };
            (arch::model_kernels().product)(&product, sums);
            for (row, sums) in sums.as_flattened().chunks_exact(panels * PANEL).enumerate() {
                let to = &mut output[((self.first + row) * heads + self.head) * dims..][..dims];
                to.iter_mut().zip(sums).for_each(|(to, sum)| *to += sum);
            }
        }
    }
}

impl Shape {
    /// The part of a buffer that a query head reads.
    fn head_of<'a>(&self, buffer: &'a [[f32; PANEL]], head: usize) -> &'a [[f32; PANEL]] {
        let each = buffer.len() / self.kv_heads;
        &buffer[head / (self.heads / self.kv_heads) * each..][..each]
    }
}

/// Rows `[row][head][dim]` as `[head][row][dim]`.
fn by_head(rows: &[f32], heads: usize, dims: usize, to: &mut Vec<f32>) {
    to.clear();
    for head in 0..heads {
        to.extend(rows.chunks_exact(heads * dims).flat_map(|row| &row[head * dims..][..dims]));
    }
}
