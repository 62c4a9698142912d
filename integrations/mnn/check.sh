#!/bin/sh
# Reports which of the patches here fits an MNN checkout, and the command that applies it. Changes and builds nothing.
#
#   check.sh MNN_CHECKOUT
#
# The patches have no context lines: git would apply them at the same line numbers of any other version. The script
# therefore compares the git hash of each file with the patch's "index" lines. mnn-<version>-bench.patch is optional; it
# has files of its own, so it may be applied before or after mnn-<version>.patch.
# Exit status: 0 a patch fits or is applied already, 1 none fits, 2 wrong use.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
if [ $# -ne 1 ] || [ ! -f "$1/include/MNN/MNNDefine.h" ]; then
    echo "usage: check.sh MNN_CHECKOUT (a folder with include/MNN/MNNDefine.h)" >&2
    exit 2
fi
command -v git >/dev/null || { echo "check.sh: git is needed to compare files" >&2; exit 2; }
checkout=$(cd "$1" && pwd)

# One line per file of a patch: path, hash before, hash after.
files_of() {
    awk '/^diff --git / { path = substr($4, 3) } /^index / { split($2, id, /\.\./); print path, id[1], id[2] }' "$1"
}

# compare PATCH: sets total, fits, applied (numbers of files) and report (differences).
compare() {
    fits=0 applied=0 total=0 report=""
    list=$(files_of "$1")
    while read -r path before after; do
        total=$((total + 1))
        if [ ! -f "$checkout/$path" ]; then
            report="$report    $path is missing
"
            continue
        fi
        now=$(git hash-object --no-filters "$checkout/$path")
        case $now in
        "$before") fits=$((fits + 1)) ;;
        "$after") applied=$((applied + 1)) ;;
        *) report="$report    $path is another version
" ;;
        esac
    done <<EOF
$list
EOF
}

version=$(awk '$1 == "#define" && $2 ~ /^MNN_VERSION_(MAJOR|MINOR|PATCH)$/ { printf "%s%s", dot, $3; dot = "." }' \
    "$checkout/include/MNN/MNNDefine.h")
echo "MNN ${version:-of unknown version} in $checkout"
# Inside a larger repository git resolves a patch's paths against that one's top, and skips paths outside the folder.
top=$checkout inside=""
if prefix=$(git -C "$checkout" rev-parse --show-prefix 2>/dev/null) && [ -n "$prefix" ]; then
    top=$(git -C "$checkout" rev-parse --show-toplevel) inside=" --directory=$prefix"
fi

# judge PATCH NEXT: prints the state of the patch, NEXT behind "is applied". Fails when the patch does not fit.
judge() {
    name=$(basename "$1")
    compare "$1"
    if [ "$applied" -eq "$total" ]; then
        echo "$name is applied.$2"
    elif [ "$fits" -eq "$total" ]; then
        echo "$name fits. Apply it with"
        echo "    git -C $top apply --unidiff-zero$inside $1"
    else
        return 1
    fi
}

reports=""
for patch in "$here"/*.patch; do
    case $patch in *-bench.patch) continue ;; esac
    if judge "$patch" " Configure with -DMNN_KV=$(dirname "$(dirname "$here")")"; then
        bench=${patch%.patch}-bench.patch
        if [ -f "$bench" ]; then
            echo "Optional, columns and perplexity in llm_bench:"
            judge "$bench" "" || printf '%s does not fit:\n%s' "$name" "$report"
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
