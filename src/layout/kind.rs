//! How K and V are stored: floating-point elements, or one of the quantised forms of MNN's CPU backend.
//!
//! A dense row is the bytes of one token of one head that other tokens do not share. A quantised row holds what no
//! arithmetic may derive again: scales, biases and key sums are data.

use super::Spec;
use crate::dtype::Dtype;
use crate::status::{Result, bail, error};

/// Bytes of one f32.
pub(super) const F32: usize = 4;
/// Scale, bias and key sum of an INT8 token of K.
const KEY_TAIL: usize = 3 * F32;
/// Dims of a TurboQuant record.
pub(super) const RECORD_DIMS: usize = 32;
/// Tokens of a block of quantised V, which MNN never changes.
pub(super) const QUANTISED_BLOCK: u32 = 64;

/// The form of K or of V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Floating-point elements.
    Float(Dtype),
    /// A byte per element, with scales and biases beside the codes.
    Int8,
    /// TurboQuant records of 3 bits per element.
    Tq3,
    /// TurboQuant records of 4 bits per element.
    Tq4,
}

impl From<Dtype> for Kind {
    fn from(dtype: Dtype) -> Self {
        if dtype.is_float() { Kind::Float(dtype) } else { Kind::Int8 }
    }
}

impl Kind {
    /// The code of [`Kind::Tq3`] in the C ABI.
    pub const TQ3: u32 = 5;
    /// The code of [`Kind::Tq4`] in the C ABI.
    pub const TQ4: u32 = 6;

    /// The kind with this code of the C ABI. `what` names the argument in the error.
    pub fn from_code(code: u32, what: &str) -> Result<Self> {
        match code {
            Kind::TQ3 => Ok(Kind::Tq3),
            Kind::TQ4 => Ok(Kind::Tq4),
            _ => Dtype::named(code).map(Kind::from).ok_or_else(|| {
                error!(
                    InvalidArgument,
                    "{what} is {code}; F16 (1), BF16 (2), F32 (3), INT8 (4), TQ3 (5) or TQ4 (6) expected"
                )
            }),
        }
    }

    /// The code of the kind in the C ABI.
    pub const fn code(self) -> u32 {
        match self {
            Kind::Float(dtype) => dtype as u32,
            Kind::Int8 => Dtype::Int8 as u32,
            Kind::Tq3 => Kind::TQ3,
            Kind::Tq4 => Kind::TQ4,
        }
    }

    /// The name in error texts and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Float(dtype) => dtype.name(),
            Kind::Int8 => Dtype::Int8.name(),
            Kind::Tq3 => "TQ3",
            Kind::Tq4 => "TQ4",
        }
    }

    /// Whether elements are not floating-point values.
    pub const fn is_quantised(self) -> bool {
        !matches!(self, Kind::Float(_))
    }

    /// The element type. UNSUPPORTED: if the kind is quantised.
    pub fn float(self, what: &str) -> Result<Dtype> {
        match self {
            Kind::Float(dtype) => Ok(dtype),
            _ => bail!(Unsupported, "{what} is {}; F16 (1), BF16 (2) or F32 (3) expected", self.name()),
        }
    }

    /// The words that a codec sees: floating-point elements, else bytes.
    pub const fn words(self) -> Dtype {
        match self {
            Kind::Float(dtype) => dtype,
            _ => Dtype::Int8,
        }
    }

    /// Bytes of a record of 32 dims; 0 where there are none.
    pub(super) const fn record_bytes(self) -> usize {
        match self {
            Kind::Tq3 => 14,
            Kind::Tq4 => 18,
            _ => 0,
        }
    }

    /// Bytes of a dense row of K. An INT8 row is its codes, its scale, its bias and its key sum.
    pub(super) const fn key_row(self, dims: usize) -> usize {
        self.value_row(dims) + if matches!(self, Kind::Int8) { KEY_TAIL } else { 0 }
    }

    /// Bytes of a dense row of V. The scales of an INT8 V are not of a token.
    pub(super) const fn value_row(self, dims: usize) -> usize {
        match self {
            Kind::Float(dtype) => dims * dtype.bytes(),
            Kind::Int8 => dims,
            Kind::Tq3 | Kind::Tq4 => dims / RECORD_DIMS * self.record_bytes(),
        }
    }
}

/// The packing of INT8 caches on one kind of CPU (MNN's lP8 and hP8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Int8Unit {
    /// Interleave of the reduction dimension.
    pub l_pack: u32,
    /// Interleave of the output dimension.
    pub h_pack: u32,
}

impl Int8Unit {
    /// Every unit of MNN's CPU backends: x86 SSE, plain C and old Arm; AVX2 and Arm sdot; AVX-512; Arm i8mm; Arm SME2.
    pub const ALL: [Int8Unit; 5] = [
        Int8Unit { l_pack: 16, h_pack: 4 },
        Int8Unit { l_pack: 4, h_pack: 8 },
        Int8Unit { l_pack: 4, h_pack: 64 },
        Int8Unit { l_pack: 8, h_pack: 8 },
        Int8Unit { l_pack: 4, h_pack: 32 },
    ];
}

/// Refuses what no cache of MNN is. The modes are those of `attention_mode`.
pub(super) fn check(spec: &Spec) -> Result<()> {
    let (key, value) = (spec.key, spec.value);
    let known = matches!(
        (key, value),
        (_, Kind::Float(_)) | (Kind::Int8, Kind::Int8) | (Kind::Tq3, Kind::Tq3) | (Kind::Tq4, Kind::Tq4)
    );
    if !known {
        bail!(
            Unsupported,
            "layout->key_dtype is {} and value_dtype {}; MNN's quantised caches are INT8, TQ3 or TQ4 with a \
             floating-point V or with V of the same type",
            key.name(),
            value.name()
        );
    }
    if value.is_quantised() && spec.flash_block != QUANTISED_BLOCK {
        let reason = match value {
            Kind::Int8 => "",
            _ => {
                " (attention_mode 12 and 14; without flash attention, modes 4 and 6, MNN overruns its buffer of softmax weights)"
            }
        };
        bail!(
            Unsupported,
            "layout->flash_block is {} where V is {}; {QUANTISED_BLOCK} expected{reason}",
            spec.flash_block,
            value.name()
        );
    }
    for (name, kind) in [("key", key), ("value", value)] {
        if kind.record_bytes() > 0 && !(spec.head_dim as usize).is_multiple_of(RECORD_DIMS) {
            bail!(
                Unsupported,
                "layout->head_dim is {} where {name}_dtype is {}; a multiple of {RECORD_DIMS} expected",
                spec.head_dim,
                kind.name()
            );
        }
    }
    if key == Kind::Int8 && !Int8Unit::ALL.contains(&spec.int8) {
        let Int8Unit { l_pack, h_pack } = spec.int8;
        bail!(
            Unsupported,
            "layout->int8->l_pack is {l_pack} and h_pack {h_pack}; a unit of MNN expected: 16 and 4, 4 and 8, 4 and \
             64, 8 and 8, or 4 and 32"
        );
    }
    Ok(())
}
