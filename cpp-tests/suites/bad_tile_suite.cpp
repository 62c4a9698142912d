// Invalid softmax tiles. A refused tile counts for nothing, and the right one may follow.

#include "refusal.hpp"
#include "session_host.hpp"

#include <thread>

namespace {

using namespace support;

/// One layer in a step of two rows, with room for 300 tokens and 102 in use.
class BadTile : public testing::Test {
protected:
    BadTile()
        : random_(1601),
          session_(made_session(object(evicting()), 1, 2)),
          layer_(session_, 0, half_layout(300), random_) {
        layer_.step(100);
        EXPECT_TRUE(ok(layer_.begin()));
        layer_.append(2);
    }

    /// A good tile of 2 rows and 8 tokens.
    mnnkv_score_tile good() const {
        mnnkv_score_tile tile = mnnkv::make<mnnkv_score_tile>();
        tile.dtype = MNNKV_DTYPE_F32;
        tile.pack = 4;
        tile.queries = 2;
        tile.tokens = 8;
        tile.token_begin = 16;
        tile.flags = MNNKV_TILE_FIRST | MNNKV_TILE_LAST;
        tile.data = values_;
        return tile;
    }

    mnnkv_status hand_in(const mnnkv_score_tile& tile, std::uint32_t lane = 0) {
        return mnnkv_session_scores(session_.get(), 0, lane, &tile);
    }

    dice random_;
    mnnkv::session session_;
    session_layer layer_;
    const float values_[32] = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f, 0.7f, 0.8f, 0.1f, 0.2f, 0.3f,
                               0.4f, 0.5f, 0.6f, 0.7f, 0.8f, 0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f};
};

/// A good tile with one change is refused, for the reason that `word` names.
#define EXPECT_REFUSED_TILE(expected, word, change)                                        \
    do {                                                                                   \
        mnnkv_score_tile tile = good();                                                    \
        [&](mnnkv_score_tile& t) { change; }(tile);                                        \
        EXPECT_TRUE(refuses(expected, word, [&] { return hand_in(tile); })) << #change;    \
    } while (false)

TEST_F(BadTile, FieldsOutOfRangeAreRefused) {
    EXPECT_REFUSED_TILE(bad, "struct_size", t.struct_size = 0);
    EXPECT_REFUSED_TILE(bad, "struct_size", t.struct_size -= 4);
    EXPECT_REFUSED_TILE(bad, "struct_size", t.struct_size = 4097);
    EXPECT_REFUSED_TILE(bad, "tile->dtype is 0; F16 (1), BF16 (2) or F32 (3) expected", t.dtype = 0);
    EXPECT_REFUSED_TILE(bad, "dtype", t.dtype = 7);
    EXPECT_REFUSED_TILE(bad, "dtype", t.dtype = UINT32_MAX);
    EXPECT_REFUSED_TILE(MNNKV_UNSUPPORTED, "dtype", t.dtype = MNNKV_DTYPE_INT8);
    EXPECT_REFUSED_TILE(MNNKV_UNSUPPORTED, "dtype", t.dtype = MNNKV_DTYPE_TQ4);
    EXPECT_REFUSED_TILE(bad, "queries", t.queries = 0);
    EXPECT_REFUSED_TILE(bad, "tokens", t.tokens = 0);
    EXPECT_REFUSED_TILE(bad, "token_begin", t.token_begin = UINT32_MAX);
    EXPECT_REFUSED_TILE(bad, "flags", t.flags = 4);
    EXPECT_REFUSED_TILE(bad, "flags", t.flags = UINT32_MAX);
    EXPECT_REFUSED_TILE(bad, "tile->heads, 3,", t.heads = 3);
    EXPECT_REFUSED_TILE(bad, "tile->heads", t.heads = UINT32_MAX);
    EXPECT_REFUSED_TILE(bad, "data", t.data = nullptr);
    EXPECT_REFUSED_TILE(bad, "tile", (t.queries = UINT32_MAX, t.tokens = UINT32_MAX));
    ASSERT_TRUE(ok(layer_.score(0, 0, 2, favouring(0, 9))));
    ASSERT_TRUE(ok(layer_.score(1, 1, 2, favouring(0, 9))));
    EXPECT_TRUE(ok(layer_.end(2, 2))) << "two good heads came, and none of the others";
}

TEST_F(BadTile, SumsAndScalesThatCannotBeAreRefused) {
    for (const float odd : {0.0f, -0.0f, -1.0f, infinity, -infinity, not_a_number}) {
        const float sums[2] = {1, odd};
        EXPECT_REFUSED_TILE(bad, "row_sum", t.row_sum = sums);
    }
    const float fine[2] = {1, 1};
    EXPECT_REFUSED_TILE(bad, "tile->flags has no LAST", (t.row_sum = fine, t.flags = MNNKV_TILE_FIRST));
    EXPECT_REFUSED_TILE(bad, "row_sum", t.row_sum = misaligned(fine));
    EXPECT_REFUSED_TILE(bad, "update_scale", t.update_scale = misaligned(fine));
    EXPECT_TRUE(ok(layer_.end(0, 2))) << "no head has come";
}

TEST_F(BadTile, DataThatIsNoAttentionIsRefused) {
    for (const float odd : {not_a_number, infinity, -infinity, -100.0f, 1e30f}) {
        float values[16];
        std::copy(values_, values_ + 16, values);
        values[5] = odd;
        EXPECT_REFUSED_TILE(bad, "attention", t.data = values);
    }
    EXPECT_TRUE(ok(layer_.end(0, 2))) << "no head has come";
}

TEST_F(BadTile, TilesOutOfOrderAreRefused) {
    EXPECT_REFUSED_TILE(bad, "tile->flags has no FIRST", t.flags = MNNKV_TILE_LAST);
    EXPECT_REFUSED_TILE(bad, "tile->flags has no FIRST", t.flags = 0);
    mnnkv_score_tile first = good();
    first.flags = MNNKV_TILE_FIRST;
    ASSERT_TRUE(ok(hand_in(first)));
    EXPECT_REFUSED_TILE(bad, "tile->flags has FIRST", t.flags = MNNKV_TILE_FIRST);
}

TEST_F(BadTile, TilesThatOverlapOrLeaveGapsAreRefused) {
    mnnkv_score_tile first = good();
    first.flags = MNNKV_TILE_FIRST;
    ASSERT_TRUE(ok(hand_in(first)));
    static const float scales[2] = {1, 1};
    for (const std::uint32_t begin : {0u, 16u, 23u, 25u, 32u}) {
        EXPECT_REFUSED_TILE(bad, "24 expected", (t.flags = 0, t.token_begin = begin, t.update_scale = scales));
        EXPECT_REFUSED_TILE(bad, "24 expected", (t.flags = MNNKV_TILE_LAST, t.token_begin = begin));
    }
    mnnkv_score_tile middle = good();
    middle.flags = 0;
    middle.token_begin = 24;
    middle.update_scale = scales;
    ASSERT_TRUE(ok(hand_in(middle)));
    for (const std::uint32_t begin : {24u, 31u, 33u}) {
        EXPECT_REFUSED_TILE(bad, "32 expected", (t.flags = 0, t.token_begin = begin, t.update_scale = scales));
    }
    mnnkv_score_tile last = good();
    last.flags = MNNKV_TILE_LAST;
    last.token_begin = 32;
    ASSERT_TRUE(ok(hand_in(last)));
    EXPECT_TRUE(ok(layer_.end(1, 2)));
}

TEST_F(BadTile, MayBeFollowedByTheRightOne) {
    static const float scales[2] = {1, not_a_number};
    void (*const breaks[])(mnnkv_score_tile&) = {
        [](mnnkv_score_tile& t) { t.update_scale = scales; },
        [](mnnkv_score_tile& t) { t.tokens = 0; },
        [](mnnkv_score_tile& t) { t.queries = 1; },
        [](mnnkv_score_tile& t) { t.data = nullptr; },
        [](mnnkv_score_tile& t) { t.flags = MNNKV_TILE_FIRST; },
    };
    mnnkv_score_tile first = good(), middle = good(), last = good();
    first.flags = MNNKV_TILE_FIRST;
    middle.flags = 0;
    middle.token_begin = 24;
    last.flags = MNNKV_TILE_LAST;
    last.token_begin = 32;
    ASSERT_TRUE(ok(hand_in(first)));
    for (const auto& change : breaks) {
        SCOPED_TRACE(testing::Message() << "break " << &change - breaks);
        mnnkv_score_tile broken = middle;
        change(broken);
        EXPECT_TRUE(answers(hand_in(broken), bad));
        EXPECT_TRUE(answers(layer_.end(1, 2), bad)) << "the head is still open";
    }
    ASSERT_TRUE(ok(hand_in(middle)));
    ASSERT_TRUE(ok(hand_in(last)));
    EXPECT_TRUE(ok(layer_.end(1, 2)));
}

TEST_F(BadTile, IsMissedAtTheEndWhenItsHeadIsNoAttention) {
    const float odd[16] = {0.5f, not_a_number};
    mnnkv_score_tile tile = good();
    tile.data = odd;
    ASSERT_TRUE(ok(hand_in(good(), 1)));
    EXPECT_TRUE(answers(hand_in(tile), bad));
    EXPECT_TRUE(refuses(bad, "1 heads", [&] { return layer_.end(2, 2); }));
    ASSERT_TRUE(ok(hand_in(good()))) << "the head may come again";
    EXPECT_TRUE(ok(layer_.end(2, 2)));
}

TEST_F(BadTile, OfALayerThatIsNotScoredIsNotRead) {
    mnnkv::session session = made_session("{}", 1);
    session_layer layer(session, 0, layer_.layout(), random_);
    ASSERT_NO_FATAL_FAILURE(layer.step(100));
    ASSERT_TRUE(ok(layer.begin()));
    layer.append(1);
    mnnkv_score_tile tile = good();
    tile.flags = MNNKV_TILE_LAST;
    EXPECT_TRUE(ok(session.scores(0, 0, tile).code()));
    EXPECT_TRUE(ok(layer.end(7, 1))) << "nothing is counted either";
}

TEST(BadLane, IsRefusedWhenAnotherThreadIsInIt) {
    // Two threads in one lane: each call succeeds or is refused, depending on timing.
    SEEDED_DICE(random, 1602);
    mnnkv::session session = made_session(object(evicting()), 1, 1);
    session_layer layer(session, 0, half_layout(300), random);
    ASSERT_NO_FATAL_FAILURE(layer.step(200));
    ASSERT_TRUE(ok(layer.begin()));
    layer.append(1);
    std::vector<float> row(201, 1.0f);
    const auto run = [&] {
        for (int i = 0; i < 300; ++i) {
            const mnnkv_status status = each_tile(row, 1, {MNNKV_DTYPE_F32, 4, 1000, true}, [&](const auto& tile) {
                return session.scores(0, 0, tile).code();
            });
            EXPECT_TRUE(status == MNNKV_OK || status == MNNKV_INVALID_ARGUMENT) << mnnkv_status_name(status);
        }
    };
    std::thread other(run);
    run();
    other.join();
    EXPECT_TRUE(ok(layer.end(0, 0))) << "the host drops the scores";
    EXPECT_TRUE(layer.sound());
}

}  // namespace
