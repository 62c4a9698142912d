#!/usr/bin/env python3
"""Writes a GGUF model of the llama architecture, with f16 weights and without a vocabulary: random weights, or those of a
Hugging Face folder. Needs the Python packages gguf and numpy.

    make_model.py OUT.gguf [--layers 16] [--heads 16] [--kv-heads 4] [--head-dim 64] [--seed 1]
    make_model.py OUT.gguf --from FOLDER    config.json and model.safetensors, LlamaForCausalLM
"""

import argparse
import json
import struct
from pathlib import Path

import gguf
import numpy as np


def safetensors(path):
    """A function from names to float32 arrays."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])

    def tensor(name):
        entry = header[name]
        if entry["dtype"] != "F32":
            raise SystemExit(f"{path}: {name} is {entry['dtype']}; F32 expected")
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        return np.frombuffer(data[begin:end], np.float32).reshape(entry["shape"])

    return tensor


def random(seed, width):
    """A function from names and shapes to arrays, of a scale that keeps activations near 1."""
    numbers = np.random.default_rng(seed)

    def tensor(name, shape):
        if len(shape) == 1:
            return np.ones(shape, np.float32)
        scale = 1.0 if "embed" in name else shape[1] ** -0.5
        return (numbers.standard_normal(shape) * scale).astype(np.float32)

    return tensor


def interleaved(weight, heads):
    """Rows of Q or K in the order of llama.cpp, which turns channels 2 i and 2 i + 1 together."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("out")
    arguments.add_argument("--from", dest="folder", type=Path)
    for name, value in [("layers", 16), ("heads", 16), ("kv-heads", 4), ("head-dim", 64), ("seed", 1)]:
        arguments.add_argument(f"--{name}", type=int, default=value)
    given = arguments.parse_args()
    layers, heads, kv_heads, dim = given.layers, given.heads, given.kv_heads, given.head_dim
    vocab, epsilon, theta = 4096, 1e-5, 10000.0
    width = heads * dim
    inner = width * 3
    if given.folder:
        config = json.loads((given.folder / "config.json").read_text())
        layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
        kv_heads, dim, width = config["num_key_value_heads"], config["head_dim"], config["hidden_size"]
        vocab, inner, epsilon = config["vocab_size"], config["intermediate_size"], config["rms_norm_eps"]
        theta = config["rope_parameters"]["rope_theta"]
        stored = safetensors(given.folder / "model.safetensors")
        source = lambda name, shape: stored(name)
    else:
        source = random(given.seed, width)

    out = gguf.GGUFWriter(given.out, "llama")
    out.add_context_length(1 << 16)
    out.add_embedding_length(width)
    out.add_block_count(layers)
    out.add_feed_forward_length(inner)
    out.add_head_count(heads)
    out.add_head_count_kv(kv_heads)
    out.add_key_length(dim)
    out.add_value_length(dim)
    out.add_rope_dimension_count(dim)
    out.add_rope_freq_base(theta)
    out.add_layer_norm_rms_eps(epsilon)
    out.add_vocab_size(vocab)
    out.add_tokenizer_model("none")

    def add(name, source_name, shape, turned=0):
        weight = source(source_name, shape)
        if turned:
            weight = interleaved(weight, turned)
        out.add_tensor(name, np.ascontiguousarray(weight.astype(np.float32 if len(shape) == 1 else np.float16)))

    add("token_embd.weight", "model.embed_tokens.weight", (vocab, width))
    add("output_norm.weight", "model.norm.weight", (width,))
    for at in range(layers):
        ours, theirs = f"blk.{at}", f"model.layers.{at}"
        add(f"{ours}.attn_norm.weight", f"{theirs}.input_layernorm.weight", (width,))
        add(f"{ours}.ffn_norm.weight", f"{theirs}.post_attention_layernorm.weight", (width,))
        add(f"{ours}.attn_q.weight", f"{theirs}.self_attn.q_proj.weight", (heads * dim, width), heads)
        add(f"{ours}.attn_k.weight", f"{theirs}.self_attn.k_proj.weight", (kv_heads * dim, width), kv_heads)
        add(f"{ours}.attn_v.weight", f"{theirs}.self_attn.v_proj.weight", (kv_heads * dim, width))
        add(f"{ours}.attn_output.weight", f"{theirs}.self_attn.o_proj.weight", (width, heads * dim))
        add(f"{ours}.ffn_gate.weight", f"{theirs}.mlp.gate_proj.weight", (inner, width))
        add(f"{ours}.ffn_up.weight", f"{theirs}.mlp.up_proj.weight", (inner, width))
        add(f"{ours}.ffn_down.weight", f"{theirs}.mlp.down_proj.weight", (width, inner))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


main()
