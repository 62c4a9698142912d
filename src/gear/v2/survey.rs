//! A look at a sample of a plane, so that hopeless codings are never run.

use super::cluster;
use super::planes::Shape;
use super::predict::{self, Predictor, Unit};
use crate::arch;
use crate::gear::histogram;
use crate::gear::options::{Effort, Predictors};
use crate::status::Result;
use crate::sys::memory;

/// What to do with a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// The values are spread evenly: no code is shorter than 8 bits.
    pub(super) noise: bool,
    pub(super) predictor: Predictor,
}

/// A sample of the plane, and what it says of every channel.
pub(super) struct Survey {
    pub(super) counts: [u32; 256],
    pub(super) verdicts: Vec<Verdict>,
}

impl Survey {
    /// The verdicts that there are.
    pub(super) fn kinds(&self) -> impl Iterator<Item = Verdict> {
        let noise = Verdict { noise: true, predictor: Predictor::Raw };
        let coded = Predictor::ALL.map(|predictor| Verdict { noise: false, predictor });
        std::iter::once(noise).chain(coded).filter(|kind| self.verdicts.contains(kind))
    }
}

/// Rows come from this many places of a channel.
const PIECES: usize = 4;

/// Surveys plane number `plane` of `planes`. `allowed` are the predictors to choose from.
pub(super) fn survey(
    planes: &[u8],
    shape: &Shape,
    plane: usize,
    allowed: Predictors,
    effort: Effort,
) -> Result<Survey> {
    let Shape { channels, rows, .. } = *shape;
    let sampled = if effort == Effort::MAX { rows } else { (rows / 8).clamp(64, 256).min(rows) };
    let piece = sampled.div_ceil(PIECES);
    let step = (rows - piece) / (PIECES - 1).max(1);
    let units = |channel: usize| {
        let at = (plane * channels + channel) * rows;
        (0..PIECES).map(move |i| Unit { at: at + i * step, len: piece, row: i * step, odd: channel % 2 == 1 })
    };
    let n = (PIECES * piece) as f64;
    let add_histogram = arch::kernels().histogram;

    let mut whole = [0; 256];
    let mut uneven = memory::filled(false, channels)?;
    let (mut equal, mut expected) = (0, 0.0f64);
    for (channel, uneven) in uneven.iter_mut().enumerate() {
        let mut counts = [0; 256];
        for unit in units(channel) {
            let bytes = &planes[unit.at..unit.at + unit.len];
            add_histogram(bytes, &mut counts);
            equal += (arch::kernels().repeats)(bytes);
        }
        *uneven = histogram::is_uneven(&counts);
        expected += (histogram::unevenness(&counts) + 1.0) / 256.0 * (n - PIECES as f64);
        for (sum, count) in whole.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    let all_uneven = histogram::is_uneven(&whole);

    // Where rows are independent, neighbours are equal as often as any two.
    // Keys that turn slowly are equal somewhat more often, and no predictor gains anything on them.
    let correlated = equal as f64 > 2.0 * expected + 4.0 * expected.sqrt();
    let candidates = || Predictor::ALL.into_iter().filter(|p| allowed.has(p.bit()));
    let first = candidates().next().unwrap_or(Predictor::Raw);
    let try_predictors = candidates().count() > 1 && effort.get() > 3 && (correlated || effort == Effort::MAX);
    let mut residual = memory::filled(0, piece)?;
    let verdicts = (0..channels).map(|channel| {
        if effort < Effort::MAX && !all_uneven && !uneven[channel] {
            return Verdict { noise: true, predictor: Predictor::Raw };
        }
        let mut best = (first, u32::MAX);
        for predictor in candidates().filter(|_| try_predictors) {
            let mut counts = [0; 256];
            for unit in units(channel) {
                predict::residual(predictor, planes, &unit, rows, &mut residual);
                add_histogram(&residual, &mut counts);
            }
            // A prediction must pay for the time it takes to undo.
            let margin = if predictor == Predictor::Raw { 0 } else { (n * 256.0 * 0.1) as u32 };
            let cost = cluster::entropy(&counts) + margin;
            if cost < best.1 {
                best = (predictor, cost);
            }
        }
        Verdict { noise: false, predictor: best.0 }
    });
    Ok(Survey { counts: whole, verdicts: memory::collect(verdicts)? })
}
