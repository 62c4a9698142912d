//! The targets of `make fuzz`: each is a function of any bytes that must not panic. `cli/tests/fuzz_corpus.rs` compiles
//! the same files without libFuzzer, and replays `corpus/`.

pub mod bodies;
mod failure;

pub use libfuzzer_sys;

/// The program of a target of [`bodies::TARGETS`].
#[macro_export]
macro_rules! target {
    ($name:ident) => {
        $crate::libfuzzer_sys::fuzz_target!(|data: &[u8]| $crate::bodies::$name(data));
    };
}
