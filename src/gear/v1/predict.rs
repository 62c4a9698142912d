//! Predictors over one byte plane: each byte from the byte before it.
//!
//! Both run over the flat plane (neighbouring bytes of the stream, not tokens); the byte before the first is 0.

use crate::arch;
use crate::status::{Result, bail};

/// The transform of a plane before compression; the number is the `mode` byte of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::gear) enum Predictor {
    Raw = 0,
    /// `out[i] = s[i] - s[i-1]` mod 256.
    DeltaSeq = 1,
    /// `out[i] = s[i] ^ s[i-1]`.
    XorSeq = 2,
}

impl Predictor {
    pub(in crate::gear) const ALL: [Predictor; 3] = [Predictor::Raw, Predictor::DeltaSeq, Predictor::XorSeq];

    pub(super) fn from_wire(mode: u8) -> Result<Self> {
        match Self::ALL.get(mode as usize) {
            Some(p) => Ok(*p),
            None => bail!(Corrupt, "frame mode is {mode}; 0 (raw), 1 (delta_seq) or 2 (xor_seq) expected"),
        }
    }
}

/// Writes the residual of `plane` to `out`, which is as long. Raw has none: its residual is the plane itself.
pub(super) fn residual(predictor: Predictor, plane: &[u8], out: &mut [u8]) {
    let k = arch::kernels();
    match predictor {
        Predictor::Raw => out.copy_from_slice(plane),
        Predictor::DeltaSeq => (k.delta)(plane, out),
        Predictor::XorSeq => (k.xor)(plane, out),
    }
}

/// The inverse of [`residual`], in place.
pub(super) fn restore(predictor: Predictor, plane: &mut [u8]) {
    let k = arch::kernels();
    match predictor {
        Predictor::Raw => {}
        Predictor::DeltaSeq => (k.undo_delta)(plane),
        Predictor::XorSeq => (k.undo_xor)(plane),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn residuals_follow_the_format_page() {
        let plane = [5, 3, 3, 250];
        let mut out = [0; 4];
        residual(Predictor::DeltaSeq, &plane, &mut out);
        assert_eq!(out, [5, 254, 0, 247]);
        residual(Predictor::XorSeq, &plane, &mut out);
        assert_eq!(out, [5, 6, 0, 249]);
    }

    #[test]
    fn restore_undoes_every_predictor() {
        let plane: Vec<u8> = (0..1000u32).map(|i| ((i * i) >> 3) as u8).collect();
        for p in Predictor::ALL {
            let mut out = vec![0; plane.len()];
            residual(p, &plane, &mut out);
            restore(p, &mut out);
            assert_eq!(out, plane, "{p:?}");
        }
    }
}
