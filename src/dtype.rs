//! Element types of a cache: the one table of their codes, names and sizes.
//!
//! A new type is a line of [`table!`] below. The compiler then names every `match` that needs it, and `ffi` asserts that
//! its constant has the code. Bits below a byte and rows that are not elements alone are not described here.

#[doc(hidden)]
pub mod convert;

use crate::status::{Error, Result, error};

/// Defines [`Dtype`] and its table: variant, code in the C ABI and in blobs, name, bytes per element, kind.
macro_rules! table {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $name:literal, $bytes:literal, $kind:ident;)*) => {
        /// An element type. The discriminant is its code in the C ABI.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Dtype {
            $($(#[$doc])* $variant = $code,)*
        }

        impl Dtype {
            /// Every type, in the order of the codes.
            pub const ALL: [Dtype; [$($code),*].len()] = [$(Dtype::$variant),*];

            /// A hexadecimal digit for each code: the bytes per element. A table in memory could be a
            /// cache miss.
            const BYTES: u64 = 0 $(| $bytes << (4 * $code))*;

            /// A bit for each code of a floating-point type.
            const FLOATS: u32 = 0 $(| (Kind::$kind as u32) << $code)*;

            /// The type with this code.
            #[inline]
            pub const fn named(code: u32) -> Option<Self> {
                match code {
                    $($code => Some(Dtype::$variant),)*
                    _ => None,
                }
            }

            /// The name in error texts and reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Dtype::$variant => $name,)*
                }
            }
        }
    };
}

enum Kind {
    Integer = 0,
    Float = 1,
}

table! {
    /// IEEE 754 binary16.
    F16 = 1, "F16", 2, Float;
    /// bfloat16.
    Bf16 = 2, "BF16", 2, Float;
    /// IEEE 754 binary32.
    F32 = 3, "F32", 4, Float;
    /// Quantised to one byte, in two's complement.
    Int8 = 4, "INT8", 1, Integer;
}

impl Dtype {
    /// The type with the code `code`. `what` names the argument in the error.
    #[inline]
    pub fn from_code(code: u32, what: &str) -> Result<Self> {
        Dtype::named(code).ok_or_else(|| unknown(code, what, "F16 (1), BF16 (2), F32 (3) or INT8 (4)"))
    }

    /// As [`Dtype::from_code`], for floating-point types alone.
    #[inline]
    pub fn float_from_code(code: u32, what: &str) -> Result<Self> {
        match Dtype::named(code) {
            Some(dtype) if dtype.is_float() => Ok(dtype),
            _ => Err(unknown(code, what, "F16 (1), BF16 (2) or F32 (3)")),
        }
    }

    /// The code in the C ABI and in blobs.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// Bytes per element.
    #[inline]
    pub const fn bytes(self) -> usize {
        (Self::BYTES >> (4 * self as u32) & 0xf) as usize
    }

    /// Whether the type is a floating-point type.
    #[inline]
    pub const fn is_float(self) -> bool {
        Self::FLOATS >> self as u32 & 1 == 1
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_the_codes_and_sizes_of_the_c_abi() {
        let rows = Dtype::ALL.map(|dtype| (dtype.code(), dtype.name(), dtype.bytes(), dtype.is_float()));
        assert_eq!(rows, [(1, "F16", 2, true), (2, "BF16", 2, true), (3, "F32", 4, true), (4, "INT8", 1, false)]);
        for code in 0..40 {
            assert_eq!(Dtype::named(code), Dtype::ALL.into_iter().find(|dtype| dtype.code() == code));
        }
    }

    #[test]
    fn a_code_that_is_refused_is_named_with_what_is_expected() {
        for (code, text) in [(4, "INT8"), (5, "5 (TurboQuant)"), (6, "6 (TurboQuant)"), (7, "7"), (0, "0")] {
            let error = Dtype::float_from_code(code, "key_dtype").unwrap_err();
            assert_eq!(error.message(), format!("key_dtype is {text}; F16 (1), BF16 (2) or F32 (3) expected"));
        }
    }
}
