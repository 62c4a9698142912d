#!/bin/sh
# Says which of the patches here fits an MNN checkout, and how to apply it. Changes and builds nothing.
#
#   check.sh MNN_CHECKOUT
#
# The patches have no context lines, so git would put them at the same line numbers of any other version as well. What a
# patch fits is therefore told by the git hash of each file that it changes, which its "index" lines hold.
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

# compare PATCH: sets fits, applied (numbers of files) and report (what differs).
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
# Inside a larger repository git takes a patch's paths from that one's top, and skips what it does not find there.
top=$checkout inside=""
if prefix=$(git -C "$checkout" rev-parse --show-prefix 2>/dev/null) && [ -n "$prefix" ]; then
    top=$(git -C "$checkout" rev-parse --show-toplevel) inside=" --directory=$prefix"
fi
reports=""
for patch in "$here"/*.patch; do
    name=$(basename "$patch")
    compare "$patch"
    if [ "$applied" -eq "$total" ]; then
        echo "$name is applied. Configure with -DMNN_KV=$(dirname "$(dirname "$here")")"
        exit 0
    elif [ "$fits" -eq "$total" ]; then
        echo "$name fits. Apply it with"
        echo "    git -C $top apply --unidiff-zero$inside $patch"
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
echo "\"Other versions of MNN\", says where each belongs."
exit 1
