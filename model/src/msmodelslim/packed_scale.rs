//! deq_scale as 64-bit integers.
//!
//! fp16 models store the bits of the f32 in the low half of an i64, sign-extended; bf16 models store the f32. The NPU's
//! own converter (aclnnTransQuantParam) cuts the mantissa to 10 bits, sets bit 46 and may store an offset in bits 37 to
//! 45. Writers of the format do not use that form; its low half is the number, too.

/// A number from 64 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PackedScale {
    /// The form of the format.
    Plain(f32),
    /// The form of the NPU's converter, with its shorter mantissa.
    Npu(f32),
    /// Neither form.
    Strange,
}

const NPU_MARK: u64 = 1 << 46;
const NPU_OFFSET: u64 = 0x1ff << 37;
const NPU_CUT: u64 = 0x1fff;

impl PackedScale {
    /// Decodes 64 bits.
    pub fn unpack(bits: i64) -> PackedScale {
        let number = f32::from_bits(bits as u32);
        if pack(number) == bits || (bits as u64) >> 32 == 0 {
            return PackedScale::Plain(number);
        }
        let bits = bits as u64;
        if bits & NPU_MARK != 0 && bits & NPU_CUT == 0 && (bits >> 32) << 32 & !(NPU_MARK | NPU_OFFSET) == 0 {
            return PackedScale::Npu(number);
        }
        PackedScale::Strange
    }

    /// The number, if the form is known.
    pub fn number(self) -> Option<f32> {
        match self {
            PackedScale::Plain(number) | PackedScale::Npu(number) => Some(number),
            PackedScale::Strange => None,
        }
    }
}

/// The 64 bits of a number in the form of the format.
pub fn pack(scale: f32) -> i64 {
    i64::from(scale.to_bits() as i32)
}
