#!/bin/sh
# Uses an installed mnn-kv as its users do: a C and a C++ program, shared and static, by pkg-config and by CMake, and
# the command line.
#
#   use.sh SOURCES   the folder of the sources, of which only the programs and their data are read
set -eu
[ $# -eq 1 ] || { echo "usage: $0 SOURCES" >&2; exit 2; }
sources=$(cd "$1" && pwd)
consumer=$sources/cpp-tests/packaging/consumer
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "use: $*" >&2; exit 1; }
# linked KIND PROGRAM: the program needs the shared library, or it does not.
linked() {
    needs=static
    if readelf -d "$2" | grep -q 'NEEDED.*libmnnkv'; then needs=shared; fi
    [ "$needs" = "$1" ] || fail "$2 is $needs, and must be $1"
}

for kind in shared static; do
    flag=
    [ $kind = shared ] || flag=--static
    # Flags are words.
    # shellcheck disable=SC2046
    cc -O1 -Wall -Werror -o "$work/c" "$consumer/round_trip.c" $(pkg-config $flag --cflags --libs mnnkv)
    linked $kind "$work/c"
    "$work/c" | grep -qx 'round trip ok' || fail "the C program, $kind, printed no verdict"
    # shellcheck disable=SC2046
    c++ -std=c++11 -O1 -Wall -Werror -DMNNKV_TESTDATA_DIR="\"$sources/testdata\"" -o "$work/c++" \
        "$sources/cpp-tests/quoted/readme.cpp" $(pkg-config $flag --cflags --libs mnnkv)
    linked $kind "$work/c++"
    "$work/c++" >/dev/null || fail "the C++ example, $kind, failed"

    # shellcheck disable=SC2046
    cc -O1 -Wall -Werror -o "$work/model" "$consumer/model.c" $(pkg-config $flag --cflags --libs mnnkv_model)
    linked $kind "$work/model"
    "$work/model" | grep -qx 'round trip ok' || fail "the C program of both libraries, $kind, printed no verdict"

    static=OFF
    [ $kind = shared ] || static=ON
    version=$(pkg-config --modversion mnnkv)
    cmake -S "$consumer/find_package" -B "$work/$kind" -DVERSION="$version" -Dmnnkv_USE_STATIC_LIBS=$static \
        -DMODEL=ON >/dev/null
    cmake --build "$work/$kind" >/dev/null
    linked $kind "$work/$kind/consumer"
    for program in consumer model; do
        "$work/$kind/$program" >/dev/null || fail "the CMake project, $kind, failed: $program"
    done
    echo "use: C, C++ and CMake programs, $kind"
done

# A fully static program needs an archive of the C library alone.
# shellcheck disable=SC2046
if cc -static -o "$work/alone" "$consumer/round_trip.c" $(pkg-config --static --cflags --libs mnnkv) 2>"$work/log"; then
    "$work/alone" >/dev/null || fail "the fully static program failed"
    echo "use: a fully static program"
else
    fail "the fully static program: $(cat "$work/log")"
fi

mnnkv --version | grep -qF "$version" || fail "mnnkv is not version $version"
mnnkv size --layers 32 --kv-heads 8 --head-dim 128 --dtype bf16 --context 1000 >/dev/null || fail "mnnkv size failed"
prefix=$(dirname "$(dirname "$(command -v mnnkv)")")
for file in man/man1/mnnkv.1 bash-completion/completions/mnnkv; do
    [ -s "$prefix/share/$file" ] || [ -s "$prefix/share/$file.gz" ] || fail "$prefix/share/$file is missing"
done
bash -n "$prefix/share/bash-completion/completions/mnnkv"
echo "use: the program with its manual pages and completions"
