//! The header of a safetensors file.
//!
//! The format: eight bytes with the length of a JSON object, the object, then the data of all tensors. The object maps
//! each tensor to its element type, shape and data range; the ranges cover the data without gaps
//! (<https://huggingface.co/docs/safetensors>). Only the header is read: memory is proportional to the header, and data
//! is read by position on demand.
//!
//! [`survey`] finds all faults and names the tensors, for reports; [`read`] stops at the first fault.

mod dtype;
mod header;
mod write;

pub use dtype::FileDtype;
pub use header::{Fault, MAX_HEADER, Problem, Tensor, read, survey};
pub use write::{NewTensor, header};
