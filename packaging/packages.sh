#!/bin/sh
# Builds every package from the tarballs, and uses it.
#
#   packages.sh DIST WORK [NAMES]   DIST has the tarballs of dist.sh, WORK receives everything else
#
#   crates         cargo publish --workspace --dry-run
#   cargo-c        cargo cinstall; requires cargo-c
#   fetch-content  a CMake project that fetches the tarball
#   conan          conan create, shared and static; requires Conan 2
#   vcpkg          vcpkg install, shared and static; requires vcpkg, with VCPKG_ROOT at its registry
#   roots          .debs and sources in empty Debian roots (root.sh); requires root and mmdebstrap
#
# Without NAMES all of them. A package whose tool is missing is skipped, unless NAMES asks for it.
set -eu
[ $# -ge 2 ] || { echo "usage: $0 DIST WORK [NAMES]" >&2; exit 2; }
mkdir -p "$2"
dist=$(cd "$1" && pwd)
work=$(cd "$2" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
shift 2
asked=${*:-}
cmake=$("$here/../cmake/setup.sh" which cmake)

say() { printf 'packages: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }
# Succeeds if the package $1 is due; its tool is $2.
due() {
    case " ${asked:-$1} " in *" $1 "*) ;; *) return 1 ;; esac
    if command -v "$2" >/dev/null 2>&1; then
        say "$1"
        return 0
    fi
    [ -z "$asked" ] || fail "$1 requires $2"
    say "$1: SKIPPED, since $2 is missing"
    return 1
}
runs() { "$@" | grep -qx 'round trip ok' || fail "$1 printed no verdict"; }

tarball=$(find "$dist" -name 'mnn-kv-*.tar.xz' ! -name '*-vendor.tar.xz')
[ -f "$tarball" ] || fail "$dist must contain one mnn-kv-VERSION.tar.xz; run make dist"
sources=$work/sources
rm -rf "$sources"
mkdir -p "$sources"
tar -C "$sources" --strip-components=1 -xf "$tarball"
tar -C "$sources" -xf "${tarball%.tar.xz}-vendor.tar.xz"
consumer=$sources/cpp-tests/packaging/consumer

if due roots mmdebstrap; then
    "$here/root.sh" "$dist" "$work/roots"
    if command -v lintian >/dev/null; then lintian --allow-root --fail-on error "$work"/roots/debs/*.changes; fi
fi

# What follows is about files and their places, so that cargo need not optimise.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
export CARGO_TARGET_DIR="$work/target"
export VCPKG_KEEP_ENV_VARS="CARGO_HOME;CARGO_PROFILE_RELEASE_LTO;CARGO_PROFILE_RELEASE_OPT_LEVEL"
unset MNNKV_CARGO_TARGET_DIR

if due crates cargo; then
    (cd "$here/.." && cargo publish --workspace --dry-run --locked --quiet)
fi

if due cargo-c cargo-cinstall; then
    prefix=$work/cargo-c
    rm -rf "$prefix"
    # One by one: cargo-c builds no Rust library of a package that it installs, and the second one depends on the first.
    for package in mnn-kv mnn-kv-model; do
        (cd "$sources" && cargo --config vendor/config.toml cinstall --locked --package "$package" --prefix "$prefix" \
            --libdir "$prefix/lib")
    done
    (cd "$sources/include" && find . -name '*.h*') | while read -r header; do
        [ -f "$prefix/include/$header" ] || fail "cargo-c installed no $header"
    done
    export PKG_CONFIG_PATH="$prefix/lib/pkgconfig"
    for library in libmnnkv libmnnkv_model; do
        [ "$(readlink "$prefix/lib/$library.so.1")" ] || fail "cargo-c installed no $library.so.1"
    done
    # shellcheck disable=SC2046 # flags as words
    cc -o "$work/cargo-c-shared" "$consumer/round_trip.c" $(pkg-config --cflags --libs mnnkv)
    runs env LD_LIBRARY_PATH="$prefix/lib" "$work/cargo-c-shared"
    # shellcheck disable=SC2046
    cc -o "$work/cargo-c-model" "$consumer/model.c" $(pkg-config --cflags --libs mnnkv_model)
    runs env LD_LIBRARY_PATH="$prefix/lib" "$work/cargo-c-model"
    # shellcheck disable=SC2046
    cc -o "$work/cargo-c-static" "$consumer/round_trip.c" \
        $(pkg-config --static --cflags --libs mnnkv | sed 's/-lmnnkv/-l:libmnnkv.a/')
    runs "$work/cargo-c-static"
    unset PKG_CONFIG_PATH
fi

if due fetch-content "$cmake"; then
    rm -rf "$work/fetch"
    "$cmake" -S "$consumer/fetch_content" -B "$work/fetch" --log-level=NOTICE "-DTARBALL=$tarball" \
        "-DSHA256=$(sha256sum <"$tarball" | cut -d ' ' -f 1)"
    "$cmake" --build "$work/fetch"
    runs "$work/fetch/consumer"
fi

if due conan conan; then
    export CONAN_HOME="$work/conan"
    conan profile detect --exist-ok >/dev/null 2>&1
    for shared in True False; do
        conan create "$sources/packaging/conan" --no-remote -o "mnnkv/*:shared=$shared" >"$work/conan.log" 2>&1 ||
            { tail -n 40 "$work/conan.log" >&2; fail "conan create failed"; }
        grep -qx 'round trip ok' "$work/conan.log" || fail "Conan's test package printed no verdict"
    done
fi

if due vcpkg vcpkg; then
    triplet=$(uname -m | sed 's/x86_64/x64/; s/aarch64/arm64/')-linux
    for kind in "$triplet" "$triplet-dynamic"; do
        vcpkg install mnnkv --triplet "$kind" --host-triplet "$triplet" --overlay-ports="$sources/packaging/vcpkg" \
            --x-install-root="$work/vcpkg/installed" --x-buildtrees-root="$work/vcpkg/buildtrees" \
            --x-packages-root="$work/vcpkg/packages" --binarysource=clear
        version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$sources/Cargo.toml" | head -n 1)
        rm -rf "$work/vcpkg/$kind"
        "$cmake" -S "$consumer/one_library" -B "$work/vcpkg/$kind" --log-level=NOTICE "-DVERSION=$version" \
            "-DCMAKE_PREFIX_PATH=$work/vcpkg/installed/$kind"
        "$cmake" --build "$work/vcpkg/$kind"
        runs "$work/vcpkg/$kind/consumer"
    done
fi
say "done"
