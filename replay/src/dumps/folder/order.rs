//! Entries as the tokens of layers.

use super::Entry;
use crate::error::Finding;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// The key that tells runs apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RunKey<'a> {
    /// `run_id`
    Id(&'a str),
    /// The folder of a run whose metas have none.
    Folder(&'a Path),
}

impl fmt::Display for RunKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunKey::Id(id) => f.write_str(id),
            RunKey::Folder(folder) => folder.display().fmt(f),
        }
    }
}

/// Missing and repeated tokens between the entries of a layer: at most one finding of each kind for a layer and shape.
/// A layer may begin at any token.
pub fn gaps(entries: &[&Entry]) -> Vec<Finding> {
    let mut layers: BTreeMap<_, Vec<&Entry>> = BTreeMap::new();
    for entry in entries {
        layers.entry((entry.run(), entry.layer_id, entry.kv_heads, entry.head_dim)).or_default().push(entry);
    }
    let mut findings = Vec::new();
    for ((run, layer, ..), mut entries) in layers {
        entries.sort_by_key(|entry| entry.seq_start);
        let place = format!("run {run}, layer {layer}");
        let mut gaps = Breaks::new("gap", "missing before");
        let mut overlaps = Breaks::new("overlap", "repeated in");
        let mut end = None;
        for entry in entries {
            let begin = i128::from(entry.seq_start);
            let stop = begin + entry.seq_len as i128;
            let at = end.unwrap_or(begin);
            gaps.add(at, begin, entry);
            overlaps.add(begin, at.min(stop), entry);
            end = Some(at.max(stop));
        }
        findings.extend([gaps, overlaps].iter().filter_map(|breaks| breaks.finding(&place)));
    }
    findings
}

/// Breaks of one kind in a layer.
struct Breaks {
    kind: &'static str,
    verb: &'static str,
    count: u64,
    tokens: i128,
    first: String,
}

impl Breaks {
    fn new(kind: &'static str, verb: &'static str) -> Self {
        Breaks { kind, verb, count: 0, tokens: 0, first: String::new() }
    }

    fn add(&mut self, begin: i128, end: i128, entry: &Entry) {
        if begin >= end {
            return;
        }
        if self.count == 0 {
            self.first = format!("{begin} to {} {} {}", end - 1, self.verb, entry.meta.display());
        }
        self.count += 1;
        self.tokens += end - begin;
    }

    fn finding(&self, place: &str) -> Option<Finding> {
        let Breaks { kind, count, tokens, first, .. } = self;
        let text = format!("{tokens} tokens in {count} {kind}s; the first: tokens {first}");
        (*count > 0).then(|| Finding::new(kind, place, text))
    }
}
