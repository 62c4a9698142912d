// Policies of eviction: pinned tokens, and scores of keys.

#include "session_host.hpp"
#include "struct_sizes.hpp"

#include <limits>

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

TEST(Policy, KeydiffNeedsNoAttention) {
    SEEDED_DICE(random, 1902);
    mnnkv::session session = made_session(object(evicting(R"("kv_h2o_policy": "keydiff")")), 1);
    session_layer layer(session, 0, half_layout(300), random);
    mnnkv_rotation rotation = mnnkv::make<mnnkv_rotation>();
    rotation.pairing = 1;
    rotation.dims = 2;
    ASSERT_TRUE(ok(session.rotation(MNNKV_ALL_LAYERS, &rotation).code()));
    std::uint32_t rows = 7, block_tokens = 7;
    ASSERT_TRUE(ok(session.scored_rows(0, 1, rows, block_tokens).code()));
    EXPECT_TRUE(rows == 0 && block_tokens == 0);
    ASSERT_NO_FATAL_FAILURE(layer.step(157));
    ASSERT_TRUE(ok(layer.begin()));
    EXPECT_LT(layer.length(), 157u);
}

TEST(Policy, BadRotationsAreRefused) {
    mnnkv::session session = made_session("{}", 1);
    mnnkv_rotation good = mnnkv::make<mnnkv_rotation>();
    good.pairing = 2;
    good.dims = 4;
    check_sizes(good, [&](const mnnkv_rotation* given) { return mnnkv_session_rotation(session.get(), 0, given); });
    const float infinite[] = {1.0f, std::numeric_limits<float>::infinity()};
    const auto refused = [&](void (*spoil)(mnnkv_rotation&)) {
        mnnkv_rotation rotation = good;
        spoil(rotation);
        return mnnkv_session_rotation(session.get(), 0, &rotation) == MNNKV_INVALID_ARGUMENT;
    };
    EXPECT_TRUE(refused([](mnnkv_rotation& r) { r.pairing = 0; }));
    EXPECT_TRUE(refused([](mnnkv_rotation& r) { r.dims = 0; }));
    EXPECT_TRUE(refused([](mnnkv_rotation& r) { r.dims = 3; }));
    EXPECT_TRUE(refused([](mnnkv_rotation& r) { r.theta = -1.0f; }));
    good.inv_freq = infinite;
    EXPECT_EQ(mnnkv_session_rotation(session.get(), 0, &good), MNNKV_INVALID_ARGUMENT);
    EXPECT_EQ(mnnkv_session_rotation(session.get(), 1, nullptr), MNNKV_INVALID_ARGUMENT);
    EXPECT_TRUE(ok(mnnkv_session_rotation(session.get(), 0, nullptr)));
}

}  // namespace
