//! Exports of the h2o room.

mod config;
mod plan;

pub use config::*;
pub use plan::*;
