// A layer's KV cache as a host has it: two buffers of its own, packed as MNN packs them, written with its own indices.

#ifndef MNNKV_DEMO_PACKED_CACHE_HPP
#define MNNKV_DEMO_PACKED_CACHE_HPP

#include "system.hpp"

#include <mnnkv.hpp>

namespace demo {

/// Bits of a binary16.
using half = std::uint16_t;

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

/// Tokens per value block, and per tile of attention.
const std::uint32_t flash_block = 64;

class PackedCache {
public:
    PackedCache(const PackMode& mode, std::uint32_t heads, std::uint32_t dims, std::uint32_t max_tokens)
        : layout_(mnnkv::make<mnnkv_layout>()) {
        layout_.key_dtype = MNNKV_DTYPE_F16;
        layout_.value_dtype = MNNKV_DTYPE_F16;
        layout_.kv_heads = heads;
        layout_.head_dim = dims;
        layout_.e_pack = mode.e_pack;
        layout_.l_pack = mode.l_pack;
        layout_.h_pack = mode.h_pack;
        layout_.flash_block = flash_block;
        layout_.max_tokens = max_tokens;
        key_ = Pages(heads * key_head() * sizeof(half));
        value_ = Pages(heads * value_head() * sizeof(half));
    }

    const mnnkv_layout& layout() const { return layout_; }
    std::uint32_t length() const { return length_; }
    void set_length(std::uint32_t length) { length_ = length; }
    half* key() const { return static_cast<half*>(key_.data()); }
    half* value() const { return static_cast<half*>(value_.data()); }
    const half* key(std::uint32_t head) const { return key() + head * key_head(); }
    const half* value(std::uint32_t head) const { return value() + head * value_head(); }
    std::size_t bytes() const { return key_.size() + value_.size(); }

    /// The cache as mnn-kv is shown it.
    mnnkv_cache view() const {
        mnnkv_cache cache = mnnkv::make<mnnkv_cache>();
        cache.layout = &layout_;
        cache.key = key();
        cache.value = value();
        cache.kv_len = length_;
        return cache;
    }

    /// Appends one token at the physical end. A head's K and V row begin `head_stride` elements after the head before.
    void append(const half* key_rows, const half* value_rows, std::size_t head_stride) {
        for (std::uint32_t h = 0; h < layout_.kv_heads; ++h) {
            half* k = key() + h * key_head();
            half* v = value() + h * value_head();
            for (std::uint32_t d = 0; d < layout_.head_dim; ++d) {
                k[key_index(length_, d)] = key_rows[h * head_stride + d];
                v[value_index(length_, d)] = value_rows[h * head_stride + d];
            }
        }
        ++length_;
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

    mnnkv_layout layout_;
    Pages key_, value_;
    std::uint32_t length_ = 0;
};

}  // namespace demo

#endif
