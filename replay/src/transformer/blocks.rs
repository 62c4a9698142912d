//! The block formats of GGUF tensors to f32.

use half::{bf16, f16};

/// A tensor type that is read: its number in a file, its name, and the elements and bytes of a block.
pub(super) struct Format {
    pub(super) name: &'static str,
    pub(super) elements: usize,
    pub(super) bytes: usize,
    /// One block to its elements.
    widen: fn(&[u8], &mut [f32]),
}

impl Format {
    /// The format with a number of ggml's `enum ggml_type`.
    pub(super) fn of(number: u32) -> Option<Format> {
        let format = |name, elements, bytes, widen| Some(Format { name, elements, bytes, widen });
        match number {
            0 => format("F32", 1, 4, |block, to| to[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]])),
            1 => format("F16", 1, 2, |block, to| to[0] = half(block)),
            30 => format("BF16", 1, 2, |block, to| to[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32()),
            2 => format("Q4_0", 32, 18, q4_0),
            3 => format("Q4_1", 32, 20, q4_1),
            6 => format("Q5_0", 32, 22, q5_0),
            8 => format("Q8_0", 32, 34, q8_0),
            12 => format("Q4_K", 256, 144, q4_k),
            14 => format("Q6_K", 256, 210, q6_k),
            _ => None,
        }
    }

    /// Whole blocks to f32.
    pub(super) fn read(&self, bytes: &[u8]) -> Vec<f32> {
        let mut values = vec![0.0; bytes.len() / self.bytes * self.elements];
        for (block, to) in bytes.chunks_exact(self.bytes).zip(values.chunks_exact_mut(self.elements)) {
            (self.widen)(block, to);
        }
        values
    }
}

fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// The lower 4 bits of each byte, then the upper.
fn nibbles(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().map(|byte| byte & 15).chain(bytes.iter().map(|byte| byte >> 4))
}

/// A scale, 32 numbers of 4 bits around 8.
fn q4_0(block: &[u8], to: &mut [f32]) {
    let scale = half(block);
    to.iter_mut().zip(nibbles(&block[2..])).for_each(|(to, q)| *to = f32::from(q as i8 - 8) * scale);
}

/// A scale, the least number, 32 numbers of 4 bits.
fn q4_1(block: &[u8], to: &mut [f32]) {
    let (scale, least) = (half(block), half(&block[2..]));
    to.iter_mut().zip(nibbles(&block[4..])).for_each(|(to, q)| *to = f32::from(q) * scale + least);
}

/// A scale, the fifth bits of 32 numbers, their lower 4 bits; around 16.
fn q5_0(block: &[u8], to: &mut [f32]) {
    let (scale, high) = (half(block), u32::from_le_bytes([block[2], block[3], block[4], block[5]]));
    for (at, (to, low)) in to.iter_mut().zip(nibbles(&block[6..])).enumerate() {
        *to = f32::from((low | ((high >> at & 1) as u8) << 4) as i8 - 16) * scale;
    }
}

/// A scale, 32 signed bytes.
fn q8_0(block: &[u8], to: &mut [f32]) {
    let scale = half(block);
    to.iter_mut().zip(&block[2..]).for_each(|(to, q)| *to = f32::from(*q as i8) * scale);
}

/// The scale of scales, that of minima, 8 of both in 6 bits, 256 numbers of 4 bits. Of 64 numbers 32 are in lower bits.
fn q4_k(block: &[u8], to: &mut [f32]) {
    let (scale, least) = (half(block), half(&block[2..]));
    let packed = &block[4..16];
    let pair = |at: usize| match at {
        0..4 => (packed[at] & 63, packed[at + 4] & 63),
        _ => {
            let low = packed[at + 4];
            (low & 15 | packed[at - 4] >> 6 << 4, low >> 4 | packed[at] >> 6 << 4)
        }
    };
    for (part, (to, codes)) in to.chunks_exact_mut(64).zip(block[16..].chunks_exact(32)).enumerate() {
        for (at, (to, q)) in to.iter_mut().zip(nibbles(codes)).enumerate() {
            let (by, less) = pair(2 * part + at / 32);
            *to = scale * f32::from(by) * f32::from(q) - least * f32::from(less);
        }
    }
}

/// Lower 4 bits of 256 numbers around 32, their upper 2 bits, 16 scales of 8 bits, the scale of these. Each half of the
/// numbers is four rows of 32, which share bytes.
fn q6_k(block: &[u8], to: &mut [f32]) {
    let (low, high, scales, scale) = (&block[..128], &block[128..192], &block[192..208], half(&block[208..]));
    for (part, to) in to.chunks_exact_mut(128).enumerate() {
        let (low, high, scales) = (&low[part * 64..], &high[part * 32..], &scales[part * 8..]);
        for (at, to) in to.iter_mut().enumerate() {
            let (row, column) = (at / 32, at % 32);
            let four = low[row % 2 * 32 + column] >> (row / 2 * 4) & 15;
            let two = high[column] >> (row * 2) & 3;
            *to = scale * f32::from(scales[at / 16] as i8) * f32::from((four | two << 4) as i8 - 32);
        }
    }
}
