// Every operation on a packed cache, for every way MNN packs one, against the element-by-element model. Buffers are
// noise at odd addresses and compared whole, so padding, gaps between heads and other tokens are canaries.

#include "packed_model.hpp"

namespace {

using namespace support;

struct packing {
    pack_mode mode;
    bool flash;
};

std::vector<packing> all_packings() {
    std::vector<packing> out;
    for (const pack_mode& mode : pack_modes) {
        out.push_back({mode, true});
        out.push_back({mode, false});
    }
    return out;
}

std::string name_of(const testing::TestParamInfo<packing>& info) {
    return std::string(info.param.mode.name) + (info.param.flash ? "_flash" : "_no_flash");
}

void PrintTo(const packing& p, std::ostream* out) { *out << p.mode.name << (p.flash ? " flash" : " no flash"); }

/// Tests run over three shapes: everything a multiple of the packs; nothing a multiple, with gaps between the heads;
/// one head only.
class PackedCache : public testing::TestWithParam<packing> {
protected:
    static std::vector<mnnkv_layout> shapes() {
        return {shape(2, 64, 192, 0), shape(3, 21, 150, 13), shape(1, 80, 70, 0)};
    }

    /// `gap`: elements between one head and the next.
    static mnnkv_layout shape(std::uint32_t heads, std::uint32_t dims, std::uint32_t max, std::uint32_t gap) {
        const packing& p = GetParam();
        mnnkv_layout layout = make_layout(p.mode, heads, dims, max, p.flash ? 64 : max);
        const packed_model model(layout);
        if (gap > 0) {
            layout.key_head_stride = model.key_head_bytes() + gap * model.key_element();
            layout.value_head_stride = model.value_head_bytes() + 3 * gap * model.value_element();
        }
        return layout;
    }
};

class KeyValueIndex : public PackedCache {};
class Gather : public PackedCache {};
class Scatter : public PackedCache {};
class Move : public PackedCache {};
class Compact : public PackedCache {};
class Zero : public PackedCache {};
class Release : public PackedCache {};

struct range {
    std::uint32_t begin, count;
    std::vector<std::uint32_t> tokens() const { return tokens_from(begin, count); }
};

/// Everything, nothing, one token, and some ranges at random.
std::vector<range> ranges(std::uint32_t max, dice& random) {
    std::vector<range> out = {{0, max}, {max, 0}, {0, 0}, {max - 1, 1}};
    for (int i = 0; i < 4; ++i) {
        const std::uint32_t begin = random.below(max);
        out.push_back({begin, random.between(1, max - begin)});
    }
    return out;
}

TEST_P(KeyValueIndex, SizesAndPlacesAreThoseOfMnn) {
    for (const mnnkv_layout& layout : shapes()) {
        const packed_model model(layout);
        std::uint64_t key_bytes = 0, value_bytes = 0;
        ASSERT_TRUE(ok(mnnkv_layout_check(&layout, &key_bytes, &value_bytes)));
        EXPECT_EQ(key_bytes, model.key_bytes());
        EXPECT_EQ(value_bytes, model.value_bytes());
        for (std::uint32_t t = 0; t < layout.max_tokens; ++t) {
            for (std::uint32_t d = 0; d < layout.head_dim; ++d) {
                std::uint64_t key = 0, value = 0;
                ASSERT_TRUE(ok(mnnkv_key_index(&layout, t, d, &key)));
                ASSERT_TRUE(ok(mnnkv_value_index(&layout, t, d, &value)));
                ASSERT_EQ(key, model.key_index(t, d)) << "token " << t << " dim " << d;
                ASSERT_EQ(value, model.value_index(t, d)) << "token " << t << " dim " << d;
            }
        }
    }
}

TEST_P(Gather, ReadsTheNamedTokensInOrder) {
    for (const mnnkv_layout& layout : shapes()) {
        SEEDED_DICE(random, 11);
        for (const range& r : ranges(layout.max_tokens, random)) {
            SCOPED_TRACE(testing::Message() << r.count << " tokens from " << r.begin);
            noisy_cache cache(layout, random);
            const rows expected = cache.get(r.tokens());
            guarded key_out(expected.key.size(), 1), value_out(expected.value.size(), 1);
            ASSERT_TRUE(ok(mnnkv_kv_gather(&layout, cache.key.data(), cache.value.data(), r.begin, r.count,
                                           key_out.data(), value_out.data(), key_out.size())));
            EXPECT_TRUE(key_out.holds(expected.key));
            EXPECT_TRUE(value_out.holds(expected.value));
            EXPECT_TRUE(cache.untouched());
        }
    }
}

TEST_P(Gather, WritesNoMoreThanTheRangeHoweverLargeTheOutput) {
    const mnnkv_layout layout = shapes()[1];
    SEEDED_DICE(random, 12);
    noisy_cache cache(layout, random);
    const rows expected = cache.get(tokens_from(9, 40));
    const std::size_t cap = expected.key.size() + 77;
    guarded key_out(cap), value_out(cap);
    ASSERT_TRUE(ok(mnnkv_kv_gather(&layout, cache.key.data(), cache.value.data(), 9, 40, key_out.data(),
                                   value_out.data(), cap)));
    bytes key_expected(cap, 0xC7), value_expected(cap, 0xC7);
    std::copy(expected.key.begin(), expected.key.end(), key_expected.begin());
    std::copy(expected.value.begin(), expected.value.end(), value_expected.begin());
    EXPECT_TRUE(key_out.holds(key_expected));
    EXPECT_TRUE(value_out.holds(value_expected));
}

TEST_P(Scatter, WritesTheNamedTokensAndNothingElse) {
    for (const mnnkv_layout& layout : shapes()) {
        SEEDED_DICE(random, 21);
        for (const range& r : ranges(layout.max_tokens, random)) {
            SCOPED_TRACE(testing::Message() << r.count << " tokens from " << r.begin);
            noisy_cache cache(layout, random);
            const packed_model& model = cache.model;
            const rows in{random.noise(model.key_row_bytes(r.count)), random.noise(model.value_row_bytes(r.count))};
            bytes key = cache.key.contents(), value = cache.value.contents();
            model.put(key.data(), value.data(), r.tokens(), in);
            ASSERT_TRUE(ok(mnnkv_kv_scatter(&layout, in.key.data(), in.value.data(), in.key.size(), r.begin, r.count,
                                            cache.key.data(), cache.value.data())));
            EXPECT_TRUE(cache.holds(key, value));
        }
    }
}

TEST_P(Move, IsACopyThroughElsewhere) {
    for (const mnnkv_layout& layout : shapes()) {
        SEEDED_DICE(random, 31);
        const std::uint32_t max = layout.max_tokens, pack = layout.h_pack;
        struct step {
            std::uint32_t src, dst, count;
        };
        // Overlapping by all but one token and by all but one pack, both ways; nothing; onto itself; whole blocks.
        std::vector<step> steps = {{1, 0, max - 1},       {0, 1, max - 1},  {pack, 0, max - pack},
                                   {0, pack, max - pack}, {5, max, 0},      {3, 3, 20},
                                   {64, 0, max - 64},     {0, 64, max - 64}, {2, 0, 1},
                                   {max - 1, 0, 1}};
        for (int i = 0; i < 6; ++i) {
            const std::uint32_t count = random.below(max + 1);
            steps.push_back({random.below(max - count + 1), random.below(max - count + 1), count});
        }
        for (const step& s : steps) {
            SCOPED_TRACE(testing::Message() << s.count << " tokens from " << s.src << " to " << s.dst);
            noisy_cache cache(layout, random);
            bytes key = cache.key.contents(), value = cache.value.contents();
            cache.model.put(key.data(), value.data(), tokens_from(s.dst, s.count),
                            cache.get(tokens_from(s.src, s.count)));
            ASSERT_TRUE(ok(mnnkv_kv_move(&layout, cache.key.data(), cache.value.data(), s.src, s.dst, s.count)));
            EXPECT_TRUE(cache.holds(key, value));
        }
    }
}

/// A plan of an eviction: what stays, relative to base.
struct eviction {
    std::uint32_t base, kv_len;
    std::vector<std::int32_t> pairs;

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

eviction random_eviction(std::uint32_t max, dice& random) {
    eviction plan;
    plan.kv_len = random.between(1, max);
    plan.base = random.one_in(2) ? 0 : random.below(plan.kv_len + 1);
    const std::uint32_t unit = random.one_in(3) ? 16 : 1, tail = plan.kv_len - plan.base;
    for (std::uint32_t at = 0;;) {
        const std::uint32_t offset = at + random.below(8) * unit;
        const std::uint32_t length = random.one_in(6) ? 0 : random.below(12) * unit;
        if (offset + length > tail) {
            return plan;
        }
        plan.pairs.push_back(static_cast<std::int32_t>(offset));
        plan.pairs.push_back(static_cast<std::int32_t>(length));
        at = offset + length;
        if (length == 0 && offset == tail) {
            return plan;
        }
    }
}

void check_compaction(const mnnkv_layout& layout, const eviction& plan, dice& random) {
    std::string text = "base " + std::to_string(plan.base) + " of " + std::to_string(plan.kv_len) + " pairs";
    for (const std::int32_t n : plan.pairs) {
        text += " " + std::to_string(n);
    }
    SCOPED_TRACE(text);
    noisy_cache cache(layout, random);
    const std::vector<std::uint32_t> kept = plan.kept();
    const std::uint32_t count = static_cast<std::uint32_t>(kept.size());
    bytes key = cache.key.contents(), value = cache.value.contents();
    cache.model.put(key.data(), value.data(), tokens_from(0, count), cache.get(kept));

    std::uint32_t new_len = 0;
    ASSERT_TRUE(ok(mnnkv_kv_compact(&layout, cache.key.data(), cache.value.data(), plan.base, plan.pairs.data(),
                                    plan.pairs.size() / 2, plan.kv_len, &new_len)));
    EXPECT_EQ(new_len, count);
    // The evicted end may hold anything. Everything else is either moved or as it was.
    const std::vector<std::uint32_t> gone = tokens_from(count, plan.kv_len - count);
    cache.model.zero(key.data(), value.data(), gone);
    cache.model.zero(cache.key.data(), cache.value.data(), gone);
    EXPECT_TRUE(cache.holds(key, value));
}

TEST_P(Compact, KeepsTheNamedTokensInOrderAndTouchesNothingElse) {
    for (const mnnkv_layout& layout : shapes()) {
        SEEDED_DICE(random, 41);
        for (int i = 0; i < 16; ++i) {
            check_compaction(layout, random_eviction(layout.max_tokens, random), random);
        }
    }
}

TEST_P(Compact, HandlesTheEdgesOfAPlan) {
    for (const mnnkv_layout& layout : shapes()) {
        SEEDED_DICE(random, 42);
        const std::int32_t max = static_cast<std::int32_t>(layout.max_tokens);
        const std::uint32_t all = layout.max_tokens;
        check_compaction(layout, {0, all, {}}, random);                               // nothing stays
        check_compaction(layout, {all, all, {}}, random);                             // all below base
        check_compaction(layout, {0, all, {0, max}}, random);                         // all stays
        check_compaction(layout, {0, all, {1, max - 1}}, random);                     // the first goes
        check_compaction(layout, {0, all, {0, 0, 5, 0, max, 0}}, random);             // only empty pairs
        check_compaction(layout, {0, all, {0, 9, 9, 9, 18, 9}}, random);              // touching pairs
        check_compaction(layout, {7, all, {1, 1, 3, 1, 5, 1, max - 8, 1}}, random);   // single tokens
        check_compaction(layout, {0, 0, {}}, random);                                 // an empty cache
    }
}

TEST_P(Zero, ClearsTheNamedTokensAndNothingElse) {
    for (const mnnkv_layout& layout : shapes()) {
        SEEDED_DICE(random, 51);
        for (const range& r : ranges(layout.max_tokens, random)) {
            SCOPED_TRACE(testing::Message() << r.count << " tokens from " << r.begin);
            noisy_cache cache(layout, random);
            bytes key = cache.key.contents(), value = cache.value.contents();
            cache.model.zero(key.data(), value.data(), r.tokens());
            ASSERT_TRUE(ok(mnnkv_kv_zero(&layout, cache.key.data(), cache.value.data(), r.begin, r.count)));
            EXPECT_TRUE(cache.holds(key, value));
        }
    }
}

TEST_P(Release, ClearsTheNamedTokensAndNothingElse) {
    for (const mnnkv_layout& layout : shapes()) {
        SEEDED_DICE(random, 61);
        for (const range& r : ranges(layout.max_tokens, random)) {
            SCOPED_TRACE(testing::Message() << r.count << " tokens from " << r.begin);
            noisy_cache cache(layout, random);
            bytes key = cache.key.contents(), value = cache.value.contents();
            cache.model.zero(key.data(), value.data(), r.tokens());
            std::uint64_t released = ~0ull;
            ASSERT_TRUE(
                ok(mnnkv_kv_release(&layout, cache.key.data(), cache.value.data(), r.begin, r.count, &released)));
            EXPECT_TRUE(cache.holds(key, value));
            EXPECT_LE(released, cache.model.key_bytes() + cache.model.value_bytes());
            EXPECT_TRUE(r.count > 0 || released == 0);

            // The addresses stay valid: the tokens can be written again.
            const rows in{random.noise(cache.model.key_row_bytes(r.count)),
                          random.noise(cache.model.value_row_bytes(r.count))};
            cache.model.put(key.data(), value.data(), r.tokens(), in);
            ASSERT_TRUE(ok(mnnkv_kv_scatter(&layout, in.key.data(), in.value.data(), in.key.size(), r.begin, r.count,
                                            cache.key.data(), cache.value.data())));
            EXPECT_TRUE(cache.holds(key, value));
        }
    }
}

#define FOR_EVERY_PACKING(suite) \
    INSTANTIATE_TEST_SUITE_P(EveryPacking, suite, testing::ValuesIn(all_packings()), name_of)

FOR_EVERY_PACKING(KeyValueIndex);
FOR_EVERY_PACKING(Gather);
FOR_EVERY_PACKING(Scatter);
FOR_EVERY_PACKING(Move);
FOR_EVERY_PACKING(Compact);
FOR_EVERY_PACKING(Zero);
FOR_EVERY_PACKING(Release);

}  // namespace
