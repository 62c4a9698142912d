#!/bin/sh
# Runs the tests of Rust, C and C++ for aarch64 on a Debian machine of another kind, under qemu.
#
# Installs what is missing and says how: what `make test` needs, through setup.sh; GCC for aarch64, qemu-user and the
# LLVM of Debian's rustc, with apt-get. That rustc itself, Rust's standard libraries, GoogleTest and libzstd for aarch64
# are unpacked in build/aarch64/root: rustup may have no other target to offer, and Debian's Rust packages conflict with
# rustup. cargo is the machine's own.
#
# MNNKV_NO_INSTALL=1 makes it say what is missing instead of installing it.
set -eu

cd "$(dirname "$0")/.."
setup=$PWD/cmake/setup.sh
out=$PWD/build/aarch64
root=$out/root
began=$(date +%s)

say() { printf 'aarch64: %s\n' "$*" >&2; }
fail() {
    say "$*"
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

case $(uname -m) in
aarch64 | arm64)
    say "this machine is one: use make test"
    exit
    ;;
esac

# Not those of the normal build, nor of the environment.
export CARGO_TARGET_DIR="$out/cargo" RUSTC="$root/usr/bin/rustc" RUSTDOC="$root/usr/bin/rustdoc"
# For rustc's own library.
LD_LIBRARY_PATH=$root/usr/lib/$(uname -m)-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export MNNKV_TEST_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$MNNKV_TEST_RUNNER"
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc

present() { have aarch64-linux-gnu-g++ && have qemu-aarch64 && "$RUSTC" -V >/dev/null 2>&1; }

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif have sudo; then
        sudo "$@"
    else
        fail "not root, and there is no sudo"
    fi
}

# What the package $1 depends on, of the names that begin with $2.
dependency() { apt-cache depends "$1" | sed -n "s/^ *Depends: \($2[0-9][0-9a-z.]*\)\$/\1/p"; }

install_missing() {
    have apt-get || fail "this needs Debian's packages, and there is no apt-get"
    rm -rf "$root" "$out/apt"
    mkdir -p "$out/apt/lists/partial" "$out/apt/debs"
    # Lists of its own, so that the machine need not become one of two architectures; and apt's caches of lists off, as
    # they are the machine's.
    export APT_CONFIG="$out/apt/apt.conf"
    cat >"$APT_CONFIG" <<END
APT::Architectures "$(dpkg --print-architecture),arm64";
APT::Sandbox::User "root";
Dir::State::Lists "$out/apt/lists";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
END
    apt-get -qq update || say "apt-get update failed; trying with the lists that came"
    version=$(apt-cache policy rustc-web | sed -n 's/^ *Candidate: //p')
    std=$(dependency libstd-rust-web-dev libstd-rust-web-)
    [ -n "$std" ] || fail "apt-get knows no libstd-rust-web-dev"
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
    present || fail "that did not bring all of it"
}

"$setup" test
if ! present; then
    [ -z "${MNNKV_NO_INSTALL-}" ] || fail "missing: g++-aarch64-linux-gnu, qemu-user, or build/aarch64/root"
    install_missing
fi
say "$("$RUSTC" -V), $(qemu-aarch64 --version | head -n 1)"

# The library alone: the tests of the command line start it, which the emulator does not see. Of random schedules as many
# as an emulator does in a minute.
MNNKV_SCHEDULES=${MNNKV_SCHEDULES:-100} cargo test --locked --target aarch64-unknown-linux-gnu

cmake=$("$setup" which cmake)
ctest=$("$setup" which ctest)
jobs=$(getconf _NPROCESSORS_ONLN)
"$cmake" -S . -B "$out/cmake" --log-level=NOTICE -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64-toolchain.cmake" \
    -DCMAKE_BUILD_TYPE=Release -DMNNKV_BUILD_TESTS=ON -DMNNKV_CARGO_TARGET_DIR="$CARGO_TARGET_DIR" \
    -DCMAKE_PREFIX_PATH="$root/usr" -DMNNKV_RUSTC="$RUSTC"
"$cmake" --build "$out/cmake" --parallel "$jobs"
# Left out as processes of their own: these tests ask how much memory the process has, and the 2 MB pages in which qemu
# keeps the code that it translates meanwhile are too much. They pass in suites.portable and suites.static, where qemu
# knows the code by then.
memory='^LargeCache\.FallsAsFarWithBlocksThatEndInsidePages$|ResidentHost\.|ResidentStore\.'
cd "$out/cmake"
"$ctest" --output-on-failure --parallel "$jobs" -E "$memory"
say "took $(($(date +%s) - began)) s"
