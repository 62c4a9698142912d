# Shared by the test scripts, which run with cmake -P. SCRATCH is a folder of the test's own.

cmake_minimum_required(VERSION 3.16)

include("${CMAKE_CURRENT_LIST_DIR}/../../cmake/run.cmake")

# The toolchain file of a cross build, which also names the emulator.
set(toolchain "")
if(TOOLCHAIN)
  include("${TOOLCHAIN}")
  set(toolchain "-DCMAKE_TOOLCHAIN_FILE=${TOOLCHAIN}")
endif()

# Runs a consumer and reads its verdict.
function(run_consumer)
  run(${CMAKE_CROSSCOMPILING_EMULATOR} ${ARGV})
  if(NOT run_output MATCHES "round trip ok[\r\n]+$")
    message(FATAL_ERROR "${ARGV} printed no verdict:\n${run_output}")
  endif()
  message(STATUS "${run_output}")
endfunction()

# Configures and builds a consumer project in SCRATCH/build, with the outer build's tools. Programs end up in
# SCRATCH/bin, also where the generator makes a folder per configuration.
function(build_project source)
  run("${CMAKE_COMMAND}" -S "${source}" -B "${SCRATCH}/build" -G "${GENERATOR}" "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}"
      "-DCMAKE_C_COMPILER=${CC}" "-DCMAKE_CXX_COMPILER=${CXX}" -DCMAKE_BUILD_TYPE=Release
      "-DCMAKE_RUNTIME_OUTPUT_DIRECTORY=${SCRATCH}/bin" "-DCMAKE_RUNTIME_OUTPUT_DIRECTORY_RELEASE=${SCRATCH}/bin"
      --no-warn-unused-cli ${toolchain} ${ARGN})
  run("${CMAKE_COMMAND}" --build "${SCRATCH}/build" --config Release)
endfunction()

function(fresh_folder folder)
  file(REMOVE_RECURSE "${folder}")
  file(MAKE_DIRECTORY "${folder}")
endfunction()

# Leaves in `symbols` what a library defines, each as "name T" with nm's letter for the type. Further arguments are
# nm's.
function(read_symbols library)
  run("${NM}" ${ARGN} --defined-only -P "${library}")
  # A \n in front of the first line too: in MATCHALL a ^ would match again after every match.
  string(REGEX MATCHALL "\n[^ \n]+ [A-Za-z]( |\n|$)" symbols "\n${run_output}")
  list(TRANSFORM symbols STRIP)
  if(symbols STREQUAL "")
    message(FATAL_ERROR "nm shows no symbols in ${library}:\n${run_output}")
  endif()
  set(symbols ${symbols} PARENT_SCOPE)
endfunction()

# Stops the test unless two lists hold the same names.
function(expect_same what found expected)
  list(SORT found)
  list(SORT expected)
  if(NOT found STREQUAL expected)
    set(surplus ${found})
    list(REMOVE_ITEM surplus "" ${expected})
    set(lacking ${expected})
    list(REMOVE_ITEM lacking "" ${found})
    message(FATAL_ERROR "${what}\n  surplus: ${surplus}\n  lacking: ${lacking}")
  endif()
endfunction()

# On ELF, that a program needs libmnnkv.so by its SONAME, or no library of ours when KIND is static. Further arguments are
# libraries that it must need as well.
function(expect_needs_library program)
  if(NOT ELF)
    return()
  endif()
  run("${READELF}" -d "${program}")
  string(REGEX MATCHALL "NEEDED[^\n]*libmnnkv[^\n]*" lines "${run_output}")
  if(KIND STREQUAL "static" AND NOT lines STREQUAL "")
    message(FATAL_ERROR "${program} was to be static and needs ${lines}")
  elseif(KIND STREQUAL "shared")
    foreach(library mnnkv ${ARGN})
      # No brackets in the expression: CMake would take them for those of a list.
      if(NOT lines MATCHES "NEEDED[^\n]*.lib${library}\\.so(\\.[0-9]+)?.")
        message(FATAL_ERROR "${program} needs '${lines}', not lib${library}.so by its SONAME")
      endif()
    endforeach()
  endif()
endfunction()
