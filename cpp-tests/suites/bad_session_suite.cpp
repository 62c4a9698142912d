// Invalid calls of a session. Refused calls leave caches, lengths and positions unchanged, and the session works.

#include "refusal.hpp"
#include "session_host.hpp"

#include <memory>

namespace {

using namespace support;

/// Layer 0 with evicted and with compressed tokens between steps, layer 1 in a step.
class BadSession : public testing::Test {
protected:
    BadSession() : random_(1501), layout_(half_layout(300)) {
        session_ = made_session(object(evicting(R"("kv_h2o_block_tokens": 8)"), storing(0)), 3, 2);
        for (std::uint32_t i = 0; i < 2; ++i) {
            layers_.emplace_back(new session_layer(session_, i, layout_, random_));
            for (int step = 0; step < 10; ++step) {
                layers_[i]->scored_step(favouring(40, 60), step == 0 ? 220 : 1);
            }
        }
        EXPECT_LT(closed().length(), closed().logical_length());
        EXPECT_GT(closed().compressed_tokens(), 0u);
        EXPECT_TRUE(ok(open().begin(2)));
        open().append(2);
    }

    session_layer& closed() { return *layers_[0]; }
    session_layer& open() { return *layers_[1]; }
    mnnkv_session* handle() { return session_.get(); }

    void expect_all_refused(const std::vector<bad_call>& calls) {
        const std::uint32_t compressed = closed().compressed_tokens();
        expect_refused(calls, number_, count_, pairs_, text_);
        EXPECT_TRUE(closed().sound() && closed().booked());
        EXPECT_EQ(closed().compressed_tokens(), compressed);
        EXPECT_TRUE(books_of_open());
    }

    /// The open layer has two tokens in its cache that the session does not count yet.
    testing::AssertionResult books_of_open() {
        std::uint32_t logical = 0, physical = 0;
        EXPECT_TRUE(ok(session_.lengths(1, logical, physical).code()));
        if (logical + 2 != open().logical_length() || physical + 2 != open().length()) {
            return testing::AssertionFailure() << "the open layer has " << physical << " of " << logical;
        }
        return testing::AssertionSuccess();
    }

    /// The three calls that take a cache, with a changed one: begin and keep of layer 0, end of layer 1.
    std::vector<bad_call> calls_with(mnnkv_status expected, const std::string& word,
                                     const std::function<void(mnnkv_cache&)>& change) {
        const auto run = [=](session_layer& layer, const std::function<mnnkv_status(mnnkv_cache*)>& call) {
            return [=, &layer] {
                mnnkv_cache cache = layer.cache();
                change(cache);
                const std::uint32_t before = cache.kv_len;
                const mnnkv_status status = call(&cache);
                EXPECT_EQ(cache.kv_len, before) << "outputs are written only on success";
                return status;
            };
        };
        return {
            {expected, word,
             run(closed(), [=](mnnkv_cache* c) { return mnnkv_session_begin(handle(), 0, c, nullptr); })},
            {expected, word,
             run(closed(), [=](mnnkv_cache* c) { return mnnkv_session_keep(handle(), 0, all_, 1, c); })},
            {expected, word,
             run(open(), [=](mnnkv_cache* c) { return mnnkv_session_end(handle(), 1, 0, 2, c); })},
        };
    }

    /// The sums of a head of one row and one token.
    static mnnkv_block_sums one_token() {
        static double one = 1;
        mnnkv_block_sums sums = mnnkv::make<mnnkv_block_sums>();
        sums.flags = MNNKV_TILE_FIRST | MNNKV_TILE_LAST;
        sums.heads = sums.rows = sums.blocks = sums.token_end = 1;
        sums.block_tokens = 8;
        sums.sums = &one;
        return sums;
    }

    struct pair_room {
        std::int32_t numbers[64];
    };
    struct text_room {
        char chars[64];
    };

    dice random_;
    mnnkv_layout layout_;
    mnnkv::session session_;
    std::vector<std::unique_ptr<session_layer>> layers_;
    const std::int32_t all_[2] = {0, 229};
    slot<std::uint32_t> number_;
    slot<std::size_t> count_;
    slot<pair_room> pairs_;
    slot<text_room> text_;
};

TEST_F(BadSession, PointersAreChecked) {
    mnnkv_session* const s = handle();
    mnnkv_cache cache = closed().cache(), last = open().cache();
    mnnkv_block_sums sums = one_token();
    std::int32_t* const pairs = pairs_.get()->numbers;
    char* const text = text_.get()->chars;
    std::uint32_t spare[2];
    std::size_t sizes[2];
    const std::int32_t four[4] = {0, 1, 2, 3};
    mnnkv_cache caches[2] = {cache, last};
    mnnkv_step step = mnnkv_step();
    expect_all_refused({
        {bad, "session", [&] { return mnnkv_session_report(nullptr, text, 64, count_.get()); }},
        {bad, "session", [&] { return mnnkv_session_reset(nullptr, 0); }},
        {bad, "session", [&] { return mnnkv_session_reset(nullptr, MNNKV_ALL_LAYERS); }},
        {bad, "session", [&] { return mnnkv_session_begin(nullptr, 0, &cache, nullptr); }},
        {bad, "session", [&] { return mnnkv_session_block_sums(nullptr, 1, 0, &sums); }},
        {bad, "session", [&] { return mnnkv_session_end(nullptr, 1, 0, 2, &last); }},
        {bad, "session", [&] { return mnnkv_session_keep(nullptr, 0, all_, 1, &cache); }},
        {bad, "session", [&] { return mnnkv_session_lengths(nullptr, 0, number_.get(), &spare[0]); }},
        {bad, "session", [&] { return mnnkv_session_positions(nullptr, 0, MNNKV_IN_CACHE, pairs, 32, count_.get()); }},
        {bad, "cache", [&] { return mnnkv_session_begin(s, 0, nullptr, nullptr); }},
        {bad, "cache", [&] { return mnnkv_session_end(s, 1, 0, 2, nullptr); }},
        {bad, "cache", [&] { return mnnkv_session_keep(s, 0, all_, 1, nullptr); }},
        {bad, "cache", [&] { return mnnkv_session_begin(s, 0, misaligned(&caches[0]), nullptr); }},
        {bad, "step", [&] { return mnnkv_session_begin(s, 0, &caches[0], &step); }},
        {bad, "sums", [&] { return mnnkv_session_block_sums(s, 1, 0, nullptr); }},
        {bad, "sums", [&] { return mnnkv_session_block_sums(s, 1, 0, misaligned(&sums)); }},
        {bad, "logical", [&] { return mnnkv_session_lengths(s, 0, nullptr, number_.get()); }},
        {bad, "physical", [&] { return mnnkv_session_lengths(s, 0, number_.get(), nullptr); }},
        {bad, "logical", [&] { return mnnkv_session_lengths(s, 0, misaligned(spare), number_.get()); }},
        {bad, "pairs", [&] { return mnnkv_session_positions(s, 0, MNNKV_IN_CACHE, nullptr, 32, count_.get()); }},
        {bad, "pairs", [&] { return mnnkv_session_positions(s, 0, MNNKV_IN_CACHE, misaligned(pairs), 30, count_.get()); }},
        {bad, "pairs", [&] { return mnnkv_session_positions(s, 0, MNNKV_IN_CACHE, pairs, SIZE_MAX, count_.get()); }},
        {bad, "n_pairs", [&] { return mnnkv_session_positions(s, 0, MNNKV_IN_CACHE, pairs, 32, nullptr); }},
        {bad, "n_pairs", [&] { return mnnkv_session_positions(s, 0, MNNKV_IN_CACHE, pairs, 32, misaligned(sizes)); }},
        {bad, "text", [&] { return mnnkv_session_report(s, nullptr, 64, count_.get()); }},
        {bad, "text", [&] { return mnnkv_session_report(s, text, SIZE_MAX, count_.get()); }},
        {bad, "len", [&] { return mnnkv_session_report(s, text, 64, nullptr); }},
        {bad, "pairs", [&] { return mnnkv_session_keep(s, 0, nullptr, 1, &cache); }},
        {bad, "pairs", [&] { return mnnkv_session_keep(s, 0, misaligned(four), 1, &cache); }},
        {bad, "pairs", [&] { return mnnkv_session_keep(s, 0, four, SIZE_MAX, &cache); }},
    });
}

TEST_F(BadSession, LayersThatAreNotThereAreRefused) {
    mnnkv_cache cache = closed().cache();
    const mnnkv_block_sums sums = one_token();
    for (const std::uint32_t layer : {3u, 4u, UINT32_MAX - 1, UINT32_MAX}) {
        SCOPED_TRACE(layer);
        std::vector<bad_call> calls = {
            {bad, "layer", [&] { return mnnkv_session_begin(handle(), layer, &cache, nullptr); }},
            {bad, "layer", [&] { return mnnkv_session_block_sums(handle(), layer, 0, &sums); }},
            {bad, "layer", [&] { return mnnkv_session_end(handle(), layer, 0, 1, &cache); }},
            {bad, "layer", [&] { return mnnkv_session_keep(handle(), layer, all_, 1, &cache); }},
            {bad, "layer", [&] { return mnnkv_session_lengths(handle(), layer, number_.get(), number_.get()); }},
            {bad, "layer",
             [&] { return mnnkv_session_positions(handle(), layer, MNNKV_IN_CACHE, pairs_.get()->numbers, 32, count_.get()); }},
        };
        if (layer != MNNKV_ALL_LAYERS) {
            calls.push_back({bad, "layer", [&] { return mnnkv_session_reset(handle(), layer); }});
        }
        expect_all_refused(calls);
    }
    for (const std::uint32_t lane : {2u, UINT32_MAX}) {
        expect_all_refused({{bad, "lane", [&] { return mnnkv_session_block_sums(handle(), 1, lane, &sums); }}});
    }
}

TEST_F(BadSession, CallsOutOfOrderAreRefused) {
    mnnkv_cache idle = closed().cache(), busy = open().cache(), unused = closed().cache();
    unused.kv_len = 0;
    expect_all_refused({
        {bad, "open", [&] { return mnnkv_session_begin(handle(), 1, &busy, nullptr); }},
        {bad, "open", [&] { return mnnkv_session_keep(handle(), 1, all_, 1, &busy); }},
        {bad, "begin", [&] { return mnnkv_session_end(handle(), 0, 0, 1, &idle); }},
        {bad, "begin", [&] { return mnnkv_session_end(handle(), 2, 0, 1, &unused); }},
        {bad, "open", [&] { return closed().score(0, 0, favouring(0, 9)); }},
    });
}

TEST_F(BadSession, CachesThatCannotBeAreRefused) {
    expect_all_refused(calls_with(bad, "layout", [](mnnkv_cache& c) { c.layout = nullptr; }));
    expect_all_refused(calls_with(bad, "key", [](mnnkv_cache& c) { c.key = nullptr; }));
    expect_all_refused(calls_with(bad, "value", [](mnnkv_cache& c) { c.value = nullptr; }));
    expect_all_refused(calls_with(bad, "overlap", [](mnnkv_cache& c) { c.value = c.key; }));
    for (const std::uint32_t size : {0u, 4u, 39u, 4097u}) {
        expect_all_refused(calls_with(bad, "struct_size", [=](mnnkv_cache& c) { c.struct_size = size; }));
    }
    mnnkv_layout layouts[6];
    std::fill(std::begin(layouts), std::end(layouts), layout_);
    layouts[0].value_token_stride = 7;
    layouts[1].head_dim = 0;
    layouts[2].kv_heads = layouts[2].head_dim = layouts[2].max_tokens = UINT32_MAX;
    layouts[3].struct_size = 0;
    layouts[4].key_dtype = 77;
    layouts[5].key_head_stride = 2;
    const char* const words[] = {"value_token_stride", "head_dim", "key", "struct_size", "key_dtype", "key_head_stride"};
    for (std::size_t i = 0; i < 6; ++i) {
        expect_all_refused(calls_with(bad, words[i], [&](mnnkv_cache& c) { c.layout = &layouts[i]; }));
    }
    mnnkv_layout quantised = layout_;
    quantised.value_dtype = MNNKV_DTYPE_INT8;
    expect_all_refused(
        calls_with(MNNKV_UNSUPPORTED, "value_dtype", [&](mnnkv_cache& c) { c.layout = &quantised; }));
}

TEST_F(BadSession, LengthsThatDisagreeAreRefused) {
    for (const std::uint32_t kv_len : {0u, closed().length() - 1, closed().length() + 1, 300u, 301u, UINT32_MAX}) {
        SCOPED_TRACE(kv_len);
        std::vector<bad_call> calls = calls_with(bad, "kv_len", [=](mnnkv_cache& c) { c.kv_len = kv_len; });
        calls.pop_back();
        expect_all_refused(calls);
    }
    const std::uint32_t begun = open().length() - 2;
    for (const std::uint32_t kv_len : {0u, begun - 1, 301u, UINT32_MAX}) {
        SCOPED_TRACE(kv_len);
        std::vector<bad_call> calls = calls_with(bad, "kv_len", [=](mnnkv_cache& c) { c.kv_len = kv_len; });
        expect_all_refused({calls.back()});
    }
}

TEST_F(BadSession, PairsThatCannotBeAreRefused) {
    const std::vector<pair_list> plans = {
        {-1, 2},     {3, -2},      {INT32_MIN, INT32_MIN}, {0, 10, 5, 10}, {20, 10, 0, 5},       {0, 10, 0, 10},
        {0, 230},    {229, 1},     {230, 0, 0, 1},         {400, 1},       {INT32_MAX, INT32_MAX}, {0, 1, 2, INT32_MAX},
    };
    for (const pair_list& pairs : plans) {
        SCOPED_TRACE(testing::PrintToString(pairs));
        expect_all_refused({{bad, "pair", [&] { return closed().keep(pairs); }}});
    }
}

TEST_F(BadSession, RoomThatIsTooSmallGivesTheLengthAndWritesNothingElse) {
    std::size_t runs = 0, length = 0;
    std::int32_t two[3] = {77, 77, 77};
    char text[4] = {'x', 'x', 'x', 'x'};
    ASSERT_GE(closed().positions().size(), 4u) << "two runs";
    for (const std::size_t cap : {0u, 1u}) {
        EXPECT_TRUE(refuses(MNNKV_BUFFER_TOO_SMALL, "pairs",
                            [&] { return mnnkv_session_positions(handle(), 0, MNNKV_IN_CACHE, cap ? two : nullptr, cap, &runs); }));
        EXPECT_EQ(runs, closed().positions().size() / 2);
        EXPECT_TRUE(two[0] == 77 && two[1] == 77 && two[2] == 77);
        EXPECT_TRUE(refuses(MNNKV_BUFFER_TOO_SMALL, "cap", [&] {
            return mnnkv_session_report(handle(), cap ? text : nullptr, 3 * cap, &length);
        }));
        EXPECT_GT(length, 100u);
        EXPECT_EQ(std::string(text, 4), "xxxx");
    }
    // Exactly the named room is enough, one byte less is not.
    std::vector<char> exact(length);
    EXPECT_TRUE(answers(mnnkv_session_report(handle(), exact.data(), length - 1, &length),
                        MNNKV_BUFFER_TOO_SMALL));
    EXPECT_TRUE(ok(mnnkv_session_report(handle(), exact.data(), exact.size(), &length)));
    EXPECT_EQ(exact.back(), 0);
    EXPECT_EQ(std::strlen(exact.data()) + 1, length);
}

TEST_F(BadSession, EndRefusesHeadsThatDoNotMatchAndMayBeRepeated) {
    const weights weight = favouring(0, 10);
    for (std::uint32_t head = 0; head < 3; ++head) {
        ASSERT_TRUE(ok(open().score(head % 2, head, weight)));
    }
    for (const std::uint32_t heads : {0u, 2u, 4u, UINT32_MAX}) {
        expect_all_refused({{bad, "3 heads", [&] { return open().end(heads, 2); }}});
    }
    for (const std::uint32_t queries : {1u, 3u, UINT32_MAX}) {
        expect_all_refused({{bad, "rows", [&] { return open().end(3, queries); }}});
    }
    EXPECT_TRUE(ok(open().end(3, 2))) << "nothing has changed";
    EXPECT_TRUE(open().sound());
}

TEST_F(BadSession, LeavesEverythingInWorkingOrder) {
    expect_all_refused(calls_with(bad, "key", [](mnnkv_cache& c) { c.key = nullptr; }));
    EXPECT_TRUE(ok(open().end(0, 2)));
    for (int step = 0; step < 30; ++step) {
        for (auto& layer : layers_) {
            ASSERT_NO_FATAL_FAILURE(layer->scored_step(favouring(40, 60)));
        }
    }
    EXPECT_TRUE(ok(closed().keep({0, 100})));
    EXPECT_TRUE(closed().sound());
    // Caches that have grown and are packed otherwise are accepted.
    closed().move_to(make_layout(pack_modes[14], 2, 24, 500, 500));
    ASSERT_NO_FATAL_FAILURE(closed().step(100));
    EXPECT_TRUE(ok(closed().begin()));
}

TEST(BadSessionDestroy, WorksWithLayersOpenAndWorkUnderWay) {
    SEEDED_DICE(random, 1502);
    for (int round = 0; round < 5; ++round) {
        mnnkv::session session = made_session(object(evicting(), storing(3)), 2);
        session_layer layer(session, 0, half_layout(1000), random);
        ASSERT_NO_FATAL_FAILURE(layer.step(900));
        ASSERT_TRUE(ok(layer.begin(2)));
        layer.append(2);
        ASSERT_TRUE(ok(layer.score(0, 0, favouring(0, 10))));
        session.reset();
    }
    mnnkv_session_destroy(nullptr);
}

}  // namespace
