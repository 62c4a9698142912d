# Which patches fit a checkout, for the check.sh of an engine, which sets `checkout` and reads this file. Sets `commit`, the short
# hash of the checkout's commit; "" where it is no repository of its own.
#
# The patches have no context lines: git would apply them at the same line numbers of any other version. So the git hash of each
# file is compared with the patch's "index" lines.

command -v git >/dev/null || { echo "check.sh: git is needed to compare files" >&2; exit 2; }

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

# Inside a larger repository git resolves a patch's paths against that one's top, and skips paths outside the folder.
top=$checkout inside="" commit=""
if prefix=$(git -C "$checkout" rev-parse --show-prefix 2>/dev/null); then
    if [ -n "$prefix" ]; then
        top=$(git -C "$checkout" rev-parse --show-toplevel) inside=--directory=$prefix
    else
        commit=$(git -C "$checkout" rev-parse --short=9 HEAD 2>/dev/null) || commit=""
    fi
fi

# judge PATCH NEXT OPTIONS APPLY: prints the state of the patch, NEXT behind "is applied". OPTIONS of check.sh apply it; a non-empty
# APPLY does so now. Fails when the patch does not fit.
judge() {
    name=$(basename "$1")
    compare "$1"
    if [ "$fits" -eq "$total" ] && [ -n "$4" ]; then
        git -C "$top" apply --unidiff-zero ${inside:+"$inside"} "$1"
        compare "$1"
    fi
    if [ "$applied" -eq "$total" ]; then
        echo "$name is applied.$2"
    elif [ "$fits" -eq "$total" ]; then
        echo "$name fits. Apply it with"
        echo "    $here/check.sh $3 $checkout"
    else
        return 1
    fi
}
