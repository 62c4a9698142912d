//! The dump folders of the reference system: `<root>/<run_id>/layer_<n>/meta_*.json` beside K and V as raw words.
//!
//! A folder has one entry for each forward pass and layer. [`scan`] reads the metas, [`Entry::load`] the words,
//! `[token][kv_head][dim]`.

mod meta;
mod order;
mod walk;

pub use order::{RunKey, gaps};

use crate::error::{Error, Finding, Result};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

pub(crate) use meta::{Rules, Verdict};

/// The entries of a folder, in the order of their paths by component.
#[derive(Clone, Debug)]
pub struct Scan {
    /// Metas found.
    pub scanned: u64,
    /// Entries whose files have the size that their meta says.
    pub entries: Vec<Entry>,
    /// Skipped metas by reason.
    pub skips: BTreeMap<String, u64>,
    /// One for each skipped meta, and for gaps and overlaps in the tokens of a layer.
    pub findings: Vec<Finding>,
}

/// K and V of consecutive tokens of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The path of the meta.
    pub meta: PathBuf,
    /// `run_id`, where the meta has one that is a string and not empty.
    pub run_id: Option<String>,
    /// The folder of the run below the root: that of the meta, without a last component `layer_*`.
    pub folder: PathBuf,
    /// `layer_id`; -1 where the meta has none.
    pub layer_id: i64,
    /// Position of the first token.
    pub seq_start: i64,
    /// Tokens, at least 1.
    pub seq_len: usize,
    /// KV heads, at least 1.
    pub kv_heads: usize,
    /// Dims of a head, at least 1.
    pub head_dim: usize,
    /// 2: f16, 4: f32.
    pub bytes_per_elem: usize,
    /// `prefill`, `decode`, or another word.
    pub stage: String,
    /// The file of K.
    pub key: Binary,
    /// The file of V.
    pub value: Binary,
    /// All fields of the meta, for those that the reference does not have.
    pub fields: serde_json::Map<String, serde_json::Value>,
}

/// A file of words.
#[derive(Clone, Debug, PartialEq)]
pub struct Binary {
    /// Its path.
    pub path: PathBuf,
    /// Its bytes when it was found.
    pub bytes: u64,
}

impl Entry {
    /// Bytes that K, and also V, must have. `None`: more than this machine can address.
    pub fn tensor_bytes(&self) -> Option<usize> {
        let words = self.seq_len.checked_mul(self.kv_heads)?.checked_mul(self.head_dim)?;
        words.checked_mul(self.bytes_per_elem).filter(|n| isize::try_from(*n).is_ok())
    }

    /// A finding if K or V has another size than the meta says.
    pub fn wrong_size(&self) -> Option<Finding> {
        let wanted = self.tensor_bytes();
        let wrong = [&self.key, &self.value].into_iter().find(|file| wanted.map(|n| n as u64) != Some(file.bytes))?;
        let text = format!(
            "{} bytes; {} tokens of {} heads of {} dims of {} bytes expected, as {} says",
            wrong.bytes,
            self.seq_len,
            self.kv_heads,
            self.head_dim,
            self.bytes_per_elem,
            self.meta.file_name().unwrap_or_default().display(),
        );
        Some(Finding::new("wrong_size", wrong.path.display(), text))
    }

    /// The words of `file`, which is `self.key` or `self.value`, as they are on disk.
    pub fn load(&self, file: &Binary) -> Result<Vec<u8>> {
        let failed = |text: &dyn std::fmt::Display| Error::new(file.path.display(), text);
        if let Some(finding) = self.wrong_size() {
            return Err(Error::new(finding.place, finding.text));
        }
        let wanted = self.tensor_bytes().unwrap_or_default();
        let mut words = Vec::new();
        words.try_reserve_exact(wanted).map_err(|_| failed(&format!("no memory for {wanted} bytes")))?;
        let opened = File::open(&file.path).map_err(|e| failed(&e))?;
        opened.take(wanted as u64).read_to_end(&mut words).map_err(|e| failed(&e))?;
        if words.len() != wanted {
            return Err(failed(&format!("{} bytes; it had {wanted} when the folder was scanned", words.len())));
        }
        Ok(words)
    }

    /// The run of this entry: its `run_id`, else its folder.
    pub fn run(&self) -> RunKey<'_> {
        match &self.run_id {
            Some(id) => RunKey::Id(id),
            None => RunKey::Folder(&self.folder),
        }
    }
}

/// Rounds f32 words to f16, to nearest even. Also returns how many finite words became infinite.
pub fn f32_to_f16(words: &[u8]) -> (Vec<u8>, u64) {
    let mut overflows = 0;
    let mut rounded = Vec::with_capacity(words.len() / 2);
    for word in words.chunks_exact(4) {
        let wide = f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        let narrow = half::f16::from_f32(wide);
        overflows += u64::from(wide.is_finite() && narrow.is_infinite());
        rounded.extend(narrow.to_bits().to_le_bytes());
    }
    (rounded, overflows)
}

/// Reads every `meta_*.json` below `root`. Symbolic links to folders are not followed, hidden names are left out: an
/// unfinished dump has one.
pub fn scan(root: &Path) -> Result<Scan> {
    let (mut metas, mut findings) = walk::metas(root)?;
    let below = |path: &Path| path.strip_prefix(root).map(Path::to_owned).unwrap_or_default();
    metas.retain(|meta| !below(meta).iter().any(|name| name.as_encoded_bytes().starts_with(b".")));
    let mut scan = Scan { scanned: metas.len() as u64, entries: Vec::new(), skips: BTreeMap::new(), findings: vec![] };
    for verdict in examine(root, &metas, &Rules::default()) {
        let mut verdict = verdict.map_err(|text| Error::new(root.display(), text))?;
        if let Verdict::Kept(entry) = &verdict
            && let Some(finding) = entry.wrong_size()
        {
            verdict = Verdict::Skipped(finding.reason.clone(), finding);
        }
        match verdict {
            Verdict::Kept(entry) => scan.entries.push(*entry),
            Verdict::Filtered => {}
            Verdict::Skipped(reason, finding) => {
                *scan.skips.entry(reason).or_default() += 1;
                findings.push(finding);
            }
        }
    }
    findings.extend(gaps(&scan.entries.iter().collect::<Vec<_>>()));
    scan.findings = findings;
    Ok(scan)
}

/// The metas below `root`, in the order of their paths by component, and the folders that cannot be read.
pub(crate) fn find(root: &Path) -> Result<(Vec<PathBuf>, Vec<Finding>)> {
    walk::metas(root)
}

/// Judges each meta, in order.
pub(crate) fn examine(root: &Path, metas: &[PathBuf], rules: &Rules) -> Vec<std::result::Result<Verdict, String>> {
    let home = meta::Home::new(root);
    metas.par_iter().map(|path| meta::examine(&home, path, rules)).collect()
}
