// Invalid calls of plans, scores and the store.

#include "refusal.hpp"
#include "store_host.hpp"

#include <cmath>
#include <memory>

namespace {

using namespace support;

class BadPlanInput : public testing::Test {
protected:
    /// A good call, with these arguments changed.
    mnnkv_status plan(std::uint32_t kv_len, const mnnkv_h2o_config* config) {
        return mnnkv_h2o_plan_reserve(scores_, 8, kv_len, config, pairs_.get()->numbers, 8, n_pairs_.get(),
                                      plan_.get());
    }

    void expect_all_refused(const std::vector<bad_call>& calls) { expect_refused(calls, pairs_, n_pairs_, plan_); }

    template <class Change>
    void expect_config_refused(const std::string& word, Change change) {
        SCOPED_TRACE(word);
        mnnkv_h2o_config config = mnnkv::h2o_defaults();
        change(config);
        expect_all_refused({{bad, word, [&] { return plan(500, &config); }}});
    }

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

TEST_F(BadPlanInput, LengthsPastTheLongestCacheAreRefused) {
    for (const std::uint32_t kv_len : {0x80000000u, UINT32_MAX}) {
        expect_all_refused({{bad, "kv_len", [&] { return plan(kv_len, nullptr); }}});
    }
}

TEST_F(BadPlanInput, ConfigsOutOfRangeAreRefused) {
    for (const std::uint32_t mode : {3u, UINT32_MAX}) {
        expect_config_refused("target_mode", [=](mnnkv_h2o_config& c) { c.target_mode = mode; });
    }
    expect_config_refused("target_lossy_ratio", [](mnnkv_h2o_config& c) { c.target_lossy_ratio = not_a_number; });
    expect_config_refused("target_keep_ratio", [](mnnkv_h2o_config& c) {
        c.target_mode = MNNKV_TARGET_STATIC;
        c.target_keep_ratio = not_a_number;
    });
    for (std::size_t i = 0; i < 3; ++i) {
        expect_config_refused("reserved", [i](mnnkv_h2o_config& c) { c.reserved[i] = 1; });
    }
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

TEST(BadStoreConfig, IsRefusedAndGivesNoHandle) {
    slot<mnnkv_store*> out;
    slot<mnnkv_store*> two[2];
    const auto create_with = [&](const std::function<void(mnnkv_store_config&)>& change) {
        return [&out, change] {
            mnnkv_store_config config = mnnkv::make<mnnkv_store_config>();
            change(config);
            return mnnkv_store_create(&config, MNNKV_ABI_VERSION, out.get());
        };
    };
    const mnnkv_store_config configs[2] = {mnnkv::make<mnnkv_store_config>(), mnnkv::make<mnnkv_store_config>()};
    std::vector<bad_call> calls = {
        {bad, "out", [&] { return mnnkv_store_create(nullptr, MNNKV_ABI_VERSION, nullptr); }},
        {bad, "out", [&] { return mnnkv_store_create(nullptr, MNNKV_ABI_VERSION, misaligned(two[0].get())); }},
        {bad, "config", [&] { return mnnkv_store_create(misaligned(&configs[0]), MNNKV_ABI_VERSION, out.get()); }},
        {bad, "workers", create_with([](auto& c) { c.workers = 65; })},
        {bad, "workers", create_with([](auto& c) { c.workers = UINT32_MAX; })},
        {bad, "format", create_with([](auto& c) { c.format = 4; })},
        {bad, "format", create_with([](auto& c) { c.format = UINT32_MAX; })},
        {bad, "strict_roundtrip", create_with([](auto& c) { c.strict_roundtrip = 2; })},
        {bad, "predictors", create_with([](auto& c) { c.key_predictors = 8; })},
        {bad, "predictors", create_with([](auto& c) { c.value_predictors = UINT32_MAX; })},
        {bad, "effort", create_with([](auto& c) { c.effort = -1; })},
        {bad, "effort", create_with([](auto& c) { c.effort = 10; })},
        {bad, "effort", create_with([](auto& c) { c.effort = INT32_MIN; })},
    };
    for (const std::uint32_t abi : {0u, MNNKV_ABI_VERSION + 1u, UINT32_MAX}) {
        calls.push_back(
            {MNNKV_UNSUPPORTED, "abi_version", [=, &out] { return mnnkv_store_create(nullptr, abi, out.get()); }});
    }
    // V2 has no predictors.
    calls.push_back({bad, "predictors", create_with([](auto& c) {
                         c.format = MNNKV_GEAR_FORMAT_V2;
                         c.value_predictors = MNNKV_PREDICT_XOR_SEQ;
                     })});
    expect_refused(calls, out, two[0], two[1]);

    mnnkv::store store;
    mnnkv_store_config config = mnnkv::make<mnnkv_store_config>();
    config.effort = -1;
    EXPECT_FALSE(store.create(&config));
    EXPECT_FALSE(store) << "a store that could not be made holds nothing";
}

/// A store with a resident and a released block, which refused calls must not change.
class BadStoreInput : public testing::Test {
protected:
    BadStoreInput() : random_(602), layout_(half_layout(128)) {
        EXPECT_TRUE(ok(store_.create().code()));
        host_.reset(new store_host(store_, 0, layout_, random_));
        host_->append(128);
        EXPECT_TRUE(ok(host_->submit(0, 32)));
        EXPECT_TRUE(ok(host_->commit()));
        EXPECT_TRUE(ok(host_->submit(64, 32)));
        before_ = stats_of(store_);
    }

    void expect_all_refused(const std::vector<bad_call>& calls) {
        expect_refused(calls, ticket_, amount_, statistics_);
        EXPECT_TRUE(host_->sound());
        const mnnkv_store_statistics after = stats_of(store_);
        EXPECT_EQ(std::memcmp(&before_, &after, sizeof after), 0) << "the store has changed";
    }

    /// The functions of a cache, called with these.
    std::vector<bad_call> calls_with(mnnkv_status expected, const std::string& word, mnnkv_store* store,
                                     const mnnkv_layout* layout, std::uint8_t* key, std::uint8_t* value) {
        return {
            {expected, word,
             [=] { return mnnkv_store_submit(store, 0, layout, key, value, 40, 8, ticket_.get()); }},
            {expected, word, [=] { return mnnkv_store_commit(store, 0, layout, key, value, amount_.get()); }},
            {expected, word, [=] { return mnnkv_store_restore(store, 0, layout, key, value, amount_.get()); }},
        };
    }

    dice random_;
    mnnkv_layout layout_;
    mnnkv::store store_;
    std::unique_ptr<store_host> host_;
    mnnkv_store_statistics before_;
    slot<std::uint64_t> ticket_, amount_;
    slot<mnnkv_store_statistics> statistics_;
};

TEST_F(BadStoreInput, PointersAreChecked) {
    std::uint8_t *const key = host_->key(), *const value = host_->value();
    mnnkv_store* const store = store_.get();
    const mnnkv_layout two[2] = {layout_, layout_};
    const std::int32_t four[4] = {0, 32, 40, 8};
    slot<std::uint64_t> outs[2];
    mnnkv_store_statistics many[2] = {before_, before_};
    expect_all_refused(calls_with(bad, "store", nullptr, &layout_, key, value));
    expect_all_refused(calls_with(bad, "layout", store, nullptr, key, value));
    expect_all_refused(calls_with(bad, "layout", store, misaligned(&two[0]), key, value));
    expect_all_refused(calls_with(bad, "key", store, &layout_, nullptr, value));
    expect_all_refused(calls_with(bad, "value", store, &layout_, key, nullptr));
    expect_all_refused({
        {bad, "ticket", [&] { return mnnkv_store_submit(store, 0, &layout_, key, value, 40, 8, nullptr); }},
        {bad, "released_bytes", [&] { return mnnkv_store_commit(store, 0, &layout_, key, value, nullptr); }},
        {bad, "restored_bytes", [&] { return mnnkv_store_restore(store, 0, &layout_, key, value, nullptr); }},
        {bad, "ticket",
         [&] { return mnnkv_store_submit(store, 0, &layout_, key, value, 40, 8, misaligned(outs[0].get())); }},
        {bad, "released_bytes",
         [&] { return mnnkv_store_commit(store, 0, &layout_, key, value, misaligned(outs[0].get())); }},
        {bad, "restored_bytes",
         [&] { return mnnkv_store_restore(store, 0, &layout_, key, value, misaligned(outs[0].get())); }},
        {bad, "store", [&] { return mnnkv_store_prefetch(nullptr, 0); }},
        {bad, "store", [&] { return mnnkv_store_compacted(nullptr, 0, four, 2); }},
        {bad, "reserve_pairs", [&] { return mnnkv_store_compacted(store, 0, nullptr, 1); }},
        {bad, "reserve_pairs", [&] { return mnnkv_store_compacted(store, 0, misaligned(four), 1); }},
        {bad, "reserve_pairs", [&] { return mnnkv_store_compacted(store, 0, four, SIZE_MAX); }},
        {bad, "store", [&] { return mnnkv_store_truncated(nullptr, 0, 4); }},
        {bad, "store", [&] { return mnnkv_store_stats(nullptr, statistics_.get()); }},
        {bad, "statistics", [&] { return mnnkv_store_stats(store, nullptr); }},
        {bad, "statistics", [&] { return mnnkv_store_stats(store, misaligned(&many[0])); }},
    });
    EXPECT_TRUE(outs[0].untouched() && outs[1].untouched());
}

TEST_F(BadStoreInput, RangesOutsideTheCacheAreRefused) {
    const struct {
        std::uint32_t begin, count;
        const char* word;
    } ranges[] = {{40, 0, "count"},           {0, 0, "count"},
                  {120, 9, "max_tokens"},     {128, 1, "max_tokens"},
                  {0, 129, "max_tokens"},     {UINT32_MAX, 1, "max_tokens"},
                  {1, UINT32_MAX, "max_tokens"}, {UINT32_MAX, UINT32_MAX, "max_tokens"}};
    for (const auto& r : ranges) {
        SCOPED_TRACE(testing::Message() << r.count << " tokens from " << r.begin);
        expect_all_refused({{bad, r.word, [&] {
                                 return mnnkv_store_submit(store_.get(), 0, &layout_, host_->key(), host_->value(),
                                                           r.begin, r.count, ticket_.get());
                             }}});
    }
}

TEST_F(BadStoreInput, LayoutsThatCannotBeAreRefused) {
    mnnkv_layout layouts[4] = {layout_, layout_, layout_, layout_};
    layouts[0].head_dim = 0;
    layouts[1].kv_heads = layouts[1].head_dim = layouts[1].max_tokens = UINT32_MAX;
    layouts[2].value_token_stride = 7;
    layouts[3].key_head_stride = 2;
    const char* const words[4] = {"head_dim", "key", "value_token_stride", "key_head_stride"};
    for (std::size_t i = 0; i < 4; ++i) {
        expect_all_refused(
            calls_with(bad, words[i], store_.get(), &layouts[i], host_->key(), host_->value()));
    }
    mnnkv_layout quantised = layout_;
    quantised.value_dtype = MNNKV_DTYPE_INT8;
    expect_all_refused(calls_with(MNNKV_UNSUPPORTED, "value_dtype", store_.get(), &quantised, host_->key(),
                                  host_->value()));
}

TEST_F(BadStoreInput, CachesWhoseKAndVOverlapAreRefused) {
    std::vector<bad_call> calls =
        calls_with(bad, "overlap", store_.get(), &layout_, host_->key(), host_->key() + 1);
    calls.erase(calls.begin());  // submit only reads the cache
    expect_all_refused(calls);
}

TEST_F(BadStoreInput, BadPairsAreRefusedAndChangeNothing) {
    const std::vector<std::int32_t> plans[] = {
        {-1, 2},       {3, -2},       {INT32_MIN, INT32_MIN}, {2, 4, 5, 2},
        {2, 4, 2, 4},  {8, 2, 2, 2},  {2, 2, 9, -1},          {INT32_MAX, INT32_MAX, 5, 1},
    };
    for (const auto& pairs : plans) {
        SCOPED_TRACE(testing::PrintToString(pairs));
        expect_all_refused({{bad, "pair", [&] {
                                 return mnnkv_store_compacted(store_.get(), 0, pairs.data(), pairs.size() / 2);
                             }}});
    }
}

TEST_F(BadStoreInput, LeavesEverythingInWorkingOrder) {
    expect_all_refused(calls_with(bad, "layout", store_.get(), nullptr, nullptr, nullptr));
    EXPECT_TRUE(ok(host_->restore()));
    EXPECT_TRUE(host_->whole());
    EXPECT_TRUE(ok(host_->commit()));
    EXPECT_EQ(host_->released_raw_bytes(), 64 * host_->model().token_bytes());
    EXPECT_TRUE(ok(host_->restore()));
    EXPECT_TRUE(host_->whole());
}

}  // namespace
