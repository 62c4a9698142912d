# The archive beside a host's libzstd, usually of another version: each side runs its own.
include("${CMAKE_CURRENT_LIST_DIR}/beside.cmake")

fresh_folder("${SCRATCH}")
compile(host_zstd -isystem "${ZSTD_INCLUDE}")
link_and_run_with("${OURS}" "${ZSTD}")
