# A dropped status is a warning in every standard, unless a cast drops it.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")

fresh_folder("${SCRATCH}")
file(WRITE "${SCRATCH}/cast.cpp" "#include <mnnkv.hpp>\nvoid f(mnnkv::session& s) { (void)s.reset_all(); }\n")
file(WRITE "${SCRATCH}/dropped.cpp" "#include <mnnkv.hpp>\nvoid f(mnnkv::session& s) { s.reset_all(); }\n")
foreach(standard c++11 c++17)
  set(compile "${CXX}" -std=${standard} -Wall -Wextra -Wpedantic -Werror "-I${INCLUDE}" -fsyntax-only)
  run(${compile} "${SCRATCH}/cast.cpp")
  execute_process(COMMAND ${compile} "${SCRATCH}/dropped.cpp" RESULT_VARIABLE result ERROR_VARIABLE said)
  if(result EQUAL 0 OR NOT said MATCHES "ignoring return")
    message(FATAL_ERROR "a dropped status in ${standard} is no warning: ${said}")
  endif()
endforeach()
