//! Element types of caches, including those without kernels in this library.

use mnnkv::dtype::Dtype;
use mnnkv::status::{Result, bail};

/// An element type. Scales of quantised types are not included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheElement {
    /// IEEE 754 binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE 754 binary32.
    F32,
    /// One byte, quantised.
    Int8,
    /// One byte, floating point (E4M3 or E5M2).
    Fp8,
    /// Half a byte, quantised.
    Int4,
}

/// Type, bits, number in the C ABI, and names; the first is the short one. The numbers 5 and 6 are TurboQuant's.
type Row = (CacheElement, u64, u32, &'static [&'static str]);

const TABLE: [Row; 6] = [
    (CacheElement::F16, 16, Dtype::F16 as u32, &["f16", "float16", "fp16", "half"]),
    (CacheElement::Bf16, 16, Dtype::Bf16 as u32, &["bf16", "bfloat16"]),
    (CacheElement::F32, 32, Dtype::F32 as u32, &["f32", "float32", "fp32", "float"]),
    (CacheElement::Int8, 8, Dtype::Int8 as u32, &["int8", "i8"]),
    (CacheElement::Fp8, 8, 7, &["fp8", "f8", "float8", "fp8_e4m3", "fp8_e5m2", "float8_e4m3fn", "float8_e5m2"]),
    (CacheElement::Int4, 4, 8, &["int4", "i4"]),
];

impl CacheElement {
    fn row(self) -> &'static Row {
        TABLE.iter().find(|row| row.0 == self).expect("every element type has a row")
    }

    /// Bits per element.
    pub fn bits(self) -> u64 {
        self.row().1
    }

    /// The number in the C ABI.
    pub fn code(self) -> u32 {
        self.row().2
    }

    /// The short name: f16, bf16, f32, int8, fp8 or int4.
    pub fn name(self) -> &'static str {
        self.row().3[0]
    }

    /// The type with this name in PyTorch, engines or this library. Case and a prefix "torch." are ignored.
    pub fn from_name(name: &str) -> Option<CacheElement> {
        const TORCH: &str = "torch.";
        let name = match name.get(..TORCH.len()) {
            Some(torch) if torch.eq_ignore_ascii_case(TORCH) => &name[TORCH.len()..],
            _ => name,
        };
        TABLE.iter().find(|row| row.3.iter().any(|known| known.eq_ignore_ascii_case(name))).map(|row| row.0)
    }

    /// The type with this number in the C ABI. `what` names the argument in the error.
    pub fn from_code(code: u32, what: &str) -> Result<CacheElement> {
        match TABLE.iter().map(|row| row.0).find(|element| element.code() == code) {
            Some(element) => Ok(element),
            None => bail!(
                InvalidArgument,
                "{what} is {code}; F16 (1), BF16 (2), F32 (3), INT8 (4), FP8 (7) or INT4 (8) expected"
            ),
        }
    }
}
