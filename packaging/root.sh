#!/bin/sh
# Tries the packages in empty Debian roots, without network: what a package needs must be in the package or in Debian.
#
#   root.sh DIST WORK [STEPS]   DIST has the tarballs of dist.sh; WORK receives the roots, and the .debs in WORK/debs
#
#   source   in a root with compilers and Debian's rustc-web, as Debian's rustc is older than the project needs: builds
#            and installs the sources, uses them (use.sh), uninstalls
#   debs     in the same root: builds the .debs (deb.sh)
#   binary   in a root with compilers, without Rust: installs the .debs, uses them, purges them
#   autopkgtest
#            in another such root: Debian's test of the package, with these .debs; it needs autopkgtest and the network
#
# Without STEPS all of them. After a removal the root must have the files that it had before. Requires root,
# mmdebstrap and a Debian machine, whose mirrors and release are taken. Roots in WORK are used again; remove WORK for new ones.
set -eu
[ $# -ge 2 ] || { echo "usage: $0 DIST WORK [source] [debs] [binary] [autopkgtest]" >&2; exit 2; }
mkdir -p "$2/debs"
dist=$(cd "$1" && pwd)
work=$(cd "$2" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
shift 2
steps=${*:-source debs binary autopkgtest}
export LC_ALL=C

say() { printf 'root: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }
[ "$(id -u)" -eq 0 ] || fail "root is required, for mmdebstrap and chroot"
for tool in mmdebstrap unshare chroot apt-get; do
    command -v "$tool" >/dev/null || fail "$tool is required; Debian has it as a package"
done

# make_root NAME PACKAGES: the folder WORK/NAME as Debian installs it.
make_root() {
    [ ! -e "$work/$1/.complete" ] || return 0
    rm -rf "${work:?}/$1"
    # shellcheck disable=SC1091
    release=$(. /etc/os-release && echo "$VERSION_CODENAME")
    # The names are apt's.
    # shellcheck disable=SC2016
    apt-get indextargets --format '$(ORIGIN) deb $(SITE) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        sed -n 's/^Debian //p' | sort -u >"$work/sources.list"
    say "installing Debian $release as $1"
    mmdebstrap --quiet --mode=root --variant=minbase --include="$2" "$release" "$work/$1" "$work/sources.list"
    touch "$work/$1/.complete"
}

# inside NAME COMMAND...: in the root, without network and with processes of its own. Only the profile of cargo is passed
# on from the environment: CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=1 is a quick run of the scripts.
inside() {
    root=$work/$1
    shift
    profile=$(env | grep -E '^CARGO_PROFILE_[A-Z_]+=[a-z0-9]+$' || true)
    # For the inner shell.
    # shellcheck disable=SC2016
    unshare --mount --net --pid --fork --kill-child sh -c '
        root=$1 && profile=$2 && shift 2
        mount -t proc proc "$root/proc"
        mount -t tmpfs tmpfs "$root/dev/shm" 2>/dev/null || true
        exec chroot "$root" env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
            DEBIAN_FRONTEND=noninteractive $profile "$@"' sh "$root" "$profile" "$@"
}

# The files of a root with their checksums, but for logs, caches and the records of dpkg.
files_of() {
    (cd "$work/$1" && find . -xdev \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./tmp -o -path ./try \
        -o -path ./root -o -path ./var/log -o -path ./var/cache -o -path ./var/lib/dpkg -o -name ld.so.cache \) -prune \
        -o -type f -exec cksum {} + -o -type l -printf '%p -> %l\n' | sort)
}
unchanged() {
    files_of "$1" >"$work/$1.after"
    diff "$work/$1.before" "$work/$1.after" >&2 || fail "$1: files differ after $2"
    say "$1: no file is left or changed after $2"
    touch "$work/$1/.complete"
}

# The sources in /try of a root.
unpack() {
    rm -rf "$work/$1/try"
    mkdir "$work/$1/try"
    cp "$dist"/mnn-kv-*.tar.xz "$here/use.sh" "$here/deb.sh" "$work/$1/try"
    (
        cd "$work/$1/try"
        mkdir sources
        for tarball in mnn-kv-*.tar.xz; do
            case $tarball in *-vendor.tar.xz) ;; *) tar -C sources --strip-components=1 -xf "$tarball" ;; esac
        done
    )
    # A step that fails leaves what it has installed: the next run makes the root anew.
    rm "$work/$1/.complete"
    files_of "$1" >"$work/$1.before"
}

use="gcc,g++,libc6-dev,cmake,make,pkg-config"
for step in $steps; do
    case $step in
    source)
        make_root source "$use,build-essential,cargo-web,rustc-web,debhelper,xz-utils"
        unpack source
        say "source: building and installing"
        inside source sh -euc 'cd /try && tar -C sources -xf mnn-kv-*-vendor.tar.xz &&
            cmake -S sources -B build -DMNNKV_TOOLS=ON -DCMAKE_INSTALL_PREFIX=/usr/local --log-level=NOTICE &&
            cmake --build build && cmake --install build >/dev/null && ldconfig'
        inside source sh /try/use.sh /try/sources
        inside source cmake --build /try/build --target uninstall
        inside source ldconfig
        unchanged source "the target uninstall"
        ;;
    debs)
        make_root source "$use,build-essential,cargo-web,rustc-web,debhelper,xz-utils"
        unpack source
        say "source: building the .debs"
        inside source sh -c 'sh /try/deb.sh /try /try/debs >/try/deb.log 2>&1 || { tail -n 40 /try/deb.log; exit 1; }'
        rm -f "$work"/debs/*
        cp "$work"/source/try/debs/* "$work/debs"
        touch "$work/source/.complete"
        ;;
    binary)
        make_root binary "$use,man-db"
        unpack binary
        mkdir "$work/binary/try/debs"
        cp "$work"/debs/*.deb "$work/binary/try/debs"
        say "binary: installing the .debs"
        inside binary sh -c 'dpkg -i /try/debs/*.deb >/dev/null'
        inside binary sh /try/use.sh /try/sources
        # shellcheck disable=SC2016 # for the inner shell
        inside binary sh -c 'for deb in /try/debs/*.deb; do dpkg-deb --field "$deb" Package; done |
            xargs dpkg --purge >/dev/null'
        unchanged binary "dpkg --purge"
        ;;
    autopkgtest)
        command -v autopkgtest >/dev/null || { say "autopkgtest: SKIPPED, since it is missing"; continue; }
        make_root autopkgtest "$use,man-db,dpkg-dev"
        unpack autopkgtest
        (
            cd "$work/autopkgtest/try/sources"
            cp -R packaging/debian debian
            # That of the .debs, which deb.sh has written.
            dpkg-deb --fsys-tarfile "$work"/debs/libmnnkv1_*.deb |
                tar -xO ./usr/share/doc/libmnnkv1/changelog.Debian.gz | gzip -d >debian/changelog
        )
        say "autopkgtest: with the .debs"
        autopkgtest --quiet --apt-upgrade --no-built-binaries "$work"/debs/*.deb "$work/autopkgtest/try/sources/" -- \
            chroot "$work/autopkgtest"
        ;;
    *) fail "there is no step $step" ;;
    esac
done
say "done"
