//! The codec of one block: rows to blobs, and back with a check of the digests.

use super::blob::{Blob, Part};
use super::kv::KvBytes;
use crate::gear::{Decoder, Effort, Encoder, Format, Options, Predictors};
use crate::layout::Rows;
use crate::run::Run;
use crate::status::{Result, Status, bail};
use crate::sys::memory;
use xxhash_rust::xxh3::xxh3_64;

/// How blocks are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// Predictors that are tried on K.
    pub key_predictors: Predictors,
    /// Predictors that are tried on V.
    pub value_predictors: Predictors,
    /// How long the encoder searches.
    pub effort: Effort,
    /// Every block is decoded once after encoding, and compared.
    pub strict_roundtrip: bool,
}

impl Default for Encoding {
    fn default() -> Self {
        Encoding {
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

impl BlockShape {
    /// Parts of K, and as many of V.
    pub(super) fn parts(&self) -> usize {
        self.rows.parts()
    }

    /// All tokens, from `begin` of the cache on.
    pub(super) fn all_from(&self, begin: u32) -> Result<Vec<Run>> {
        memory::copied(&[Run { of: (), offset: 0, begin, count: self.tokens as u32 }])
    }

    /// Raw bytes.
    pub(super) fn raw_len(&self) -> usize {
        self.tokens * self.rows.token_bytes()
    }

    /// K and V of each part in `raw`, which takes the size of the rows.
    fn parts_of<'a>(&self, raw: &'a mut KvBytes) -> Result<impl Iterator<Item = (&'a mut [u8], &'a mut [u8])>> {
        let (key_bytes, value_bytes) = (self.rows.key_bytes(self.tokens), self.rows.value_bytes(self.tokens));
        raw.fit(key_bytes, value_bytes)?;
        let (key, value) = raw.parts_mut();
        let parts = self.parts();
        Ok(key.chunks_exact_mut(key_bytes / parts).zip(value.chunks_exact_mut(value_bytes / parts)))
    }
}

/// Encoder, decoder and their working memory, kept from block to block: one on the host's thread, one per worker and lane.
#[derive(Default)]
pub(super) struct Codec {
    encoder: Encoder,
    decoder: Decoder,
    blob: Vec<u8>,
    parts: Vec<Part>,
}

impl Codec {
    /// Returns the blobs of `raw`, or `None` when together they would not be smaller.
    pub(super) fn encode(&mut self, shape: &BlockShape, raw: &KvBytes, encoding: &Encoding) -> Result<Option<Blob>> {
        let rows = &shape.rows;
        memory::cleared(&mut self.blob, 0)?;
        memory::cleared(&mut self.parts, 2 * shape.parts())?;
        for (raw, words, predictors) in [
            (raw.key(), rows.key.words(), encoding.key_predictors),
            (raw.value(), rows.value.words(), encoding.value_predictors),
        ] {
            let options = Options { format: Format::V1, predictors, effort: encoding.effort };
            for part in raw.chunks_exact(raw.len() / shape.parts()) {
                let blob = self.encoder.encode(part, words, &options)?;
                memory::extend(&mut self.blob, blob)?;
                memory::push(&mut self.parts, Part { end: self.blob.len(), digest: Some(xxh3_64(part)) })?;
            }
        }
        if self.blob.len() >= raw.len() {
            return Ok(None);
        }
        Blob::new(&self.blob, &self.parts).map(Some)
    }

    /// INTERNAL: if `blob` does not decode to exactly `raw`.
    pub(super) fn compare(&mut self, shape: &BlockShape, blob: &Blob, raw: &KvBytes) -> Result<()> {
        let mut back = KvBytes::new(raw.key().len(), raw.value().len())?;
        self.decode(shape, blob, &mut back)?;
        if back.key() != raw.key() || back.value() != raw.value() {
            bail!(Internal, "block {} does not decode to what was encoded", shape.ticket);
        }
        Ok(())
    }

    /// Decodes all blobs into `raw`, which takes the size of the rows. CORRUPT: if a blob is damaged or does not decode to
    /// the submitted bytes.
    pub(super) fn decode(&mut self, shape: &BlockShape, blob: &Blob, raw: &mut KvBytes) -> Result<()> {
        for (part, (key, value)) in shape.parts_of(raw)?.enumerate() {
            self.decode_part(shape, blob, part, key, value)?;
        }
        Ok(())
    }

    /// Decodes part `part` of K and of V into memory of exactly their sizes. CORRUPT: as [`Codec::decode`].
    pub(super) fn decode_part(
        &mut self,
        shape: &BlockShape,
        blob: &Blob,
        part: usize,
        key: &mut [u8],
        value: &mut [u8],
    ) -> Result<()> {
        let ticket = shape.ticket;
        for (name, at, words, rows) in [
            ("key", part, shape.rows.key.words(), key),
            ("value", shape.parts() + part, shape.rows.value.words(), value),
        ] {
            let (bytes, digest) = blob.part(at);
            match self.decoder.decode(bytes, words, rows) {
                Ok(len) if len == rows.len() => {}
                Ok(len) => bail!(
                    Corrupt,
                    "{name} blob {part} of block {ticket} has {len} bytes; {} expected; it is kept",
                    rows.len()
                ),
                Err(error) if error.status() == Status::OutOfMemory => return Err(error),
                Err(error) => {
                    bail!(Corrupt, "{name} blob {part} of block {ticket} is damaged: {error}; it is kept")
                }
            }
            if digest.is_some_and(|digest| xxh3_64(rows) != digest) {
                bail!(
                    Corrupt,
                    "{name} blob {part} of block {ticket} decodes to other bytes than were submitted; it is kept"
                );
            }
        }
        Ok(())
    }
}
