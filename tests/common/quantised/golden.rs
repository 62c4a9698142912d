//! Caches before and after an eviction, from folders of a manifest and .bin files, which may be ZSTD frames.

use super::{Kind, MnnCache, Shape, Unit, from_floats, get, kinds};
use crate::common;
use std::fs;
use std::path::{Path, PathBuf};

/// A cache before and after an eviction.
pub struct Golden {
    pub name: String,
    pub before: MnnCache,
    pub after: MnnCache,
    /// The pairs (offset, length) that the eviction kept.
    pub pairs: Vec<(usize, usize)>,
    /// Whether sums were added in order, each operation rounded.
    pub generic: bool,
}

impl Golden {
    /// A case of the folder of goldens.
    pub fn load(folder: &Path) -> Self {
        let (before, generic) = state(&folder.join("before"));
        let (after, _) = state(&folder.join("after"));
        let pairs = pairs(&before, &after);
        Golden { name: folder.file_name().unwrap().to_str().unwrap().into(), before, after, pairs, generic }
    }

    /// How far sums that are added again may differ.
    pub fn tolerance(&self) -> f32 {
        if self.generic { 0.0 } else { 1e-5 }
    }
}

/// The goldens of the folder that MNNKV_QUANTISED names, or of testdata/mnn_quantised.
pub fn goldens() -> Vec<Golden> {
    let folder = std::env::var_os("MNNKV_QUANTISED").map_or(common::testdata("mnn_quantised"), PathBuf::from);
    let mut cases: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.retain(|path| path.is_dir());
    cases.sort();
    assert!(!cases.is_empty(), "{}", folder.display());
    cases.iter().map(|path| Golden::load(path)).collect()
}

fn state(folder: &Path) -> (MnnCache, bool) {
    let manifest: serde_json::Value = serde_json::from_slice(&fs::read(folder.join("manifest.json")).unwrap()).unwrap();
    let number = |key: &str| manifest[key].as_u64().unwrap_or_else(|| panic!("{}: {key}", folder.display())) as usize;
    let two = |key: &str| {
        let at = |i: usize| manifest[key][i].as_u64().unwrap_or_else(|| panic!("{}: {key}", folder.display())) as usize;
        (at(0), at(1))
    };
    let ((key, value), (h, l), (hp, lp)) = (kinds(number("mode")), two("unit"), two("pack"));
    let mut cache = MnnCache::new(Shape {
        key,
        value,
        unit: Unit { l, h },
        heads: number("heads"),
        dims: number("dim"),
        pack: (lp, hp),
        elem: number("bytes"),
        block: number("flash_block"),
        max: number("max_tokens"),
        gaps: (0, 0),
    });
    let s = cache.shape;
    assert_eq!(s.strides(), (number("key_head_stride"), number("value_head_stride")), "{}", folder.display());
    cache.n = number("tokens");
    let fill = |name: &str, buffer: &mut Vec<u8>, needed: bool| {
        let bytes = read(&folder.join(name));
        assert!(!needed || bytes.is_some(), "{}: no {name}", folder.display());
        if let Some(bytes) = bytes.filter(|_| needed) {
            assert_eq!(bytes.len(), buffer.len(), "{}: {name}", folder.display());
            *buffer = bytes;
        }
    };
    fill("key.bin", &mut cache.key, true);
    fill("value.bin", &mut cache.value, true);
    fill("key_sum.bin", &mut cache.key_sum, key == Kind::Int8);
    fill("value_sum.bin", &mut cache.value_sum, value == Kind::Int8);
    let mut centre = vec![0; s.heads * s.dims * s.elem];
    fill("key_max.bin", &mut centre, key == Kind::Int8);
    cache.key_max = from_floats(s.elem, &centre);
    (cache, manifest["arith"] == "generic")
}

/// The bytes of a file or of a ZSTD frame with ".zst" behind its name.
fn read(path: &Path) -> Option<Vec<u8>> {
    fs::read(path).ok().or_else(|| {
        let frame = fs::read(path.with_extension("bin.zst")).ok()?;
        let len = zstd_safe::get_frame_content_size(&frame).ok()??;
        let mut bytes = vec![0; len as usize];
        zstd_safe::decompress(&mut bytes[..], &frame).ok()?;
        Some(bytes)
    })
}

/// The kept tokens are those whose K is found again, in order.
fn pairs(before: &MnnCache, after: &MnnCache) -> Vec<(usize, usize)> {
    let key = |cache: &MnnCache, t: usize| get(&cache.key, &cache.shape.key_places(0, t));
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    let mut from = 0;
    for t in 0..after.n {
        let kept = key(after, t);
        from = (from..before.n).find(|from| key(before, *from) == kept).expect("a kept token");
        match pairs.last_mut() {
            Some((offset, len)) if *offset + *len == from => *len += 1,
            _ => pairs.push((from, 1)),
        }
        from += 1;
    }
    pairs
}
