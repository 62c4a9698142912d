#!/bin/sh
# Says which of the patches here fits an MNN checkout, or applies it. Builds nothing.
#
#   check.sh [--apply [--bench]] MNN_CHECKOUT
#
# --apply: applies the patch that fits, and refuses where none does. --bench: mnn-<version>-bench.patch, too, which is optional
# and has files of its own.
# Exit status: 0 a patch fits or is applied, 1 none fits, 2 wrong use.
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

version=$(awk '$1 == "#define" && $2 ~ /^MNN_VERSION_(MAJOR|MINOR|PATCH)$/ { printf "%s%s", dot, $3; dot = "." }' \
    "$checkout/include/MNN/MNNDefine.h")
# Commits after a release have its number, too.
if [ -n "$commit" ] && [ "$(git -C "$checkout" tag --points-at HEAD | grep -cxF "$version")" -eq 0 ]; then
    version="master (commit $commit)"
fi
echo "MNN ${version:-of unknown version} in $checkout"
reports=""
for patch in "$here"/*.patch; do
    case $patch in *-bench.patch) continue ;; esac
    if judge "$patch" " Configure with -DMNN_KV=$(dirname "$(dirname "$here")")" "--apply" "$apply"; then
        optional=${patch%.patch}-bench.patch
        if [ -f "$optional" ]; then
            echo "Optional, columns and perplexity in llm_bench:"
            if ! judge "$optional" "" "--apply --bench" "$bench"; then
                printf '%s does not fit:\n%s' "$name" "$report"
                [ -z "$bench" ] || exit 1
            fi
        fi
        exit 0
    fi
    reports="$reports$name does not fit:
$report"
    if [ "$applied" -gt 0 ]; then
        reports="$reports    $applied of $total files have it already: undo that (git checkout, or git apply -R)
"
    elif [ "$fits" -gt 0 ]; then
        reports="$reports    $fits of $total files are the right version
"
    fi
done
printf %s "$reports"
echo "Check out the tag 3.6.1, or commit 4d40bdbd7 of master. For another version insert the lines by hand: README.md,"
echo "\"Other versions of MNN\", lists where each belongs."
exit 1
