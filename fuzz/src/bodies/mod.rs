//! The targets: functions of any bytes, which panic where the library is wrong.

#[path = "../../../tests/common/counting_allocator.rs"]
mod counting_allocator;
#[path = "../../../tests/common/packing.rs"]
mod packing;
#[path = "../../../tests/common/random.rs"]
#[allow(dead_code)]
mod random;

mod attend;
mod blobs;
mod compressor;
mod files;
mod given;
mod json;
mod layout;
mod msmodelslim;
mod plan;
mod session;
mod state;

pub use attend::attend;
pub use blobs::{decode_checked, decode_v1, roundtrip};
pub use compressor::compressor;
pub use files::{checkpoint, dumps, gguf, tasks};
pub use json::{config, json, sizing};
pub use layout::layout;
pub use msmodelslim::msmodelslim;
pub use plan::h2o_plan;
pub use session::session;
pub use state::decode_state;

/// A function of any bytes.
pub type Target = fn(&[u8]);

/// All targets by name. Each has a program in `fuzz_targets/` and inputs in `corpus/`.
pub const TARGETS: [(&str, Target); 17] = [
    ("attend", attend),
    ("checkpoint", checkpoint),
    ("compressor", compressor),
    ("config", config),
    ("decode_checked", decode_checked),
    ("decode_state", decode_state),
    ("decode_v1", decode_v1),
    ("dumps", dumps),
    ("gguf", gguf),
    ("h2o_plan", h2o_plan),
    ("json", json),
    ("layout", layout),
    ("msmodelslim", msmodelslim),
    ("roundtrip", roundtrip),
    ("session", session),
    ("sizing", sizing),
    ("tasks", tasks),
];
