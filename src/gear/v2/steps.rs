//! Residuals of predicted rows: mostly tiny numbers, coded two in a byte so that a Huffman code can get below a bit
//! for each, and the few large ones apart.

use super::container::{Reader, push_number};
use super::planes::{self, DecodeScratch, Options, Scratch, Shape};
use crate::gear::zstd;
use crate::status::{Result, bail};
use crate::sys::memory;

/// Stands for a number of [`ESCAPE`] or more, which is in the list of large ones.
const ESCAPE: u8 = 15;

/// Nibbles of one channel, two rows in a byte.
fn packed_shape(shape: &Shape) -> Shape {
    Shape { planes: 1, channels: shape.channels, rows: shape.rows.div_ceil(2) }
}

/// The large numbers are one channel.
fn large_shape(shape: &Shape, count: usize) -> Shape {
    Shape { planes: shape.planes, channels: 1, rows: count }
}

/// The number at place `at` of every plane is less than [`ESCAPE`].
fn is_small(planes: &[u8], lane: usize, at: usize) -> bool {
    planes[at] < ESCAPE && planes[at..].iter().step_by(lane).skip(1).all(|byte| *byte == 0)
}

/// Appends the numbers whose bytes are in `planes`, lowest plane first.
pub(super) fn encode(
    planes: &[u8],
    shape: &Shape,
    options: &Options,
    zstd: &mut zstd::Compressor,
    scratch: &mut Scratch,
    out: &mut Vec<u8>,
) -> Result<()> {
    let lane = shape.channels * shape.rows;
    let packed_shape = packed_shape(shape);
    let mut packed = Vec::new();
    memory::reserve(&mut packed, packed_shape.len())?;
    let mut large = Vec::new();
    for start in (0..lane).step_by(shape.rows) {
        for row in (0..shape.rows).step_by(2) {
            let mut byte = 0;
            for (half, at) in (start + row..start + shape.rows).take(2).enumerate() {
                let nibble = if is_small(planes, lane, at) {
                    planes[at]
                } else {
                    memory::reserve_amortized(&mut large, 1)?;
                    large.push(at);
                    ESCAPE
                };
                byte |= nibble << (4 * half);
            }
            packed.push(byte);
        }
    }
    planes::encode(&packed, &packed_shape, options, zstd, scratch, out)?;

    let mut bytes = packed;
    bytes.clear();
    memory::reserve(&mut bytes, large.len() * shape.planes)?;
    for plane in 0..shape.planes {
        bytes.extend(large.iter().map(|at| planes[plane * lane + at]));
    }
    push_number(out, large.len());
    planes::encode(&bytes, &large_shape(shape, large.len()), options, zstd, scratch, out)
}

/// The inverse of [`encode`].
pub(super) fn decode(
    body: &mut Reader<'_>,
    shape: &Shape,
    zstd: &mut zstd::Decompressor,
    scratch: &mut DecodeScratch,
    planes: &mut [u8],
) -> Result<()> {
    let lane = shape.channels * shape.rows;
    let packed_shape = packed_shape(shape);
    let mut packed = Vec::new();
    memory::resize(&mut packed, packed_shape.len())?;
    planes::decode(body, &packed_shape, zstd, scratch, &mut packed)?;
    let count = body.number(lane, "number of large steps")?;
    let mut large = Vec::new();
    memory::resize(&mut large, count * shape.planes)?;
    planes::decode(body, &large_shape(shape, count), zstd, scratch, &mut large)?;

    planes[lane..].fill(0);
    let mut taken = 0;
    for (channel, packed) in packed.chunks_exact(packed_shape.rows.max(1)).enumerate() {
        for row in 0..shape.rows {
            let at = channel * shape.rows + row;
            let nibble = packed[row / 2] >> (4 * (row & 1)) & 15;
            planes[at] = nibble;
            if nibble == ESCAPE {
                if taken == count {
                    bail!(Corrupt, "more large steps than the {count} announced");
                }
                for plane in 0..shape.planes {
                    planes[plane * lane + at] = large[plane * count + taken];
                }
                taken += 1;
            }
        }
    }
    if taken != count {
        bail!(Corrupt, "{taken} large steps; {count} announced");
    }
    Ok(())
}
