#!/bin/sh
# Says whether mnn.patch fits an MNN checkout, or applies it. Builds nothing.
#
#   check.sh [--apply [--bench]] MNN_CHECKOUT
#
# --apply: applies the patch where it fits. --bench: mnn-bench.patch, too, which is optional and has a file of its own.
# Exit status: 0 the patch fits or is applied, 1 it does not fit, 2 wrong use.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
apply="" bench=""
if [ "${1:-}" = --apply ]; then
    apply=yes
    shift
    if [ "${1:-}" = --bench ]; then
        bench=yes
        shift
    fi
fi
if [ $# -ne 1 ] || [ ! -f "$1/include/MNN/MNNDefine.h" ]; then
    echo "usage: check.sh [--apply [--bench]] MNN_CHECKOUT (a folder with include/MNN/MNNDefine.h)" >&2
    exit 2
fi
checkout=$(cd "$1" && pwd)
# shellcheck source=../common/patches.sh
. "$here/../common/patches.sh"

# The number of the last release, which commits after it have, too.
version=$(awk '$1 == "#define" && $2 ~ /^MNN_VERSION_(MAJOR|MINOR|PATCH)$/ { printf "%s%s", dot, $3; dot = "." }' \
    "$checkout/include/MNN/MNNDefine.h")
echo "MNN ${version:-of unknown version} or later in $checkout"
if ! judge "$here/mnn.patch" " Configure with -DMNN_KV=$(dirname "$(dirname "$here")")" "--apply" "$apply"; then
    printf 'mnn.patch does not fit:\n%s\n' "$report"
    echo "It is for 3.6.1, for commit 4d40bdbd7 of master, and for what has the same lines in its places. For another version insert"
    echo "the lines by hand: README.md, \"Other versions of MNN\", lists where each belongs."
    exit 1
fi
echo "Optional, columns and perplexity in llm_bench:"
if ! judge "$here/mnn-bench.patch" "" "--apply --bench" "$bench"; then
    printf 'mnn-bench.patch does not fit:\n%s\n' "$report"
    [ -z "$bench" ] || exit 1
fi
