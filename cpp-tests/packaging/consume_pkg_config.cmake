# Builds the consumer with pkg-config's flags for the tree in PREFIX, and runs it. KIND is shared or static.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")

fresh_folder("${SCRATCH}")
# Shared and static libraries are there.
set(tree "${PREFIX}")
set(static "")
if(KIND STREQUAL "static")
  set(static --static)
endif()

set(ENV{PKG_CONFIG_PATH} "${tree}/${LIBDIR}/pkgconfig")
unset(ENV{PKG_CONFIG_SYSROOT_DIR})
set(ENV{LD_LIBRARY_PATH} "${tree}/${LIBDIR}")
set(ENV{DYLD_LIBRARY_PATH} "${tree}/${LIBDIR}")

# consume(package source libraries...): the libraries that a shared program needs beside libmnnkv.
function(consume package source)
  run("${PKG_CONFIG}" --modversion ${package})
  string(STRIP "${run_output}" found)
  if(NOT found STREQUAL VERSION)
    message(FATAL_ERROR "pkg-config gives version '${found}' for ${package}, not ${VERSION}")
  endif()
  run("${PKG_CONFIG}" --cflags --libs ${static} ${package})
  separate_arguments(flags UNIX_COMMAND "${run_output}")
  set(program "${SCRATCH}/${package}")
  run("${CC}" "${CMAKE_CURRENT_LIST_DIR}/consumer/${source}" -o "${program}" ${flags})
  expect_needs_library("${program}" ${ARGN})
  run_consumer("${program}")
endfunction()

consume(mnnkv round_trip.c)
if(MODEL)
  consume(mnnkv_model model.c mnnkv_model)
endif()
