// The adapter for MNN: a program parks its chats. The chat judges every step's tokens and output.

#include "chat.hpp"

#include <thread>

namespace {

using namespace support;

class MnnChat : public testing::Test {
protected:
    void SetUp() override { mnn_stub::take_log(); }
};

const std::string park = R"({"kv_park": true})";
const std::string enabled = R"("kv_chat_enable": true)";

settings quantised(int mode) {
    settings how = settings().in_mode(mode);
    how.head_dim = 64;
    how.live_dims = 32;
    return how;
}

/// A config of each kind: what is evicted and stored, and how caches hold their tokens.
std::vector<settings> kinds() {
    settings half, mapped;
    half.element_bytes = 2;
    half.h_pack = 8;
    mapped.mapped = true;
    const std::string both = evicting(compressing("store", 0) + R"(, "kv_lossless_scope": "front_n_and_h2o_kept")");
    return {configured(settings(), enabled),
            configured(settings(), compressing("store", 1)),
            configured(settings(), evicting()),
            configured(settings(), both),
            configured(half, both),
            configured(mapped, enabled),
            configured(settings().in_mode(0), enabled),
            configured(quantised(10), enabled),
            configured(quantised(10), both),
            configured(quantised(9), evicting()),
            configured(quantised(14), enabled),
            configured(quantised(14), both)};
}

std::size_t used_bytes(const std::vector<std::uint8_t>& buffer) {
    return buffer.size() - static_cast<std::size_t>(std::count(buffer.begin(), buffer.end(), 0));
}

// Parking.

TEST_F(MnnChat, GoesOnAsIfNeverParked) {
    int kind = 0;
    for (const settings& how : kinds()) {
        SCOPED_TRACE("kind " + std::to_string(kind++));
        chat chat(how);
        ASSERT_NO_FATAL_FAILURE(chat.say(150));
        chat.command_before_steps(park);
        ASSERT_NO_FATAL_FAILURE(live(chat));
        ASSERT_NO_FATAL_FAILURE(chat.clear());
        ASSERT_NO_FATAL_FAILURE(chat.say(100)) << "a chat that was parked is cleared";
        ASSERT_NO_FATAL_FAILURE(chat.decode(3));
        EXPECT_EQ(lines(mnn_stub::take_log()), "");
    }
}

TEST_F(MnnChat, ReturnsTheMemoryOfCachesWhileParked) {
    for (const settings& how : {configured(settings(), enabled), configured(quantised(14), enabled)}) {
        chat chat(how);
        ASSERT_NO_FATAL_FAILURE(chat.say(2000));
        const std::size_t before = used_bytes(chat.host().buffers(1));
        ASSERT_TRUE(chat.host().command(park));
        EXPECT_LT(used_bytes(chat.host().buffers(1)), std::min<std::size_t>(before / 4, 8 * 4096));
        ASSERT_TRUE(chat.host().command(park)) << "it is parked already";
        ASSERT_NO_FATAL_FAILURE(chat.decode(3));
    }
}

TEST_F(MnnChat, MendsStepsThatFailBesideParks) {
    for (const settings& how : {configured(settings(), enabled), configured(settings(), evicting())}) {
        chat chat(how);
        ASSERT_NO_FATAL_FAILURE(chat.say(150));
        for (const failure at : {failure::before_room, failure::after_append}) {
            for (const bool counted : {false, true}) {
                if (at == failure::before_room && counted) {
                    continue;  // the cache lacks tokens that MNN counts
                }
                chat.fail(5, 1, at, counted);
                ASSERT_TRUE(chat.host().command(park));
                ASSERT_NO_FATAL_FAILURE(chat.say(3));
                ASSERT_TRUE(chat.host().command(park));
                chat.fail(5, 0, at, counted);
                ASSERT_NO_FATAL_FAILURE(chat.say(3));
            }
        }
    }
}

TEST_F(MnnChat, ParksEachModelAlone) {
    chat first(configured(settings(), enabled)), second(configured(settings(), evicting()));
    ASSERT_NO_FATAL_FAILURE(first.say(700));
    ASSERT_NO_FATAL_FAILURE(second.say(700));
    const std::size_t before = used_bytes(second.host().buffers(0));
    ASSERT_TRUE(first.host().command(park));
    EXPECT_EQ(used_bytes(second.host().buffers(0)), before);
    ASSERT_NO_FATAL_FAILURE(second.decode(20));
    ASSERT_NO_FATAL_FAILURE(first.decode(20));
}

TEST_F(MnnChat, IsInterruptedFromAnotherThread) {
    chat chat(configured(settings(), enabled));
    ASSERT_NO_FATAL_FAILURE(chat.say(200));
    std::thread([&] { EXPECT_TRUE(chat.host().command(R"({"kv_park": false})")); }).join();
    EXPECT_FALSE(chat.host().command(park)) << "a message waits for its step";
    ASSERT_NO_FATAL_FAILURE(chat.decode(2));
    EXPECT_TRUE(chat.host().command(park));
    ASSERT_NO_FATAL_FAILURE(chat.decode(2));
    EXPECT_EQ(lines(mnn_stub::take_log()), "");
}

TEST_F(MnnChat, SaysWhyACommandIsRefused) {
    const auto refusal = [](chat& chat, const std::string& command) {
        EXPECT_FALSE(chat.host().command(command)) << command;
        return lines(mnn_stub::take_log());
    };
    chat plain((settings())), fresh(configured(settings(), enabled)), running(configured(settings(), enabled));
    ASSERT_NO_FATAL_FAILURE(running.say(20));
    EXPECT_EQ(refusal(plain, park), "error: mnn-kv: kv_park, kv_save and kv_load need kv_chat_enable in the config\n");
    EXPECT_EQ(refusal(fresh, park), "error: mnn-kv: kv_park, kv_save and kv_load need a model that has made a step\n");
    for (const char* effort : {"0", "10", "2.5", "-1", "\"9\"", "null", "nan"}) {
        EXPECT_EQ(refusal(running, std::string(R"({"kv_park": )") + effort + "}"),
                  std::string("error: mnn-kv: kv_park is ") + effort + "; true, false or 1 to 9 expected\n");
    }
    for (const char* path : {"\"\"", "7", "true", R"("a\u0041")"}) {
        EXPECT_NE(refusal(running, std::string(R"({"kv_save": )") + path + "}"), "") << path;
    }
    EXPECT_EQ(refusal(running, R"({"kv_park": true, "kv_save": "x"})"),
              "error: mnn-kv: kv_park, kv_save and kv_load stand alone; 2 keys are given\n");
    EXPECT_EQ(refusal(running, R"({"temperature": 0.5})"), "") << "not a command";
    EXPECT_TRUE(running.host().command(R"({"kv_park": 9})"));
    ASSERT_NO_FATAL_FAILURE(running.decode(2));
}

TEST_F(MnnChat, TakesTheRotationHintFromTheConfig) {
    for (const std::string hint : {R"("kv_rope_theta": 10000)", R"("kv_rope_theta": 1e6, "kv_rope_dims": 8)",
                                   R"("kv_rope_theta": 5e5, "kv_rope_pairing": "adjacent")"}) {
        chat chat(configured(settings(), evicting(hint)));
        ASSERT_NO_FATAL_FAILURE(chat.say(150));
        chat.command_before_steps(park);
        ASSERT_NO_FATAL_FAILURE(chat.decode(30));
        EXPECT_EQ(lines(mnn_stub::take_log()), "");
    }
    chat wrong(configured(settings(), enabled, R"("kv_rope_theta": 10000, "kv_rope_pairing": "none")"));
    ASSERT_NO_FATAL_FAILURE(wrong.say(50));
    EXPECT_TRUE(wrong.host().command(park)) << "parked, but larger";
    EXPECT_EQ(lines(mnn_stub::take_log()),
              "mnn-kv: no rotation hint where kv_rope_pairing is \"none\"; \"half\" or \"adjacent\" expected\n");
}

}  // namespace
