//! The codec of one block: rows to two blobs, and back with a check of the digest.

use super::kv::KvBytes;
use crate::dtype::Dtype;
use crate::gear::{Decoder, Effort, Encoder, Format, Options, Predictors};
use crate::layout::Rows;
use crate::status::{Result, Status, bail};
use crate::sys::memory;

/// How blocks are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// Format of the blobs.
    pub format: Format,
    /// Predictors that format v1 tries on K.
    pub key_predictors: Predictors,
    /// Predictors that format v1 tries on V.
    pub value_predictors: Predictors,
    /// How long the encoder searches.
    pub effort: Effort,
    /// Every block is decoded once after encoding, and compared.
    pub strict_roundtrip: bool,
}

impl Default for Encoding {
    fn default() -> Self {
        Encoding {
            format: Format::V1,
            key_predictors: Predictors::ALL,
            value_predictors: Predictors::ALL,
            effort: Effort::DEFAULT,
            strict_roundtrip: false,
        }
    }
}

/// Input of a decoder besides the blobs.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockShape {
    pub(super) ticket: u64,
    pub(super) rows: Rows,
    pub(super) tokens: usize,
    pub(super) digest: u128,
}

/// Encoder, decoder and their working memory, kept from block to block: one on the host's thread, one per worker.
#[derive(Default)]
pub(super) struct Codec {
    encoder: Encoder,
    decoder: Decoder,
    key_blob: Vec<u8>,
}

impl Codec {
    /// Returns the blobs of `raw`, or `None` when together they would not be smaller.
    pub(super) fn encode(&mut self, rows: &Rows, raw: &KvBytes, encoding: &Encoding) -> Result<Option<KvBytes>> {
        let options = |words: Dtype, predictors, row| {
            // V1 has no words of quantised rows.
            let format = if words.is_float() { encoding.format } else { Format::V2 };
            let predictors = if format == encoding.format { predictors } else { Predictors::ALL };
            Options { predictors, effort: encoding.effort, head_dim: row, ..Options::new(format) }
        };
        let (of_key, of_value) = (rows.key.words(), rows.value.words());
        let key_options = options(of_key, encoding.key_predictors, rows.key_words());
        let key = self.encoder.encode(raw.key(), of_key, &key_options)?;
        self.key_blob.clear();
        memory::extend(&mut self.key_blob, key)?;
        let value_options = options(of_value, encoding.value_predictors, rows.value_words());
        let value = self.encoder.encode(raw.value(), of_value, &value_options)?;
        if self.key_blob.len() + value.len() >= raw.len() {
            return Ok(None);
        }
        let mut blob = KvBytes::new(self.key_blob.len(), value.len())?;
        let (key_part, value_part) = blob.parts_mut();
        key_part.copy_from_slice(&self.key_blob);
        value_part.copy_from_slice(value);
        Ok(Some(blob))
    }

    /// INTERNAL: if `blob` does not decode to exactly `raw`.
    pub(super) fn compare(&mut self, shape: &BlockShape, blob: &KvBytes, raw: &KvBytes) -> Result<()> {
        let mut back = KvBytes::new(raw.key().len(), raw.value().len())?;
        self.decode(shape, blob, &mut back)?;
        if back.key() != raw.key() || back.value() != raw.value() {
            bail!(Internal, "block {} does not decode to what was encoded", shape.ticket);
        }
        Ok(())
    }

    /// Decodes both blobs into `raw`, which takes the size of the rows. CORRUPT: if a blob is damaged or the rows do not
    /// match the digest.
    pub(super) fn decode(&mut self, shape: &BlockShape, blob: &KvBytes, raw: &mut KvBytes) -> Result<()> {
        let ticket = shape.ticket;
        raw.fit(shape.rows.key_bytes(shape.tokens), shape.rows.value_bytes(shape.tokens))?;
        let mut decode = |name, blob: &[u8], dtype, rows: &mut [u8]| match self.decoder.decode(blob, dtype, rows) {
            Ok(len) if len == rows.len() => Ok(()),
            Ok(len) => bail!(Corrupt, "the {name} blob of block {ticket} has {len} bytes; {} expected", rows.len()),
            Err(error) if error.status() == Status::OutOfMemory => Err(error),
            Err(error) => bail!(Corrupt, "the {name} blob of block {ticket} is damaged: {error}; it is kept"),
        };
        let (key, value) = raw.parts_mut();
        decode("key", blob.key(), shape.rows.key.words(), key)?;
        decode("value", blob.value(), shape.rows.value.words(), value)?;
        if raw.digest() != shape.digest {
            bail!(Corrupt, "block {ticket} decodes to other bytes than were submitted; its blobs are kept");
        }
        Ok(())
    }
}
