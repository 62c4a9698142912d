// Invalid block sums, and tiles that mnnkv_sum_tile must not add. A refused hand-over counts for nothing.

#include "refusal.hpp"
#include "session_host.hpp"

#include <thread>

namespace {

using namespace support;

/// One layer in a step of two rows, with 102 tokens in blocks of 16.
class BadSums : public testing::Test {
protected:
    BadSums() : random_(1701), session_(made_session(object(evicting()), 1, 2)), layer_(session_, 0, half_layout(300), random_) {
        layer_.step(100);
        EXPECT_TRUE(ok(layer_.begin()));
        layer_.append(2);
        std::fill(sums_, sums_ + 14, 1.0 / 7);
        std::fill(factors_, factors_ + 2, 1.0);
    }

    /// One head's sums of 2 rows and 102 tokens.
    mnnkv_block_sums good() {
        mnnkv_block_sums sums = empty();
        sums.token_end = 102;
        return sums;
    }

    /// Room for them, before the first tile.
    mnnkv_block_sums empty() {
        mnnkv_block_sums sums = mnnkv::make<mnnkv_block_sums>();
        sums.flags = MNNKV_TILE_FIRST | MNNKV_TILE_LAST;
        sums.heads = 1;
        sums.rows = 2;
        sums.block_tokens = 16;
        sums.blocks = 7;
        sums.sums = sums_;
        sums.factors = factors_;
        return sums;
    }

    mnnkv_status hand_over(const mnnkv_block_sums& sums, std::uint32_t lane = 0) {
        return mnnkv_session_block_sums(session_.get(), 0, lane, &sums);
    }

    dice random_;
    mnnkv::session session_;
    session_layer layer_;
    double sums_[16], factors_[2];
};

/// Good sums with one change are refused, for the reason that `word` names.
#define EXPECT_REFUSED_SUMS(word, change)                                              \
    do {                                                                               \
        mnnkv_block_sums sums = good();                                                \
        [&](mnnkv_block_sums& s) { change; }(sums);                                    \
        EXPECT_TRUE(refuses(bad, word, [&] { return hand_over(sums); })) << #change;   \
    } while (false)

TEST_F(BadSums, FieldsOutOfRangeAreRefused) {
    EXPECT_REFUSED_SUMS("struct_size", s.struct_size = 0);
    EXPECT_REFUSED_SUMS("struct_size", s.struct_size -= 4);
    EXPECT_REFUSED_SUMS("sums->flags", s.flags = 4);
    EXPECT_REFUSED_SUMS("sums->heads", s.heads = 0);
    EXPECT_REFUSED_SUMS("sums->heads", s.heads = 3);
    EXPECT_REFUSED_SUMS("sums->rows", s.rows = 0);
    EXPECT_REFUSED_SUMS("sums->block_tokens is 0", s.block_tokens = 0);
    EXPECT_REFUSED_SUMS("sums->block_tokens is 32; 16 expected", s.block_tokens = 32);
    EXPECT_REFUSED_SUMS("sums->blocks is 6", s.blocks = 6);
    EXPECT_REFUSED_SUMS("sums->token_end", s.token_end = 0);
    EXPECT_REFUSED_SUMS("sums->token_end", s.token_begin = s.token_end);
    EXPECT_REFUSED_SUMS("sums->token_end", s.token_end = UINT32_MAX);
    EXPECT_REFUSED_SUMS("sums->sums is NULL", s.sums = nullptr);
    EXPECT_REFUSED_SUMS("sums->sums", s.sums = misaligned(sums_));
    EXPECT_REFUSED_SUMS("sums->factors", s.factors = misaligned(factors_));
    EXPECT_REFUSED_SUMS("sums->reserved", s.reserved = 1);
    EXPECT_REFUSED_SUMS("sums->state is OPEN", s.state = MNNKV_SUMS_OPEN);
    EXPECT_REFUSED_SUMS("sums->state is 99", s.state = 99);
    EXPECT_TRUE(refuses(bad, "sums is NULL", [&] { return mnnkv_session_block_sums(session_.get(), 0, 0, nullptr); }));
    EXPECT_TRUE(refuses(bad, "layer is 1", [&] { return session_.block_sums(1, 0, good()).code(); }));
    EXPECT_TRUE(refuses(bad, "lane is 2", [&] { return hand_over(good(), 2); }));
    EXPECT_TRUE(ok(layer_.end(0, 2))) << "no head has come";
}

TEST_F(BadSums, NameTheTileThatDidNotFit) {
    static const float values[64] = {0.5f}, fine[2] = {1, 1}, negative[2] = {1, -1}, zero[2] = {1, 0};
    mnnkv_score_tile first = mnnkv::make<mnnkv_score_tile>();
    first.dtype = MNNKV_DTYPE_F32;
    first.queries = 2;
    first.tokens = 24;
    first.flags = MNNKV_TILE_FIRST;
    first.data = values;
    mnnkv_score_tile last = first;
    last.flags = MNNKV_TILE_LAST;
    last.token_begin = 24;
    const auto after = [&](bool begun, void (*change)(mnnkv_score_tile&, mnnkv_block_sums&)) {
        mnnkv_block_sums sums = empty();
        mnnkv_score_tile changed = last;
        change(changed, sums);
        if (begun) {
            mnnkv_sum_tile(&sums, &first);
        }
        mnnkv_sum_tile(&sums, &changed);
        mnnkv_sum_tile(&sums, &last);
        return sums;
    };
    using tile = mnnkv_score_tile;
    using block_sums = mnnkv_block_sums;
    const struct {
        const char* word;
        void (*change)(tile&, block_sums&);
    } wrong[] = {
        {"is GAP: a tile that begins at token 24", [](tile& t, block_sums&) { t.token_begin = 25; }},
        {"is GAP", [](tile& t, block_sums&) { t.tokens = UINT32_MAX; }},
        {"is BAD_TILE", [](tile& t, block_sums&) { t.tokens = 0; }},
        {"is BAD_TILE", [](tile& t, block_sums&) { t.queries = 1; }},
        {"is BAD_TILE", [](tile& t, block_sums&) { t.dtype = MNNKV_DTYPE_INT8; }},
        {"is BAD_TILE", [](tile& t, block_sums&) { t.data = nullptr; }},
        {"is BAD_TILE", [](tile& t, block_sums&) { t.flags = 0, t.row_sum = fine; }},
        {"is BAD_TILE", [](tile&, block_sums& s) { s.block_tokens = 0; }},
        {"is BAD_TILE", [](tile&, block_sums& s) { s.rows = 3; }},
        {"is BAD_TILE", [](tile&, block_sums& s) { s.heads = 0; }},
        {"is BAD_TILE", [](tile&, block_sums& s) { s.sums = nullptr; }},
        {"is NO_ROOM", [](tile&, block_sums& s) { s.blocks = 2; }},
        {"is BAD_SCALE", [](tile& t, block_sums&) { t.update_scale = negative; }},
        {"is BAD_SCALE", [](tile& t, block_sums&) { t.row_sum = zero; }},
    };
    for (const auto& each : wrong) {
        const mnnkv_block_sums sums = after(true, each.change);
        EXPECT_TRUE(refuses(bad, each.word, [&] { return hand_over(sums); })) << &each - wrong;
    }
    EXPECT_TRUE(refuses(bad, "is NO_FIRST", [&] { return hand_over(after(false, [](tile&, block_sums&) {})); }));
    const mnnkv_block_sums sums = after(true, [](tile& t, block_sums&) { t.flags = 0, t.token_begin = 24, t.tokens = 8; });
    EXPECT_TRUE(refuses(bad, "is GAP", [&] { return hand_over(sums); })) << "the last tile begins at 24, not at 32";
    EXPECT_TRUE(ok(layer_.end(0, 2))) << "no head has come";
}

TEST_F(BadSums, OfARowSumThatCannotBeAreRefused) {
    const float values[204] = {0.5f};
    for (const float odd : {0.0f, -0.0f, -1.0f, infinity, -infinity, not_a_number}) {
        const float row_sums[2] = {1, odd};
        mnnkv_score_tile tile = mnnkv::make<mnnkv_score_tile>();
        tile.dtype = MNNKV_DTYPE_F32;
        tile.queries = 2;
        tile.tokens = 102;
        tile.flags = MNNKV_TILE_FIRST | MNNKV_TILE_LAST;
        tile.data = values;
        tile.row_sum = row_sums;
        mnnkv_block_sums sums = empty();
        mnnkv_sum_tile(&sums, &tile);
        EXPECT_TRUE(refuses(bad, "is BAD_SCALE", [&] { return hand_over(sums); })) << odd;
    }
    EXPECT_TRUE(ok(layer_.end(0, 2))) << "no head has come";
}

}  // namespace
