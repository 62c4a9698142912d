//! The ZSTD library: whole slices through contexts that are made on first use and retained.

use super::budget::Budget;
use crate::status::{Error, Result, bail, error};
use zstd_safe::{CCtx, CParameter, DCtx, ParamSwitch, ResetDirective, Strategy};

/// The first four bytes of a ZSTD frame, as a little-endian number.
const MAGIC: u32 = 0xFD2F_B528;

/// ZSTD's result without memory: the negative of ZSTD_error_memory_allocation.
const NO_MEMORY: usize = 64usize.wrapping_neg();

fn no_memory(what: &str) -> Error {
    error!(OutOfMemory, "no memory for a ZSTD {what} context")
}

fn not_compressed(code: usize) -> Error {
    match code {
        NO_MEMORY => no_memory("compression"),
        _ => error!(Internal, "ZSTD could not compress: {}", zstd_safe::get_error_name(code)),
    }
}

fn not_decompressed(code: usize) -> Error {
    match code {
        NO_MEMORY => no_memory("decompression"),
        _ => error!(Corrupt, "ZSTD payload: {}", zstd_safe::get_error_name(code)),
    }
}

/// The largest output for `len` input bytes.
pub(super) fn bound(len: usize) -> usize {
    zstd_safe::compress_bound(len)
}

/// A search for matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    /// None, and no codes: the bytes themselves.
    Stored,
    /// None: Huffman codes of single bytes alone, or the bytes themselves where those are shorter, or less than 64.
    Literals,
    /// For byte planes of a cache: matches are few and near, so tables that stay in the first-level cache find as much
    /// as larger ones. Sizes of level 3 or better in less time.
    Planes { min_match: u32, hash_log: u32, chain_log: u32 },
    /// As [`Search::Planes`], with one table: finds a little less in two thirds of the time.
    Fast { min_match: u32, hash_log: u32 },
    /// The library's own choice for a level, with tables of at most [`TABLE_LOG`].
    Level(i32),
}

impl Search {
    /// [`Search::Planes`] with the table that fits the first-level cache.
    pub(super) const fn planes(min_match: u32) -> Self {
        Search::Planes { min_match, hash_log: 12, chain_log: 12 }
    }

    /// [`Search::Fast`] with the table that fits the first-level cache.
    pub(super) const fn fast(min_match: u32) -> Self {
        Search::Fast { min_match, hash_log: 13 }
    }
}

/// The power of two of the entries of the largest tables, which bounds a context. A level's own tables save less than
/// 0.1% of a plane of a cache beyond that.
const TABLE_LOG: u32 = 16;

/// The most bytes of a compression context.
#[cfg(test)]
const COMPRESSION_CONTEXT: usize = 5 << 18;

/// The bytes of a decompression context, rounded up.
pub(super) const DECOMPRESSION_CONTEXT: usize = 128 << 10;

#[derive(Default)]
pub(super) struct Compressor {
    cctx: Option<CCtx<'static>>,
    search: Option<Search>,
}

impl Compressor {
    /// Compresses `src` into one frame in `out`, which holds at least [`bound`] bytes; returns the length.
    pub(super) fn encode(&mut self, src: &[u8], search: Search, out: &mut [u8]) -> Result<usize> {
        let cctx = match &mut self.cctx {
            Some(cctx) => cctx,
            none => none.insert(CCtx::try_create().ok_or_else(|| no_memory("compression"))?),
        };
        if self.search != Some(search) {
            self.search = None;
            cctx.reset(ResetDirective::Parameters).map_err(not_compressed)?;
            let parameters: &[CParameter] = match search {
                // The longest steps, so that next to nothing is searched.
                Search::Stored | Search::Literals => &[
                    CParameter::CompressionLevel(1),
                    CParameter::Strategy(Strategy::ZSTD_fast),
                    CParameter::HashLog(6),
                    CParameter::MinMatch(7),
                    CParameter::TargetLength(1 << 17),
                    CParameter::LiteralCompressionMode(match search {
                        Search::Stored => ParamSwitch::Disable,
                        _ => ParamSwitch::Enable,
                    }),
                ],
                Search::Level(level) => &[
                    CParameter::CompressionLevel(level),
                    CParameter::HashLog(TABLE_LOG),
                    CParameter::ChainLog(TABLE_LOG),
                ],
                Search::Planes { min_match, hash_log, chain_log } => &[
                    CParameter::CompressionLevel(3),
                    CParameter::Strategy(Strategy::ZSTD_dfast),
                    CParameter::HashLog(hash_log),
                    CParameter::ChainLog(chain_log),
                    CParameter::MinMatch(min_match),
                ],
                Search::Fast { min_match, hash_log } => &[
                    CParameter::CompressionLevel(1),
                    CParameter::Strategy(Strategy::ZSTD_fast),
                    CParameter::HashLog(hash_log),
                    CParameter::MinMatch(min_match),
                ],
            };
            for parameter in parameters {
                cctx.set_parameter(*parameter).map_err(not_compressed)?;
            }
            self.search = Some(search);
        }
        cctx.compress2(out, src).map_err(not_compressed)
    }
}

#[derive(Default)]
pub(super) struct Decompressor(Option<DCtx<'static>>);

impl Decompressor {
    /// Decompresses `src`, which must be exactly one frame, into exactly `out`.
    pub(super) fn decode(&mut self, src: &[u8], out: &mut [u8], budget: &mut Budget) -> Result<()> {
        let dctx = match &mut self.0 {
            Some(dctx) => dctx,
            none => {
                budget.take(DECOMPRESSION_CONTEXT)?;
                none.insert(DCtx::try_create().ok_or_else(|| no_memory("decompression"))?)
            }
        };
        if src.first_chunk() != Some(&MAGIC.to_le_bytes()) {
            bail!(Corrupt, "ZSTD payload does not begin with a frame");
        }
        let frame_len = zstd_safe::find_frame_compressed_size(src).map_err(not_decompressed)?;
        if frame_len != src.len() {
            bail!(Corrupt, "ZSTD payload has {} bytes after its frame", src.len() - frame_len);
        }
        let len = dctx.decompress(out, src).map_err(not_decompressed)?;
        if len != out.len() {
            bail!(Corrupt, "ZSTD payload yields {len} bytes; its frame announces {}", out.len());
        }
        Ok(())
    }

    /// The bytes of the context that is held.
    pub(super) fn held(&self) -> usize {
        if self.0.is_some() { DECOMPRESSION_CONTEXT } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_no_larger_than_what_is_counted_for_them() {
        let dctx = DCtx::try_create().unwrap();
        assert!(dctx.sizeof() <= DECOMPRESSION_CONTEXT, "{}", dctx.sizeof());
        let src: Vec<u8> = (0..4_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 25) as u8).collect();
        let mut out = vec![0; bound(src.len())];
        let levels = [1, 3, 9].map(Search::Level);
        for search in [Search::Literals, Search::planes(4), Search::planes(7)].into_iter().chain(levels) {
            let mut compressor = Compressor::default();
            compressor.encode(&src, search, &mut out).unwrap();
            let size = compressor.cctx.unwrap().sizeof();
            assert!(size <= COMPRESSION_CONTEXT, "{search:?}: {size}");
        }
    }
}
