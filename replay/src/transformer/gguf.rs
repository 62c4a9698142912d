//! GGUF files, versions 2 and 3: their metadata, and tensors under the names of Hugging Face.
//!
//! No crate reads them here. candle-core would bring 150 more crates, with tokenizers among them; the small readers on
//! crates.io have no block formats, and no offsets in their errors.

use super::blocks::Format;
use super::{Gemma, Shape};
use crate::error::{Error, Result};
use mnnkv::json::Brief;
use mnnkv_model::file::{ModelFile, Source};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The longest name, and the longest text that is kept.
const MAX_NAME: u64 = 1 << 16;
/// Bytes that are read at once before the tensors.
const PIECE: usize = 1 << 16;
const MAX_DIMENSIONS: u32 = 4;

/// A value of the metadata. Arrays are passed over.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(String),
    Other,
}

/// A tensor's place in the file. Dimensions are as in a row-major matrix, the outermost first.
struct Place {
    shape: Vec<u64>,
    kind: u32,
    /// From the begin of the tensors.
    offset: u64,
}

/// An open file.
pub(super) struct Gguf {
    path: PathBuf,
    file: ModelFile,
    values: BTreeMap<String, Value>,
    tensors: BTreeMap<String, Place>,
    /// Where the tensors begin.
    begin: u64,
}

impl Gguf {
    /// Reads everything before the tensors.
    pub(super) fn open(path: &Path) -> Result<Gguf> {
        let file = ModelFile::open(path).map_err(|e| Error::new(path.display(), e))?;
        let mut head = Head { file: &file, path, piece: Vec::new(), first: 0, at: 0 };
        let magic = head.bytes(4, "the magic")?;
        if magic != b"GGUF" {
            return Err(head.fail(0, format!("begins with {magic:02x?}; \"GGUF\" expected")));
        }
        let version = head.u32("the version")?;
        if !(2..=3).contains(&version) {
            return Err(head.fail(4, format!("version {version}; 2 or 3 expected")));
        }
        let (tensor_count, value_count) = (head.u64("tensor_count")?, head.u64("metadata_kv_count")?);
        let (mut values, mut tensors) = (BTreeMap::new(), BTreeMap::new());
        for number in 0..value_count {
            let key = head.text(&format!("the name of metadata {number}"))?;
            let kind = head.u32(&key)?;
            let value = head.value(kind, &key)?;
            if values.insert(key.clone(), value).is_some() {
                return Err(head.fail(head.at, format!("{key}: comes twice")));
            }
        }
        for number in 0..tensor_count {
            let name = head.text(&format!("the name of tensor {number}"))?;
            let place = head.place(&name)?;
            if tensors.insert(name.clone(), place).is_some() {
                return Err(head.fail(head.at, format!("tensor {name}: comes twice")));
            }
        }
        let alignment = match values.get("general.alignment") {
            None => 32,
            Some(Value::Unsigned(alignment)) if (1..=1 << 20).contains(alignment) => *alignment,
            Some(other) => {
                return Err(Error::new(
                    path.display(),
                    format!("general.alignment is {other:?}; 1 to 1048576 expected"),
                ));
            }
        };
        if let Some((name, place)) = tensors.iter().find(|(_, place)| !place.offset.is_multiple_of(alignment)) {
            let text = format!("tensor {name}: has the offset {}; a multiple of {alignment} expected", place.offset);
            return Err(Error::new(path.display(), text));
        }
        let begin = head.at.next_multiple_of(alignment);
        Ok(Gguf { path: path.into(), file, values, tensors, begin })
    }

    pub(super) fn fail(&self, text: impl std::fmt::Display) -> Error {
        Error::new(self.path.display(), text)
    }

    /// The architecture, one of those that are computed.
    pub(super) fn architecture(&self) -> Result<&str> {
        match self.values.get("general.architecture") {
            Some(Value::Text(name)) if ["llama", "qwen2", "gemma3"].contains(&name.as_str()) => Ok(name),
            Some(Value::Text(name)) => {
                let text = format!("general.architecture is {name:?}; \"llama\", \"qwen2\" or \"gemma3\" expected");
                Err(self.fail(text))
            }
            _ => Err(self.fail("general.architecture is missing")),
        }
    }

    fn number(&self, key: &str) -> Result<Option<usize>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Unsigned(number)) => Ok(usize::try_from(*number).ok()),
            Some(Value::Signed(number)) if *number >= 0 => Ok(usize::try_from(*number).ok()),
            Some(other) => Err(self.fail(format!("{key} is {other:?}; a whole number expected"))),
        }
    }

    fn float(&self, key: &str) -> Result<Option<f64>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Float(number)) => Ok(Some(*number)),
            Some(other) => Err(self.fail(format!("{key} is {other:?}; a float expected"))),
        }
    }

    /// The numbers of the model. Fails if it computes something else than a Llama or a Qwen2 with plain RoPE, or a Gemma 3.
    pub(super) fn shape(&self) -> Result<Shape> {
        let architecture = self.architecture()?;
        let key = |name: &str| format!("{architecture}.{name}");
        let needed =
            |name: &str| self.number(&key(name))?.ok_or_else(|| self.fail(format!("{} is missing", key(name))));
        let heads = needed("attention.head_count")?;
        let hidden = needed("embedding_length")?;
        let embedding =
            self.tensors.get("token_embd.weight").ok_or_else(|| self.fail("tensor token_embd.weight is missing"))?;
        let dims = self.number(&key("attention.key_length"))?.unwrap_or(hidden / heads.max(1));
        let shape = Shape {
            layers: needed("block_count")?,
            hidden,
            inner: needed("feed_forward_length")?,
            heads,
            kv_heads: self.number(&key("attention.head_count_kv"))?.unwrap_or(heads),
            dims,
            vocabulary: embedding.shape.first().map_or(0, |n| *n as usize),
            context: needed("context_length")?,
            epsilon: self
                .float(&key("attention.layer_norm_rms_epsilon"))?
                .ok_or_else(|| self.fail(format!("{} is missing", key("attention.layer_norm_rms_epsilon"))))?
                as f32,
            theta: self.float(&key("rope.freq_base"))?.unwrap_or(10_000.0),
            tied: !self.tensors.contains_key("output.weight"),
            gemma: if architecture == "gemma3" { Some(self.gemma()?) } else { None },
        };
        shape.check(architecture).map_err(|text| self.fail(text))?;
        for name in ["attention.value_length", "rope.dimension_count"] {
            match self.number(&key(name))? {
                Some(number) if number != dims => {
                    return Err(self.fail(format!("{} is {number}; {dims}, the size of a head, expected", key(name))));
                }
                _ => {}
            }
        }
        let is_linear = match self.values.get(&key("rope.scaling.type")) {
            None => shape.gemma.is_some(),
            Some(Value::Text(name)) if name == "none" => false,
            Some(Value::Text(name)) if name == "linear" && shape.gemma.is_some() => true,
            Some(other) => {
                let expected = if shape.gemma.is_some() { "\"none\" or \"linear\"" } else { "\"none\"" };
                return Err(self.fail(format!("{} is {other:?}; {expected} expected", key("rope.scaling.type"))));
            }
        };
        // What other models compute with. A factor without a type scales linearly.
        let factor = shape.gemma.filter(|_| is_linear).map_or(1.0, |gemma| gemma.stretch);
        for (name, plain) in [
            ("rope.scale_linear", 1.0),
            ("rope.scaling.factor", factor),
            ("attention.scale", 1.0 / (dims as f64).sqrt()),
            ("attn_logit_softcapping", 0.0),
            ("final_logit_softcapping", 0.0),
        ] {
            match self.float(&key(name))? {
                Some(number) if number.is_nan() || (number - plain).abs() > 1e-6 && number != 0.0 => {
                    return Err(self.fail(format!("{} is {}; {plain} expected", key(name), Brief(number))));
                }
                _ => {}
            }
        }
        match self.number(&key("expert_count"))? {
            Some(experts) if experts > 0 => Err(self.fail(format!("{} is {experts}; 0 expected", key("expert_count")))),
            _ => Ok(shape),
        }
    }

    /// The rest of a Gemma 3. Its files may leave out what all of them have in common.
    fn gemma(&self) -> Result<Gemma> {
        let window = "gemma3.attention.sliding_window";
        let missing = || self.fail(format!("{window} is missing"));
        Ok(Gemma {
            window: self.number(window)?.ok_or_else(missing)?.try_into().unwrap_or(u32::MAX),
            period: self.number("gemma3.attention.sliding_window_pattern")?.unwrap_or(6),
            theta: self.float("gemma3.rope.freq_base_swa")?.unwrap_or(10_000.0),
            stretch: self.float("gemma3.rope.scaling.factor")?.filter(|factor| *factor != 0.0).unwrap_or(1.0),
        })
    }

    /// The token that every text begins with, if the model wants one.
    pub(super) fn first_token(&self, vocabulary: usize) -> Result<Option<u32>> {
        let key = "tokenizer.ggml.bos_token_id";
        match (self.number("tokenizer.ggml.add_bos_token")?, self.number(key)?) {
            (None | Some(0), _) => Ok(None),
            (Some(_), Some(token)) if token < vocabulary => Ok(Some(token as u32)),
            (Some(_), Some(token)) => Err(self.fail(format!("{key} is {token}; below {vocabulary} expected"))),
            (Some(_), None) => Err(self.fail(format!("{key} is missing, and tokenizer.ggml.add_bos_token is true"))),
        }
    }

    /// Whether llama.cpp's conversion has interleaved the rows of a map's heads; the number of these.
    fn interleaved(&self, name: &str) -> Result<Option<usize>> {
        let shape = self.shape()?;
        let heads = match name {
            _ if self.architecture()? != "llama" => None,
            _ if name.contains(".attn_q.") => Some(shape.heads),
            _ if name.contains(".attn_k.") => Some(shape.kv_heads),
            _ => None,
        };
        Ok(heads)
    }
}

impl Gguf {
    /// The names of all tensors.
    pub(super) fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }

    /// A tensor in f32. Fails if it is missing, has another shape or a type that is not read, or a number that is none, as
    /// behind a scale of a block that is none.
    pub(super) fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let fail = |text: String| self.fail(format!("tensor {name}: {text}"));
        let Some(place) = self.tensors.get(name) else { return Err(fail("is missing".into())) };
        if !place.shape.iter().copied().eq(shape.iter().map(|n| *n as u64)) {
            return Err(fail(format!("has the shape {:?}; {shape:?} expected, as the metadata say", place.shape)));
        }
        let Some(format) = Format::of(place.kind) else {
            return Err(fail(format!(
                "has the type {}; F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q8_0, Q4_K or Q6_K expected",
                place.kind
            )));
        };
        let width = shape.last().copied().unwrap_or(1);
        if !width.is_multiple_of(format.elements) {
            return Err(fail(format!(
                "has rows of {width} elements; a multiple of {} expected for {}",
                format.elements, format.name
            )));
        }
        let bytes = (shape.iter().product::<usize>() / format.elements * format.bytes) as u64;
        let begin =
            self.begin.checked_add(place.offset).ok_or_else(|| fail(format!("has the offset {}", place.offset)))?;
        let bytes = self.file.read_vec(begin, bytes).map_err(|e| fail(e.to_string()))?;
        let values = format.read(&bytes);
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            return Err(fail(format!("element {at} is {}; a finite number expected", values[at])));
        }
        Ok(match self.interleaved(name)? {
            Some(heads) => halves(&values, heads, shape.iter().skip(1).product()),
            None => values,
        })
    }
}

/// Undoes llama.cpp's order of rows: of each head, rows `2 i` and `2 i + 1` become `i` and `i + dims / 2`.
fn halves(values: &[f32], heads: usize, width: usize) -> Vec<f32> {
    let mut ordered = Vec::with_capacity(values.len());
    for head in values.chunks_exact(values.len() / heads) {
        for first in 0..2 {
            ordered.extend(head.chunks_exact(width).skip(first).step_by(2).flatten());
        }
    }
    ordered
}

/// The part of a file before its tensors, read from front to back.
struct Head<'a> {
    file: &'a ModelFile,
    path: &'a Path,
    piece: Vec<u8>,
    /// Where the piece begins.
    first: u64,
    /// The next byte.
    at: u64,
}

impl Head<'_> {
    fn fail(&self, at: u64, text: impl std::fmt::Display) -> Error {
        Error::new(format!("{}: offset {at}", self.path.display()), text)
    }

    /// The next bytes, which are those of `what`.
    fn bytes(&mut self, len: u64, what: &str) -> Result<Vec<u8>> {
        let left = self.file.len().saturating_sub(self.at);
        if len > left {
            return Err(self.fail(self.at, format!("{what}: {len} bytes expected, {left} are left")));
        }
        let begin = self.at - self.first;
        let range = begin as usize..(begin + len) as usize;
        if self.piece.get(range.clone()).is_none() {
            let fresh = (PIECE as u64).max(len).min(left);
            self.piece = self.file.read_vec(self.at, fresh).map_err(|e| self.fail(self.at, format!("{what}: {e}")))?;
            self.first = self.at;
        }
        let begin = (self.at - self.first) as usize;
        self.at += len;
        Ok(self.piece[begin..begin + len as usize].to_vec())
    }

    fn number<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        Ok(std::array::from_fn({
            let bytes = self.bytes(N as u64, what)?;
            move |i| bytes[i]
        }))
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        self.number(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        self.number(what).map(u64::from_le_bytes)
    }

    fn text(&mut self, what: &str) -> Result<String> {
        let at = self.at;
        let len = self.u64(what)?;
        if len > MAX_NAME {
            return Err(self.fail(at, format!("{what}: has {len} bytes; at most {MAX_NAME} expected")));
        }
        let bytes = self.bytes(len, what)?;
        String::from_utf8(bytes).map_err(|_| self.fail(at, format!("{what}: is not UTF-8")))
    }

    /// Passes over bytes.
    fn skip(&mut self, len: Option<u64>, what: &str) -> Result<()> {
        let left = self.file.len().saturating_sub(self.at);
        match len {
            Some(len) if len <= left => {
                self.at += len;
                Ok(())
            }
            _ => Err(self.fail(self.at, format!("{what}: more bytes expected than the {left} that are left"))),
        }
    }

    fn value(&mut self, kind: u32, key: &str) -> Result<Value> {
        let at = self.at;
        Ok(match kind {
            0 | 7 => Value::Unsigned(self.number::<1>(key)?[0].into()),
            1 => Value::Signed((self.number::<1>(key)?[0] as i8).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.number(key)?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.number(key)?).into()),
            4 => Value::Unsigned(self.u32(key)?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.number(key)?).into()),
            6 => Value::Float(f32::from_le_bytes(self.number(key)?).into()),
            8 => {
                let len = self.u64(key)?;
                if len > MAX_NAME {
                    self.skip(Some(len), key)?;
                    return Ok(Value::Other);
                }
                Value::Text(String::from_utf8_lossy(&self.bytes(len, key)?).into_owned())
            }
            9 => {
                let (kind, count) = (self.u32(key)?, self.u64(key)?);
                self.skip_array(kind, count, key)?;
                Value::Other
            }
            10 => Value::Unsigned(self.u64(key)?),
            11 => Value::Signed(i64::from_le_bytes(self.number(key)?)),
            12 => Value::Float(f64::from_le_bytes(self.number(key)?)),
            _ => return Err(self.fail(at, format!("{key}: has the type {kind}; 0 to 12 expected"))),
        })
    }

    fn skip_array(&mut self, kind: u32, count: u64, key: &str) -> Result<()> {
        let each = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            8 => {
                for _ in 0..count {
                    let len = self.u64(key)?;
                    self.skip(Some(len), key)?;
                }
                return Ok(());
            }
            _ => {
                return Err(
                    self.fail(self.at, format!("{key}: has elements of the type {kind}; numbers or texts expected"))
                );
            }
        };
        self.skip(count.checked_mul(each), key)
    }

    fn place(&mut self, name: &str) -> Result<Place> {
        let at = self.at;
        let dimensions = self.u32(name)?;
        if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
            return Err(
                self.fail(at, format!("tensor {name}: has {dimensions} dimensions; 1 to {MAX_DIMENSIONS} expected"))
            );
        }
        let mut shape = (0..dimensions).map(|_| self.u64(name)).collect::<Result<Vec<u64>>>()?;
        // The file has the innermost first.
        shape.reverse();
        Ok(Place { shape, kind: self.u32(name)?, offset: self.u64(name)? })
    }
}
