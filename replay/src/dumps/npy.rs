//! Files of NumPy: one array `[head][token][dim]` each, with the layer and the kind in the name.
//!
//! The header is a dict literal that every writer forms in the same way. A reader of Python literals would accept more,
//! and with it nesting without limit.

use super::files::{self, Tree, Words};
use super::names;
use super::tensors::{Tensor, three};
use crate::error::{Error, Result};
use mnnkv::dtype::Dtype;
use mnnkv_model::file::Source;
use std::path::Path;

/// The largest header in bytes; NumPy's own limit is lower.
const MAX_HEADER: u64 = 1 << 16;

/// The tensor of a file.
pub(super) fn read(tree: &Tree, path: &Path) -> Result<Tensor> {
    let Some((layer, kind)) = path.file_stem().and_then(|stem| stem.to_str()).and_then(names::tensor) else {
        let text = "the name is not like l0_k.npy or layer_0_key.npy, with k or v";
        return Err(Error::new(path.display(), text));
    };
    let file = files::open(path)?;
    let take = |offset, len| file.read_vec(offset, len).map_err(|e| files::failure(path, &e));
    let broken = |text: &str| Error::new(format!("{}: header", path.display()), text);
    let start = take(0, 10)?;
    if !start.starts_with(b"\x93NUMPY") {
        return Err(broken("the file does not begin with \\x93NUMPY"));
    }
    let (begin, len) = match start[6] {
        1 => (10, u64::from(u16::from_le_bytes([start[8], start[9]]))),
        2 | 3 => {
            let rest = take(8, 4)?;
            (12, u64::from(u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]])))
        }
        version => return Err(broken(&format!("the version is {version}; 1 to 3 expected"))),
    };
    if len > MAX_HEADER {
        return Err(broken(&format!("the header has {len} bytes; at most {MAX_HEADER} allowed")));
    }
    let text = take(begin, len)?;
    let header = std::str::from_utf8(&text).ok().and_then(Header::parse);
    let header = header.ok_or_else(|| broken("no dict of 'descr', 'fortran_order' and 'shape'"))?;
    let field = |name: &str, text: String| Error::new(format!("{}: {name}", path.display()), text);
    if header.fortran_order {
        return Err(field("fortran_order", "is True; False expected (numpy.ascontiguousarray)".into()));
    }
    let (dtype, big_endian) = match header.descr {
        "<f2" => (Dtype::F16, false),
        ">f2" => (Dtype::F16, true),
        "<f4" => (Dtype::F32, false),
        ">f4" => (Dtype::F32, true),
        other => return Err(field("descr", format!("is {other:?}; f2 or f4 expected (for bf16 use safetensors)"))),
    };
    let lengths = header.shape.split(',').map(str::trim).filter(|length| !length.is_empty());
    let lengths: std::result::Result<Vec<u64>, _> = lengths.map(str::parse).collect();
    let lengths = lengths.map_err(|_| {
        field("shape", format!("is ({:.100}); whole numbers from 0 to {} expected", header.shape, u64::MAX))
    })?;
    let shape = three(&lengths).map_err(|text| field("shape", text))?;
    let words = Words::at(path, (begin + len, file.len()), &shape, dtype, big_endian)?;
    Ok(Tensor { run: tree.run(path), layer, kind, shape, words, place: path.display().to_string() })
}

/// `{'descr': '<f2', 'fortran_order': False, 'shape': (2, 8, 4), }`
struct Header<'a> {
    descr: &'a str,
    fortran_order: bool,
    /// Lengths between commas.
    shape: &'a str,
}

impl<'a> Header<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        // Neither a key nor a value that is accepted below has the text of a key in it.
        let value = |key: &str| {
            let at = text.find(key)? + key.len();
            text[at..].trim_start().strip_prefix(':').map(str::trim_start)
        };
        let descr = value("'descr'")?.strip_prefix('\'')?;
        let order = value("'fortran_order'")?;
        let (shape, _) = value("'shape'")?.strip_prefix('(')?.split_once(')')?;
        Some(Header {
            descr: descr.split_once('\'')?.0,
            fortran_order: match (order.starts_with("True"), order.starts_with("False")) {
                (false, false) => return None,
                (fortran, _) => fortran,
            },
            shape,
        })
    }
}
