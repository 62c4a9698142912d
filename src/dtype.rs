//! Element types of a KV cache.

use crate::status::{Result, bail};

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

impl Dtype {
    /// Every type, in the order of the numbers.
    pub const ALL: [Dtype; 4] = [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::Int8];

    /// The type that `code` names in the C ABI. `what` names the argument in the error.
    pub fn from_code(code: u32, what: &str) -> Result<Self> {
        Ok(match code {
            1 => Dtype::F16,
            2 => Dtype::Bf16,
            3 => Dtype::F32,
            4 => Dtype::Int8,
            5 | 6 => {
                bail!(Unsupported, "{what} is {code} (TurboQuant); F16 (1), BF16 (2), F32 (3) or INT8 (4) expected")
            }
            _ => bail!(InvalidArgument, "{what} is {code}; F16 (1), BF16 (2), F32 (3) or INT8 (4) expected"),
        })
    }

    /// Bytes per element.
    pub const fn bytes(self) -> usize {
        match self {
            Dtype::Int8 => 1,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::F32 => 4,
        }
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
