//! Quantised caches of MNN: the library against an oracle of MNN's formulas, which `quantised/model.rs` tests in its turn.

mod common;
#[path = "quantised/model.rs"]
mod model;
#[path = "common/quantised/mod.rs"]
mod quantised;
