//! All tests of the crate, in one program.

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/common/failing_allocator.rs"]
#[allow(dead_code)] // the core needs more of it
mod failing_allocator;
#[path = "llama/rows.rs"]
mod rows;
#[path = "llama/state.rs"]
mod state;

#[global_allocator]
static ALLOCATOR: failing_allocator::Failing = failing_allocator::Failing;

#[test]
fn the_soname_has_the_abi_number() {
    let abi = mnnkv::ffi::version::MNNKV_ABI_VERSION;
    assert!(include_str!("../build.rs").contains(&format!("const ABI: &str = \"{abi}\";")));
}
