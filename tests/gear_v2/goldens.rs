//! Blobs of `testdata/gear_v2`, which every later version must decode.

use super::damage::refused;
use super::samples::Sample;
use super::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;

struct Golden {
    name: String,
    dtype: Dtype,
    head_dim: usize,
    parts: BTreeSet<String>,
    words: Vec<u8>,
    blob: Vec<u8>,
}

fn goldens() -> Vec<Golden> {
    let manifest: Value = serde_json::from_slice(&common::read("gear_v2/manifest.json")).unwrap();
    let golden = |entry: &Value| {
        let name = entry["name"].as_str().unwrap().to_owned();
        let words = common::read(&format!("gear_v2/{name}.bin"));
        let blob = common::read(&format!("gear_v2/{name}.mnkv"));
        let sizes = [entry["bytes"].as_u64().unwrap(), entry["blob_bytes"].as_u64().unwrap()];
        assert_eq!(sizes, [words.len() as u64, blob.len() as u64], "{name}");
        Golden {
            dtype: Dtype::ALL.into_iter().find(|dtype| entry["dtype"] == dtype.name()).unwrap(),
            head_dim: entry["head_dim"].as_u64().unwrap() as usize,
            parts: entry["parts"].as_array().unwrap().iter().map(|part| part.as_str().unwrap().to_owned()).collect(),
            name,
            words,
            blob,
        }
    };
    manifest.as_array().unwrap().iter().map(golden).collect()
}

#[test]
fn every_golden_blob_is_read_by_both_readers() {
    let mut parts = BTreeSet::new();
    for g in goldens() {
        check(&g.blob, &g.words, g.dtype, &g.name);
        let read = v2_reader::read(&g.blob);
        // Without a head_dim, or with fewer words than one row, rows have one element.
        let row_len = if g.head_dim > g.words.len() / g.dtype.bytes() { 1 } else { g.head_dim.max(1) };
        assert_eq!(read.head_dim, row_len, "{}", g.name);
        assert_eq!(read.seen, g.parts, "{}", g.name);
        parts.extend(g.parts);
    }
    assert!(parts.iter().eq(v2_reader::PARTS), "the goldens use every part of the format, not only {parts:?}");
}

#[test]
fn golden_words_are_encoded_without_growth() {
    // Bytes may differ; growth above a tenth is a regression, beside up to 64 bytes: ZSTD stores what is shorter.
    let samples = samples();
    let mut compared = 0;
    for g in goldens() {
        if let Some(s) = samples.iter().find(|s| s.name == g.name && s.words == g.words) {
            let len = s.encode().len();
            assert!(len <= g.blob.len() * 11 / 10 + 64, "{}: {len} bytes, {} in the golden", g.name, g.blob.len());
            compared += 1;
        }
    }
    // Rotated keys depend on the libm of the machine.
    assert!(compared > 20, "{compared} samples are unchanged; more than 20 expected");
}

#[test]
fn every_flipped_byte_of_a_golden_blob_is_an_error() {
    for g in goldens() {
        for at in 0..g.blob.len() {
            let mut blob = g.blob.clone();
            blob[at] ^= 0x10;
            let status = refused(&blob, g.dtype, g.words.len());
            assert!(matches!(status, Status::Corrupt | Status::Unsupported), "{} byte {at}: {status:?}", g.name);
        }
    }
}

/// Writes missing goldens, and never replaces one:
/// `cargo test --test gear_v2 -- --ignored write_missing_goldens`.
#[test]
#[ignore]
fn write_missing_goldens() {
    let folder = common::testdata("gear_v2");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("manifest.json");
    let manifest = fs::read(&path).map_or(json!([]), |text| serde_json::from_slice(&text).unwrap());
    let mut entries = manifest.as_array().unwrap().clone();
    for s in samples() {
        if entries.iter().any(|entry| entry["name"] == s.name) {
            continue;
        }
        let blob = s.encode();
        for (ending, bytes) in [("bin", &s.words), ("mnkv", &blob)] {
            let file = fs::File::create_new(folder.join(format!("{}.{ending}", s.name)));
            file.expect("an existing golden is not replaced").write_all(bytes).unwrap();
        }
        entries.push(entry(&s, &blob));
    }
    let lines: Vec<String> = entries.iter().map(|entry| format!("  {entry}")).collect();
    fs::write(path, format!("[\n{}\n]\n", lines.join(",\n"))).unwrap();
}

fn entry(s: &Sample, blob: &[u8]) -> Value {
    let read = v2_reader::read(blob);
    assert!(read.words == s.words, "{}", s.name);
    json!({
        "name": s.name,
        "purpose": s.purpose,
        "dtype": s.dtype.name(),
        "head_dim": s.head_dim,
        "bytes": s.words.len(),
        "blob_bytes": blob.len(),
        "parts": read.seen,
    })
}
