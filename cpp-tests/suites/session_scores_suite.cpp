// Scores: any number of threads and any kind of tile give the same plan.

#include "refusal.hpp"
#include "session_host.hpp"

#include <atomic>
#include <numeric>
#include <thread>

namespace {

using namespace support;

constexpr std::uint32_t heads = 8;

/// Eight blocks with different attention, so that a wrong sum changes the plan.
weights ranked() {
    return [](std::int32_t at) { return static_cast<float>(1 + (at / 16 * 5) % 8); };
}

class SessionScores : public testing::Test {
protected:
    static mnnkv_layout layout() { return make_layout(pack_modes[7], 2, 8, 400, 64); }

    /// The positions that a chat keeps, when `score` passes the heads of each step.
    template <class Score>
    pair_list left(std::uint32_t lanes, Score score, std::uint32_t rows = 1, const std::string& more = "") {
        dice random(1101);
        mnnkv::session session = made_session(object(evicting(more)), 1, lanes);
        session_layer layer(session, 0, layout(), random);
        EXPECT_NO_FATAL_FAILURE(layer.step(160));
        for (int i = 0; i < 20 && !HasFailure(); ++i) {
            EXPECT_TRUE(ok(layer.begin(rows)));
            layer.append(rows);
            score(layer);
            EXPECT_TRUE(ok(layer.end(heads, rows)));
        }
        EXPECT_TRUE(ok(layer.begin()));
        EXPECT_GT(layer.positions().size(), 4u) << "several runs of tokens, as the scores say";
        return layer.positions();
    }

    /// All heads in lane 0.
    static void one_lane(session_layer& layer, const tiling& how = tiling()) {
        for (std::uint32_t head = 0; head < heads; ++head) {
            ASSERT_TRUE(ok(layer.score(0, head, ranked(), how)));
        }
    }
};

TEST_F(SessionScores, AreTheSameFromSeveralThreadsAsFromOne) {
    const pair_list expected = left(1, [](session_layer& layer) { one_lane(layer); });
    for (const std::uint32_t threads : {2u, 3u, 8u}) {
        SCOPED_TRACE(threads);
        const pair_list got = left(threads, [=](session_layer& layer) {
            std::atomic<int> failed{0};
            std::vector<std::thread> pool;
            for (std::uint32_t lane = 0; lane < threads; ++lane) {
                pool.emplace_back([&, lane] {
                    for (std::uint32_t head = lane; head < heads; head += threads) {
                        failed += layer.score(lane, head, ranked()) != MNNKV_OK;
                    }
                });
            }
            for (std::thread& thread : pool) {
                thread.join();
            }
            EXPECT_EQ(failed, 0);
        });
        EXPECT_EQ(got, expected);
    }
}

TEST_F(SessionScores, DoNotDependOnTheShapeOfTheTiles) {
    const pair_list expected = left(1, [](session_layer& layer) { one_lane(layer); });
    tiling kinds[] = {{MNNKV_DTYPE_F32, 0, 64, true},    {MNNKV_DTYPE_F32, 8, 64, true},
                      {MNNKV_DTYPE_F32, 16, 1000, true}, {MNNKV_DTYPE_F16, 8, 64, true},
                      {MNNKV_DTYPE_BF16, 4, 50, true},   {MNNKV_DTYPE_F32, 4, 64, false},
                      {MNNKV_DTYPE_F32, 0, 1000, false}, {MNNKV_DTYPE_F32, 5, 7, true}};
    for (const tiling& how : kinds) {
        SCOPED_TRACE(testing::Message() << "dtype " << how.dtype << ", pack " << how.pack << ", " << how.tokens
                                        << " tokens, flash " << how.flash);
        EXPECT_EQ(left(1, [&](session_layer& l) { one_lane(l, how); }), expected);
    }
}

TEST(BlockSums, EqualTheSumsOfWeightsForEveryShapeOfTiles) {
    SEEDED_DICE(random, 1108);
    std::vector<float> row;
    for (int i = 0; i < 300; ++i) {
        row.push_back(static_cast<float>(random.below(8)));
    }
    const double total = std::accumulate(row.begin(), row.end(), 0.0);
    const std::uint32_t dtypes[] = {MNNKV_DTYPE_F32, MNNKV_DTYPE_F16, MNNKV_DTYPE_BF16};
    for (int i = 0; i < 1500; ++i) {
        const auto pick = [&](std::initializer_list<std::uint32_t> of) { return of.begin()[random.below(of.size())]; };
        const tiling how = {dtypes[i % 3], pick({0, 4, 5, 8, 16, 64}), pick({20, 33, 64, 1000}), i % 4 != 0};
        row_counts rows = {pick({1, 1, 3}), pick({1, 2, 7}), 1};
        rows.counted += static_cast<std::uint32_t>(random.below(rows.queries));
        const std::uint32_t block_tokens = pick({1, 7, 16, 64, 1000}), begin = pick({0, 16, 101}), end = pick({200, 300});
        SCOPED_TRACE(testing::Message() << "dtype " << how.dtype << ", pack " << how.pack << ", " << how.tokens
                                        << " tokens, flash " << how.flash << ", " << rows.heads << " heads, "
                                        << rows.counted << " of " << rows.queries << " rows, blocks of "
                                        << block_tokens << ", tokens " << begin << " to " << end);
        const summed_part part = sum_part(row, begin, end, rows, block_tokens, how);
        ASSERT_EQ(part.given.state, std::uint32_t{MNNKV_SUMS_COMPLETE});
        ASSERT_EQ(part.given.used, (end + block_tokens - 1) / block_tokens - begin / block_tokens);
        for (std::uint32_t b = 0; b < part.given.used; ++b) {
            const std::uint32_t from = (begin / block_tokens + b) * block_tokens;
            const double expected = std::accumulate(row.begin() + std::max(begin, from),
                                                    row.begin() + std::min(end, from + block_tokens), 0.0) / total;
            for (std::uint32_t r = 0; r < part.given.rows; ++r) {
                const double got = part.sums[std::size_t{b} * part.given.rows + r] * part.factors[r];
                // Values of normalised tiles are rounded.
                ASSERT_NEAR(got, expected, expected * (how.flash || i % 3 == 0 ? 1e-5 : 1e-2)) << b << " " << r;
            }
        }
    }
}

/// One row whose tiles are the blocks: bits of a value per token, and a scale per tile.
std::vector<double> summed(std::uint32_t dtype, const void* values, std::uint32_t width, std::uint32_t tokens,
                           const std::vector<float>& scales) {
    std::vector<double> sums(scales.size()), factors(1);
    mnnkv_block_sums given = mnnkv::make<mnnkv_block_sums>();
    given.heads = given.rows = 1;
    given.block_tokens = tokens;
    given.blocks = static_cast<std::uint32_t>(scales.size());
    given.sums = sums.data();
    given.factors = factors.data();
    for (std::uint32_t i = 0; i < given.blocks; ++i) {
        mnnkv_score_tile tile = mnnkv::make<mnnkv_score_tile>();
        tile.dtype = dtype;
        tile.queries = 1;
        tile.tokens = tokens;
        tile.token_begin = i * tokens;
        tile.flags = (i == 0 ? MNNKV_TILE_FIRST : 0) | (i + 1 == given.blocks ? MNNKV_TILE_LAST : 0);
        tile.data = static_cast<const char*>(values) + std::size_t{i} * tokens * width;
        tile.update_scale = &scales[i];
        mnnkv_sum_tile(&given, &tile);
    }
    EXPECT_EQ(given.state, std::uint32_t{MNNKV_SUMS_COMPLETE});
    for (double& sum : sums) {
        sum *= factors[0];
    }
    return sums;
}

TEST(BlockSums, WidenEveryF16) {
    std::vector<std::uint16_t> words;
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        words.push_back(static_cast<std::uint16_t>(bits));
    }
    const std::vector<double> got = summed(MNNKV_DTYPE_F16, words.data(), 2, 1, std::vector<float>(words.size(), 1.0f));
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        const int exponent = bits >> 10 & 31, fraction = bits & 1023;
        const double value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
        // Infinity and NaN need only be no attention.
        ASSERT_TRUE(exponent == 31 ? !std::isfinite(got[bits]) : got[bits] == (bits >> 15 ? -value : value)) << bits;
    }
}

TEST(BlockSums, HoldBesideScalesOfAnySize) {
    const std::vector<float> ones(14, 1.0f);
    const std::vector<float> scales = {not_a_number, 0.5f, 0, 1e-30f, 1e-30f, 1e-38f, 1e-38f, 1e-3f, 1, 1e30f, 1e30f, 0.25f, 2, 1};
    const std::vector<double> got = summed(MNNKV_DTYPE_F32, ones.data(), 4, 1, scales);
    double expected = 1;
    for (std::size_t i = ones.size(); i-- > 0;) {
        EXPECT_NEAR(got[i], expected, 1e-12 * expected) << i;
        expected *= static_cast<double>(scales[i]);
    }
}

}  // namespace
