#!/bin/sh
# Builds the tarballs and the libraries twice, in different folders and surroundings, and compares the bytes.
#
#   reproducible.sh WORK   WORK receives a folder per build, with different lengths of path
#
# Two clones of the last commit; umask, time zone, locale, cargo's home and target folder differ. The libraries are built from
# the tarball and its crates, without network.
set -eu
[ $# -eq 1 ] || { echo "usage: $0 WORK" >&2; exit 2; }
here=$(cd "$(dirname "$0")/.." && pwd)
rm -rf "$1"
mkdir -p "$1"
work=$(cd "$1" && pwd)
cmake=$("$here/cmake/setup.sh" which cmake)
commit=$(git -C "$here" rev-parse HEAD)
fail() { echo "reproducible: $*" >&2; exit 1; }

# one FOLDER: a clone, its tarballs, and the libraries from them.
one() {
    mkdir -p "$1"
    git clone --quiet --no-checkout "$here" "$1/clone"
    git -C "$1/clone" checkout --quiet --detach "$commit"
    "$1/clone/packaging/dist.sh" "$1/dist" >/dev/null
    mkdir "$1/sources"
    for tarball in "$1"/dist/mnn-kv-*.tar.xz; do
        case $tarball in
        *-vendor.tar.xz) tar -C "$1/sources" -xf "$tarball" ;;
        *) tar -C "$1/sources" --strip-components=1 -xf "$tarball" ;;
        esac
    done
    CARGO_HOME="$1/home" "$cmake" -S "$1/sources" -B "$1/build" --log-level=NOTICE "-DMNNKV_CARGO=$(command -v cargo)"
    CARGO_HOME="$1/home" "$cmake" --build "$1/build"
}

unset CARGO_TARGET_DIR
(umask 022 && TZ=UTC LC_ALL=C one "$work/a")
(umask 077 && TZ=Asia/Tokyo LC_ALL=C.UTF-8 one "$work/another/much-longer-path")

set -- "$work/a" "$work/another/much-longer-path"
for file in dist build/lib; do
    (cd "$1/$file" && find . -type f | sort) | while read -r name; do
        cmp "$1/$file/$name" "$2/$file/$name" || fail "$name differs"
        echo "reproducible: ${name#./} $(sha256sum <"$1/$file/$name" | cut -c1-16)..."
    done
done
