# Builds the consumer with mnnkv as a subfolder of its project, and runs it. KIND is shared or static.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")

fresh_folder("${SCRATCH}")
set(shared ON)
if(KIND STREQUAL "static")
  set(shared OFF)
endif()
# The outer build's cargo folder, so that nothing is compiled again.
build_project("${CMAKE_CURRENT_LIST_DIR}/consumer/add_subdirectory" "-DSOURCE=${SOURCE}" "-DKIND=${KIND}"
              "-DBUILD_SHARED_LIBS=${shared}" "-DMNNKV_CARGO_TARGET_DIR=${CARGO_DIR}" "-DMNNKV_MODEL=${MODEL}")
foreach(program consumer named)
  expect_needs_library("${SCRATCH}/bin/${program}")
  run_consumer("${SCRATCH}/bin/${program}")
endforeach()
if(MODEL)
  expect_needs_library("${SCRATCH}/bin/model" mnnkv_model)
  run_consumer("${SCRATCH}/bin/model")
endif()

# The project gets the library and nothing else: no install rules, no tests.
unset(ENV{DESTDIR})
run("${CMAKE_COMMAND}" --install "${SCRATCH}/build" --config Release --prefix "${SCRATCH}/prefix")
file(GLOB_RECURSE installed RELATIVE "${SCRATCH}/prefix" "${SCRATCH}/prefix/*")
expect_same("installed by the consumer" "${installed}" "bin/consumer")
file(GLOB_RECURSE tests "${SCRATCH}/build/mnnkv/CTestTestfile.cmake")
foreach(file IN LISTS tests)
  file(STRINGS "${file}" lines REGEX "add_test")
  if(lines)
    message(FATAL_ERROR "the consumer got tests: ${lines}")
  endif()
endforeach()
