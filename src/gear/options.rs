//! The options of an encoding.

use super::v1::Predictor;
use super::{lanes, v2};
use crate::arch::{self, Level};
use crate::status::{Result, bail};

/// The wire format to write. Decoders read every format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The format of the reference system.
    V1,
    /// With rows, channel groups and a checksum.
    V2,
    /// One prefix code for a byte of every word, decoded in registers, and a checksum: fastest.
    Lanes,
}

impl Format {
    /// The format that this CPU decodes fastest.
    pub fn fastest() -> Self {
        match arch::kernels().level {
            Level::Portable | Level::Sse2 => Format::V1,
            _ => Format::Lanes,
        }
    }

    /// Whether a blob has a checksum of its words, which decoders verify: those of every format but v1.
    pub fn is_checksummed(blob: &[u8]) -> bool {
        v2::is_v2(blob) || lanes::is_lanes(blob)
    }
}

/// A set of predictors of format v1; never empty.
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

    /// The set with these bits, to be used with `format`; 0 means all. Fails for unknown bits, and for any bit with v2
    /// and lanes, which predict nothing.
    pub fn from_bits(bits: u32, format: Format) -> Result<Self> {
        match (bits, format) {
            (0, _) => Ok(Self::ALL),
            (b, Format::V1) if b & !Self::ALL.0 == 0 => Ok(Predictors(b)),
            (b, Format::V1) => bail!(InvalidArgument, "predictors is {b:#x}; bits {:#x} are known", Self::ALL.0),
            (b, Format::V2) => bail!(InvalidArgument, "predictors is {b:#x}; format v2 has none, 0 expected"),
            (b, Format::Lanes) => bail!(InvalidArgument, "predictors is {b:#x}; format lanes has none, 0 expected"),
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

/// How long an encoder searches, 1 (fastest) to 9 (smallest). Format lanes ignores it.
///
/// | effort | format v1 | format v2 |
/// |---|---|---|
/// | 1 | planes are stored or Huffman coded as they are | equal rows; 4 channel groups a plane, stored or Huffman coded; words of one byte also as one piece with matches, where that promises much |
/// | 2, 3 | and with the predictor whose histogram promises most | 8 groups |
/// | 4 to 6 | and with ZSTD's matches where a sample of the plane promises some | 16 groups, more and smaller units; rows near one of the last 256, or one piece with matches, where that promises much |
/// | 7, 8 | the two best predictors with every coder | and rows near one of the last 1,024; more groups, each with every coder |
/// | 9 | every predictor with every coder | no channel is taken for noise |
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Effort(u8);

impl Effort {
    /// The default, 5.
    pub const DEFAULT: Effort = Effort(5);
    /// The smallest output.
    pub const MAX: Effort = Effort(9);
    /// The lowest that also tries the ways of the default.
    pub(super) const THOROUGH: Effort = Effort(7);
    /// The highest that searches for equal rows alone.
    pub(super) const QUICK: Effort = Effort(3);
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

/// The two channels of a head that a rotary position embedding turns together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Pairing {
    /// d and d + dims / 2, as Llama's rotate_half.
    Half = 1,
    /// 2 d and 2 d + 1, as GPT-J and the original paper.
    Adjacent = 2,
}

impl Pairing {
    /// The pairing with a code of the header or of a blob.
    pub fn from_code(code: u32) -> Option<Self> {
        [Pairing::Half, Pairing::Adjacent].into_iter().find(|pairing| *pairing as u32 == code)
    }
}

/// The rotation of keys by their positions (RoPE, Su et al. 2021): pair i of a token at position p is turned by the angle
/// `p * inv_freq[i]`. A hint: the codec is bit-exact for any arithmetic of the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotation<'a> {
    /// The two channels of a pair.
    pub pairing: Pairing,
    /// Rotated channels, the first of every row; even.
    pub dims: usize,
    /// The angles per position.
    pub frequencies: Frequencies<'a>,
    /// Tokens per head, 0 = all rows are one head; the words are `[head][token][dim]`.
    pub tokens: usize,
    /// The position of each token of a head.
    pub positions: Positions<'a>,
}

/// The angle per position of each pair, in radians.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Frequencies<'a> {
    /// `theta^(-2 i / dims)`.
    Theta(f32),
    /// One per pair, `dims / 2` of them: scaled variants (linear, NTK, YaRN, Llama 3).
    Given(&'a [f32]),
}

/// Positions of the tokens of a head, 0 or more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Positions<'a> {
    /// Consecutive positions.
    Counting {
        /// Position of the first token.
        first: u32,
    },
    /// One per token.
    Given(&'a [u32]),
}

/// The options of an encoding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options<'a> {
    /// The format to write.
    pub format: Format,
    /// The predictors to try. Formats v2 and lanes ignore them.
    pub predictors: Predictors,
    /// How long to search.
    pub effort: Effort,
    /// Elements per row (one token of one head), 0 = unknown. Formats v1 and lanes ignore it.
    pub head_dim: usize,
    /// The rotation of keys. Formats v1 and lanes ignore it.
    pub rotation: Option<Rotation<'a>>,
}

impl Options<'_> {
    /// The defaults of `format`.
    pub const fn new(format: Format) -> Self {
        Options { format, predictors: Predictors::ALL, effort: Effort::DEFAULT, head_dim: 0, rotation: None }
    }
}
