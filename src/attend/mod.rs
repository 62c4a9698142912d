//! Attention over blocks of 64 tokens, K in 8 bits and V in 4 bits (docs/format.md), and over the tokens that are not in
//! blocks yet.

mod block;
mod queries;
mod round;
mod step;

pub use crate::arch::attend::BLOCK;
pub use block::{Block, EncodeWork, Shape, Unfit};
pub use queries::Queries;
pub use round::{MOST_PARTS, Round};
pub use step::{Mask, Placed, Step, Tokens, Work, attend};

#[cfg(test)]
pub(crate) mod tests;
