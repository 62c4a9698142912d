# The archive linked into a host's own shared library, as into libMNN.so: it is position-independent, complete, and
# adds no names but mnnkv_* to those that the host exports.
include("${CMAKE_CURRENT_LIST_DIR}/beside.cmake")

fresh_folder("${SCRATCH}")
compile(plain)
list(GET objects 0 main)
list(GET objects 1 ours)
run("${CC}" -shared -Wl,-z,defs -Wl,-z,text "${ours}" "${OURS}" ${system_libs} -o "${SCRATCH}/libhost.so")
run("${CC}" "${main}" "${SCRATCH}/libhost.so" -o "${SCRATCH}/program")
set(ENV{LD_LIBRARY_PATH} "${SCRATCH}")
run_consumer("${SCRATCH}/program")

read_symbols("${SCRATCH}/libhost.so" -D)
list(TRANSFORM symbols REPLACE " [A-Za-z]$" "")
if(NOT ours_round_trip IN_LIST symbols)
  message(FATAL_ERROR "the host's own function is not exported: ${symbols}")
endif()
list(FILTER symbols EXCLUDE REGEX "^(mnnkv_[a-z0-9_]+|ours_round_trip)$")
expect_same("names that the host's library exports for us" "${symbols}" "")
