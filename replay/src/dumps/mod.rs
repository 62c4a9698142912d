//! Dumps: the words of KV caches in files.
//!
//! | room | format |
//! |---|---|
//! | [`folder`], `parts` | folders of the reference system: meta files and raw words, an entry for each step |
//! | `flat`, `npy`, `safetensors` | a tensor for K and V each; `names` reads the names, `tensors` joins them |
//!
//! Each format yields layers without words ([`LayerInfo`]) and findings. [`Dump::load`] reads the words of one layer.
//! A length from a file allocates nothing before the file has that length.

mod files;
mod flat;
pub mod folder;
mod names;
mod npy;
mod parts;
mod safetensors;
mod tensors;

pub(crate) use files::{read_small, read_text};

use crate::error::{Error, Finding, Result};
use mnnkv::dtype::Dtype;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The facts of a layer that are known before its words are read.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerInfo {
    /// The chat that the layer is of; layers of one run belong to the same tokens.
    pub run: String,
    /// The layer's number in its model.
    pub layer: u32,
    /// Position of the first token.
    pub begin: usize,
    /// Tokens.
    pub tokens: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Dims of a head.
    pub head_dim: usize,
    /// The type of K and V.
    pub dtype: Dtype,
}

/// A layer of a dump.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Shape and place.
    pub info: LayerInfo,
    /// `[kv_head][token][dim]`, little-endian words.
    pub key: Vec<u8>,
    /// `[kv_head][token][dim]`, little-endian words.
    pub value: Vec<u8>,
}

/// A dump on disk.
#[derive(Debug)]
pub struct Dump {
    /// By run, then by layer.
    pub layers: Vec<LayerInfo>,
    /// Skipped entries, gaps, overlaps.
    pub findings: Vec<Finding>,
    /// Where the words of each layer are.
    sources: Vec<Source>,
}

/// Where the words of a layer are.
#[derive(Debug)]
enum Source {
    Parts(parts::Parts),
    Whole(tensors::Whole),
}

/// A layer that a format found.
struct Found {
    info: LayerInfo,
    source: Source,
    /// A file of the layer.
    place: String,
}

impl Dump {
    /// Reads names and headers of the files below `path`, a folder, or of one file. Every format is recognised by itself.
    ///
    /// A bad file, tensor or entry is a finding. A dump without a whole layer is an error at the place of the first finding.
    pub fn open(path: &Path) -> Result<Dump> {
        let mut findings = Vec::new();
        let tree = files::Tree::list(path, &mut findings)?;
        let mut found = parts::find(&tree, &mut findings)?;
        let mut tensors = Vec::new();
        for file in &tree.files {
            let extension = file.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
            let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            let read = match extension {
                "npy" | "f16" | "bf16" | "f32" if names::is_score(stem) => continue,
                "npy" => npy::read(&tree, file).map(|tensor| vec![tensor]),
                "safetensors" => safetensors::read(&tree, file, &mut findings),
                _ if flat::is_meant(file) => flat::read(&tree, file).map(|tensor| vec![tensor]),
                _ => continue,
            };
            match read {
                Ok(read) => tensors.extend(read),
                Err(e) => findings.push(e.finding("file")),
            }
        }
        found.extend(tensors::join(tensors, &mut findings));
        let found = settle(found, &mut findings);
        if found.is_empty() {
            return Err(match &findings[..] {
                [] => Error::new(
                    path.display(),
                    "has no KV dump: no meta_*.json, .npy, .safetensors, .f16, .bf16 or .f32",
                ),
                [only] => only.error(),
                [first, rest @ ..] => {
                    const MOST: usize = 8;
                    let others = rest.iter().take(MOST).map(|finding| format!("; {}: {}", finding.place, finding.text));
                    let more = rest.len().saturating_sub(MOST);
                    let end = if more > 0 { format!("; and {more} more findings") } else { String::new() };
                    Error::new(
                        &first.place,
                        format!("{}{}{end}; no layer is left", first.text, others.collect::<String>()),
                    )
                }
            });
        }
        let (layers, sources) = found.into_iter().map(|found| (found.info, found.source)).unzip();
        Ok(Dump { layers, findings, sources })
    }

    /// Drops the layers for which `keep` is false.
    pub fn retain(&mut self, keep: impl Fn(&LayerInfo) -> bool) {
        let (layers, sources) = (std::mem::take(&mut self.layers), std::mem::take(&mut self.sources));
        (self.layers, self.sources) = layers.into_iter().zip(sources).filter(|(info, _)| keep(info)).unzip();
    }

    /// Reads the words of `layers[index]`.
    pub fn load(&self, index: usize) -> Result<Layer> {
        let (Some(info), Some(source)) = (self.layers.get(index), self.sources.get(index)) else {
            return Err(Error::new("layer", format!("is {index}; the dump has {}", self.sources.len())));
        };
        match source {
            Source::Parts(parts) => parts.load(info),
            Source::Whole(whole) => whole.load(info),
        }
    }
}

impl LayerInfo {
    /// Bytes of K, which are those of V.
    pub fn key_bytes(&self) -> usize {
        self.kv_heads * self.tokens * self.head_dim * self.dtype.bytes()
    }
}

/// Sorts layers, and keeps one of each run, layer and type. Layers of a second type become a run of their own.
fn settle(mut found: Vec<Found>, findings: &mut Vec<Finding>) -> Vec<Found> {
    let mut counts: BTreeMap<String, [usize; Dtype::ALL.len()]> = BTreeMap::new();
    let slot = |found: &Found| Dtype::ALL.iter().position(|dtype| *dtype == found.info.dtype).unwrap_or_default();
    for found in &found {
        counts.entry(found.info.run.clone()).or_default()[slot(found)] += 1;
    }
    let mut told = BTreeSet::new();
    for found in &mut found {
        let counts = &counts[&found.info.run];
        // With equal counts the first type is the main one.
        let main = (0..counts.len()).rev().max_by_key(|slot| counts[*slot]).unwrap_or_default();
        if slot(found) != main {
            let dtype = found.info.dtype.name();
            let run = format!("{}.{}", found.info.run, dtype.to_lowercase());
            if told.insert(run.clone()) {
                let text =
                    format!("run {:?} has layers of two types; those of {dtype} are run {run:?}", found.info.run);
                findings.push(Finding::new("types", &found.place, text));
            }
            found.info.run = run;
        }
    }
    // Among equal layers the longest is the first. The sort is stable: else the order of the formats stays.
    found.sort_by(|a, b| {
        let key = |found: &Found| (found.info.run.clone(), found.info.layer, usize::MAX - found.info.tokens);
        key(a).cmp(&key(b))
    });
    let mut kept: Vec<Found> = Vec::new();
    for found in found {
        match kept.last() {
            Some(last) if (&last.info.run, last.info.layer) == (&found.info.run, found.info.layer) => {
                let text = format!("is left out: {} has the same layer", last.place);
                findings.push(Finding::new("duplicate", &found.place, text));
            }
            _ => kept.push(found),
        }
    }
    kept
}
