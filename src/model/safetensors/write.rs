//! Headers of new files.

use super::Dtype;
use serde_json::{Value, json};

/// A tensor of a file that is to be written.
pub struct NewTensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions; none for a scalar.
    pub shape: &'a [u64],
    /// Bytes of all elements.
    pub bytes: u64,
}

/// What comes before the data of tensors that follow each other without a gap: the length of the JSON object, and the
/// object, filled with blanks to whole words.
pub fn header<'a>(tensors: impl IntoIterator<Item = NewTensor<'a>>) -> Vec<u8> {
    let mut end = 0;
    let entries = tensors.into_iter().map(|tensor| {
        let begin = end;
        end += tensor.bytes;
        let entry = json!({"dtype": tensor.dtype.name(), "shape": tensor.shape, "data_offsets": [begin, end]});
        format!("{}:{entry}", Value::from(tensor.name))
    });
    let mut text = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
    text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.extend_from_slice(text.as_bytes());
    header
}
