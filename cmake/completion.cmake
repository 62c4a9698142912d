# Writes the completion script of PROGRAM for SHELL to OUTPUT. Run with cmake -P.
include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")
run("${PROGRAM}" completions "${SHELL}")
file(WRITE "${OUTPUT}" "${run_output}")
