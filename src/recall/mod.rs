//! Sketches of keys, from which attention to the keys is estimated.
//!
//! | file | job |
//! |---|---|
//! | [`basis`] | the directions of sketches |
//! | [`sketch`] | keys to codes |
//!
//! A key element that is NaN counts as 0, and one beyond ±65,504 as that bound, so that no key can spoil an estimate of
//! another one.

pub mod basis;
pub mod sketch;

#[cfg(test)]
mod tests;

use crate::arch::estimates::{LANES, Shorts};

/// The largest magnitude of a key element.
const LARGEST: f32 = 65_504.0;

/// An element of a key as it is summarised.
fn tame(x: f32) -> f32 {
    if x.is_nan() { 0.0 } else { x.clamp(-LARGEST, LARGEST) }
}

/// The scale of codes up to `codes` for magnitudes up to `largest`: their ratio in bf16, to nearest, ties to even.
fn scale_of(largest: f32, codes: f32) -> f32 {
    let bits = (largest / codes).to_bits();
    f32::from_bits((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF_0000)
}

/// The code of a number: `x / scale` to the nearest integer, ties to even, within `low..=high`; 0 if the scale is 0.
fn code_of(x: f32, scale: f32, low: f32, high: f32) -> i8 {
    if scale == 0.0 { 0 } else { nearest((x / scale).clamp(low, high)) }
}

/// The nearest integer to a number within ±127, ties to even.
fn nearest(x: f32) -> i8 {
    // The sum rounds to an integer, which its lower bits then hold: a vector operation, unlike `round_ties_even` on old CPUs.
    (x + 12_582_912.0).to_bits() as i8
}

/// Sets one of the upper halves of floats.
fn set_short(shorts: &mut Shorts, lane: usize, x: f32) {
    debug_assert!(lane < LANES);
    shorts[lane] = ((x.to_bits() >> 16) as u16).to_ne_bytes();
}
