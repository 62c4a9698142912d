//! Attention over rows of a host's own cache, a few query rows at a time, in parts that run on any threads.
//!
//! Each part folds a run of tiles of tokens, all KV heads of a tile before the next, into a softmax of its own: tokens of a
//! cache are read once, in their order, for all query heads. Then the parts are merged, in parts of query vectors.

use mnnkv::arch::attend::rows::{RowKernels, RowTile, RowType, UNIT};
use mnnkv::arch::attend::{AttendKernels, BLOCK, MOST_DIMS, QUERIES, Running};
use mnnkv::arch::{self, Level};
use mnnkv::attend::MOST_PARTS;
use mnnkv::dtype::Dtype;
use mnnkv::dtype::convert::{Endian, widen};
use mnnkv::status::{Result, bail, error};
use std::ops::Range;

/// Floats behind the sums of a query vector: its peak and its sum of weights, in a whole vector of kernels.
const SOFTMAX: usize = 16;

/// Whether the kernels of this CPU are vectors. Those of every CPU are slower than those of ggml.
pub fn has_vectors() -> bool {
    matches!(arch::kernels().level, Level::Avx2 | Level::Avx512 | Level::Neon)
}

/// The units from the first of rows to the end of the last. A row has `len` of them; `places` are the number of rows in a
/// direction, the units from one to the next, and the name of its stride. INVALID_ARGUMENT: if they overlap, or exceed the
/// address space.
pub fn extent(name: &str, len: usize, places: &[(&str, usize, usize)]) -> Result<usize> {
    let mut end = len;
    for &(of, stride, count) in places {
        if count > 1 && stride < len {
            bail!(InvalidArgument, "{name}_{of}_stride is {stride}; {len} or more expected, those of a row");
        }
        let sum = stride.checked_mul(count - 1).and_then(|bytes| bytes.checked_add(end));
        end = sum.filter(|end| *end <= isize::MAX as usize).ok_or_else(|| {
            error!(InvalidArgument, "{name}_{of}_stride is {stride}; {count} of them exceed the address space")
        })?;
    }
    Ok(end)
}

/// K or V of a cache.
#[derive(Clone, Copy, Debug)]
pub struct Plane<'a> {
    /// The format of its rows.
    pub kind: RowType,
    /// Elements of a row.
    pub dims: usize,
    /// Bytes from a token's row to the next of the same head.
    pub token_stride: usize,
    /// Bytes from a head's row to the next of the same token.
    pub head_stride: usize,
    /// From the first row to the last.
    pub data: &'a [u8],
}

/// Numbers that are added to logits.
#[derive(Clone, Copy, Debug)]
pub struct RowMask<'a> {
    /// `[row][token]`, f16.
    pub data: &'a [[u8; 2]],
    /// From one row to the next.
    pub stride: usize,
    /// A factor for each query head; 1 without.
    pub slopes: Option<&'a [f32]>,
}

/// Query rows, and the cache that they attend to.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Keys.
    pub key: Plane<'a>,
    /// Values.
    pub value: Plane<'a>,
    /// Tokens of the cache.
    pub tokens: usize,
    /// Heads of the cache.
    pub kv_heads: usize,
    /// Query heads; consecutive ones share a KV head.
    pub heads: usize,
    /// Query rows of each head.
    pub rows: usize,
    /// Floats of query rows.
    pub queries: &'a [f32],
    /// Floats from a query head to the next.
    pub query_head_stride: usize,
    /// Floats from a query row to the next.
    pub query_row_stride: usize,
    /// The factor of a logit.
    pub scale: f32,
    /// Logits x become `cap * tanh(x / cap)`.
    pub soft_cap: Option<f32>,
    /// Added after the soft cap; finite, or -inf for a token that is hidden, whatever the slope.
    pub mask: Option<RowMask<'a>>,
    /// Logits of no token, one for each query head.
    pub sinks: Option<&'a [f32]>,
}

impl Plane<'_> {
    /// The bytes from the first row to the end of the last. INVALID_ARGUMENT: if there are no such rows.
    pub fn bytes(&self, name: &str, heads: usize, tokens: usize) -> Result<usize> {
        let Plane { kind, dims, token_stride, head_stride, .. } = *self;
        if !(UNIT..=2 * MOST_DIMS).contains(&dims) || !dims.is_multiple_of(UNIT) {
            bail!(InvalidArgument, "{name}_dim is {dims}; a multiple of {UNIT} up to {} expected", 2 * MOST_DIMS);
        }
        extent(name, kind.bytes(dims), &[("token", token_stride, tokens), ("head", head_stride, heads)])
    }

    /// A head's rows of tokens from `first` on.
    fn tile(&self, head: usize, first: usize, tokens: usize) -> RowTile<'_> {
        let bytes = &self.data[first * self.token_stride + head * self.head_stride..];
        RowTile { bytes, stride: self.token_stride, tokens, dims: self.dims }
    }
}

/// A part's share of `count` things.
fn share(count: usize, (part, parts): (u32, u32)) -> Range<usize> {
    let at = |part: u32| (count as u128 * u128::from(part) / u128::from(parts)) as usize;
    at(part)..at(part + 1)
}

/// A tile of the cache and the kernels, while a part folds it.
struct Fold<'a> {
    rows: &'a Rows<'a>,
    kernels: &'static RowKernels,
    soften: &'static AttendKernels,
    first: usize,
    tokens: usize,
    mask: Option<TileMask<'a>>,
}

/// The mask of a tile, if it changes anything.
#[derive(Clone, Copy)]
struct TileMask<'a> {
    /// `[row][BLOCK]`; only rows that see a token are written.
    addends: &'a [f32],
    /// Whether a row sees a token: [`SEES`] or [`HIDDEN`].
    rows: &'a [f32],
}

/// See [`TileMask::rows`].
const SEES: f32 = 1.0;
/// See [`TileMask::rows`].
const HIDDEN: f32 = 0.0;

impl Rows<'_> {
    /// INVALID_ARGUMENT: if there are no such heads, rows and tokens, or the part is none.
    pub fn check(&self, (part, parts): (u32, u32)) -> Result<()> {
        let Rows { tokens, kv_heads, heads, rows, .. } = *self;
        if tokens == 0 || kv_heads == 0 || heads == 0 || rows == 0 {
            bail!(
                InvalidArgument,
                "tokens is {tokens}, kv_heads {kv_heads}, heads {heads} and rows {rows}; at least 1 of each expected"
            );
        }
        if !heads.is_multiple_of(kv_heads) {
            bail!(InvalidArgument, "heads is {heads}; a multiple of kv_heads, {kv_heads}, expected");
        }
        if !(1..=MOST_PARTS).contains(&parts) || part >= parts {
            bail!(
                InvalidArgument,
                "part is {part} of {parts}; parts from 1 to {MOST_PARTS} and part from 0 to parts - 1 expected"
            );
        }
        if !self.scale.is_finite() {
            bail!(InvalidArgument, "scale is {}; a finite number expected", self.scale);
        }
        if let Some(cap) = self.soft_cap.filter(|cap| !cap.is_finite() || *cap < 0.0) {
            bail!(InvalidArgument, "soft_cap is {cap}; a finite number of 0 or more expected");
        }
        // As `part_len`.
        let len = heads.checked_mul(rows).and_then(|vectors| {
            let tile = (rows + vectors / kv_heads).checked_mul(BLOCK)?.checked_add(rows)?;
            vectors.checked_mul(self.vector_len())?.checked_add(tile)
        });
        if len.is_none_or(|len| len > isize::MAX as usize / (size_of::<f32>() * MOST_PARTS as usize)) {
            bail!(InvalidArgument, "{heads} heads and {rows} rows exceed the address space");
        }
        Ok(())
    }

    /// Query vectors.
    fn vectors(&self) -> usize {
        self.heads * self.rows
    }

    /// Query vectors of a KV head.
    fn group(&self) -> usize {
        self.vectors() / self.kv_heads
    }

    /// Floats of a query vector's softmax.
    fn vector_len(&self) -> usize {
        self.value.dims + SOFTMAX
    }

    /// Query heads of a KV head.
    fn shared(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Floats of working memory of a part: the softmax of each query vector, the mask of a tile, and logits of a KV head.
    /// Query vectors are in the order `[kv_head][row][head of the KV head]`, so that those of rows that see the same tiles are
    /// side by side.
    pub fn part_len(&self) -> usize {
        self.vectors() * self.vector_len() + (self.rows + self.group()) * BLOCK + self.rows
    }

    /// Folds a part's tokens into its working memory, whose contents do not matter.
    pub fn attend(&self, part: (u32, u32), memory: &mut [f32]) {
        let (softmax, memory) = memory.split_at_mut(self.vectors() * self.vector_len());
        let (mask, logits) = memory.split_at_mut(self.rows * (BLOCK + 1));
        for vector in softmax.chunks_exact_mut(self.vector_len()) {
            vector.fill(0.0);
            vector[self.value.dims] = f32::NEG_INFINITY;
        }
        let units = share(self.tokens.div_ceil(BLOCK) * self.kv_heads, part);
        let mut unit = units.start;
        while unit < units.end {
            let first = unit / self.kv_heads * BLOCK;
            let heads = unit % self.kv_heads..self.kv_heads.min(unit % self.kv_heads + units.end - unit);
            unit += heads.len();
            let tokens = BLOCK.min(self.tokens - first);
            let fold = Fold {
                rows: self,
                kernels: arch::row_kernels(),
                soften: arch::attend_kernels(),
                first,
                tokens,
                mask: self.tile_mask(first, tokens, mask),
            };
            let softmax = &mut softmax[heads.start * self.group() * self.vector_len()..];
            for (head, softmax) in heads.zip(softmax.chunks_exact_mut(self.group() * self.vector_len())) {
                fold.head(head, softmax, logits.as_chunks_mut().0);
            }
        }
    }

    /// Converts the mask of a tile, if it changes anything.
    fn tile_mask<'a>(&self, first: usize, tokens: usize, memory: &'a mut [f32]) -> Option<TileMask<'a>> {
        /// The bits of -inf.
        const MINUS_INFINITY: [u8; 2] = 0xFC00u16.to_ne_bytes();
        let mask = self.mask?;
        let row = |row: usize| &mask.data[row * mask.stride + first..][..tokens];
        if (0..self.rows).all(|r| row(r).iter().all(|x| *x == [0; 2])) {
            return None;
        }
        let (addends, rows) = memory.split_at_mut(self.rows * BLOCK);
        for (r, (to, sees)) in addends.chunks_exact_mut(BLOCK).zip(&mut *rows).enumerate() {
            *sees = if row(r).iter().all(|x| *x == MINUS_INFINITY) { HIDDEN } else { SEES };
            if *sees == SEES {
                widen(Dtype::F16, Endian::Native, row(r).as_flattened(), &mut to[..tokens]);
                to[tokens..].fill(0.0);
            }
        }
        Some(TileMask { addends, rows })
    }

    /// Query vectors, as `row * heads + head`, that a part merges.
    pub fn merges(&self, part: (u32, u32)) -> Range<usize> {
        share(self.vectors(), part)
    }

    /// The attention of a query head and row, from the working memory of all parts. Zeros where it attends to nothing.
    pub fn merge(&self, row: usize, head: usize, memory: &[f32], out: &mut [f32]) {
        let (len, dims) = (self.vector_len(), self.value.dims);
        let at = ((head / self.shared() * self.rows + row) * self.shared() + head % self.shared()) * len;
        let parts = || memory.chunks_exact(self.part_len()).map(|part| &part[at..at + len]);
        let sink = self.sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[head]);
        let peak = parts().map(|vector| vector[dims]).fold(sink, f32::max);
        out.fill(0.0);
        if peak == f32::NEG_INFINITY {
            return;
        }
        let mut total = (sink - peak).exp();
        for vector in parts() {
            let factor = (vector[dims] - peak).exp();
            total += factor * vector[dims + 1];
            out.iter_mut().zip(vector).for_each(|(out, x)| *out += factor * x);
        }
        out.iter_mut().for_each(|x| *x /= total);
    }
}

impl Fold<'_> {
    /// Folds the tile of a KV head, for the rows that see a token of it.
    fn head(&self, head: usize, softmax: &mut [f32], logits: &mut [[f32; BLOCK]]) {
        let Some(mask) = self.mask else { return self.seen(head, 0..self.rows.rows, softmax, logits) };
        let vectors = self.rows.shared() * self.rows.vector_len();
        let mut first = 0;
        for run in mask.rows.chunk_by(|a, b| a == b) {
            let rows = first..first + run.len();
            if run[0] == SEES {
                self.seen(head, rows.clone(), &mut softmax[first * vectors..rows.end * vectors], logits);
            }
            first = rows.end;
        }
    }

    /// Folds the tile of a KV head, for consecutive rows.
    fn seen(&self, kv_head: usize, rows: Range<usize>, softmax: &mut [f32], logits: &mut [[f32; BLOCK]]) {
        let Rows { key, value, scale, .. } = *self.rows;
        let (len, shared) = (self.rows.vector_len(), self.rows.shared());
        let logits = &mut logits[..rows.len() * shared];
        let vectors = rows.flat_map(|row| (0..shared).map(move |head| (kv_head * shared + head, row)));
        let tile = key.tile(kv_head, self.first, self.tokens);
        let mut left = vectors.clone();
        for logits in logits.chunks_mut(QUERIES) {
            let mut queries = [&[][..]; QUERIES];
            for (query, (head, row)) in queries.iter_mut().zip(left.by_ref().take(logits.len())) {
                *query = self.rows.query(head, row);
            }
            (self.kernels.logits[key.kind as usize])(&tile, &queries[..logits.len()], scale, logits);
        }
        for ((logits, softmax), (head, row)) in logits.iter_mut().zip(softmax.chunks_exact_mut(len)).zip(vectors) {
            self.adjust(head, row, logits);
            let (sums, state) = softmax.split_at_mut(value.dims);
            let mut running = Running { peak: state[0], sum: state[1], ..Running::default() };
            let factor = (self.soften.soften)(logits.as_chunks_mut().0, &mut running);
            (state[0], state[1]) = (running.peak, running.sum);
            if factor != 1.0 {
                sums.iter_mut().for_each(|sum| *sum *= factor);
            }
        }
        let tile = value.tile(kv_head, self.first, self.tokens);
        for (weights, sums) in logits.chunks(QUERIES).zip(softmax.chunks_mut(QUERIES * len)) {
            (self.kernels.values[value.kind as usize])(&tile, weights, sums, len);
        }
    }

    /// Applies the soft cap and the mask.
    fn adjust(&self, head: usize, row: usize, logits: &mut [f32; BLOCK]) {
        if let Some(cap) = self.rows.soft_cap {
            (self.soften.soft_cap)(logits.as_chunks_mut().0, cap);
            logits[self.tokens..].fill(f32::NEG_INFINITY);
        }
        if let Some(mask) = self.mask {
            let slope = self.rows.mask.and_then(|mask| mask.slopes).map_or(1.0, |slopes| slopes[head]);
            // Of a slope of 0 or below, -inf times the slope is NaN or +inf.
            let sum = |x: f32, mask: f32| if mask == f32::NEG_INFINITY { mask } else { x + slope * mask };
            logits.iter_mut().zip(&mask.addends[row * BLOCK..]).for_each(|(x, mask)| *x = sum(*x, *mask));
        }
    }
}

impl<'a> Rows<'a> {
    fn query(&self, head: usize, row: usize) -> &'a [f32] {
        &self.queries[head * self.query_head_stride + row * self.query_row_stride..][..self.key.dims]
    }
}
