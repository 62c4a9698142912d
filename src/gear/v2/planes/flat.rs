//! Flat blobs: the byte planes of all words, each as one group, which keeps matches whole.

use super::predict::Predictor;
use super::{group, room};
use crate::bytes::Reader;
use crate::gear::codec::Context;
use crate::gear::matches;
use crate::gear::zstd::{self, Search};
use crate::status::{Result, bail};
use crate::sys::memory;

/// Appends planes of equal length to `out`; `surveys` has one survey for each.
pub(in crate::gear::v2) fn encode_flat(
    planes: &[u8],
    surveys: &[matches::Survey],
    zstd: &mut zstd::Compressor,
    payload: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<()> {
    let len = planes.len() / surveys.len();
    let payload = memory::at_least(payload, room(len))?;
    for (plane, survey) in planes.chunks_exact(len).zip(surveys) {
        let coded = match survey.search {
            Some(search) => zstd.encode(plane, search.wider(), payload)?,
            None if survey.is_noise => len,
            None => zstd.encode(plane, Search::Literals, payload)?,
        };
        group::push(plane, &payload[..coded.min(len)], out)?;
    }
    Ok(())
}

/// Replaces `planes`, of `len` bytes each, by those that [`encode_flat`] wrote.
pub(in crate::gear::v2) fn decode_flat(
    mut body: Reader<'_>,
    len: usize,
    context: &mut Context<'_>,
    planes: &mut [u8],
) -> Result<()> {
    for (number, plane) in planes.chunks_exact_mut(len).enumerate() {
        let group = group::read(&mut body, number, len)?;
        if group.predictor != Predictor::Raw {
            bail!(Unsupported, "plane {number} with predictor {:?}; a flat blob has none", group.predictor);
        }
        group.decode_into(context, plane)?;
    }
    body.end("the body")
}
