//! Facts of a host's model for the policies of eviction.

use crate::gear::{Frequencies, Pairing};
use crate::h2o::InverseRope;
use crate::status::{Result, bail};
use crate::store::KeyRotation;
use crate::sys::memory;

/// The turn of a rotation.
/// INVALID_ARGUMENT: if the number of frequencies is not half of the rotated channels, or one is no finite number.
pub(super) fn turn(rotation: &KeyRotation<'_>) -> Result<InverseRope> {
    let pairs = rotation.dims / 2;
    let frequencies = match rotation.frequencies {
        Frequencies::Given(given) if given.len() != pairs => {
            bail!(InvalidArgument, "{} frequencies given; {pairs} expected", given.len())
        }
        Frequencies::Given(given) => memory::copied(given)?,
        Frequencies::Theta(theta) if theta.is_finite() && theta >= 1.0 => {
            let power = |pair: usize| f64::from(theta).powf(-(pair as f64) / pairs as f64) as f32;
            memory::collect((0..pairs).map(power))?
        }
        Frequencies::Theta(theta) => bail!(InvalidArgument, "theta is {theta}; a finite number from 1 on expected"),
    };
    if let Some(pair) = frequencies.iter().position(|frequency| !frequency.is_finite()) {
        bail!(InvalidArgument, "inv_freq[{pair}] is {}; a finite number expected", frequencies[pair]);
    }
    Ok(InverseRope::new(rotation.pairing == Pairing::Adjacent, frequencies))
}
