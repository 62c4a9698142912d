//! What a config does to a model, in one line.

use super::{Config, EvictionRules, MemoryRules, Ratio, RuntimeMode};
use crate::attend::Format;
use crate::session::Holds;
use crate::status::Result;
use crate::sys::memory;
use std::fmt::{self, Display, Formatter};
use std::ops::Range;
use std::path::{self, Path};

impl Config {
    /// One line: which tokens of a model of `layers` layers stay, and which are stored compressed.
    pub fn outlook(&self, layers: u32) -> Result<String> {
        memory::format(format_args!("{}", Outlook { config: self, layers }))
    }
}

impl MemoryRules {
    /// One line: what a budget of so many bytes does to the tokens of a chat, and with what it holds of a model also from which
    /// length on. `file`: that of the chat, and whether it could not be made.
    pub fn outlook(&self, bytes: u64, holds: Option<Holds>, file: Option<(path::Display<'_>, bool)>) -> Result<String> {
        memory::format(format_args!("{}", Bounded(self, bytes, holds, file)))
    }
}

struct Bounded<'a>(&'a MemoryRules, u64, Option<Holds>, Option<(path::Display<'a>, bool)>);

impl Display for Bounded<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Bounded(memory, bytes, holds, file) = self;
        let budget = *bytes as f64 / 1e6;
        if holds.is_some_and(|holds| holds.quantised_tokens == Holds::ALL) {
            return write!(f, "at most {budget} MB, which hold the windows of all layers");
        }
        if let Some(holds) = holds.filter(|holds| holds.raw_tokens == holds.quantised_tokens) {
            let most = Grouped(holds.raw_tokens);
            return write!(f, "{budget} MB, as far as raw tokens hold it, {most}: such K and V have no 8 and 4 bits");
        }
        write!(f, "at most {budget} MB: ")?;
        if memory.quantises.is_none() {
            f.write_str("tokens are raw")?;
            holds.map_or(Ok(()), |holds| write!(f, " up to {}", Grouped(holds.raw_tokens)))?;
            f.write_str(", then ")?;
        }
        f.write_str(match memory.quantises {
            Some(Format::K4V4) => "K and V have 4 bits, ",
            _ => "K has 8 bits and V 4, then both have 4, ",
        })?;
        holds.map_or(Ok(()), |holds| write!(f, "up to {} tokens, ", Grouped(holds.quantised_tokens)))?;
        f.write_str("then")?;
        f.write_str(" the least attended ones ")?;
        match file {
            Some((file, true)) => write!(f, "are dropped, since {file} could not be made"),
            Some((file, false)) => write!(f, "go to {file}"),
            None => f.write_str("are dropped"),
        }
    }
}

struct Outlook<'a> {
    config: &'a Config,
    layers: u32,
}

impl Display for Outlook<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let layers = self.layers;
        if let Some(memory) = &self.config.memory {
            let file = self.config.file.as_ref().map(|file| (Path::new(&file.path).display(), false));
            return Bounded(memory, memory.bytes, None, file).fmt(f);
        }
        if let Some((first, format)) = self.config.quant.filter(|(first, _)| *first < layers) {
            let raw = self.config.sink_tokens;
            let which = Layers(first..layers, layers);
            let bits = match format {
                Format::K8V4 => "K in 8 bits and V in 4",
                Format::K4V4 => "K and V in 4 bits",
            };
            write!(f, "{which}: {bits}, but for the first {raw} tokens and the newest 25 to 95")?;
            return if first == 0 { Ok(()) } else { write!(f, "; {}", Kept(0..first, layers)) };
        }
        match self.config.eviction.filter(EvictionRules::evicts) {
            None => f.write_str("all layers keep all tokens")?,
            Some(rules) => {
                let (first, end) = (rules.first_layer, rules.end_layer);
                write!(f, "{}: {}", Layers(first..end, layers), Stays(&rules))?;
                for rest in [0..first, end..layers].into_iter().filter(|rest| !rest.is_empty()) {
                    write!(f, "; {}", Kept(rest, layers))?;
                }
            }
        }
        let Some(lossless) = &self.config.lossless else { return Ok(()) };
        let what = match lossless.mode {
            RuntimeMode::Store => "cold tokens are stored compressed",
            RuntimeMode::Probe | RuntimeMode::Full => "compression is measured, and nothing is stored compressed",
        };
        let front = lossless.front_layers;
        let kept = self.config.eviction.filter(|_| lossless.kept_layers);
        let kept = kept.map_or(0..0, |rules| rules.first_layer..rules.end_layer);
        let parts = if kept.start <= front { [0..kept.end.max(front), 0..0] } else { [0..front, kept] };
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            write!(f, "; {}: {what}", Layers(part, layers))?;
        }
        Ok(())
    }
}

impl EvictionRules {
    /// Whether a chat of some length loses tokens.
    fn evicts(&self) -> bool {
        self.first_layer < self.end_layer && self.first_eviction().is_some()
    }

    /// Whether the ratio, without the limit, keeps every token.
    pub(super) fn keeps_all(&self) -> bool {
        matches!(self.ratio, Ratio::Keep(1.0..) | Ratio::Lossy(..=1.0))
    }
}

/// A range of the model's layers, as the subject of a sentence.
struct Layers(Range<u32>, u32);

impl Display for Layers {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (Range { start, end }, all) = (&self.0, self.1);
        match end - start {
            count if count == all => f.write_str("all layers"),
            1 => write!(f, "layer {start}"),
            2 => write!(f, "layers {start} and {}", end - 1),
            _ => write!(f, "layers {start} to {}", end - 1),
        }
    }
}

/// Layers that lose no token.
struct Kept(Range<u32>, u32);

impl Display for Kept {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let verb = if self.0.len() == 1 && self.1 > 1 { "keeps" } else { "keep" };
        write!(f, "{} {verb} all", Layers(self.0.clone(), self.1))
    }
}

/// The tokens that stay.
struct Stays<'a>(&'a EvictionRules);

impl Display for Stays<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let rules = self.0;
        let first = rules.first_eviction().unwrap_or_default();
        let limit = rules.max_tokens.filter(|limit| rules.keeps_all() || first >= *limit);
        match (limit, rules.ratio) {
            (Some(limit), _) => write!(f, "at most {} tokens stay", Grouped(limit.into()))?,
            (None, Ratio::Keep(share)) => {
                write!(f, "{share} of the tokens stay, from {} tokens on", Grouped(first.into()))?
            }
            (None, Ratio::Lossy(ratio)) => {
                write!(f, "one token in {ratio} stays, from {} tokens on", Grouped(first.into()))?
            }
        }
        if let Some(most) = rules.max_tokens.filter(|_| limit.is_none()) {
            write!(f, ", and at most {}", Grouped(most.into()))?;
        }
        Ok(())
    }
}

/// A number with a comma between its thousands.
struct Grouped(u64);

impl Display for Grouped {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            small @ ..1000 => small.fmt(f),
            large => write!(f, "{},{:03}", Grouped(large / 1000), large % 1000),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::session::config::Config;

    #[test]
    fn one_line_says_which_tokens_stay() {
        let evicts = r#""kv_h2o_enable": true"#;
        let stores =
            r#""kv_lossless_enable": true, "kv_lossless_runtime_enable": true, "kv_lossless_runtime_mode": "store""#;
        let cases = [
            ("{}".into(), "all layers keep all tokens"),
            // The blocks of 64 with the first 32 and the last 256 tokens are protected, 320 of 1,152: ceil(1152 / 3.5) = 330 stay.
            (
                format!("{{{evicts}}}"),
                "layers 2 to 29: one token in 3.5 stays, from 1,152 tokens on; layers 0 and 1 keep all",
            ),
            // Of 704 tokens 352 stay, of which 320 are protected; up to 703 no more stay than are.
            (
                format!(r#"{{{evicts}, "kv_h2o_target_lossy_ratio": 2}}"#),
                "layers 2 to 29: one token in 2 stays, from 704 tokens on; layers 0 and 1 keep all",
            ),
            (
                format!(r#"{{{evicts}, "kv_h2o_layer_start": 1, "kv_h2o_layer_end": 28, "kv_h2o_max_tokens": 2048}}"#),
                "layers 1 to 28: one token in 3.5 stays, from 1,152 tokens on, and at most 2,048; layer 0 keeps all; \
                 layer 29 keeps all",
            ),
            (
                format!(
                    r#"{{{evicts}, "kv_h2o_layer_start": 0, "kv_h2o_target_lossy_ratio": 1, "kv_h2o_max_tokens": 1000000}}"#
                ),
                "all layers: at most 1,000,000 tokens stay",
            ),
            (format!(r#"{{{evicts}, "kv_h2o_target_lossy_ratio": 1}}"#), "all layers keep all tokens"),
            (format!(r#"{{{evicts}, "kv_h2o_layer_start": 30}}"#), "all layers keep all tokens"),
            (format!("{{{stores}}}"), "all layers keep all tokens; layers 0 and 1: cold tokens are stored compressed"),
            (
                format!(r#"{{{evicts}, {stores}, "kv_lossless_scope": "front_n_and_h2o_kept"}}"#),
                "layers 2 to 29: one token in 3.5 stays, from 1,152 tokens on; layers 0 and 1 keep all; \
                 all layers: cold tokens are stored compressed",
            ),
            (
                format!(r#"{{{evicts}, {stores}, "kv_lossless_scope": "h2o_kept"}}"#),
                "layers 2 to 29: one token in 3.5 stays, from 1,152 tokens on; layers 0 and 1 keep all; \
                 layers 2 to 29: cold tokens are stored compressed",
            ),
            (
                format!(
                    r#"{{{evicts}, {stores}, "kv_lossless_scope": "front_n_and_h2o_kept", "kv_lossless_front_n": 8,
                    "kv_h2o_layer_end": 5, "kv_h2o_max_tokens": 700}}"#
                ),
                "layers 2 to 5: at most 700 tokens stay; layers 0 and 1 keep all; layers 6 to 29 keep all; \
                 layers 0 to 7: cold tokens are stored compressed",
            ),
            (
                r#"{"kv_lossless_enable": true, "kv_lossless_runtime_enable": true, "kv_lossless_front_n": 1}"#.into(),
                "all layers keep all tokens; layer 0: compression is measured, and nothing is stored compressed",
            ),
        ];
        for (config, expected) in cases {
            let (parsed, _) = Config::parse(config.as_bytes(), b"", 30).unwrap();
            assert_eq!(parsed.outlook(30).unwrap(), expected, "{config}");
        }
    }
}
