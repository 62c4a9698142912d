//! Predictors of units, along tokens (the row before, same channel) and along pairs of channels.
//!
//! The encoder writes [`Predictor::Raw`] alone. On caches in the type that a model wrote, the others save 0.0%; on keys
//! quantised to int8, at effort 9, 0.6%. Blobs may have them, and every version reads those.

use super::Unit;
use crate::arch;
use crate::status::{Result, bail};

/// How a unit was transformed; the number is in the group's header. `x` is the unit's channel, `t` the row; before
/// the first row there is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Predictor {
    Raw = 0,
    /// `x[t] - x[t-1]` mod 256.
    DeltaToken = 1,
    /// `x[t] ^ x[t-1]`.
    XorToken = 2,
    /// `x[t] - e[t]` mod 256, where `e` is the even channel before an odd one; raw on even channels.
    DeltaPair = 3,
    /// DeltaPair, then DeltaToken over the differences.
    DeltaPairToken = 4,
}

impl Predictor {
    pub(super) fn from_wire(number: u8) -> Result<Self> {
        Ok(match number {
            0 => Predictor::Raw,
            1 => Predictor::DeltaToken,
            2 => Predictor::XorToken,
            3 => Predictor::DeltaPair,
            4 => Predictor::DeltaPairToken,
            _ => bail!(Unsupported, "group with predictor {number}; 0 to 4 are known"),
        })
    }
}

/// Restores a unit in place: its bytes in `planes` are the residual, all bytes before it are restored. Channels have
/// `rows` rows.
pub(super) fn restore(predictor: Predictor, planes: &mut [u8], unit: &Unit, rows: usize) {
    let (done, rest) = planes.split_at_mut(unit.at);
    let x = &mut rest[..unit.len];
    let mut before = if unit.row > 0 { done[unit.at - 1] } else { 0 };
    let k = arch::kernels();
    if matches!(predictor, Predictor::DeltaPair | Predictor::DeltaPairToken) && unit.odd {
        let even = &done[unit.at - rows..][..unit.len];
        if predictor == Predictor::DeltaPairToken {
            if unit.row > 0 {
                before = before.wrapping_sub(done[unit.at - rows - 1]);
            }
            x[0] = x[0].wrapping_add(before);
            (k.undo_delta)(x);
        }
        for (x, e) in x.iter_mut().zip(even) {
            *x = x.wrapping_add(*e);
        }
        return;
    }
    match predictor {
        Predictor::Raw | Predictor::DeltaPair => {}
        Predictor::DeltaToken | Predictor::DeltaPairToken => {
            x[0] = x[0].wrapping_add(before);
            (k.undo_delta)(x);
        }
        Predictor::XorToken => {
            x[0] ^= before;
            (k.undo_xor)(x);
        }
    }
}
