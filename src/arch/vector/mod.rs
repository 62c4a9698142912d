//! Kernels written once, over the vectors of a level.
//!
//! A level implements the traits here for its vectors and instantiates the kernels with [`super::level!`]. Everything
//! here is inlined into functions that enable the features of the level, so operations become single instructions.

mod bytes;
mod product;
mod split;
mod transpose;

#[cfg(target_arch = "x86_64")]
pub(super) use bytes::repeats;
pub(super) use bytes::{delta, next_run, places, run_len, undo_delta, undo_xor, xor};
pub(super) use product::{Floats, product};
pub(super) use split::{merge2, merge4, split2, split4};
pub(super) use transpose::{transpose2, transpose4};

/// A vector of bytes: one or more parts of 16 bytes.
///
/// # Safety
/// Every unsafe function needs the CPU features of its implementation. Functions with a pointer need [`Vector::LEN`]
/// bytes there, unless they document another number, and no alignment.
pub(super) trait Vector: Copy {
    /// Bytes in a vector.
    const LEN: usize;
    /// Bits of [`Vector::equal`] for each byte.
    const MASK_BITS: u32;
    /// The vector of half the length; itself for the shortest.
    type Half: Vector;

    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    /// 16 bytes from each of `LEN / 16` places that are `stride` apart.
    unsafe fn load_parts(from: *const u8, stride: usize) -> Self;

    unsafe fn zero() -> Self;
    unsafe fn splat(byte: u8) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    /// Ones where bytes are equal; the first byte is in the lowest bits.
    unsafe fn equal(self, other: Self) -> u64;

    /// Interleaves the lower halves of each part, by units of `UNIT` bytes: 1, 2, 4 or 8.
    unsafe fn zip_lo<const UNIT: usize>(self, other: Self) -> Self;
    /// Interleaves the upper halves of each part, by units of `UNIT` bytes: 1, 2, 4 or 8.
    unsafe fn zip_hi<const UNIT: usize>(self, other: Self) -> Self;

    /// The two planes of `LEN` 2-byte words.
    unsafe fn split2(from: *const u8) -> [Self; 2];
    /// The four planes of `LEN` 4-byte words.
    unsafe fn split4(from: *const u8) -> [Self; 4];
    /// Writes `LEN` 2-byte words.
    unsafe fn merge2(planes: [Self; 2], to: *mut u8);
    /// Writes `LEN` 4-byte words.
    unsafe fn merge4(planes: [Self; 4], to: *mut u8);
}

/// The operations of running sums. Vectors of more than two parts gain nothing on them.
///
/// # Safety
/// As [`Vector`].
pub(super) trait Sums: Vector {
    /// Bytes move up `BY` places, 1, 2, 4 or 8, within their part; zeros come in.
    unsafe fn up<const BY: i32>(self) -> Self;
    /// The last byte of the first part everywhere in the second; zeros in the first.
    unsafe fn carried(self) -> Self;
    /// The last byte of the vector everywhere.
    unsafe fn last(self) -> Self;
}

/// First and last places of vectors that cover `len` bytes: the first vector, the vectors from the first aligned place of
/// `to` on, and the last vector. Vectors overlap, which costs less than a tail; a kernel writes the same bytes again.
/// `len` is at least [`Vector::LEN`].
#[inline(always)]
fn cover<V: Vector>(len: usize, to: *const u8) -> [(usize, usize); 3] {
    let last = len - V::LEN;
    [(0, 0), (V::LEN - to.addr() % V::LEN, last), (last, last)]
}

/// The functions of an implementation of [`Vector`].
macro_rules! operations {
    ($(fn $name:ident $(<$(const $n:ident: $t:ty),+>)? ($($args:tt)*) $(-> $out:ty)? = $body:expr;)*) => {
        $(#[inline(always)]
        unsafe fn $name $(<$(const $n: $t),+>)? ($($args)*) $(-> $out)? {
            // SAFETY: the caller has the features, and the bytes behind the pointers.
            unsafe { $body }
        })*
    };
}
pub(super) use operations;
