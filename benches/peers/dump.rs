//! K and V of dumps, one by one.

use mnnkv::dtype::Dtype;
use mnnkv_replay::dumps;
use std::path::Path;

/// One layer's K or V, `[head][token][dim]`.
pub struct Dump {
    /// The run: the folder below the root, or the name of the root.
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

/// Every layer below `root`, by folder, type, layer and kind. The peers have no BF16.
pub fn find(root: &Path, bundled: bool) -> Vec<Dump> {
    let dump = dumps::Dump::open(root).unwrap_or_else(|e| panic!("{e}"));
    let mut found = Vec::new();
    for (i, info) in dump.layers.iter().enumerate().filter(|(_, info)| info.dtype != Dtype::Bf16) {
        let layer = dump.load(i).unwrap_or_else(|e| panic!("{e}"));
        // A folder of several types is a run for each.
        let folder = info.run.strip_suffix(".f32").unwrap_or(&info.run);
        let last = folder.rsplit('/').next().unwrap_or_default();
        for (kind, words) in [("k", layer.key), ("v", layer.value)] {
            found.push(Dump {
                folder: folder.into(),
                layer: info.layer as usize,
                kind: kind.into(),
                tokens: info.tokens,
                dim: info.head_dim,
                dtype: info.dtype,
                rotary: bundled || last.starts_with("lm_"),
                words,
            });
        }
    }
    found
}
