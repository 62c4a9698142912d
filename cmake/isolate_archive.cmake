# Turns cargo's static archive into one whose only global symbols are mnnkv_*. ELF only. Run with cmake -P and
#   INPUT SHARED OUTPUT   cargo's archive, the shared library with the function names, and the new archive
#   CC_COMMAND NM AR OBJCOPY   the compiler with its flags for the target, and the tools
#
# Cargo's archive has the global symbols of the bundled zstd and of Rust's standard library. With a second libzstd
# the linker mixes the copies silently, or fails at duplicates under --whole-archive; with another Rust archive it fails,
# too. So all code is linked into one object, and all symbols except mnnkv_* become local.

foreach(name INPUT SHARED OUTPUT CC_COMMAND NM AR OBJCOPY)
  if("${${name}}" STREQUAL "")
    message(FATAL_ERROR "isolate_archive.cmake: ${name} is not set")
  endif()
endforeach()

include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")

set(object "${OUTPUT}.o")
file(REMOVE "${OUTPUT}" "${object}")

# Not from the archive: tools older than rustc's LLVM stop at the bitcode in its members.
run("${NM}" -D --defined-only -P "${SHARED}")
string(REGEX MATCHALL "\nmnnkv_[A-Za-z0-9_]+ " names "\n${run_output}")
list(TRANSFORM names STRIP)
if(names STREQUAL "")
  message(FATAL_ERROR "${SHARED} exports no mnnkv_ symbol")
endif()
# With the entry points as roots only their dependencies are linked.
list(TRANSFORM names PREPEND -Wl,--undefined=)
separate_arguments(compiler UNIX_COMMAND "${CC_COMMAND}")
run(${compiler} -r -nostdlib ${names} -o "${object}" "${INPUT}")

# Section groups are dissolved: DW.ref.rust_eh_personality, made local in a group, would be dropped in favour of
# another Rust archive's copy and leave dangling references. Bitcode is unused and breaks other tools. Debug
# sections are most of the size and describe the standard library; function names stay, for profilers.
run("${OBJCOPY}" --wildcard "--keep-global-symbol=mnnkv_*" --remove-section=.group --remove-section=.llvmbc
    --remove-section=.llvmcmd --strip-debug "${object}")
run("${AR}" rcs "${OUTPUT}" "${object}")
file(REMOVE "${object}")
