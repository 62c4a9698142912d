# Both archives in one program, each with a standard library of Rust and parts of the same code.
include("${CMAKE_CURRENT_LIST_DIR}/beside.cmake")

fresh_folder("${SCRATCH}")
compile(model)
link_and_run_with("${OURS}" "${MODEL}")
