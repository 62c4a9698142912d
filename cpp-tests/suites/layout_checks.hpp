// One operation on one cache, checked against the oracle. Buffers are noise at odd addresses and compared whole, so
// padding, gaps between heads and other tokens are canaries.

#ifndef MNNKV_TESTS_LAYOUT_CHECKS_HPP
#define MNNKV_TESTS_LAYOUT_CHECKS_HPP

#include "packed_model.hpp"

namespace support {

/// Tokens begin .. begin + count.
struct token_range {
    std::uint32_t begin, count;
    std::vector<std::uint32_t> tokens() const { return tokens_from(begin, count); }
};

inline void PrintTo(const token_range& r, std::ostream* out) { *out << r.count << " tokens from " << r.begin; }

inline token_range random_range(std::uint32_t max, dice& random) {
    const std::uint32_t begin = random.below(max);
    return {begin, random.between(1, max - begin)};
}

inline void check_sizes_of(const mnnkv_layout& layout) {
    const packed_model model(layout);
    std::uint64_t key_bytes = 0, value_bytes = 0;
    ASSERT_TRUE(ok(mnnkv_layout_check(&layout, &key_bytes, &value_bytes)));
    EXPECT_EQ(key_bytes, model.key_bytes());
    EXPECT_EQ(value_bytes, model.value_bytes());
}

inline void check_gather(const mnnkv_layout& layout, const token_range& r, dice& random) {
    SCOPED_TRACE("gather " + testing::PrintToString(r));
    noisy_cache cache(layout, random);
    const rows expected = cache.get(r.tokens());
    guarded key_out(expected.key.size(), 1), value_out(expected.value.size(), 1);
    ASSERT_TRUE(ok(mnnkv_kv_gather(&layout, cache.key.data(), cache.value.data(), r.begin, r.count, key_out.data(),
                                   value_out.data(), std::max(key_out.size(), value_out.size()))));
    EXPECT_TRUE(key_out.holds(expected.key));
    EXPECT_TRUE(value_out.holds(expected.value));
    EXPECT_TRUE(cache.untouched());
}

inline void check_scatter(const mnnkv_layout& layout, const token_range& r, dice& random) {
    SCOPED_TRACE("scatter " + testing::PrintToString(r));
    noisy_cache cache(layout, random);
    const packed_model& model = cache.model;
    const rows in{random.noise(model.key_row_bytes(r.count)), random.noise(model.value_row_bytes(r.count))};
    bytes key = cache.key.contents(), value = cache.value.contents();
    model.put(key.data(), value.data(), r.tokens(), in);
    ASSERT_TRUE(ok(mnnkv_kv_scatter(&layout, in.key.data(), in.value.data(), std::max(in.key.size(), in.value.size()),
                                    r.begin, r.count, cache.key.data(), cache.value.data())));
    EXPECT_TRUE(cache.holds(key, value));
}

inline void check_move(const mnnkv_layout& layout, std::uint32_t src, std::uint32_t dst, std::uint32_t count,
                       dice& random) {
    SCOPED_TRACE(testing::Message() << "move " << count << " tokens from " << src << " to " << dst);
    noisy_cache cache(layout, random);
    bytes key = cache.key.contents(), value = cache.value.contents();
    cache.model.put(key.data(), value.data(), tokens_from(dst, count), cache.get(tokens_from(src, count)));
    ASSERT_TRUE(ok(mnnkv_kv_move(&layout, cache.key.data(), cache.value.data(), src, dst, count)));
    EXPECT_TRUE(cache.holds(key, value));
}

/// Zeroes, or releases and writes again.
inline void check_clearing(const mnnkv_layout& layout, const token_range& r, bool release, dice& random) {
    SCOPED_TRACE((release ? "release " : "zero ") + testing::PrintToString(r));
    noisy_cache cache(layout, random);
    const packed_model& model = cache.model;
    bytes key = cache.key.contents(), value = cache.value.contents();
    model.zero(key.data(), value.data(), r.tokens());
    if (!release) {
        ASSERT_TRUE(ok(mnnkv_kv_zero(&layout, cache.key.data(), cache.value.data(), r.begin, r.count)));
        EXPECT_TRUE(cache.holds(key, value));
        return;
    }
    model.release(key.data(), value.data(), r.begin, r.count);
    std::uint64_t released = ~0ull;
    ASSERT_TRUE(ok(mnnkv_kv_release(&layout, cache.key.data(), cache.value.data(), r.begin, r.count, &released)));
    EXPECT_TRUE(cache.holds(key, value));
    EXPECT_LE(released, model.key_bytes() + model.value_bytes());
    EXPECT_TRUE(r.count > 0 || released == 0);

    // The addresses stay valid: the tokens can be written again.
    const rows in{random.noise(model.key_row_bytes(r.count)), random.noise(model.value_row_bytes(r.count))};
    model.put(key.data(), value.data(), r.tokens(), in);
    ASSERT_TRUE(ok(mnnkv_kv_scatter(&layout, in.key.data(), in.value.data(), std::max(in.key.size(), in.value.size()),
                                    r.begin, r.count, cache.key.data(), cache.value.data())));
    EXPECT_TRUE(cache.holds(key, value));
}

/// The tokens that an eviction keeps: those below base, and pairs (offset, length) relative to it.
struct eviction {
    std::uint32_t base, kv_len;
    pair_list pairs;

    std::vector<std::uint32_t> kept() const {
        std::vector<std::uint32_t> out = tokens_from(0, base);
        for (std::size_t i = 0; i < pairs.size(); i += 2) {
            for (std::int32_t t = 0; t < pairs[i + 1]; ++t) {
                out.push_back(base + static_cast<std::uint32_t>(pairs[i] + t));
            }
        }
        return out;
    }
};

inline eviction random_eviction(std::uint32_t max, dice& random) {
    const std::uint32_t kv_len = random.between(1, max), base = random.one_in(2) ? 0 : random.below(kv_len + 1);
    return {base, kv_len, random_pairs(kv_len - base, random)};
}

inline void check_compaction(const mnnkv_layout& layout, const eviction& plan, dice& random) {
    SCOPED_TRACE(testing::Message() << "compact base " << plan.base << " of " << plan.kv_len << " pairs "
                                    << testing::PrintToString(plan.pairs));
    noisy_cache cache(layout, random);
    const std::vector<std::uint32_t> kept = plan.kept();
    const std::uint32_t count = static_cast<std::uint32_t>(kept.size());
    bytes key = cache.key.contents(), value = cache.value.contents();
    cache.model.put(key.data(), value.data(), tokens_from(0, count), cache.get(kept));

    std::uint32_t new_len = 0;
    ASSERT_TRUE(ok(mnnkv_kv_compact(&layout, cache.key.data(), cache.value.data(), plan.base, plan.pairs.data(),
                                    plan.pairs.size() / 2, plan.kv_len, &new_len)));
    EXPECT_EQ(new_len, count);
    // The evicted end may hold anything. Everything else is moved or unchanged.
    const std::vector<std::uint32_t> gone = tokens_from(count, plan.kv_len - count);
    cache.model.zero(key.data(), value.data(), gone);
    cache.model.zero(cache.key.data(), cache.value.data(), gone);
    EXPECT_TRUE(cache.holds(key, value));
}

}  // namespace support

#endif  // MNNKV_TESTS_LAYOUT_CHECKS_HPP
