//! A section to its payload and back.

use super::plan::{Plan, Section};
use super::streams::Origin;
use super::table;
use super::{corrupt, streams};
use crate::bytes::Reader;
use crate::dtype::Dtype;
use crate::gear::{Decoder, Effort, Encoder, Format, Options};
use crate::status::{Result, bail};
use crate::sys::memory;

/// A stream begins with its codec and its length.
const STREAM_HEAD: usize = 9;
/// Codecs: the bytes as they are; a gear blob of the stream's type, or of another one, in opaque bytes alone.
const STORED: u8 = 0;
const GEAR: u8 = 1;
const GEAR_F16: u8 = 2;
const GEAR_F32: u8 = 3;

/// Opaque bytes have no channels: gear v2 finds matches in them from this effort on.
const MATCHES: i32 = 4;

/// Opaque bytes of less than this are bytes. Others have the width of the words that a sample of this length, from their
/// middle, is smallest as.
const SAMPLE: usize = 16 << 10;

/// The most bytes of a payload.
pub(super) fn bound(plan: &Plan, section: &Section) -> usize {
    let mut bound = 0;
    let sum = streams::for_each(plan, section, |stream| {
        bound += STREAM_HEAD + stream.len();
        Ok(())
    });
    debug_assert!(sum.is_ok());
    bound
}

/// The type of words, and the codec, that opaque bytes are probably smallest as.
fn opaque_type(encoder: &mut Encoder, bytes: &[u8], columns: usize) -> Result<(Dtype, u8)> {
    let mut best = (Dtype::Int8, GEAR);
    if bytes.len() < SAMPLE || columns != 1 {
        return Ok(best);
    }
    let sample = &bytes[(bytes.len() - SAMPLE) / 16 * 8..][..SAMPLE];
    let mut least = usize::MAX;
    for (dtype, codec) in [(Dtype::Int8, GEAR), (Dtype::F16, GEAR_F16), (Dtype::F32, GEAR_F32)] {
        let len = encoder.encode(sample, dtype, &Options::new(Format::Checked))?.len();
        if len < least && bytes.len().is_multiple_of(dtype.bytes()) {
            (best, least) = ((dtype, codec), len);
        }
    }
    Ok(best)
}

/// Working memory of a thread.
#[derive(Default)]
pub(super) struct Worker {
    encoder: Encoder,
    decoder: Decoder,
    room: Vec<u8>,
}

impl Worker {
    /// Encodes the section `raw` to `out`, of at least [`bound`] bytes; returns the length.
    pub(super) fn encode(
        &mut self,
        plan: &Plan,
        section: &Section,
        raw: &[u8],
        effort: Effort,
        out: &mut [u8],
    ) -> Result<usize> {
        let mut len = 0;
        streams::for_each(plan, section, |stream| {
            let words = stream.gather(raw, &mut self.room)?;
            let mut options = Options { effort, ..Options::new(Format::Checked) };
            let (mut dtype, mut codec) = (stream.dtype, GEAR);
            if stream.origin == Origin::Opaque {
                (dtype, codec) = opaque_type(&mut self.encoder, words, stream.columns())?;
                options.effort = options.effort.max(Effort::new(MATCHES, "effort")?);
            }
            let blob = self.encoder.encode(words, dtype, &options)?;
            let (codec, bytes) = if blob.len() < words.len() { (codec, blob) } else { (STORED, words) };
            let (head, body) = out[len..].split_at_mut(STREAM_HEAD);
            head[0] = codec;
            head[1..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
            body[..bytes.len()].copy_from_slice(bytes);
            len += STREAM_HEAD + bytes.len();
            Ok(())
        })?;
        Ok(len)
    }

    /// Decodes a payload to the section `raw`.
    pub(super) fn decode(&mut self, plan: &Plan, section: &Section, payload: &[u8], raw: &mut [u8]) -> Result<()> {
        let mut rest = Reader::new(payload);
        streams::for_each(plan, section, |stream| {
            let codec = rest.byte("the codec of a stream")?;
            let len = table::length(&mut rest, "the length of a stream")?;
            let bytes = rest.take(len, "a stream")?;
            let words = if stream.is_whole() { &mut *raw } else { memory::at_least(&mut self.room, stream.len())? };
            let decoded_len = match codec {
                STORED if bytes.len() == words.len() => {
                    words.copy_from_slice(bytes);
                    words.len()
                }
                STORED => bytes.len(),
                GEAR..=GEAR_F32 if codec == GEAR || stream.origin == Origin::Opaque => {
                    let dtype = [stream.dtype, Dtype::F16, Dtype::F32][codec as usize - 1];
                    self.decoder.decode(bytes, dtype, words).map_err(corrupt)?
                }
                codec => bail!(Corrupt, "a stream has codec {codec}; 0, 1 or, if opaque, 2 or 3 expected"),
            };
            if decoded_len != words.len() {
                bail!(Corrupt, "a stream has {decoded_len} bytes; {} expected", words.len());
            }
            if !stream.is_whole() {
                stream.scatter(&self.room[..decoded_len], raw);
            }
            Ok(())
        })?;
        rest.end("the last stream")
    }
}
