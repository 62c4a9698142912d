"""Conan 2 recipe of the sources that it lies in: conan create packaging/conan."""

import os
import re

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load, rmdir

SOURCES = os.path.join("..", "..")
# Folders with data of tests.
CRATES = ("model", "replay", "cli")


class MnnkvConan(ConanFile):
    name = "mnnkv"
    description = "KV-cache compression for on-device LLM hosts"
    license = "Apache-2.0"
    topics = ("llm", "kv-cache", "compression")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "fPIC": [True, False], "model": [True, False]}
    default_options = {"shared": False, "fPIC": True, "model": True}

    def set_version(self):
        manifest = load(self, os.path.join(self.recipe_folder, SOURCES, "Cargo.toml"))
        self.version = re.search(r'^version = "(.*)"', manifest, re.MULTILINE).group(1)

    def export_sources(self):
        for pattern in (
            "CMakeLists.txt", "Cargo.*", "LICENSE", "*.md", ".cargo/*", "cmake/*", "include/*", "integrations/*",
            "src/*", "build.rs", "model/*", "replay/*", "cli/*", "llama/*", "docs/config.md", "notices/*", "vendor/*", "cpp-tests/*",
            "benches/*",
        ):
            copy(self, pattern, os.path.join(self.recipe_folder, SOURCES), self.export_sources_folder,
                 excludes=["*/testdata/*"] if pattern.split("/")[0] in CRATES else None)

    def configure(self):
        # The code is position-independent in any case, and its compiler is rustc.
        self.options.rm_safe("fPIC")
        self.settings.rm_safe("compiler.cppstd")
        self.settings.rm_safe("compiler.libcxx")

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["MNNKV_MODEL"] = bool(self.options.model)
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        copy(self, "THIRD-PARTY.md", self.source_folder, os.path.join(self.package_folder, "licenses"))
        copy(self, "libmnnkv*.cdx.json", os.path.join(self.source_folder, "notices"),
             os.path.join(self.package_folder, "licenses"))
        CMake(self).install()
        # Conan writes files for CMake and pkg-config itself; a package has one kind of library.
        lib = os.path.join(self.package_folder, "lib")
        for folder in (os.path.join(lib, "cmake"), os.path.join(lib, "pkgconfig"), os.path.join(lib, "mnnkv"),
                       os.path.join(self.package_folder, "share")):
            rmdir(self, folder)
        for name in os.listdir(lib):
            if name.endswith(".a") == bool(self.options.shared):
                os.unlink(os.path.join(lib, name))

    def package_info(self):
        self.cpp_info.set_property("cmake_file_name", "mnnkv")
        self._component("mnnkv", "mnnkv::mnnkv", [])
        if self.options.model:
            self._component("mnnkv_model", "mnnkv::model", ["mnnkv"])

    def _component(self, name, target, requires):
        component = self.cpp_info.components[name]
        component.set_property("cmake_target_name", target)
        component.set_property("pkg_config_name", name)
        component.libs = [name]
        component.requires = requires
        if not self.options.shared and self.settings.os in ("Linux", "FreeBSD"):
            component.system_libs = ["pthread", "dl", "m", "rt", "util"]
