//! The options of an encoding.

use super::v1::Predictor;
use crate::status::{Result, bail};

/// The format to write. Decoders read both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The format of the reference system.
    V1,
    /// The same behind a header with a checksum of the words.
    Checked,
}

/// A set of predictors; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predictors(u32);

impl Predictors {
    /// Bit of the bytes as they are.
    pub const RAW: u32 = 1;
    /// Bit of the difference to the byte before.
    pub const DELTA_SEQ: u32 = 2;
    /// Bit of the exclusive or with the byte before.
    pub const XOR_SEQ: u32 = 4;

    /// Every predictor.
    pub const ALL: Predictors = Predictors(Self::RAW | Self::DELTA_SEQ | Self::XOR_SEQ);

    /// The set with these bits; 0 means all. INVALID_ARGUMENT: for unknown bits.
    pub fn from_bits(bits: u32) -> Result<Self> {
        match bits {
            0 => Ok(Self::ALL),
            bits if bits & !Self::ALL.0 == 0 => Ok(Predictors(bits)),
            bits => bail!(InvalidArgument, "predictors is {bits:#x}; bits {:#x} are known", Self::ALL.0),
        }
    }

    /// The set of raw alone.
    pub const fn raw() -> Self {
        Predictors(Self::RAW)
    }

    /// The bits of the set.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The predictors of the set, in wire order.
    pub(super) fn iter(self) -> impl Iterator<Item = Predictor> {
        Predictor::ALL.into_iter().filter(move |p| self.0 & 1 << *p as u32 != 0)
    }
}

/// How long an encoder searches, 1 (fastest) to 9 (smallest).
///
/// | effort | |
/// |---|---|
/// | 1 | planes are stored or Huffman coded as they are |
/// | 2, 3 | and with the predictor whose histogram promises most |
/// | 4 to 6 | and with ZSTD's matches where a sample of the plane promises some |
/// | 7, 8 | the two best predictors with every coder |
/// | 9 | every predictor with every coder |
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Effort(u8);

impl Effort {
    /// The default, 5.
    pub const DEFAULT: Effort = Effort(5);
    /// The smallest output.
    pub const MAX: Effort = Effort(9);
    /// The least time.
    pub const FASTEST: Effort = Effort(1);

    /// An effort of 1 to 9, or the default for 0. `what` names the argument in the error.
    pub fn new(effort: i32, what: &str) -> Result<Self> {
        match effort {
            0 => Ok(Self::DEFAULT),
            1..=9 => Ok(Effort(effort as u8)),
            _ => bail!(InvalidArgument, "{what} is {effort}; 0 to 9 expected"),
        }
    }

    /// 1 to 9.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// The options of an encoding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The format to write.
    pub format: Format,
    /// The predictors to try.
    pub predictors: Predictors,
    /// How long to search.
    pub effort: Effort,
}

impl Options {
    /// The defaults of `format`.
    pub const fn new(format: Format) -> Self {
        Options { format, predictors: Predictors::ALL, effort: Effort::DEFAULT }
    }
}
