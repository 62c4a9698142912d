//! Histograms of bytes.

use crate::arch;

/// The count of each byte value in `bytes`.
pub(super) fn of(bytes: &[u8]) -> [u32; 256] {
    let mut counts = [0; 256];
    (arch::kernels().histogram)(bytes, &mut counts);
    counts
}

/// The distance of the values from an even spread: 0 for noise, 255 for a constant. For `n` even draws the mean is 0 and
/// the deviation 23 / n.
pub(super) fn unevenness(counts: &[u32; 256]) -> f64 {
    let n: u64 = counts.iter().map(|c| *c as u64).sum();
    let pairs: u64 = counts.iter().map(|c| *c as u64 * (*c as u64).saturating_sub(1)).sum();
    pairs as f64 * 256.0 / (n as f64 * (n.max(2) - 1) as f64) - 1.0
}

/// Whether a code for such values could save half a percent, beyond chance.
pub(super) fn is_uneven(counts: &[u32; 256]) -> bool {
    let n: u64 = counts.iter().map(|c| *c as u64).sum();
    unevenness(counts) > 0.05 + 90.0 / n.max(1) as f64
}
