//! JSON in, with fallible memory.
//!
//! [`Json`] is a document as a tree, [`Reader`] reads one piece by piece: it takes
//! RFC 8259 in UTF-8, nested at most 127 deep, and nothing else.

mod reader;
mod value;

pub use reader::Reader;
pub use value::{Json, Number, Quoted, Short};

#[cfg(test)]
mod tests;
