//! JSON in and out, with fallible memory.
//!
//! [`Json`] is a document as a tree, [`Reader`] reads one piece by piece, [`Writer`] writes. The reader takes
//! RFC 8259 in UTF-8, nested at most 127 deep, and nothing else.

mod reader;
mod value;
mod writer;

pub use reader::Reader;
pub use value::{Json, Number, Quoted, Short};
pub use writer::{ToJson, Writer};

#[cfg(test)]
mod tests;
