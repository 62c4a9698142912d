//! Attention over blocks of 64 tokens, K in 8 or about 4 bits and V in 4 (docs/format.md), and over the tokens that are not in
//! blocks yet.

mod basis;
mod block;
mod blocks;
mod cell;
mod fold;
mod found;
mod offload;
mod queries;
mod reload;
mod round;
mod sketch;
mod slots;
mod step;
mod tokens;
mod widths;

pub use crate::arch::attend::BLOCK;
pub use basis::Basis;
pub use block::{Block, Codes, EncodeWork, Format, NarrowWork, Shape, Unfit};
pub use blocks::Blocks;
pub use cell::{Cell, Place, Placed};
pub use found::{Arrived, Found, Mass};
pub use offload::{Offloaded, Reads, SketchWork, Source, pause};
pub use queries::Queries;
pub use round::{MOST_PARTS, Round};
pub(crate) use sketch::read as read_sketch;
pub use sketch::{GROUP, Group, Sketches};
pub use step::{FEW_ROWS, Mask, Step, Work, WorkPool, attend};
pub use tokens::Tokens;
pub use widths::{Squares, Widths};

#[cfg(test)]
pub(crate) mod tests;
