# Installs headers, both libraries, the CMake package and the pkg-config file. No installed file contains the prefix:
# files derive it from their own place, so the tree may be moved.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(without "")
if(NOT MNNKV_MODEL)
  set(without PATTERN "model*" EXCLUDE)
endif()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp" ${without})
# For hosts, and for MNN builds with MNN_KV set to an installation.
file(GLOB integrations CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/integrations/*/*.hpp")
install(FILES ${integrations} DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")

install(FILES "${MNNKV_LIB_DIR}/${MNNKV_STATIC_NAME}" DESTINATION "${CMAKE_INSTALL_LIBDIR}")
# Linkers prefer the shared library in the same folder; a folder with the archive alone selects it (see mnnkv.pc.in).
if(WIN32)
  install(FILES "${MNNKV_LIB_DIR}/${MNNKV_STATIC_NAME}" DESTINATION "${CMAKE_INSTALL_LIBDIR}/mnnkv")
else()
  set(alone "${CMAKE_CURRENT_BINARY_DIR}/alone/${MNNKV_STATIC_NAME}")
  file(MAKE_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/alone")
  execute_process(COMMAND "${CMAKE_COMMAND}" -E create_symlink "../${MNNKV_STATIC_NAME}" "${alone}")
  install(FILES "${alone}" DESTINATION "${CMAKE_INSTALL_LIBDIR}/mnnkv")
endif()
set(MNNKV_SHARED_DIR "${CMAKE_INSTALL_LIBDIR}")
if(WIN32)
  set(MNNKV_SHARED_DIR "${CMAKE_INSTALL_BINDIR}")
  install(FILES "${MNNKV_LIB_DIR}/${cargo_import}" DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endif()
# Installed as a program for the permission to execute.
install(PROGRAMS "${MNNKV_LIB_DIR}/${MNNKV_SHARED_NAME}" DESTINATION "${MNNKV_SHARED_DIR}")
foreach(link IN LISTS shared_links)
  install(FILES "${MNNKV_LIB_DIR}/${link}" DESTINATION "${MNNKV_SHARED_DIR}")
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
foreach(name mnnkv mnnkv-library)
  configure_file("${PROJECT_SOURCE_DIR}/cmake/${name}.pc.in" "${CMAKE_CURRENT_BINARY_DIR}/${name}.pc" @ONLY)
  install(FILES "${CMAKE_CURRENT_BINARY_DIR}/${name}.pc" DESTINATION "${pc_dir}")
endforeach()

# Must accompany every distribution of the library. notices/ is in the tarballs of `make dist`.
set(notices "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/THIRD-PARTY.md")
if(EXISTS "${PROJECT_SOURCE_DIR}/notices/libmnnkv.cdx.json")
  list(APPEND notices "${PROJECT_SOURCE_DIR}/notices/libmnnkv.cdx.json")
  if(MNNKV_TOOLS)
    list(APPEND notices "${PROJECT_SOURCE_DIR}/notices/mnnkv.cdx.json" "${PROJECT_SOURCE_DIR}/notices/mnnkv.txt")
  endif()
endif()
install(FILES ${notices} DESTINATION "${CMAKE_INSTALL_DOCDIR}")

if(MNNKV_TOP_LEVEL)
  add_custom_target(uninstall COMMAND "${CMAKE_COMMAND}" "-DBUILD=${PROJECT_BINARY_DIR}"
                    -P "${PROJECT_SOURCE_DIR}/cmake/uninstall.cmake" VERBATIM)
endif()
