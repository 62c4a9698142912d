#!/bin/sh
# Prints the size of each stripped shared library, by module.
#
# A module is a module of a crate, by the names of symbols. Inlined code counts at its caller; "export" is the body of
# exported functions. Uses cargo's target folder and the tools NM and STRIP (default: nm, strip).
set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The flags of the C library, beside those of the configuration.
CFLAGS="${CFLAGS:-} $(sed -n 's/^MNNKV_LIBRARY_CFLAGS = "\(.*\)"$/\1/p' .cargo/config.toml)"
export CFLAGS

modules() {
    "${NM:-nm}" -C -S -t d "$1" | awk '
        $3 ~ /^[tTrRdDwW]$/ {
            name = $0
            sub(/^[0-9]+ [0-9]+ . /, "", name)
            if (name ~ /backtrace|gimli|addr2line|rustc_demangle|miniz_oxide/) module = "std: backtraces of panics"
            else if (match(name, /mnnkv(_model|_llama)?::[a-z0-9_]+/)) module = substr(name, RSTART, RLENGTH)
            else if (name ~ /^mnnkv_/) { split(name, part, "_"); module = "export mnnkv_" part[2] "_*" }
            else if (name ~ /^_?(ZSTD|HUF|FSE|HIST|XXH|ERR|ZDICT)_/) module = "zstd"
            else if (match(name, /(core|alloc|std)::[a-z0-9_]+/)) module = substr(name, RSTART, RLENGTH)
            else module = "other"
            bytes[module] += $2
        }
        END { for (module in bytes) if (bytes[module] >= 4096) printf "%9d  %s\n", bytes[module], module }' | sort -rn
}

# size LIBRARY PACKAGE
size() {
    library=$target/release/lib$1.so
    cargo rustc --quiet --locked --release --lib --features capi --crate-type cdylib --crate-type staticlib \
        --package "$2"
    "${STRIP:-strip}" -o "$work/stripped.so" "$library"
    echo "$(wc -c < "$work/stripped.so") bytes ${library##*/}"
    modules "$library"
}
size mnnkv mnn-kv
size mnnkv_model mnn-kv-model
size mnnkv_llama mnn-kv-llama
