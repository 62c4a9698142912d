# cmake -DPROGRAM=mnnkv_load -DLIBRARY=libmnnkv.so.1 -DFOLDER=folder -P beside.cmake: a program finds the library beside itself,
# and says which one it has looked for where there is none. EMULATOR runs the program, if any.

unset(ENV{MNNKV_LIBRARY})
file(REMOVE_RECURSE "${FOLDER}")
file(COPY "${PROGRAM}" DESTINATION "${FOLDER}")
get_filename_component(program "${PROGRAM}" NAME)
get_filename_component(library "${LIBRARY}" REALPATH)

execute_process(COMMAND ${EMULATOR} "${FOLDER}/${program}" RESULT_VARIABLE status OUTPUT_VARIABLE said)
if(status EQUAL 0 OR NOT said MATCHES "libmnnkv.so.1")
  message(FATAL_ERROR "without a library: ${status}, ${said}")
endif()

configure_file("${library}" "${FOLDER}/libmnnkv.so.1" COPYONLY)
execute_process(COMMAND ${EMULATOR} "${FOLDER}/${program}" RESULT_VARIABLE status OUTPUT_VARIABLE said)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "beside the library: ${status}, ${said}")
endif()

if("${EMULATOR}" STREQUAL "")
  execute_process(COMMAND "${CMAKE_COMMAND}" -E env "PATH=${FOLDER}" "${program}" RESULT_VARIABLE status
                  OUTPUT_VARIABLE said)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "beside the library, found through PATH: ${status}, ${said}")
  endif()
endif()

file(WRITE "${FOLDER}/libmnnkv.so.1" "no library")
execute_process(COMMAND ${EMULATOR} "${FOLDER}/${program}" RESULT_VARIABLE status OUTPUT_VARIABLE said)
if(status EQUAL 0 OR NOT said MATCHES "${FOLDER}/libmnnkv.so.1")
  message(FATAL_ERROR "beside a damaged library: ${status}, ${said}")
endif()
