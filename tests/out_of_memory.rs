//! Every allocation of the library is refused once, at the allocator. Each call must return OUT_OF_MEMORY, without an
//! abort, and leave everything as it was. `cargo test --test out_of_memory -- --nocapture` shows the allocations.

#[path = "out_of_memory/chat.rs"]
mod chat;
mod common;
#[path = "common/failing_allocator.rs"]
#[allow(dead_code)] // the model crate needs more of it
mod failing_allocator;
#[path = "common/host.rs"]
mod host;
#[path = "out_of_memory/runtime.rs"]
mod runtime;
#[path = "out_of_memory/saved.rs"]
mod saved;

#[global_allocator]
static ALLOCATOR: failing_allocator::Failing = failing_allocator::Failing;
