# Runs cargo so that what it builds names no folder of this machine. Run with cmake -P and
#   CARGO RUSTC SOURCE TARGET_DIR   the programs, the folder of the project, and where cargo builds
#   TARGET RUSTFLAGS                the triple of a cross build and flags that it needs; both may be empty
# Cargo's own arguments follow behind --.
#
# Panics say in which file they began. Files of the registry, of the toolchain and of the build get names that are the
# same everywhere. Runs while building, so that flags in the environment of the build are kept.

cmake_minimum_required(VERSION 3.16)

set(arguments "")
set(ours OFF)
foreach(i RANGE 1 ${CMAKE_ARGC})
  if(ours)
    list(APPEND arguments "${CMAKE_ARGV${i}}")
  elseif("${CMAKE_ARGV${i}}" STREQUAL "--")
    set(ours ON)
  endif()
endforeach()
list(REMOVE_ITEM arguments "")

set(home "$ENV{CARGO_HOME}")
if(home STREQUAL "")
  set(home "$ENV{HOME}$ENV{USERPROFILE}/.cargo")
endif()
execute_process(COMMAND "${RUSTC}" --print sysroot WORKING_DIRECTORY "${SOURCE}" OUTPUT_VARIABLE sysroot
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
# The last that fits wins.
set(maps "${SOURCE}=mnn-kv" "${TARGET_DIR}=/build" "${home}=/cargo")
if(sysroot)
  list(APPEND maps "${sysroot}=/rust")
endif()

set(flags ${RUSTFLAGS})
set(c_flags "-DZSTD_TRACE=0")
foreach(map IN LISTS maps)
  list(APPEND flags "--remap-path-prefix=${map}")
  # A list of words has no room for a path with a space.
  if(C_PREFIX_MAP AND NOT map MATCHES "[ \t]")
    string(APPEND c_flags " -ffile-prefix-map=${map}")
  endif()
endforeach()
# The C compiler of the bundled zstd: one of the two names is read, beside CFLAGS and CFLAGS_<triple>.
foreach(kind HOST TARGET)
  set(ENV{${kind}_CFLAGS} "${c_flags} $ENV{${kind}_CFLAGS}")
endforeach()

# Of its sources of flags, cargo reads the first that is there: two variables, then the configuration, where those for
# the target hide those for the build. Ours join the one that is read.
set(config "")
string(ASCII 31 separator)
if(DEFINED ENV{CARGO_ENCODED_RUSTFLAGS} OR DEFINED ENV{RUSTFLAGS})
  set(words "$ENV{CARGO_ENCODED_RUSTFLAGS}")
  if(NOT DEFINED ENV{CARGO_ENCODED_RUSTFLAGS})
    string(REGEX REPLACE "[ \t\n]+" "${separator}" words "$ENV{RUSTFLAGS}")
  endif()
  string(REPLACE ";" "${separator}" more "${flags}")
  string(REGEX REPLACE "^${separator}+|${separator}+$" "" words "${words}${separator}${more}")
  set(ENV{CARGO_ENCODED_RUSTFLAGS} "${words}")
else()
  set(key build.rustflags)
  if(NOT "${RUSTFLAGS}" STREQUAL "")
    set(key "target.${TARGET}.rustflags")
  endif()
  set(quoted "")
  foreach(flag IN LISTS flags)
    string(REGEX REPLACE "([\\\"])" "\\\\\\1" flag "${flag}")
    string(APPEND quoted "\"${flag}\",")
  endforeach()
  set(config --config "${key}=[${quoted}]")
endif()

execute_process(COMMAND "${CARGO}" ${config} ${arguments} WORKING_DIRECTORY "${SOURCE}" RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "cargo failed: ${result}")
endif()
