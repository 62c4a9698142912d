// Recall in the adapter for MNN: queries of every step reach the session, and MNN copes with caches whose tokens are in
// any order and come back. The chat judges every step's tokens and output.

#include "chat.hpp"

#include <cstdio>

namespace {

using namespace support;

class MnnRecall : public testing::TestWithParam<int> {
protected:
    void SetUp() override { mnn_stub::take_log(); }
};

/// A mode of the caches, with padding in dims and blocks; odd modes have halves for floats.
settings caches(int mode) {
    settings how;
    how.layers = 3;
    how.head_dim = mode % 8 < 3 ? 20 : 64;
    how.element_bytes = mode % 2 == 0 ? 4 : 2;
    how.h_pack = mode % 2 == 0 ? 4 : 8;
    return how.in_mode(mode);
}

/// A chat of `length` tokens and more decoded ones, of whose queries those from there on look for one token.
void speak(chat& chat, int length) {
    ASSERT_NO_FATAL_FAILURE(chat.say(length - 20));
    ASSERT_NO_FATAL_FAILURE(chat.decode(20));
}

TEST_P(MnnRecall, AttendsToJustTheTokensThatAreThere) {
    chat chat(configured(caches(GetParam()), recalling()));
    ASSERT_NO_FATAL_FAILURE(live(chat));
    EXPECT_EQ(chat.held(0), chat.length()) << "below kv_h2o_layer_start";
    EXPECT_LT(chat.held(1), chat.length() * 3 / 4);
    chat.clear();
    ASSERT_NO_FATAL_FAILURE(chat.say(120)) << "a new chat";
    ASSERT_NO_FATAL_FAILURE(chat.decode(10));
    EXPECT_LT(chat.held(1), 100);
    EXPECT_EQ(lines(mnn_stub::take_log()), "");
}

TEST_P(MnnRecall, BringsBackTheTokenThatQueriesLookFor) {
    const int length = 220, steps = 8;
    settings how = configured(caches(GetParam()), recalling());
    chat before(how);
    ASSERT_NO_FATAL_FAILURE(speak(before, length));
    how.seeks_from = length;
    how.sought = 8;
    while (before.holds(1, how.sought) || before.holds(2, how.sought)) {
        ASSERT_LT(++how.sought, length) << "nothing was evicted from both layers";
    }
    chat chat(how);
    ASSERT_NO_FATAL_FAILURE(speak(chat, length));
    ASSERT_FALSE(chat.holds(1, how.sought));
    ASSERT_NO_FATAL_FAILURE(chat.decode(steps));
    EXPECT_TRUE(chat.holds(1, how.sought)) << "token " << how.sought;
    EXPECT_TRUE(chat.holds(2, how.sought)) << "token " << how.sought;
}

TEST_P(MnnRecall, HoldsALimitWhateverTheNextStepAppends) {
    const int limit = 128;
    chat chat(configured(caches(GetParam()), recalling(R"("kv_h2o_max_tokens": 128)")));
    ASSERT_NO_FATAL_FAILURE(chat.say(100));
    for (const int chunk : {10, 60, 33, 1, 64, 5, 70, 1, 1}) {
        ASSERT_NO_FATAL_FAILURE(chat.say(chunk));
        EXPECT_LE(chat.held(1), limit) << "after a step of " << chunk;
        EXPECT_LE(chat.held(2), limit) << "after a step of " << chunk;
    }
    EXPECT_GT(chat.held(1), limit / 2);
}

TEST_P(MnnRecall, ParksInAFileThatEndsWithTheModel) {
    const std::string path = testing::TempDir() + "recall" + std::to_string(GetParam()) + ".kv";
    std::remove(path.c_str());
    const std::string keys = R"("kv_recall_tier": "file", "kv_chat_recall_file": ")" + path + "\"";
    chat chat(configured(caches(GetParam()), recalling(keys)));
    ASSERT_NO_FATAL_FAILURE(live(chat));
    EXPECT_LT(chat.held(1), chat.length() * 3 / 4);
    EXPECT_EQ(lines(mnn_stub::take_log()), "");
    std::FILE* file = std::fopen(path.c_str(), "rb");
    EXPECT_EQ(file, nullptr) << "a file that is open needs no name";
    if (file != nullptr) {
        std::fclose(file);
    }
}

INSTANTIATE_TEST_SUITE_P(EveryCache, MnnRecall, testing::Values(0, 8, 9, 10, 13, 14),
                         [](const auto& mode) { return "mode" + std::to_string(mode.param); });

TEST(MnnRecallLog, SaysThatBlocksAreInMemoryWhereTheFileCannotBeMade) {
    mnn_stub::take_log();
    const char* keys = R"("kv_recall_tier": "file", "kv_chat_recall_file": "no/such/folder/file.kv")";
    chat chat(configured(caches(8), recalling(keys)));
    chat.advance(150);
    EXPECT_NE(lines(mnn_stub::take_log()).find("blocks are parked in memory: "), std::string::npos);
}

TEST(MnnRecallLog, SaysOnceThatQueriesAreRefused) {
    mnn_stub::take_log();
    settings how = configured(caches(8), recalling());
    how.attn_scale = std::numeric_limits<float>::infinity();
    chat chat(how);
    chat.advance(150);
    chat.advance(1);
    chat.advance(1);
    const std::vector<std::string> log = mnn_stub::take_log();
    const auto says = [](const std::string& line) { return line.find("a step goes without queries: ") < line.size(); };
    EXPECT_EQ(std::count_if(log.begin(), log.end(), says), 1) << lines(log);
}

}  // namespace
