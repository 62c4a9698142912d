//! Expected savings, in the terms of a session's config (`docs/config.md`).

use mnnkv::json::Brief;
use mnnkv::status::{Result, bail};

/// The largest ratio, as in a session's config.
const MAX_RATIO: f64 = 1e6;

/// The enabled savings. They apply in this order: eviction, compression of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Savings {
    /// Eviction.
    pub h2o: Option<H2o>,
    /// Lossless compression of cold tokens, in mode "store".
    pub lossless: Option<Lossless>,
}

/// Eviction by attention, with ratios of the logical length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct H2o {
    /// One token in `ratio` stays, 1 to 1,000,000.
    pub ratio: f64,
    /// First layer with eviction.
    pub first_layer: u32,
    /// Last layer with eviction; `None` = the last of the model.
    pub last_layer: Option<u32>,
    /// First and last tokens that stay. No token is evicted while they fill the ratio by themselves.
    pub protected_tokens: u32,
    /// No token is evicted below this length.
    pub trigger_tokens: u32,
}

/// Compression of cold tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lossless {
    /// Raw bytes over compressed bytes, 1 to 1,000,000: as measured on this model and element type.
    pub ratio: f64,
    /// Number of first layers to compress; larger values mean all layers.
    pub front_layers: u32,
    /// Whether layers with eviction are compressed, too.
    pub h2o_layers: bool,
    /// First and last tokens of a layer that stay raw.
    pub hot_tokens: u32,
}

impl H2o {
    /// A session's defaults with this ratio: layers from 2 on, 32 first and 256 last tokens, lengths from 512 on.
    pub fn new(ratio: f64) -> Self {
        H2o { ratio, first_layer: 2, last_layer: None, protected_tokens: 288, trigger_tokens: 512 }
    }

    /// Whether a layer evicts.
    pub(super) fn covers(&self, layer: u32) -> bool {
        layer >= self.first_layer && self.last_layer.is_none_or(|last| layer <= last)
    }

    /// The maximum number of tokens that a layer has held up to length `tokens`, hence monotonic: all of them up to
    /// some length, and much later the remaining share.
    pub(super) fn held(&self, tokens: u64) -> u64 {
        let undecided = (f64::from(self.protected_tokens) * self.ratio).floor() as u64;
        let all_stay = undecided.max(u64::from(self.trigger_tokens.saturating_sub(1)));
        tokens.min(all_stay.max(divided(tokens, self.ratio)))
    }
}

impl Lossless {
    /// A session's defaults with this ratio: the first 2 layers without their first 16 and last 256 tokens.
    pub fn new(ratio: f64) -> Self {
        Lossless { ratio, front_layers: 2, h2o_layers: false, hot_tokens: 272 }
    }
}

impl Savings {
    /// Fails for values that a session refuses.
    pub(super) fn check(&self) -> Result<()> {
        if let Some(h2o) = &self.h2o {
            ratio("the h2o ratio", h2o.ratio)?;
            if let Some(last) = h2o.last_layer.filter(|last| *last < h2o.first_layer) {
                bail!(
                    InvalidArgument,
                    "the last layer of h2o is {last} and the first {}; a last one that is not below the first expected",
                    h2o.first_layer
                );
            }
        }
        if let Some(lossless) = &self.lossless {
            ratio("the lossless ratio", lossless.ratio)?;
        }
        Ok(())
    }

    /// Whether a layer compresses its cold tokens, by either scope.
    pub(super) fn compresses(&self, layer: u32) -> Option<&Lossless> {
        let evicted = self.h2o.is_some_and(|h2o| h2o.covers(layer));
        self.lossless.as_ref().filter(|l| layer < l.front_layers || l.h2o_layers && evicted)
    }
}

fn ratio(what: &str, ratio: f64) -> Result<()> {
    if !(1.0..=MAX_RATIO).contains(&ratio) {
        bail!(InvalidArgument, "{what} is {}; 1 to {MAX_RATIO} expected", Brief(ratio));
    }
    Ok(())
}

/// `amount` over `ratio`, rounded up, at most `amount`, and monotonic.
pub(super) fn divided(amount: u64, ratio: f64) -> u64 {
    ((amount as f64 / ratio).ceil() as u64).min(amount)
}
