//! Blobs to words, in pieces.

use super::container::{Header, Kind};
use super::form;
use super::plane::Plane;
use crate::arch::lanes::Source;
use crate::arch::prefetch;
use crate::dtype::Dtype;
use crate::gear::checksum::Checksum;
use crate::status::{Error, Result, bail};

/// Bytes of a blob's end and of a coded plane's start that are asked for at once.
const ENDS: usize = 256;

/// Words of a piece: whole steps, and four planes and the words of F32 fit a cache of 32 KiB.
const PIECE: usize = 2048;

/// Working memory of a decoder. It carries no contents from one call to the next.
pub(in crate::gear) struct Decoder {
    planes: [Plane; 4],
    /// Symbols of a piece.
    symbols: [[u8; PIECE]; 4],
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder { planes: [Plane::EMPTY; 4], symbols: [[0; PIECE]; 4] }
    }
}

/// The source of a plane's symbols.
#[derive(Clone, Copy)]
enum Part<'a> {
    Raw(&'a [u8]),
    /// The symbols of a piece are always the same.
    Constant,
    Coded(Source<'a>),
}

/// The decoded length in bytes that a blob announces.
pub(in crate::gear) fn decoded_len(blob: &[u8], dtype: Dtype) -> Result<usize> {
    Ok(Header::read(blob, dtype)?.0.decoded_len)
}

impl Decoder {
    /// Decodes `blob` to the start of `words` and returns the length in bytes. After a failure the contents of that part
    /// are undefined.
    pub(in crate::gear) fn decode(&mut self, blob: &[u8], dtype: Dtype, words: &mut [u8]) -> Result<usize> {
        let (header, mut rest) = Header::read(blob, dtype)?;
        let len = header.decoded_len;
        let capacity = words.len();
        let Some(words) = words.get_mut(..len) else {
            return Err(Error::too_small("dst_cap (bytes)", capacity, len));
        };
        let count = len / dtype.bytes();
        // Blobs are cold: a code and the first bits of its lanes are far from the header.
        prefetch(&rest.rest()[rest.rest().len().saturating_sub(ENDS)..]);
        let mut parts = [Part::Constant; 4];
        for (i, part) in parts.iter_mut().enumerate().take(dtype.bytes()) {
            *part = match header.kinds[i] {
                Kind::Raw => {
                    let plane = rest.take(count, "a raw plane")?;
                    prefetch(&plane[..count.min(PIECE)]);
                    prefetch(&rest.rest()[..rest.rest().len().min(ENDS)]);
                    Part::Raw(plane)
                }
                Kind::Constant => {
                    self.symbols[i].fill(rest.take(1, "a constant plane")?[0]);
                    Part::Constant
                }
                Kind::Coded => Part::Coded(self.planes[i].begin(&mut rest, header.lanes)?),
            };
        }
        rest.end("the last plane")?;
        let coded = super::plane::coded_len(count, header.lanes);
        let mut checksum = Checksum::new();
        for first in (0..coded).step_by(PIECE) {
            for part in &parts {
                if let Part::Raw(plane) = part {
                    prefetch(&plane[count.min(first + PIECE)..count.min(first + 2 * PIECE)]);
                }
            }
            let end = coded.min(first + PIECE) * dtype.bytes();
            self.piece(&parts, dtype, first, &mut words[first * dtype.bytes()..end], false)?;
            checksum.advance(words, end);
        }
        self.piece(&parts, dtype, coded, &mut words[coded * dtype.bytes()..], true)?;
        if checksum.finish(words) != header.checksum {
            bail!(Corrupt, "the decoded words' checksum does not match: the blob is damaged");
        }
        Ok(len)
    }

    /// Decodes the words from number `first` on to `words`: whole steps, or what is behind them.
    fn piece(
        &mut self,
        parts: &[Part<'_>; 4],
        dtype: Dtype,
        first: usize,
        words: &mut [u8],
        is_last: bool,
    ) -> Result<()> {
        let count = words.len() / dtype.bytes();
        for ((part, plane), symbols) in parts.iter().zip(&mut self.planes).zip(&mut self.symbols) {
            if let Part::Coded(source) = part {
                // The words of INT8 are their only plane.
                let symbols = if dtype == Dtype::Int8 { &mut *words } else { &mut symbols[..count] };
                match is_last {
                    false => plane.decode(source, symbols)?,
                    true => plane.end(source, symbols)?,
                }
            }
        }
        if let (Dtype::Int8, Part::Coded(_)) = (dtype, parts[0]) {
            return Ok(());
        }
        let planes = std::array::from_fn(|i| match parts[i] {
            Part::Raw(bytes) => &bytes[first..first + count],
            _ => &self.symbols[i][..count],
        });
        form::join(dtype, &planes, words);
        Ok(())
    }
}
