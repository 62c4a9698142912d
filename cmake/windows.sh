#!/bin/sh
# For Windows on x86-64, on a Debian machine: runs the tests of the core library, the package mnn-kv, under wine.
#
# Installs and prints missing tools: GCC for Windows and wine with apt-get, Rust's standard library for Windows with
# rustup. wine's files are in target/wine.
#
# MNNKV_NO_INSTALL=1 prints missing tools instead of installing them.
set -eu

cd "$(dirname "$0")/.."
target=x86_64-pc-windows-gnu
out=$PWD/build/windows
began=$(date +%s)

name=windows
. ./cmake/common.sh

# Debian's package of the 64-bit wine alone puts it outside of PATH.
find_wine() {
    for program in wine64 /usr/lib/wine/wine64 wine; do
        if have "$program"; then
            command -v "$program"
            return
        fi
    done
}
standard_library() { [ -d "$(rustc --print target-libdir --target "$target" 2>/dev/null)" ]; }

missing() {
    absent=
    have x86_64-w64-mingw32-g++ || absent="$absent g++-mingw-w64-x86-64-posix"
    [ -n "$(find_wine)" ] || absent="$absent wine64"
    echo "${absent# }"
}

[ $# -eq 0 ] || fail "usage: windows.sh"
have cargo || fail "missing: cargo"
packages=$(missing)
if [ -n "$packages" ]; then
    [ -z "${MNNKV_NO_INSTALL-}" ] || fail "missing: $packages"
    have apt-get || fail "apt-get is required, for Debian's packages"
    say "installing with apt-get: $packages"
    as_root apt-get -qq update || say "apt-get update failed; trying with the present lists"
    # A list.
    # shellcheck disable=SC2086
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 install \
        $packages >/dev/null
    [ -z "$(missing)" ] || fail "tools are still missing after the installation"
fi
if ! standard_library; then
    [ -z "${MNNKV_NO_INSTALL-}" ] || fail "missing: Rust's standard library for $target"
    have rustup || fail "rustup is required, for Rust's standard library for $target"
    say "installing with rustup: $target"
    rustup target add "$target"
fi

# Neither those of the normal build nor of the environment.
mkdir -p "$out" target
# cargo scans the package but for target, and wine has links to the whole system.
export CARGO_TARGET_DIR="$out/cargo" WINEPREFIX="$PWD/target/wine"
# wine's own messages are about what it lacks, such as a screen.
export WINEDEBUG="${WINEDEBUG:--all}"
CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER=$(find_wine)
export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER
export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER=x86_64-w64-mingw32-gcc CC_x86_64_pc_windows_gnu=x86_64-w64-mingw32-gcc
say "$(rustc -V), $("$CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER" --version)"

# A program fails that starts while the server of the one before it ends: one stays for all.
for server in wineserver64 wineserver; do
    server=$(dirname "$CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER")/$server
    if [ -x "$server" ]; then
        mkdir -p "$WINEPREFIX"
        "$server" -p60
        break
    fi
done

# Rust's standard library has its random numbers from a library that wine has since 9.0 only.
system=$WINEPREFIX/drive_c/windows/system32
[ -d "$system" ] || "$CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER" wineboot -i
if [ ! -e "$system/bcryptprimitives.dll" ]; then
    x86_64-w64-mingw32-gcc -O2 -shared -o "$system/bcryptprimitives.dll" -x c - -ladvapi32 <<'END'
#include <windows.h>
#include <ntsecapi.h>
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE to, SIZE_T size) { return RtlGenRandom(to, (ULONG)size); }
END
fi

# Fewer random schedules, for some minutes.
MNNKV_SCHEDULES=${MNNKV_SCHEDULES:-100} cargo test --locked --target "$target" --package mnn-kv --lib --tests --no-fail-fast
say "took $(($(date +%s) - began)) s"
