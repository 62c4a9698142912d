//! Gear: the rotation hint
//!
//! MNNKV_EXPERIMENTAL: the hint does not cover all variants of RoPE yet. Without it, rope_pairing must be 0.

use crate::gear::Pairing;

/// mnnkv_gear_options::rope_pairing: channels d and d + rope_dims / 2 rotate together (Llama, rotate_half), or 2 d and
/// 2 d + 1 (GPT-J).
pub const MNNKV_ROPE_HALF: u32 = 1;
pub const MNNKV_ROPE_ADJACENT: u32 = 2;

const _: () = assert!(MNNKV_ROPE_HALF == Pairing::Half as u32 && MNNKV_ROPE_ADJACENT == Pairing::Adjacent as u32);
