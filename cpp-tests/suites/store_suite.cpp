// The store through the C functions and the wrapper. What it does with tokens: src/store/tests.rs.

#include "refusal.hpp"
#include "store_host.hpp"

#include <atomic>
#include <memory>
#include <thread>
#include <type_traits>

namespace {

using namespace support;

/// A store with workers, and a host with 256 compressible tokens in layer 5.
class Store : public testing::TestWithParam<std::uint32_t> {
protected:
    Store() : random_(401), host_(store_, 5, half_layout(320), random_) {
        mnnkv_store_config config = mnnkv::make<mnnkv_store_config>();
        config.workers = GetParam();
        EXPECT_TRUE(ok(store_.create(&config).code()));
        host_.append(256);
    }

    /// Until all submitted blocks are encoded and released.
    void release(std::uint32_t begin, std::uint32_t count) {
        ASSERT_TRUE(ok(host_.submit(begin, count)));
        for (int i = 0; i < 1000 && host_.released_tokens(begin, count) < count; ++i) {
            ASSERT_TRUE(ok(host_.commit()));
            std::this_thread::sleep_for(std::chrono::milliseconds(i));
        }
        ASSERT_EQ(host_.released_tokens(begin, count), count);
    }

    void expect_whole_after_restore(std::uint64_t tokens) {
        std::uint64_t restored = ~0ull;
        EXPECT_TRUE(ok(host_.restore(&restored)));
        EXPECT_EQ(restored, tokens * host_.model().token_bytes());
        EXPECT_TRUE(host_.whole());
    }

    dice random_;
    mnnkv::store store_;
    store_host host_;
};

TEST_P(Store, ReleasesWhatWasSubmittedAndRestoresItBitForBit) {
    release(32, 128);
    EXPECT_TRUE(host_.sound()) << "all other tokens are there";
    EXPECT_EQ(stats_of(store_).released_raw_bytes, 128 * host_.model().token_bytes());
    expect_whole_after_restore(128);
    expect_whole_after_restore(0);
}

TEST_P(Store, RestoresIntoACacheThatHasGrownAndIsPackedOtherwise) {
    for (const std::size_t mode : {14u, 8u, 7u}) {
        SCOPED_TRACE(pack_modes[mode].name);
        release(0, 250);
        // Without flash attention the value block is as long as the cache.
        mnnkv_layout larger = make_layout(pack_modes[mode], 2, 24, 1000, 1000);
        larger.key_head_stride = packed_model(larger).key_head_bytes() + 4096;
        host_.move_to(larger);
        expect_whole_after_restore(250);
        host_.move_to(half_layout(320));
    }
}

TEST_P(Store, FollowsTokensThroughAnEvictionAndARollback) {
    release(64, 64);
    release(192, 32);
    // Keeps parts of both blocks, cuts the first in two, and moves everything.
    host_.compact(8, {20, 10, 60, 20, 90, 30, 186, 20});
    EXPECT_TRUE(host_.sound());
    EXPECT_EQ(stats_of(store_).released_raw_bytes, host_.released_raw_bytes());
    host_.truncate(80);
    host_.append(100);
    EXPECT_TRUE(ok(host_.restore()));
    EXPECT_TRUE(host_.whole());
}

TEST_P(Store, ReadsItsCountersBesideOtherCalls) {
    std::atomic<bool> done{false};
    std::atomic<int> wrong{0};
    std::thread reader([&] {
        while (!done) {
            mnnkv_store_statistics now = mnnkv::make<mnnkv_store_statistics>();
            wrong += !store_.stats(now) || now.released_raw_bytes > now.raw_bytes;
        }
    });
    for (int i = 0; i < 30; ++i) {
        ASSERT_TRUE(ok(host_.submit(0, 200)));
        ASSERT_TRUE(ok(host_.commit()));
        ASSERT_TRUE(ok(host_.restore()));
    }
    done = true;
    reader.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_TRUE(host_.whole());
}

INSTANTIATE_TEST_SUITE_P(Workers, Store, testing::Values(0u, 2u));

TEST(StoreWrapper, MovesAndResets) {
    static_assert(std::is_nothrow_move_constructible<mnnkv::store>::value, "stores move");
    static_assert(!std::is_copy_constructible<mnnkv::store>::value, "stores do not copy");
    mnnkv::store first, third;
    ASSERT_TRUE(ok(first.create().code()) && ok(third.create().code()));
    mnnkv_store* const handle = first.get();
    mnnkv::store second(std::move(first));
    EXPECT_EQ(second.get(), handle);
    third = std::move(second);
    EXPECT_EQ(third.get(), handle);
    third.reset();
    third.reset();
    EXPECT_FALSE(third);
    mnnkv_store_destroy(nullptr);
    EXPECT_EQ(third.compacted(0, nullptr, 0).code(), bad);
    EXPECT_NE(std::string(third.compacted(0, nullptr, 0).message()).find("store"), std::string::npos);
    EXPECT_TRUE(ok(third.create().code())) << "a reset store can be made again";
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
    expect_refused(
        {
            {bad, "out", [&] { return mnnkv_store_create(nullptr, MNNKV_ABI_VERSION, nullptr); }},
            {bad, "out", [&] { return mnnkv_store_create(nullptr, MNNKV_ABI_VERSION, misaligned(two[0].get())); }},
            {bad, "config", [&] { return mnnkv_store_create(misaligned(&configs[0]), MNNKV_ABI_VERSION, out.get()); }},
            {bad, "workers", create_with([](auto& c) { c.workers = 65; })},
            {bad, "strict_roundtrip", create_with([](auto& c) { c.strict_roundtrip = 2; })},
            {bad, "predictors", create_with([](auto& c) { c.key_predictors = 8; })},
            {bad, "predictors", create_with([](auto& c) { c.value_predictors = UINT32_MAX; })},
            {bad, "effort", create_with([](auto& c) { c.effort = 10; })},
            {bad, "reserved", create_with([](auto& c) { c.reserved = 1; })},
            {MNNKV_UNSUPPORTED, "abi_version", [&] { return mnnkv_store_create(nullptr, 0, out.get()); }},
        },
        out, two[0], two[1]);
}

TEST(BadStoreInput, IsRefusedAndChangesNothing) {
    SEEDED_DICE(random, 602);
    const mnnkv_layout layout = half_layout(128);
    mnnkv::store made;
    ASSERT_TRUE(ok(made.create().code()));
    store_host host(made, 0, layout, random);
    host.append(128);
    ASSERT_TRUE(ok(host.submit(0, 32)) && ok(host.commit()) && ok(host.submit(64, 32)));
    const mnnkv_store_statistics before = stats_of(made);

    mnnkv_store* const store = made.get();
    std::uint8_t *const key = host.key(), *const value = host.value();
    const std::int32_t four[4] = {0, 32, 40, 8}, overlapping[4] = {2, 4, 5, 2};
    slot<std::uint64_t> number;
    slot<mnnkv_store_statistics> statistics;
    mnnkv_layout quantised = layout;
    quantised.value_dtype = MNNKV_DTYPE_INT8;
    const auto submit = [&](mnnkv_store* to, const mnnkv_layout* of, std::uint8_t* k, std::uint8_t* v,
                            std::uint32_t begin, std::uint32_t count) {
        return [=, &number] { return mnnkv_store_submit(to, 0, of, k, v, begin, count, number.get()); };
    };
    expect_refused(
        {
            {bad, "store", submit(nullptr, &layout, key, value, 40, 8)},
            {bad, "layout", submit(store, nullptr, key, value, 40, 8)},
            {bad, "key", submit(store, &layout, nullptr, value, 40, 8)},
            {bad, "value", submit(store, &layout, key, nullptr, 40, 8)},
            {MNNKV_UNSUPPORTED, "value_dtype", submit(store, &quantised, key, value, 40, 8)},
            {bad, "count", submit(store, &layout, key, value, 40, 0)},
            {bad, "max_tokens", submit(store, &layout, key, value, 120, 9)},
            {bad, "max_tokens", submit(store, &layout, key, value, UINT32_MAX, UINT32_MAX)},
            {bad, "restore", submit(store, &layout, key, value, 31, 2)},
            {bad, "ticket", [&] { return mnnkv_store_submit(store, 0, &layout, key, value, 40, 8, nullptr); }},
            {bad, "released_bytes", [&] { return mnnkv_store_commit(store, 0, &layout, key, value, nullptr); }},
            {bad, "restored_bytes", [&] { return mnnkv_store_restore(store, 0, &layout, key, value, nullptr); }},
            {bad, "overlap", [&] { return mnnkv_store_restore(store, 0, &layout, key, key + 1, number.get()); }},
            {bad, "reserve_pairs", [&] { return mnnkv_store_compacted(store, 0, nullptr, 1); }},
            {bad, "reserve_pairs", [&] { return mnnkv_store_compacted(store, 0, misaligned(four), 1); }},
            {bad, "reserve_pairs", [&] { return mnnkv_store_compacted(store, 0, four, SIZE_MAX); }},
            {bad, "pair", [&] { return mnnkv_store_compacted(store, 0, overlapping, 2); }},
            {bad, "store", [&] { return mnnkv_store_compacted(nullptr, 0, four, 2); }},
            {bad, "statistics", [&] { return mnnkv_store_stats(store, nullptr); }},
        },
        number, statistics);
    const mnnkv_store_statistics after = stats_of(made);
    EXPECT_EQ(std::memcmp(&before, &after, sizeof after), 0) << "the store has changed";
    EXPECT_TRUE(host.sound());
    EXPECT_TRUE(ok(host.restore()));
    EXPECT_TRUE(host.whole());
}

}  // namespace
