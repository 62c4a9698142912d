//! Predictors over units of a byte plane: along tokens (the row before, same channel) and along pairs of channels.

use crate::arch;
use crate::gear::options::Predictors;
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
    pub(super) const ALL: [Predictor; 5] =
        [Predictor::Raw, Predictor::DeltaToken, Predictor::XorToken, Predictor::DeltaPair, Predictor::DeltaPairToken];

    pub(super) fn from_wire(number: u8) -> Result<Self> {
        match Self::ALL.get(number as usize) {
            Some(p) => Ok(*p),
            None => bail!(Unsupported, "group with predictor {number}; 0 to 4 are known"),
        }
    }

    /// The bit in [`Predictors`].
    pub(super) const fn bit(self) -> u32 {
        match self {
            Predictor::Raw => Predictors::RAW,
            Predictor::DeltaToken => Predictors::DELTA_TOKEN,
            Predictor::XorToken => Predictors::XOR_TOKEN,
            Predictor::DeltaPair => Predictors::DELTA_PAIR,
            Predictor::DeltaPairToken => Predictors::DELTA_PAIR_TOKEN,
        }
    }

    const fn along_pairs(self) -> bool {
        matches!(self, Predictor::DeltaPair | Predictor::DeltaPairToken)
    }
}

/// Where a unit lies in planes of `rows` rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    /// Of the first byte, in the planes.
    pub(super) at: usize,
    pub(super) len: usize,
    /// Of the first byte, in its channel.
    pub(super) row: usize,
    /// The channel before this one is its pair.
    pub(super) odd: bool,
}

/// Writes the residual of a unit to `out`, which is as long.
pub(super) fn residual(predictor: Predictor, planes: &[u8], unit: &Unit, rows: usize, out: &mut [u8]) {
    let x = &planes[unit.at..unit.at + unit.len];
    let mut before = if unit.row > 0 { planes[unit.at - 1] } else { 0 };
    let k = arch::kernels();
    if predictor.along_pairs() && unit.odd {
        let even = &planes[unit.at - rows..][..unit.len];
        if unit.row > 0 {
            before = before.wrapping_sub(planes[unit.at - rows - 1]);
        }
        for ((out, x), e) in out.iter_mut().zip(x).zip(even) {
            *out = x.wrapping_sub(*e);
        }
        if predictor == Predictor::DeltaPairToken {
            for out in out.iter_mut() {
                let difference = *out;
                *out = difference.wrapping_sub(before);
                before = difference;
            }
        }
        return;
    }
    match predictor {
        Predictor::Raw | Predictor::DeltaPair => out.copy_from_slice(x),
        Predictor::DeltaToken | Predictor::DeltaPairToken => {
            (k.delta)(x, out);
            out[0] = out[0].wrapping_sub(before);
        }
        Predictor::XorToken => {
            (k.xor)(x, out);
            out[0] ^= before;
        }
    }
}

/// The inverse of [`residual`], in place: the unit's place in `planes` holds the residual, everything before it is
/// restored.
pub(super) fn restore(predictor: Predictor, planes: &mut [u8], unit: &Unit, rows: usize) {
    let (done, rest) = planes.split_at_mut(unit.at);
    let x = &mut rest[..unit.len];
    let mut before = if unit.row > 0 { done[unit.at - 1] } else { 0 };
    let k = arch::kernels();
    if predictor.along_pairs() && unit.odd {
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
