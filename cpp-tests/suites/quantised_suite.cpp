// Quantised MNN caches through the C functions, against caches that an independent implementation made, and against
// MNN's formulas. Bad input, portable tokens and schedules: tests/quantised.

#include "quantised_cache.hpp"

namespace {

using namespace support;

/// One state of testdata/mnn_quantised, in this host's buffers: heads lie apart there.
quantised_cache golden(const std::string& folder) {
    const json about = json_reader(read_text("mnn_quantised/" + folder + "/manifest.json")).read();
    quantised_shape shape{{}, {about["unit"].items[1].u32(), about["unit"].items[0].u32()}, about["heads"].u32(),
                          about["dim"].u32(), about["max_tokens"].u32()};
    for (const quantised_mode& mode : quantised_modes) {
        shape.mode = mode.mode == about["mode"].u32() ? mode : shape.mode;
    }
    dice noise(1);
    quantised_cache cache(shape, noise);
    cache.n = about["tokens"].u32();
    const auto fill = [&](const char* name, std::uint8_t* to, std::size_t head, std::size_t stride) {
        const bytes from = read_file("mnn_quantised/" + folder + "/" + name);
        ASSERT_EQ(from.size(), shape.heads * head) << name;
        for (std::size_t i = 0; i < shape.heads; ++i) {
            std::copy_n(&from[i * head], head, to + i * stride);
        }
    };
    const auto sums = [&](const char* name, std::vector<float>& to) {
        const std::size_t head = to.size() * 4 / shape.heads;
        fill(name, reinterpret_cast<std::uint8_t*>(to.data()), head, head);
    };
    fill("key.bin", cache.key(), cache.key_head(), cache.key_stride());
    fill("value.bin", cache.value(), cache.value_head(), cache.value_stride());
    if (cache.has_int8_key()) {
        sums("key_sum.bin", cache.key_sum());
    }
    if (cache.has_int8_value()) {
        sums("value_sum.bin", cache.value_sum());
    }
    return cache;
}

mnnkv_status compact(quantised_cache& cache, std::uint32_t base, const pair_list& pairs) {
    return mnnkv_kv_compact(cache.layout(), cache.key(), cache.value(), base, pairs.data(), pairs.size() / 2, cache.n,
                            &cache.n);
}

/// All tokens, and V as every kernel reads it right.
testing::AssertionResult holds(quantised_cache& cache, const rows& expected) {
    const rows now = cache.get(0, cache.n);
    testing::AssertionResult k = same(now.key, expected.key), v = same(now.value, expected.value);
    return !k ? k << " of K" : !v ? v << " of V" : cache.is_valid();
}

TEST(QuantisedGolden, IsEvictedToTheBytesOfAnIndependentImplementation) {
    const struct {
        const char* name;
        std::uint32_t base;
        pair_list pairs;
    } cases[] = {{"mode10_cut50", 0, {0, 50}},
                 {"mode10_cut50", 50, {}},
                 {"mode14_u8x4", 0, {0, 16, 48, 32, 112, 61}},
                 {"mode14_u8x4", 16, {32, 32, 96, 61}}};
    for (const auto& each : cases) {
        SCOPED_TRACE(each.name);
        quantised_cache cache = golden(std::string(each.name) + "/before");
        quantised_cache after = golden(std::string(each.name) + "/after");
        ASSERT_TRUE(ok(compact(cache, each.base, each.pairs)));
        ASSERT_EQ(cache.n, after.n);
        EXPECT_TRUE(holds(cache, after.get(0, after.n)));
        EXPECT_TRUE(after.is_valid()) << "the formulas of these tests";
        EXPECT_EQ(cache.value_sum(), after.value_sum());
    }
}

TEST(QuantisedGolden, IsMendedAfterATruncationByTheHost) {
    quantised_cache cache = golden("mode10_cut50/before"), after = golden("mode10_cut50/after");
    cache.n = 50;
    ASSERT_FALSE(cache.is_valid()) << "codes and sums of the truncated tokens are left";
    ASSERT_TRUE(ok(mnnkv_kv_changed(cache.layout(), cache.key(), cache.value(), 50, 14, 50)));
    EXPECT_TRUE(holds(cache, after.get(0, 50)));
}

/// A mode on one kind of CPU.
struct quantised_case {
    quantised_mode mode;
    int8_unit unit;
};

/// Every mode; INT8 on every unit.
std::vector<quantised_case> all_cases() {
    std::vector<quantised_case> cases;
    for (const quantised_mode& mode : quantised_modes) {
        for (const int8_unit& unit : int8_units) {
            if (mode.key == MNNKV_DTYPE_INT8 || &unit == int8_units) {
                cases.push_back({mode, unit});
            }
        }
    }
    return cases;
}

class QuantisedCache : public testing::TestWithParam<quantised_case> {
protected:
    /// 96 dims are no whole group of 64.
    static quantised_shape shape(std::uint32_t max) { return {GetParam().mode, GetParam().unit, 2, 96, max}; }

    quantised_cache filled(std::uint32_t max, std::uint32_t tokens) {
        quantised_cache cache(shape(max), random_);
        cache.append(tokens / 2, random_);
        const std::uint32_t before = cache.n;
        cache.append(tokens - tokens / 2, random_);
        // MNN does not copy scales here; room of one allocation has them all the same.
        EXPECT_TRUE(ok(mnnkv_kv_appended(cache.layout(), cache.key(), cache.value(), before, cache.n - before)));
        return cache;
    }

    dice random_{501};
};

TEST_P(QuantisedCache, HasTheSizesOfTheFormulas) {
    quantised_cache cache = filled(150, 140);
    const mnnkv_layout* const layout = cache.layout();
    std::uint64_t key_bytes = 0, value_bytes = 0;
    ASSERT_TRUE(ok(mnnkv_layout_check(layout, &key_bytes, &value_bytes)));
    EXPECT_EQ(key_bytes, cache.key_stride() + cache.key_head());
    EXPECT_EQ(value_bytes, cache.value_stride() + cache.value_head());
}

TEST_P(QuantisedCache, KeepsTheBytesAndSumsOfTheTokensThatAnEvictionKeeps) {
    for (int i = 0; i < 6; ++i) {
        quantised_cache cache = filled(200, 193);
        const std::uint32_t base = i == 0 ? 0 : random_.below(100);
        const pair_list pairs = random_pairs(cache.n - base, random_);
        SCOPED_TRACE(testing::Message() << "base " << base << ", pairs " << testing::PrintToString(pairs));
        std::vector<std::uint32_t> kept = tokens_from(0, base);
        for (std::size_t p = 0; p < pairs.size(); p += 2) {
            const auto run = tokens_from(base + static_cast<std::uint32_t>(pairs[p]), static_cast<std::uint32_t>(pairs[p + 1]));
            kept.insert(kept.end(), run.begin(), run.end());
        }
        const rows expected = cache.get(kept);
        ASSERT_TRUE(ok(compact(cache, base, pairs)));
        ASSERT_EQ(cache.n, kept.size());
        EXPECT_TRUE(holds(cache, expected));
    }
}

INSTANTIATE_TEST_SUITE_P(EveryMode, QuantisedCache, testing::ValuesIn(all_cases()),
                         [](const testing::TestParamInfo<quantised_case>& info) {
                             const quantised_case& c = info.param;
                             return "mode" + std::to_string(c.mode.mode) + "_l" + std::to_string(c.unit.l) + "_h" +
                                    std::to_string(c.unit.h);
                         });

}  // namespace
