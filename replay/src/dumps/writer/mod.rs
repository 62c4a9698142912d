//! Writes layers as dumps.
//!
//! The runs of a dump appear when all are complete, and replace no other without [`Options::overwrite`].

mod file;
mod flat;
mod folder;
mod safetensors;
mod stage;

use super::{Dump, Layer, LayerInfo};
use crate::error::{Error, Finding, Result};
use mnnkv::dtype::Dtype;
use mnnkv::dtype::convert::{self, Endian};
use mnnkv::json::Brief;
use stage::Stage;
use std::collections::BTreeMap;
use std::path::Path;

pub use folder::write as write_folder;

/// The format of a new dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The folders of the reference system.
    Folder,
    /// One safetensors file for each run.
    Safetensors,
    /// One file of words for each tensor, in a folder for each run.
    Flat,
}

/// The cut of a layer into entries. Only folders have entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// [`Split::Prompt`] where the layer knows its prompt, else [`Split::One`].
    Known,
    /// One prefill entry of so many tokens, then a decode entry for each token.
    Prompt(usize),
    /// One prefill entry.
    One,
}

/// Choices of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The format.
    pub format: Format,
    /// Entries of folders.
    pub split: Split,
    /// Whether a dump of the same name is replaced.
    pub overwrite: bool,
}

/// The result of a writer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Files.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Properties of the layers that the format cannot keep.
    pub findings: Vec<Finding>,
}

/// Writes the layers `indices` of a dump below the folder `root`, one layer in memory at a time. `done` is called with
/// the bytes of K and V of each layer.
pub fn write(
    dump: &Dump,
    indices: &[usize],
    root: &Path,
    options: &Options,
    done: &mut dyn FnMut(u64),
) -> Result<Written> {
    let absent = indices.iter().find(|index| dump.layers.get(**index).is_none());
    if let Some(index) = absent {
        return Err(Error::new("layer", format!("is {index}; the dump has {}", dump.layers.len())));
    }
    if options.format == Format::Folder {
        // Before the first file.
        indices.iter().try_for_each(|index| folder::prompt_tokens(&dump.layers[*index], options.split).map(drop))?;
    }
    let names = names(dump, indices, options.format)?;
    let stage = Stage::begin(root, names, &dump.source, options.overwrite)?;
    let (hidden, shown) = (stage.folder.display().to_string(), root.display().to_string());
    let place = |place: &str| place.replace(&hidden, &shown);
    let written = write_runs(dump, indices, &stage.folder, options, done);
    let mut written = written.map_err(|e| Error::new(place(&e.place), e.text))?;
    written.findings.iter_mut().for_each(|finding| finding.place = place(&finding.place));
    stage.finish()?;
    Ok(written)
}

/// The files or folders of the runs, of which no two may share one.
fn names(dump: &Dump, indices: &[usize], format: Format) -> Result<Vec<String>> {
    let mut names: BTreeMap<String, &str> = BTreeMap::new();
    for run in indices.iter().map(|index| dump.layers[*index].run.as_str()) {
        let name = file_name(run) + if format == Format::Safetensors { ".safetensors" } else { "" };
        let other = *names.entry(name.clone()).or_insert(run);
        if other != run {
            let text = format!("would be written to {name:?} as run {other:?} is; one of them expected");
            return Err(Error::new(format!("run {run:?}"), text));
        }
    }
    Ok(names.into_keys().collect())
}

fn write_runs(
    dump: &Dump,
    indices: &[usize],
    root: &Path,
    options: &Options,
    done: &mut dyn FnMut(u64),
) -> Result<Written> {
    let mut written = Written::default();
    for run in indices.chunk_by(|a, b| dump.layers[*a].run == dump.layers[*b].run) {
        let first = &dump.layers[run[0]];
        // Readers take 0 where a format has no first position, and no prompt where it has no length of one.
        let position = (first.begin > 0).then(|| format!("the first position {}", first.begin));
        let prompt =
            (first.prompt_tokens > 0).then(|| format!("the length of the prompt, {} tokens", first.prompt_tokens));
        let lost: Vec<String> = position.into_iter().chain(prompt).collect();
        if options.format != Format::Folder && !lost.is_empty() {
            let text = format!("the format does not keep {}", lost.join(" or "));
            written.findings.push(Finding::new("position", format!("run {:?}", first.run), text));
        }
        if let Some(scale) = first.attention_scale.filter(|_| options.format != Format::Folder) {
            let text = format!("the format does not keep attention_scale, which is {}", Brief(scale));
            written.findings.push(Finding::new("scale", format!("run {:?}", first.run), text));
        }
        if options.format == Format::Safetensors {
            safetensors::write(dump, run, root, &mut written, done)?;
            continue;
        }
        for index in run {
            let layer = dump.load(*index)?;
            match options.format {
                Format::Flat => flat::write(&layer, root, &mut written)?,
                _ => folder::write(&layer, root, options, &mut written)?,
            }
            done(2 * layer.info.key_bytes() as u64);
        }
    }
    Ok(written)
}

/// The name of a run as that of one file or folder below another.
fn file_name(run: &str) -> String {
    let plain = |c: char| if c.is_control() || r#"/\:*?"<>|"#.contains(c) { '_' } else { c };
    let name: String = run.chars().map(plain).collect();
    if name.is_empty() || name.starts_with('.') { format!("_{name}") } else { name }
}

/// Fails unless the words of a layer have the length that its shape says.
fn check(layer: &Layer) -> Result<()> {
    let info = &layer.info;
    let place = |name: &str| format!("run {:?}, layer {}: {name}", info.run, info.layer);
    if !info.dtype.is_float() {
        return Err(Error::new(place("dtype"), format!("is {}; F16, BF16 or F32 expected", info.dtype.name())));
    }
    if info.tokens == 0 || info.kv_heads == 0 || info.head_dim == 0 {
        return Err(Error::new(place("shape"), "has no element"));
    }
    let scores = |rows: usize, columns: usize| info.query_heads * rows * columns;
    let query =
        layer.query.as_ref().map(|q| ("query", q.values.len(), scores(q.rows, info.head_dim), q.first + q.rows));
    let attention =
        layer.attention.as_ref().map(|a| ("attention", a.values.len(), scores(a.rows, info.tokens), a.first + a.rows));
    let words = [("key", layer.key.len()), ("value", layer.value.len())];
    let words = words.map(|(name, len)| (name, len, info.key_bytes(), 0));
    for (name, given, expected, end) in words.into_iter().chain(query).chain(attention) {
        if given != expected || end > info.tokens {
            return Err(Error::new(place(name), format!("has {given} elements; {expected} expected for its shape")));
        }
    }
    Ok(())
}

/// Whether rows end with the layer. Formats without a place for the first row keep only such rows.
fn ends_with_layer(layer: &Layer, name: &str, first: usize, rows: usize, written: &mut Written) -> bool {
    let ends = rows > 0 && first + rows == layer.info.tokens;
    if rows > 0 && !ends {
        let text =
            format!("rows of tokens {first} to {} are left out; the format keeps the last tokens", first + rows - 1);
        let place = format!("run {:?}, layer {}", layer.info.run, layer.info.layer);
        written.findings.push(Finding::new(name, place, text));
    }
    ends
}

/// Values as words of the first type that keeps them bit for bit.
fn exact_words(values: &[f32], narrow: Dtype) -> (Dtype, Vec<u8>) {
    let as_words = |dtype: Dtype| {
        let mut words = vec![0; values.len() * dtype.bytes()];
        convert::narrow(dtype, Endian::Little, values, &mut words);
        words
    };
    if narrow != Dtype::F32 {
        let words = as_words(narrow);
        let mut back = vec![0.0; values.len()];
        convert::widen(narrow, Endian::Little, &words, &mut back);
        if values.iter().zip(&back).all(|(a, b)| a.to_bits() == b.to_bits()) {
            return (narrow, words);
        }
    }
    (Dtype::F32, as_words(Dtype::F32))
}
