// A layer's KV cache as a host has it: two buffers of its own, packed as MNN packs them, written with its own indices.

#ifndef MNNKV_DEMO_PACKED_CACHE_HPP
#define MNNKV_DEMO_PACKED_CACHE_HPP

#include "sample.hpp"

#include <mnnkv.hpp>

namespace demo {

struct PackMode {
    const char* name;
    std::uint32_t e_pack, l_pack, h_pack;
};

/// MNN's packings of an f16 cache.
const PackMode pack_modes[] = {
    {"arm64-fp16", 12, 1, 16},
    {"arm32-fp16", 12, 1, 8},
    {"sme2-fp16", 16, 2, 64},
};

class PackedCache {
public:
    PackedCache(const PackMode& mode, std::uint32_t max_tokens) : layout_(mnnkv::make<mnnkv_layout>()) {
        layout_.key_dtype = MNNKV_DTYPE_F16;
        layout_.value_dtype = MNNKV_DTYPE_F16;
        layout_.kv_heads = Sample::heads;
        layout_.head_dim = Sample::dims;
        layout_.e_pack = mode.e_pack;
        layout_.l_pack = mode.l_pack;
        layout_.h_pack = mode.h_pack;
        layout_.flash_block = 64;
        layout_.max_tokens = max_tokens;
        key_.resize(std::size_t(layout_.kv_heads) * key_head());
        value_.resize(std::size_t(layout_.kv_heads) * value_head());
    }

    const mnnkv_layout& layout() const { return layout_; }
    half* key() { return key_.data(); }
    half* value() { return value_.data(); }
    std::uint32_t length() const { return length_; }
    void set_length(std::uint32_t length) { length_ = length; }

    /// Appends one token of the sample at the physical end.
    void append(const Sample& sample, std::uint32_t layer, std::uint32_t token) {
        for (std::uint32_t h = 0; h < layout_.kv_heads; ++h) {
            const std::size_t row = (std::size_t(h) * Sample::tokens + token) * Sample::dims;
            for (std::uint32_t d = 0; d < Sample::dims; ++d) {
                key_[h * key_head() + key_index(length_, d)] = sample.key[layer][row + d];
                value_[h * value_head() + value_index(length_, d)] = sample.value[layer][row + d];
            }
        }
        ++length_;
    }

private:
    static std::size_t up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

    std::size_t key_head() const {
        const std::size_t lp = layout_.l_pack, hp = layout_.h_pack;
        return up(layout_.max_tokens, hp) * hp * up(layout_.head_dim, lp) * lp;
    }
    std::size_t value_head() const {
        const std::size_t lp = layout_.l_pack, hp = layout_.h_pack, f = layout_.flash_block;
        return up(layout_.max_tokens, f) * up(layout_.head_dim, hp) * hp * up(f, lp) * lp;
    }
    std::size_t key_index(std::size_t t, std::size_t d) const {
        const std::size_t lp = layout_.l_pack, hp = layout_.h_pack;
        return (t / hp) * up(layout_.head_dim, lp) * lp * hp + (d / lp) * hp * lp + (t % hp) * lp + d % lp;
    }
    std::size_t value_index(std::size_t t, std::size_t d) const {
        const std::size_t lp = layout_.l_pack, hp = layout_.h_pack, f = layout_.flash_block, u = t % f;
        const std::size_t row = up(f, lp) * lp * hp;
        return (t / f) * up(layout_.head_dim, hp) * row + (d / hp) * row + (u / lp) * hp * lp + (d % hp) * lp + u % lp;
    }

    mnnkv_layout layout_;
    std::vector<half> key_;
    std::vector<half> value_;
    std::uint32_t length_ = 0;
};

}  // namespace demo

#endif
