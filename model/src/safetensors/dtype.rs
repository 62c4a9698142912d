//! Element types of the format.

macro_rules! dtypes {
    ($($variant:ident $name:literal $bits:literal,)+) => {
        /// An element type of the format. Names and widths are the format's.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)]
        pub enum Dtype {
            $($variant,)+
        }

        impl Dtype {
            /// All types of the format.
            pub const ALL: &[Dtype] = &[$(Dtype::$variant,)+];

            /// The name in the header.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Dtype::$variant => $name,)+
                }
            }

            /// Bits per element; types of less than a byte are packed.
            pub const fn bits(self) -> u64 {
                match self {
                    $(Dtype::$variant => $bits,)+
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

impl Dtype {
    /// The type of this name.
    pub fn from_name(name: &str) -> Option<Dtype> {
        Self::ALL.iter().copied().find(|dtype| dtype.name() == name)
    }

    /// Whether this library can convert it to f32.
    pub const fn is_float(self) -> bool {
        matches!(self, Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::F64)
    }

    /// Bytes of `elements` packed elements; `None` if that is no whole number of bytes or exceeds 64 bits.
    pub fn bytes_of(self, elements: u64) -> Option<u64> {
        let bits = elements.checked_mul(self.bits())?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }
}
