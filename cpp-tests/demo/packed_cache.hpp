// A layer's KV cache in a host: two buffers, packed and indexed as in MNN.

#ifndef MNNKV_DEMO_PACKED_CACHE_HPP
#define MNNKV_DEMO_PACKED_CACHE_HPP

#include "../oracle/packing.hpp"
#include "system.hpp"

namespace demo {

/// Bits of a binary16.
using half = std::uint16_t;

/// Tokens of K, or channels of V, that MNN's packing of an f16 cache on Arm64 has side by side.
const int pack = 16;

/// Tokens per value block, and per tile of attention.
const std::uint32_t flash_block = 64;

class PackedCache {
public:
    PackedCache(std::uint32_t heads, std::uint32_t dims, std::uint32_t max_tokens)
        : packing_(oracle::make_layout({"arm64_fp16", MNNKV_DTYPE_F16, 12, 1, pack}, heads, dims, max_tokens,
                                       flash_block)),
          key_(packing_.key_bytes()),
          value_(packing_.value_bytes()) {}

    const mnnkv_layout& layout() const { return packing_.layout(); }
    std::uint32_t length() const { return length_; }
    void set_length(std::uint32_t length) { length_ = length; }
    half* key(std::uint32_t head = 0) const { return static_cast<half*>(key_.data()) + head * packing_.key_head(); }
    half* value(std::uint32_t head = 0) const {
        return static_cast<half*>(value_.data()) + head * packing_.value_head();
    }

    /// The cache as mnn-kv takes it.
    mnnkv_cache view() const {
        mnnkv_cache cache = mnnkv::make<mnnkv_cache>();
        cache.layout = &layout();
        cache.key = key();
        cache.value = value();
        cache.kv_len = length_;
        return cache;
    }

    /// Appends one token at the physical end. A head's K and V row begin `head_stride` elements after the head before.
    void append(const half* key_rows, const half* value_rows, std::size_t head_stride) {
        for (std::uint32_t h = 0; h < layout().kv_heads; ++h) {
            half *const k = key(h), *const v = value(h);
            for (std::uint32_t d = 0; d < layout().head_dim; ++d) {
                k[packing_.key_index(length_, d)] = key_rows[h * head_stride + d];
                v[packing_.value_index(length_, d)] = value_rows[h * head_stride + d];
            }
        }
        ++length_;
    }

    std::size_t key_index(std::size_t t, std::size_t d) const { return packing_.key_index(t, d); }

private:
    oracle::packing packing_;
    Pages key_, value_;
    std::uint32_t length_ = 0;
};

}  // namespace demo

#endif
