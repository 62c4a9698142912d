# Runs PROGRAM at every SIMD level by name; the printed digests of its blobs must be equal. The library ignores a level
# that the CPU does not have. EMULATOR runs the program, if any.

cmake_minimum_required(VERSION 3.16)

set(expected "")
foreach(level portable sse2 avx2 avx512 neon)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -E env "MNNKV_CPU_LEVEL=${level}" ${EMULATOR} "${PROGRAM}"
            --gtest_filter=GearLevels.PrintADigestOfTheirBlobs
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0 OR NOT output MATCHES "blobs of level ([a-z0-9]+): ([0-9a-f]+)")
    message(FATAL_ERROR "at level ${level}:\n${output}")
  endif()
  message(STATUS "level ${level} gave ${CMAKE_MATCH_1}: ${CMAKE_MATCH_2}")
  if(level STREQUAL "portable" AND NOT CMAKE_MATCH_1 STREQUAL "portable")
    message(FATAL_ERROR "MNNKV_CPU_LEVEL=portable gave ${CMAKE_MATCH_1}")
  endif()
  if(expected STREQUAL "")
    set(expected "${CMAKE_MATCH_2}")
  elseif(NOT CMAKE_MATCH_2 STREQUAL expected)
    message(FATAL_ERROR "blobs differ from those of the portable level, ${expected}")
  endif()
endforeach()
