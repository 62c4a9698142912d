// The adapter for MNN over quantised caches, in a stand-in that has MNN's defects and reads INT8 V as MNN's kernels for
// plain C and Arm do. The chat judges every step's tokens and output.

#include "../oracle/quantised.hpp"
#include "chat.hpp"

namespace {

using namespace support;

class MnnQuantised : public testing::Test {
protected:
    void SetUp() override { mnn_stub::take_log(); }
};

/// With padding in dims and blocks where a mode has it; unit: l, then h.
settings quantised(int mode, int bytes = 4, std::pair<int, int> unit = {4, 8}) {
    settings how;
    how.head_dim = mode % 8 < 3 ? 20 : 64;
    how.live_dims = how.head_dim / 2;
    how.element_bytes = bytes;
    how.h_pack = bytes == 2 ? 8 : 4;
    how.l_pack_8 = unit.first;
    how.h_pack_8 = unit.second;
    return how.in_mode(mode);
}

// The oracle.

TEST_F(MnnQuantised, OracleMakesTheCodesOfTheWorkedExample) {
    // K (1 2 3) (3 2 1) (0 2 3) less its centre (3 2 3), in units of 2 x 2.
    const float centred[][3] = {{-2, 0, 0}, {0, 0, -2}, {-3, 0, 0}};
    const oracle::int8_keys keys(3, 2, 2);
    bytes key(keys.head_bytes(4));
    ASSERT_EQ(key.size(), 48u);
    for (std::size_t t = 0; t < 3; ++t) {
        EXPECT_FLOAT_EQ(keys.write(key.data(), t, centred[t]), t == 2 ? -3.0f : -2.0f);
    }
    const std::vector<int> codes(key.begin(), key.begin() + 8), later(key.begin() + 24, key.begin() + 32);
    EXPECT_EQ(codes, (std::vector<int>{128, 127, 127, 127, 127, 0, 128, 0}));
    EXPECT_EQ(later, (std::vector<int>{128, 127, 0, 0, 127, 0, 0, 0}));
    EXPECT_FLOAT_EQ(oracle::get_f32(&key[12]), 2.0f / 255.0f);
    EXPECT_FLOAT_EQ(oracle::get_f32(&key[20]), -0.9960784f);
    EXPECT_FLOAT_EQ(oracle::get_f32(&key[40]), -1.494118f);

    const float rows[][3] = {{0, 10, 1}, {255, 20, 1}, {51, 61, 1}};
    const oracle::int8_values values(3, 2, 2);
    bytes value(values.head_bytes(4));
    std::vector<float> sums(values.sums_of_block());
    values.set_scales(value.data(), rows[0], 3, 3);
    for (std::size_t t = 0; t < 3; ++t) {
        values.write(value.data(), t, rows[t], sums.data());
    }
    const std::vector<int> of_v(value.begin(), value.begin() + 8);
    EXPECT_EQ(of_v, (std::vector<int>{128, 127, 128, 178, 179, 0, 127, 0}));
    EXPECT_FLOAT_EQ(oracle::get_f32(&value[values.scale(0, 1) + 8]), 35.6f);
    EXPECT_FLOAT_EQ(sums[0], 306.0f);
    EXPECT_FLOAT_EQ(sums[1], 91.0f);
    EXPECT_FLOAT_EQ(sums[2], 3.0f);
}

TEST_F(MnnQuantised, EngineAttendsNearlyAsWithFloats) {
    for (const int mode : {9, 10, 11, 12, 13, 14}) {
        settings how = quantised(mode);
        how.patched = false;
        chat chat(how);
        chat.advance(100);
        const settings floats = how.in_mode(8);
        const std::vector<float> expected = mnn_stub::attention_over(floats, 0, chat.history(), 100).output;
        double squares = 0, errors = 0;
        for (std::size_t i = 0; i < expected.size(); ++i) {
            squares += std::pow(expected[i], 2);
            errors += std::pow(expected[i] - chat.last(0).output[i], 2);
        }
        const double most[] = {0.02, 0.02, 0.4, 0.5, 0.2, 0.3};
        EXPECT_LT(std::sqrt(errors / squares), most[mode - 9]) << "attention_mode " << mode;
    }
}

// Compressed chats.

class MnnQuantisedChat : public testing::TestWithParam<std::tuple<int, std::string>> {};

TEST_P(MnnQuantisedChat, AttendsToJustItsTokens) {
    mnn_stub::take_log();
    const auto& [mode, way] = GetParam();
    settings how = way == "both" ? quantised(mode, 2, {8, 8}) : quantised(mode);
    how.layers = 3;
    const std::string store = compressing("store", way == "store" ? 0 : 1);
    how = way == "evicts"  ? configured(how, evicting())
          : way == "store" ? configured(how, store)
                           : configured(how, evicting(), store + R"(, "kv_lossless_scope": "front_n_and_h2o_kept")");
    chat chat(how);
    ASSERT_NO_FATAL_FAILURE(live(chat));
    if (how.evicts) {
        EXPECT_EQ(chat.held(0), chat.length()) << "below kv_h2o_layer_start";
        for (const int layer : {1, 2}) {
            EXPECT_LT(chat.held(layer), chat.length() * 3 / 4);
        }
    }
    if (how.compresses) {
        EXPECT_GT(chat.metric("h2o_lossless_ratio"), 1.2);
        EXPECT_GT(chat.metric("h2o_lossless_restored_blocks"), 0.0);
    }
    chat.clear();
    ASSERT_NO_FATAL_FAILURE(chat.say(120)) << "a new chat";
    ASSERT_NO_FATAL_FAILURE(chat.decode(10));
    EXPECT_EQ(chat.held(1) < 100, how.evicts);
    EXPECT_EQ(lines(mnn_stub::take_log()), "");
}

INSTANTIATE_TEST_SUITE_P(EveryMode, MnnQuantisedChat,
                         testing::Combine(testing::Values(1, 3, 5, 9, 10, 11, 12, 13, 14),
                                          testing::Values("evicts", "store", "both")),
                         [](const auto& tested) {
                             const std::string mode = std::to_string(std::get<0>(tested.param));
                             return "mode" + mode + "_" + std::get<1>(tested.param);
                         });

TEST_F(MnnQuantised, AttendsToJustItsTokensInEveryUnit) {
    for (const auto& unit : {std::make_pair(16, 4), {4, 64}, {8, 8}, {4, 32}}) {
        SCOPED_TRACE("unit " + std::to_string(unit.first) + " x " + std::to_string(unit.second));
        chat chat(configured(quantised(10, 4, unit), evicting()));
        ASSERT_NO_FATAL_FAILURE(live(chat));
    }
}

// MNN's defects.

TEST_F(MnnQuantised, MendsVInBlocksThatACacheHasGrownBy) {
    settings how = configured(quantised(10), compressing("full", 0));
    for (const bool patched : {true, false}) {
        how.patched = patched;
        chat chat(how);
        chat.advance(150);
        EXPECT_LE(chat.deviation(0, chat.history(), 150), 1e-4);
        chat.advance(150);  // from 214 to more than 256 tokens
        const double off = chat.deviation(0, chat.history(), 150);
        EXPECT_EQ(off <= 1e-4, patched) << off;
        EXPECT_EQ(off > 0.1, !patched) << off;
    }
}

TEST_F(MnnQuantised, MendsVWhereTheHistoryIsCut) {
    settings how = configured(quantised(10), compressing("full", 0));
    for (const bool patched : {true, false}) {
        how.patched = patched;
        chat chat(how);
        chat.advance(150);
        chat.edit(20);
        chat.advance(1);
        const double off = chat.deviation(0, chat.history(), 1);
        EXPECT_EQ(off <= 1e-4, patched) << off;
        EXPECT_EQ(off > 0.1, !patched) << off;
        EXPECT_EQ(chat.last(0).wrong_sums.empty(), patched) << chat.last(0).wrong_sums;
    }
}

// Rare turns.

TEST_F(MnnQuantised, ContinuesWithATurboLayerThatLostAllItsTokens) {
    for (const int count : {1, 2}) {
        settings how = quantised(12);
        how.layers = 6;
        chat chat(configured(how, evicting(R"("kv_h2o_sink_tokens": 0)")));
        ASSERT_NO_FATAL_FAILURE(chat.say(200));
        ASSERT_NO_FATAL_FAILURE(chat.decode(5));
        chat.erase(3, chat.length());
        ASSERT_NO_FATAL_FAILURE(chat.say(count));
        int empty = 0;
        for (int layer = 1; layer < 6; ++layer) {
            empty += chat.held(layer) == count ? 1 : 0;
        }
        EXPECT_GT(empty, 0) << "layers that have just the new tokens";
        ASSERT_NO_FATAL_FAILURE(chat.say(150));
        ASSERT_NO_FATAL_FAILURE(chat.decode(10));
    }
}

TEST_F(MnnQuantised, PrintsOnceThatLayersWithoutSavingsAreLeftRaw) {
    settings how = quantised(10);
    how.layers = 3;
    how.live_dims = how.head_dim;
    chat chat(configured(how, compressing("store", 0)));
    for (int turn = 0; turn < 2; ++turn) {
        ASSERT_NO_FATAL_FAILURE(chat.say(120));
        ASSERT_NO_FATAL_FAILURE(chat.decode(10));
        chat.clear();
    }
    const std::vector<std::string> log = mnn_stub::take_log();
    ASSERT_EQ(log.size(), 1u) << lines(log);
    EXPECT_NE(log[0].find("is not compressed until its reset"), std::string::npos) << log[0];
}

TEST_F(MnnQuantised, KeepsTheTokensOfLargeCachesWhoseTailsAreReleased) {
    // Pages of a tail read as zero, also those of scales of V, until MNN appends there.
    for (const int mode : {10, 14}) {
        SCOPED_TRACE("attention_mode " + std::to_string(mode));
        settings how = quantised(mode);
        how.heads = how.kv_heads = 1;
        how.head_dim = 128;
        chat chat(configured(how, evicting(R"("kv_h2o_target_lossy_ratio": 4.0)")));
        ASSERT_NO_FATAL_FAILURE(chat.say(500));
        ASSERT_NO_FATAL_FAILURE(chat.decode(70));
        EXPECT_LT(chat.held(1), 200);
        ASSERT_NO_FATAL_FAILURE(chat.say(200));
#ifdef __linux__
        EXPECT_GT(chat.metric("h2o_released_bytes"), 3e4);
#endif
    }
}

}  // namespace
