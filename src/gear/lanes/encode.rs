//! Words to a blob.

use super::choose::{Choice, choose};
use super::container::{HEADER_BOUND, Header, Kind};
use super::{form, plane};
use crate::dtype::Dtype;
use crate::gear::checksum::checksum;
use crate::gear::codec::Buffers;
use crate::status::{Result, bail};
use crate::sys::memory;

/// From this number of words on there are 128 lanes, which are faster and cost about 140 bytes of every coded plane in
/// place of 70.
const WIDE: usize = 8192;

/// The largest blob for `src_len` bytes, or `None` if they are no words.
pub(in crate::gear) fn bound(src_len: usize, dtype: Dtype) -> Option<usize> {
    let whole = src_len > 0 && src_len.is_multiple_of(dtype.bytes());
    src_len.checked_add(HEADER_BOUND).filter(|bound| whole && *bound <= isize::MAX as usize)
}

/// Encodes `words`, a whole number of words and at least one, to `buffers.blob`.
pub(in crate::gear) fn encode<'a>(words: &[u8], dtype: Dtype, buffers: &'a mut Buffers) -> Result<&'a [u8]> {
    let Some(bound) = bound(words.len(), dtype) else {
        bail!(InvalidArgument, "src_len is {}; a multiple of {}, at least one, expected", words.len(), dtype.bytes());
    };
    let count = words.len() / dtype.bytes();
    let lanes = if count < WIDE { 64 } else { 128 };
    let checksum = checksum(words);
    let mut header = Header { dtype, kinds: [Kind::Raw; 4], lanes, decoded_len: words.len(), checksum };

    let Buffers { blob, other: streams, planes, grouped: turned } = buffers;
    let blob = memory::at_least(blob, bound)?;
    let planes = match dtype {
        Dtype::Int8 => words,
        _ => {
            let turned_len = if dtype == Dtype::F16 { 0 } else { words.len() };
            let planes = &mut memory::at_least(planes, words.len())?[..words.len()];
            form::split(dtype, words, &mut memory::at_least(turned, turned_len)?[..turned_len], planes);
            planes
        }
    };
    let mut len = header.write(blob);
    for (plane, kind) in planes.chunks_exact(count).zip(&mut header.kinds) {
        let to = &mut blob[len..len + count];
        let mut part_len = None;
        match choose(plane, plane::coded_len(count, lanes)) {
            Choice::Constant => (*kind, to[0], part_len) = (Kind::Constant, plane[0], Some(1)),
            Choice::Coded(code) => {
                part_len = plane::encode(plane, &code, lanes, streams, to)?;
                *kind = if part_len.is_some() { Kind::Coded } else { Kind::Raw };
            }
            Choice::Raw => {}
        }
        len += part_len.unwrap_or_else(|| {
            to.copy_from_slice(plane);
            count
        });
    }
    header.write(blob);
    Ok(&blob[..len])
}
