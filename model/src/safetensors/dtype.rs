//! Element types of the format.

use mnnkv::dtype::Dtype;

macro_rules! dtypes {
    ($($variant:ident $name:literal $bits:literal,)+) => {
        /// An element type of the format. Names and widths are the format's.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)]
        pub enum FileDtype {
            $($variant,)+
        }

        impl FileDtype {
            /// All types of the format.
            pub const ALL: &[FileDtype] = &[$(FileDtype::$variant,)+];

            /// The name in the header.
            pub const fn name(self) -> &'static str {
                match self {
                    $(FileDtype::$variant => $name,)+
                }
            }

            /// Bits per element; types of less than a byte are packed.
            pub const fn bits(self) -> u64 {
                match self {
                    $(FileDtype::$variant => $bits,)+
                }
            }
        }
    };
}

dtypes! {
    Bool "BOOL" 8,
    F4 "F4" 4,
    F6E2M3 "F6_E2M3" 6,
    F6E3M2 "F6_E3M2" 6,
    U8 "U8" 8,
    I8 "I8" 8,
    F8E5M2 "F8_E5M2" 8,
    F8E4M3 "F8_E4M3" 8,
    F8E8M0 "F8_E8M0" 8,
    F8E4M3Fnuz "F8_E4M3FNUZ" 8,
    F8E5M2Fnuz "F8_E5M2FNUZ" 8,
    I16 "I16" 16,
    U16 "U16" 16,
    F16 "F16" 16,
    Bf16 "BF16" 16,
    I32 "I32" 32,
    U32 "U32" 32,
    F32 "F32" 32,
    C64 "C64" 64,
    F64 "F64" 64,
    I64 "I64" 64,
    U64 "U64" 64,
}

/// The pairs of both tables.
const NATIVE: [(FileDtype, Dtype); 4] = [
    (FileDtype::F16, Dtype::F16),
    (FileDtype::Bf16, Dtype::Bf16),
    (FileDtype::F32, Dtype::F32),
    (FileDtype::I8, Dtype::Int8),
];

const _: () = {
    let mut i = 0;
    while i < NATIVE.len() {
        assert!(NATIVE[i].0.bits() == 8 * NATIVE[i].1.bytes() as u64);
        i += 1;
    }
};

impl FileDtype {
    /// The type of these words in a file.
    pub fn of(dtype: Dtype) -> FileDtype {
        NATIVE[dtype as usize - 1].0
    }

    /// The words of this type, if caches have them.
    pub fn native(self) -> Option<Dtype> {
        NATIVE.iter().find(|pair| pair.0 == self).map(|pair| pair.1)
    }

    /// The type of this name.
    pub fn from_name(name: &str) -> Option<FileDtype> {
        Self::ALL.iter().copied().find(|dtype| dtype.name() == name)
    }

    /// Whether this library can convert it to f32.
    pub const fn is_float(self) -> bool {
        matches!(self, FileDtype::F16 | FileDtype::Bf16 | FileDtype::F32 | FileDtype::F64)
    }

    /// Bytes of `elements` packed elements; `None` if that is not a whole number of bytes or exceeds 64 bits.
    pub fn bytes_of(self, elements: u64) -> Option<u64> {
        let bits = elements.checked_mul(self.bits())?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_types_of_files_correspond() {
        for dtype in Dtype::ALL {
            assert_eq!(FileDtype::of(dtype).native(), Some(dtype));
        }
        assert_eq!(FileDtype::F64.native(), None);
    }
}
