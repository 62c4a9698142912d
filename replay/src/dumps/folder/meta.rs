//! Judges one meta.

use super::{Binary, Entry};
use crate::error::Finding;
use serde_json::{Map, Value};
use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

/// Longer metas are not read.
const MAX_META_BYTES: u64 = 1 << 20;

/// The entries to keep, and how strictly metas are read.
#[derive(Default)]
pub struct Rules<'a> {
    /// Keeps one stage.
    pub stage: Option<&'a str>,
    /// Keeps the layers for which this is true.
    pub layers: Option<&'a (dyn Fn(i64) -> bool + Sync)>,
    /// Keeps entries of at least as many tokens; 0: all.
    pub min_tokens: i128,
    /// Keeps entries of at most as many tokens; 0: all.
    pub max_tokens: i128,
    /// Skips f32.
    pub only_f16: bool,
    /// Reads numbers and follows paths as the reference system does.
    pub faithful: bool,
}

/// The fate of a meta.
pub enum Verdict {
    /// Its entry. The sizes of its files may be wrong.
    Kept(Box<Entry>),
    /// Left out by the rules.
    Filtered,
    /// Skipped: the reason as the reference system counts it, and where.
    Skipped(String, Finding),
}

/// The root of a scan.
pub struct Home<'a> {
    root: &'a Path,
    /// Without links. `None`: not to be had, so that nothing is known to be inside.
    real: Option<PathBuf>,
}

impl<'a> Home<'a> {
    pub fn new(root: &'a Path) -> Self {
        Home { root, real: fs::canonicalize(root).ok() }
    }
}

/// Judges the meta at `path`. The error is a crash of the reference system; only with faithful rules.
pub fn examine(home: &Home, path: &Path, rules: &Rules) -> Result<Verdict, String> {
    let judged = judge(home, path, rules);
    Ok(match judged {
        Ok(verdict) => verdict,
        Err(Refusal::Crash(text)) => return Err(text),
        Err(Refusal::Skip { reason, kind, field, text }) => {
            let place = match field {
                "" => path.display().to_string(),
                field => format!("{}: {field}", path.display()),
            };
            Verdict::Skipped(reason, Finding::new(kind, place, text))
        }
    })
}

enum Refusal {
    Crash(String),
    Skip { reason: String, kind: &'static str, field: &'static str, text: String },
}

fn skip(reason: &'static str, field: &'static str, text: impl ToString) -> Refusal {
    Refusal::Skip { reason: reason.into(), kind: reason, field, text: text.to_string() }
}

fn judge(home: &Home, path: &Path, rules: &Rules) -> Result<Verdict, Refusal> {
    let meta = match parse(path)? {
        Value::Object(meta) => meta,
        other if rules.faithful => {
            return Err(Refusal::Crash(format!("AttributeError: '{}' object has no attribute 'get'", python(&other))));
        }
        other => {
            let text = format!("a JSON {}; an object expected", python(&other));
            return Err(Refusal::Skip {
                reason: "meta_parse_error".into(),
                kind: "meta_is_no_object",
                field: "",
                text,
            });
        }
    };
    let stage = match meta.get("stage") {
        None => "unknown".to_owned(),
        Some(Value::String(stage)) => stage.clone(),
        Some(Value::Null) => "None".into(),
        Some(Value::Bool(true)) => "True".into(),
        Some(Value::Bool(false)) => "False".into(),
        Some(other) => other.to_string(),
    };
    if rules.stage.is_some_and(|wanted| wanted != stage) {
        return Ok(Verdict::Filtered);
    }
    let number = |field, missing| integer(&meta, field, missing, rules.faithful);
    let layer_id = number("layer_id", -1)?;
    let seq_start = number("seq_start", 0)?;
    let [seq_len, kv_heads, head_dim] = [number("seq_len", 0)?, number("kv_heads", 0)?, number("head_dim", 0)?];
    let bytes_per_elem = number("bytes_per_elem", 0)?;
    let layer_id = saturated(layer_id);
    if rules.layers.is_some_and(|keeps| !keeps(layer_id)) {
        return Ok(Verdict::Filtered);
    }
    for (field, value) in [("seq_len", seq_len), ("kv_heads", kv_heads), ("head_dim", head_dim)] {
        if value <= 0 {
            return Err(skip("invalid_shape", field, format!("{value}; at least 1 expected")));
        }
    }
    let too_short = rules.min_tokens != 0 && seq_len < rules.min_tokens;
    if too_short || (rules.max_tokens != 0 && seq_len > rules.max_tokens) {
        return Ok(Verdict::Filtered);
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let names = [name(&meta, "k_file")?, name(&meta, "v_file")?];
    let (key, key_file) = binary(home, folder, "k_file", names[0], rules.faithful)?;
    let (value, value_file) = binary(home, folder, "v_file", names[1], rules.faithful)?;
    let [key, value] = [readable(key, &key_file, "k_file")?, readable(value, &value_file, "v_file")?];
    if bytes_per_elem == 4 && rules.only_f16 {
        return Err(skip("skip_fp32_strict", "bytes_per_elem", "4; f32 is not wanted"));
    }
    if bytes_per_elem != 2 && bytes_per_elem != 4 {
        return Err(Refusal::Skip {
            reason: format!("unsupported_bytes_per_elem_{bytes_per_elem}"),
            kind: "unsupported_bytes_per_elem",
            field: "bytes_per_elem",
            text: format!("{bytes_per_elem}; 2 or 4 expected"),
        });
    }
    let beyond = key.bytes % 4 != 0 || value.bytes % 4 != 0;
    if rules.faithful && bytes_per_elem == 4 && beyond {
        return Err(Refusal::Crash("ValueError: buffer size must be a multiple of element size".into()));
    }
    let size = |n: i128| usize::try_from(n).unwrap_or(usize::MAX);
    Ok(Verdict::Kept(Box::new(Entry {
        meta: path.to_owned(),
        run_id: meta.get("run_id").and_then(Value::as_str).filter(|id| !id.is_empty()).map(str::to_owned),
        folder: run_folder(home.root, folder),
        layer_id,
        seq_start: saturated(seq_start),
        seq_len: size(seq_len),
        kv_heads: size(kv_heads),
        head_dim: size(head_dim),
        bytes_per_elem: size(bytes_per_elem),
        stage,
        key,
        value,
        fields: meta,
    })))
}

fn saturated(n: i128) -> i64 {
    n.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

fn parse(path: &Path) -> Result<Value, Refusal> {
    let read = || -> io::Result<Vec<u8>> {
        let file = fs::metadata(path)?;
        // A pipe would block.
        if !file.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        if file.len() > MAX_META_BYTES {
            return Err(io::Error::other(format!("longer than {MAX_META_BYTES} bytes")));
        }
        let mut bytes = vec![0; file.len() as usize];
        fs::File::open(path)?.read_exact(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|e| skip("meta_parse_error", "", e))?;
    serde_json::from_slice(&bytes).map_err(|e| skip("meta_parse_error", "", format!("not JSON: {e}")))
}

/// The Python type of a value that is no object.
fn python(value: &Value) -> &'static str {
    match value {
        Value::Array(_) => "list",
        Value::String(_) => "str",
        Value::Bool(_) => "bool",
        Value::Null => "NoneType",
        Value::Number(n) if n.is_f64() => "float",
        Value::Number(_) => "int",
        Value::Object(_) => "dict",
    }
}

fn integer(meta: &Map<String, Value>, field: &'static str, missing: i128, faithful: bool) -> Result<i128, Refusal> {
    let Some(value) = meta.get(field) else { return Ok(missing) };
    let whole = |n: f64| (faithful && n.is_finite()) || n.fract() == 0.0;
    let read = match value {
        Value::Number(n) if !n.is_f64() => n.as_i64().map(i128::from).or(n.as_u64().map(i128::from)),
        Value::Number(n) => n.as_f64().filter(|n| whole(*n)).map(|n| n as i128),
        Value::String(text) if faithful => parsed(text),
        Value::Bool(b) if faithful => Some(i128::from(*b)),
        _ => None,
    };
    let refused = || Refusal::Skip {
        reason: "meta_invalid_numeric_fields".into(),
        // The reference system accepts what has a reading under its own rules.
        kind: match value {
            Value::Number(_) | Value::Bool(_) => "not_an_integer",
            Value::String(text) if parsed(text).is_some() => "not_an_integer",
            _ => "meta_invalid_numeric_fields",
        },
        field,
        text: format!("{}; an integer expected", shortened(value)),
    };
    read.ok_or_else(refused)
}

/// The integer in a text, with blanks around it and single underscores between digits.
fn parsed(text: &str) -> Option<i128> {
    let text = text.trim();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let grouped = digits.split('_').all(|group| !group.is_empty() && group.bytes().all(|b| b.is_ascii_digit()));
    let magnitude = || {
        let digit = |n: i128, b: u8| n.saturating_mul(10).saturating_add((b - b'0').into());
        digits.bytes().filter(|b| *b != b'_').fold(0, digit)
    };
    grouped.then(|| if text.starts_with('-') { -magnitude() } else { magnitude() })
}

fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text,
    }
}

fn name<'a>(meta: &'a Map<String, Value>, field: &'static str) -> Result<&'a str, Refusal> {
    let refused = |text: String| skip("missing_k_or_v_file", field, text);
    match meta.get(field) {
        Some(Value::String(name)) if !name.is_empty() => Ok(name),
        None => Err(refused("missing; the name of a file expected".into())),
        Some(other) => Err(refused(format!("{}; the name of a file expected", shortened(other)))),
    }
}

/// The file `name`. Nothing is opened that is no regular file: a pipe would block.
fn binary(
    home: &Home,
    folder: &Path,
    field: &'static str,
    name: &str,
    anywhere: bool,
) -> Result<(PathBuf, fs::Metadata), Refusal> {
    let path = folder.join(name);
    let missing = |e: io::Error| skip("missing_k_or_v_binary", field, format!("{name:?}: {e}"));
    let link = fs::symlink_metadata(&path).map_err(missing)?;
    let mut parts = Path::new(name).components();
    let plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
    // The walk follows no links, so that a plain file beside its meta is inside.
    if plain && !link.is_symlink() {
        return Ok((path, link));
    }
    let file = fs::metadata(&path).map_err(missing)?;
    match (&home.real, fs::canonicalize(&path)) {
        _ if anywhere => Ok((path, file)),
        (Some(real), Ok(target)) if target.starts_with(real) => Ok((path, file)),
        _ => Err(skip("k_or_v_outside_dump", field, format!("{name:?} leads out of {}", home.root.display()))),
    }
}

fn readable(path: PathBuf, file: &fs::Metadata, field: &'static str) -> Result<Binary, Refusal> {
    let refused = |text: String| skip("binary_read_error", field, format!("{}: {text}", path.display()));
    if !file.is_file() {
        return Err(refused("not a regular file".into()));
    }
    fs::File::open(&path).map_err(|e| refused(e.to_string()))?;
    Ok(Binary { path, bytes: file.len() })
}

/// The folder of the run below the root.
fn run_folder(root: &Path, folder: &Path) -> PathBuf {
    let below = folder.strip_prefix(root).unwrap_or(folder);
    let of_layer = below.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"layer_"));
    if of_layer { below.parent().unwrap_or(below) } else { below }.to_owned()
}
