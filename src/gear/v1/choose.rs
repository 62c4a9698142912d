//! The predictor and the backend of a plane: from histograms and matches of a sample, or by trial of all.

use super::frame::Backend;
use super::predict::{self, Predictor};
use super::rle;
use crate::arch;
use crate::gear::options::Options;
use crate::gear::zstd::{self, Search};
use crate::gear::{estimate, histogram, matches};
use crate::status::Result;
use crate::sys::memory;

/// The predictor and the backend of a plane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) predictor: Predictor,
    pub(super) backend: Backend,
    /// Bytes of the payload.
    pub(super) len: usize,
}

/// The room that any candidate for a plane of `len` bytes needs.
pub(super) fn bound(len: usize) -> usize {
    rle::bound(len).max(zstd::bound(len))
}

/// Planes up to this length get every candidate at every effort: headers weigh as much as a wrong choice, and the bound
/// of a blob relies on RLE. In longer planes a sample of this length ranks predictors.
const SHORT: usize = 4096;

/// The start of a plane, which shows whether almost all bytes repeat.
const PIECE: usize = 24 << 10;

/// A coder of a plane's symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coder {
    Rle,
    Zstd(Search),
}

impl Coder {
    /// The coders of an exhaustive trial.
    const ALL: [Coder; 5] = [
        Coder::Rle,
        Coder::Zstd(Search::Literals),
        Coder::Zstd(Search::planes(4)),
        Coder::Zstd(Search::planes(7)),
        Coder::Zstd(Search::Level(3)),
    ];

    const fn backend(self) -> Backend {
        match self {
            Coder::Rle => Backend::Rle,
            Coder::Zstd(_) => Backend::Zstd,
        }
    }

    /// Writes the payload to `out`; returns its length.
    fn encode(self, symbols: &[u8], zstd: &mut zstd::Compressor, out: &mut [u8]) -> Result<usize> {
        match self {
            Coder::Rle => Ok(rle::encode(symbols, out)),
            Coder::Zstd(search) => zstd.encode(symbols, search, out),
        }
    }
}

/// Writes a payload for `plane` to `out`, which holds at least [`bound`] bytes: as small as the effort makes it. Equal
/// input gives equal output. `residual` and `trial` are working memory.
pub(super) fn encode(
    plane: &[u8],
    options: &Options,
    zstd: &mut zstd::Compressor,
    residual: &mut Vec<u8>,
    trial: &mut Vec<u8>,
    out: &mut [u8],
) -> Result<Choice> {
    let residual = memory::at_least(residual, plane.len())?;
    let effort = options.effort.get();
    let mut predictors = [(0, Predictor::Raw); Predictor::ALL.len()];
    let count = options.predictors.iter().zip(&mut predictors).map(|(p, slot)| slot.1 = p).count();
    let mut predictors = &mut predictors[..count];
    if effort <= 8 && plane.len() > SHORT {
        predictors = promising(plane, predictors, effort, residual);
    }
    let mut best: Option<Choice> = None;
    for (_, predictor) in predictors.iter().copied() {
        let symbols = match predictor {
            Predictor::Raw => plane,
            _ => {
                predict::residual(predictor, plane, residual);
                &*residual
            }
        };
        let coders: &[Coder] = if effort > 6 || plane.len() <= SHORT { &Coder::ALL } else { &[coder(symbols, effort)] };
        for coder in coders {
            let choice = |len| Choice { predictor, backend: coder.backend(), len };
            let Some(least) = best else {
                best = Some(choice(coder.encode(symbols, zstd, out)?));
                continue;
            };
            let trial = memory::at_least(trial, bound(plane.len()))?;
            let len = coder.encode(symbols, zstd, trial)?;
            if len < least.len {
                out[..len].copy_from_slice(&trial[..len]);
                best = Some(choice(len));
            }
        }
    }
    Ok(best.expect("a set of predictors is never empty"))
}

/// The predictors whose residuals promise the shortest codes: one, or two at efforts above 6, and raw at 2 and 3. Ranks
/// them in place, by an estimate from the start of the plane.
fn promising<'a>(
    plane: &[u8],
    all: &'a mut [(usize, Predictor)],
    effort: u8,
    residual: &mut [u8],
) -> &'a mut [(usize, Predictor)] {
    let residual = &mut residual[..SHORT];
    if effort > 1 && all.len() > 1 {
        for (estimate, predictor) in all.iter_mut() {
            predict::residual(*predictor, &plane[..SHORT], residual);
            *estimate = estimate::frame(&histogram::of(residual));
            // A prediction must pay for its time, and raw bytes have more matches.
            if *predictor == Predictor::Raw {
                *estimate -= *estimate / 64;
            }
        }
        all.sort_unstable_by_key(|(estimate, predictor)| (*estimate, *predictor as u8));
    }
    let mut count = all.len().min(if effort > 6 { 2 } else { 1 });
    if let (2 | 3, Some(raw @ 1..)) = (effort, all.iter().position(|(_, predictor)| *predictor == Predictor::Raw)) {
        // The candidate of effort 1 costs little.
        all.swap(1, raw);
        count = 2;
    }
    &mut all[..count]
}

/// The coder with the smallest expected payload for the symbols of a long plane.
fn coder(symbols: &[u8], effort: u8) -> Coder {
    // Almost all bytes repeat: runs are shortest.
    let piece = &symbols[..symbols.len().min(PIECE)];
    if (arch::kernels().repeats)(piece) > piece.len() / 16 * 15 {
        return Coder::Rle;
    }
    let survey = match effort {
        1..=3 => matches::Survey { is_noise: matches::is_noise(symbols), ..Default::default() },
        _ => matches::survey(symbols),
    };
    Coder::Zstd(survey.search.unwrap_or(if survey.is_noise { Search::Stored } else { Search::Literals }))
}
