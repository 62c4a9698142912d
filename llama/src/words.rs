//! Words to fewer bytes and back: all that this crate has of the codec.

use mnnkv::dtype::Dtype;
use mnnkv::gear::{Decoder, Effort, Encoder, Format, Options};
use mnnkv::status::{Result, Status, bail, error};

/// An encoder and a decoder, with the working memory of a thread.
#[derive(Default)]
pub struct Coder {
    encoder: Encoder,
    decoder: Decoder,
}

impl Coder {
    /// Encodes words, a whole number of them and at least one.
    pub fn encode(&mut self, words: &[u8], dtype: Dtype) -> Result<&[u8]> {
        let options = Options { effort: Effort::FASTEST, ..Options::new(Format::Checked) };
        self.encoder.encode(words, dtype, &options)
    }

    /// Decodes to all of `words`. CORRUPT: if `blob` is not the blob of as many words.
    pub fn decode(&mut self, blob: &[u8], dtype: Dtype, words: &mut [u8]) -> Result<()> {
        let len = self.decoder.decode(blob, dtype, words).map_err(|error| match error.status() {
            Status::InvalidArgument | Status::BufferTooSmall => error!(Corrupt, "{}", error.message()),
            _ => error,
        })?;
        if len != words.len() {
            bail!(Corrupt, "a stream has {len} bytes; {} expected", words.len());
        }
        Ok(())
    }
}
