// The store with workers: calls never wait for an encoder, and edits meanwhile confuse no token.

#include "store_host.hpp"

#include <chrono>
#include <ctime>
#include <thread>

namespace {

using namespace support;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// Many compressible words: encoding at full effort takes far longer than a copy.
struct slow_cache {
    slow_cache()
        : layout(make_layout(pack_modes[7], 8, 128, 2048, 64)),
          model(layout),
          key(words(model.key_bytes())),
          value(words(model.value_bytes())) {}

    static bytes words(std::size_t size) {
        bytes out = dice(1200).noise(size);
        for (std::uint8_t& b : out) {
            b &= 0x37;
        }
        return out;
    }

    mnnkv_status submit(mnnkv::store& store, std::uint32_t begin, std::uint32_t count,
                        std::uint64_t* ticket = nullptr) {
        return store.submit(0, layout, key.data(), value.data(), begin, count, ticket).code();
    }

    mnnkv_layout layout;
    packed_model model;
    bytes key, value;
};

template <class Change>
mnnkv::store made(std::uint32_t workers, Change change) {
    mnnkv_store_config config = mnnkv::make<mnnkv_store_config>();
    config.workers = workers;
    change(config);
    mnnkv::store store;
    EXPECT_TRUE(ok(store.create(&config).code()));
    return store;
}

mnnkv::store made(std::uint32_t workers) {
    return made(workers, [](mnnkv_store_config&) {});
}

/// Returns when no block waits for an encoder.
void wait_for_encoders(const mnnkv::store& store) {
    const auto end = steady_clock::now() + std::chrono::seconds(30);
    while (stats_of(store).queued_blocks > 0) {
        ASSERT_LT(steady_clock::now(), end) << "a block is never encoded";
        std::this_thread::sleep_for(milliseconds(1));
    }
}

class StoreWorkers : public testing::TestWithParam<std::uint32_t> {};

TEST_P(StoreWorkers, EncodeWhatACommitLaterFinds) {
    SEEDED_DICE(random, 1201);
    mnnkv::store store = made(GetParam());
    store_host host(store, 5, half_layout(320), random);
    host.append(256);
    for (int round = 0; round < 5; ++round) {
        for (std::uint32_t begin = 0; begin < 256; begin += 64) {
            ASSERT_TRUE(ok(host.submit(begin, 64)));
        }
        EXPECT_TRUE(host.whole()) << "tokens stay raw until a commit";
        ASSERT_NO_FATAL_FAILURE(wait_for_encoders(store));
        EXPECT_EQ(stats_of(store).resident_blocks, 4u);
        ASSERT_TRUE(ok(host.commit()));
        EXPECT_EQ(host.released_raw_bytes(), 256 * host.model().token_bytes());
        ASSERT_TRUE(ok(host.restore()));
        EXPECT_TRUE(host.whole());
    }
    EXPECT_EQ(stats_of(store).submitted_blocks, 4u) << "the same content costs no encoding";
}

TEST_P(StoreWorkers, ReleaseNothingThatIsNotEncodedYet) {
    SEEDED_DICE(random, 1202);
    mnnkv::store store = made(GetParam());
    store_host host(store, 0, half_layout(320), random);
    host.append(256);
    for (int i = 0; i < 200; ++i) {
        const std::uint32_t begin = random.below(192);
        if (!host.any_released(begin, 64)) {
            const bool submitted = host.any_submitted(begin, 64);
            const mnnkv_status status = host.submit(begin, 64);
            // A block of other tokens that still equals the cache does not make way.
            ASSERT_TRUE(status == MNNKV_OK || (submitted && status == MNNKV_INVALID_ARGUMENT)) << mnnkv_last_error();
        }
        ASSERT_TRUE(ok(host.commit()));
        ASSERT_TRUE(host.sound());
        if (random.one_in(3)) {
            ASSERT_TRUE(ok(host.restore()));
            ASSERT_TRUE(host.whole());
            host.write(random.below(216), 40);
        }
    }
    ASSERT_TRUE(ok(host.restore()));
    EXPECT_TRUE(host.whole());
}

TEST_P(StoreWorkers, NeverTouchTokensThatWereEditedMeanwhile) {
    // Submit, edit at once, commit when all is encoded: the blobs are of tokens that have moved or are gone.
    SEEDED_DICE(random, 1203);
    mnnkv::store store = made(GetParam());
    for (int round = 0; round < 20 && !HasFailure(); ++round) {
        SCOPED_TRACE("round " + std::to_string(round));
        store_host host(store, static_cast<std::uint32_t>(round), half_layout(400), random);
        host.append(320);
        for (std::uint32_t begin = 0; begin < 320; begin += 64) {
            ASSERT_TRUE(ok(host.submit(begin, 64)));
        }
        switch (round % 4) {
            case 0: host.compact(0, {0, 64, 100, 220}); break;  // the second block is cut, the others move
            case 1: host.truncate(150); host.append(150); break;
            case 2: host.truncate(0); host.append(320); break;
            default: host.write(70, 5); break;
        }
        if (random.one_in(2)) {
            ASSERT_NO_FATAL_FAILURE(wait_for_encoders(store));
        }
        ASSERT_TRUE(ok(host.commit()));
        EXPECT_TRUE(host.sound());
        ASSERT_NO_FATAL_FAILURE(wait_for_encoders(store));
        ASSERT_TRUE(ok(host.commit()));
        EXPECT_TRUE(host.sound());
        if (round % 4 == 0) {
            EXPECT_FALSE(host.any_released(64, 28)) << "what is left of a block that was cut stays raw";
            EXPECT_TRUE(host.is_released(92) && host.is_released(283)) << "the others went where their tokens are";
        } else if (round % 4 == 2) {
            EXPECT_FALSE(host.any_released(0, 320)) << "new tokens in the old places";
        }
        ASSERT_TRUE(ok(host.restore()));
        EXPECT_TRUE(host.whole());
        ASSERT_TRUE(ok(store.truncated(static_cast<std::uint32_t>(round), 0).code()));
    }
}

TEST_P(StoreWorkers, DecodeAheadSoThatRestoreOnlyCopies) {
    SEEDED_DICE(random, 1204);
    mnnkv::store store = made(GetParam());
    store_host host(store, 1, half_layout(320), random);
    host.append(256);
    for (std::uint32_t begin = 0; begin < 256; begin += 64) {
        ASSERT_TRUE(ok(host.submit(begin, 64)));
    }
    ASSERT_NO_FATAL_FAILURE(wait_for_encoders(store));
    ASSERT_TRUE(ok(host.commit()));
    ASSERT_TRUE(ok(store.prefetch(1).code()));
    ASSERT_TRUE(ok(store.prefetch(1).code())) << "a second call adds nothing";
    const auto end = steady_clock::now() + std::chrono::seconds(30);
    const std::uint64_t raw = 256 * host.model().token_bytes();
    while (stats_of(store).decoded_cache_bytes < raw) {
        ASSERT_LT(steady_clock::now(), end);
        std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_EQ(host.released_raw_bytes(), raw) << "the cache is not touched before restore";
    ASSERT_TRUE(ok(host.restore()));
    EXPECT_TRUE(host.whole());
    const mnnkv_store_statistics stats = stats_of(store);
    EXPECT_EQ(stats.prefetch_hits, 4u);
    EXPECT_EQ(stats.cache_misses, 0u);
    EXPECT_EQ(stats.decoded_bytes, raw) << "once each";
    EXPECT_EQ(stats.decoded_cache_bytes, 0u) << "nothing stays without decode_cache_bytes";
}

TEST_P(StoreWorkers, RestoreNothingOfALayerThatWasClearedWhileItWasDecoded) {
    SEEDED_DICE(random, 1205);
    mnnkv::store store = made(GetParam());
    store_host host(store, 1, half_layout(320), random);
    for (int round = 0; round < 10; ++round) {
        host.append(256);
        ASSERT_TRUE(ok(host.submit(0, 128)));
        ASSERT_TRUE(ok(host.submit(128, 128)));
        ASSERT_NO_FATAL_FAILURE(wait_for_encoders(store));
        ASSERT_TRUE(ok(host.commit()));
        EXPECT_GT(host.released_raw_bytes(), 0u);
        ASSERT_TRUE(ok(store.prefetch(1).code()));
        host.truncate(0);
        host.append(256);
        std::uint64_t restored = 77;
        ASSERT_TRUE(ok(host.restore(&restored)));
        EXPECT_EQ(restored, 0u);
        EXPECT_TRUE(host.whole());
        host.truncate(0);
    }
    EXPECT_EQ(stats_of(store).compressed_bytes, 0u);
}

TEST_P(StoreWorkers, RestoreWhatEvictionsLeftWhileItWasDecoded) {
    SEEDED_DICE(random, 1206);
    mnnkv::store store = made(GetParam());
    store_host host(store, 1, half_layout(320), random);
    for (int round = 0; round < 10; ++round) {
        host.append(256);
        ASSERT_TRUE(ok(host.submit(0, 128)));
        ASSERT_TRUE(ok(host.submit(128, 100)));
        ASSERT_NO_FATAL_FAILURE(wait_for_encoders(store));
        ASSERT_TRUE(ok(host.commit()));
        ASSERT_TRUE(ok(store.prefetch(1).code()));
        host.compact(0, {10, 60, 90, 80, 200, 56});
        ASSERT_TRUE(ok(host.restore()));
        EXPECT_TRUE(host.whole());
        host.truncate(0);
    }
}

TEST_P(StoreWorkers, ArePassedOnWithEveryFormatAndCheck) {
    SEEDED_DICE(random, 1207);
    for (const std::uint32_t format : {MNNKV_GEAR_FORMAT_V1, MNNKV_GEAR_FORMAT_V2}) {
        for (const std::uint32_t strict : {0u, 1u}) {
            SCOPED_TRACE(testing::Message() << "format " << format << ", strict " << strict);
            mnnkv::store store = made(GetParam(), [=](mnnkv_store_config& c) {
                c.format = format;
                c.strict_roundtrip = strict;
                c.effort = 1;
            });
            store_host host(store, 1, half_layout(320), random);
            host.append(256);
            ASSERT_TRUE(ok(host.submit(0, 200)));
            ASSERT_NO_FATAL_FAILURE(wait_for_encoders(store));
            ASSERT_TRUE(ok(host.commit()));
            EXPECT_EQ(host.released_raw_bytes(), 200 * host.model().token_bytes());
            const mnnkv_store_statistics stats = stats_of(store);
            EXPECT_EQ(stats.decoded_bytes, strict * 200 * host.model().token_bytes());
            EXPECT_EQ(stats.failed_blocks, 0u);
            EXPECT_EQ(stats.encoded_to_bytes, stats.compressed_bytes);
            ASSERT_TRUE(ok(host.restore()));
            EXPECT_TRUE(host.whole());
        }
    }
}

TEST_P(StoreWorkers, LetTheStoreBeDestroyedWhileTheyWork) {
    slow_cache cache;
    const bytes key = cache.key, value = cache.value;
    for (int round = 0; round < 3; ++round) {
        mnnkv::store store = made(GetParam());
        for (std::uint32_t begin = 0; begin < 2048; begin += 128) {
            ASSERT_TRUE(ok(cache.submit(store, begin, 128)));
        }
        ASSERT_TRUE(ok(store.prefetch(0).code()));
        store.reset();
    }
    EXPECT_TRUE(cache.key == key && cache.value == value);
}

INSTANTIATE_TEST_SUITE_P(One, StoreWorkers, testing::Values(1u));
INSTANTIATE_TEST_SUITE_P(Three, StoreWorkers, testing::Values(3u));
INSTANTIATE_TEST_SUITE_P(TheMost, StoreWorkers, testing::Values(64u));

TEST(StoreQueue, ReturnsBusyInsteadOfWaiting) {
    mnnkv::store store = made(1, [](mnnkv_store_config& c) {
        c.max_queue = 1;
        c.effort = 9;
    });
    slow_cache cache;
    // The first is with the worker, or waits for it; then the queue holds one at most.
    std::uint64_t busy = 0;
    for (std::uint32_t begin = 0; begin < 2048; begin += 256) {
        std::uint64_t ticket = 77;
        const mnnkv_status status = cache.submit(store, begin, 256, &ticket);
        if (status == MNNKV_BUSY) {
            ++busy;
            EXPECT_EQ(ticket, 77u) << "outputs are written only on success";
            EXPECT_NE(std::string(mnnkv_last_error()).find("wait"), std::string::npos);
        } else {
            EXPECT_TRUE(ok(status));
        }
        EXPECT_LE(stats_of(store).queued_blocks, 1u);
    }
    EXPECT_GT(busy, 0u) << "eight blocks of a megabyte were encoded between calls";
    EXPECT_EQ(stats_of(store).busy_blocks, busy);
    EXPECT_EQ(stats_of(store).queue_peak, 1u);
    ASSERT_NO_FATAL_FAILURE(wait_for_encoders(store));
    EXPECT_TRUE(ok(cache.submit(store, 0, 256))) << "room again";
}

TEST(StoreQueue, SubmitsWithoutWaitingForTheEncoder) {
    mnnkv::store store = made(1, [](mnnkv_store_config& c) { c.effort = 9; });
    slow_cache cache;
    for (std::uint32_t begin = 0; begin < 2048; begin += 64) {
        ASSERT_TRUE(ok(cache.submit(store, begin, 64)));
    }
    EXPECT_GT(stats_of(store).queue_peak, 4u) << "the host is far ahead of the encoder";
    ASSERT_NO_FATAL_FAILURE(wait_for_encoders(store));
    EXPECT_EQ(stats_of(store).submitted_blocks, 32u);
}

TEST(StoreQueue, HoldsNoMoreThanThePendingBytes) {
    slow_cache cache;
    const std::uint64_t block = 64 * cache.model.token_bytes();
    mnnkv::store store = made(1, [=](mnnkv_store_config& c) {
        c.pending_bytes = 3 * block;
        c.effort = 9;
    });
    std::uint64_t busy = 0;
    for (std::uint32_t begin = 0; begin < 2048; begin += 64) {
        const mnnkv_status status = cache.submit(store, begin, 64);
        EXPECT_TRUE(status == MNNKV_OK || status == MNNKV_BUSY) << mnnkv_status_name(status);
        busy += status == MNNKV_BUSY;
        EXPECT_LE(stats_of(store).queued_blocks, 3u);
    }
    EXPECT_GT(busy, 0u);
    EXPECT_EQ(stats_of(store).busy_blocks, busy);
    mnnkv::store small = made(1, [](mnnkv_store_config& c) { c.pending_bytes = 1; });
    EXPECT_TRUE(ok(cache.submit(small, 0, 64))) << "one block is always accepted";
}

TEST(StoreQueue, CountsUncommittedBlobsAsPending) {
    // "Bytes of copies that wait and of blobs that have not replaced raw bytes yet": however slowly the host submits.
    slow_cache cache;
    const std::uint64_t block = 64 * cache.model.token_bytes();
    mnnkv::store store = made(1, [=](mnnkv_store_config& c) { c.pending_bytes = 2 * block; });
    for (std::uint32_t begin = 0; begin < 2048; begin += 64) {
        const mnnkv_status status = cache.submit(store, begin, 64);
        EXPECT_TRUE(status == MNNKV_OK || status == MNNKV_BUSY) << mnnkv_status_name(status);
        ASSERT_NO_FATAL_FAILURE(wait_for_encoders(store));
    }
    EXPECT_LE(stats_of(store).compressed_bytes, 2 * block) << "none of them was ever committed";
}

TEST(StoreQueue, CountsWhatIsStillWithTheWorkersOfALayerThatWasCleared) {
    // A store that returns BUSY has something queued.
    slow_cache cache;
    mnnkv::store store = made(1, [](mnnkv_store_config& c) {
        c.max_queue = 4;
        c.effort = 9;
    });
    for (std::uint32_t begin = 0; begin < 2048; begin += 512) {
        ASSERT_TRUE(ok(cache.submit(store, begin, 512)));
    }
    ASSERT_TRUE(ok(store.truncated(0, 0).code()));
    const std::uint64_t queued = stats_of(store).queued_blocks;
    const mnnkv_status status = cache.submit(store, 0, 64);
    EXPECT_TRUE(status == MNNKV_OK || queued > 0) << mnnkv_status_name(status) << " with nothing queued";
}

TEST(StoreQueue, RefusesTokensThatAreReleased) {
    SEEDED_DICE(random, 1214);
    mnnkv::store store = made(2);
    store_host host(store, 0, half_layout(320), random);
    host.append(256);
    ASSERT_TRUE(ok(host.submit(64, 64)));
    ASSERT_NO_FATAL_FAILURE(wait_for_encoders(store));
    ASSERT_TRUE(ok(host.commit()));
    ASSERT_TRUE(ok(store.prefetch(0).code()));
    for (const std::uint32_t begin : {1u, 64u, 100u, 127u}) {
        EXPECT_TRUE(refuses(MNNKV_INVALID_ARGUMENT, "restore", [&] { return host.submit(begin, 64); })) << begin;
    }
    ASSERT_TRUE(ok(host.restore()));
    EXPECT_TRUE(host.whole());
}

TEST(StoreDecodeCache, MakesRestoringAgainACopy) {
    SEEDED_DICE(random, 1221);
    for (const std::uint32_t workers : {0u, 2u}) {
        SCOPED_TRACE(workers);
        mnnkv::store store = made(workers, [](mnnkv_store_config& c) { c.decode_cache_bytes = 1 << 20; });
        store_host host(store, 3, half_layout(320), random);
        host.append(256);
        ASSERT_TRUE(ok(host.submit(0, 128)));
        ASSERT_TRUE(ok(host.submit(128, 64)));
        ASSERT_NO_FATAL_FAILURE(wait_for_encoders(store));
        for (int round = 0; round < 4; ++round) {
            ASSERT_TRUE(ok(host.commit()));
            EXPECT_EQ(host.released_raw_bytes(), 192 * host.model().token_bytes());
            ASSERT_TRUE(ok(host.restore()));
            EXPECT_TRUE(host.whole());
        }
        const mnnkv_store_statistics stats = stats_of(store);
        EXPECT_EQ(stats.restored_blocks, 8u);
        EXPECT_EQ(stats.cache_hits, 6u) << "all but the first round";
        EXPECT_EQ(stats.cache_hits + stats.cache_misses + stats.prefetch_hits, stats.restored_blocks);
        EXPECT_EQ(stats.decoded_bytes, 192 * host.model().token_bytes());
        EXPECT_EQ(stats.decoded_cache_bytes, 192 * host.model().token_bytes());
        // New content in the same places is never restored from the decode cache.
        host.truncate(0);
        EXPECT_EQ(stats_of(store).decoded_cache_bytes, 0u);
        host.append(256);
        ASSERT_TRUE(ok(host.submit(0, 128)));
        ASSERT_NO_FATAL_FAILURE(wait_for_encoders(store));
        ASSERT_TRUE(ok(host.commit()));
        ASSERT_TRUE(ok(host.restore()));
        EXPECT_TRUE(host.whole());
    }
}

TEST(StoreDecodeCache, StaysBelowItsBound) {
    SEEDED_DICE(random, 1222);
    const packed_model model(half_layout(320));
    const std::uint64_t room = 100 * model.token_bytes();
    mnnkv::store store = made(0, [=](mnnkv_store_config& c) { c.decode_cache_bytes = room; });
    store_host a(store, 0, half_layout(320), random), b(store, 1, half_layout(320), random);
    for (store_host* host : {&a, &b}) {
        host->append(256);
        for (std::uint32_t begin = 0; begin < 256; begin += 32) {
            ASSERT_TRUE(ok(host->submit(begin, 32)));
        }
    }
    for (int round = 0; round < 3; ++round) {
        for (store_host* host : {&a, &b}) {
            ASSERT_TRUE(ok(host->commit()));
            ASSERT_TRUE(ok(host->restore()));
            EXPECT_TRUE(host->whole());
            EXPECT_LE(stats_of(store).decoded_cache_bytes, room);
        }
    }
    EXPECT_EQ(stats_of(store).cache_hits, 2 * 2u) << "one block of each layer fits its share, in two rounds";
}

TEST(StoreAbi, StillServesProgramsOfTheFirstHeader) {
    // Their config had 32 bytes, the last three words of which were reserved, and their statistics 128.
    SEEDED_DICE(random, 1231);
    struct {
        std::uint32_t struct_size, workers, key_predictors, value_predictors;
        std::int32_t effort;
        std::uint32_t reserved[3];
    } config = {32, 0, MNNKV_PREDICT_RAW, 0, 3, {0, 0, 0}};
    mnnkv_store* handle = nullptr;
    ASSERT_TRUE(ok(mnnkv_store_create(reinterpret_cast<const mnnkv_store_config*>(&config), MNNKV_ABI_VERSION,
                                      &handle)));
    const mnnkv_layout layout = half_layout(128);
    const packed_model model(layout);
    bytes key(model.key_bytes(), 0x3C), value(model.value_bytes(), 0x3C);
    std::uint64_t ticket = 0, released = 0;
    ASSERT_TRUE(ok(mnnkv_store_submit(handle, 0, &layout, key.data(), value.data(), 0, 128, &ticket)));
    ASSERT_TRUE(ok(mnnkv_store_commit(handle, 0, &layout, key.data(), value.data(), &released)));
    std::uint64_t statistics[20];
    std::fill(std::begin(statistics), std::end(statistics), 0x5A5A5A5A5A5A5A5Aull);
    statistics[0] = 128;
    ASSERT_TRUE(ok(mnnkv_store_stats(handle, reinterpret_cast<mnnkv_store_statistics*>(statistics))));
    EXPECT_EQ(statistics[2], 1u) << "released_blocks";
    EXPECT_EQ(statistics[5], 128 * model.token_bytes()) << "released_raw_bytes";
    EXPECT_EQ(statistics[16], 0x5A5A5A5A5A5A5A5Aull) << "nothing past 128 bytes is written";
    ASSERT_TRUE(ok(mnnkv_store_restore(handle, 0, &layout, key.data(), value.data(), &released)));
    EXPECT_TRUE(same(key, bytes(key.size(), 0x3C)));
    mnnkv_store_destroy(handle);
}

#ifdef __linux__
TEST(StoreThreads, SleepWhenThereIsNothingToDo) {
    SEEDED_DICE(random, 1241);
    mnnkv::store store = made(3);
    store_host host(store, 0, half_layout(320), random);
    host.append(256);
    ASSERT_TRUE(ok(host.submit(0, 200)));
    ASSERT_NO_FATAL_FAILURE(wait_for_encoders(store));
    ASSERT_TRUE(ok(host.commit()));
    const auto cpu_ms = [] {
        timespec now;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
        return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
    };
    const double before = cpu_ms();
    std::this_thread::sleep_for(milliseconds(200));
    EXPECT_LT(cpu_ms() - before, 20.0);
}
#endif

}  // namespace
