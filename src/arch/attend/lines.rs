//! Lines of 64 bytes as the parts of a block that lie in them. All are plain bytes, so any contents are valid.

use super::{BLOCK, LINE, Line, Wide};
use crate::arch::estimates::Shorts;

/// Lines of a channel in 16 bits.
pub const WIDE_LINES: usize = size_of::<Wide>() / LINE;

/// The bytes of lines.
pub fn bytes(lines: &[Line]) -> &[u8] {
    // SAFETY: a line is 64 bytes without padding.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}

/// The bytes of lines, to change.
pub fn bytes_mut(lines: &mut [Line]) -> &mut [u8] {
    // SAFETY: a line is 64 bytes without padding, of which all values are valid.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) }
}

/// The whole lines among bytes.
pub fn whole(bytes: &[u8]) -> &[Line] {
    // SAFETY: a line is 64 bytes without padding, of which all values are valid.
    unsafe { bytes.align_to().1 }
}

/// The same, to change.
pub fn whole_mut(bytes: &mut [u8]) -> &mut [Line] {
    // SAFETY: as in `whole`; all values of the bytes are valid, too.
    unsafe { bytes.align_to_mut().1 }
}

/// Lines as groups of 16 two-byte numbers.
pub fn shorts(lines: &[Line]) -> &[Shorts] {
    let bytes = bytes(lines);
    // SAFETY: two groups have the size of a line, and arrays of bytes no alignment.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<Shorts>()) }
}

/// The same, to change.
pub fn shorts_mut(lines: &mut [Line]) -> &mut [Shorts] {
    let bytes = bytes_mut(lines);
    // SAFETY: as in `shorts`.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / size_of::<Shorts>()) }
}

/// Lines as channels of K in 16 bits.
pub fn wides(lines: &[Line]) -> &[Wide] {
    const { assert!(size_of::<Wide>() == WIDE_LINES * LINE && align_of::<Wide>() == align_of::<Line>()) };
    const { assert!(size_of::<[Shorts; BLOCK / 16]>() == 2 * BLOCK) };
    // SAFETY: a channel is whole lines, with their alignment, and bytes alone.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() / WIDE_LINES) }
}
