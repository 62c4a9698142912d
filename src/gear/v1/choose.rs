//! Which predictor and backend a lane gets: all are tried, the smallest payload wins.

use super::frame::{Backend, Frame};
use super::predict::{self, Predictor};
use super::rle;
use crate::gear::options::Options;
use crate::gear::zstd;
use crate::status::{self, Result};

/// Working memory for one lane.
#[derive(Default)]
pub(super) struct Scratch {
    residual: Vec<u8>,
    /// The payload under trial, and the best so far.
    trial: Vec<u8>,
    best: Vec<u8>,
}

/// The smallest encoding of `lane`. Predictors are tried in the order raw, delta_seq, xor_seq, RLE before ZSTD for
/// each; a candidate replaces the best only when strictly smaller, so equal input gives equal output.
pub(super) fn choose<'a>(
    lane: &[u8],
    options: &Options<'_>,
    zstd: &mut zstd::Compressor,
    scratch: &'a mut Scratch,
) -> Result<Frame<'a>> {
    let Scratch { residual, trial, best } = scratch;
    let payload_bound = rle::bound(lane.len()).max(zstd::bound(lane.len()));
    status::resize(residual, lane.len())?;
    status::resize(trial, payload_bound)?;
    status::resize(best, payload_bound)?;

    let mut winner = (Predictor::Raw, Backend::Rle, usize::MAX);
    for predictor in options.predictors.v1() {
        let symbols = match predictor {
            Predictor::Raw => lane,
            _ => {
                predict::residual(predictor, lane, residual);
                &residual[..]
            }
        };
        for backend in [Backend::Rle, Backend::Zstd] {
            let len = match backend {
                Backend::Rle => rle::encode(symbols, trial),
                Backend::Zstd => zstd.encode(symbols, 3, trial)?,
            };
            if len < winner.2 {
                winner = (predictor, backend, len);
                std::mem::swap(trial, best);
            }
        }
    }
    let (predictor, backend, len) = winner;
    Ok(Frame { predictor, backend, payload: &best[..len] })
}
