// KV of a larger model, made of the bundled sample of a small one.

#ifndef MNNKV_BENCH_CONTENT_HPP
#define MNNKV_BENCH_CONTENT_HPP

#include "demo/sample.hpp"
#include "demo/session.hpp"

#include <cstring>

namespace bench {

using namespace demo;

inline std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 27)) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 32);
}

/// Rows of 128 dims: two rows of the sample side by side, of its other head and 136 tokens further on.
///
/// Layers 0 and 1 come from the sample's, later ones from its layers 2 and 3 in turn. Heads of a layer begin at tokens
/// 272 apart, so no row of the sample is twice in a block of up to 128 tokens. The sample repeats; each time, in each
/// head and layer, a channel's sign and the lowest 5 of its 10 fraction bits are inverted or not, at random but the
/// same for all tokens. Exponents, their order and the repetitions of a text stay real, and no two blocks are equal.
class Content {
public:
    static constexpr std::uint32_t dims = 128;

    bool load() { return sample_.load(MNNKV_SAMPLE_DIR); }

    /// K and V of one head for some tokens: [token][dim].
    void rows(std::uint32_t layer, std::uint32_t head, std::uint32_t begin, std::uint32_t count, half* key,
              half* value) const {
        const std::uint32_t source = layer < 2 ? layer : 2 + layer % 2;
        for (std::uint32_t part = 0; part < 2; ++part) {
            for (std::uint32_t i = 0; i < count; ++i) {
                const std::uint32_t token = begin + i + head / 2 * 272 + part * 136 + layer * 37;
                const std::size_t row = ((head + part) % 2 * Sample::tokens + token % Sample::tokens) * Sample::dims;
                const std::uint64_t round = (std::uint64_t(layer) * 64 + head) * 64 + token / Sample::tokens;
                half* k = key + std::size_t(i) * dims + part * Sample::dims;
                half* v = value + std::size_t(i) * dims + part * Sample::dims;
                copy(&sample_.key[source][row], mix(round * 4 + part), k);
                copy(&sample_.value[source][row], mix(round * 4 + 2 + part), v);
            }
        }
    }

private:
    static void copy(const half* from, std::uint64_t seed, half* to) {
        for (std::uint32_t d = 0; d < Sample::dims; ++d) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            to[d] = static_cast<half>(from[d] ^ ((seed >> 33) & 0x801fu));
        }
    }

    Sample sample_;
};

/// The caches of a model with 8 KV heads x 128, packed as MNN's arm64-fp16.
class Caches {
public:
    static constexpr std::uint32_t kv_heads = 8;
    static constexpr std::uint32_t token_bytes = 2 * kv_heads * Content::dims * sizeof(half);  // of one layer

    Caches(const Content& content, std::uint32_t layers, std::uint32_t max_tokens) : content_(content) {
        for (std::uint32_t l = 0; l < layers; ++l) {
            caches_.push_back(PackedCache(kv_heads, Content::dims, max_tokens));
            logical_.push_back(0);
        }
    }

    PackedCache& operator[](std::uint32_t layer) { return caches_[layer]; }
    std::uint32_t layers() const { return static_cast<std::uint32_t>(caches_.size()); }

    /// Appends the layer's next tokens.
    void append(std::uint32_t layer, std::uint32_t count) {
        for (std::uint32_t done = 0; done < count;) {
            const std::uint32_t part = count - done < 256 ? count - done : 256;
            make(layer, logical_[layer] + done, part);
            PackedCache& cache = caches_[layer];
            require(mnnkv_kv_scatter(&cache.layout(), keys_.data(), values_.data(), keys_.size() * sizeof(half),
                                     cache.length(), part, cache.key(), cache.value()),
                    "scatter");
            cache.set_length(cache.length() + part);
            done += part;
        }
        logical_[layer] += count;
    }

    /// The layer's cache holds these logical tokens, runs of (first, count), bit for bit.
    bool holds(std::uint32_t layer, const std::int32_t* pairs, std::size_t n_pairs) {
        const PackedCache& cache = caches_[layer];
        std::uint32_t at = 0;
        for (std::size_t p = 0; p < n_pairs; ++p) {
            const std::uint32_t first = static_cast<std::uint32_t>(pairs[2 * p]);
            const std::uint32_t count = static_cast<std::uint32_t>(pairs[2 * p + 1]);
            make(layer, first, count);
            std::vector<half> keys(keys_.size()), values(values_.size());
            require(mnnkv_kv_gather(&cache.layout(), cache.key(), cache.value(), at, count, keys.data(), values.data(),
                                    keys.size() * sizeof(half)),
                    "gather");
            if (keys != keys_ || values != values_) {
                return false;
            }
            at += count;
        }
        return at == cache.length();
    }

private:
    /// [head][token][dim]
    void make(std::uint32_t layer, std::uint32_t begin, std::uint32_t count) {
        const std::size_t head = std::size_t(count) * Content::dims;
        keys_.resize(kv_heads * head);
        values_.resize(kv_heads * head);
        for (std::uint32_t h = 0; h < kv_heads; ++h) {
            content_.rows(layer, h, begin, count, &keys_[h * head], &values_[h * head]);
        }
    }

    const Content& content_;
    std::vector<PackedCache> caches_;
    std::vector<std::uint32_t> logical_;
    std::vector<half> keys_, values_;
};

}  // namespace bench

#endif
