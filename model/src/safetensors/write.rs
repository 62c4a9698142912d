//! Headers of new files.

use super::FileDtype;
use crate::json::Writer;
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
    let mut end = 0;
    let mut text = Writer::compact(|to| {
        to.object(|to| {
            tensors.into_iter().try_for_each(|tensor| {
                let begin = end;
                end += tensor.bytes;
                to.key(tensor.name)?.object(|to| {
                    to.field("dtype", tensor.dtype.name())?;
                    to.field("shape", tensor.shape)?;
                    to.field("data_offsets", &[begin, end][..])
                })
            })
        })
    })?;
    let blanks = text.len().next_multiple_of(8) - text.len();
    memory::append(&mut text, format_args!("{:blanks$}", ""))?;
    let mut header = Vec::new();
    memory::reserve(&mut header, 8 + text.len())?;
    memory::extend(&mut header, &(text.len() as u64).to_le_bytes())?;
    memory::extend(&mut header, text.as_bytes())?;
    Ok(header)
}
