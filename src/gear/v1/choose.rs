//! Which predictor and backend a lane gets: from histograms and matches of a piece of it, or by trying them all.

use super::frame::Backend;
use super::predict::{self, Predictor};
use super::rle;
use crate::arch;
use crate::gear::options::Options;
use crate::gear::zstd::{self, Search};
use crate::gear::{entropy, histogram, matches};
use crate::status::Result;
use crate::sys::memory;

/// What a lane got.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) predictor: Predictor,
    pub(super) backend: Backend,
    /// Bytes of the payload.
    pub(super) len: usize,
}

/// The room that any candidate for a lane of `len` bytes needs.
pub(super) fn bound(len: usize) -> usize {
    rle::bound(len).max(zstd::bound(len)).max(entropy::bound(len))
}

/// Lanes up to this long get every candidate at every effort: headers weigh as much as a wrong choice, and the bound of a
/// blob counts on RLE. Of longer ones as much is looked at to rank predictors.
const SHORT: usize = 4096;

/// How a lane's symbols become a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coder {
    Rle,
    /// ZSTD frames of Raw blocks.
    Stored,
    /// ZSTD frames of Huffman codes.
    Literals,
    /// ZSTD frames with matches.
    Matches(Search),
}

impl Coder {
    /// What is tried when everything is.
    const ALL: [Coder; 5] = [
        Coder::Rle,
        Coder::Literals,
        Coder::Matches(Search::lanes(4)),
        Coder::Matches(Search::lanes(7)),
        Coder::Matches(Search::Level(3)),
    ];

    const fn backend(self) -> Backend {
        match self {
            Coder::Rle => Backend::Rle,
            _ => Backend::Zstd,
        }
    }

    /// Writes the payload to `out`; returns its length.
    fn encode(self, symbols: &[u8], zstd: &mut zstd::Compressor, out: &mut [u8]) -> Result<usize> {
        Ok(match self {
            Coder::Rle => rle::encode(symbols, out),
            Coder::Stored => entropy::stored(symbols, out),
            Coder::Literals => entropy::literals(symbols, out),
            Coder::Matches(search) => zstd.encode(symbols, search, out)?,
        })
    }
}

/// Writes a payload for `lane` to `out`, which holds at least [`bound`] bytes: as small as the effort makes it. Equal
/// input gives equal output. `residual` and `trial` are working memory.
pub(super) fn encode(
    lane: &[u8],
    options: &Options<'_>,
    zstd: &mut zstd::Compressor,
    residual: &mut Vec<u8>,
    trial: &mut Vec<u8>,
    out: &mut [u8],
) -> Result<Choice> {
    let residual = memory::at_least(residual, lane.len())?;
    let effort = options.effort.get();
    let mut predictors = [(0, Predictor::Raw); Predictor::ALL.len()];
    let count = options.predictors.iter().zip(&mut predictors).map(|(p, slot)| slot.1 = p).count();
    let mut predictors = &mut predictors[..count];
    if effort <= 8 && lane.len() > SHORT {
        predictors = promising(lane, predictors, effort, residual);
    }
    let mut best: Option<Choice> = None;
    for (_, predictor) in predictors.iter().copied() {
        let symbols = match predictor {
            Predictor::Raw => lane,
            _ => {
                predict::residual(predictor, lane, residual);
                &*residual
            }
        };
        let coders: &[Coder] = if effort > 6 || lane.len() <= SHORT { &Coder::ALL } else { &[coder(symbols, effort)] };
        for coder in coders {
            let choice = |len| Choice { predictor, backend: coder.backend(), len };
            let Some(least) = best else {
                best = Some(choice(coder.encode(symbols, zstd, out)?));
                continue;
            };
            let trial = memory::at_least(trial, bound(lane.len()))?;
            let len = coder.encode(symbols, zstd, trial)?;
            if len < least.len {
                out[..len].copy_from_slice(&trial[..len]);
                best = Some(choice(len));
            }
        }
    }
    Ok(best.expect("a set of predictors is never empty"))
}

/// The predictors whose residuals promise the shortest codes: one, or at efforts above 6 two, and raw at 2 and 3. Ranks them in place, by
/// an estimate of the bytes of a piece.
fn promising<'a>(
    lane: &[u8],
    all: &'a mut [(usize, Predictor)],
    effort: u8,
    residual: &mut [u8],
) -> &'a mut [(usize, Predictor)] {
    let residual = &mut residual[..SHORT];
    if effort > 1 && all.len() > 1 {
        for (estimate, predictor) in all.iter_mut() {
            predict::residual(*predictor, &lane[..SHORT], residual);
            *estimate = entropy::estimate(&histogram::of(residual));
            // A prediction must pay for the time that it takes, and matches thrive on what is as it was.
            if *predictor == Predictor::Raw {
                *estimate -= *estimate / 64;
            }
        }
        all.sort_unstable_by_key(|(estimate, predictor)| (*estimate, *predictor as u8));
    }
    let mut count = all.len().min(if effort > 6 { 2 } else { 1 });
    if let (2 | 3, Some(raw @ 1..)) = (effort, all.iter().position(|(_, predictor)| *predictor == Predictor::Raw)) {
        // The way of effort 1 costs little.
        all.swap(1, raw);
        count = 2;
    }
    &mut all[..count]
}

/// The coder that promises the least for the symbols of a long lane.
fn coder(symbols: &[u8], effort: u8) -> Coder {
    // Almost everything repeats: the two bytes of a run stand for many.
    let piece = &symbols[..symbols.len().min(matches::PIECE)];
    if (arch::kernels().repeats)(piece) > piece.len() / 16 * 15 {
        return Coder::Rle;
    }
    let survey = matches::survey(piece);
    match survey.search {
        Some(search) if effort > 3 => Coder::Matches(search),
        _ if survey.is_noise => Coder::Stored,
        _ => Coder::Literals,
    }
}
