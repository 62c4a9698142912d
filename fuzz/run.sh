#!/bin/sh
# Runs the targets of fuzz/, two at a time, and writes a summary: `make fuzz`.
#
#   fuzz/run.sh SECONDS [TARGET...]    runs all targets, or these, for so long each; without those that summary.txt has as
#                                      passed by the same source, compiler and SECONDS, so that an interrupted run goes on
#   fuzz/run.sh minimise [TARGET...]   replaces fuzz/corpus by a small part of what the runs have found, with its coverage
#
# Results are in target/fuzz: inputs/TARGET, findings/TARGET, TARGET.log and summary.txt. The compiler is the project's, told
# to take the flags of sanitizers (RUSTC_BOOTSTRAP); FUZZ_TOOLCHAIN=nightly takes another one.
set -eu

MOST_FILES=48
MOST_BYTES=8192

root=$(cd "$(dirname "$0")/.." && pwd)
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}"
out="$CARGO_TARGET_DIR/fuzz"
host=$(rustc -vV | sed -n 's/^host: //p')
bin="$CARGO_TARGET_DIR/$host/release"
export RUSTC_BOOTSTRAP=1
[ -z "${FUZZ_TOOLCHAIN:-}" ] || export RUSTUP_TOOLCHAIN="$FUZZ_TOOLCHAIN"

what=${1:?SECONDS or minimise expected}
shift
[ $# -gt 0 ] || set -- $(cd "$root/fuzz/fuzz_targets" && ls | sed 's/\.rs$//')
for target; do
    [ -f "$root/fuzz/fuzz_targets/$target.rs" ] || { echo "fuzz: no target $target in fuzz/fuzz_targets" >&2; exit 2; }
done

PATH="$CARGO_TARGET_DIR/tools/bin:$PATH"
command -v cargo-fuzz > /dev/null || cargo install --locked --root "$CARGO_TARGET_DIR/tools" cargo-fuzz
(cd "$root" && cargo fuzz build)

run() {
    target=$1
    mkdir -p "$out/inputs/$target" "$out/findings/$target"
    # Files of readers that open paths are small, and many.
    [ ! -d /dev/shm ] || export TMPDIR=/dev/shm
    "$bin/$target" "$out/inputs/$target" "$root/fuzz/corpus/$target" -max_total_time="$what" -max_len=$MOST_BYTES \
        -timeout=30 -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$out/findings/$target/" \
        > "$out/$target.log" 2>&1 && result=passed || result=FAILED
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$out/$target.log")
    edges=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$out/$target.log" | tail -n 1)
    printf '%-14s %-7s %10s inputs, %6s edges, %4s findings, %s\n' "$target" "$result" "${runs:-0}" "${edges:-0}" \
        "$(ls "$out/findings/$target" | wc -l)" "$(date -u +%Y-%m-%d)" | tee -a "$out/summary.txt"
}

minimise() {
    target=$1
    few="$out/minimised/$target"
    rm -rf "$few"
    mkdir -p "$few" "$out/inputs/$target" "$root/fuzz/corpus/$target"
    "$bin/$target" -set_cover_merge=1 -use_counters=0 -max_len=$MOST_BYTES "$few" "$out/inputs/$target" \
        "$root/fuzz/corpus/$target" > "$out/$target.log" 2>&1
    # Where these are too many: as many of all sizes.
    count=$(ls "$few" | wc -l)
    rm -rf "$root/fuzz/corpus/$target"
    mkdir "$root/fuzz/corpus/$target"
    ls -S "$few" | awk -v n="$count" -v most=$MOST_FILES 'int(NR * most / n) > int((NR - 1) * most / n) || n <= most' |
        while read -r file; do cp "$few/$file" "$root/fuzz/corpus/$target/$file"; done
    echo "$target: $count files, $(ls "$root/fuzz/corpus/$target" | wc -l) in the corpus"
}

mkdir -p "$out"
if [ "$what" = minimise ]; then
    for target; do minimise "$target"; done
    exit
fi
# The last commit that changed what targets are built from, which modules of tests are not.
commit=$(git -C "$root" log -1 --format=%h -- src model llama replay cli/src tests/common fuzz Cargo.toml \
    Cargo.lock ':!fuzz/corpus' ':!fuzz/run.sh' ':!*.md' ':!*/tests/*' ':!*/tests.rs' 2> /dev/null || echo unknown)
head="commit $commit, $(rustc -V), $what s for each target, on $(getconf _NPROCESSORS_ONLN) cores"
if [ "$(head -n 1 "$out/summary.txt" 2> /dev/null)" = "$head" ]; then
    for target; do
        shift
        grep -q "^$target  *passed" "$out/summary.txt" || set -- "$@" "$target"
    done
    # A target that failed before has its line again.
    sed -i '/ FAILED /d' "$out/summary.txt"
else
    echo "$head" > "$out/summary.txt"
fi
while [ $# -gt 0 ]; do
    run "$1" &
    first=$!
    shift
    if [ $# -gt 0 ]; then
        run "$1" &
        shift
        wait $!
    fi
    wait "$first"
done
echo "fuzz: $out/summary.txt"
! grep -q FAILED "$out/summary.txt"
