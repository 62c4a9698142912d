// Eviction plans: golden cases of the reference, random cases against a naive planner, edge cases.

#include "packed_model.hpp"

#include <cmath>
#include <limits>

namespace {

using namespace support;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan_score = std::numeric_limits<float>::quiet_NaN();

struct planned {
    mnnkv_status status;
    pair_list pairs;
    mnnkv_h2o_plan plan;
};

/// Plans by the library, with room for any plan.
planned ask(const std::vector<float>& scores, std::uint32_t kv_len, const mnnkv_h2o_config* config) {
    const std::uint32_t block = config != nullptr && config->block_tokens > 0 ? config->block_tokens : 64;
    const std::size_t cap = (kv_len / block + 1) / 2 + 1;
    pair_list pairs(2 * cap);
    std::size_t n_pairs = 0;
    planned answer{MNNKV_OK, {}, empty_plan()};
    answer.status = mnnkv_h2o_plan_reserve(scores.data(), scores.size(), kv_len, config, pairs.data(), cap, &n_pairs,
                                           &answer.plan);
    EXPECT_LE(n_pairs, cap) << "half the number of blocks plus one is always enough";
    pairs.resize(2 * std::min(n_pairs, cap));
    answer.pairs = pairs;
    return answer;
}

/// Zero fields except these.
mnnkv_h2o_config make_config(std::uint32_t block, std::uint32_t sink, std::uint32_t recent) {
    mnnkv_h2o_config config = mnnkv::make<mnnkv_h2o_config>();
    config.block_tokens = block;
    config.sink_tokens = sink;
    config.recent_tokens = recent;
    return config;
}

/// The expected plan, block by block.
struct naive_plan {
    naive_plan(const std::vector<float>& scores, std::uint32_t kv_len, const mnnkv_h2o_config& c) {
        const std::uint32_t block = c.block_tokens, blocks = (kv_len + block - 1) / block;
        const auto tokens_in = [&](std::uint32_t b) { return std::min(kv_len - b * block, block); };
        std::vector<bool> keep(blocks);
        for (std::uint32_t b = 0; b < blocks; ++b) {
            const bool sink = b * block < c.sink_tokens;
            const bool recent = b >= (kv_len - std::min(c.recent_tokens, kv_len)) / block;
            keep[b] = sink || recent;
            floor += keep[b] ? tokens_in(b) : 0;
        }
        const float ratio = c.target_mode == MNNKV_TARGET_STATIC
                                ? std::min(std::max(c.target_keep_ratio, 0.0f), 1.0f)
                                : 1.0f / std::max(c.target_lossy_ratio, 1.0f);
        target = c.target_tokens > 0 ? c.target_tokens
                                     : static_cast<std::uint32_t>(std::ceil(ratio * static_cast<float>(kv_len)));
        target = std::min(std::max(target, 1u), kv_len);
        dominates = floor >= target;
        target = std::max(target, floor);
        quantized = std::min(kv_len, floor + (target - floor + block - 1) / block * block);

        std::uint32_t kept = floor;
        while (!dominates && kept < quantized) {
            std::uint32_t best = blocks;
            for (std::uint32_t b = 0; b < blocks; ++b) {
                if (!keep[b] && (best == blocks || better(score(scores, b), score(scores, best)))) {
                    best = b;
                }
            }
            keep[best] = true;
            kept += tokens_in(best);
        }
        for (std::uint32_t b = 0; b < blocks; ++b) {
            if (keep[b] || dominates) {
                add(static_cast<std::int32_t>(b * block), static_cast<std::int32_t>(tokens_in(b)));
            }
        }
    }

    static float score(const std::vector<float>& scores, std::uint32_t b) {
        return b < scores.size() ? scores[b] : 0.0f;
    }
    /// NaN is below everything; the lower one of equal blocks stays.
    static bool better(float a, float b) { return !std::isnan(a) && (std::isnan(b) || a > b); }

    void add(std::int32_t offset, std::int32_t length) {
        if (!pairs.empty() && pairs[pairs.size() - 2] + pairs.back() == offset) {
            pairs.back() += length;
        } else {
            pairs.push_back(offset);
            pairs.push_back(length);
        }
    }

    std::uint32_t floor = 0, target = 0, quantized = 0;
    bool dominates = false;
    pair_list pairs;
};

std::uint32_t kept_in(const pair_list& pairs) {
    std::int32_t kept = 0;
    for (std::size_t i = 1; i < pairs.size(); i += 2) {
        kept += pairs[i];
    }
    return static_cast<std::uint32_t>(kept);
}

TEST(GoldenPlan, EqualsTheReference) {
    const std::string text = read_text("h2o_plan/cases.jsonl");
    std::size_t cases = 0, evictions = 0;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        const json golden = json_reader(text.substr(at, end - at)).read();
        at = end + 1;
        SCOPED_TRACE("line " + std::to_string(++cases));

        mnnkv_h2o_config config =
            make_config(golden["block_tokens"].u32(), golden["sink"].u32(), golden["recent"].u32());
        config.target_mode = golden["mode"].text == "static" ? MNNKV_TARGET_STATIC : MNNKV_TARGET_ADAPTIVE;
        config.target_keep_ratio = golden["keep_ratio"].f32();
        config.target_lossy_ratio = golden["lossy_ratio"].f32();
        std::vector<float> scores;
        for (const json& score : golden["scores"].items) {
            scores.push_back(score.f32());
        }
        pair_list expected;
        for (const json& number : golden["reserve"].items) {
            expected.push_back(static_cast<std::int32_t>(number.number));
        }

        const planned answer = ask(scores, golden["kv_len"].u32(), &config);
        ASSERT_TRUE(ok(answer.status));
        EXPECT_EQ(answer.plan.floor_dominates, golden["floor_dominates"].truth ? 1u : 0u);
        EXPECT_EQ(answer.plan.evicted_tokens, golden["evicted"].u32());
        EXPECT_NEAR(answer.plan.floor_keep, golden["floor_keep"].number, 1e-6);
        EXPECT_NEAR(answer.plan.target_keep_effective, golden["target_effective"].number, 1e-6);
        EXPECT_NEAR(answer.plan.block_quantized_keep, golden["quantized_keep"].number, 1e-6);
        if (!golden["floor_dominates"].truth) {
            EXPECT_EQ(answer.pairs, expected);
            EXPECT_EQ(answer.plan.kept_tokens, golden["final_keep"].u32());
            ++evictions;
        }
    }
    EXPECT_EQ(cases, 300u);
    EXPECT_GT(evictions, 100u);
}

TEST(Plan, AgreesWithANaivePlanner) {
    SEEDED_DICE(random, 201);
    const float odd_scores[] = {nan_score, -nan_score, infinity, -infinity, 0.0f, -0.0f, 1.0f, -1.0f, 1e-40f, 3e38f};
    for (int i = 0; i < 3000; ++i) {
        const std::uint32_t kv_len = random.between(1, random.one_in(2) ? 60 : 700);
        mnnkv_h2o_config config = make_config(random.between(1, random.one_in(2) ? 7 : 80),
                                              random.one_in(3) ? 0 : random.below(kv_len + 9),
                                              random.one_in(3) ? 0 : random.below(kv_len + 9));
        if (random.one_in(2)) {
            config.sink_tokens /= 8;
            config.recent_tokens /= 4;
        }
        config.target_mode = random.between(MNNKV_TARGET_STATIC, MNNKV_TARGET_ADAPTIVE);
        config.target_keep_ratio = random.one_in(9) ? 2.0f * random.unit() - 0.5f : random.unit();
        config.target_lossy_ratio = random.one_in(9) ? -3.0f * random.unit() - 0.5f : 0.25f + 8.0f * random.unit();
        config.target_tokens = random.one_in(4) ? random.below(kv_len + 20) : 0;
        const std::uint32_t blocks = (kv_len + config.block_tokens - 1) / config.block_tokens;
        // Too few scores, too many, ties and every odd float.
        std::vector<float> scores(random.one_in(4) ? random.below(blocks + 5) : blocks);
        const bool odd = random.one_in(3), ties = random.one_in(3);
        for (float& score : scores) {
            score = odd && random.one_in(2) ? odd_scores[random.below(10)]
                    : ties                  ? static_cast<float>(random.below(4))
                                            : random.unit();
        }

        SCOPED_TRACE(testing::Message() << "case " << i << ": kv_len " << kv_len << " block "
                                        << config.block_tokens);
        const naive_plan expected(scores, kv_len, config);
        const planned answer = ask(scores, kv_len, &config);
        ASSERT_TRUE(ok(answer.status));
        ASSERT_EQ(answer.pairs, expected.pairs);
        const std::uint32_t kept = kept_in(expected.pairs);
        const float length = static_cast<float>(kv_len);
        ASSERT_EQ(answer.plan.kept_tokens, kept);
        ASSERT_EQ(answer.plan.evicted_tokens, kv_len - kept);
        ASSERT_EQ(answer.plan.floor_dominates, expected.dominates ? 1u : 0u);
        ASSERT_NEAR(answer.plan.floor_keep, static_cast<float>(expected.floor) / length, 1e-6);
        ASSERT_NEAR(answer.plan.target_keep_effective, static_cast<float>(expected.target) / length, 1e-6);
        ASSERT_NEAR(answer.plan.block_quantized_keep, static_cast<float>(expected.quantized) / length, 1e-6);
        ASSERT_NEAR(answer.plan.lossy_ratio, length / static_cast<float>(kept), 1e-4);
    }
}

TEST(Plan, PairsAreReadyForCompact) {
    SEEDED_DICE(random, 202);
    const mnnkv_layout layout = half_layout(640);
    noisy_cache cache(layout, random);
    std::vector<float> scores(20);
    for (float& score : scores) {
        score = random.unit();
    }
    mnnkv_h2o_config config = make_config(32, 40, 100);
    config.target_tokens = 400;
    const planned answer = ask(scores, 637, &config);
    ASSERT_TRUE(ok(answer.status));
    ASSERT_GT(answer.plan.evicted_tokens, 0u);
    std::vector<std::uint32_t> kept;
    for (std::size_t i = 0; i < answer.pairs.size(); i += 2) {
        for (std::int32_t t = 0; t < answer.pairs[i + 1]; ++t) {
            kept.push_back(static_cast<std::uint32_t>(answer.pairs[i] + t));
        }
    }
    const rows expected = cache.get(kept);
    std::uint32_t new_len = 0;
    ASSERT_TRUE(ok(mnnkv_kv_compact(&layout, cache.key.data(), cache.value.data(), 0, answer.pairs.data(),
                                    answer.pairs.size() / 2, 637, &new_len)));
    EXPECT_EQ(new_len, answer.plan.kept_tokens);
    const rows found = cache.get(tokens_from(0, new_len));
    EXPECT_TRUE(same(found.key, expected.key));
    EXPECT_TRUE(same(found.value, expected.value));
}

TEST(PlanConfig, DefaultsAreThoseTheHeaderNames) {
    mnnkv_h2o_config config;
    std::memset(&config, 0xEE, sizeof config);
    mnnkv_h2o_config_default(&config);
    EXPECT_EQ(config.struct_size, sizeof config);
    EXPECT_EQ(config.block_tokens, 64u);
    EXPECT_EQ(config.sink_tokens, 32u);
    EXPECT_EQ(config.recent_tokens, 256u);
    EXPECT_EQ(config.target_mode, static_cast<std::uint32_t>(MNNKV_TARGET_ADAPTIVE));
    EXPECT_EQ(config.target_keep_ratio, 0.5f);
    EXPECT_EQ(config.target_lossy_ratio, 3.5f);
    EXPECT_EQ(config.ema_alpha, 0.9f);
    EXPECT_EQ(config.trigger_min_tokens, 512u);
    EXPECT_EQ(config.update_interval, 16u);
    EXPECT_EQ(config.layer_start, 2);
    EXPECT_EQ(config.layer_end, -1);
    EXPECT_EQ(config.target_tokens, 0u);
    EXPECT_EQ(config.reserved[0] | config.reserved[1] | config.reserved[2], 0u);
    mnnkv_h2o_config_default(nullptr);
    const mnnkv_h2o_config wrapped = mnnkv::h2o_defaults();
    EXPECT_EQ(std::memcmp(&wrapped, &config, sizeof config), 0);
}

/// Same pairs, same numbers.
void expect_equal(const planned& a, const planned& b) {
    EXPECT_TRUE(ok(a.status));
    EXPECT_TRUE(ok(b.status));
    EXPECT_EQ(a.pairs, b.pairs);
    EXPECT_EQ(std::memcmp(&a.plan, &b.plan, sizeof a.plan), 0);
}

std::vector<float> rising_scores(std::size_t count) {
    std::vector<float> scores(count);
    std::iota(scores.begin(), scores.end(), 1.0f);
    return scores;
}

TEST(PlanConfig, NullMeansTheDefaults) {
    const mnnkv_h2o_config defaults = mnnkv::h2o_defaults();
    const planned answer = ask(rising_scores(40), 2500, nullptr);
    expect_equal(answer, ask(rising_scores(40), 2500, &defaults));
    // 2500 / 3.5 = 714.3, so 715 of which 64 + 260 are protected: seven more blocks, the best just before the last.
    EXPECT_EQ(answer.pairs, (pair_list{0, 64, 28 * 64, 2500 - 28 * 64}));
}

TEST(PlanConfig, ZeroIsTheDefaultWhereZeroMakesNoSense) {
    mnnkv_h2o_config zeros = mnnkv::make<mnnkv_h2o_config>(), spelled_out = zeros;
    spelled_out.block_tokens = 64;
    spelled_out.target_mode = MNNKV_TARGET_ADAPTIVE;
    spelled_out.target_lossy_ratio = 3.5f;
    expect_equal(ask(rising_scores(40), 2500, &zeros), ask(rising_scores(40), 2500, &spelled_out));
    // Zero is a value of sink, recent and keep ratio: the partial block stays, and a share of 0 is one token.
    // 2500 / 3.5 = 714.3, so 715: the four tokens at the end, and twelve whole blocks before them.
    EXPECT_EQ(ask(rising_scores(40), 2500, &zeros).pairs, (pair_list{27 * 64, 2500 - 27 * 64}));
    zeros.target_mode = MNNKV_TARGET_STATIC;
    EXPECT_EQ(ask(rising_scores(40), 2560, &zeros).pairs, (pair_list{39 * 64, 64}));
}

TEST(PlanConfig, FieldsForTheHostDoNotChangeThePlan) {
    mnnkv_h2o_config config = mnnkv::h2o_defaults();
    const planned before = ask(rising_scores(40), 2500, &config);
    config.ema_alpha = nan_score;
    config.trigger_min_tokens = 1000000;
    config.update_interval = 7;
    config.layer_start = 90;
    config.layer_end = 3;
    expect_equal(before, ask(rising_scores(40), 2500, &config));
}

TEST(PlanConfig, TargetTokensOverrideModeAndLength) {
    for (const std::uint32_t mode : {0u, 1u, 2u}) {
        mnnkv_h2o_config config = make_config(10, 10, 20);
        config.target_mode = mode;
        config.target_keep_ratio = 0.9f;
        config.target_lossy_ratio = 1.0f;
        config.target_tokens = 55;
        const planned answer = ask(rising_scores(100), 1000, &config);
        EXPECT_EQ(answer.plan.kept_tokens, 60u) << "55 rounded up to blocks";
        EXPECT_NEAR(answer.plan.target_keep_effective, 0.055, 1e-6);
        EXPECT_EQ(ask(rising_scores(5), 50, &config).plan.evicted_tokens, 0u) << "more than there are";
    }
}

TEST(Plan, KeepsEverythingWhenTheProtectedTokensReachTheTarget) {
    mnnkv_h2o_config config = make_config(16, 32, 64);
    config.target_tokens = 96;
    const planned dominated = ask(rising_scores(100), 1600, &config);
    EXPECT_EQ(dominated.plan.floor_dominates, 1u);
    EXPECT_EQ(dominated.plan.evicted_tokens, 0u);
    EXPECT_EQ(dominated.pairs, (pair_list{0, 1600}));
    config.target_tokens = 97;
    const planned cut = ask(rising_scores(100), 1600, &config);
    EXPECT_EQ(cut.plan.floor_dominates, 0u);
    EXPECT_EQ(cut.plan.kept_tokens, 112u) << "one block more than the protected ones";
}

TEST(Plan, OrdersScoresAsTheHeaderSays) {
    // Blocks of one token, one protected at the end, and one more kept at a time: the order of preference.
    const std::vector<float> scores = {nan_score, -infinity, 2.0f, infinity, 2.0f, -nan_score, -0.0f, 0.0f};
    const std::vector<std::int32_t> order = {3, 2, 4, 6, 7, 1, 0, 5};
    mnnkv_h2o_config config = make_config(1, 0, 1);
    for (std::uint32_t chosen = 1; chosen <= 8; ++chosen) {
        config.target_tokens = chosen + 1;
        const planned answer = ask(scores, 9, &config);
        std::vector<bool> kept(9), expected(9);
        expected[8] = true;
        for (std::uint32_t i = 0; i < chosen; ++i) {
            expected[static_cast<std::size_t>(order[i])] = true;
        }
        for (std::size_t i = 0; i < answer.pairs.size(); i += 2) {
            for (std::int32_t t = 0; t < answer.pairs[i + 1]; ++t) {
                kept[static_cast<std::size_t>(answer.pairs[i] + t)] = true;
            }
        }
        EXPECT_EQ(kept, expected) << chosen << " chosen";
    }
}

TEST(Plan, OfAnEmptyCacheIsEmpty) {
    std::size_t n_pairs = 9;
    mnnkv_h2o_plan plan = empty_plan();
    ASSERT_TRUE(ok(mnnkv_h2o_plan_reserve(nullptr, 0, 0, nullptr, nullptr, 0, &n_pairs, &plan)));
    EXPECT_EQ(n_pairs, 0u);
    EXPECT_EQ(plan.kept_tokens + plan.evicted_tokens, 0u);
    EXPECT_EQ(plan.lossy_ratio, 1.0f);
}

TEST(Plan, ReachesTheLongestCacheThereIs) {
    mnnkv_h2o_config config = make_config(1u << 20, 32, 256);
    config.target_lossy_ratio = 2.0f;
    const planned answer = ask(rising_scores(2048), INT32_MAX, &config);
    ASSERT_TRUE(ok(answer.status));
    EXPECT_EQ(answer.plan.kept_tokens + answer.plan.evicted_tokens, static_cast<std::uint32_t>(INT32_MAX));
    EXPECT_NEAR(answer.plan.lossy_ratio, 2.0, 0.01);
    config.block_tokens = UINT32_MAX;
    EXPECT_EQ(ask({}, INT32_MAX, &config).pairs, (pair_list{0, INT32_MAX})) << "one block larger than the cache";
}

TEST(Plan, GivesTheNumberOfPairsItNeedsAndTouchesNothingElse) {
    // Every other block of eight: four pairs, the last two of them joined with the protected end.
    const std::vector<float> scores = {9, 0, 9, 0, 9, 0, 9, 0};
    mnnkv_h2o_config config = make_config(10, 0, 5);
    config.target_tokens = 50;
    for (const std::size_t cap : {0u, 1u, 3u}) {
        std::int32_t pairs[8];
        mnnkv_h2o_plan plan = empty_plan();
        plan.kept_tokens = 77;
        plan.lossy_ratio = 7.0f;
        const mnnkv_h2o_plan before = plan;
        std::memset(pairs, 0x5A, sizeof pairs);
        std::size_t n_pairs = 99;
        EXPECT_TRUE(refuses(MNNKV_BUFFER_TOO_SMALL, "pairs_cap", [&] {
            return mnnkv_h2o_plan_reserve(scores.data(), 8, 80, &config, cap == 0 ? nullptr : pairs, cap, &n_pairs,
                                          &plan);
        }));
        EXPECT_EQ(n_pairs, 4u);
        EXPECT_EQ(std::memcmp(&plan, &before, sizeof plan), 0);
        for (const std::int32_t number : pairs) {
            EXPECT_EQ(number, 0x5A5A5A5A);
        }
    }
    EXPECT_EQ(ask(scores, 80, &config).pairs, (pair_list{0, 10, 20, 10, 40, 10, 60, 20}));
}

TEST(Scores, FollowTheFormula) {
    SEEDED_DICE(random, 203);
    for (int i = 0; i < 300; ++i) {
        const std::size_t n = random.below(50);
        const float alpha = i < 2 ? static_cast<float>(i) : random.unit(), norm = 0.5f + 999.0f * random.unit();
        std::vector<float> scores(n), acc(n), expected(n);
        for (std::size_t b = 0; b < n; ++b) {
            scores[b] = random.unit();
            acc[b] = norm * random.unit();
            const double folded = double(alpha) * scores[b] + (1.0 - double(alpha)) * acc[b] / norm;
            expected[b] = static_cast<float>(folded);
        }
        ASSERT_TRUE(ok(mnnkv_h2o_update_scores(scores.data(), n, acc.data(), alpha, norm)));
        for (std::size_t b = 0; b < n; ++b) {
            ASSERT_NEAR(scores[b], expected[b], 1e-6) << "case " << i << " block " << b;
        }
    }
}

TEST(Scores, AWorkedExample) {
    float scores[] = {0.5f, 0.0f, 1.0f};
    const float acc[] = {8.0f, 16.0f, 0.0f};
    ASSERT_TRUE(ok(mnnkv_h2o_update_scores(scores, 3, acc, 0.75f, 16.0f)));
    EXPECT_EQ(scores[0], 0.5f);
    EXPECT_EQ(scores[1], 0.25f);
    EXPECT_EQ(scores[2], 0.75f);
    EXPECT_TRUE(ok(mnnkv_h2o_update_scores(nullptr, 0, nullptr, 0.75f, 16.0f))) << "no blocks is legal";
}

}  // namespace
