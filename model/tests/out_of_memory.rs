//! Every allocation of the crate is refused once, at the allocator, as tests/out_of_memory.rs of the workspace does.

#[path = "out_of_memory/abi.rs"]
mod abi;
#[path = "msmodelslim/directory.rs"]
#[allow(dead_code)]
mod directory;
#[path = "../../tests/common/failing_allocator.rs"]
mod failing_allocator;
#[path = "out_of_memory/files.rs"]
mod files;

#[global_allocator]
static ALLOCATOR: failing_allocator::Failing = failing_allocator::Failing;
