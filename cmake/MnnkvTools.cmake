# The program mnnkv with its manual pages and completions, built and installed with the library.

if(CMAKE_CROSSCOMPILING)
  message(FATAL_ERROR "mnnkv: MNNKV_TOOLS runs the program for its manual pages; a cross build has no use of it.")
endif()
include(GNUInstallDirs)

# A target folder of its own: the flags of the library's ZSTD are not those of the program's, and cargo would build both
# at each change.
set(tools_target "${MNNKV_CARGO_TARGET_DIR}/tools")
set(tools_out "${tools_target}/release")
if(NOT MNNKV_RUST_TARGET STREQUAL "")
  set(tools_out "${tools_target}/${MNNKV_RUST_TARGET}/release")
endif()
set(program "${CMAKE_CURRENT_BINARY_DIR}/tools/mnnkv${CMAKE_EXECUTABLE_SUFFIX}")
set(pages "${CMAKE_CURRENT_BINARY_DIR}/tools/man1")
set(completions "${CMAKE_CURRENT_BINARY_DIR}/tools/completions")
file(MAKE_DIRECTORY "${completions}")

set(write_completions "")
foreach(shell bash zsh fish)
  list(APPEND write_completions
       COMMAND "${CMAKE_COMMAND}" "-DPROGRAM=${program}" "-DSHELL=${shell}" "-DOUTPUT=${completions}/${shell}"
               -P "${PROJECT_SOURCE_DIR}/cmake/completion.cmake")
endforeach()
# Behind the libraries, because two cargos would compete for the cores.
add_custom_target(mnnkv_tools ALL
  COMMAND "${CMAKE_COMMAND}" -E env ${cargo_env}
          "CARGO_TARGET_DIR=${tools_target}" ${run_cargo} "-DTARGET_DIR=${tools_target}" -DPROGRAM=ON
          -P "${PROJECT_SOURCE_DIR}/cmake/cargo.cmake" --
          build --release --locked --package mnnkv-cli ${cargo_target_args}
  COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${tools_out}/mnnkv${CMAKE_EXECUTABLE_SUFFIX}" "${program}"
  COMMAND "${program}" man "${pages}"
  ${write_completions}
  WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
  COMMENT "Building the program mnnkv with cargo"
  USES_TERMINAL VERBATIM)
foreach(library IN LISTS MNNKV_LIBRARIES)
  add_dependencies(mnnkv_tools ${library}_cargo)
endforeach()

if(MNNKV_INSTALL)
  install(PROGRAMS "${program}" DESTINATION "${CMAKE_INSTALL_BINDIR}")
  install(DIRECTORY "${pages}/" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1" FILES_MATCHING PATTERN "*.1")
  # Folders that the shells read.
  set(data "${CMAKE_INSTALL_DATADIR}")
  install(FILES "${completions}/bash" DESTINATION "${data}/bash-completion/completions" RENAME mnnkv)
  install(FILES "${completions}/zsh" DESTINATION "${data}/zsh/site-functions" RENAME _mnnkv)
  install(FILES "${completions}/fish" DESTINATION "${data}/fish/vendor_completions.d" RENAME mnnkv.fish)
endif()
