//! The flags of the reference system's script, by their names and defaults.

use super::Refused;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Arg, Args, Command, FromArgMatches};
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
    fn list(text: &str, flag: &str) -> Result<Vec<Predictor>, Refused> {
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

// A doc comment would become the text of a command's help.
#[allow(missing_docs)]
#[derive(Clone, Debug, PartialEq, Args)]
pub struct Options {
    /// Make the mistakes of the reference system, too
    #[arg(long, requires = "reference")]
    pub faithful: bool,
    /// Entries to evaluate, by stage
    #[arg(long, value_name = "STAGE", default_value = "both", value_parser = named::<Stage>(Stage::NAMES), requires = "reference")]
    pub stage: Stage,
    /// Entries to evaluate, by layer
    #[arg(long, value_name = "SCOPE", default_value = "front_n", value_parser = named::<Scope>(Scope::NAMES), requires = "reference")]
    pub scope: Scope,
    /// Scope front_n: number of first layers
    #[arg(long, value_name = "N", default_value_t = 2, allow_negative_numbers = true, requires = "reference")]
    pub front_n: i64,
    /// Scope layer_range: first layer
    #[arg(long, value_name = "N", default_value_t = 2, allow_negative_numbers = true, requires = "reference")]
    pub layer_start: i64,
    /// Scope layer_range: last layer; -1: no end
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true, requires = "reference")]
    pub layer_end: i64,
    /// Scope layer_ids: layers, separated by commas
    #[arg(long, value_name = "LIST", default_value = "", value_parser = layer_ids, requires = "reference")]
    pub layer_ids: BTreeSet<i64>,
    /// Level of ZSTD
    #[arg(long, value_name = "N", default_value_t = 3, allow_negative_numbers = true, requires = "reference")]
    pub zstd_level: i32,
    /// Skip f32 entries instead of rounding them to f16
    #[arg(long, requires = "reference")]
    pub strict_fp16: bool,
    /// Leave out entries of fewer tokens; 0: off
    #[arg(long, value_name = "TOKENS", default_value_t = 0, allow_negative_numbers = true, requires = "reference")]
    pub min_seq_len: i64,
    /// Leave out entries of more tokens; 0: off
    #[arg(long, value_name = "TOKENS", default_value_t = 0, allow_negative_numbers = true, requires = "reference")]
    pub max_seq_len: i64,
    /// Words that are compressed as one
    #[arg(long, value_name = "MODE", default_value = "per_meta", value_parser = named::<EntryMode>(EntryMode::NAMES), requires = "reference")]
    pub entry_mode: EntryMode,
    /// Modes chunked and chunked_grouped: tokens of a chunk; 0: whole
    #[arg(long, value_name = "TOKENS", default_value_t = 0, allow_negative_numbers = true, requires = "reference")]
    pub online_chunk_seq: i64,
    /// Modes chunked and chunked_grouped: bytes added for each chunk of K or V
    #[arg(long, value_name = "BYTES", default_value_t = 16, allow_negative_numbers = true, requires = "reference")]
    pub online_framing_bytes: i64,
    /// Modes aggregate and chunked_grouped: a group for each stage
    #[arg(long, requires = "reference")]
    pub aggregate_by_stage: bool,
    /// How a plane is compressed
    #[arg(long, value_name = "MODE", default_value = "adaptive_v22", value_parser = named::<CodecMode>(CodecMode::NAMES), requires = "reference")]
    pub codec_mode: CodecMode,
    /// Tokens of a block with one predictor
    #[arg(long, value_name = "TOKENS", default_value_t = 64, allow_negative_numbers = true, requires = "reference")]
    pub adaptive_block_seq: i64,
    /// Order bits by significance before ZSTD
    #[arg(long, requires = "reference")]
    pub bitshuffle: bool,
    /// Predictors of the high bytes of K
    #[arg(long, value_name = "LIST", default_value = FIVE, requires = "reference")]
    pub k_hi_predictors: String,
    /// Predictors of the low bytes of K
    #[arg(long, value_name = "LIST", default_value = FIVE, requires = "reference")]
    pub k_lo_predictors: String,
    /// Predictors of the high bytes of V
    #[arg(long, value_name = "LIST", default_value = THREE, requires = "reference")]
    pub v_hi_predictors: String,
    /// Predictors of the low bytes of V
    #[arg(long, value_name = "LIST", default_value = THREE, requires = "reference")]
    pub v_lo_predictors: String,
}

const FIVE: &str = "raw,delta_seq,xor_seq,pair_delta,pair_delta_delta_seq";
const THREE: &str = "raw,delta_seq,xor_seq";

fn named<T>(names: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = String> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(names).try_map(|name| name.parse::<T>())
}

fn layer_ids(text: &str) -> Result<BTreeSet<i64>, String> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| part.parse().map_err(|_| format!("{part:?} is not a layer number"))).collect()
}

/// Predictors of the high and of the low bytes.
pub type Lists = [Vec<Predictor>; 2];

impl Default for Options {
    /// The options that are given by no flag.
    fn default() -> Self {
        let command = Options::augment_args(Command::new("")).arg(Arg::new("reference"));
        let matches = command.try_get_matches_from([""]);
        matches.and_then(|matches| Options::from_arg_matches(&matches)).expect("every option has a default")
    }
}

impl Options {
    /// Refuses options that have no meaning together. Returns the predictors of K and of V.
    pub fn check(&self) -> Result<[Lists; 2], Refused> {
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
        let levels = zstd_safe::min_c_level()..=zstd_safe::max_c_level();
        if !levels.contains(&self.zstd_level) {
            return refused(&format!("--zstd-level must be {} to {}.", levels.start(), levels.end()));
        }
        Ok([
            [
                Predictor::list(&self.k_hi_predictors, "--k-hi-predictors")?,
                Predictor::list(&self.k_lo_predictors, "--k-lo-predictors")?,
            ],
            [
                Predictor::list(&self.v_hi_predictors, "--v-hi-predictors")?,
                Predictor::list(&self.v_lo_predictors, "--v-lo-predictors")?,
            ],
        ])
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
