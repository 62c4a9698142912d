// Heads that attention threads read: in a lane's memory, or restored in the cache.

#include "refusal.hpp"
#include "session_host.hpp"

#include <thread>

namespace {

using namespace support;

const std::uint32_t heads = 4, dims = 32, room = 512;

/// A session whose host restores heads, and one layer with stored tokens.
class Heads : public testing::Test {
protected:
    void make(const mnnkv_layout& layout, std::uint32_t lanes, std::uint32_t restores_heads = 1) {
        const std::string config = object(storing(0));
        mnnkv_session_options options = {};
        options.layers = 1;
        options.lanes = lanes;
        options.config_json = config.data();
        options.config_len = config.size();
        options.restores_heads = restores_heads;
        ASSERT_TRUE(ok(session_.create(options).code()));
        layer_.reset(new session_layer(session_, 0, layout, random_));
    }

    /// Steps until tokens are stored.
    void store() {
        fill(300);
        for (int i = 0; i < 12; ++i) {
            fill(1);
        }
        ASSERT_GT(layer_->compressed_tokens(), 200u);
    }

    void begin() {
        mnnkv_cache given = layer_->cache();
        ASSERT_TRUE(ok(session_.begin(0, given).code()));
    }

    void end() { ASSERT_TRUE(ok(layer_->end(0, 1))); }

    void fill(std::uint32_t count) {
        begin();
        layer_->append(count);
        end();
        ASSERT_TRUE(layer_->sound());
    }

    mnnkv_status head(std::uint32_t lane, std::uint32_t number, const void*& key, const void*& value) {
        return session_.head(0, lane, number, layer_->cache(), key, value).code();
    }

    /// Copies of both buffers, with the heads that `read` gives at their places.
    template <class Read>
    void copy_heads(const Read& read) {
        const mnnkv_layout& layout = layer_->layout();
        std::uint64_t key_bytes = 0, value_bytes = 0;
        ASSERT_TRUE(ok(mnnkv_layout_check(&layout, &key_bytes, &value_bytes)));
        key_.assign(key_bytes, 0);
        value_.assign(value_bytes, 0);
        for (std::uint32_t h = 0; h < heads; ++h) {
            const void *key = nullptr, *value = nullptr;
            read(h, key, value);
            std::memcpy(&key_[h * key_bytes / heads], key, key_bytes / heads);
            std::memcpy(&value_[h * value_bytes / heads], value, value_bytes / heads);
        }
    }

    /// The copies have every token as it was written.
    void expect_whole() {
        const std::uint32_t length = layer_->length();
        const std::size_t bytes = std::size_t(length) * heads * dims * 2;
        std::vector<std::uint8_t> keys(bytes), values(bytes), right_keys(bytes), right_values(bytes);
        ASSERT_TRUE(ok(mnnkv_kv_gather(&layer_->layout(), key_.data(), value_.data(), 0, length, keys.data(),
                                       values.data(), bytes)));
        // The session restores all of the cache that it is compared with.
        ASSERT_TRUE(ok(session_.restore(0, 0, 0, heads, layer_->cache()).code()));
        ASSERT_TRUE(layer_->whole());
        ASSERT_TRUE(ok(mnnkv_kv_gather(&layer_->layout(), layer_->key(), layer_->value(), 0, length,
                                       right_keys.data(), right_values.data(), bytes)));
        EXPECT_TRUE(same(keys.data(), bytes, right_keys.data(), bytes));
        EXPECT_TRUE(same(values.data(), bytes, right_values.data(), bytes));
    }

    dice random_{1717};
    mnnkv::session session_;
    std::unique_ptr<session_layer> layer_;
    std::vector<std::uint8_t> key_, value_;
};

TEST_F(Heads, AreReadWithAllTokensWhileTheCacheStaysReleased) {
    for (const auto& packs : {pack_modes[7], pack_modes[14]}) {
        make(make_layout(packs, heads, dims, room, 64), 2);
        store();
        begin();
        const std::uint32_t stored = layer_->compressed_tokens();
        copy_heads([&](std::uint32_t h, const void*& key, const void*& value) {
            ASSERT_TRUE(ok(head(h % 2, h, key, value)));
        });
        EXPECT_EQ(layer_->compressed_tokens(), stored) << "no token was written to the cache";
        expect_whole();
        layer_->append(1);
        end();
        EXPECT_EQ(layer_->compressed_tokens(), stored) << "heads that were restored are released by end";
    }
}

TEST_F(Heads, AreReadAnewWhereTheCacheHasMovedWithinTheStep) {
    for (const mnnkv_layout& next : {make_layout(pack_modes[7], heads, dims, 2 * room, 64),
                                     make_layout(pack_modes[8], heads, dims, room, 64)}) {
        make(make_layout(pack_modes[7], heads, dims, room, 64), 1);
        store();
        begin();
        const void *key = nullptr, *value = nullptr;
        ASSERT_TRUE(ok(head(0, 0, key, value)));
        layer_->move_to(next);
        copy_heads([&](std::uint32_t h, const void*& k, const void*& v) { ASSERT_TRUE(ok(head(0, h, k, v))); });
        expect_whole();
        layer_->append(1);
        end();
    }
}

TEST_F(Heads, AreNeitherRestoredNorForgottenWhereTheyComeToLieInEachOther) {
    make(make_layout(pack_modes[7], heads, dims, room, 64), 1);
    store();
    begin();
    mnnkv_layout rows = make_layout(pack_modes[7], heads, dims, room, 64);
    rows.l_pack = rows.h_pack = rows.flash_block = 1;
    rows.key_token_stride = rows.value_token_stride = heads * dims * 2;
    std::vector<std::uint8_t> key(std::size_t(room) * heads * dims * 2), value(key);
    mnnkv_cache other = layer_->cache();
    other.layout = &rows;
    other.key = key.data();
    other.value = value.data();
    EXPECT_TRUE(refuses(MNNKV_STALE, "layout", [&] { return session_.restore(0, 0, 0, heads, other).code(); }));
    EXPECT_TRUE(refuses(bad, "head_count", [&] { return session_.restore(0, 0, 1, heads, other).code(); }));
    EXPECT_TRUE(refuses(bad, "head_begin", [&] { return session_.released(0, 0, heads, 1, other).code(); }));
    EXPECT_TRUE(refuses(bad, "lane", [&] { return session_.released(0, 1, 0, heads, other).code(); }));
    ASSERT_TRUE(ok(session_.restore(0, 0, 0, heads, layer_->cache()).code()));
    EXPECT_TRUE(layer_->whole());
    layer_->append(1);
    end();
}

TEST_F(Heads, AreReadByThreadsAtTheSameTime) {
    make(make_layout(pack_modes[7], heads, dims, room, 64), 3);
    store();
    for (int step = 0; step < 20; ++step) {
        begin();
        std::vector<std::vector<std::uint8_t>> read(3 * heads);
        std::vector<std::thread> threads;
        const std::size_t bytes = layer_->layout().max_tokens * dims * 2;
        for (std::uint32_t lane = 0; lane < 3; ++lane) {
            threads.emplace_back([&, lane] {
                for (std::uint32_t i = 0; i < heads; ++i) {
                    const std::uint32_t h = (i + lane) % heads;  // groups of query heads may straddle threads
                    const void *key = nullptr, *value = nullptr;
                    if (head(lane, h, key, value) == MNNKV_OK) {
                        const std::uint8_t* const from = static_cast<const std::uint8_t*>(key);
                        read[lane * heads + h].assign(from, from + layer_->length() / 16 * 16 * dims * 2);
                    }
                }
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        ASSERT_TRUE(ok(session_.restore(0, 1, 0, heads, layer_->cache()).code()));
        ASSERT_TRUE(layer_->whole());
        for (std::uint32_t at = 0; at < 3 * heads; ++at) {
            const std::vector<std::uint8_t>& mine = read[at];
            const std::uint8_t* const right = layer_->key() + at % heads * bytes;
            ASSERT_FALSE(mine.empty());
            EXPECT_TRUE(same(mine.data(), mine.size(), right, mine.size())) << "head " << at % heads;
        }
        layer_->append(1);
        end();
    }
}

TEST_F(Heads, AreRestoredInTheCacheAndReleasedOneByOne) {
    make(make_layout(pack_modes[7], heads, dims, room, 64), 2);
    store();
    begin();
    EXPECT_EQ(session_.check_heads(0, 0, heads).code(), MNNKV_NOT_FOUND);
    for (std::uint32_t h = 0; h < heads; ++h) {
        EXPECT_TRUE(refuses(MNNKV_NOT_FOUND, "head " + std::to_string(h),
                            [&] { return session_.check_heads(0, h, 1).code(); }));
        ASSERT_TRUE(ok(session_.restore(0, h % 2, h, 1, layer_->cache()).code()));
        EXPECT_TRUE(ok(session_.check_heads(0, h, 1).code()));
    }
    EXPECT_TRUE(layer_->whole());
    ASSERT_TRUE(ok(session_.released(0, 1, 1, 2, layer_->cache()).code()));
    EXPECT_TRUE(ok(session_.check_heads(0, 0, 1).code()));
    EXPECT_EQ(session_.check_heads(0, 1, 1).code(), MNNKV_NOT_FOUND);
    ASSERT_TRUE(ok(session_.restore(0, 0, 0, heads, layer_->cache()).code()));
    EXPECT_TRUE(layer_->whole());
    layer_->append(1);
    end();
    EXPECT_TRUE(layer_->sound());
}

TEST_F(Heads, AreRestoredByBeginWhereTheHostDoesNotAsk) {
    make(make_layout(pack_modes[7], heads, dims, room, 64), 1, 0);
    store();
    ASSERT_TRUE(ok(layer_->begin()));
    const void *key = nullptr, *value = nullptr;
    ASSERT_TRUE(ok(head(0, 2, key, value)));
    EXPECT_EQ(key, layer_->key() + 2 * room * dims * 2) << "a head without stored tokens is read in the cache";
    EXPECT_TRUE(ok(session_.check_heads(0, 0, heads).code()));
    end();
}

TEST_F(Heads, OfWrongNumbersOrBuffersAreRefused) {
    make(make_layout(pack_modes[7], heads, dims, room, 64), 2);
    store();
    const void *key = nullptr, *value = nullptr;
    EXPECT_TRUE(refuses(bad, "not open", [&] { return head(0, 0, key, value); }));
    begin();
    mnnkv_cache given = layer_->cache(), no_key = given, no_value = given, long_cache = given, short_cache = given, other = given;
    short_cache.kv_len = 100;
    no_key.key = nullptr;
    no_value.value = nullptr;
    long_cache.kv_len = room + 1;
    const mnnkv_layout wrong = make_layout(pack_modes[7], heads + 1, dims, room, 64);
    other.layout = &wrong;
    std::vector<std::uint8_t> large_key(2 * (heads + 1) * room * dims), large_value(large_key);
    other.key = large_key.data();
    other.value = large_value.data();
    slot<const void*> key_out, value_out;
    const auto ask = [&](std::uint32_t layer, std::uint32_t lane, std::uint32_t h, const mnnkv_cache& cache) {
        return mnnkv_session_head(session_.get(), layer, lane, h, &cache, key_out.get(), value_out.get());
    };
    const auto restore = [&](std::uint32_t lane, std::uint32_t first, std::uint32_t count, const mnnkv_cache& cache) {
        return session_.restore(0, lane, first, count, cache).code();
    };
    expect_refused(
        {
            {bad, "layer", [&] { return ask(1, 0, 0, given); }},
            {bad, "lane", [&] { return ask(0, 2, 0, given); }},
            {bad, "head", [&] { return ask(0, 0, heads, given); }},
            {bad, "key", [&] { return ask(0, 0, 0, no_key); }},
            {bad, "value", [&] { return ask(0, 0, heads - 1, no_value); }},
            {bad, "kv_len", [&] { return ask(0, 0, 0, long_cache); }},
            {bad, "kv_len", [&] { return ask(0, 0, 0, short_cache); }},
            {MNNKV_STALE, "heads", [&] { return ask(0, 0, 0, other); }},
            {bad, "cache", [&] {
                 return mnnkv_session_head(session_.get(), 0, 0, 0, nullptr, key_out.get(), value_out.get());
             }},
            {bad, "value", [&] { return mnnkv_session_head(session_.get(), 0, 0, 0, &given, key_out.get(), nullptr); }},
            {bad, "lane", [&] { return restore(2, 0, 1, given); }},
            {bad, "head", [&] { return restore(0, heads, 1, given); }},
            {bad, "head", [&] { return restore(0, 1, ~0u, given); }},
            {bad, "key", [&] { return restore(0, 1, 1, no_key); }},
            {MNNKV_STALE, "heads", [&] { return restore(0, 0, 1, other); }},
            {bad, "head", [&] { return session_.released(0, 0, 3, 2, given).code(); }},
            {bad, "layer", [&] { return session_.check_heads(1, 0, 1).code(); }},
        },
        key_out, value_out);
    EXPECT_TRUE(layer_->sound());
    mnnkv_session_options options = {};
    options.layers = options.lanes = 1;
    options.restores_heads = 2;
    mnnkv::session none;
    EXPECT_TRUE(refuses(bad, "restores_heads", [&] { return none.create(options).code(); }));
}

}  // namespace
