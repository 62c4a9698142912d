#!/bin/sh
# For aarch64, on a Debian machine with another CPU:
#
#   aarch64.sh                   runs the tests of Rust, C and C++ under qemu
#   aarch64.sh install PREFIX [OPTION...]
#                                builds the libraries, with options of CMake, and installs them, without debug information,
#                                below PREFIX
#
# Installs and prints missing tools: those of `make test` through setup.sh; GCC for aarch64, qemu-user and the LLVM of
# Debian's rustc with apt-get. That rustc, Rust's standard libraries, GoogleTest and libzstd for aarch64 are unpacked in
# build/aarch64/root: rustup may lack the target, and Debian's Rust packages conflict with rustup. cargo is that of the
# machine.
#
# MNNKV_NO_INSTALL=1 prints missing tools instead of installing them.
set -eu

cd "$(dirname "$0")/.."
setup=$PWD/cmake/setup.sh
out=$PWD/build/aarch64
root=$out/root
began=$(date +%s)

name=aarch64
. ./cmake/common.sh

case $(uname -m) in
aarch64 | arm64)
    say "this machine is aarch64: use make test"
    exit
    ;;
esac

# Neither those of the normal build nor of the environment.
export CARGO_TARGET_DIR="$out/cargo" RUSTC="$root/usr/bin/rustc" RUSTDOC="$root/usr/bin/rustdoc"
# For the shared library of rustc.
LD_LIBRARY_PATH=$root/usr/lib/$(uname -m)-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export MNNKV_TEST_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$MNNKV_TEST_RUNNER"
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc

present() { have aarch64-linux-gnu-g++ && have qemu-aarch64 && "$RUSTC" -V >/dev/null 2>&1; }

# The dependencies of the package $1 whose names begin with $2.
dependency() { apt-cache depends "$1" | sed -n "s/^ *Depends: \($2[0-9][0-9a-z.]*\)\$/\1/p"; }

install_missing() {
    have apt-get || fail "apt-get is required, for Debian's packages"
    rm -rf "$root" "$out/apt"
    mkdir -p "$out/apt/lists/partial" "$out/apt/debs"
    # Separate lists, so that the machine does not become multi-architecture; without apt's caches, which belong to the
    # lists of the machine.
    export APT_CONFIG="$out/apt/apt.conf"
    cat >"$APT_CONFIG" <<END
APT::Architectures "$(dpkg --print-architecture),arm64";
APT::Sandbox::User "root";
Dir::State::Lists "$out/apt/lists";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
END
    apt-get -qq update || say "apt-get update failed; trying with partial lists"
    version=$(apt-cache policy rustc-web | sed -n 's/^ *Candidate: //p')
    std=$(dependency libstd-rust-web-dev libstd-rust-web-)
    [ -n "$std" ] || fail "apt-get has no libstd-rust-web-dev"
    llvm=$(dependency "$std" libllvm)

    say "installing with apt-get: g++-aarch64-linux-gnu qemu-user $llvm"
    as_root env APT_CONFIG="$APT_CONFIG" DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends \
        -o Dpkg::Use-Pty=0 install g++-aarch64-linux-gnu qemu-user "$llvm" >/dev/null
    say "unpacking in build/aarch64/root: rustc-web $version, for arm64 libgtest-dev and libzstd-dev"
    (
        cd "$out/apt/debs"
        apt-get -qq download "rustc-web=$version" "$std=$version" "libstd-rust-web-dev=$version" \
            "libstd-rust-web-dev:arm64=$version" libgtest-dev:arm64 libzstd-dev:arm64
        for deb in *.deb; do
            dpkg -x "$deb" "$out/apt/root"
        done
    )
    mv "$out/apt/root" "$root"
    rm -rf "$out/apt"
    unset APT_CONFIG
    present || fail "tools are still missing after the installation"
}

# configure FOLDER OPTIONS...: CMake, with this script's compilers.
configure() {
    folder=$1
    shift
    "$cmake" -S . -B "$folder" --log-level=NOTICE -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64-toolchain.cmake" \
        -DCMAKE_BUILD_TYPE=Release -DMNNKV_CARGO_TARGET_DIR="$CARGO_TARGET_DIR" -DMNNKV_RUSTC="$RUSTC" "$@"
}

case ${1-} in
"") "$setup" test ;;
install) [ $# -ge 2 ] || fail "usage: aarch64.sh install PREFIX [OPTION...]" ;;
*) fail "usage: aarch64.sh [install PREFIX [OPTION...]]" ;;
esac
if ! present; then
    [ -z "${MNNKV_NO_INSTALL-}" ] || fail "missing: g++-aarch64-linux-gnu, qemu-user, or build/aarch64/root"
    install_missing
fi
say "$("$RUSTC" -V), $(qemu-aarch64 --version | head -n 1)"

cmake=$("$setup" which cmake)
ctest=$("$setup" which ctest)
jobs=$(getconf _NPROCESSORS_ONLN)
if [ "${1-}" = install ]; then
    prefix=$2
    shift 2
    configure "$out/install" "$@"
    "$cmake" --build "$out/install" --parallel "$jobs"
    "$cmake" --install "$out/install" --strip --prefix "$prefix"
    exit
fi

# Only the libraries: tests of the command line start processes outside of the emulator. Fewer random schedules, for about
# a minute.
MNNKV_SCHEDULES=${MNNKV_SCHEDULES:-100} cargo test --locked --package mnn-kv --package mnn-kv-llama \
    --target aarch64-unknown-linux-gnu --no-fail-fast

configure "$out/cmake" -DMNNKV_BUILD_TESTS=ON -DMNNKV_LLAMA=ON -DCMAKE_PREFIX_PATH="$root/usr"
"$cmake" --build "$out/cmake" --parallel "$jobs"
# These tests measure the memory of the process, to which qemu adds 2 MB pages of translated code.
memory='ResidentHost\.|ResidentStore\.'
# Chats of thousands of tokens take hours there; the files of budgets have tests in Rust.
chats='^BudgetFile\.'
# See cpp-tests/CMakeLists.txt.
forks='^workers/fork_suite\.'
cd "$out/cmake"
"$ctest" --output-on-failure --parallel "$jobs" -E "$memory|$chats|$forks"
say "took $(($(date +%s) - began)) s"
