//! JSON in, with fallible memory.
//!
//! [`Json`] is a document as a tree, [`Reader`] reads one piece by piece: it takes RFC 8259 in UTF-8, nested at most 127
//! deep, after a byte order mark or none. [`Json::python`] also takes the numbers that Python adds.

mod reader;
mod value;

pub use reader::{Reader, without_mark};
pub use value::{Brief, Escaped, Json, Number, Quoted, Short};

#[cfg(test)]
mod tests;
