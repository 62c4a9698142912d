#!/bin/sh
# Installs and prints missing tools of a build. Prints nothing if none is missing.
#
#   setup.sh demo   CMake
#   setup.sh test   CMake, GoogleTest, pkg-config and, where binaries are ELF, binutils and the system's libzstd.a
#   setup.sh which cmake|ctest   prints the program to use
#
# MNNKV_NO_INSTALL=1 prints missing tools instead of installing them.
set -eu

cd "$(dirname "$0")/.."
# The folder of pip's CMake: the user's Python stays unchanged, and `make clean` removes it.
tools=$PWD/build/tools
minimum=3.16

name=setup
. ./cmake/common.sh

# Succeeds when the program $1 is CMake (or CTest) 3.16 or newer.
recent() {
    version=$("$1" --version 2>/dev/null | sed -n '1s/.* version \([0-9]*\.[0-9]*\).*/\1/p')
    [ -n "$version" ] || return 1
    [ "${version%%.*}" -gt "${minimum%%.*}" ] ||
        { [ "${version%%.*}" -eq "${minimum%%.*}" ] && [ "${version#*.}" -ge "${minimum#*.}" ]; }
}

# The program $1 (cmake or ctest) of the system when it is recent enough, else pip's.
which_program() {
    if recent "$1"; then
        echo "$1"
    elif recent "$tools/cmake/data/bin/$1"; then
        echo "$tools/cmake/data/bin/$1"
    else
        return 1
    fi
}

# CC and CXX may hold flags, hence no quotes around them.
compiles() { printf '%s\n' "$1" | ${CXX:-c++} -std=c++17 -E -x c++ - >/dev/null 2>&1; }

is_elf() { case $(uname -s) in Darwin | MINGW* | MSYS* | CYGWIN*) return 1 ;; esac; }

present() {
    case $1 in
    cmake) which_program cmake >/dev/null ;;
    pkg-config) have pkg-config || have pkgconf ;;
    gtest) pkg-config --exists gtest_main 2>/dev/null || compiles '#include <gtest/gtest.h>' ;;
    # The compiler prints a path if it finds the file, else the bare name.
    zstd) [ -f "$(${CC:-cc} -print-file-name=libzstd.a)" ] && compiles '#include <zstd.h>' ;;
    binutils) have ld && have objcopy && have nm && have readelf ;;
    esac
}

missing() {
    absent=
    for tool in $needs; do
        present "$tool" || absent="$absent $tool"
    done
    echo "${absent# }"
}

# The packages with the tools in $2, by their names in the package manager $1.
packages() {
    for tool in $2; do
        case $1-$tool in
        apt-get-gtest) echo libgtest-dev ;;
        apt-get-zstd) echo libzstd-dev ;;
        dnf-gtest) echo gtest-devel ;;
        apk-gtest) echo gtest-dev ;;
        dnf-pkg-config) echo pkgconf-pkg-config ;;
        dnf-zstd) echo libzstd-devel libzstd-static ;;
        pacman-pkg-config | apk-pkg-config | brew-pkg-config) echo pkgconf ;;
        apk-zstd) echo zstd-dev zstd-static ;;
        brew-gtest) echo googletest ;;
        *) echo "$tool" ;;
        esac
    done
}

install_with() {
    # A list, here and below.
    # shellcheck disable=SC2086,SC2046
    names=$(echo $(packages "$1" "$2"))
    say "installing with $1: $names"
    # shellcheck disable=SC2086
    case $1 in
    apt-get)
        # A stale list names removed files. If only one mirror fails, the others may suffice.
        as_root apt-get -qq update || say "apt-get update failed; trying with the present lists"
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends \
            -o Dpkg::Use-Pty=0 install $names >/dev/null
        ;;
    dnf) as_root dnf -q -y install $names ;;
    pacman) as_root pacman -S --needed --noconfirm $names || as_root pacman -Sy --needed --noconfirm $names ;;
    apk) as_root apk add --quiet --no-cache $names ;;
    brew) brew install --quiet $names ;;
    esac >&2
}

install_cmake_with_pip() {
    for python in python3 python; do
        if have "$python" && "$python" -m pip --version >/dev/null 2>&1; then
            say "installing with pip into build/tools: cmake"
            PIP_ROOT_USER_ACTION=ignore "$python" -m pip install --quiet --upgrade --target "$tools" cmake >&2 &&
                return 0
        fi
    done
    return 1
}

by_hand() {
    say "still missing: $1"
    for tool in $1; do
        case $tool in
        cmake) say "  cmake: CMake $minimum or newer, from your system's packages or from cmake.org" ;;
        gtest) say "  gtest: GoogleTest with its CMake package; Debian: libgtest-dev, Fedora: gtest-devel" ;;
        pkg-config) say "  pkg-config: pkg-config or pkgconf" ;;
        zstd) say "  zstd: zstd.h and the static libzstd.a, for a link test; Debian: libzstd-dev," \
            "Fedora: libzstd-static; otherwise build zstd and set CPATH and LIBRARY_PATH to its folders" ;;
        binutils) say "  binutils: ld, objcopy, nm, readelf" ;;
        cc) say "  cc: a C compiler, as cc or in CC" ;;
        c++) say "  c++: a C++17 compiler, as c++ or in CXX" ;;
        cargo) say "  cargo: Rust; see rust-version in Cargo.toml for the oldest version" ;;
        esac
    done
    exit 1
}

case ${1-} in
which)
    which_program "$2" || { echo "$2"; }
    exit
    ;;
demo) needs="cmake" ;;
test) needs="cmake pkg-config gtest" ;;
*)
    echo "usage: $0 demo|test|which cmake|which ctest" >&2
    exit 2
    ;;
esac
if is_elf; then
    needs="$needs binutils"
    [ "$1" = demo ] || needs="$needs zstd"
fi

# The user chooses these.
compilers=
for program in "${CC:-cc}=cc" "${CXX:-c++}=c++" cargo=cargo; do
    program_name=${program%=*}
    have "${program_name%% *}" || compilers="$compilers ${program#*=}"
done
[ -z "$compilers" ] || by_hand "${compilers# }"

absent=$(missing)
[ -n "$absent" ] || exit 0
say "missing: $absent"
[ -z "${MNNKV_NO_INSTALL-}" ] || by_hand "$absent"
for manager in apt-get dnf pacman apk brew; do
    if have "$manager"; then
        install_with "$manager" "$absent" || say "$manager failed"
        break
    fi
done
absent=$(missing)
case " $absent " in
*" cmake "*)
    install_cmake_with_pip || say "no working pip"
    absent=$(missing)
    ;;
esac
[ -z "$absent" ] || by_hand "$absent"
say "done"
