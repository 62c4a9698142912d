//! Files of KV words below a folder, described by their names.

use mnnkv::dtype::Dtype;
use std::path::Path;

/// One layer's K or V, `[head][token][dim]`.
pub struct Dump {
    /// Below the root; the root's own name for files right in it.
    pub folder: String,
    pub layer: usize,
    /// `k` or `v`.
    pub kind: String,
    pub tokens: usize,
    pub dim: usize,
    pub dtype: Dtype,
    /// Keys are rotated: RoPE, theta 10,000, halves paired, positions from 0.
    pub rotary: bool,
    pub words: Vec<u8>,
}

impl Dump {
    /// `None` for files with other names.
    fn parse(folder: &str, rotary: bool, path: &Path) -> Option<Dump> {
        let (stem, extension) = path.file_name()?.to_str()?.split_once('.')?;
        let dtype = match extension {
            "f16" => Dtype::F16,
            "f32" => Dtype::F32,
            _ => return None,
        };
        let parts: Vec<&str> = stem.split('_').collect();
        let [layer, kind @ ("k" | "v"), heads, tokens, dim] = parts[..] else { return None };
        let number = |part: &str, name: char| part.strip_prefix(name)?.parse::<usize>().ok();
        let (layer, heads) = (number(layer, 'l')?, number(heads, 'h')?);
        let (tokens, dim) = (number(tokens, 't')?, number(dim, 'd')?);
        let words = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!(
            words.len(),
            heads * tokens * dim * dtype.bytes(),
            "the length of {} is that of its name",
            path.display()
        );
        Some(Dump { folder: folder.into(), layer, kind: kind.into(), tokens, dim, dtype, rotary, words })
    }

    /// Such as `l0 K`.
    pub fn short_name(&self) -> String {
        format!("l{} {}", self.layer, self.kind.to_uppercase())
    }

    /// Such as `lm_a l0 K f32`.
    pub fn name(&self) -> String {
        format!("{} {} {}", self.folder, self.short_name(), self.dtype.name().to_lowercase())
    }

    pub fn row_bytes(&self) -> usize {
        self.dim * self.dtype.bytes()
    }

    /// Rows without those that equal an earlier one of their head, bit for bit.
    pub fn unique_rows(&self) -> Vec<u8> {
        let mut unique = Vec::new();
        for head in self.words.chunks_exact(self.tokens * self.row_bytes()) {
            let mut seen = std::collections::HashSet::new();
            unique.extend(head.chunks_exact(self.row_bytes()).filter(|row| seen.insert(*row)).flatten());
        }
        unique
    }
}

/// Every dump below `root`, by folder, type, layer and kind.
pub fn find(root: &Path, bundled: bool) -> Vec<Dump> {
    let mut dumps = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let below = folder.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        let last = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let rotary = bundled || last.starts_with("lm_");
        let name = if below.is_empty() { last } else { below };
        let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else {
                dumps.extend(Dump::parse(&name, rotary, &path));
            }
        }
    }
    dumps.sort_by_cached_key(|d| (d.folder.clone(), d.dtype as u32, d.layer, d.kind.clone()));
    dumps
}
