//! A sample of a plane, which tells noise from channels worth coding.

use super::PlaneShape;
use crate::arch;
use crate::gear::histogram;
use crate::gear::options::Effort;
use crate::status::Result;
use crate::sys::memory;

/// The result for one plane.
pub(super) struct Survey {
    /// The histogram of the sample.
    pub(super) counts: [u32; 256],
    /// Whether each channel is spread evenly: no code is shorter than 8 bits.
    pub(super) is_noise: Vec<bool>,
}

/// Rows come from this many places of a channel.
const PIECES: usize = 4;

/// Surveys plane number `plane` of `planes`.
pub(super) fn survey(planes: &[u8], shape: &PlaneShape, plane: usize, effort: Effort) -> Result<Survey> {
    let PlaneShape { channels, rows, .. } = *shape;
    let sampled = if effort == Effort::MAX { rows } else { (rows / 8).clamp(64, 256).min(rows) };
    let piece = sampled.div_ceil(PIECES);
    let step = (rows - piece) / (PIECES - 1);
    let add_histogram = arch::kernels().histogram;

    let mut whole = [0; 256];
    let mut is_noise = memory::filled(false, channels)?;
    for (channel, is_noise) in is_noise.iter_mut().enumerate() {
        let first = (plane * channels + channel) * rows;
        let mut counts = [0; 256];
        for i in 0..PIECES {
            add_histogram(&planes[first + i * step..][..piece], &mut counts);
        }
        *is_noise = !histogram::is_uneven(&counts);
        for (sum, count) in whole.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    if effort == Effort::MAX || histogram::is_uneven(&whole) {
        is_noise.fill(false);
    }
    Ok(Survey { counts: whole, is_noise })
}
