//! Dumps of MNN's packed caches: `packed_meta_*.json` beside `packed_k_*.bin` and `packed_v_*.bin`, which hold the used
//! part of each head.

use super::fields::Fields;
use super::files::{Tree, Words};
use super::{Found, Layer, LayerInfo, Source};
use crate::error::{Error, Finding, Result};
use mnnkv::layout::{self, CacheRef, Int8Unit, Layout, Spec};
use std::collections::BTreeMap;
use std::path::Path;

/// A packed layer.
#[derive(Debug)]
pub(super) struct Packed {
    /// The layout of one head.
    layout: Layout,
    /// Bytes of a head in the files.
    head_bytes: (usize, usize),
    key: Words,
    value: Words,
}

/// Whether the name is that of a meta file.
pub(super) fn is_meant(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with("packed_meta_") && name.ends_with(".json"))
}

fn read(tree: &Tree, path: &Path) -> Result<Found> {
    let meta = Fields::read(path)?;
    let dtype = match meta.number("bytes_per_elem", 1)? {
        bytes @ (2 | 4) => meta.dtype_of(bytes as usize)?,
        other => return Err(meta.wrong("bytes_per_elem", format!("is {other}; 2 or 4 expected"))),
    };
    let (tokens, kv_heads) = (meta.number("used_seq_len", 1)?, meta.number("kv_heads", 1)?);
    let head_dim = meta.number("head_dim", 1)?;
    // Without flash attention V is one block, as long as the cache.
    let flash_block = match meta.number("flash_upper_kv", 0)? {
        0 => meta.number("max_seq_len", tokens)?,
        block => block,
    };
    let spec = Spec {
        key: dtype.into(),
        value: dtype.into(),
        kv_heads: 1,
        head_dim,
        l_pack: meta.number("pack_l", 1)?,
        h_pack: meta.number("pack_h", 1)?,
        int8: Int8Unit::default(),
        flash_block,
        max_tokens: tokens,
        key_head_stride: 0,
        value_head_stride: 0,
        key_token_stride: 0,
        value_token_stride: 0,
    };
    let layout = Layout::new(&spec).map_err(|e| Error::new(path.display(), e.message()))?;
    let used = |field: &str, needed: usize| {
        let given = meta.number(field, 0)? as usize;
        if given < needed {
            return Err(meta.wrong(field, format!("is {given}; at least {needed} expected for {tokens} tokens")));
        }
        Ok(given)
    };
    let head_bytes = (used("key_used_bytes", layout.key_bytes())?, used("value_used_bytes", layout.value_bytes())?);
    let words = |field: &str, bytes: usize| {
        let file = meta.file(field)?.ok_or_else(|| meta.wrong(field, "is missing"))?;
        Words::whole(&file, &[kv_heads as usize, bytes / dtype.bytes()], dtype)
    };
    let packed =
        Packed { key: words("k_file", head_bytes.0)?, value: words("v_file", head_bytes.1)?, layout, head_bytes };
    let tokens = tokens as usize;
    // A number could join unrelated folders.
    let run = meta.text("run_id").unwrap_or_default();
    let info = LayerInfo {
        run: run.filter(|id| !id.is_empty()).map_or_else(|| tree.run_of_meta(path), str::to_owned),
        layer: meta.number("layer_id", 0)?,
        begin: 0,
        tokens,
        prompt_tokens: if meta.text("stage")? == Some("prefill") { tokens } else { 0 },
        kv_heads: kv_heads as usize,
        head_dim: head_dim as usize,
        dtype,
        query_heads: 0,
        attention_scale: None,
    };
    Ok(Found { info, source: Source::Packed(Box::new(packed)), place: path.display().to_string() })
}

/// The layers of all meta files. Each step dumps the whole cache, so the longest dump of a layer has all others in it.
pub(super) fn find(tree: &Tree, findings: &mut Vec<Finding>) -> Vec<Found> {
    let mut layers: BTreeMap<(String, u32), Vec<Found>> = BTreeMap::new();
    for path in tree.files.iter().filter(|path| is_meant(path)) {
        match read(tree, path) {
            Ok(found) => layers.entry((found.info.run.clone(), found.info.layer)).or_default().push(found),
            Err(e) => findings.push(e.finding("packed")),
        }
    }
    let longest = |mut dumps: Vec<Found>| {
        dumps.sort_by_key(|found| found.info.tokens);
        let prompt = dumps[0].info.prompt_tokens;
        let mut last = dumps.pop()?;
        last.info.prompt_tokens = prompt;
        if let [first, ..] = &dumps[..] {
            let text = format!("{} shorter dumps of the same cache are left out, such as {}", dumps.len(), first.place);
            findings.push(Finding::new("superseded", &last.place, text));
        }
        Some(last)
    };
    layers.into_values().filter_map(longest).collect()
}

impl Packed {
    pub(super) fn load(&self, info: &LayerInfo) -> Result<Layer> {
        let head = info.tokens * info.head_dim * info.dtype.bytes();
        let (mut key, mut value) = (vec![0; info.kv_heads * head], vec![0; info.kv_heads * head]);
        let place = |e: mnnkv::status::Error| Error::new(self.key.path.display(), e.message());
        let range = self.layout.tail(0).map_err(place)?;
        for (i, (key, value)) in key.chunks_exact_mut(head).zip(value.chunks_exact_mut(head)).enumerate() {
            let packed_key = self.key.read_part(i * self.head_bytes.0, self.layout.key_bytes())?;
            let packed_value = self.value.read_part(i * self.head_bytes.1, self.layout.value_bytes())?;
            CacheRef::new(&self.layout, &packed_key, &packed_value)
                .and_then(|cache| layout::gather(&cache, range, key, value))
                .map_err(place)?;
        }
        Ok(Layer { info: info.clone(), key, value, query: None, attention: None })
    }
}
