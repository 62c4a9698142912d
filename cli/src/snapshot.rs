//! Snapshot files, for `mnnkv inspect` and `mnnkv check`.

use crate::bytes;
use crate::failure::Failure;
use crate::output::{Output, visible};
use crate::table;
use mnnkv::snapshot::{Access, LayerEntry, Snapshot, Storage};
use mnnkv_model::file::{ModelFile, Source};
use serde_json::{Value, json};
use std::path::Path;

/// The first bytes of a snapshot.
pub const MAGIC: &[u8; 8] = b"MNKVSNAP";

/// Whether the file begins as a snapshot.
pub fn is_one(path: &Path) -> bool {
    let mut start = [0; MAGIC.len()];
    // Opens regular files alone: a pipe would block until its other end opens.
    ModelFile::open(path).and_then(|file| file.read_at(0, &mut start)).is_ok() && start == *MAGIC
}

/// Opens a file as far as it is whole.
fn open(path: &Path) -> Result<Snapshot, Failure> {
    Ok(Snapshot::open(Storage::open(path)?, None, Access::Salvage)?)
}

fn dtype(code: u8) -> &'static str {
    ["F16", "BF16", "F32", "INT8", "TQ3", "TQ4"].get(usize::from(code) - 1).copied().unwrap_or("of an unknown type")
}

/// The fingerprint as text, if it is some, or else in hexadecimal digits.
fn fingerprint(snapshot: &Snapshot) -> String {
    let bytes = snapshot.fingerprint();
    match str::from_utf8(bytes) {
        Ok("") => "none".to_owned(),
        Ok(text) if !text.contains(char::is_control) => format!("{text:?}"),
        _ => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

pub fn inspect(path: &Path) -> Result<Output, Failure> {
    let snapshot = open(path)?;
    let usage = snapshot.usage()?;
    let mut text =
        format!("{}: snapshot, state {}, {}\n", path.display(), snapshot.version(), bytes::format(usage.file));
    let facts = [
        ("fingerprint", fingerprint(&snapshot)),
        ("tokens", format!("{} in {} pieces", bytes::format(usage.pieces), snapshot.pieces().len())),
        ("sections", format!("{}, with the states of layers", bytes::format(usage.values))),
        ("dead", format!("{} of earlier states and commit records", bytes::format(usage.dead))),
    ];
    text += &table::lines(facts.map(|(name, fact)| vec![name.to_owned(), visible(&fact)]));
    if snapshot.layers().next().is_some() {
        text += "\nLayers\n";
        let row = |(layer, entry): (u32, &LayerEntry)| {
            let geometry = entry.geometry;
            vec![
                layer.to_string(),
                format!("{} tokens in {} runs", bytes::count(entry.tokens().into()), entry.runs.len()),
                format!("{} x {}", geometry.heads, geometry.head_dim),
                format!("K {}, V {}", dtype(geometry.key), dtype(geometry.value)),
                format!("state of {}", bytes::format(entry.state_len())),
            ]
        };
        text += &table::lines(snapshot.layers().map(row));
    }
    let len = |name: &str| snapshot.section_len(name).unwrap_or_default();
    if snapshot.names().next().is_some() {
        text += "\nSections\n";
        let row = |name| vec![visible(name), bytes::format(len(name))];
        text += &table::lines(snapshot.names().map(row));
    }
    let damage: Vec<&str> = snapshot.damage().iter().map(|error| error.message()).collect();
    text += &damage.iter().map(|line| format!("damage: {line}\n")).collect::<String>();
    let layer = |(layer, entry): (u32, &LayerEntry)| {
        let geometry = entry.geometry;
        json!({
            "layer": layer,
            "tokens": entry.tokens(),
            "runs": entry.runs.len(),
            "kv_heads": geometry.heads,
            "head_dim": geometry.head_dim,
            "key_dtype": dtype(geometry.key),
            "value_dtype": dtype(geometry.value),
            "state_bytes": entry.state_len(),
        })
    };
    let object = json!({
        "kind": "snapshot",
        "version": snapshot.version(),
        "fingerprint": fingerprint(&snapshot),
        "bytes": usage.file,
        "token_bytes": usage.pieces,
        "section_bytes": usage.values,
        "dead_bytes": usage.dead,
        "pieces": snapshot.pieces().len(),
        "layers": snapshot.layers().map(layer).collect::<Vec<Value>>(),
        "sections": snapshot.names().map(|name| json!({ "name": name, "bytes": len(name) })).collect::<Vec<Value>>(),
        "damage": damage,
    });
    Ok(Output::new(text, object))
}

/// Compares all bytes with their checksums.
pub fn check(path: &Path) -> Result<Output, Failure> {
    // Salvage is content with less than a host that opens the file.
    let opened = Snapshot::open(Storage::open(path)?, None, Access::ReadOnly).map(drop);
    let snapshot = open(path)?;
    let mut findings: Vec<String> = snapshot.damage().iter().map(|error| error.message().to_owned()).collect();
    if let Err(error) = opened
        && !findings.iter().any(|finding| finding == error.message())
    {
        findings.push(error.message().to_owned());
    }
    let read = snapshot.verify(|damage| {
        findings.push(damage.message().to_owned());
        Ok(())
    })?;
    let mut text: String = findings.iter().map(|line| format!("error: {}\n", visible(line))).collect();
    text += &format!(
        "{}: state {}, {} compared, {} damaged\n",
        path.display(),
        snapshot.version(),
        bytes::format(read),
        match findings.len() {
            0 => "nothing".to_owned(),
            n => bytes::plural(n as u64, "part"),
        }
    );
    let object = json!({
        "file": path.display().to_string(),
        "version": snapshot.version(),
        "bytes": read,
        "errors": findings.len(),
        "findings": findings,
    });
    Ok(Output { text, json: object, clean: findings.is_empty() })
}
