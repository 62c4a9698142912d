#!/bin/sh
# Speeds of real engines with and without mnn-kv, as tables of Markdown: medians of ROUNDS (5) rounds, in each of which every
# row runs once. It builds nothing.
#
#   engines.sh mnn      MNN: a build folder of the patched MNN with llm_bench; CONFIG: the config.json of a model
#   engines.sh llama    LLAMA: a build folder of llama.cpp with bin/llama-bench; GGUF: a model; BACKEND: libggml-mnnkv.so
#
# CONTEXTS ("1024 4096 8000"): tokens of the prompt. THREADS: 2. MNN loads the library of MNNKV_LIBRARY, else build/lib.
set -eu
cd "$(dirname "$0")/.."
contexts=${CONTEXTS:-1024 4096 8000} rounds=${ROUNDS:-5} threads=${THREADS:-2}
work=$(mktemp -d)
: "${MNNKV_LIBRARY:=$PWD/build/lib/libmnnkv.so}"
export MNNKV_LIBRARY

if [ "${1:-}" = mnn ] && [ -x "${MNN:-}/llm_bench" ] && [ -f "${CONFIG:-}" ]; then
    # Configs are beside the model's, whose paths are relative.
    model=$(cd "$(dirname "$CONFIG")" && pwd)
    variant=$model/.mnnkv-engines.json
    trap 'rm -rf "$work" "$variant"' EXIT
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

# mnn ROW KEYS: the row's config has these members, too. Appends "prompt" and "decode" tokens/s of each context.
mnn() {
    awk -v keys="$2" '!done && sub(/\{/, "{" keys) { done = 1 } { print }' "$CONFIG" >"$variant"
    for tokens in $contexts; do
        "$MNN/llm_bench" -m "$variant" -kv true -p "$tokens" -n 128 -t "$threads" -rep 1 >"$work/out" 2>&1 ||
            { cat "$work/out" >&2; return 1; }
        speeds=$(sed -n 's/.*| \([0-9.]*\) ± [0-9.]*<br>\([0-9.]*\) ±.*/\1 \2/p' "$work/out" | tail -n 1)
        [ -n "$speeds" ] || { cat "$work/out" >&2; return 1; }
        echo "${speeds% *}" >>"$work/$1.$tokens.prompt"
        echo "${speeds#* }" >>"$work/$1.$tokens.decode"
    done
}

# mnn_row TEXT ROW
mnn_row() {
    printf '| %s |' "$1"
    for tokens in $contexts; do
        printf ' %.0f / %.0f |' "$(median "$work/$2.$tokens.prompt")" "$(median "$work/$2.$tokens.decode")"
    done
    echo
}

# llama ROW K V: without and with the backend. Appends decode tokens/s of each context.
llama() {
    for tokens in $contexts; do
        for with in without with; do
            [ $with = without ] || export GGML_BACKEND_PATH="$BACKEND"
            "$LLAMA/bin/llama-bench" -m "$GGUF" -p 0 -n 48 -d "$tokens" -fa 1 -t "$threads" -r 1 -ctk "$2" -ctv "$3" \
                -o jsonl >"$work/out" 2>"$work/errors" || { cat "$work/errors" >&2; return 1; }
            unset GGML_BACKEND_PATH
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
round=0
while [ $round -lt "$rounds" ]; do
    round=$((round + 1))
    if [ "$1" = mnn ]; then
        mnn float ''
        mnn int8 '"attention_mode": 10,'
        mnn k8v4 '"kv_quant": "k8v4", "chunk": 256,'
        mnn budget '"kv_memory_mb": 64,'
        mnn file "\"kv_memory_mb\": 24, \"kv_memory_file\": \"$work/blocks.kv\","
        h2o='"kv_h2o_enable": true, "kv_h2o_layer_start": 0, "kv_h2o_target_lossy_ratio": 3.5, "chunk": 256,'
        mnn h2o "$h2o"
        mnn h2o_int8 "$h2o \"attention_mode\": 10,"
    else
        llama f16 f16 f16
        llama q8 q8_0 q8_0
    fi
    echo "round $round of $rounds" >&2
done
if [ "$1" = mnn ]; then
    echo "## mnn: prompt / decode tokens/s of llm_bench after a prompt of so many tokens, $conditions"
    echo
    echo "| run |$(heads)"
    echo "|---|$(rules)"
    mnn_row "MNN" float
    mnn_row "MNN, int8 (\`attention_mode\` 10)" int8
    mnn_row "mnn-kv, \`\"kv_quant\": \"k8v4\"\`, \`chunk\` 256" k8v4
    mnn_row "mnn-kv, \`\"kv_memory_mb\": 64\`" budget
    mnn_row "mnn-kv, \`\"kv_memory_mb\": 24\` with a file" file
    mnn_row "mnn-kv, h2o, one token in 3.5, \`chunk\` 256" h2o
    mnn_row "mnn-kv, h2o likewise, over MNN's int8" h2o_int8
else
    echo "## llama: decode tokens/s of llama-bench without the backend, with it: ratio, after so many tokens, $conditions"
    echo
    echo "| K, V |$(heads)"
    echo "|---|$(rules)"
    llama_row "f16" f16
    llama_row "q8_0" q8
fi
