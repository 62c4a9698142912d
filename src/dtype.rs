//! Element types of a KV cache.

use crate::status::{Error, Result, error};

/// An element type, with the number that names it in the C ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Dtype {
    /// IEEE 754 binary16.
    F16 = 1,
    /// bfloat16.
    Bf16 = 2,
    /// IEEE 754 binary32.
    F32 = 3,
    /// Quantised to one byte.
    Int8 = 4,
}

#[cold]
#[inline(never)]
fn unknown(code: u32, what: &str, expected: &str) -> Error {
    match Dtype::named(code) {
        Some(dtype) => error!(Unsupported, "{what} is {}; {expected} expected", dtype.name()),
        None if matches!(code, 5 | 6) => error!(Unsupported, "{what} is {code} (TurboQuant); {expected} expected"),
        None => error!(InvalidArgument, "{what} is {code}; {expected} expected"),
    }
}

impl Dtype {
    /// Every type, in the order of the numbers.
    pub const ALL: [Dtype; 4] = [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::Int8];

    /// The type that `code` names in the C ABI. `what` names the argument in the error.
    #[inline]
    pub fn from_code(code: u32, what: &str) -> Result<Self> {
        Dtype::named(code).ok_or_else(|| unknown(code, what, "F16 (1), BF16 (2), F32 (3) or INT8 (4)"))
    }

    /// As [`Dtype::from_code`], where only numbers with a fraction are allowed.
    #[inline]
    pub fn float_from_code(code: u32, what: &str) -> Result<Self> {
        match Dtype::named(code) {
            Some(dtype) if dtype != Dtype::Int8 => Ok(dtype),
            _ => Err(unknown(code, what, "F16 (1), BF16 (2) or F32 (3)")),
        }
    }

    /// As [`Dtype::from_code`], where nobody asks why not.
    #[inline]
    pub fn named(code: u32) -> Option<Self> {
        Some(match code {
            1 => Dtype::F16,
            2 => Dtype::Bf16,
            3 => Dtype::F32,
            4 => Dtype::Int8,
            _ => return None,
        })
    }

    /// Bytes per element.
    pub const fn bytes(self) -> usize {
        // One digit per type: a table in memory would be a cache miss in each call for a softmax tile.
        const DIGITS: u32 = 0x1_4_2_2_0;
        (DIGITS >> (4 * self as u32) & 0xf) as usize
    }

    /// The name in error texts.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F16 => "F16",
            Dtype::Bf16 => "BF16",
            Dtype::F32 => "F32",
            Dtype::Int8 => "INT8",
        }
    }
}
