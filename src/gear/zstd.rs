//! The ZSTD library: whole slices through contexts that are made on first use and kept.

use crate::status::{Error, Result, Status, bail};
use zstd_safe::{CCtx, DCtx};

/// The first four bytes of a ZSTD frame, as a little-endian number.
const MAGIC: u32 = 0xFD2F_B528;

fn no_memory(what: &str) -> Error {
    Error::new(Status::OutOfMemory, format!("no memory for a ZSTD {what} context"))
}

/// The largest output for `len` input bytes.
pub(super) fn bound(len: usize) -> usize {
    zstd_safe::compress_bound(len)
}

#[derive(Default)]
pub(super) struct Compressor(Option<CCtx<'static>>);

impl Compressor {
    /// Compresses `src` into one frame in `out`, which holds at least [`bound`] bytes; returns the length.
    pub(super) fn encode(&mut self, src: &[u8], level: i32, out: &mut [u8]) -> Result<usize> {
        let cctx = match &mut self.0 {
            Some(cctx) => cctx,
            none => none.insert(CCtx::try_create().ok_or_else(|| no_memory("compression"))?),
        };
        cctx.compress(out, src, level).map_err(|code| {
            Error::new(Status::Internal, format!("ZSTD could not compress: {}", zstd_safe::get_error_name(code)))
        })
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
