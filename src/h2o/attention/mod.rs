//! Exact attention mass per block of tokens, from the block sums that a host makes of its softmax tiles.
//!
//! | file | job |
//! |---|---|
//! | `block_sums` | [`BlockSums`]: what a host has summed, and the checks of it by itself |
//! | `exact` | [`Accumulator`]: masses in fixed point |

mod block_sums;
mod exact;
#[cfg(test)]
mod tests;

pub use block_sums::{BlockSums, MAX_TOKENS, SumFields};
pub use exact::{Accumulator, Joints, Sums, mass_to_f64};
