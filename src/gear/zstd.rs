//! The ZSTD library: whole slices through contexts that are made on first use and kept.

use crate::status::{Error, Result, Status, bail};
use zstd_safe::{CCtx, CParameter, DCtx, ResetDirective, Strategy};

/// The first four bytes of a ZSTD frame, as a little-endian number.
const MAGIC: u32 = 0xFD2F_B528;

fn no_memory(what: &str) -> Error {
    Error::new(Status::OutOfMemory, format!("no memory for a ZSTD {what} context"))
}

fn internal(code: usize) -> Error {
    Error::new(Status::Internal, format!("ZSTD could not compress: {}", zstd_safe::get_error_name(code)))
}

/// The largest output for `len` input bytes.
pub(super) fn bound(len: usize) -> usize {
    zstd_safe::compress_bound(len)
}

/// How to search for matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    /// For byte lanes of a cache: matches are few and near, so tables that stay in the first-level cache find as much
    /// as larger ones. Sizes of level 3 or better in less time; `cargo bench --bench zstd` has the comparison.
    Lanes { min_match: u32, hash_log: u32 },
    /// The library's own choice for a level.
    Level(i32),
}

impl Search {
    /// [`Search::Lanes`] with the table that fits the first-level cache.
    pub(super) const fn lanes(min_match: u32) -> Self {
        Search::Lanes { min_match, hash_log: 12 }
    }

    /// A little smaller and slower where matches are short: a larger table.
    pub(super) const fn wider(self) -> Self {
        match self {
            Search::Lanes { min_match: 4, .. } => Search::Lanes { min_match: 4, hash_log: 14 },
            other => other,
        }
    }
}

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
            cctx.reset(ResetDirective::Parameters).map_err(internal)?;
            let parameters: &[CParameter] = match search {
                Search::Level(level) => &[CParameter::CompressionLevel(level)],
                Search::Lanes { min_match, hash_log } => &[
                    CParameter::CompressionLevel(3),
                    CParameter::Strategy(Strategy::ZSTD_dfast),
                    CParameter::HashLog(hash_log),
                    CParameter::ChainLog(12),
                    CParameter::MinMatch(min_match),
                ],
            };
            for parameter in parameters {
                cctx.set_parameter(*parameter).map_err(internal)?;
            }
            self.search = Some(search);
        }
        cctx.compress2(out, src).map_err(internal)
    }
}

#[derive(Default)]
pub(super) struct Decompressor(Option<DCtx<'static>>);

impl Decompressor {
    /// Decompresses `src`, which must be exactly one frame, into exactly `out`.
    pub(super) fn decode(&mut self, src: &[u8], out: &mut [u8]) -> Result<()> {
        let dctx = match &mut self.0 {
            Some(dctx) => dctx,
            none => none.insert(DCtx::try_create().ok_or_else(|| no_memory("decompression"))?),
        };
        let corrupt = |code| Error::new(Status::Corrupt, format!("ZSTD payload: {}", zstd_safe::get_error_name(code)));
        if src.first_chunk() != Some(&MAGIC.to_le_bytes()) {
            bail!(Corrupt, "ZSTD payload does not begin with a frame");
        }
        let frame_len = zstd_safe::find_frame_compressed_size(src).map_err(corrupt)?;
        if frame_len != src.len() {
            bail!(Corrupt, "ZSTD payload has {} bytes after its frame", src.len() - frame_len);
        }
        let len = dctx.decompress(out, src).map_err(corrupt)?;
        if len != out.len() {
            bail!(Corrupt, "ZSTD payload yields {len} bytes; its frame announces {}", out.len());
        }
        Ok(())
    }
}
