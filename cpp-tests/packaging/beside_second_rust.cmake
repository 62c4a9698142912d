# The archive beside another Rust static library, each with a standard library inside.
include("${CMAKE_CURRENT_LIST_DIR}/beside.cmake")

fresh_folder("${SCRATCH}")
set(other "${SCRATCH}/libother.a")
set(target "")
if(RUST_TARGET)
  set(target --target "${RUST_TARGET}")
endif()
run("${RUSTC}" ${target} --edition 2024 --crate-type staticlib -C panic=unwind -C opt-level=1 -o "${other}"
    "${link_dir}/other.rs")
compile(second_rust)
link_and_run_with("${OURS}" "${other}")
