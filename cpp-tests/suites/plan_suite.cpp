// Eviction plans and scores: golden cases of the reference, defaults, invalid calls. Random cases: tests/h2o.rs.

#include "packed_model.hpp"
#include "refusal.hpp"

namespace {

using namespace support;

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

TEST(Scores, AWorkedExample) {
    float scores[] = {0.5f, 0.0f, 1.0f};
    const float acc[] = {8.0f, 16.0f, 0.0f};
    ASSERT_TRUE(ok(mnnkv_h2o_update_scores(scores, 3, acc, 0.75f, 16.0f)));
    EXPECT_EQ(scores[0], 0.5f);
    EXPECT_EQ(scores[1], 0.25f);
    EXPECT_EQ(scores[2], 0.75f);
    EXPECT_TRUE(ok(mnnkv_h2o_update_scores(nullptr, 0, nullptr, 0.75f, 16.0f))) << "no blocks is legal";
}

class BadPlanInput : public testing::Test {
protected:
    void expect_all_refused(const std::vector<bad_call>& calls) { expect_refused(calls, pairs_, n_pairs_, plan_); }

    struct pair_room {
        std::int32_t numbers[16];
    };
    const float scores_[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    slot<pair_room> pairs_;
    slot<std::size_t> n_pairs_;
    slot<mnnkv_h2o_plan> plan_;
};

TEST_F(BadPlanInput, PointersAreChecked) {
    std::int32_t* const pairs = pairs_.get()->numbers;
    slot<std::size_t> sizes[2];
    slot<mnnkv_h2o_plan> plans[2];
    const mnnkv_h2o_config configs[2] = {mnnkv::h2o_defaults(), mnnkv::h2o_defaults()};
    const auto call = [&](const float* scores, std::size_t n, const mnnkv_h2o_config* config, std::int32_t* to,
                          std::size_t cap, std::size_t* n_pairs, mnnkv_h2o_plan* out) {
        return [=] { return mnnkv_h2o_plan_reserve(scores, n, 500, config, to, cap, n_pairs, out); };
    };
    expect_all_refused({
        {bad, "scores", call(nullptr, 8, nullptr, pairs, 8, n_pairs_.get(), plan_.get())},
        {bad, "pairs", call(scores_, 8, nullptr, nullptr, 8, n_pairs_.get(), plan_.get())},
        {bad, "n_pairs", call(scores_, 8, nullptr, pairs, 8, nullptr, plan_.get())},
        {bad, "plan", call(scores_, 8, nullptr, pairs, 8, n_pairs_.get(), nullptr)},
        {bad, "scores", call(misaligned(scores_), 8, nullptr, pairs, 8, n_pairs_.get(), plan_.get())},
        {bad, "config", call(scores_, 8, misaligned(&configs[0]), pairs, 8, n_pairs_.get(), plan_.get())},
        {bad, "pairs", call(scores_, 8, nullptr, misaligned(pairs), 7, n_pairs_.get(), plan_.get())},
        {bad, "n_pairs", call(scores_, 8, nullptr, pairs, 8, misaligned(sizes[0].get()), plan_.get())},
        {bad, "plan", call(scores_, 8, nullptr, pairs, 8, n_pairs_.get(), misaligned(plans[0].get()))},
        {bad, "scores", call(scores_, SIZE_MAX, nullptr, pairs, 8, n_pairs_.get(), plan_.get())},
        {bad, "scores", call(scores_, SIZE_MAX / 4 + 1, nullptr, pairs, 8, n_pairs_.get(), plan_.get())},
        {bad, "pairs", call(scores_, 8, nullptr, pairs, SIZE_MAX, n_pairs_.get(), plan_.get())},
        {bad, "pairs", call(scores_, 8, nullptr, pairs, SIZE_MAX / 8 + 1, n_pairs_.get(), plan_.get())},
    });
    EXPECT_TRUE(sizes[0].untouched() && sizes[1].untouched() && plans[0].untouched() && plans[1].untouched());
}

TEST(BadScores, AreRefusedBeforeAScoreChanges) {
    struct three {
        float values[3];
    };
    slot<three> scores;
    float* const s = scores.get()->values;
    const float acc[4] = {1, 2, 3, 4};
    const auto update = [&](float* to, std::size_t n, const float* from, float alpha, float norm) {
        return [=] { return mnnkv_h2o_update_scores(to, n, from, alpha, norm); };
    };
    std::vector<bad_call> calls = {
        {bad, "scores", update(nullptr, 3, acc, 0.9f, 1.0f)},
        {bad, "block_acc", update(s, 3, nullptr, 0.9f, 1.0f)},
        {bad, "scores", update(misaligned(s), 2, acc, 0.9f, 1.0f)},
        {bad, "block_acc", update(s, 3, misaligned(acc), 0.9f, 1.0f)},
        {bad, "scores", update(s, SIZE_MAX, acc, 0.9f, 1.0f)},
        {bad, "overlap", update(s, 3, s, 0.9f, 1.0f)},
        {bad, "overlap", update(s, 2, s + 1, 0.9f, 1.0f)},
    };
    for (const float alpha : {-0.001f, 1.001f, -infinity, infinity, not_a_number}) {
        calls.push_back({bad, "alpha", update(s, 3, acc, alpha, 1.0f)});
    }
    for (const float norm : {0.0f, -0.0f, -1.0f, -infinity, not_a_number}) {
        calls.push_back({bad, "norm", update(s, 3, acc, 0.9f, norm)});
    }
    expect_refused(calls, scores);
    for (std::size_t at = 0; at < 3; ++at) {
        for (const float odd : {not_a_number, infinity, -infinity}) {
            float sums[3] = {1, 2, 3};
            sums[at] = odd;
            expect_refused({{bad, "block_acc[" + std::to_string(at) + "]", update(s, 3, sums, 0.9f, 1.0f)}}, scores);
        }
    }
    EXPECT_TRUE(refuses(bad, "alpha", update(nullptr, 0, nullptr, 2.0f, 1.0f))) << "checked without blocks too";
}

}  // namespace
