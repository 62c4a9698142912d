// Attention of one new token with 32 query heads over a layer of 8 KV heads, as a 1B to 8B model has it.

#ifndef MNNKV_BENCH_DECODER_HPP
#define MNNKV_BENCH_DECODER_HPP

#include "demo/attention.hpp"
#include "report.hpp"

namespace bench {

class Decoder {
public:
    static constexpr std::uint32_t query_heads = 32;
    static constexpr std::uint32_t group_size = query_heads / Caches::kv_heads;

    /// Attention of the newest token of a layer. `see(tile)` as in demo::attend.
    template <class See>
    void attend(const PackedCache& cache, See&& see) {
        for (std::uint32_t h = 0; h < Caches::kv_heads; ++h) {
            // As in the demo: the token's key replaces its queries.
            for (std::uint32_t q = 0; q < group_size; ++q) {
                for (std::uint32_t d = 0; d < Content::dims; ++d) {
                    const half key_word = cache.key(h)[cache.key_index(cache.length() - 1, d)];
                    queries_[q * Content::dims + d] = kernel::widen(key_word) * 0.02f / float(1 + q);
                }
            }
            group_.start(group_size, Content::dims, queries_, out_ + h * group_size * Content::dims);
            demo::attend(cache, cache.key(h), cache.value(h), group_, see);
        }
    }

    /// Nothing is scored.
    void attend_only(const PackedCache& cache) {
        attend(cache, [](const mnnkv_score_tile&) {});
    }

    /// As in an engine: each tile is summed.
    void attend(const PackedCache& cache, Session& session, std::uint32_t layer) {
        attend(cache, [&](const mnnkv_score_tile& tile) { session.sums(layer, tile); });
    }

private:
    HeadGroup group_;
    float queries_[group_size * Content::dims];
    float out_[query_heads * Content::dims];
};

}  // namespace bench

#endif
