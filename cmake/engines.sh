#!/bin/sh
# Speeds of real engines with and without mnn-kv, as tables of Markdown: medians of ROUNDS (5) rounds, in each of which every
# row runs once. It builds nothing.
#
#   engines.sh mnn      MNN: a build folder of the patched MNN with llm_bench; CONFIG: the config.json of a model
#   engines.sh llama    LLAMA: a build folder of llama.cpp with bin/llama-bench; GGUF: a model; BACKEND: libggml-mnnkv.so
#
# CONTEXTS ("1024 4096 8000"): tokens of the prompt. THREADS: 2. MNN loads the library of MNNKV_LIBRARY, else build/lib; both its
# patches are applied. Rows of a text are of this project's documents, decoded token by token, since llm_bench's own prompt is one token
# that repeats, of which a file of blocks is of no use. A row fails whose engine does not run as the row says.
set -eu
cd "$(dirname "$0")/.."
contexts=${CONTEXTS:-1024 4096 8000} longest=0 rounds=${ROUNDS:-5} threads=${THREADS:-2}
work=$(mktemp -d)
: "${MNNKV_LIBRARY:=$PWD/build/lib/libmnnkv.so}"
export MNNKV_LIBRARY

for tokens in $contexts; do [ "$tokens" -le "$longest" ] || longest=$tokens; done

if [ "${1:-}" = mnn ] && [ -x "${MNN:-}/llm_bench" ] && [ -f "${CONFIG:-}" ]; then
    # Configs are beside the model's, whose paths are relative.
    model=$(cd "$(dirname "$CONFIG")" && pwd)
    variant=$model/.mnnkv-engines.json
    trap 'rm -rf "$work" "$variant"' EXIT
    if grep -q avx512f /proc/cpuinfo && ! grep -q '^MNN_AVX512:BOOL=\(ON\|TRUE\|1\)$' "$MNN/CMakeCache.txt"; then
        echo "engines: this CPU has AVX512, and MNN is built without: configure it with -DMNN_AVX512=ON" >&2
        exit 2
    fi
    cat docs/*.md >"$work/text.txt"
elif [ "${1:-}" = llama ] && [ -x "${LLAMA:-}/bin/llama-bench" ] && [ -f "${GGUF:-}" ] && [ -f "${BACKEND:-}" ]; then
    trap 'rm -rf "$work"' EXIT
else
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi

# The median of the numbers in a file.
median() { sort -n "$1" | awk '{ x[NR] = $1 } END { print NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2 }'; }

# The heads of the columns.
heads() { for tokens in $contexts; do printf ' %s |' "$tokens"; done; }
rules() { for _ in $contexts; do printf -- '--:|'; done; }

# fails WHY: with the output of the program.
fails() {
    cat "$work/out" >&2
    echo "engines: $1" >&2
    return 1
}

# run ROW PROGRAM...: appends the most resident MB of the run with the longest prompt.
run() {
    row=$1 peak=0
    shift
    "$@" >"$work/out" 2>&1 &
    while now=$(awk '/^VmHWM:/ { print $2 }' "/proc/$!/status" 2>/dev/null) && [ -n "$now" ]; do
        peak=$now
        sleep 0.2
    done
    wait $! || fails "$row failed"
    [ "$tokens" -ne "$longest" ] || awk -v kb="$peak" 'BEGIN { print kb / 1000 }' >>"$work/$row.peak"
    case $row in
    float* | int8* | chunk*) ! grep -q '^mnn-kv' "$work/out" || fails "mnn-kv is on in $row" ;;
    *) grep -q '^mnn-kv: ' "$work/out" && ! grep -q '^mnn-kv: off' "$work/out" || fails "mnn-kv is off in $row" ;;
    esac
}

# mnn ROW KEYS OPTION...: llm_bench with options, whose config has these members, too. Appends "prompt" and "decode" tokens/s of
# each context.
mnn() {
    name=$1
    awk -v keys="$2" '!done && sub(/\{/, "{" keys) { done = 1 } { print }' "$CONFIG" >"$variant"
    shift 2
    for tokens in $contexts; do
        run "$name" "$MNN/llm_bench" -m "$variant" -kv true -p "$tokens" -n 128 -t "$threads" -rep 1 "$@"
        speeds=$(sed -n 's/.*| \([0-9.]*\) ± [0-9.]*<br>\([0-9.]*\) ±.*/\1 \2/p' "$work/out" | tail -n 1)
        [ -n "$speeds" ] || fails "llm_bench has printed no speeds"
        echo "${speeds% *}" >>"$work/$name.$tokens.prompt"
        echo "${speeds#* }" >>"$work/$name.$tokens.decode"
    done
}

# text ROW KEYS: likewise "decode" after prompts of a text.
text() {
    for tokens in $contexts; do
        run "$1" "$MNN/llm_bench" perplexity -m "$CONFIG" "$work/text.txt" -p "$tokens" -n $((tokens + 129)) -o "$work/result" \
            -s "{$2 \"thread_num\": $threads}"
        sed -n 's/.*"decode_seconds": \([0-9.e-]*\).*/\1/p' "$work/result" | awk '{ print 128 / $1 }' >>"$work/$1.$tokens.decode"
    done
}

# is_smaller ROW THAN: fails where its memory says that its caches are not those of its name.
is_smaller() {
    awk -v a="$(median "$work/$1.peak")" -v b="$(median "$work/$2.peak")" 'BEGIN { exit !(a < 0.9 * b) }' ||
        fails "$1 takes as much memory as $2: it does not run in its mode"
}

# mnn_table HEADING
mnn_table() {
    printf '## %s\n\n| run |%s MB |\n|---|%s--:|\n' "$1" "$(heads)" "$(rules)"
}

# mnn_row TEXT ROW
mnn_row() {
    printf '| %s |' "$1"
    for tokens in $contexts; do
        # Texts have no speed of prompts.
        [ ! -e "$work/$2.$tokens.prompt" ] || printf ' %.0f /' "$(median "$work/$2.$tokens.prompt")"
        printf ' %.0f |' "$(median "$work/$2.$tokens.decode")"
    done
    printf ' %.0f |\n' "$(median "$work/$2.peak")"
}

# llama ROW K V: without and with the backend, as a user loads it. Appends decode tokens/s of each context.
llama() {
    for tokens in $contexts; do
        for with in without with; do
            if [ $with = with ]; then
                export GGML_BACKEND_PATH="$BACKEND"
                set -- "$1" "$2" "$3" -dev MNNKV
                lines=1
            else
                unset GGML_BACKEND_PATH
                set -- "$1" "$2" "$3" -fa 1
                lines=0
            fi
            "$LLAMA/bin/llama-bench" -m "$GGUF" -p 0 -n 48 -d "$tokens" -t "$threads" -r 1 -ctk "$2" -ctv "$3" "$4" "$5" \
                -o jsonl >"$work/out" 2>"$work/errors" || { cat "$work/errors" >&2; return 1; }
            [ "$(grep -c '^ggml-mnnkv: attends' "$work/errors")" -eq $lines ] || fails "llama.cpp does not run $with the backend"
            sed -n 's/.*"avg_ts": \([0-9.]*\).*/\1/p' "$work/out" >>"$work/$1.$tokens.$with"
        done
    done
}

# llama_row TEXT ROW
llama_row() {
    printf '| %s |' "$1"
    for tokens in $contexts; do
        without=$(median "$work/$2.$tokens.without") with=$(median "$work/$2.$tokens.with")
        awk -v a="$without" -v b="$with" 'BEGIN { printf " %.1f, %.1f: %.2f |", a, b, b / a }'
    done
    echo
}

conditions="$threads threads, medians of $rounds in turn"
[ "$rounds" -ne 1 ] || conditions="$threads threads, one round"
round=0
while [ $round -lt "$rounds" ]; do
    round=$((round + 1))
    if [ "$1" = mnn ]; then
        mnn float ''
        mnn chunk '"chunk": 256,'
        mnn int8 '' -qa 2
        mnn k8v4 '"kv_quant": "k8v4", "chunk": 256,'
        mnn budget '"kv_memory_mb": 64,'
        text float_text ''
        text int8_text '"attention_mode": 10,'
        text budget_text '"kv_memory_mb": 64,'
        text file_text "\"kv_memory_mb\": 24, \"kv_memory_file\": \"$work/blocks.kv\","
        is_smaller int8 float
        is_smaller int8_text float_text
    else
        llama f16 f16 f16
        llama q8 q8_0 q8_0
        llama q4 q8_0 q4_0
    fi
    echo "round $round of $rounds" >&2
done
if [ "$1" = mnn ]; then
    mnn_table "mnn: prompt / decode tokens/s of llm_bench after a prompt of so many tokens, and peak MB of the longest, $conditions"
    mnn_row "MNN" float
    mnn_row "MNN, \`chunk\` 256" chunk
    mnn_row "MNN, int8 (\`-qa 2\`)" int8
    mnn_row "mnn-kv, \`\"kv_quant\": \"k8v4\"\`, \`chunk\` 256" k8v4
    mnn_row "mnn-kv, \`\"kv_memory_mb\": 64\`" budget
    echo
    mnn_table "mnn.text: decode tokens/s after a text of so many tokens, and peak MB of the longest, $conditions"
    mnn_row "MNN" float_text
    mnn_row "MNN, int8 (\`attention_mode\` 10)" int8_text
    mnn_row "mnn-kv, \`\"kv_memory_mb\": 64\`" budget_text
    mnn_row "mnn-kv, \`\"kv_memory_mb\": 24\` with a file" file_text
else
    echo "## llama: decode tokens/s of llama-bench without the backend, with it: ratio, after so many tokens, $conditions"
    echo
    echo "| K, V |$(heads)"
    echo "|---|$(rules)"
    llama_row "f16" f16
    llama_row "q8_0" q8
    llama_row "q8_0, q4_0" q4
fi
