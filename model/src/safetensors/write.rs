//! Headers of new files.

use super::FileDtype;
use mnnkv::json::Escaped;
use mnnkv::status::Result;
use mnnkv::sys::memory;

/// A tensor of a new file.
pub struct NewTensor<'a> {
    /// Name.
    pub name: &'a str,
    /// Element type.
    pub dtype: FileDtype,
    /// Dimensions; none for a scalar.
    pub shape: &'a [u64],
    /// Bytes of all elements.
    pub bytes: u64,
}

/// The bytes before the data of contiguous tensors: the length of the JSON object, and the object, padded with blanks
/// to whole words.
pub fn header<'a>(tensors: impl IntoIterator<Item = NewTensor<'a>>) -> Result<Vec<u8>> {
    let (mut end, mut text) = (0, String::new());
    for NewTensor { name, dtype, shape, bytes } in tensors {
        let (begin, mark, name, dtype) = (end, if text.is_empty() { '{' } else { ',' }, Escaped(name), dtype.name());
        end += bytes;
        let offsets = [begin, end];
        let entry = format_args!("{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":{offsets:?}}}");
        memory::append(&mut text, format_args!("{mark}{name}:{entry}"))?;
    }
    let close = if text.is_empty() { "{}" } else { "}" };
    memory::append(&mut text, format_args!("{close}"))?;
    let blanks = text.len().next_multiple_of(8) - text.len();
    memory::append(&mut text, format_args!("{:blanks$}", ""))?;
    let mut header = Vec::new();
    memory::reserve(&mut header, 8 + text.len())?;
    memory::extend(&mut header, &(text.len() as u64).to_le_bytes())?;
    memory::extend(&mut header, text.as_bytes())?;
    Ok(header)
}
