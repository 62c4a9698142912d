//! Entries of the reference system's folders, joined to layers.
//!
//! The entries of a layer are taken in the order of their first tokens. Among entries with the same first token the longest
//! counts, then the first by path. An entry that begins before the end of its predecessor is left out, and everything
//! after a gap is, so that a layer is consecutive tokens.
//!
//! The field `dtype` is an addition to the reference's: it tells bfloat16 from f16.

use super::files::Tree;
use super::folder::{self, Entry, RunKey};
use super::{Found, Layer, LayerInfo, Source};
use crate::error::{Error, Finding, Result};
use mnnkv::dtype::Dtype;
use mnnkv_model::sizing::CacheElement;
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The entries of a layer, in the order of their tokens.
#[derive(Debug)]
pub(super) struct Parts(Vec<Part>);

/// An entry. Words are `[token][head][dim]`.
#[derive(Debug)]
struct Part {
    entry: Entry,
    dtype: Dtype,
}

/// The layers of all meta files.
pub(super) fn find(tree: &Tree, findings: &mut Vec<Finding>) -> Result<Vec<Found>> {
    let is_meta = |path: &&std::path::PathBuf| {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        name.starts_with(b"meta_") && name.ends_with(b".json")
    };
    let Some(first) = tree.files.iter().find(is_meta) else { return Ok(Vec::new()) };
    if tree.is_file {
        return Err(Error::new(first.display(), "is one entry of a dump; name the folder of the dump"));
    }
    let scan = folder::scan(tree.root())?;
    // The reader of other formats has listed the same folders.
    findings.extend(scan.findings.into_iter().filter(|finding| finding.reason != "unreadable_folder"));
    let mut layers: BTreeMap<(String, u32), Vec<Part>> = BTreeMap::new();
    for entry in scan.entries {
        let run = match entry.run() {
            RunKey::Id(id) => id.to_owned(),
            RunKey::Folder(_) => tree.run_of_meta(&entry.meta),
        };
        let left_out = |field: &str, text: String| Error::new(format!("{}: {field}", entry.meta.display()), text);
        let layer = u32::try_from(entry.layer_id)
            .map_err(|_| left_out("layer_id", format!("is {} or missing; a layer expected", entry.layer_id)));
        let start = u32::try_from(entry.seq_start)
            .map_err(|_| left_out("seq_start", format!("is {}; 0 to {} expected", entry.seq_start, u32::MAX)));
        match layer.and_then(|layer| start.map(|_| layer)) {
            Ok(layer) => match Part::new(entry) {
                Ok(part) => layers.entry((run, layer)).or_default().push(part),
                Err(e) => findings.push(e.finding("field")),
            },
            Err(e) => findings.push(e.finding("field")),
        }
    }
    Ok(layers.into_iter().map(|((run, layer), parts)| join(run, layer, parts, findings)).collect())
}

fn join(run: String, layer: u32, mut parts: Vec<Part>, findings: &mut Vec<Finding>) -> Found {
    // The shape of most entries, and of equally many the first.
    let mut shapes: BTreeMap<_, (usize, Reverse<usize>)> = BTreeMap::new();
    for (i, part) in parts.iter().enumerate() {
        shapes.entry(part.shape()).or_insert((0, Reverse(i))).0 += 1;
    }
    let shape = shapes.into_iter().max_by_key(|(_, count)| *count).map(|(shape, _)| shape);
    let (fitting, others) = parts.into_iter().partition(|part| Some(part.shape()) == shape);
    parts = fitting;
    tell(&others, "shape", "have another shape or type than the other entries of their layer", findings);

    parts.sort_by_key(|part| (part.entry.seq_start, Reverse(part.entry.seq_len)));
    let (mut kept, mut repeated, mut apart): (Vec<Part>, Vec<Part>, Vec<Part>) = Default::default();
    for part in parts {
        match kept.last().map_or(part.begin(), Part::end) {
            end if end == part.begin() => kept.push(part),
            end if end > part.begin() => repeated.push(part),
            _ => apart.push(part),
        }
    }
    tell(&repeated, "left_out", "begin before the end of an entry that is kept", findings);
    tell(&apart, "left_out", "follow missing tokens", findings);

    let (begin, end) = (kept[0].begin(), kept[kept.len() - 1].end());
    let place = kept[0].entry.meta.display().to_string();
    let first = &kept[0];
    let info = LayerInfo {
        run,
        layer,
        begin,
        tokens: end - begin,
        kv_heads: first.entry.kv_heads,
        head_dim: first.entry.head_dim,
        dtype: first.dtype,
    };
    Found { info, source: Source::Parts(Parts(kept)), place }
}

fn tell(parts: &[Part], reason: &str, what: &str, findings: &mut Vec<Finding>) {
    let [first, ..] = parts else { return };
    let text = format!("{} entries of the layer, this the first, {what}; they are left out", parts.len());
    findings.push(Finding::new(reason, first.entry.meta.display(), text));
}

impl Part {
    /// The entry with the type of its words; another one than `bytes_per_elem` tells is an error.
    fn new(entry: Entry) -> Result<Part> {
        let (usual, names) = match entry.bytes_per_elem {
            4 => (Dtype::F32, "fp32"),
            _ => (Dtype::F16, "fp16 or bf16"),
        };
        let fail = |text: String| Error::new(format!("{}: dtype", entry.meta.display()), text);
        let dtype = match entry.fields.get("dtype") {
            None => usual,
            Some(Value::String(name)) => {
                let dtype = CacheElement::from_name(name).and_then(|element| match element {
                    CacheElement::F16 => Some(Dtype::F16),
                    CacheElement::Bf16 => Some(Dtype::Bf16),
                    CacheElement::F32 => Some(Dtype::F32),
                    _ => None,
                });
                let bytes = entry.bytes_per_elem;
                dtype
                    .filter(|dtype| dtype.bytes() == bytes)
                    .ok_or_else(|| fail(format!("is {name:?} with {bytes} bytes per element; {names} expected")))?
            }
            Some(other) => return Err(fail(format!("is {other}; a string expected"))),
        };
        Ok(Part { entry, dtype })
    }

    fn shape(&self) -> (usize, usize, u32) {
        (self.entry.kv_heads, self.entry.head_dim, self.dtype.code())
    }

    fn begin(&self) -> usize {
        self.entry.seq_start as usize
    }

    fn end(&self) -> usize {
        self.begin().saturating_add(self.entry.seq_len)
    }
}

impl Parts {
    pub(super) fn load(&self, info: &LayerInfo) -> Result<Layer> {
        let row = info.head_dim * info.dtype.bytes();
        let (mut key, mut value) = (zeros(info.key_bytes())?, zeros(info.key_bytes())?);
        for part in &self.0 {
            let first = part.begin() - info.begin;
            scatter(&part.entry.load(&part.entry.key)?, info.kv_heads, row, &mut key, first);
            scatter(&part.entry.load(&part.entry.value)?, info.kv_heads, row, &mut value, first);
        }
        Ok(Layer { info: info.clone(), key, value })
    }
}

fn zeros(len: usize) -> Result<Vec<u8>> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(len).map_err(|_| Error::new("layer", format!("no memory for {len} bytes")))?;
    zeros.resize(len, 0);
    Ok(zeros)
}

/// Copies rows `[token][head]` to `[head][token]`, from the token `first` on.
fn scatter(from: &[u8], heads: usize, row: usize, to: &mut [u8], first: usize) {
    let head = to.len() / heads;
    for (i, from) in from.chunks_exact(row).enumerate() {
        let at = i % heads * head + (first + i / heads) * row;
        to[at..at + row].copy_from_slice(from);
    }
}
