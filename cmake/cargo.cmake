# Runs cargo without paths of this machine in its output. Run with cmake -P and
#   CARGO RUSTC SOURCE TARGET_DIR   the programs, the folder of the project, and where cargo builds
#   TARGET RUSTFLAGS                the triple of a cross build, and flags that it needs, with | between; both may be empty
#   PROGRAM                         on for the command line, which needs every level of ZSTD
# Cargo's own arguments follow behind --. A folder vendor/ of `make dist` takes the place of the registry.
#
# Panic messages contain file names. Files of the registry, the toolchain and the build get the same names everywhere.
# Runs at build time, so that flags in the build's environment are kept.

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
# The last match wins.
set(maps "${SOURCE}=mnn-kv" "${TARGET_DIR}=/build" "${home}=/cargo")
if(sysroot)
  list(APPEND maps "${sysroot}=/rust")
endif()

string(REPLACE "|" ";" flags "${RUSTFLAGS}")
# Variables in the environment win over those of the configuration.
set(keys "TARGET|MNNKV_LIBRARY")
if(PROGRAM)
  set(keys "TARGET")
endif()
file(STRINGS "${SOURCE}/.cargo/config.toml" lines REGEX "^(${keys})_CFLAGS = ")
set(c_flags "")
foreach(line IN LISTS lines)
  string(REGEX MATCH "\"(.*)\"" line "${line}")
  string(APPEND c_flags " ${CMAKE_MATCH_1}")
endforeach()
foreach(map IN LISTS maps)
  list(APPEND flags "--remap-path-prefix=${map}")
  # A path with a space cannot be part of a list of words.
  if(C_PREFIX_MAP AND NOT map MATCHES "[ \t]")
    string(APPEND c_flags " -ffile-prefix-map=${map}")
  endif()
endforeach()
# Flags of the bundled zstd's C compiler, which reads one of the two names beside CFLAGS and CFLAGS_<triple>.
foreach(kind HOST TARGET)
  set(ENV{${kind}_CFLAGS} "${c_flags} $ENV{${kind}_CFLAGS}")
endforeach()

# Cargo reads the first source of flags that exists: two variables, then the configuration, where flags for the target
# hide those for the build. The flags here are added to that source.
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

if(EXISTS "${SOURCE}/vendor/config.toml")
  list(APPEND config --config "${SOURCE}/vendor/config.toml")
endif()

execute_process(COMMAND "${CARGO}" ${config} ${arguments} WORKING_DIRECTORY "${SOURCE}" RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "cargo failed: ${result}")
endif()
