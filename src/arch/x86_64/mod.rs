//! The x86-64 levels.

pub(super) mod avx2;
pub(super) mod avx512;
mod sse2;

pub(super) use avx2::{Avx2, attend_with_vnni};
pub(super) use avx512::Avx512;
pub(super) use sse2::Sse2;
