//! The flags of the reference system's script, by their names and defaults.

use super::Refused;
use std::collections::BTreeSet;
use std::str::FromStr;

/// An enum whose values have names.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$value_doc])* $value),+ }

        impl $name {
            /// The names of all values.
            pub const NAMES: &'static [&'static str] = &[$($text),+];

            /// The name of the value.
            pub const fn name(self) -> &'static str {
                match self { $($name::$value => $text),+ }
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok($name::$value),)+
                    _ => Err(format!("{text:?} is not one of {}", Self::NAMES.join(", "))),
                }
            }
        }
    };
}

named! {
    /// The entries to evaluate, by stage.
    Stage {
        /// The prompt.
        Prefill = "prefill",
        /// One token each.
        Decode = "decode",
        /// All stages.
        Both = "both",
    }
}

named! {
    /// The entries to evaluate, by layer.
    Scope {
        /// Layers below `front_n`.
        FrontN = "front_n",
        /// Layers from `layer_start` to `layer_end`.
        LayerRange = "layer_range",
        /// `layer_ids`
        LayerIds = "layer_ids",
    }
}

named! {
    /// The words that are compressed as one.
    EntryMode {
        /// Those of an entry.
        PerMeta = "per_meta",
        /// Those of a group.
        Aggregate = "aggregate",
        /// Chunks of an entry.
        Chunked = "chunked",
        /// Chunks of a group.
        ChunkedGrouped = "chunked_grouped",
    }
}

impl EntryMode {
    /// Whether entries of a run and layer are joined.
    pub fn is_grouped(self) -> bool {
        matches!(self, EntryMode::Aggregate | EntryMode::ChunkedGrouped)
    }

    /// Whether units are cut into chunks.
    pub fn is_chunked(self) -> bool {
        matches!(self, EntryMode::Chunked | EntryMode::ChunkedGrouped)
    }
}

named! {
    /// How a plane is compressed.
    CodecMode {
        /// The best predictor for each block.
        Adaptive = "adaptive_v22",
        /// High bytes by [`Predictor::DeltaSeq`], low bytes raw, in one block.
        Legacy = "legacy",
    }
}

named! {
    /// A reversible map of the bytes of a block, `[token][head][dim]`.
    Predictor {
        /// The bytes.
        Raw = "raw",
        /// Minus the byte one token before.
        DeltaSeq = "delta_seq",
        /// Exclusive or with the byte one token before.
        XorSeq = "xor_seq",
        /// Odd dims minus the even dim before.
        PairDelta = "pair_delta",
        /// [`Predictor::PairDelta`], then [`Predictor::DeltaSeq`].
        PairDeltaDeltaSeq = "pair_delta_delta_seq",
    }
}

impl Predictor {
    /// Reads a list separated by commas. A name that comes again does not count.
    pub fn list(text: &str, flag: &str) -> Result<Vec<Predictor>, Refused> {
        let mut list = Vec::new();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let predictor = name.parse().map_err(|_| Refused(format!("{flag}: invalid predictor `{name}`")))?;
            if !list.contains(&predictor) {
                list.push(predictor);
            }
        }
        if list.is_empty() {
            return Err(Refused(format!("{flag}: predictor list is empty")));
        }
        Ok(list)
    }
}

/// The flags.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// `--stage`
    pub stage: Stage,
    /// `--scope`
    pub scope: Scope,
    /// `--front-n`
    pub front_n: i64,
    /// `--layer-start`
    pub layer_start: i64,
    /// `--layer-end`; negative: no end.
    pub layer_end: i64,
    /// `--layer-ids`
    pub layer_ids: BTreeSet<i64>,
    /// `--zstd-level`
    pub zstd_level: i32,
    /// `--strict-fp16`
    pub strict_fp16: bool,
    /// `--min-seq-len`; 0: off.
    pub min_seq_len: i64,
    /// `--max-seq-len`; 0: off.
    pub max_seq_len: i64,
    /// `--entry-mode`
    pub entry_mode: EntryMode,
    /// `--online-chunk-seq`; 0: whole.
    pub online_chunk_seq: i64,
    /// `--online-framing-bytes`
    pub online_framing_bytes: i64,
    /// `--aggregate-by-stage`
    pub aggregate_by_stage: bool,
    /// `--codec-mode`
    pub codec_mode: CodecMode,
    /// `--adaptive-block-seq`
    pub adaptive_block_seq: i64,
    /// `--bitshuffle`
    pub bitshuffle: bool,
    /// `--k-hi-predictors`
    pub k_hi_predictors: Vec<Predictor>,
    /// `--k-lo-predictors`
    pub k_lo_predictors: Vec<Predictor>,
    /// `--v-hi-predictors`
    pub v_hi_predictors: Vec<Predictor>,
    /// `--v-lo-predictors`
    pub v_lo_predictors: Vec<Predictor>,
    /// Makes the mistakes of the reference system.
    pub faithful: bool,
}

impl Default for Options {
    fn default() -> Self {
        use Predictor::*;
        let three = vec![Raw, DeltaSeq, XorSeq];
        let five = vec![Raw, DeltaSeq, XorSeq, PairDelta, PairDeltaDeltaSeq];
        Options {
            stage: Stage::Both,
            scope: Scope::FrontN,
            front_n: 2,
            layer_start: 2,
            layer_end: -1,
            layer_ids: BTreeSet::new(),
            zstd_level: 3,
            strict_fp16: false,
            min_seq_len: 0,
            max_seq_len: 0,
            entry_mode: EntryMode::PerMeta,
            online_chunk_seq: 0,
            online_framing_bytes: 16,
            aggregate_by_stage: false,
            codec_mode: CodecMode::Adaptive,
            adaptive_block_seq: 64,
            bitshuffle: false,
            k_hi_predictors: five.clone(),
            k_lo_predictors: five,
            v_hi_predictors: three.clone(),
            v_lo_predictors: three,
            faithful: false,
        }
    }
}

impl Options {
    /// Refuses options that have no meaning together.
    pub fn check(&self) -> Result<(), Refused> {
        let refused = |text: &str| Err(Refused(text.into()));
        if self.scope == Scope::FrontN && self.front_n <= 0 {
            return refused("--front-n must be > 0 when scope=front_n.");
        }
        if self.adaptive_block_seq <= 0 {
            return refused("--adaptive-block-seq must be > 0.");
        }
        if self.online_chunk_seq < 0 {
            return refused("--online-chunk-seq must be >= 0.");
        }
        if self.online_framing_bytes < 0 {
            return refused("--online-framing-bytes must be >= 0.");
        }
        if self.scope == Scope::LayerIds && self.layer_ids.is_empty() {
            return refused("--layer-ids must be non-empty when scope=layer_ids.");
        }
        let lists = [&self.k_hi_predictors, &self.k_lo_predictors, &self.v_hi_predictors, &self.v_lo_predictors];
        if lists.iter().any(|list| list.is_empty()) {
            return refused("predictor list is empty");
        }
        let levels = zstd_safe::min_c_level()..=zstd_safe::max_c_level();
        if !levels.contains(&self.zstd_level) {
            return refused(&format!("--zstd-level must be {} to {}.", levels.start(), levels.end()));
        }
        Ok(())
    }

    /// Whether the scope has the layer.
    pub fn keeps_layer(&self, layer: i64) -> bool {
        match self.scope {
            Scope::FrontN => (0..self.front_n).contains(&layer),
            Scope::LayerRange => layer >= self.layer_start && (self.layer_end < 0 || layer <= self.layer_end),
            Scope::LayerIds => self.layer_ids.contains(&layer),
        }
    }
}
