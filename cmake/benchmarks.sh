#!/bin/sh
# Runs the benchmarks and writes their tables into the documents; `make benchmarks` builds the programs before.
#
#   benchmarks.sh [SECTION...]   none: all
#
# A program prints a table of Markdown under the heading "## NAME: CONDITIONS". In a document it is between the lines
# "<!-- begin NAME -->" and "<!-- end NAME -->", behind a line that tells command, conditions, date and machine.
# A section whose program fails keeps its tables. MODEL and TOKENS are of the section quality, as for `make quality`.
set -eu
cd "$(dirname "$0")/.."
documents="README.md docs/benchmarks.md docs/quality.md integrations/llama.cpp/README.md"
only=$*
failed=
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tables"

cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1)
machine="${cpu:-$(uname -m)}, $(getconf _NPROCESSORS_ONLN) cores; $(rustc --version | cut -d ' ' -f 1,2)"
machine="$machine, $("${CXX:-c++}" --version | head -n 1)"

# section NAME COMMAND...: runs the command, and keeps its tables.
section() {
    name=$1
    shift
    case " ${only:-$name} " in *" $name "*) ;; *) return 0 ;; esac
    sections="${sections:-} $name"
    case $1 in cargo) "$@" --no-run || { failed="$failed $name"; return 0; } ;; esac
    start=$(date +%s)
    if "$@" >"$work/out"; then
        head="$(date +%Y-%m-%d); $machine"
        awk -v command="$*" -v head="$head" -v folder="$work/tables/" '
            /^## / { name = $2; sub(/:$/, "", name); sub(/^## [^:]*: /, ""); file = folder name
                     printf "`%s` (%s); %s\n\n", command, $0, head > file; next }
            /^\|/ && file { print > file; next }
            /./ { file = "" }' "$work/out"
    else
        failed="$failed $name"
    fi
    cat "$work/out"
    echo "benchmarks: $name took $(($(date +%s) - start)) s" >&2
}

# The tables of this run into the document $1.
fill() {
    awk -v folder="$work/tables/" '
        /^<!-- end / { inside = 0 }
        !inside { print }
        /^<!-- begin / { file = folder $3; while ((getline line < file) > 0) { print line; inside = 1 } }' "$1" \
        >"$work/document"
    cmp -s "$work/document" "$1" || cat "$work/document" >"$1"
}

section layout cargo bench --locked --bench layout
section gear cargo bench --locked --bench gear
section attend cargo bench --locked --bench attend
section budget cargo bench --locked --bench budget
section memory build/bin/mnnkv_bench_session memory
section waits build/bin/mnnkv_bench_session waits
section compressor cargo bench --locked --package mnn-kv-model --bench compressor
section demo build/bin/mnnkv_demo
[ ! -e mnnkv_demo.svg ] || mv mnnkv_demo.svg docs/demo.svg
section quality make quality
[ -n "${MODEL:-}" ] || section quality make quality MODEL=gemma TEXTS=8
# Engines that someone has built; see cmake/engines.sh.
[ -z "${MNN:-}" ] || section mnn cmake/engines.sh mnn
[ -z "${LLAMA:-}" ] || section llama cmake/engines.sh llama

# shellcheck disable=SC2045 # names without spaces
for table in $(ls "$work/tables"); do
    # shellcheck disable=SC2086 # a list of paths
    grep -qx -e "<!-- begin $table -->" $documents || failed="$failed $table (no document has a place for it)"
done
for document in $documents; do fill "$document"; done
for name in $only; do
    case " ${sections:-} " in *" $name "*) ;; *) failed="$failed $name" ;; esac
done
[ -z "$failed" ] || { echo "benchmarks: no new tables of:$failed" >&2; exit 1; }
