# What the scripts that write tarballs share; read by them with `here`, the folder of the sources, and `folder`, that of the
# tarballs.

mkdir -p "$folder"
out=$(cd "$folder" && pwd)
umask 022
export LC_ALL=C TZ=UTC0
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# version_of SOURCES: that of Cargo.toml.
version_of() { sed -n 's/^version = "\(.*\)"$/\1/p' "$1/Cargo.toml" | head -n 1; }

# pack NAME MEMBERS...: NAME.tar.xz, of members of `work`. Its bytes depend on theirs, and on the versions of tar and xz.
pack() {
    tarball=$out/$1.tar.xz
    shift
    tar -C "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=go=u,go-w \
        --format=gnu -cf - "$@" | xz -T1 -6 >"$tarball.part"
    mv "$tarball.part" "$tarball"
}
