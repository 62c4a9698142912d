# For CMAKE_TOOLCHAIN_FILE: Debian's GCC for aarch64, and qemu-user to run its programs.

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
# Debian's C library for aarch64 is outside the default search paths.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
set(MNNKV_RUST_TARGET aarch64-unknown-linux-gnu CACHE STRING "Rust target triple")
