//! What a caller may choose about an encoding.

use super::predict::Predictor;
use crate::status::{Result, bail};

/// A set of v1 predictors; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predictors(u32);

impl Predictors {
    /// Bit of the untransformed lane.
    pub const RAW: u32 = Predictor::Raw.bit();
    /// Bit of the difference to the byte before.
    pub const DELTA_SEQ: u32 = Predictor::DeltaSeq.bit();
    /// Bit of the exclusive or with the byte before.
    pub const XOR_SEQ: u32 = Predictor::XorSeq.bit();
    /// All predictors of format v1.
    pub const ALL: Predictors = Predictors(Self::RAW | Self::DELTA_SEQ | Self::XOR_SEQ);

    /// The set with these bits; 0 means all.
    pub fn from_bits(bits: u32) -> Result<Self> {
        match bits {
            0 => Ok(Self::ALL),
            b if b & !Self::ALL.0 == 0 => Ok(Predictors(b)),
            b => bail!(InvalidArgument, "predictors is {b:#x}; bits {:#x} are known to format v1", Self::ALL.0),
        }
    }

    /// The bits of the set.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Reads a comma-separated list such as `raw, delta_seq`. Blanks around names and unknown names are ignored, as
    /// hosts' configs name predictors of other codecs too; a list with nothing known means raw.
    pub fn parse(list: &str) -> Self {
        let bits = list.split(',').fold(0, |bits, name| {
            bits | match name.trim() {
                "raw" => Self::RAW,
                "delta_seq" => Self::DELTA_SEQ,
                "xor_seq" => Self::XOR_SEQ,
                _ => 0,
            }
        });
        Predictors(if bits == 0 { Self::RAW } else { bits })
    }

    pub(super) fn iter(self) -> impl Iterator<Item = Predictor> {
        Predictor::ALL.into_iter().filter(move |p| self.0 & p.bit() != 0)
    }
}

/// How to encode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The predictors to try.
    pub predictors: Predictors,
}

impl Default for Options {
    fn default() -> Self {
        Options { predictors: Predictors::ALL }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_hosts_write_them() {
        for (list, bits) in [
            ("raw,delta_seq,xor_seq", 7),
            (" raw ,\tdelta_seq", 3),
            ("raw,delta_seq,xor_seq,pair_delta", 7),
            ("xor_seq,xor_seq", 4),
            ("pair_delta", 1),
            ("", 1),
            ("RAW,Delta_Seq", 1),
        ] {
            assert_eq!(Predictors::parse(list).bits(), bits, "{list:?}");
        }
    }
}
