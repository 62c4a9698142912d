//! Bytes at a length.

use super::element::CacheElement;
use super::mnn::{MnnCache, MnnLayer};
use super::savings::{H2o, Lossless, Savings, divided};
use super::shape::{Attention, LayerShape, Span};
use mnnkv::status::{Result, bail, error};
use mnnkv::sys::memory;

/// The longest context in tokens: the most that a cache of this library holds.
pub const MAX_TOKENS: u64 = i32::MAX as u64;

/// A cache without savings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Its element type; under MNN that of float K and V.
    pub element: CacheElement,
    /// Tensor-parallel ranks, at least 1.
    pub ranks: u32,
    /// Sequences of the given length, at least 1.
    pub batch: u32,
    /// MNN's types and packing, instead of plain elements.
    pub mnn: Option<MnnCache>,
}

impl Setup {
    /// One sequence on one rank.
    pub fn new(element: CacheElement) -> Self {
        Setup { element, ranks: 1, batch: 1, mnn: None }
    }
}

/// Bytes of a cache, savings cumulated. A disabled saving changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Without savings.
    pub raw: u64,
    /// After eviction.
    pub after_h2o: u64,
    /// After eviction and lossless compression: the cache between two steps.
    pub after_lossless: u64,
    /// Maximum within a step: one compressed layer is raw for attention and the next one is decoded, while the blobs of
    /// both are kept. Allocate for this number.
    pub peak: u64,
}

impl Bytes {
    /// The fields with their names, in the order of savings.
    pub fn stages(&self) -> [(&'static str, u64); 4] {
        [("raw", self.raw), ("after_h2o", self.after_h2o), ("after_lossless", self.after_lossless), ("peak", self.peak)]
    }

    fn map(self, f: impl Fn(u64) -> Option<u64>) -> Option<Bytes> {
        Some(Bytes {
            raw: f(self.raw)?,
            after_h2o: f(self.after_h2o)?,
            after_lossless: f(self.after_lossless)?,
            peak: f(self.peak)?,
        })
    }

    /// The product with `count`; `None` if a number exceeds 64 bits.
    pub(super) fn times(self, count: u32) -> Option<Bytes> {
        self.map(|bytes| bytes.checked_mul(u64::from(count)))
    }
}

/// A layer, with everything computed that does not depend on the length.
struct SizedLayer {
    /// Its number in the model.
    number: u32,
    span: Span,
    /// On a rank.
    cost: Cost,
    h2o: Option<H2o>,
    lossless: Option<Lossless>,
}

/// Bytes of the tokens of a layer.
pub(super) enum Cost {
    /// The same for each.
    Token(u64),
    Mnn(MnnLayer),
}

impl Cost {
    pub fn new(attention: &Attention, setup: &Setup, number: u32) -> Result<Cost> {
        match setup.mnn {
            Some(cache) => Ok(Cost::Mnn(cache.layer(attention, number)?)),
            None => token_bytes(attention.kv.elements(setup.ranks)?, setup.element, number).map(Cost::Token),
        }
    }

    /// Of one more token.
    pub fn token(&self) -> u64 {
        match self {
            Cost::Token(bytes) => *bytes,
            Cost::Mnn(layer) => layer.token_bytes(),
        }
    }

    fn tokens(&self, count: u64) -> Option<u64> {
        match self {
            Cost::Token(bytes) => count.checked_mul(*bytes),
            Cost::Mnn(layer) => layer.bytes(count),
        }
    }
}

/// A model's cache for one setup and one set of savings.
pub struct Sizer {
    setup: Setup,
    layers: Vec<SizedLayer>,
}

impl Sizer {
    /// Computes the bytes of a token in each layer.
    ///
    /// INVALID_ARGUMENT: if the ranks do not divide the KV heads, ranks or sequences are 0, or a ratio is below 1.
    /// UNSUPPORTED: if MNN has no such cache.
    pub fn new(layers: &[LayerShape], setup: Setup, savings: &Savings) -> Result<Sizer> {
        if setup.batch == 0 {
            bail!(InvalidArgument, "the batch is 0; at least 1 expected");
        }
        savings.check()?;
        if setup.mnn.is_some() && setup.ranks != 1 {
            bail!(Unsupported, "there are {} tensor-parallel ranks; MNN has 1", setup.ranks);
        }
        let mut sized = Vec::new();
        for (number, layer) in (0u32..).zip(layers) {
            let Some(attention) = layer.attention() else { continue };
            let layer = SizedLayer {
                number,
                span: attention.span,
                cost: Cost::new(attention, &setup, number)?,
                h2o: savings.h2o.filter(|h2o| h2o.covers(number)),
                lossless: savings.compresses(number).copied(),
            };
            memory::push(&mut sized, layer)?;
        }
        Ok(Sizer { setup, layers: sized })
    }

    /// Bytes of one more token of one sequence on a rank while no window or chunk is full, without savings.
    pub fn bytes_per_token(&self) -> Result<u64> {
        self.sum_of_tokens(|_| true)
    }

    /// As [`Sizer::bytes_per_token`], once every window and chunk is full.
    pub fn bytes_per_late_token(&self) -> Result<u64> {
        self.sum_of_tokens(|layer| layer.span == Span::Full)
    }

    /// Bytes of the caches of all sequences on each rank, at `tokens` tokens a sequence. Monotonic in tokens.
    ///
    /// INVALID_ARGUMENT: if `tokens` exceeds [`MAX_TOKENS`], or the bytes exceed 64 bits.
    pub fn bytes(&self, tokens: u64) -> Result<Bytes> {
        if tokens > MAX_TOKENS {
            bail!(InvalidArgument, "tokens is {tokens}; {MAX_TOKENS} or fewer expected");
        }
        self.sequence(tokens).and_then(|bytes| bytes.times(self.setup.batch)).ok_or_else(|| {
            let batch = self.setup.batch;
            error!(InvalidArgument, "the bytes of {tokens} tokens in {batch} sequences do not fit 64 bits")
        })
    }

    /// The bytes of one sequence; `None` if they exceed 64 bits.
    fn sequence(&self, tokens: u64) -> Option<Bytes> {
        let mut sum = Bytes::default();
        // Bytes that a step restores of the previous layer, and the maximum of two neighbours so far.
        let (mut before, mut restored) = ((0u32, 0u64), 0u64);
        for layer in &self.layers {
            let held = layer.span.held(tokens);
            let kept = layer.h2o.map_or(held, |h2o| held.min(h2o.held(tokens)));
            let kept_bytes = layer.cost.tokens(kept)?;
            let (at_rest, cold) = match &layer.lossless {
                None => (kept_bytes, 0),
                Some(lossless) => {
                    let tokens = kept.saturating_sub(u64::from(lossless.hot_tokens));
                    let cold = tokens.checked_mul(layer.cost.token())?.min(kept_bytes);
                    (kept_bytes - cold + divided(cold, lossless.ratio), cold)
                }
            };
            let neighbour = if before.0 + 1 == layer.number { before.1 } else { 0 };
            restored = restored.max(cold.checked_add(neighbour)?);
            before = (layer.number, cold);
            sum.raw = sum.raw.checked_add(layer.cost.tokens(held)?)?;
            sum.after_h2o = sum.after_h2o.checked_add(kept_bytes)?;
            sum.after_lossless = sum.after_lossless.checked_add(at_rest)?;
        }
        sum.peak = sum.after_lossless.checked_add(restored)?;
        Some(sum)
    }

    fn sum_of_tokens(&self, which: impl Fn(&SizedLayer) -> bool) -> Result<u64> {
        let mut layers = self.layers.iter().filter(|layer| which(layer));
        match layers.try_fold(0u64, |sum, layer| sum.checked_add(layer.cost.token())) {
            Some(sum) => Ok(sum),
            None => bail!(InvalidArgument, "the bytes of a token in all layers do not fit 64 bits"),
        }
    }
}

/// Bytes of a token of a layer; a token begins at a whole byte.
fn token_bytes(elements: u64, element: CacheElement, layer: u32) -> Result<u64> {
    match elements.checked_mul(element.bits()) {
        Some(bits) => Ok(bits.div_ceil(8)),
        None => bail!(InvalidArgument, "layer {layer} has {elements} elements per token; 2^58 or fewer expected"),
    }
}
