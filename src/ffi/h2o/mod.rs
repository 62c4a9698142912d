//! `mnnkv/h2o.h`: scores, plans, and block sums of a session.

mod config;
mod plan;
mod sums;

pub use config::*;
pub use plan::*;
pub use sums::*;
