# The Rust libraries as CMake targets: mnnkv::shared, mnnkv::static, mnnkv::mnnkv; of model files mnnkv::model_shared,
# mnnkv::model_static, mnnkv::model; of llama.cpp mnnkv::llama_shared, mnnkv::llama_static.

find_program(MNNKV_CARGO cargo HINTS "$ENV{CARGO_HOME}/bin" "$ENV{HOME}/.cargo/bin")
if(NOT MNNKV_CARGO)
  message(FATAL_ERROR "mnnkv: cargo not found. Install Rust, or set MNNKV_CARGO to the path of cargo.")
endif()

get_filename_component(cargo_folder "${MNNKV_CARGO}" DIRECTORY)
find_program(MNNKV_RUSTC rustc HINTS "${cargo_folder}")

set(cargo_target_dir "${CMAKE_CURRENT_BINARY_DIR}/cargo")
if(NOT "$ENV{MNNKV_CARGO_TARGET_DIR}" STREQUAL "")
  file(TO_CMAKE_PATH "$ENV{MNNKV_CARGO_TARGET_DIR}" cargo_target_dir)
endif()
set(MNNKV_CARGO_TARGET_DIR "${cargo_target_dir}" CACHE PATH "Where cargo builds; share it to share what is built")

set(MNNKV_RUST_TARGET "" CACHE STRING "Rust target triple, such as aarch64-linux-android; empty for this machine")
if(CMAKE_CROSSCOMPILING AND MNNKV_RUST_TARGET STREQUAL "")
  message(FATAL_ERROR "mnnkv: set MNNKV_RUST_TARGET to the Rust triple to build for, such as aarch64-linux-android.")
endif()

set(MNNKV_ELF OFF)
if(UNIX AND NOT APPLE AND NOT CYGWIN)
  set(MNNKV_ELF ON)
endif()

if(WIN32 AND NOT MSVC)
  message(FATAL_ERROR "mnnkv: on Windows only the MSVC toolchain is supported.")
endif()
set(MNNKV_LIB_DIR "${CMAKE_CURRENT_BINARY_DIR}/lib")
# The archives' system libraries. The test static_libs.cmake compares this list with rustc's.
# rustc also names libc and libgcc_s: every C and C++ compiler links those by itself, and -static has no libgcc_s.
if(WIN32)
  set(MNNKV_STATIC_LIBS kernel32 ntdll userenv ws2_32 dbghelp)
elseif(ANDROID)
  set(MNNKV_STATIC_LIBS dl log m)
elseif(APPLE)
  set(MNNKV_STATIC_LIBS m)
elseif(CMAKE_SYSTEM_NAME STREQUAL "Linux")
  set(MNNKV_STATIC_LIBS util rt pthread m dl)
else()
  set(MNNKV_STATIC_LIBS pthread m)
endif()

# For a clang that builds for several machines.
set(target_flags "")
if(CMAKE_C_COMPILER_TARGET)
  set(target_flags "--target=${CMAKE_C_COMPILER_TARGET}")
endif()

include(CheckCCompilerFlag)
check_c_compiler_flag(-ffile-prefix-map=here=there MNNKV_C_PREFIX_MAP)

set(cargo_out "${MNNKV_CARGO_TARGET_DIR}/release")
set(cargo_target_args "")
set(cargo_flags "")
# Unset: what moves cargo's output, what replaces the bundled zstd, and the name of a job server that make closes.
set(cargo_env --unset=CARGO_BUILD_TARGET --unset=ZSTD_SYS_USE_PKG_CONFIG --unset=MAKEFLAGS)
if(NOT MNNKV_RUST_TARGET STREQUAL "")
  set(cargo_out "${MNNKV_CARGO_TARGET_DIR}/${MNNKV_RUST_TARGET}/release")
  set(cargo_target_args --target "${MNNKV_RUST_TARGET}")
  # rustc's linker and the C compiler of the bundled zstd are those of this build.
  string(REPLACE "-" "_" triple "${MNNKV_RUST_TARGET}")
  string(TOUPPER "${triple}" triple_upper)
  if(CMAKE_C_COMPILER_TARGET)
    set(cargo_flags "-Clink-arg=${target_flags}")
  endif()
  list(APPEND cargo_env "CARGO_TARGET_${triple_upper}_LINKER=${CMAKE_C_COMPILER}" "CC_${triple}=${CMAKE_C_COMPILER}"
       "AR_${triple}=${CMAKE_AR}" "CFLAGS_${triple}=${target_flags}")
endif()
if(NOT MNNKV_SANITIZE STREQUAL "")
  if(MNNKV_RUST_TARGET STREQUAL "")
    message(FATAL_ERROR "mnnkv: MNNKV_SANITIZE needs MNNKV_RUST_TARGET, the triple of this machine.")
  endif()
  list(APPEND cargo_flags "-Zsanitizer=${MNNKV_SANITIZE}" "-Cunsafe-allow-abi-mismatch=sanitizer")
  if(MNNKV_SANITIZE STREQUAL "thread")
    # Locks that ThreadSanitizer understands (src/sys/sync.rs).
    list(APPEND cargo_flags "--cfg=tsan")
  endif()
  # Quick to build, and with the names of functions in reports.
  list(APPEND cargo_env "RUSTC_BOOTSTRAP=1" "CARGO_PROFILE_RELEASE_LTO=off" "CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16"
       "CARGO_PROFILE_RELEASE_DEBUG=1")
endif()

# The folders of imported targets must exist when the targets are made.
file(MAKE_DIRECTORY "${MNNKV_LIB_DIR}" "${CMAKE_CURRENT_BINARY_DIR}/raw")

set(build_by_default "")
if(MNNKV_TOP_LEVEL OR MNNKV_INSTALL)
  set(build_by_default ALL)
endif()

# Flags of a list would become arguments of CMake.
string(REPLACE ";" "|" cargo_flags "${cargo_flags}")
# Always runs: cargo detects changes, and unchanged copies keep their time.
set(run_cargo
    "${CMAKE_COMMAND}" "-DCARGO=${MNNKV_CARGO}" "-DRUSTC=${MNNKV_RUSTC}" "-DSOURCE=${PROJECT_SOURCE_DIR}"
    "-DTARGET=${MNNKV_RUST_TARGET}" "-DRUSTFLAGS=${cargo_flags}" "-DC_PREFIX_MAP=${MNNKV_C_PREFIX_MAP}")

# The packages are Rust libraries, whose C form is chosen here alone.
set(c_library --features capi --crate-type cdylib --crate-type staticlib)

# mnnkv_library(name package shared static): the library `name` of the Rust package `package` as the targets
# mnnkv::<shared> and mnnkv::<static>, made by <name>_cargo and <name>_archive. Sets with the name in capitals:
#
#   <NAME>_SHARED_NAME _STATIC_NAME _IMPORT_NAME   installed files; the last on Windows
#   <NAME>_SONAME _LINKS                           what programs record, and the links that lead to the shared library
#   <NAME>_RAW_ARCHIVE                             cargo's archive; not for users: see isolate_archive.cmake
#   <NAME>_NATIVE_LIBS_FILE                        rustc's list of the archive's system libraries
function(mnnkv_library name package shared static)
  # SONAME and install name come from the build.rs of the package.
  set(links "")
  set(cargo_import "")
  if(WIN32)
    set(cargo_shared ${name}.dll)
    set(cargo_import ${name}.dll.lib)
    set(cargo_static ${name}.lib)
    set(shared_name ${name}.dll)
    set(soname ${name}.dll)
  elseif(APPLE)
    set(cargo_shared lib${name}.dylib)
    set(cargo_static lib${name}.a)
    set(shared_name "lib${name}.${PROJECT_VERSION}.dylib")
    set(soname "@rpath/lib${name}.${MNNKV_ABI}.dylib")
    set(links "lib${name}.${MNNKV_ABI}.dylib" lib${name}.dylib)
  else()
    set(cargo_shared lib${name}.so)
    set(cargo_static lib${name}.a)
    if(ANDROID)
      set(shared_name lib${name}.so)
      set(soname lib${name}.so)
    else()
      set(shared_name "lib${name}.so.${PROJECT_VERSION}")
      set(soname "lib${name}.so.${MNNKV_ABI}")
      set(links "${soname}" lib${name}.so)
    endif()
  endif()
  set(raw_archive "${CMAKE_CURRENT_BINARY_DIR}/raw/${cargo_static}")
  set(native_libs "${cargo_out}/${name}-native-static-libs.txt")

  set(shared_file "${MNNKV_LIB_DIR}/${shared_name}")
  set(static_file "${MNNKV_LIB_DIR}/${cargo_static}")
  set(collect_commands
      COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${cargo_out}/${cargo_shared}" "${shared_file}"
      COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${cargo_out}/${cargo_static}" "${raw_archive}")
  set(byproducts "${shared_file}" "${raw_archive}")
  if(WIN32)
    list(APPEND collect_commands COMMAND "${CMAKE_COMMAND}" -E copy_if_different
         "${cargo_out}/${cargo_import}" "${MNNKV_LIB_DIR}/${cargo_import}")
    list(APPEND byproducts "${MNNKV_LIB_DIR}/${cargo_import}")
  endif()
  set(link_to "${shared_name}")
  foreach(link IN LISTS links)
    list(APPEND collect_commands
         COMMAND "${CMAKE_COMMAND}" -E create_symlink "${link_to}" "${MNNKV_LIB_DIR}/${link}")
    set(link_to "${link}")
  endforeach()

  add_custom_target(${name}_cargo ${build_by_default}
    COMMAND "${CMAKE_COMMAND}" -E env ${cargo_env}
            "CARGO_TARGET_DIR=${MNNKV_CARGO_TARGET_DIR}" ${run_cargo} "-DTARGET_DIR=${MNNKV_CARGO_TARGET_DIR}"
            -P "${PROJECT_SOURCE_DIR}/cmake/cargo.cmake" --
            rustc --release --locked --lib --package ${package} ${c_library} ${cargo_target_args}
            -- "--print=native-static-libs=${native_libs}"
    ${collect_commands}
    BYPRODUCTS ${byproducts}
    # The folder selects .cargo/config.toml and the toolchain file.
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
    COMMENT "Building ${name} with cargo"
    USES_TERMINAL VERBATIM)

  if(MNNKV_ELF)
    set(isolate "${PROJECT_SOURCE_DIR}/cmake/isolate_archive.cmake")
    add_custom_command(OUTPUT "${static_file}"
      COMMAND "${CMAKE_COMMAND}" "-DINPUT=${raw_archive}" "-DSHARED=${shared_file}" "-DOUTPUT=${static_file}"
              "-DCC_COMMAND=\"${CMAKE_C_COMPILER}\" ${target_flags}" "-DNM=${CMAKE_NM}" "-DAR=${CMAKE_AR}"
              "-DOBJCOPY=${CMAKE_OBJCOPY}" -P "${isolate}"
      DEPENDS "${raw_archive}" "${shared_file}" "${isolate}" "${PROJECT_SOURCE_DIR}/cmake/run.cmake" ${name}_cargo
      COMMENT "Hiding all but mnnkv_* in ${cargo_static}"
      VERBATIM)
  else()
    # Mach-O and COFF tools have no equivalent, so the archive there is that of cargo. Its ZSTD_* symbols are global; a
    # host with another libzstd should link the shared library. So should one that links both libraries: each archive has
    # a standard library of Rust.
    add_custom_command(OUTPUT "${static_file}"
      COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${raw_archive}" "${static_file}"
      DEPENDS "${raw_archive}" ${name}_cargo
      VERBATIM)
  endif()
  add_custom_target(${name}_archive ${build_by_default} DEPENDS "${static_file}")

  add_library(mnnkv::${shared} SHARED IMPORTED GLOBAL)
  set_target_properties(mnnkv::${shared} PROPERTIES
    IMPORTED_LOCATION "${shared_file}"
    INTERFACE_INCLUDE_DIRECTORIES "${PROJECT_SOURCE_DIR}/include")
  if(WIN32)
    set_target_properties(mnnkv::${shared} PROPERTIES IMPORTED_IMPLIB "${MNNKV_LIB_DIR}/${cargo_import}")
  else()
    set_target_properties(mnnkv::${shared} PROPERTIES IMPORTED_SONAME "${soname}")
  endif()
  add_dependencies(mnnkv::${shared} ${name}_cargo)

  add_library(mnnkv::${static} STATIC IMPORTED GLOBAL)
  set_target_properties(mnnkv::${static} PROPERTIES
    IMPORTED_LOCATION "${static_file}"
    INTERFACE_INCLUDE_DIRECTORIES "${PROJECT_SOURCE_DIR}/include"
    INTERFACE_LINK_LIBRARIES "${MNNKV_STATIC_LIBS}")
  add_dependencies(mnnkv::${static} ${name}_archive)

  string(TOUPPER "${name}" prefix)
  set(${prefix}_SHARED_NAME "${shared_name}" PARENT_SCOPE)
  set(${prefix}_STATIC_NAME "${cargo_static}" PARENT_SCOPE)
  set(${prefix}_IMPORT_NAME "${cargo_import}" PARENT_SCOPE)
  set(${prefix}_SONAME "${soname}" PARENT_SCOPE)
  set(${prefix}_LINKS "${links}" PARENT_SCOPE)
  set(${prefix}_RAW_ARCHIVE "${raw_archive}" PARENT_SCOPE)
  set(${prefix}_NATIVE_LIBS_FILE "${native_libs}" PARENT_SCOPE)
endfunction()

if(MNNKV_ELF)
  foreach(tool NM AR OBJCOPY)
    if(NOT CMAKE_${tool})
      message(FATAL_ERROR "mnnkv: CMAKE_${tool} is not set; install binutils")
    endif()
  endforeach()
endif()

mnnkv_library(mnnkv mnn-kv shared static)
add_library(mnnkv::mnnkv INTERFACE IMPORTED GLOBAL)
if(BUILD_SHARED_LIBS)
  set_target_properties(mnnkv::mnnkv PROPERTIES INTERFACE_LINK_LIBRARIES mnnkv::shared)
else()
  set_target_properties(mnnkv::mnnkv PROPERTIES INTERFACE_LINK_LIBRARIES mnnkv::static)
endif()

# The libraries, as install rules and tests go through them.
set(MNNKV_LIBRARIES mnnkv)
if(MNNKV_MODEL)
  list(APPEND MNNKV_LIBRARIES mnnkv_model)
  mnnkv_library(mnnkv_model mnn-kv-model model_shared model_static)
  # Behind the other, because two cargos would compete for the cores.
  add_dependencies(mnnkv_model_cargo mnnkv_cargo)

  # With mnnkv::mnnkv, which the class mnnkv::status of the C++ wrappers needs.
  add_library(mnnkv::model INTERFACE IMPORTED GLOBAL)
  if(BUILD_SHARED_LIBS)
    set_target_properties(mnnkv::model PROPERTIES INTERFACE_LINK_LIBRARIES "mnnkv::model_shared;mnnkv::mnnkv")
  else()
    set_target_properties(mnnkv::model PROPERTIES INTERFACE_LINK_LIBRARIES "mnnkv::model_static;mnnkv::mnnkv")
  endif()
endif()
if(MNNKV_LLAMA)
  mnnkv_library(mnnkv_llama mnn-kv-llama llama_shared llama_static)
  list(GET MNNKV_LIBRARIES -1 last)
  add_dependencies(mnnkv_llama_cargo ${last}_cargo)
  list(APPEND MNNKV_LIBRARIES mnnkv_llama)
endif()
