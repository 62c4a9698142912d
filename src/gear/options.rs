//! What a caller may choose about an encoding.

use super::v1::Predictor;
use crate::status::{Result, bail};

/// The wire format to write; every format is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The reference system's.
    V1,
    /// With rows, channel groups and a checksum.
    V2,
}

/// A set of predictors, of one format; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predictors(u32);

impl Predictors {
    /// Bit of the untransformed bytes, in every format.
    pub const RAW: u32 = 1;
    /// v1: bit of the difference to the byte before.
    pub const DELTA_SEQ: u32 = 2;
    /// v1: bit of the exclusive or with the byte before.
    pub const XOR_SEQ: u32 = 4;
    /// v2: bit of the difference to the token before, same channel.
    pub const DELTA_TOKEN: u32 = 8;
    /// v2: bit of the exclusive or with the token before, same channel.
    pub const XOR_TOKEN: u32 = 16;
    /// v2: bit of the difference of an odd channel to the even one beside it.
    pub const DELTA_PAIR: u32 = 32;
    /// v2: bit of DELTA_PAIR, and then the difference along tokens.
    pub const DELTA_PAIR_TOKEN: u32 = 64;

    const V1: u32 = Self::RAW | Self::DELTA_SEQ | Self::XOR_SEQ;
    const V2: u32 = Self::RAW | Self::DELTA_TOKEN | Self::XOR_TOKEN | Self::DELTA_PAIR | Self::DELTA_PAIR_TOKEN;

    /// The set with these bits; 0 means all of `format`. Fails for bits that `format` does not have.
    pub fn from_bits(bits: u32, format: Format) -> Result<Self> {
        let (all, name) = match format {
            Format::V1 => (Self::V1, "v1"),
            Format::V2 => (Self::V2, "v2"),
        };
        match bits {
            0 => Ok(Predictors(all)),
            b if b & !all == 0 => Ok(Predictors(b)),
            b => bail!(InvalidArgument, "predictors is {b:#x}; bits {all:#x} are known to format {name}"),
        }
    }

    /// All predictors of `format`.
    pub const fn all(format: Format) -> Self {
        match format {
            Format::V1 => Predictors(Self::V1),
            Format::V2 => Predictors(Self::V2),
        }
    }

    /// No prediction, in any format.
    pub const fn raw() -> Self {
        Predictors(Self::RAW)
    }

    /// The bits of the set.
    pub const fn bits(self) -> u32 {
        self.0
    }

    pub(super) const fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }

    /// Reads a comma-separated list of v1's predictors such as `raw, delta_seq`. Blanks around names and unknown names
    /// are ignored, as hosts' configs name predictors of other codecs too; a list with nothing known means raw.
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

    /// The v1 predictors of the set, in wire order.
    pub(super) fn v1(self) -> impl Iterator<Item = Predictor> {
        Predictor::ALL.into_iter().filter(move |p| self.has(1 << *p as u32))
    }
}

/// How much time to spend, 1 (fastest) to 9 (smallest).
///
/// | effort | format v1 | format v2 |
/// |---|---|---|
/// | 1 | lanes are stored or Huffman coded as they are | equal rows; 4 channel groups a plane, stored or Huffman coded |
/// | 2, 3 | and with the predictor whose histogram promises most | 8 groups |
/// | 4 to 6 | and with ZSTD's matches where a look at the lane promises some | 16 groups, more and smaller units; predictors where neighbours correlate; rows that resemble one of the last 256, or one piece with matches, where that promises much |
/// | 7, 8 | the two best predictors with every coder | and rows that resemble one of the last 1,024; more groups, each with every coder |
/// | 9 | every predictor with every coder | and predictors for every channel |
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Effort(u8);

impl Effort {
    /// The default, 5.
    pub const DEFAULT: Effort = Effort(5);
    /// The smallest output.
    pub const MAX: Effort = Effort(9);
    /// The first that tries the ways of the default, too.
    pub(super) const THOROUGH: Effort = Effort(7);
    /// The last that only looks for equal rows.
    pub(super) const QUICK: Effort = Effort(3);
    /// The least time.
    pub(super) const FASTEST: Effort = Effort(1);

    /// From 1 to 9; 0 is the default. `what` names the argument in the error.
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

/// Which two channels of a head a rotary position embedding turns together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Pairing {
    /// d and d + dims / 2, as Llama's rotate_half.
    Half = 1,
    /// 2 d and 2 d + 1, as GPT-J and the original paper.
    Adjacent = 2,
}

/// How the host rotated keys by their positions (RoPE, Su et al. 2021): pair i of a token at position p is turned by the
/// angle `p * inv_freq[i]`. A hint: whatever arithmetic the host used, the codec stays bit-exact.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotation<'a> {
    /// Which channels belong together.
    pub pairing: Pairing,
    /// Channels that are rotated, the first of every row; even.
    pub dims: usize,
    /// Where the angles come from.
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
    /// Counting from the first token's.
    Counting {
        /// Position of the first token.
        first: u32,
    },
    /// One per token.
    Given(&'a [u32]),
}

/// How to encode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options<'a> {
    /// The format to write.
    pub format: Format,
    /// The predictors to try.
    pub predictors: Predictors,
    /// How hard to try.
    pub effort: Effort,
    /// Elements per row (one token of one head), 0 = unknown. Format v1 has no use for it.
    pub head_dim: usize,
    /// How keys were rotated. Format v1 has no use for it.
    pub rotation: Option<Rotation<'a>>,
}

impl Options<'_> {
    /// The defaults of `format`.
    pub const fn new(format: Format) -> Self {
        Options { format, predictors: Predictors::all(format), effort: Effort::DEFAULT, head_dim: 0, rotation: None }
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
