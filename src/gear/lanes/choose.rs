//! The kind of a plane, by its histogram.

use super::code::Code;
use crate::gear::histogram;

/// Longer planes are first judged by a sample of this length.
const SAMPLE: usize = 4096;
/// Pieces of a sample.
const PIECES: usize = 4;

/// The fate of a plane.
#[allow(clippy::large_enum_variant, reason = "one lives at a time, on the stack")]
pub(super) enum Choice {
    Raw,
    Constant,
    /// Coded, but for the last symbols.
    Coded(Code),
}

/// Chooses for `plane`, of which the first `coded` bytes would be coded and the others would take 8 bits.
pub(super) fn choose(plane: &[u8], coded: usize) -> Choice {
    if plane.len() > 4 * SAMPLE && is_noise(plane) {
        return Choice::Raw;
    }
    let (symbols, tail) = plane.split_at(coded);
    let counts = histogram::of(symbols);
    match counts.iter().filter(|count| **count > 0).take(2).count() {
        0 | 1 if plane.iter().all(|byte| *byte == plane[0]) => return Choice::Constant,
        0 => return Choice::Raw,
        // A code has two symbols or more.
        1 => {
            let mut counts = counts;
            let other = tail.iter().find(|byte| **byte != plane[0]).expect("the plane is not constant");
            counts[*other as usize] = 1;
            return Choice::Coded(Code::of(&counts));
        }
        _ => {}
    }
    if !histogram::is_uneven(&counts) {
        return Choice::Raw;
    }
    let code = Code::of(&counts);
    if code.bits(&counts) / 8 < symbols.len() as u64 { Choice::Coded(code) } else { Choice::Raw }
}

/// Whether a sample promises nothing.
fn is_noise(plane: &[u8]) -> bool {
    let mut counts = [0; 256];
    let piece = SAMPLE / PIECES;
    for i in 0..PIECES {
        let first = (plane.len() - piece) / (PIECES - 1) * i;
        for (sum, count) in counts.iter_mut().zip(histogram::of(&plane[first..first + piece])) {
            *sum += count;
        }
    }
    !histogram::is_uneven(&counts)
}
