# mnn-kv as the plugin for KV caches of a patched MNN, whose CMakeLists.txt finds this file by MNN_KV: where mnn-kv's source or its
# installation is.
#
# Sets KV_PLUGIN_INCLUDE_DIRS (of kv_plugin.hpp and what it includes), KV_PLUGIN_DEFINITIONS and KV_PLUGIN_LIBRARIES.

# Else the first MNN_KV of a build folder stays.
unset(kv_plugin_DIR CACHE)

option(MNN_KV_LINK "mnn-kv: link its library statically, which else is loaded at run time" OFF)

get_filename_component(mnnkv_root "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
if(EXISTS "${mnnkv_root}/Cargo.toml")
  set(KV_PLUGIN_INCLUDE_DIRS "${mnnkv_root}/include" "${mnnkv_root}/integrations/common" "${mnnkv_root}/integrations/mnn")
else()
  # Two to four folders below the prefix: share/kv_plugin, lib/cmake/kv_plugin, lib/x86_64-linux-gnu/cmake/kv_plugin.
  unset(MNNKV_INCLUDE_DIR CACHE)
  find_path(MNNKV_INCLUDE_DIR mnnkv/mnn/kv_plugin.hpp NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH
            HINTS "${CMAKE_CURRENT_LIST_DIR}/../.." "${CMAKE_CURRENT_LIST_DIR}/../../.."
                  "${CMAKE_CURRENT_LIST_DIR}/../../../.." PATH_SUFFIXES include)
  if(NOT MNNKV_INCLUDE_DIR)
    message(FATAL_ERROR "mnn-kv: mnnkv/mnn/kv_plugin.hpp is not in the installation of ${CMAKE_CURRENT_LIST_FILE}")
  endif()
  set(KV_PLUGIN_INCLUDE_DIRS "${MNNKV_INCLUDE_DIR}" "${MNNKV_INCLUDE_DIR}/mnnkv/mnn")
endif()

if(NOT MNN_KV_LINK)
  set(KV_PLUGIN_DEFINITIONS -DMNNKV_LOAD)
  set(KV_PLUGIN_LIBRARIES ${CMAKE_DL_LIBS})
else()
  if(EXISTS "${mnnkv_root}/Cargo.toml")
    set(MNNKV_MODEL OFF CACHE BOOL "mnn-kv: functions for model files")
    add_subdirectory("${mnnkv_root}" "${CMAKE_BINARY_DIR}/mnnkv" EXCLUDE_FROM_ALL)
  else()
    find_package(mnnkv REQUIRED CONFIG NO_CMAKE_FIND_ROOT_PATH HINTS "${CMAKE_CURRENT_LIST_DIR}/../mnnkv")
  endif()
  set(KV_PLUGIN_DEFINITIONS "")
  set(KV_PLUGIN_LIBRARIES mnnkv::static)
endif()
