// The adapter for MNN: a program parks, saves and loads its chats. The chat judges every step's tokens and output.

#include "chat.hpp"

#include <cstdio>
#include <fstream>
#include <random>
#include <thread>

namespace {

using namespace support;

class MnnChat : public testing::Test {
protected:
    void SetUp() override { mnn_stub::take_log(); }
    ~MnnChat() override {
        for (const std::string& path : files_) {
            std::remove(path.c_str());
        }
    }

    /// The path of a file that does not exist.
    std::string fresh_file() {
        files_.push_back(testing::TempDir() + "mnnkv-chat-" +
                         testing::UnitTest::GetInstance()->current_test_info()->name() + "-" +
                         std::to_string(files_.size()));
        std::remove(files_.back().c_str());
        return files_.back();
    }

private:
    std::vector<std::string> files_;
};

std::string save_to(const std::string& path) { return R"({"kv_save": ")" + path + "\"}"; }
std::string load_from(const std::string& path) { return R"({"kv_load": ")" + path + "\"}"; }

std::string bytes_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

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

void parks(chat& chat) { EXPECT_TRUE(chat.host().command(park)); }

// Parking.

TEST_F(MnnChat, GoesOnAsIfNeverParked) {
    for (const std::size_t kind : {0, 3, 8}) {
        SCOPED_TRACE("kind " + std::to_string(kind));
        chat chat(kinds()[kind]);
        ASSERT_NO_FATAL_FAILURE(chat.say(150));
        chat.before_steps(parks);
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
    EXPECT_EQ(refusal(plain, park),
              "error: mnn-kv: kv_park, kv_save and kv_load need kv_chat_enable in the config that the model is loaded with\n");
    EXPECT_EQ(refusal(fresh, park),
              "error: mnn-kv: kv_park, kv_save and kv_load need a model that has made a step on the CPU\n");
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
        chat.before_steps(parks);
        ASSERT_NO_FATAL_FAILURE(chat.decode(30));
        EXPECT_EQ(lines(mnn_stub::take_log()), "");
    }
    chat wrong(configured(settings(), enabled, R"("kv_rope_theta": 10000, "kv_rope_pairing": "none")"));
    ASSERT_NO_FATAL_FAILURE(wrong.say(50));
    EXPECT_TRUE(wrong.host().command(park)) << "parked, but larger";
    EXPECT_EQ(lines(mnn_stub::take_log()),
              "mnn-kv: no rotation hint where kv_rope_pairing is \"none\"; \"half\" or \"adjacent\" expected\n");
}

TEST_F(MnnChat, RanksKeysWithoutTheRotationThatTheConfigNames) {
    const auto held = [](const std::string& hint) {
        chat chat(configured(settings(), evicting(R"("kv_h2o_policy": "keydiff")" + hint)));
        chat.say(150);
        chat.decode(30);
        std::vector<bool> serials;
        for (int at = 0; at < chat.length(); ++at) {
            serials.push_back(chat.holds(1, chat.serial(at)));
        }
        return serials;
    };
    const std::vector<bool> unknown = held("");
    EXPECT_EQ(held(R"(, "kv_rope_dims": 8)"), unknown) << "no theta";
    EXPECT_NE(held(R"(, "kv_rope_theta": 10000)"), unknown);
    EXPECT_EQ(lines(mnn_stub::take_log()), "");
    EXPECT_EQ(held(R"(, "kv_rope_theta": 10000, "kv_rope_dims": 4096)"), unknown);
    EXPECT_NE(lines(mnn_stub::take_log()).find("no rotation hint where kv_rope_dims is 4096"), std::string::npos);
}

// Saving and loading.

TEST_F(MnnChat, GoesOnAsIfNeverSavedAndLoaded) {
    int kind = 0;
    for (const settings& how : kinds()) {
        SCOPED_TRACE("kind " + std::to_string(kind));
        const std::string path = fresh_file();
        std::mt19937 random(static_cast<unsigned>(kind++));
        chat chat(how);
        ASSERT_NO_FATAL_FAILURE(chat.say(150));
        chat.before_steps([&](support::chat& of) {
            const unsigned what = random() % 8;
            if (what == 0 || what == 1) {
                EXPECT_TRUE(of.host().command(park));
            }
            if (what != 0 && what < 5) {
                EXPECT_TRUE(of.host().command(save_to(path)));
            }
            if (what == 2) {
                EXPECT_TRUE(of.host().command(load_from(path))) << "what was saved just now";
                EXPECT_TRUE(of.host().command(what % 2 == 0 ? save_to(path) : park)) << "still in the file";
            }
            if (what == 1 || what == 3) {
                ASSERT_NO_FATAL_FAILURE(of.restart(path, how));
            }
        });
        ASSERT_NO_FATAL_FAILURE(live(chat));
        chat.before_steps(nullptr);
        ASSERT_NO_FATAL_FAILURE(chat.clear());
        ASSERT_NO_FATAL_FAILURE(chat.say(100)) << "a chat that was loaded is cleared";
        ASSERT_NO_FATAL_FAILURE(chat.decode(3));
        EXPECT_EQ(lines(mnn_stub::take_log()), "");
    }
}

TEST_F(MnnChat, GoesOnInCachesOfAnotherPacking) {
    const std::string path = fresh_file();
    settings how = configured(settings(), evicting());
    chat chat(how);
    ASSERT_NO_FATAL_FAILURE(chat.say(150));
    for (const int pack : {8, 16, 4}) {
        ASSERT_NO_FATAL_FAILURE(chat.decode(12));
        ASSERT_TRUE(chat.host().command(save_to(path)));
        how.h_pack = pack;
        how.l_pack = pack / 4;
        how.flash = !how.flash;
        ASSERT_NO_FATAL_FAILURE(chat.restart(path, how));
        ASSERT_NO_FATAL_FAILURE(chat.say(30));
    }
}

TEST_F(MnnChat, RestoresWhatMnnHasOfAChat) {
    const std::string path = fresh_file();
    mnn_stub::engine saved(configured(settings(), enabled)), loaded(configured(settings(), enabled));
    (void)saved.forward({{0, 0}, {1, 1}, {2, 2}});
    saved.chat() = {7, {5, -1, 1 << 30}, std::string("a\0\xFF text", 8)};
    ASSERT_TRUE(saved.command(save_to(path)));
    ASSERT_TRUE(loaded.command(load_from(path)));
    EXPECT_EQ(loaded.previous(), 3u);
    EXPECT_EQ(loaded.chat().positions, 7);
    EXPECT_EQ(loaded.chat().tokens, saved.chat().tokens);
    EXPECT_EQ(loaded.chat().prompt, saved.chat().prompt);
}

TEST_F(MnnChat, WritesWhatIsNew) {
    const std::string path = fresh_file();
    chat chat(configured(settings(), enabled));
    ASSERT_NO_FATAL_FAILURE(chat.say(1500));
    ASSERT_TRUE(chat.host().command(save_to(path)));
    const std::size_t first = bytes_of(path).size();
    for (int turn = 1; turn <= 4; ++turn) {
        ASSERT_NO_FATAL_FAILURE(chat.decode(10));
        ASSERT_TRUE(chat.host().command(save_to(path)));
        EXPECT_LT(bytes_of(path).size(), first + static_cast<std::size_t>(turn) * first / 10);
        if (turn == 2) {
            ASSERT_NO_FATAL_FAILURE(chat.restart(path, chat.how()));
        }
    }
}

TEST_F(MnnChat, TakesTheChatsOfOneProcessInTurn) {
    for (const settings& how : {configured(settings(), evicting()), configured(quantised(10), enabled)}) {
        chat first(how), second(how), both(how);
        const std::string files[] = {fresh_file(), fresh_file()};
        ASSERT_NO_FATAL_FAILURE(first.say(200));
        ASSERT_NO_FATAL_FAILURE(second.say(90));
        ASSERT_NO_FATAL_FAILURE(second.decode(9));
        ASSERT_TRUE(first.host().command(save_to(files[0])));
        ASSERT_TRUE(second.host().command(save_to(files[1])));
        for (int turn = 0; turn < 3; ++turn) {
            for (chat* of : {&first, &second}) {
                const std::string& path = files[of == &first ? 0 : 1];
                ASSERT_TRUE(both.host().command(load_from(path)));
                ASSERT_NO_FATAL_FAILURE(both.become(*of));
                ASSERT_NO_FATAL_FAILURE(both.say(20));
                ASSERT_NO_FATAL_FAILURE(both.decode(5));
                ASSERT_TRUE(both.host().command(save_to(path)));
                of->become(both);
            }
        }
        EXPECT_EQ(lines(mnn_stub::take_log()), "");
    }
}

TEST_F(MnnChat, SaysWhyAFileIsRefusedAndKeepsTheChat) {
    const std::string path = fresh_file(), model = fresh_file(), damaged = fresh_file(), missing = fresh_file();
    std::ofstream(model) << "a model";
    settings how = configured(settings(), enabled);
    how.model_files = {model};
    chat saved(how), loaded(how);
    ASSERT_NO_FATAL_FAILURE(saved.say(200));
    ASSERT_NO_FATAL_FAILURE(loaded.say(100));
    ASSERT_TRUE(saved.host().command(save_to(path)));

    const auto refusal = [&](chat& chat, const std::string& command) {
        EXPECT_FALSE(chat.host().command(command)) << command;
        EXPECT_NO_FATAL_FAILURE(chat.decode(2));
        return lines(mnn_stub::take_log());
    };
    const auto refused_by = [&](settings other) {
        chat chat(other);
        EXPECT_NO_FATAL_FAILURE(chat.say(50));
        return refusal(chat, load_from(path));
    };
    EXPECT_NE(refusal(loaded, load_from(missing)).find("mnn-kv: the chat is not loaded: "), std::string::npos);
    EXPECT_NE(refusal(loaded, save_to(missing + "/chat.kv")).find("mnn-kv: the chat is not saved: "), std::string::npos);
    std::string bytes = bytes_of(path);
    bytes[bytes.size() - 9] ^= 1;
    std::ofstream(damaged, std::ios::binary) << bytes;
    EXPECT_NE(refusal(loaded, load_from(damaged)).find("mnn-kv: the chat is not loaded: "), std::string::npos);
    settings other = how;
    other.layers = 3;
    EXPECT_NE(refused_by(other).find(" has 2 layers, the model 3"), std::string::npos);
    other = how.in_mode(14);
    other.head_dim = 64;
    EXPECT_NE(refused_by(other).find("layer 0 of the file is of a cache of another type or shape"), std::string::npos);
    other = how;
    other.config = R"({"kv_chat_enable": true, "layer_nums": 24})";
    chat hybrid(other);
    ASSERT_NO_FATAL_FAILURE(hybrid.say(20));
    EXPECT_NE(refusal(hybrid, save_to(missing)).find("24 layers and 2 caches of their own"), std::string::npos);
    EXPECT_EQ(bytes_of(missing), "");

    std::ofstream(model) << "another model";
    EXPECT_NE(refusal(loaded, load_from(path)).find("fingerprint"), std::string::npos);
    EXPECT_NE(refusal(loaded, save_to(path)).find("fingerprint"), std::string::npos) << "it is of another model";
    chat empty(how);
    ASSERT_NO_FATAL_FAILURE(empty.say(20));
    ASSERT_NO_FATAL_FAILURE(empty.clear());
    EXPECT_EQ(refusal(empty, save_to(missing)), "mnn-kv: the chat is not saved: it is empty\n");
}

}  // namespace
