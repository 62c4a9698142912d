# Installs headers, libraries, the CMake package and the pkg-config files. No installed file contains the prefix:
# files derive it from their own place, so the tree may be moved.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(without "")
if(NOT MNNKV_MODEL)
  set(without PATTERN "model*" EXCLUDE)
endif()
if(NOT MNNKV_LLAMA)
  list(APPEND without PATTERN "llama.h" EXCLUDE)
endif()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp" ${without})
# For hosts, and for MNN builds with MNN_KV set to an installation.
file(GLOB integrations CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/integrations/*/mnnkv_*.hpp")
if(NOT MNNKV_LLAMA)
  list(FILTER integrations EXCLUDE REGEX "/mnnkv_llama")
endif()
install(FILES ${integrations} DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
file(GLOB plugin CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/integrations/mnn/kv_plugin*.hpp")
install(FILES ${plugin} DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/mnnkv/mnn")
install(FILES "${PROJECT_SOURCE_DIR}/integrations/mnn/kv_plugin-config.cmake"
        DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/kv_plugin")

set(MNNKV_SHARED_DIR "${CMAKE_INSTALL_LIBDIR}")
if(WIN32)
  set(MNNKV_SHARED_DIR "${CMAKE_INSTALL_BINDIR}")
endif()
file(MAKE_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/alone")
foreach(library IN LISTS MNNKV_LIBRARIES)
  string(TOUPPER "${library}" prefix)
  set(archive "${${prefix}_STATIC_NAME}")
  install(FILES "${MNNKV_LIB_DIR}/${archive}" DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  # Linkers prefer the shared library in the same folder; a folder with the archives alone selects these (see mnnkv.pc.in).
  if(WIN32)
    install(FILES "${MNNKV_LIB_DIR}/${archive}" DESTINATION "${CMAKE_INSTALL_LIBDIR}/mnnkv")
    install(FILES "${MNNKV_LIB_DIR}/${${prefix}_IMPORT_NAME}" DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  else()
    set(alone "${CMAKE_CURRENT_BINARY_DIR}/alone/${archive}")
    execute_process(COMMAND "${CMAKE_COMMAND}" -E create_symlink "../${archive}" "${alone}")
    install(FILES "${alone}" DESTINATION "${CMAKE_INSTALL_LIBDIR}/mnnkv")
  endif()
  # Installed as a program for the permission to execute.
  install(PROGRAMS "${MNNKV_LIB_DIR}/${${prefix}_SHARED_NAME}" DESTINATION "${MNNKV_SHARED_DIR}")
  foreach(link IN LISTS ${prefix}_LINKS)
    install(FILES "${MNNKV_LIB_DIR}/${link}" DESTINATION "${MNNKV_SHARED_DIR}")
  endforeach()
endforeach()

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/mnnkv")
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/mnnkvConfig.cmake.in" "${CMAKE_CURRENT_BINARY_DIR}/mnnkvConfig.cmake"
  INSTALL_DESTINATION "${package_dir}"
  PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR MNNKV_SHARED_DIR
  NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/mnnkvConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/mnnkvConfig.cmake" "${CMAKE_CURRENT_BINARY_DIR}/mnnkvConfigVersion.cmake"
        DESTINATION "${package_dir}")

# Paths in the .pc file start from its own folder, unless the host project chose absolute folders.
set(pc_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(PC_PREFIX "${CMAKE_INSTALL_PREFIX}")
else()
  file(RELATIVE_PATH up "/prefix/${pc_dir}" "/prefix")
  string(REGEX REPLACE "/$" "" up "${up}")
  set(PC_PREFIX "\${pcfiledir}/${up}")
endif()
foreach(kind INCLUDE LIB)
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${kind}DIR}")
    set(PC_${kind}DIR "${CMAKE_INSTALL_${kind}DIR}")
  else()
    set(PC_${kind}DIR "\${prefix}/${CMAKE_INSTALL_${kind}DIR}")
  endif()
endforeach()
string(REPLACE ";" " -l" PC_STATIC_LIBS "-l${MNNKV_STATIC_LIBS}")
foreach(name mnnkv-library ${MNNKV_LIBRARIES})
  configure_file("${PROJECT_SOURCE_DIR}/cmake/${name}.pc.in" "${CMAKE_CURRENT_BINARY_DIR}/${name}.pc" @ONLY)
  install(FILES "${CMAKE_CURRENT_BINARY_DIR}/${name}.pc" DESTINATION "${pc_dir}")
endforeach()

# Must accompany every distribution of the library. notices/ is in the tarballs of `make dist`.
set(notices "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/THIRD-PARTY.md")
if(EXISTS "${PROJECT_SOURCE_DIR}/notices/libmnnkv.cdx.json")
  foreach(library IN LISTS MNNKV_LIBRARIES)
    list(APPEND notices "${PROJECT_SOURCE_DIR}/notices/lib${library}.cdx.json")
  endforeach()
  if(MNNKV_TOOLS)
    list(APPEND notices "${PROJECT_SOURCE_DIR}/notices/mnnkv.cdx.json" "${PROJECT_SOURCE_DIR}/notices/mnnkv.txt")
  endif()
endif()
install(FILES ${notices} DESTINATION "${CMAKE_INSTALL_DOCDIR}")

if(MNNKV_TOP_LEVEL)
  add_custom_target(uninstall COMMAND "${CMAKE_COMMAND}" "-DBUILD=${PROJECT_BINARY_DIR}"
                    -P "${PROJECT_SOURCE_DIR}/cmake/uninstall.cmake" VERBATIM)
endif()
