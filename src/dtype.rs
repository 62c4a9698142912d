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
}

impl Dtype {
    /// The type that `code` names in the C ABI. `what` names the argument in the error.
    pub fn from_code(code: u32, what: &str) -> Result<Self> {
        Ok(match code {
            1 => Dtype::F16,
            2 => Dtype::Bf16,
            3 => Dtype::F32,
            4..=6 => bail!(
                Unsupported,
                "{what} is {code} (a quantised cache); this version takes F16 (1), BF16 (2) and F32 (3)"
            ),
            _ => bail!(InvalidArgument, "{what} is {code}; F16 (1), BF16 (2) or F32 (3) expected"),
        })
    }

    /// Bytes per element.
    pub const fn bytes(self) -> usize {
        match self {
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::F32 => 4,
        }
    }
}
