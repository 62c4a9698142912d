#!/bin/sh
# Writes the release of the last commit as two tarballs and their checksums:
#
#   dist.sh [FOLDER]   mnn-kv-VERSION.tar.xz          the sources, with SBOMs and licence texts in notices/
#                      mnn-kv-VERSION-vendor.tar.xz   the crates of Cargo.lock; unpacked in the folder of the sources,
#                                                     they make the build offline
#
# FOLDER is build/dist if not given. The bytes depend on the commit and on the versions of git, tar, xz and cargo, and on
# nothing else: SOURCE_DATE_EPOCH, by default the time of the commit, is the time of every file. cargo reads its registry.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$here/build/dist}
# shellcheck source=pack.sh
. "$here/packaging/pack.sh"
cd "$here"
[ -z "$(git status --porcelain)" ] || echo "dist: changes that are not committed are left out" >&2

git archive --format=tar HEAD | (mkdir "$work/tree" && tar -x -C "$work/tree")
version=$(version_of "$work/tree")
name=mnn-kv-$version
mv "$work/tree" "$work/$name"
cd "$work/$name"
grep -q "\"version\": \"$version\"" packaging/vcpkg/mnnkv/vcpkg.json || {
    echo "dist: \"version\" in packaging/vcpkg/mnnkv/vcpkg.json is not $version, that of Cargo.toml" >&2
    exit 1
}

# Where the crates came from is not written down: only that they are here.
cargo vendor --quiet --locked --versioned-dirs vendor >/dev/null
cat >vendor/config.toml <<'END'
[source.crates-io]
replace-with = "vendored-sources"

[source.vendored-sources]
directory = "vendor"

[net]
offline = true
END
packaging/notices.sh notices vendor

cd "$work"
mv "$name/vendor" vendor
pack "$name" "$name"
pack "$name-vendor" vendor
(cd "$out" && sha256sum "$name.tar.xz" "$name-vendor.tar.xz" | tee "$name.sha256")
