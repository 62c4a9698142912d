// Tokens that are never evicted.

#include "session_host.hpp"

namespace {

using namespace support;

TEST(Policy, PinnedTokensStayWhateverAttentionSays) {
    SEEDED_DICE(random, 1901);
    mnnkv::session session = made_session(object(evicting()), 1);
    session_layer layer(session, 0, half_layout(300), random);
    ASSERT_TRUE(ok(session.pin(70, 3).code()));
    for (int i = 0; i < 6; ++i) {
        ASSERT_NO_FATAL_FAILURE(layer.scored_step(favouring(96, 112), i == 0 ? 157 : 1));
    }
    EXPECT_LT(layer.length(), 157u);
    EXPECT_TRUE(layer.has(64) && layer.has(79)) << "the whole block of the pins";
    EXPECT_FALSE(layer.has(63) || layer.has(80));
}

TEST(Policy, BadPinsAreRefused) {
    mnnkv::session session = made_session("{}", 1);
    EXPECT_EQ(mnnkv_session_pin(session.get(), 0, 1, 2), MNNKV_INVALID_ARGUMENT);
    EXPECT_EQ(mnnkv_session_pin(session.get(), 0x7fffffff, 1, 1), MNNKV_INVALID_ARGUMENT);
    EXPECT_EQ(mnnkv_session_pin(nullptr, 0, 1, 1), MNNKV_INVALID_ARGUMENT);
}

}  // namespace
