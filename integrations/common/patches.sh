# Whether a patch fits a checkout, for the check.sh of an engine, which sets `here` and `checkout` and reads this file.
# patches.awk has the form of a patch, and finds the places.

# places PATCH [OPTION...]: prints what patches.awk finds.
places() {
    patch=$1
    shift
    LC_ALL=C awk -v root="$checkout" "$@" -f "$here/../common/patches.awk" "$patch"
}

# insert PATCH: all files are written beside the old ones before the first is replaced.
insert() {
    if ! files=$(places "$1" -v write=1); then
        sed -n 's|^+++ b/||p' "$1" | while read -r file; do rm -f "$checkout/$file.patched"; done
        echo "$name is not applied: $files" >&2
        exit 1
    fi
    echo "$files" | sed 1d | while read -r file; do mv "$file.patched" "$file" || exit 1; done || exit 1
}

# judge PATCH NEXT OPTIONS APPLY: prints the state of the patch, NEXT behind "is applied". OPTIONS of check.sh apply it; a non-empty
# APPLY does so now. Fails, with a text in `report`, when the patch does not fit.
judge() {
    name=$(basename "$1")
    report=$(places "$1") || return 1
    if [ "$report" = fits ] && [ -n "$4" ]; then
        insert "$1"
        report=$(places "$1")
    fi
    if [ "$report" = applied ]; then
        echo "$name is applied.$2"
    else
        echo "$name fits. Apply it with"
        echo "    $here/check.sh $3 $checkout"
    fi
}
