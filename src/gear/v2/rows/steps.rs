//! Small steps: mostly tiny numbers, coded two in a byte so that a Huffman code takes less than a bit for each, and the
//! few large ones apart.

use crate::bytes::{Reader, push_number};
use crate::gear::codec::Context;
use crate::gear::v2::planes::{self, Coder, PlaneShape};
use crate::status::{Result, bail};
use crate::sys::memory;

/// The nibble of a number of [`ESCAPE`] or more, which is in the list of large ones.
const ESCAPE: u8 = 15;

/// Nibbles of one channel, two rows in a byte.
fn packed_shape(shape: &PlaneShape) -> PlaneShape {
    PlaneShape { planes: 1, channels: shape.channels, rows: shape.rows.div_ceil(2) }
}

/// The large numbers are one channel.
fn large_shape(shape: &PlaneShape, count: usize) -> PlaneShape {
    PlaneShape { planes: shape.planes, channels: 1, rows: count }
}

/// The number at place `at` of every plane is less than [`ESCAPE`].
fn is_small(planes: &[u8], plane_len: usize, at: usize) -> bool {
    planes[at] < ESCAPE && planes[at..].iter().step_by(plane_len).skip(1).all(|byte| *byte == 0)
}

/// Appends the numbers whose bytes are in `planes`, lowest plane first. `packed` is working memory.
pub(super) fn encode(
    planes: &[u8],
    shape: &PlaneShape,
    coder: &mut Coder<'_>,
    packed: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<()> {
    let plane_len = shape.channels * shape.rows;
    let packed_shape = packed_shape(shape);
    let nibbles = memory::at_least(packed, planes::room(packed_shape.len()))?;
    let mut count = 0;
    for (number, byte) in nibbles[..packed_shape.len()].iter_mut().enumerate() {
        let (channel, row) = (number / packed_shape.rows, 2 * (number % packed_shape.rows));
        *byte = 0;
        for half in 0..2.min(shape.rows - row) {
            let at = channel * shape.rows + row + half;
            let nibble = if is_small(planes, plane_len, at) { planes[at] } else { ESCAPE };
            count += (nibble == ESCAPE) as usize;
            *byte |= nibble << (4 * half);
        }
    }
    coder.encode(nibbles, &packed_shape, out)?;

    push_number(out, count as u64)?;
    let bytes = memory::at_least(packed, planes::room(count * shape.planes))?;
    let large = (0..plane_len).filter(|at| !is_small(planes, plane_len, *at));
    for (number, at) in large.enumerate() {
        for plane in 0..shape.planes {
            bytes[plane * count + number] = planes[plane * plane_len + at];
        }
    }
    coder.encode(bytes, &large_shape(shape, count), out)
}

/// The inverse of [`encode`]: writes to `planes`. `packed` is working memory as long as `planes`; `large` grows with the
/// number of large numbers.
pub(super) fn decode(
    body: &mut Reader<'_>,
    shape: &PlaneShape,
    context: &mut Context<'_>,
    unit_groups: &mut Vec<u8>,
    large: &mut Vec<u8>,
    packed: &mut [u8],
    planes: &mut [u8],
) -> Result<()> {
    let plane_len = shape.channels * shape.rows;
    let packed_shape = packed_shape(shape);
    let packed = &mut packed[..packed_shape.len()];
    planes::decode(body, &packed_shape, context, unit_groups, packed, planes)?;
    let count = body.number_within(plane_len, "number of large steps")?;
    let large = context.budget.at_least(large, count * shape.planes)?;
    planes::decode(body, &large_shape(shape, count), context, unit_groups, large, planes)?;

    planes[plane_len..shape.len()].fill(0);
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
                    planes[plane * plane_len + at] = large[plane * count + taken];
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
