//! Attention over blocks of 64 tokens, K in 8 bits and V in 4 bits (docs/format.md), and over the tokens that are not in
//! blocks yet.

mod block;
mod queries;
mod step;

pub use crate::arch::attend::BLOCK;
pub use block::{Block, EncodeWork, Shape, Unfit};
pub use queries::Queries;
pub use step::{MOST_PARTS, Mask, Placed, Round, Step, Tokens, Work, attend};

#[cfg(test)]
pub(crate) mod tests;
