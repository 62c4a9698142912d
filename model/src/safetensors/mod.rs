//! The header of a safetensors file.
//!
//! The format: eight bytes with the length of a JSON object, the object, then the data of all tensors. The object gives
//! for each tensor its element type, its shape and where its data begins and ends; the ranges cover the data without a
//! gap (<https://huggingface.co/docs/safetensors>). Only the header is read here, so a file of any size costs no more
//! memory than its header has text; data is read by position when somebody asks for it.
//!
//! [`survey`] finds everything that is wrong and names the tensors, for reports; [`read`] stops at the first fault.

mod dtype;
mod header;
mod write;

pub use dtype::Dtype;
pub use header::{Fault, MAX_HEADER, Problem, Tensor, read, survey};
pub use write::{NewTensor, header};
