#!/bin/sh
# Builds Debian packages from the tarballs of dist.sh, without network and without root:
#
#   deb.sh DIST OUT   DIST has the tarballs; OUT receives libmnnkv1, libmnnkv-model1, libmnnkv-dev and mnnkv, and
#                     their packages of debug symbols
#
# Requires the Build-Depends of packaging/debian/control; MNNKV_DEB_FLAGS are further flags of dpkg-buildpackage, such as
# -d where cargo is not a package. DEBFULLNAME and DEBEMAIL sign the changelog.
set -eu
[ $# -eq 2 ] || { echo "usage: $0 DIST OUT" >&2; exit 2; }
mkdir -p "$2"
dist=$(cd "$1" && pwd)
out=$(cd "$2" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
export LC_ALL=C

set -- "$dist"/mnn-kv-*-vendor.tar.xz
if [ $# -ne 1 ] || [ ! -e "$1" ]; then
    echo "$0: $dist must contain one mnn-kv-*-vendor.tar.xz" >&2
    exit 1
fi
name=$(basename "$1" -vendor.tar.xz)
version=${name#mnn-kv-}
tar -C "$work" -xf "$dist/$name.tar.xz"
tar -C "$work/$name" -xf "$1"
cd "$work/$name"

cp -R packaging/debian debian
# The time of the release, which the files of the tarball have.
SOURCE_DATE_EPOCH=$(stat -c %Y Cargo.toml)
export SOURCE_DATE_EPOCH
maintainer=$(sed -n 's/^Maintainer: //p' debian/control)
[ -z "${DEBEMAIL-}" ] || maintainer="${DEBFULLNAME:-$DEBEMAIL} <$DEBEMAIL>"
cat >debian/changelog <<END
mnn-kv ($version-1) unstable; urgency=medium

  * Release $version; CHANGELOG.md of the sources names the changes.

 -- $maintainer  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
END
# Of the libraries and their development files; the program has more crates.
sed -n '/^| component/,$p' THIRD-PARTY.md | cat debian/copyright - >debian/libmnnkv1.copyright
cp debian/libmnnkv1.copyright debian/libmnnkv-model1.copyright
cp debian/libmnnkv1.copyright debian/libmnnkv-dev.copyright
cat debian/copyright notices/mnnkv.txt >debian/mnnkv.copyright
cp debian/libmnnkv1.copyright debian/copyright

# Each function of the headers, at this release.
# symbols HEADERS SONAME PACKAGE
symbols() {
    echo "$2 $3 #MINVER#"
    find "include/$1" "include/$1.h" -maxdepth 1 -name '*.h' ! -name load.h ! -name llama.h -exec cat {} + |
        sed -n "s/^\(const \)\{0,1\}[a-z][a-z0-9_]* \**\(mnnkv_[a-z0-9_]*\)(.*/ \2@Base $version/p"
}
symbols mnnkv libmnnkv.so.1 libmnnkv1 >debian/libmnnkv1.symbols
symbols mnnkv/model libmnnkv_model.so.1 libmnnkv-model1 >debian/libmnnkv-model1.symbols

# shellcheck disable=SC2086 # flags as words
dpkg-buildpackage -b -us -uc ${MNNKV_DEB_FLAGS-}
mv "$work"/*.deb "$work"/*.changes "$work"/*.buildinfo "$out"
