# An overlay port of the sources that it lies in: no download, hence no address and no checksum. Requires cargo.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

vcpkg_check_features(OUT_FEATURE_OPTIONS options FEATURES model MNNKV_MODEL)
# vcpkg starts builds with few variables, so that cargo is sought here.
find_program(CARGO cargo PATHS "$ENV{CARGO_HOME}/bin" "$ENV{HOME}/.cargo/bin" "$ENV{USERPROFILE}/.cargo/bin" REQUIRED)

# cargo builds for release, whatever CMake does.
set(VCPKG_BUILD_TYPE release)
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}" OPTIONS ${options} -DMNNKV_INSTALL=ON "-DMNNKV_CARGO=${CARGO}")
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/mnnkv DO_NOT_DELETE_PARENT_CONFIG_PATH)
vcpkg_cmake_config_fixup(PACKAGE_NAME kv_plugin CONFIG_PATH lib/cmake/kv_plugin)
vcpkg_fixup_pkgconfig()

# The installation has shared and static libraries, a triplet wants one kind. The CMake package names those that it finds.
if(VCPKG_LIBRARY_LINKAGE STREQUAL "static")
  file(GLOB others "${CURRENT_PACKAGES_DIR}/lib/libmnnkv*.so*" "${CURRENT_PACKAGES_DIR}/lib/libmnnkv*.dylib"
       "${CURRENT_PACKAGES_DIR}/lib/mnnkv*.dll.lib" "${CURRENT_PACKAGES_DIR}/bin")
else()
  file(GLOB others "${CURRENT_PACKAGES_DIR}/lib/libmnnkv.a" "${CURRENT_PACKAGES_DIR}/lib/libmnnkv_model.a"
       "${CURRENT_PACKAGES_DIR}/lib/mnnkv.lib" "${CURRENT_PACKAGES_DIR}/lib/mnnkv_model.lib")
endif()
file(REMOVE_RECURSE ${others} "${CURRENT_PACKAGES_DIR}/lib/mnnkv" "${CURRENT_PACKAGES_DIR}/share/doc")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE" "${SOURCE_PATH}/THIRD-PARTY.md")
