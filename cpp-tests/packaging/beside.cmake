# Links programs with several archives, each in every order and under --whole-archive. Used by the tests that
# get CC, OURS, INCLUDE and LIBS.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")

set(link_dir "${CMAKE_CURRENT_LIST_DIR}/link")
string(REPLACE "," ";-l" system_libs "-l${LIBS}")

# Compiles link/<name>.c and link/ours.c into objects named in `objects`.
function(compile name)
  set(objects "")
  foreach(source "${name}" ours)
    set(object "${SCRATCH}/${source}.o")
    run("${CC}" -std=c11 -O1 -fPIC -Wall -Wextra -Wpedantic -Werror "-I${INCLUDE}" ${ARGN} -c "${link_dir}/${source}.c"
        -o "${object}")
    list(APPEND objects "${object}")
  endforeach()
  set(objects ${objects} PARENT_SCOPE)
endfunction()

# Links `objects` with two archives in both orders, as they come and whole, and runs each program.
function(link_and_run_with first second)
  set(whole -Wl,--whole-archive)
  set(end -Wl,--no-whole-archive)
  set(program "${SCRATCH}/program")
  foreach(archives "${first};${second}" "${second};${first}")
    message(STATUS "as they come: ${archives}")
    run("${CC}" ${objects} ${archives} ${system_libs} -o "${program}")
    run_consumer("${program}")
    message(STATUS "whole: ${archives}")
    run("${CC}" ${objects} ${whole} ${archives} ${end} ${system_libs} -o "${program}")
    run_consumer("${program}")
  endforeach()
endfunction()
