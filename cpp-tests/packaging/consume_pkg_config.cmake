# Builds the consumer with what pkg-config says about the tree in PREFIX, and runs it. KIND is shared or static.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")

fresh_folder("${SCRATCH}")
set(tree "${PREFIX}")
set(static "")
if(KIND STREQUAL "static")
  set(static --static)
  # With both libraries there a linker takes the shared one; a tree without it is how static users deploy.
  set(tree "${SCRATCH}/prefix")
  file(COPY "${PREFIX}/" DESTINATION "${tree}")
  file(GLOB shared "${tree}/${LIBDIR}/*.so*" "${tree}/${LIBDIR}/*.dylib")
  file(REMOVE ${shared})
endif()

set(ENV{PKG_CONFIG_PATH} "${tree}/${LIBDIR}/pkgconfig")
unset(ENV{PKG_CONFIG_SYSROOT_DIR})
run("${PKG_CONFIG}" --modversion mnnkv)
string(STRIP "${run_output}" found)
if(NOT found STREQUAL VERSION)
  message(FATAL_ERROR "pkg-config says version '${found}', not ${VERSION}")
endif()
run("${PKG_CONFIG}" --cflags --libs ${static} mnnkv)
separate_arguments(flags UNIX_COMMAND "${run_output}")
run("${CC}" "${CMAKE_CURRENT_LIST_DIR}/consumer/round_trip.c" -o "${SCRATCH}/consumer" ${flags})
expect_needs_library("${SCRATCH}/consumer")
run_consumer("${CMAKE_COMMAND}" -E env "LD_LIBRARY_PATH=${tree}/${LIBDIR}" "DYLD_LIBRARY_PATH=${tree}/${LIBDIR}"
             "${SCRATCH}/consumer")
