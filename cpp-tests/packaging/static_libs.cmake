# The system libraries that the static library declares are rustc's.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")

if(NOT EXISTS "${FILE}")
  message(FATAL_ERROR "${FILE} is missing; the build of the library writes it when it compiles")
endif()
file(READ "${FILE}" text)
separate_arguments(words UNIX_COMMAND "${text}")
set(needed "")
foreach(word IN LISTS words)
  string(REGEX REPLACE "^-l|\\.lib$" "" name "${word}")
  # Libraries that every compiler adds itself.
  if(NOT name MATCHES "^(c|gcc_s|System|/defaultlib:.*)$")
    list(APPEND needed "${name}")
  endif()
endforeach()
list(REMOVE_DUPLICATES needed)
string(REPLACE "," ";" DECLARED "${DECLARED}")
expect_same("libraries declared for mnnkv::static against those of rustc" "${DECLARED}" "${needed}")
