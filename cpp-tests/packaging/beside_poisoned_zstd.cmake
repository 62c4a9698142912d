# The archive beside a libzstd whose every function ends the program: the archive's calls must never reach it. A real
# libzstd would not show such a call, since it compresses as well.
include("${CMAKE_CURRENT_LIST_DIR}/beside.cmake")

fresh_folder("${SCRATCH}")

# Every function of zstd in the archive, by its local name, with one body.
read_symbols("${OURS}")
set(functions ${symbols})
list(FILTER functions INCLUDE REGEX "^(ZSTD|HUF|FSE|HIST|ERR)_[A-Za-z0-9_]+ [tT]$")
list(TRANSFORM functions REPLACE " [tT]$" "")
list(REMOVE_DUPLICATES functions)
list(LENGTH functions count)
if(count LESS 50)
  message(FATAL_ERROR "only ${count} zstd functions in ${OURS}")
endif()
set(code "#include <unistd.h>\n")
foreach(name IN LISTS functions)
  string(APPEND code "void ${name}(void);\nvoid ${name}(void) { _exit(86); }\n")
endforeach()
file(WRITE "${SCRATCH}/poison.c" "${code}")
set(poison "${SCRATCH}/libpoison.a")
run("${CC}" -std=gnu11 -fno-builtin -c "${SCRATCH}/poison.c" -o "${SCRATCH}/poison.o")
file(REMOVE "${poison}")
run("${AR}" rcs "${poison}" "${SCRATCH}/poison.o")

compile(plain)
# The host has no reference to zstd; this links the poison all the same.
list(APPEND objects -Wl,--undefined=ZSTD_versionNumber)
link_and_run_with("${OURS}" "${poison}")

# The same with cargo's archive dies, or this test proves nothing.
run("${CC}" ${objects} "${poison}" "${RAW}" ${system_libs} -o "${SCRATCH}/control")
execute_process(COMMAND ${CMAKE_CROSSCOMPILING_EMULATOR} "${SCRATCH}/control" RESULT_VARIABLE result)
if(NOT result EQUAL 86)
  message(FATAL_ERROR "cargo's archive beside the poisoned zstd ended with ${result}, not 86")
endif()
