//! deq_scale as 64-bit integers.
//!
//! Models of fp16 keep the bits of the f32 in the low half of an i64, sign-extended; models of bf16 keep the f32. The
//! NPU's own converter (aclnnTransQuantParam) cuts the mantissa to 10 bits, sets bit 46 and may put an offset in bits
//! 37 to 45. The format's writers do not use that form, but it can be read: the low half is the number there, too.

/// A number that was in 64 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PackedScale {
    /// As the format has it.
    Plain(f32),
    /// As the NPU's converter writes it, with the mantissa it left.
    Npu(f32),
    /// Neither: the high half is neither the sign nor the NPU's.
    Strange,
}

const NPU_MARK: u64 = 1 << 46;
const NPU_OFFSET: u64 = 0x1ff << 37;
const NPU_CUT: u64 = 0x1fff;

impl PackedScale {
    /// What these 64 bits say.
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

    /// The number, where there is one.
    pub fn number(self) -> Option<f32> {
        match self {
            PackedScale::Plain(number) | PackedScale::Npu(number) => Some(number),
            PackedScale::Strange => None,
        }
    }
}

/// The 64 bits that the format has for a number.
pub fn pack(scale: f32) -> i64 {
    i64::from(scale.to_bits() as i32)
}
