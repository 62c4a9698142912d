# The backend of ggml (integrations/llama.cpp), with libmnnkv_llama inside, as lib/ggml-<N>/libggml-mnnkv.so: one for each version N
# of ggml's backend API that the folders of MNNKV_GGML have. Headers of the first folder with a version count; nothing is linked
# from there, since a program that loads a backend has ggml's functions.

if(NOT MNNKV_LLAMA)
  message(FATAL_ERROR "mnnkv: MNNKV_GGML needs MNNKV_LLAMA=ON")
endif()
# Its threads are those of llama.cpp's own OpenMP.
find_package(OpenMP REQUIRED COMPONENTS CXX)

set(MNNKV_GGML_APIS "")
foreach(folder IN LISTS MNNKV_GGML)
  get_filename_component(ggml "${folder}" ABSOLUTE)
  if(EXISTS "${ggml}/ggml/src/ggml-backend-impl.h")
    string(APPEND ggml "/ggml")
  endif()
  set(api "")
  if(EXISTS "${ggml}/src/ggml-backend-impl.h")
    file(STRINGS "${ggml}/src/ggml-backend-impl.h" api REGEX "^ *#define GGML_BACKEND_API_VERSION [0-9]+" LIMIT_COUNT 1)
    string(REGEX MATCH "[0-9]+$" api "${api}")
  endif()
  if(api STREQUAL "")
    message(FATAL_ERROR "mnnkv: MNNKV_GGML: ${folder} is no checkout of llama.cpp or ggml with a version of its backend API")
  endif()
  if(api IN_LIST MNNKV_GGML_APIS)
    continue()
  endif()
  list(APPEND MNNKV_GGML_APIS "${api}")

  set(target "ggml-mnnkv-${api}")
  add_library("${target}" MODULE "${PROJECT_SOURCE_DIR}/integrations/llama.cpp/ggml-mnnkv.cpp")
  set_target_properties("${target}" PROPERTIES
    OUTPUT_NAME ggml-mnnkv PREFIX lib LIBRARY_OUTPUT_DIRECTORY "${MNNKV_LIB_DIR}/ggml-${api}"
    CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_VISIBILITY_PRESET hidden)
  # As ggml builds its own backends to be loaded.
  target_compile_definitions("${target}" PRIVATE GGML_BACKEND_SHARED GGML_BACKEND_BUILD)
  target_include_directories("${target}" SYSTEM PRIVATE "${ggml}/include" "${ggml}/src")
  target_link_libraries("${target}" PRIVATE mnnkv::llama_static OpenMP::OpenMP_CXX)
  if(APPLE)
    target_link_options("${target}" PRIVATE -undefined dynamic_lookup)
  elseif(MNNKV_ELF)
    # Only ggml's two entries are visible, and no library of C++ is needed.
    target_link_options("${target}" PRIVATE LINKER:--exclude-libs,ALL LINKER:--gc-sections -static-libgcc -static-libstdc++)
  endif()
  if(MNNKV_INSTALL)
    install(TARGETS "${target}" LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/ggml-${api}")
  endif()
endforeach()
