//! Reads files of results and configs. Their content is not trusted.

use mnnkv::json::without_mark;
use serde::{Deserialize, Deserializer};
use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Bytes of a file of results, at most.
pub const MOST_RESULTS: u64 = 256 << 20;

/// A path without `./` before it.
pub fn name(path: &Path) -> String {
    path.strip_prefix(".").unwrap_or(path).display().to_string()
}

/// The text of a regular file, at most `most` bytes, without a byte order mark.
pub fn bytes(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    let name = name(path);
    let cannot_open = |e: std::io::Error| format!("cannot open {name}: {e}");
    // A device or a pipe has no end.
    if !path.metadata().map_err(cannot_open)?.is_file() {
        return Err(format!("{name} is no regular file; one expected"));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(cannot_open)?;
    file.take(most + 1).read_to_end(&mut bytes).map_err(|e| format!("cannot read {name}: {e}"))?;
    let mark = bytes.len() - without_mark(&bytes).len();
    if bytes.len() as u64 > most {
        return Err(format!("{name} has more than {most} bytes; at most that many expected"));
    }
    bytes.drain(..mark);
    Ok(bytes)
}

/// The text of a file of results.
pub fn text(path: &Path) -> Result<String, String> {
    let bytes = bytes(path, MOST_RESULTS)?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
}

/// Reads a value of JSON. The error names its field.
pub fn typed<'de, T: Deserialize<'de>>(json: impl Deserializer<'de, Error = serde_json::Error>) -> Result<T, String> {
    serde_path_to_error::deserialize(json).map_err(|e| {
        let place = e.path().to_string();
        let place = if place == "." { String::new() } else { format!("{}: ", short(place)) };
        format!("{place}{}", short(e.into_inner()))
    })
}

/// At most 200 characters of what a file has.
pub fn short(shown: impl Display) -> String {
    let mut text = shown.to_string();
    if let Some((end, _)) = text.char_indices().nth(200) {
        text.truncate(end);
        text += "...";
    }
    text
}
