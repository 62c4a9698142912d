# Builds the consumer against the tree in PREFIX with find_package, and runs it. KIND is shared or static.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")

fresh_folder("${SCRATCH}")
set(static OFF)
if(KIND STREQUAL "static")
  set(static ON)
endif()
build_project("${CMAKE_CURRENT_LIST_DIR}/consumer/find_package" "-DCMAKE_PREFIX_PATH=${PREFIX}" "-DVERSION=${VERSION}"
              "-Dmnnkv_USE_STATIC_LIBS=${static}" "-DMODEL=${MODEL}" "-DLLAMA=${LLAMA}")
expect_needs_library("${SCRATCH}/bin/consumer")
run_consumer("${SCRATCH}/bin/consumer")
if(MODEL)
  expect_needs_library("${SCRATCH}/bin/model" mnnkv_model)
  run_consumer("${SCRATCH}/bin/model")
endif()
