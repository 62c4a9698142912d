//! Warnings about a config that is no error.

use super::keys::{NAMES, RETIRED, Values, name};
use super::{EvictionRules, Ratio};
use crate::attend::Format;
use crate::json::Short;
use crate::status::Result;
use crate::sys::memory;
use std::fmt;

/// Whether the config or its defaults have a key.
type Has<'a> = &'a dyn Fn(&str) -> bool;

/// Keys without effect because of other keys.
struct Idle {
    keys: fn(&str) -> bool,
    idle: fn(&Values, Has<'_>) -> bool,
    /// The condition under which the keys have an effect.
    needs: &'static str,
}

/// A missing switch is a mistake; an explicit `false` is none.
const IDLE: &[Idle] = &[
    Idle {
        keys: |key| key.starts_with(QUANT) && ![name::kv_quant, name::kv_quant_layer_start].contains(&key),
        idle: |values, has| !has(name::kv_quant) && super::budget_bytes(values).is_none(),
        needs: "kv_memory_mb or kv_memory_bytes must be above 0, or kv_quant \"k8v4\" or \"k4v4\"",
    },
    Idle {
        keys: |key| key == name::kv_quant_layer_start,
        idle: |_, has| !has(name::kv_quant),
        needs: "kv_quant must be \"k8v4\" or \"k4v4\", and a budget is one of all layers",
    },
    Idle {
        keys: |key| key == name::kv_quant_k8v4_layers,
        idle: |values, _| values.kv_quant == Some(Format::K8V4) && super::budget_bytes(values).is_none(),
        needs: "kv_quant must be \"k4v4\", or kv_memory_mb or kv_memory_bytes above 0",
    },
    Idle {
        keys: |key| [name::kv_memory_file_mb, name::kv_memory_wait_us].contains(&key),
        idle: |values, has| {
            let is_given = has(name::kv_memory_mb) || has(name::kv_memory_bytes);
            super::budget_bytes(values).is_none() && !is_given
        },
        needs: "kv_memory_mb or kv_memory_bytes must be above 0",
    },
    Idle {
        // A chat that is saved or opened elsewhere has a file to wait for, too.
        keys: |key| key == name::kv_memory_file_mb,
        idle: |values, has| super::budget_bytes(values).is_some() && !has(name::kv_memory_file),
        needs: "kv_memory_file must name a file",
    },
    Idle {
        keys: |key| key.starts_with(H2O) && key != name::kv_h2o_enable,
        idle: |_, has| !has(name::kv_h2o_enable),
        needs: "kv_h2o_enable must be true",
    },
    Idle {
        keys: |key| key.starts_with(LOSSLESS) && key != name::kv_lossless_enable,
        idle: |_, has| !has(name::kv_lossless_enable),
        needs: "kv_lossless_enable must be true",
    },
    Idle {
        keys: |key| key == name::kv_h2o_target_keep_ratio,
        idle: |values, _| values.kv_h2o_enable && is_adaptive(values),
        needs: "kv_h2o_target_mode must be \"static\"",
    },
    Idle {
        keys: |key| key == name::kv_h2o_target_lossy_ratio,
        idle: |values, _| values.kv_h2o_enable && !is_adaptive(values),
        needs: "kv_h2o_target_mode must be \"adaptive\"",
    },
    Idle {
        keys: |key| key == name::kv_lossless_max_queue,
        idle: |values, _| compresses(values) && values.kv_lossless_async_threads == 0,
        needs: "kv_lossless_async_threads must not be 0",
    },
    Idle {
        keys: |key| key == name::kv_lossless_decode_cache_bytes,
        idle: |values, _| compresses(values) && values.kv_lossless_decode_cache_blocks == 0,
        needs: "kv_lossless_decode_cache_blocks must be above 0",
    },
];

const H2O: &str = "kv_h2o_";
const LOSSLESS: &str = "kv_lossless_";
const QUANT: &str = "kv_quant";

fn compresses(values: &Values) -> bool {
    values.kv_lossless_enable && values.kv_lossless_runtime_enable
}

fn is_adaptive(values: &Values) -> bool {
    matches!((values.kv_h2o_target_mode)(0.5, 2.0), Ratio::Lossy(_))
}

/// Warnings, at most [`Warnings::MOST`]; further ones are counted.
#[derive(Default)]
pub(super) struct Warnings {
    texts: Vec<String>,
    more: usize,
}

impl Warnings {
    pub const MOST: usize = 32;

    /// Adds a warning. Its text is formatted only while there is room.
    pub fn push(&mut self, text: fmt::Arguments<'_>) -> Result<()> {
        if self.texts.len() < Self::MOST {
            let text = memory::format(text)?;
            memory::push(&mut self.texts, text)
        } else {
            self.more += 1;
            Ok(())
        }
    }

    /// Warns about keys of the config without effect: once for all keys with the same reason.
    pub fn idle_keys(&mut self, values: &Values, given: &[&str], has: Has<'_>) -> Result<()> {
        for rule in IDLE.iter().filter(|rule| (rule.idle)(values, has)) {
            let keys = || NAMES.iter().filter(|key| (rule.keys)(key) && given.contains(key));
            let Some(first) = keys().next() else { continue };
            match keys().count() - 1 {
                0 => self.push(format_args!("{first} has no effect: {}", rule.needs))?,
                more => self.push(format_args!("{first} and {more} more have no effect: {}", rule.needs))?,
            }
        }
        Ok(())
    }

    /// Warns about keys that have no effect any more, where compression runs.
    pub fn retired_keys(&mut self, values: &Values, given: &[&str]) -> Result<()> {
        let keys = || RETIRED.iter().filter(|key| compresses(values) && given.contains(key));
        match (keys().next(), keys().count()) {
            (None, _) => Ok(()),
            (Some(first), 1) => self.push(format_args!("{first} has no effect in this version")),
            (Some(first), all) => {
                self.push(format_args!("{first} and {} more have no effect in this version", all - 1))
            }
        }
    }

    /// Warns where no token is ever evicted, or the first one later than the trigger says.
    pub fn first_eviction(&mut self, rules: &EvictionRules, has_trigger: bool) -> Result<()> {
        let (trigger, key) = (rules.trigger_min_tokens, name::kv_h2o_trigger_min_tokens);
        let protected = rules.sink_tokens.saturating_add(rules.recent_tokens);
        let never = rules.keeps_all() && rules.max_tokens.is_none();
        match rules.first_eviction() {
            _ if rules.first_layer >= rules.end_layer => Ok(()),
            None if !never => self.push(format_args!(
                "no token is ever evicted: the protected ones (sink, recent) are all that the ratio keeps"
            )),
            None => self.push(format_args!(
                "no token is ever evicted: {} must be {}, or kv_h2o_max_tokens above 0",
                if matches!(rules.ratio, Ratio::Keep(_)) {
                    name::kv_h2o_target_keep_ratio
                } else {
                    name::kv_h2o_target_lossy_ratio
                },
                if matches!(rules.ratio, Ratio::Keep(_)) { "below 1" } else { "above 1" }
            )),
            Some(_) if !has_trigger => Ok(()),
            // Whole blocks may delay it by up to a block.
            Some(first) if trigger < protected || first > trigger.saturating_add(rules.block_tokens) => {
                self.push(format_args!(
                    "{key} is {trigger} and the first eviction can come at {first} tokens: below, the protected ones \
                     (sink, recent) are all that the ratio keeps; {key} counts from {first} on"
                ))
            }
            Some(_) => Ok(()),
        }
    }

    /// Warns about each key with our prefixes that this version does not have, and about one that begins with "kv_" and is
    /// nearly one of ours; `place` goes before the key.
    pub fn unknown_keys(&mut self, given: &[&str], place: &str) -> Result<()> {
        for key in given.iter().filter(|key| !NAMES.contains(key) && !RETIRED.contains(key)) {
            let Some(rest) = key.strip_prefix("kv_") else { continue };
            // Without an underscore: "kv_memory" is a likely guess at the main key.
            let ours = ["kv_memory", H2O, LOSSLESS, QUANT].iter().any(|prefix| key.starts_with(prefix));
            // A short key of the host may be near by chance.
            let most = if ours { 3 } else { (rest.len() / 3).min(2) };
            match similar(key, most) {
                Some(name) => {
                    let key = Short(key);
                    self.push(format_args!("{place}{key} is not a key of this version; did you mean {name}?"))?;
                }
                None if ours => self.push(format_args!("{place}{} is not a key of this version", Short(key)))?,
                None => {}
            }
        }
        Ok(())
    }

    /// The texts; the last one has the number of those that were left out.
    pub fn into_texts(mut self) -> Result<Vec<String>> {
        if self.more > 0 {
            let text = memory::format(format_args!("and {} more", self.more))?;
            memory::push(&mut self.texts, text)?;
        }
        Ok(self.texts)
    }
}

/// The known key with the least edit distance to `key`; `None` beyond `most` edits.
fn similar(key: &str, most: usize) -> Option<&'static str> {
    // The difference in length is a lower bound of the distance, and makes long keys cheap.
    let near = NAMES.iter().filter(|name| name.len().abs_diff(key.len()) <= most);
    near.map(|name| (distance(key.as_bytes(), name.as_bytes()), *name))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// The longest key.
const LONGEST: usize = 63;
const _: () = {
    let mut at = 0;
    while at < NAMES.len() {
        assert!(NAMES[at].len() <= LONGEST);
        at += 1;
    }
};

/// The edit distance in bytes: insertions, deletions, replacements and swaps of neighbours (optimal string alignment). `b` must be
/// a known key.
fn distance(a: &[u8], b: &[u8]) -> usize {
    // row[j] is the distance between the read bytes of `a` and the first j bytes of `b`; the others are the two rows before.
    let mut row: [usize; LONGEST + 1] = std::array::from_fn(|j| j);
    let mut last = row;
    for (i, from) in a.iter().enumerate() {
        let second_last = std::mem::replace(&mut last, row);
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = last[j] + usize::from(from != to);
            row[j + 1] = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *from == b[j - 1] && a[i - 1] == *to {
                row[j + 1] = row[j + 1].min(second_last[j - 1] + 1);
            }
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_of_known_pairs() {
        for (a, b, edits) in [
            ("", "", 0),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
            ("flaw", "lawn", 2),
            ("a", "a", 0),
            ("qaunt", "quant", 1),
            ("ab", "ba", 1),
            ("ca", "abc", 3),
        ] {
            assert_eq!(distance(a.as_bytes(), b.as_bytes()), edits, "{a} {b}");
            assert_eq!(distance(b.as_bytes(), a.as_bytes()), edits, "{b} {a}");
        }
    }

    #[test]
    fn a_key_far_from_all_others_gets_no_hint() {
        assert_eq!(similar("kv_h2o_recnt_tokens", 3), Some("kv_h2o_recent_tokens"));
        assert_eq!(similar("kv_lossless_scpe", 3), Some("kv_lossless_scope"));
        assert_eq!(similar("kv_lossless_socpe", 1), Some("kv_lossless_scope"));
        assert_eq!(similar("kv_h2o_", 3), None);
        assert_eq!(similar(&"kv_h2o_enable".repeat(100_000), 3), None);
    }
}
