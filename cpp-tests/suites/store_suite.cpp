// The store's contract in the header, one statement per test.

#include "store_host.hpp"

#include <atomic>
#include <thread>
#include <type_traits>

namespace {

using namespace support;

/// A store and a host with 256 compressible tokens in layer 5.
class Store : public testing::Test {
protected:
    Store() : random_(401), store_(made()), host_(store_, 5, half_layout(320), random_) { host_.append(256); }

    static mnnkv::store made() {
        mnnkv::store store;
        EXPECT_TRUE(ok(store.create().code()));
        return store;
    }

    /// Submits and commits, and checks that the tokens are released.
    void release(std::uint32_t begin, std::uint32_t count) {
        ASSERT_TRUE(ok(host_.submit(begin, count)));
        ASSERT_TRUE(ok(host_.commit()));
        for (std::uint32_t t = begin; t < begin + count; ++t) {
            ASSERT_TRUE(host_.is_released(t)) << "token " << t;
        }
    }

    void expect_whole_after_restore(std::uint64_t tokens) {
        std::uint64_t restored = ~0ull;
        EXPECT_TRUE(ok(host_.restore(&restored)));
        EXPECT_EQ(restored, tokens * host_.model().token_bytes());
        EXPECT_TRUE(host_.whole());
    }

    mnnkv_store_statistics stats() const { return stats_of(store_); }

    dice random_;
    mnnkv::store store_;
    store_host host_;
};

TEST_F(Store, IsEmptyWhenMade) {
    mnnkv::store fresh = made();
    const mnnkv_store_statistics zero = mnnkv::make<mnnkv_store_statistics>(), now = stats_of(fresh);
    EXPECT_EQ(std::memcmp(&now, &zero, sizeof zero), 0);
}

TEST_F(Store, ReleasesWhatWasSubmittedAndRestoresItBitForBit) {
    release(32, 128);
    EXPECT_TRUE(host_.sound()) << "all other tokens are there";
    EXPECT_EQ(host_.released_raw_bytes(), 128 * host_.model().token_bytes());
    expect_whole_after_restore(128);
    expect_whole_after_restore(0);
}

TEST(StoreEffort, MayBeAny) {
    // The same tokens at every effort: restored bit for bit, and not larger at a higher effort.
    std::vector<std::uint64_t> sizes;
    for (const std::int32_t effort : {0, 1, 5, 9}) {
        SCOPED_TRACE(effort);
        dice random(402);
        mnnkv_store_config config = mnnkv::make<mnnkv_store_config>();
        config.effort = effort;
        mnnkv::store store;
        ASSERT_TRUE(ok(store.create(&config).code()));
        store_host host(store, 1, half_layout(320), random);
        host.append(256);
        for (std::uint32_t begin = 0; begin < 256; begin += 64) {
            ASSERT_TRUE(ok(host.submit(begin, 64)));
        }
        ASSERT_TRUE(ok(host.commit()));
        EXPECT_TRUE(host.is_released(0) && host.is_released(255));
        EXPECT_EQ(host.released_raw_bytes(), 256 * host.model().token_bytes());
        sizes.push_back(stats_of(store).compressed_bytes);
        std::uint64_t restored = 0;
        EXPECT_TRUE(ok(host.restore(&restored)));
        EXPECT_EQ(restored, 256 * host.model().token_bytes());
        EXPECT_TRUE(host.whole());
    }
    EXPECT_EQ(sizes[0], sizes[2]) << "the default is 5";
    EXPECT_LE(sizes[3], sizes[1]);
    EXPECT_LE(sizes[3], sizes[2]);
}

TEST_F(Store, KeepsTokensRawUntilCommit) {
    ASSERT_TRUE(ok(host_.submit(0, 64)));
    EXPECT_TRUE(host_.whole());
    EXPECT_EQ(stats().resident_blocks, 1u);
    EXPECT_EQ(stats().released_raw_bytes, 0u);
    expect_whole_after_restore(0);
}

TEST_F(Store, NumbersItsBlocks) {
    std::uint64_t first = 0, again = 0, second = 0;
    ASSERT_TRUE(ok(host_.submit(0, 64, &first)));
    ASSERT_TRUE(ok(host_.submit(0, 64, &again)));
    ASSERT_TRUE(ok(host_.submit(64, 64, &second)));
    EXPECT_EQ(first, again) << "the same tokens with the same content are the same block";
    EXPECT_NE(first, second);
    EXPECT_EQ(stats().submitted_blocks, 2u);
    EXPECT_EQ(stats().encoded_bytes, 128 * host_.model().token_bytes());
}

TEST_F(Store, CountsWhatItHolds) {
    release(0, 64);
    ASSERT_TRUE(ok(host_.submit(64, 32)));
    const mnnkv_store_statistics now = stats();
    const std::uint64_t token = host_.model().token_bytes();
    EXPECT_EQ(now.released_blocks, 1u);
    EXPECT_EQ(now.resident_blocks, 1u);
    EXPECT_EQ(now.released_raw_bytes, 64 * token);
    EXPECT_EQ(now.raw_bytes, 96 * token);
    EXPECT_GT(now.compressed_bytes, 0u);
    EXPECT_LT(now.compressed_bytes, now.raw_bytes);
    EXPECT_EQ(now.encoded_bytes, 96 * token);
    EXPECT_EQ(now.decoded_bytes, 0u);
    expect_whole_after_restore(64);
    EXPECT_EQ(stats().restored_blocks, 1u);
    EXPECT_EQ(stats().restored_bytes, 64 * token);
    EXPECT_EQ(stats().decoded_bytes, 64 * token);
}

TEST_F(Store, ReleasesARestoredBlockAgainWithoutEncoding) {
    release(0, 200);
    const std::uint64_t encoded = stats().encoded_bytes;
    for (int round = 1; round <= 3; ++round) {
        expect_whole_after_restore(200);
        ASSERT_TRUE(ok(host_.submit(0, 200)));
        ASSERT_TRUE(ok(host_.commit()));
        EXPECT_TRUE(host_.is_released(0) && host_.is_released(199));
        EXPECT_EQ(stats().encoded_bytes, encoded);
        EXPECT_EQ(stats().submitted_blocks, 1u);
        EXPECT_EQ(stats().restored_blocks, static_cast<std::uint64_t>(round));
    }
    expect_whole_after_restore(200);
}

TEST_F(Store, LeavesTokensRawThatWereRewrittenBeforeCommit) {
    ASSERT_TRUE(ok(host_.submit(0, 64)));
    ASSERT_TRUE(ok(host_.submit(64, 64)));
    host_.write(63, 1);
    ASSERT_TRUE(ok(host_.commit()));
    EXPECT_EQ(stats().stale_blocks, 1u);
    EXPECT_FALSE(host_.any_released(0, 64));
    EXPECT_TRUE(host_.is_released(64)) << "the other block is not held up";
    EXPECT_TRUE(host_.sound());
    expect_whole_after_restore(64);
}

TEST_F(Store, ReplacesABlockByNewContent) {
    std::uint64_t before = 0, after = 0;
    ASSERT_TRUE(ok(host_.submit(0, 64, &before)));
    host_.write(10, 3);
    ASSERT_TRUE(ok(host_.submit(0, 64, &after)));
    EXPECT_NE(before, after);
    EXPECT_EQ(stats().resident_blocks, 1u);
    EXPECT_EQ(stats().stale_blocks, 1u);
    ASSERT_TRUE(ok(host_.commit()));
    EXPECT_EQ(stats().stale_blocks, 1u);
    expect_whole_after_restore(64);
}

TEST_F(Store, DropsNoBlockForAPartOfIt) {
    ASSERT_TRUE(ok(host_.submit(0, 64)));
    EXPECT_TRUE(refuses(MNNKV_INVALID_ARGUMENT, "still equals the cache", [&] { return host_.submit(32, 64); }));
    EXPECT_TRUE(refuses(MNNKV_INVALID_ARGUMENT, "(tokens 0 to 63)", [&] { return host_.submit(10, 1); }));
    EXPECT_EQ(stats().resident_blocks, 1u);
    host_.write(40, 1);
    ASSERT_TRUE(ok(host_.submit(32, 64))) << "a block whose tokens were rewritten makes way";
    EXPECT_EQ(stats().stale_blocks, 1u);
    ASSERT_TRUE(ok(host_.commit()));
    EXPECT_FALSE(host_.any_released(0, 32));
    EXPECT_EQ(host_.released_raw_bytes(), 64 * host_.model().token_bytes());
    expect_whole_after_restore(64);
}

TEST_F(Store, LeavesTokensRawThatDoNotShrink) {
    host_.append(64, content::noise);
    ASSERT_TRUE(ok(host_.submit(256, 64))) << "no gain is not a failure";
    EXPECT_EQ(stats().no_gain_blocks, 1u);
    EXPECT_EQ(stats().resident_blocks, 0u);
    std::uint64_t released = ~0ull;
    ASSERT_TRUE(ok(host_.commit(&released)));
    EXPECT_EQ(released, 0u);
    EXPECT_TRUE(host_.whole());
}

TEST_F(Store, RefusesTokensThatAreReleased) {
    release(64, 64);
    const mnnkv_store_statistics before = stats();
    const struct {
        std::uint32_t begin, count;
    } overlapping[] = {{64, 64}, {127, 1}, {0, 65}, {127, 64}, {70, 10}, {0, 256}};
    for (const auto& r : overlapping) {
        SCOPED_TRACE(testing::Message() << r.count << " tokens from " << r.begin);
        EXPECT_TRUE(refuses(MNNKV_INVALID_ARGUMENT, "restore", [&] { return host_.submit(r.begin, r.count); }));
    }
    const mnnkv_store_statistics after = stats();
    EXPECT_EQ(std::memcmp(&before, &after, sizeof after), 0);
    EXPECT_TRUE(ok(host_.submit(0, 64))) << "up to the released tokens";
    EXPECT_TRUE(ok(host_.submit(128, 64))) << "and from them on";
    expect_whole_after_restore(64);
    EXPECT_TRUE(ok(host_.submit(64, 64))) << "restored tokens may be submitted";
}

TEST_F(Store, RestoresIntoACacheThatHasGrownAndIsPackedOtherwise) {
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

TEST_F(Store, ReturnsStaleAndLosesNothingWhenTheLayoutDoesNotFit) {
    release(0, 100);
    release(100, 100);
    mnnkv_layout wrong[6];
    std::fill(std::begin(wrong), std::end(wrong), half_layout(320));
    wrong[0].max_tokens = 99;
    wrong[1].kv_heads = 3;
    wrong[2].head_dim = 25;
    wrong[3].key_dtype = MNNKV_DTYPE_BF16;
    wrong[4].value_dtype = MNNKV_DTYPE_F32;
    wrong[5].kv_heads = 1;
    wrong[5].head_dim = 48;  // as many bytes, in another order
    const mnnkv_store_statistics before = stats();
    for (const mnnkv_layout& layout : wrong) {
        SCOPED_TRACE(testing::Message() << "layout " << &layout - wrong);
        noisy_cache cache(layout, random_);
        std::uint64_t restored = 77;
        EXPECT_TRUE(refuses(MNNKV_STALE, "block", [&] {
            return store_.restore(5, layout, cache.key.data(), cache.value.data(), &restored).code();
        }));
        EXPECT_EQ(restored, 77u);
        EXPECT_TRUE(cache.untouched());
        const mnnkv_store_statistics after = stats();
        EXPECT_EQ(std::memcmp(&before, &after, sizeof after), 0) << "both blocks are still there";
    }
    expect_whole_after_restore(200);
}

TEST_F(Store, RestoresWhatFitsAndTheRestLater) {
    // Two layouts of the same memory, one of them too short for the second block.
    mnnkv_layout layout = half_layout(320);
    layout.key_head_stride = packed_model(layout).key_head_bytes();
    layout.value_head_stride = packed_model(layout).value_head_bytes();
    mnnkv_layout shorter = layout;
    shorter.max_tokens = 150;
    host_.move_to(layout);
    release(0, 100);
    release(120, 80);
    std::uint64_t restored = 77;
    EXPECT_TRUE(refuses(MNNKV_STALE, "block", [&] {
        return store_.restore(5, shorter, host_.key(), host_.value(), &restored).code();
    }));
    EXPECT_EQ(restored, 77u);
    EXPECT_TRUE(host_.sound());
    EXPECT_EQ(stats().released_raw_bytes, host_.released_raw_bytes()) << "the counters include the first block";
    EXPECT_TRUE(host_.is_released(120) && host_.is_released(199)) << "the one that does not fit is kept";
    EXPECT_TRUE(ok(host_.restore()));
    EXPECT_TRUE(host_.whole());
}

TEST_F(Store, DropsABlockThatNoLongerFitsTheLayoutAtCommit) {
    for (int i = 0; i < 2; ++i) {
        ASSERT_TRUE(ok(host_.submit(0, 100)));
        mnnkv_layout other = half_layout(i == 0 ? 90 : 320);
        other.head_dim = i == 0 ? 24 : 20;
        noisy_cache cache(other, random_);
        std::uint64_t released = 77;
        EXPECT_TRUE(ok(store_.commit(5, other, cache.key.data(), cache.value.data(), &released).code()));
        EXPECT_EQ(released, 0u);
        EXPECT_TRUE(cache.untouched());
        EXPECT_EQ(stats().stale_blocks, static_cast<std::uint64_t>(i) + 1);
        EXPECT_EQ(stats().resident_blocks, 0u);
    }
    EXPECT_TRUE(host_.whole());
}

TEST_F(Store, DropsABlockOfAnotherShapeAtCommitEvenIfTheBytesAgree) {
    // All words are equal: rows of other heads, dims or element types have the same bytes.
    for (int i = 0; i < 3; ++i) {
        const mnnkv_layout layout = half_layout(64);
        mnnkv_layout other = layout;
        other.key_dtype = i == 0 ? MNNKV_DTYPE_BF16 : MNNKV_DTYPE_F16;
        other.value_dtype = i == 1 ? MNNKV_DTYPE_BF16 : MNNKV_DTYPE_F16;
        other.kv_heads = i == 2 ? 1 : 2;
        other.head_dim = i == 2 ? 48 : 24;
        bytes key(packed_model(layout).key_bytes(), 0x3C), value(packed_model(layout).value_bytes(), 0x3C);
        ASSERT_LE(packed_model(other).key_bytes(), key.size());
        ASSERT_LE(packed_model(other).value_bytes(), value.size());
        ASSERT_TRUE(ok(store_.submit(1, layout, key.data(), value.data(), 0, 64).code()));
        std::uint64_t released = 77;
        EXPECT_TRUE(ok(store_.commit(1, other, key.data(), value.data(), &released).code()));
        EXPECT_EQ(released, 0u);
        EXPECT_EQ(stats().stale_blocks, static_cast<std::uint64_t>(i) + 1);
        EXPECT_TRUE(same(key, bytes(key.size(), 0x3C)));
        EXPECT_TRUE(same(value, bytes(value.size(), 0x3C)));
    }
}

TEST_F(Store, FollowsTokensThroughAnEviction) {
    release(64, 64);
    release(192, 32);
    // Keeps parts of both blocks, cuts the first in two, and moves everything.
    host_.compact(8, {20, 10, 60, 20, 90, 30, 186, 20});
    EXPECT_TRUE(host_.sound());
    EXPECT_EQ(stats().released_raw_bytes, host_.released_raw_bytes());
    expect_whole_after_restore(20 + 30 + 20);  // tokens 68 to 87, 98 to 127 and 194 to 213
}

TEST_F(Store, ForgetsABlockWhoseTokensAreGone) {
    release(64, 64);
    host_.compact(0, {0, 64, 128, 128});
    EXPECT_EQ(stats().released_blocks, 0u);
    EXPECT_EQ(stats().compressed_bytes, 0u);
    expect_whole_after_restore(0);
}

TEST_F(Store, ReleasesAMovedBlockAgainWithoutEncoding) {
    release(128, 64);
    host_.compact(0, {0, 16, 100, 120});
    expect_whole_after_restore(64);
    const std::uint64_t encoded = stats().encoded_bytes;
    ASSERT_TRUE(ok(host_.commit()));
    EXPECT_TRUE(host_.is_released(44) && host_.is_released(107));
    EXPECT_EQ(stats().encoded_bytes, encoded);
    expect_whole_after_restore(64);
}

TEST_F(Store, FollowsARollbackAndDoesNotOverwriteWhatCameAfter) {
    release(64, 128);
    host_.truncate(100);
    EXPECT_EQ(stats().released_raw_bytes, 36 * host_.model().token_bytes());
    host_.append(150);
    expect_whole_after_restore(36);
    ASSERT_TRUE(ok(host_.submit(64, 128))) << "old and new tokens make a new block";
    ASSERT_TRUE(ok(host_.commit()));
    expect_whole_after_restore(128);
}

TEST_F(Store, ForgetsAClearedLayer) {
    release(0, 256);
    host_.truncate(0);
    EXPECT_EQ(stats().raw_bytes, 0u);
    host_.append(256);
    expect_whole_after_restore(0);
}

TEST_F(Store, KeepsWorkingWhenALayerOrATokenIsUnknown) {
    const std::int32_t all[] = {0, INT32_MAX};
    std::uint64_t amount = 77;
    EXPECT_TRUE(ok(store_.prefetch(999).code()));
    EXPECT_TRUE(ok(store_.truncated(999, 0).code()));
    EXPECT_TRUE(ok(store_.compacted(999, all, 1).code()));
    EXPECT_TRUE(ok(store_.compacted(999, nullptr, 0).code()));
    EXPECT_TRUE(ok(store_.commit(999, host_.layout(), host_.key(), host_.value(), &amount).code()));
    EXPECT_EQ(amount, 0u);
    amount = 77;
    EXPECT_TRUE(ok(store_.restore(999, host_.layout(), host_.key(), host_.value(), &amount).code()));
    EXPECT_EQ(amount, 0u);
    release(0, 64);
    EXPECT_TRUE(ok(store_.compacted(5, all, 1).code())) << "pairs may reach past the tokens there are";
    EXPECT_TRUE(ok(store_.truncated(5, UINT32_MAX).code()));
    expect_whole_after_restore(64);
}

TEST_F(Store, PrefetchChangesNothing) {
    release(0, 64);
    const mnnkv_store_statistics before = stats();
    EXPECT_TRUE(ok(store_.prefetch(5).code()));
    const mnnkv_store_statistics after = stats();
    EXPECT_EQ(std::memcmp(&before, &after, sizeof after), 0);
    EXPECT_EQ(host_.released_raw_bytes(), 64 * host_.model().token_bytes());
    expect_whole_after_restore(64);
}

TEST_F(Store, EncodesWithThePredictorsItWasGiven) {
    mnnkv_store_config config = mnnkv::make<mnnkv_store_config>();
    config.key_predictors = MNNKV_PREDICT_RAW;
    config.value_predictors = MNNKV_PREDICT_XOR_SEQ | MNNKV_PREDICT_DELTA_SEQ;
    config.effort = 9;
    mnnkv::store chosen, free;
    ASSERT_TRUE(ok(chosen.create(&config).code()));
    config.key_predictors = config.value_predictors = 0;
    ASSERT_TRUE(ok(free.create(&config).code()));
    // Ramps: every byte differs from the last by the same step, which only delta_seq turns into runs.
    const mnnkv_layout layout = make_layout(pack_modes[0], 1, 256, 64, 64);
    packed_model model(layout);
    bytes key(model.key_bytes()), value(model.value_bytes());
    rows ramp{bytes(model.key_row_bytes(64)), bytes(model.value_row_bytes(64))};
    for (std::size_t i = 0; i < ramp.key.size(); ++i) {
        ramp.key[i] = ramp.value[i] = static_cast<std::uint8_t>(i / 4 * 37);
    }
    model.put(key.data(), value.data(), tokens_from(0, 64), ramp);
    const auto compressed = [&](mnnkv::store& store) {
        EXPECT_TRUE(ok(store.submit(0, layout, key.data(), value.data(), 0, 64).code()));
        return stats_of(store).compressed_bytes;
    };
    EXPECT_GT(compressed(chosen), compressed(free)) << "K without delta_seq is larger";
    ASSERT_TRUE(ok(chosen.commit(0, layout, key.data(), value.data()).code()));
    ASSERT_TRUE(ok(chosen.restore(0, layout, key.data(), value.data()).code()));
    const rows back = model.get(key.data(), value.data(), tokens_from(0, 64));
    EXPECT_TRUE(same(back.key, ramp.key));
    EXPECT_TRUE(same(back.value, ramp.value));
}

TEST_F(Store, ReadsItsCountersBesideOtherCalls) {
    std::atomic<bool> done{false};
    std::atomic<int> wrong{0};
    std::thread reader([&] {
        while (!done) {
            mnnkv_store_statistics now = mnnkv::make<mnnkv_store_statistics>();
            if (!store_.stats(now) || now.released_raw_bytes > now.raw_bytes) {
                ++wrong;
            }
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

TEST_F(Store, MovesAndResetsAsAWrapper) {
    static_assert(std::is_nothrow_move_constructible<mnnkv::store>::value, "stores move");
    static_assert(!std::is_copy_constructible<mnnkv::store>::value, "stores do not copy");
    static_assert(!std::is_copy_assignable<mnnkv::store>::value, "stores do not copy");
    mnnkv::store first = made();
    mnnkv_store* const handle = first.get();
    EXPECT_TRUE(first);
    mnnkv::store second(std::move(first));
    EXPECT_EQ(second.get(), handle);
    mnnkv::store third = made();
    third = std::move(second);
    EXPECT_EQ(third.get(), handle);
    mnnkv::store& alias = third;
    third = std::move(alias);
    EXPECT_EQ(third.get(), handle) << "moving a store onto itself changes nothing";
    third.reset();
    third.reset();
    EXPECT_FALSE(third);
    mnnkv_store_destroy(nullptr);
}

TEST_F(Store, ReturnsInvalidArgumentAfterReset) {
    mnnkv::store gone = made();
    gone.reset();
    const std::int32_t pair[] = {0, 1};
    mnnkv_store_statistics untouched;
    std::memset(&untouched, 0x5A, sizeof untouched);
    const mnnkv_store_statistics before = untouched;
    const mnnkv_layout& layout = host_.layout();
    const mnnkv::status all[] = {gone.submit(0, layout, host_.key(), host_.value(), 0, 1),
                                 gone.commit(0, layout, host_.key(), host_.value()),
                                 gone.prefetch(0),
                                 gone.restore(0, layout, host_.key(), host_.value()),
                                 gone.compacted(0, pair, 1),
                                 gone.truncated(0, 0),
                                 gone.stats(untouched)};
    for (const mnnkv::status& status : all) {
        EXPECT_FALSE(status);
        EXPECT_EQ(status.code(), MNNKV_INVALID_ARGUMENT);
        EXPECT_STREQ(status.name(), "INVALID_ARGUMENT");
        EXPECT_NE(std::string(status.message()).find("store"), std::string::npos);
    }
    EXPECT_EQ(std::memcmp(&before, &untouched, sizeof before), 0);
    EXPECT_TRUE(ok(gone.create().code())) << "a reset store can be made again";
    EXPECT_STREQ(gone.prefetch(0).message(), "");
}

}  // namespace
