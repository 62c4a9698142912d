// Memory is released to the system, as much as the library reports. Linux only: other systems have no figure to
// compare with.
#ifdef __linux__

#include "memory.hpp"
#include "packed_model.hpp"

#include <thread>

namespace {

using namespace support;

/// 64 MB of K and V, f16 as on a phone, all pages in memory and cheap to encode.
class LargeCache : public testing::Test {
protected:
    LargeCache()
        : layout_(make_layout(pack_modes[7], 8, 128, 16384, 64)), key_(32 * mega), value_(32 * mega) {
        std::uint64_t key_bytes = 0, value_bytes = 0;
        EXPECT_TRUE(ok(mnnkv_layout_check(&layout_, &key_bytes, &value_bytes)));
        EXPECT_EQ(key_bytes, key_.size());
        EXPECT_EQ(value_bytes, value_.size());
        for (std::size_t i = 0; i < key_.size(); ++i) {
            key_.data()[i] = byte_at(i);
            value_.data()[i] = byte_at(i + 5);
        }
    }

    static std::uint8_t byte_at(std::size_t i) { return static_cast<std::uint8_t>(i / 512 % 199 + 1); }

    bool is_as_made() {
        for (std::size_t i = 0; i < key_.size(); ++i) {
            if (key_.data()[i] != byte_at(i) || value_.data()[i] != byte_at(i + 5)) {
                return false;
            }
        }
        return true;
    }

    /// A store with cheap encoding: memory matters here.
    static mnnkv::store quick_store() {
        mnnkv_store_config config = mnnkv::make<mnnkv_store_config>();
        config.key_predictors = MNNKV_PREDICT_RAW;
        config.value_predictors = MNNKV_PREDICT_RAW;
        mnnkv::store store;
        EXPECT_TRUE(ok(store.create(&config).code()));
        return store;
    }

    /// Within 10%.
    static void expect_about(long fell, std::uint64_t reported) {
        EXPECT_NEAR(static_cast<double>(fell), static_cast<double>(reported), 0.1 * static_cast<double>(reported));
    }

    mnnkv_layout layout_;
    mapping key_, value_;
};

TEST_F(LargeCache, FallsByWhatReleaseReports) {
    // Whole groups, a range that begins and ends anywhere, then everything: released pages do not count again.
    const struct {
        std::uint32_t begin, count;
        long at_least;
    } ranges[] = {{64, 4096, 15 * mega}, {5001, 7000, 26 * mega}, {0, 16384, 18 * mega}};
    for (const auto& r : ranges) {
        SCOPED_TRACE(testing::Message() << r.count << " tokens from " << r.begin);
        const long before = resident_bytes();
        std::uint64_t reported = 0;
        ASSERT_TRUE(ok(mnnkv_kv_release(&layout_, key_.data(), value_.data(), r.begin, r.count, &reported)));
        expect_about(before - resident_bytes(), reported);
        EXPECT_GE(static_cast<long>(reported), r.at_least);
    }
    std::uint64_t again = 77;
    ASSERT_TRUE(ok(mnnkv_kv_release(&layout_, key_.data(), value_.data(), 0, 16384, &again)));
    EXPECT_EQ(again, 0u) << "pages that are not in memory do not count";
}

TEST_F(LargeCache, DoesNotFallByZeroing) {
    const long before = resident_bytes();
    ASSERT_TRUE(ok(mnnkv_kv_zero(&layout_, key_.data(), value_.data(), 0, 16384)));
    EXPECT_LT(std::abs(before - resident_bytes()), 4 * mega);
}

TEST_F(LargeCache, FallsByWhatCommitReportsAndComesBackWhole) {
    mnnkv::store store = quick_store();
    for (std::uint32_t begin = 0; begin < 16384; begin += 256) {
        ASSERT_TRUE(ok(store.submit(0, layout_, key_.data(), value_.data(), begin, 256).code()));
    }
    const long full = resident_bytes();
    std::uint64_t released = 0, restored = 0;
    ASSERT_TRUE(ok(store.commit(0, layout_, key_.data(), value_.data(), &released).code()));
    const long lean = resident_bytes();
    expect_about(full - lean, released);
    EXPECT_GE(static_cast<long>(released), 60 * mega);

    mnnkv_store_statistics stats = mnnkv::make<mnnkv_store_statistics>();
    ASSERT_TRUE(ok(store.stats(stats).code()));
    EXPECT_EQ(stats.released_bytes, released);
    EXPECT_EQ(stats.released_raw_bytes, static_cast<std::uint64_t>(64 * mega));

    ASSERT_TRUE(ok(store.restore(0, layout_, key_.data(), value_.data(), &restored).code()));
    EXPECT_EQ(restored, static_cast<std::uint64_t>(64 * mega));
    EXPECT_TRUE(is_as_made());
    EXPECT_GE(resident_bytes() - lean, 60 * mega) << "the test would notice memory that did not go";
}

TEST(ThreadMemory, GoesBackByATrim) {
    // On a new thread, which retains nothing yet. Large enough for malloc to release freed memory at once.
    std::thread([] {
        mapping words(128 * mega), blob(4 * mega);
        for (std::size_t i = 0; i < words.size(); i += 4096) {
            words.data()[i] = 1;
        }
        std::size_t length = 0;
        mnnkv_gear_options options = mnnkv::make<mnnkv_gear_options>();
        options.predictors = MNNKV_PREDICT_RAW;
        ASSERT_TRUE(ok(mnnkv_encode_fp16_gear(words.data(), words.size(), &options, blob.data(), blob.size(),
                                              &length)));
        const long before = resident_bytes();
        mnnkv_thread_trim();
        EXPECT_GE(before - resident_bytes(), 128 * mega) << "the header names about four times the input";
    }).join();
}

}  // namespace

#endif
