//! TQ3 and TQ4: 32 dims to a record and back.

use super::places::Kind;
use half::f16;

/// Dim i changes its sign if bit i is set.
const FLIPS: u32 = 0x696B_4B4A;

/// The positive halves of edges (without 0) and of the codebook.
fn tables(kind: Kind) -> (&'static [f32], &'static [f32]) {
    match kind {
        Kind::Tq3 => (&[0.5005, 1.05, 1.7479], &[0.2451, 0.756, 1.3439, 2.1519]),
        _ => (
            &[0.2582, 0.5224, 0.7995, 1.0993, 1.4371, 1.8435, 2.4008],
            &[0.1284, 0.388, 0.6568, 0.9423, 1.2562, 1.618, 2.069, 2.7326],
        ),
    }
}

fn flip(x: &mut [f32; 32]) {
    (0..32).filter(|i| FLIPS >> i & 1 == 1).for_each(|i| x[i] = -x[i]);
}

/// The Hadamard transform in natural order over sqrt(32), which is its own inverse.
fn rotate(x: &mut [f32; 32]) {
    for half in [1, 2, 4, 8, 16] {
        for i in (0..32).filter(|i| i & half == 0) {
            (x[i], x[i + half]) = (x[i] + x[i + half], x[i] - x[i + half]);
        }
    }
    x.iter_mut().for_each(|x| *x /= 32f32.sqrt());
}

/// Cuts to f16. Subnormal results are 0.
fn cut(x: f32) -> f16 {
    let exponent = (x.to_bits() >> 23) as i32 - 127;
    if exponent < -14 {
        return f16::ZERO;
    }
    f16::from_bits(((exponent + 15) << 10) as u16 | (x.to_bits() >> 13 & 0x3FF) as u16)
}

/// The records of a token.
pub fn encode(kind: Kind, token: &[f32]) -> Vec<u8> {
    let (edges, _) = tables(kind);
    token
        .as_chunks::<32>()
        .0
        .iter()
        .flat_map(|dims| {
            let rms = (dims.iter().map(|x| x * x).sum::<f32>() / 32.0).sqrt().max(1e-10);
            let mut y = dims.map(|x| x / rms);
            flip(&mut y);
            rotate(&mut y);
            let mut indices = 0u128;
            for (i, y) in y.into_iter().enumerate() {
                let below =
                    edges.iter().filter(|edge| **edge < y).count() + edges.iter().filter(|edge| -**edge < y).count();
                indices |= ((below + usize::from(0.0 < y)) as u128) << (i * kind.bits());
            }
            let mut record = cut(rms).to_le_bytes().to_vec();
            record.extend_from_slice(&indices.to_le_bytes()[..4 * kind.bits()]);
            record
        })
        .collect()
}

/// The dims of a token's records.
pub fn decode(kind: Kind, records: &[u8]) -> Vec<f32> {
    let (_, book) = tables(kind);
    records
        .chunks_exact(2 + 4 * kind.bits())
        .flat_map(|record| {
            let scale = f16::from_le_bytes([record[0], record[1]]).to_f32();
            let mut indices = [0; 16];
            indices[..record.len() - 2].copy_from_slice(&record[2..]);
            let indices = u128::from_le_bytes(indices);
            let mut y: [f32; 32] = std::array::from_fn(|i| {
                let index = (indices >> (i * kind.bits())) as usize % (2 * book.len());
                scale * if index < book.len() { -book[book.len() - 1 - index] } else { book[index - book.len()] }
            });
            rotate(&mut y);
            flip(&mut y);
            y
        })
        .collect()
}
