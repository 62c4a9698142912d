// struct_size: structs of older and newer headers, forgotten ones, and nonsense.

#include "codec.hpp"
#include "packed_model.hpp"
#include "struct_sizes.hpp"

namespace {

using namespace support;

TEST(OptionStruct, GearOptionsComeInAllSizes) {
    const bytes words(64, 3);
    bytes blob(256);
    std::size_t length = 0;
    check_sizes(in_format(0), [&](const mnnkv_gear_options* options) {
        return fp16.encode(words.data(), words.size(), options, blob.data(), blob.size(), &length);
    });
}

TEST(OptionStruct, LayoutsComeInAllSizes) {
    const mnnkv_layout good = make_layout(pack_modes[0], 1, 4, 8, 8);
    std::uint64_t k = 0, v = 0;
    bytes key(4 * 4 * 8), value(4 * 4 * 8), keys(4 * 4 * 8), values(4 * 4 * 8);
    ASSERT_TRUE(ok(mnnkv_layout_check(&good, &k, &v)));
    ASSERT_TRUE(k == key.size() && v == value.size());
    check_sizes(good, [&](const mnnkv_layout* l) { return mnnkv_layout_check(l, &k, &v); });
    check_sizes(good, [&](const mnnkv_layout* l) {
        return mnnkv_kv_gather(l, key.data(), value.data(), 0, 8, keys.data(), values.data(), keys.size());
    });
    check_sizes(good, [&](const mnnkv_layout* l) {
        return mnnkv_kv_scatter(l, keys.data(), values.data(), keys.size(), 0, 8, key.data(), value.data());
    });
    check_sizes(good, [&](const mnnkv_layout* l) { return mnnkv_kv_move(l, key.data(), value.data(), 0, 1, 4); });
    check_sizes(good, [&](const mnnkv_layout* l) { return mnnkv_kv_zero(l, key.data(), value.data(), 0, 4); });
    check_sizes(good, [&](const mnnkv_layout* l) {
        return mnnkv_kv_release(l, key.data(), value.data(), 0, 4, &k);
    });
    std::uint32_t new_len = 0;
    check_sizes(good, [&](const mnnkv_layout* l) {
        return mnnkv_kv_compact(l, key.data(), value.data(), 2, nullptr, 0, 8, &new_len);
    });
    mnnkv::store store;
    ASSERT_TRUE(ok(store.create().code()));
    check_sizes(good, [&](const mnnkv_layout* l) {
        return mnnkv_store_submit(store.get(), 0, l, key.data(), value.data(), 0, 8, &k);
    });
    check_sizes(good, [&](const mnnkv_layout* l) {
        return mnnkv_store_commit(store.get(), 0, l, key.data(), value.data(), &k);
    });
    check_sizes(good, [&](const mnnkv_layout* l) {
        return mnnkv_store_restore(store.get(), 0, l, key.data(), value.data(), &k);
    });
}

TEST(OptionStruct, EvictionConfigsComeInAllSizes) {
    std::int32_t pairs[16];
    std::size_t n_pairs = 0;
    mnnkv_h2o_plan plan = empty_plan();
    check_sizes(mnnkv::h2o_defaults(), [&](const mnnkv_h2o_config* config) {
        return mnnkv_h2o_plan_reserve(nullptr, 0, 100, config, pairs, 8, &n_pairs, &plan);
    });
}

TEST(OptionStruct, StoreConfigsComeInAllSizes) {
    const auto create = [](const mnnkv_store_config* config) {
        mnnkv_store* store = nullptr;
        const mnnkv_status status = mnnkv_store_create(config, MNNKV_ABI_VERSION, &store);
        mnnkv_store_destroy(store);
        return status;
    };
    check_sizes(mnnkv::make<mnnkv_store_config>(), create);
}

TEST(OptionStruct, SessionOptionsComeInAllSizes) {
    const auto create = [](const mnnkv_session_options* options) {
        mnnkv_session* session = nullptr;
        const mnnkv_status status = mnnkv_session_create(options, &session);
        mnnkv_session_destroy(session);
        return status;
    };
    mnnkv_session_options options = mnnkv::make<mnnkv_session_options>();
    options.abi_version = MNNKV_ABI_VERSION;
    options.layers = options.lanes = 1;
    check_sizes(options, create);
}

TEST(OptionStruct, SessionStructsComeInAllSizes) {
    const mnnkv_layout layout = make_layout(pack_modes[0], 1, 4, 8, 8);
    bytes key(4 * 4 * 8, 1), value(4 * 4 * 8, 1);
    mnnkv::session session;
    const std::string config = R"({"kv_h2o_enable": true, "kv_h2o_layer_start": 0})";
    ASSERT_TRUE(ok(session.create(config.data(), config.size(), 1, 1).code()));
    mnnkv_cache cache = mnnkv::make<mnnkv_cache>();
    cache.layout = &layout;
    cache.key = key.data();
    cache.value = value.data();
    const auto changing = [](const mnnkv_cache* c) { return const_cast<mnnkv_cache*>(c); };
    check_sizes(cache, [&](const mnnkv_cache* c) {
        const mnnkv_status status = mnnkv_session_begin(session.get(), 0, changing(c), nullptr);
        EXPECT_TRUE(ok(session.reset_all().code()));
        return status;
    });
    check_sizes(mnnkv::make<mnnkv_step>(), [&](const mnnkv_step* s) {
        mnnkv_cache good = cache;
        const mnnkv_status status = mnnkv_session_begin(session.get(), 0, &good, const_cast<mnnkv_step*>(s));
        EXPECT_TRUE(ok(session.reset_all().code()));
        return status;
    });
    check_sizes(cache, [&](const mnnkv_cache* c) {
        mnnkv_cache good = cache;
        EXPECT_TRUE(ok(session.begin(0, good).code()));
        const mnnkv_status status = mnnkv_session_end(session.get(), 0, 0, 0, changing(c));
        EXPECT_TRUE(ok(session.reset_all().code()));
        return status;
    });
    check_sizes(cache, [&](const mnnkv_cache* c) {
        return mnnkv_session_keep(session.get(), 0, nullptr, 0, changing(c));
    });

    ASSERT_TRUE(ok(session.begin(0, cache).code()));
    double probability = 1;
    mnnkv_block_sums sums = mnnkv::make<mnnkv_block_sums>();
    sums.flags = MNNKV_TILE_FIRST | MNNKV_TILE_LAST;
    sums.heads = sums.rows = sums.blocks = sums.token_end = 1;
    sums.block_tokens = 64;
    sums.sums = &probability;
    check_sizes(sums, [&](const mnnkv_block_sums* s) { return mnnkv_session_block_sums(session.get(), 0, 0, s); });
}

TEST(OptionStruct, StatisticsAreWrittenAsFarAsTheCallerHasRoom) {
    mnnkv::store store;
    ASSERT_TRUE(ok(store.create().code()));
    check_output_sizes<mnnkv_store_statistics>(
        [&](mnnkv_store_statistics* out) { return mnnkv_store_stats(store.get(), out); });
}

TEST(OptionStruct, PlansAreWrittenAsFarAsTheCallerHasRoom) {
    std::int32_t pairs[16];
    std::size_t n_pairs = 0;
    check_output_sizes<mnnkv_h2o_plan>([&](mnnkv_h2o_plan* out) {
        return mnnkv_h2o_plan_reserve(nullptr, 0, 1000, nullptr, pairs, 8, &n_pairs, out);
    });
}

}  // namespace
