#!/bin/sh
# Prints the size of each stripped shared library, by room.
#
# A room is a module of a crate, by the names of symbols. Inlined code counts at its caller; "export" is the body of
# exported functions. Uses cargo's target folder and the tools NM and STRIP (default: nm, strip).
set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The flags of the C library, beside those of the configuration.
CFLAGS="${CFLAGS:-} $(sed -n 's/^MNNKV_LIBRARY_CFLAGS = "\(.*\)"$/\1/p' .cargo/config.toml)"
export CFLAGS

rooms() {
    "${NM:-nm}" -C -S -t d "$1" | awk '
        $3 ~ /^[tTrRdDwW]$/ {
            name = $0
            sub(/^[0-9]+ [0-9]+ . /, "", name)
            if (name ~ /backtrace|gimli|addr2line|rustc_demangle|miniz_oxide/) room = "std: backtraces of panics"
            else if (match(name, /mnnkv(_model)?::[a-z0-9_]+/)) room = substr(name, RSTART, RLENGTH)
            else if (name ~ /^mnnkv_/) { split(name, part, "_"); room = "export mnnkv_" part[2] "_*" }
            else if (name ~ /^_?(ZSTD|HUF|FSE|HIST|XXH|ERR|ZDICT)_/) room = "zstd"
            else if (match(name, /(core|alloc|std)::[a-z0-9_]+/)) room = substr(name, RSTART, RLENGTH)
            else room = "other"
            bytes[room] += $2
        }
        END { for (room in bytes) if (bytes[room] >= 4096) printf "%9d  %s\n", bytes[room], room }' | sort -rn
}

# size LIBRARY PACKAGE
size() {
    library=$target/release/lib$1.so
    cargo rustc --quiet --locked --release --lib --features capi --crate-type cdylib --crate-type staticlib \
        --package "$2"
    "${STRIP:-strip}" -o "$work/stripped.so" "$library"
    echo "$(wc -c < "$work/stripped.so") bytes ${library##*/}"
    rooms "$library"
}
size mnnkv mnn-kv
size mnnkv_model mnn-kv-model
