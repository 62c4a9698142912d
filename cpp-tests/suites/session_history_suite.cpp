// Edits of the chat's history: kept tokens, their new positions, plans and blobs.

#include "session_host.hpp"

namespace {

using namespace support;

TEST(SessionHistory, IsRenumberedFromTheFirstKeptPosition) {
    SEEDED_DICE(random, 1701);
    mnnkv::session session = made_session("{}", 1);
    session_layer layer(session, 0, half_layout(300), random);
    EXPECT_TRUE(ok(layer.keep({}))) << "nothing is kept of nothing";
    ASSERT_NO_FATAL_FAILURE(layer.step(100));
    ASSERT_TRUE(ok(layer.keep({0, 100}))) << "all of it";
    EXPECT_TRUE(layer.whole());
    ASSERT_TRUE(ok(layer.keep({10, 20, 30, 0, 40, 50})));
    EXPECT_TRUE(layer.whole());
    EXPECT_EQ(layer.positions(), (pair_list{0, 70})) << "touching runs are one";
    ASSERT_NO_FATAL_FAILURE(layer.step(5));
    EXPECT_EQ(layer.positions(), (pair_list{0, 75}));
    ASSERT_TRUE(ok(layer.keep({})));
    EXPECT_TRUE(layer.whole());
    EXPECT_EQ(layer.logical_length(), 0u);
    ASSERT_NO_FATAL_FAILURE(layer.step(10)) << "an empty layer goes on";
}

TEST(SessionHistory, LeavesGapsWhereTokensWereEvictedBefore) {
    SEEDED_DICE(random, 1702);
    mnnkv::session session = made_session(object(evicting()), 1);
    session_layer layer(session, 0, half_layout(300), random);
    for (int i = 0; i < 6; ++i) {
        ASSERT_NO_FATAL_FAILURE(layer.scored_step(favouring(96, 112), i == 0 ? 157 : 1));
    }
    ASSERT_EQ(layer.positions(), (pair_list{0, 32, 96, 16, 128, 34})) << "what the plan left";
    ASSERT_TRUE(ok(layer.keep({40, 70, 120, 42})));
    EXPECT_TRUE(layer.whole());
    EXPECT_EQ(layer.logical_length(), 112u) << "evicted tokens inside the pairs still count";
    EXPECT_EQ(layer.positions(), (pair_list{56, 14, 78, 34}));
}

TEST(SessionHistory, DropsAPlanForTokensThatAreGone) {
    SEEDED_DICE(random, 1703);
    mnnkv::session session = made_session(object(evicting()), 1);
    session_layer layer(session, 0, half_layout(400), random);
    ASSERT_NO_FATAL_FAILURE(layer.step(156));
    for (int i = 0; i < 4; ++i) {
        ASSERT_NO_FATAL_FAILURE(layer.scored_step(favouring(96, 112)));
    }
    ASSERT_EQ(metrics_of(session).h2o_plan_count, 1.0);
    ASSERT_TRUE(ok(layer.keep({0, 150})));
    EXPECT_TRUE(layer.whole());
    EXPECT_EQ(metrics_of(session).h2o_stale_plan_count, 1.0);
    EXPECT_EQ(metrics_of(session).h2o_plan_count, 2.0) << "made anew";
    ASSERT_TRUE(ok(layer.begin()));
    EXPECT_LT(layer.length(), 150u);
    EXPECT_TRUE(layer.has(96) && layer.has(111)) << "scores went with their tokens";
    layer.append(1);
    ASSERT_TRUE(ok(layer.end(0, 1)));
    ASSERT_TRUE(ok(layer.keep({0, 90})));
    EXPECT_EQ(metrics_of(session).h2o_stale_plan_count, 1.0) << "no plan was waiting";
}

TEST(SessionHistory, MayBeEditedAtRandom) {
    for (const unsigned workers : {0u, 2u}) {
        SCOPED_TRACE(workers);
        SEEDED_DICE(random, 1704);
        mnnkv::session session = made_session(object(evicting(), storing(workers)), 1);
        session_layer layer(session, 0, half_layout(700), random);
        std::uint32_t compressed = 0, evicted = 0;
        for (int i = 0; i < 150 && !HasFailure(); ++i) {
            SCOPED_TRACE("edit " + std::to_string(i));
            const std::uint32_t room = 700 - layer.length();
            const std::uint32_t wanted = random.one_in(4) ? random.between(65, 200) : random.between(1, 4);
            if (room > 0) {
                ASSERT_NO_FATAL_FAILURE(layer.scored_step(favouring(30, 50), std::min(room, wanted)));
            }
            compressed += layer.compressed_tokens();
            evicted += layer.logical_length() - layer.length();
            const std::uint32_t what = random.below(10);
            if (what < 2) {
                const std::int32_t length = static_cast<std::int32_t>(layer.logical_length());
                ASSERT_TRUE(ok(layer.keep({0, length - static_cast<std::int32_t>(random.below(20)) % (length + 1)})));
            } else if (what == 2) {
                ASSERT_TRUE(ok(layer.keep(random_pairs(layer.logical_length(), random))));
            } else if (what == 3 && random.one_in(3)) {
                ASSERT_NO_FATAL_FAILURE(layer.clear());
            }
            EXPECT_TRUE(layer.sound());
        }
        EXPECT_TRUE(compressed > 0 || workers > 0) << "the schedule compressed something";
        EXPECT_GT(evicted, 0u) << "and evicted something";
        EXPECT_TRUE(ok(layer.begin()));
    }
}

}  // namespace
