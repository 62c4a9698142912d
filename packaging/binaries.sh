#!/bin/sh
# Writes the built libraries as tarballs, mnn-kv-VERSION-TARGET.tar.xz, each with its checksum in mnn-kv-VERSION-TARGET.sha256:
#
#   binaries.sh [FOLDER]   build/dist if not given
#
# TARGETS are x86_64-unknown-linux-gnu and aarch64-unknown-linux-gnu; one of them is this machine's, and the other is built by
# cmake/aarch64.sh. A tarball has include/, lib/ (shared libraries without debug information, archives, the files of CMake and
# pkg-config) and share/; it may be unpacked anywhere. Each is used by a C program, under qemu where it is another CPU's.
#
# GGML: checkouts of llama.cpp or ggml, as "FOLDER FOLDER". With them lib/ has the backend of ggml for each version of its backend
# API (integrations/llama.cpp), and there is a wheel of these for Python, mnnkv_llama-VERSION-py3-none-PLATFORM.whl.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$here/build/dist}
# shellcheck source=pack.sh
. "$here/packaging/pack.sh"
cd "$here"
host=$(rustc -vV | sed -n 's/^host: //p')
version=$(version_of .)
cmake=$("$here/cmake/setup.sh" which cmake)
fail() { echo "binaries: $*" >&2; exit 1; }
ggml=""
for checkout in ${GGML:-}; do ggml="$ggml${ggml:+;}$(cd "$checkout" && pwd)"; done
[ -n "$ggml" ] || echo "binaries: without the backend of ggml, which needs GGML=\"FOLDER...\""

# install_for TARGET PREFIX
install_for() {
    if [ "$1" = "$host" ]; then
        "$cmake" -S . -B build/binaries --log-level=NOTICE -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_LIBDIR=lib \
            -DMNNKV_LLAMA=ON "-DMNNKV_GGML=$ggml"
        "$cmake" --build build/binaries
        "$cmake" --install build/binaries --strip --prefix "$2"
    elif [ "$1" = aarch64-unknown-linux-gnu ]; then
        cmake/aarch64.sh install "$2" -DMNNKV_LLAMA=ON "-DMNNKV_GGML=$ggml"
    else
        fail "$1 is neither this machine's target nor aarch64-unknown-linux-gnu"
    fi
}

# runs PREFIX COMPILER [RUNNER...]: a C program of the tarball's headers and shared library does what it says.
runs() {
    prefix=$1 compiler=$2
    shift 2
    "$compiler" -O1 -Wall -Werror -I"$prefix/include" cpp-tests/packaging/consumer/round_trip.c -L"$prefix/lib" -lmnnkv \
        -Wl,-rpath,"$prefix/lib" -o "$work/program"
    "$@" "$work/program" | grep -qx 'round trip ok' || fail "the program printed no verdict"
}

# glibc_of FILE: the newest symbol of glibc that it needs, such as 2.34.
glibc_of() { readelf -V --wide "$1" | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -uV | tail -n 1; }

for target in ${TARGETS:-x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu}; do
    name=mnn-kv-$version-$target
    install_for "$target" "$work/$name" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "$target"; }
    if [ "$target" = "$host" ]; then
        runs "$work/$name" cc
    else
        runs "$work/$name" aarch64-linux-gnu-gcc qemu-aarch64 -L /usr/aarch64-linux-gnu
    fi
    pack "$name" "$name"
    echo "binaries: $target needs glibc $(glibc_of "$work/$name/lib/libmnnkv.so")"
    files=$name.tar.xz
    if [ -n "$ggml" ]; then
        # A shared library may lack functions, which a program would find out when it loads it: ggml has its own, but not ours.
        for file in "$work/$name"/lib/ggml-*/*.so; do
            ! readelf --dyn-syms --wide "$file" | grep -q ' UND mnnkv_' || fail "$file lacks functions of libmnnkv_llama"
        done
        glibc=$(for file in "$work/$name"/lib/ggml-*/*.so; do glibc_of "$file"; done | sort -V | tail -n 1)
        platform=manylinux_$(echo "$glibc" | tr . _)_${target%%-*}
        files="$files $(basename "$(python3 packaging/wheel.py "$version" "$platform" "$work/$name/lib" "$out")")"
    fi
    # shellcheck disable=SC2086  # names without spaces
    (cd "$out" && sha256sum $files | tee "$name.sha256")
done
