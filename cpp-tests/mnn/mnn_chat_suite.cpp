// The adapter for MNN: a program saves and loads its chats. The chat judges every step's tokens and output.

#include "chat.hpp"
#include "../suites/full_disk.hpp"
#include "mnnkv_chat.hpp"
#include "mnnkv_mnn_api.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>

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
        files_.push_back(support::temp_path("chat-" + std::to_string(files_.size())));
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

/// A config with a budget that holds the chats raw, and a file.
settings bounded(const std::string& file) {
    return configured(settings(), R"("kv_memory_mb": 64, "kv_memory_file": ")" + file + "\"");
}

// Commands.

TEST_F(MnnChat, ReturnsTheMemoryOfCachesWhenTheyAreSavedAndLoaded) {
    for (const settings& how : {configured(settings(), enabled), configured(quantised(14), enabled)}) {
        const std::string path = fresh_file();
        chat chat(how);
        ASSERT_NO_FATAL_FAILURE(chat.say(2000));
        const std::size_t before = used_bytes(chat.host().buffers(1));
        ASSERT_TRUE(chat.host().command(save_to(path)) && chat.host().command(load_from(path)));
        EXPECT_LT(used_bytes(chat.host().buffers(1)), std::min<std::size_t>(before / 4, 8 * 4096));
        ASSERT_NO_FATAL_FAILURE(chat.decode(3));
    }
}

TEST_F(MnnChat, MendsStepsThatFailBesideSaves) {
    for (const settings& how : {configured(settings(), enabled), configured(settings(), evicting())}) {
        const std::string path = fresh_file();
        chat chat(how);
        ASSERT_NO_FATAL_FAILURE(chat.say(150));
        for (const failure at : {failure::before_room, failure::after_append}) {
            for (const bool counted : {false, true}) {
                if (at == failure::before_room && counted) {
                    continue;  // the cache lacks tokens that MNN counts
                }
                chat.fail(5, 1, at, counted);
                ASSERT_TRUE(chat.host().command(save_to(path)));
                ASSERT_NO_FATAL_FAILURE(chat.say(3));
                ASSERT_TRUE(chat.host().command(save_to(path)) && chat.host().command(load_from(path)));
                chat.fail(5, 0, at, counted);
                ASSERT_NO_FATAL_FAILURE(chat.say(3));
            }
        }
        chat.fail(5, 1, failure::after_append, false);
        ASSERT_TRUE(chat.host().command(save_to(path)));
        ASSERT_NO_FATAL_FAILURE(chat.restart(path, how)) << "without the tokens of the failed step";
        ASSERT_NO_FATAL_FAILURE(chat.say(3));
    }
}

TEST_F(MnnChat, SaysWhyACommandIsRefused) {
    const auto refusal = [](chat& chat, const std::string& command) {
        EXPECT_FALSE(chat.host().command(command)) << command;
        return lines(mnn_stub::take_log());
    };
    settings how;
    how.steps_at_load = false;
    chat plain((settings())), fresh(configured(how, enabled)), running(configured(settings(), enabled));
    ASSERT_NO_FATAL_FAILURE(running.say(20));
    EXPECT_EQ(refusal(plain, park),
              "error: mnn-kv: kv_park, kv_save, kv_load and kv_trim_mb need kv_chat_enable or a budget in the config that "
              "the model is loaded with\n");
    EXPECT_EQ(refusal(fresh, park),
              "error: mnn-kv: kv_park, kv_save, kv_load and kv_trim_mb need a model that has made a step on the CPU\n");
    for (const char* value : {"false", "1", "\"true\"", "null"}) {
        EXPECT_EQ(refusal(running, std::string(R"({"kv_park": )") + value + "}"),
                  std::string("error: mnn-kv: kv_park is ") + value + "; true expected\n");
    }
    EXPECT_EQ(refusal(running, park),
              "mnn-kv: the chat is not parked: it has no kv_memory_mb, or no file that blocks can go to; kv_save, and then "
              "kv_load of the same file, return the memory of its cache\n");
    for (const char* path : {"\"\"", "7", "true", R"("a\u0041")"}) {
        EXPECT_NE(refusal(running, std::string(R"({"kv_save": )") + path + "}"), "") << path;
    }
    EXPECT_EQ(refusal(running, R"({"kv_park": true, "kv_save": "x"})"),
              "error: mnn-kv: kv_park, kv_save, kv_load and kv_trim_mb stand alone, but for kv_overwrite beside kv_save; 2 "
              "keys are given\n");
    EXPECT_NE(refusal(running, R"({"kv_save": "x", "kv_overwrite": 1})"), "");
    EXPECT_NE(refusal(running, R"({"kv_load": "x", "kv_overwrite": true})"), "");
    EXPECT_EQ(refusal(running, R"({"temperature": 0.5})"), "") << "not a command";
    EXPECT_EQ(refusal(running, R"({"kv_savee": "x", "kv_h2o_enable": true})"),
              "mnn-kv: kv_savee and 1 more have no effect now: keys are read when the model is loaded, and kv_park, kv_save, "
              "kv_load and kv_trim_mb are the commands\n");
    running.host().context().status = mnn_stub::llm_status::NOT_LOADED;
    EXPECT_EQ(refusal(running, R"({"kv_h2o_enable": true})"), "") << "before load keys have an effect";
    ASSERT_NO_FATAL_FAILURE(running.decode(2));
}

/// Llm, as a program has it.
struct program {
    chat& of;
    bool set_config(const std::string& content) { return of.host().command(content); }
    std::string dump_config() { return R"({"a": {}, "kv_metrics":)" + of.host().metrics() + R"(,"z":{"b":1}})"; }
};

TEST_F(MnnChat, HasAFunctionForEachCommand) {
    chat chat(bounded(fresh_file()));
    program llm{chat};
    ASSERT_NO_FATAL_FAILURE(chat.say(50));
    const std::string path = fresh_file() + "\"quoted\"";
    EXPECT_TRUE(mnnkv_mnn::park(llm));
    ASSERT_NO_FATAL_FAILURE(chat.decode(2));
    EXPECT_TRUE(mnnkv_mnn::save_chat(llm, path));
    EXPECT_TRUE(std::ifstream(path).good());
    EXPECT_TRUE(mnnkv_mnn::park(llm));
    ASSERT_NO_FATAL_FAILURE(chat.decode(2));
    EXPECT_EQ(mnnkv_mnn::metrics(llm), chat.host().metrics());
    EXPECT_TRUE(mnnkv_mnn::save_chat(llm, path, true));
    EXPECT_TRUE(mnnkv_mnn::load_chat(llm, path));
    ASSERT_NO_FATAL_FAILURE(chat.decode(2));
    EXPECT_EQ(lines(mnn_stub::take_log()), "");
    EXPECT_EQ(std::remove(path.c_str()), 0);
    EXPECT_FALSE(mnnkv_mnn::load_chat(llm, path + "2"));
    support::chat refused(configured(settings(), R"("kv_memory_mb": {"}": "\\"})"));
    program off{refused};
    EXPECT_EQ(mnnkv_mnn::metrics(off), refused.host().metrics());
    EXPECT_NE(mnnkv_mnn::metrics(off).find("\"state\":\"off\""), std::string::npos);
}

TEST_F(MnnChat, TrimsABudgetAndNothingElse) {
    settings how;
    how.head_dim = 64;
    how.live_dims = 64;
    how.steps_at_load = false;
    chat chat(configured(how, R"("kv_memory_mb": 64)"));
    program llm{chat};
    EXPECT_FALSE(mnnkv_mnn::trim(llm, 1)) << "no step was made";
    ASSERT_NO_FATAL_FAILURE(chat.say(50));
    mnn_stub::take_log();
    EXPECT_TRUE(mnnkv_mnn::trim(llm, 0.5) && mnnkv_mnn::trim(llm, 64));
    EXPECT_FALSE(mnnkv_mnn::trim(llm, -1));
    EXPECT_EQ(lines(mnn_stub::take_log()), "error: mnn-kv: kv_trim_mb is -1; a number of 0 or more expected\n");
    support::chat unbounded(configured(settings(), R"("kv_chat_enable": true)"));
    ASSERT_NO_FATAL_FAILURE(unbounded.say(50));
    program other{unbounded};
    mnn_stub::take_log();
    EXPECT_FALSE(mnnkv_mnn::trim(other, 1));
    EXPECT_NE(lines(mnn_stub::take_log()).find("error: mnn-kv: the budget is not changed: "), std::string::npos);
    support::chat refused(configured(settings(), R"("kv_memory_mb": "x")"));
    ASSERT_NO_FATAL_FAILURE(refused.say(50));
    mnn_stub::take_log();
    EXPECT_FALSE(refused.host().command(R"({"kv_trim_mb": 1})"));
    EXPECT_EQ(lines(mnn_stub::take_log()).find("error: mnn-kv: the command is not carried out: off where the config is refused: "
                                               "kv_memory_mb"),
              0u);
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
            if (what < 5) {
                EXPECT_TRUE(of.host().command(save_to(path)));
            }
            if (what == 0 || what == 2) {
                EXPECT_TRUE(of.host().command(load_from(path))) << "what was saved just now";
                EXPECT_TRUE(of.host().command(save_to(what == 0 ? path : fresh_file()))) << "still in the file";
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

TEST_F(MnnChat, RestoresWhatMnnHasOfAChat) {
    const std::string path = fresh_file();
    mnn_stub::engine saved(configured(settings(), enabled)), loaded(configured(settings(), enabled));
    (void)saved.forward({{0, 0}, {1, 1}, {2, 2}});
    saved.context().all_seq_len = 7;
    saved.context().history_tokens = {5, -1, 1 << 30};
    saved.prompt() = std::string("a\0\xFF text", 8);
    ASSERT_TRUE(saved.command(save_to(path)) && saved.command(save_to(fresh_file())));
    ASSERT_TRUE(loaded.command(load_from(path)));
    EXPECT_EQ(loaded.previous(), 3u);
    EXPECT_EQ(loaded.context().all_seq_len, 7);
    EXPECT_EQ(loaded.context().history_tokens, saved.context().history_tokens);
    EXPECT_EQ(loaded.prompt(), saved.prompt());
}

TEST_F(MnnChat, TakesTheChatsOfOneProcessInTurn) {
    for (const settings& how : {configured(settings(), evicting()), configured(quantised(10), enabled)}) {
        chat first(how), second(how), both(how);
        const std::string files[] = {fresh_file(), fresh_file()};
        ASSERT_NO_FATAL_FAILURE(first.say(200));
        ASSERT_NO_FATAL_FAILURE(second.say(90));
        ASSERT_NO_FATAL_FAILURE(second.decode(9));
        for (chat* of : {&first, &second}) {
            ASSERT_TRUE(of->host().command(save_to(files[of == &first ? 0 : 1])));
            EXPECT_FALSE(both.host().command(load_from(files[of == &first ? 0 : 1])));
            EXPECT_NE(lines(mnn_stub::take_log()).find("is open already, in this process or another"), std::string::npos);
            ASSERT_TRUE(of->host().command(save_to(fresh_file()))) << "another file is its own";
        }
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
    const std::string path = fresh_file(), model = fresh_file(), missing = fresh_file();
    std::ofstream(model) << "a model";
    settings how = configured(settings(), enabled);
    how.model_files = {model};
    chat saved(how), loaded(how);
    ASSERT_NO_FATAL_FAILURE(saved.say(200));
    ASSERT_NO_FATAL_FAILURE(loaded.say(100));
    ASSERT_TRUE(saved.host().command(save_to(path)) && saved.host().command(save_to(fresh_file())));

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
    EXPECT_NE(refusal(loaded, load_from(testing::TempDir())).find("it is a folder, not a file"), std::string::npos);
    EXPECT_NE(refusal(loaded, save_to(testing::TempDir())).find("it is a folder, not a file"), std::string::npos);
    settings other = how;
    other.layers = 3;
    const std::string stale = path + " is of another model, attention_mode or precision: llm_model";
    EXPECT_NE(refused_by(other).find(stale), std::string::npos);
    other = how.in_mode(14);
    other.head_dim = 64;
    EXPECT_NE(refused_by(other).find(stale), std::string::npos);
    other = how;
    other.config = R"({"kv_chat_enable": true, "layer_nums": 24})";
    chat hybrid(other);
    ASSERT_NO_FATAL_FAILURE(hybrid.say(20));
    EXPECT_NE(refusal(hybrid, save_to(missing)).find("24 layers, and 2 of them have a KV cache or linear attention"), std::string::npos);
    EXPECT_EQ(bytes_of(missing), "");

    std::ofstream(model) << "another model";
    EXPECT_NE(refused_by(how).find(stale), std::string::npos);
    chat empty(how);
    ASSERT_NO_FATAL_FAILURE(empty.say(20));
    ASSERT_NO_FATAL_FAILURE(empty.clear());
    EXPECT_EQ(refusal(empty, save_to(missing)), "mnn-kv: the chat is not saved: it is empty\n");
}

// Files that are damaged, full, or of another chat.

void flip(const std::string& path, std::size_t at) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(at));
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte);
}

TEST_F(MnnChat, LoadsNoFileWithADamagedToken) {
    const std::string path = fresh_file();
    const settings how = configured(settings(), enabled);
    chat saved(how), loaded(how);
    ASSERT_NO_FATAL_FAILURE(saved.say(300));
    ASSERT_NO_FATAL_FAILURE(loaded.say(100));
    ASSERT_TRUE(saved.host().command(save_to(path)));
    const std::string bytes = bytes_of(path);
    int refused = 0;
    for (std::size_t at = bytes.size() / 8; at < bytes.size(); at += bytes.size() / 41) {
        const std::string damaged = fresh_file();
        std::ofstream(damaged, std::ios::binary) << bytes;
        flip(damaged, at);
        if (!loaded.host().command(load_from(damaged))) {
            ++refused;
            EXPECT_NE(lines(mnn_stub::take_log()).find("mnn-kv: the chat is not loaded: "), std::string::npos);
        } else {
            ASSERT_NO_FATAL_FAILURE(loaded.become(saved)) << "byte " << at << " is of no token";
        }
        ASSERT_NO_FATAL_FAILURE(loaded.say(2));
    }
    EXPECT_GT(refused, 25);
}

TEST_F(MnnChat, SavesNoChatThatCannotBeRead) {
    const std::string path = fresh_file(), good = fresh_file(), other = fresh_file();
    chat chat(configured(settings(), evicting()));
    ASSERT_NO_FATAL_FAILURE(chat.say(300));
    ASSERT_TRUE(chat.host().command(save_to(path)));
    std::ofstream(good, std::ios::binary) << bytes_of(path);
    ASSERT_TRUE(chat.host().command(load_from(path)));
    flip(path, bytes_of(path).size() / 2);

    const layer_step step = chat.host().forward({{1000, 300}}, 1, mnn_stub::failure::none, false).back();
    const int input_data_error = 10;
    EXPECT_FALSE(step.ran);
    EXPECT_EQ(step.error, input_data_error);
    EXPECT_EQ(chat.host().context().status, mnn_stub::llm_status::INTERNAL_ERROR);
    const std::string why = lines(mnn_stub::take_log());
    EXPECT_NE(why.find("layer "), std::string::npos) << why;
    EXPECT_EQ(why.find("layer "), why.rfind("layer ")) << why;
    EXPECT_FALSE(chat.host().command(save_to(other)));
    EXPECT_NE(lines(mnn_stub::take_log()).find("mnn-kv: the chat is not saved: raw tokens"), std::string::npos);
    EXPECT_EQ(bytes_of(other), "");
    EXPECT_TRUE(chat.host().command(load_from(good)));
    EXPECT_EQ(chat.host().context().status, mnn_stub::llm_status::RUNNING);
    ASSERT_NO_FATAL_FAILURE(chat.decode(3));

    chat.host().context().status = mnn_stub::llm_status::INTERNAL_ERROR;
    ASSERT_NO_FATAL_FAILURE(chat.clear());
    chat.host().reset();
    EXPECT_EQ(chat.host().context().status, mnn_stub::llm_status::RUNNING);
    ASSERT_NO_FATAL_FAILURE(chat.say(20));
}

TEST_F(MnnChat, GivesBackTheDiskThatAFailedSaveTook) {
    const std::string path = fresh_file(), other = fresh_file();
    std::ofstream(other) << "another chat";
    chat chat(configured(settings(), enabled));
    ASSERT_NO_FATAL_FAILURE(chat.say(300));
    ASSERT_TRUE(chat.host().command(save_to(path)));
    const std::string before = bytes_of(path);
    ASSERT_NO_FATAL_FAILURE(chat.say(1500));
    {
        const full_disk disk(before.size() + 9000);
        EXPECT_FALSE(chat.host().command(save_to(path)));
        EXPECT_TRUE(bytes_of(path) == before);
        EXPECT_FALSE(chat.host().command(R"({"kv_overwrite": true, "kv_save": ")" + other + "\"}"));
        EXPECT_EQ(bytes_of(other), "another chat");
    }
    EXPECT_NE(lines(mnn_stub::take_log()).find("mnn-kv: the chat is not saved: "), std::string::npos);
    EXPECT_TRUE(chat.host().command(save_to(path)));
    ASSERT_NO_FATAL_FAILURE(chat.decode(2));
}

/// The type of what is at a path itself, as S_IFMT has it; 0: nothing is there.
mode_t type_of(const std::string& path) {
    struct stat found;
    return lstat(path.c_str(), &found) == 0 ? found.st_mode & S_IFMT : 0;
}

TEST_F(MnnChat, OverwritesNoOtherChatWithoutKvOverwrite) {
    const std::string path = fresh_file();
    const std::string overwrite = R"({"kv_overwrite": true, "kv_save": ")" + path + "\"}";
    const std::string hint = "; \"kv_overwrite\": true beside kv_save replaces it\n";
    const settings how = configured(settings(), evicting());
    chat first(how), second(how);
    ASSERT_NO_FATAL_FAILURE(first.say(60));
    ASSERT_NO_FATAL_FAILURE(second.say(60));
    second.host().context().history_tokens[0] = -1;
    // Saves to the path, and then to another one, so that the path is no one's own.
    const auto saved = [&](chat& chat, const std::string& command) {
        return chat.host().command(command) && chat.host().command(save_to(fresh_file()));
    };
    const auto refused = [&](chat& chat, const std::string& why) {
        const std::string before = bytes_of(path);
        EXPECT_FALSE(chat.host().command(save_to(path)));
        EXPECT_EQ(lines(mnn_stub::take_log()), "mnn-kv: the chat is not saved: " + path + why);
        EXPECT_TRUE(bytes_of(path) == before);
        EXPECT_NO_FATAL_FAILURE(chat.decode(1));
    };
    ASSERT_TRUE(first.host().command(save_to(path)));
    refused(second, " is open already, in this process or another\n");
    EXPECT_FALSE(second.host().command(overwrite)) << "not a file that another Llm has open";
    EXPECT_NE(lines(mnn_stub::take_log()).find(path + " is open already"), std::string::npos);
    ASSERT_NO_FATAL_FAILURE(first.edit(20));
    ASSERT_NO_FATAL_FAILURE(first.decode(1));
    ASSERT_TRUE(saved(first, save_to(path))) << "its own";
    refused(second, " holds another chat" + hint);
    EXPECT_TRUE(saved(second, overwrite));
    refused(first, " was saved by another chat since" + hint);
    EXPECT_TRUE(saved(first, overwrite));
    EXPECT_TRUE(saved(first, save_to(path)));
    EXPECT_TRUE(second.host().command(load_from(path)));
    ASSERT_NO_FATAL_FAILURE(second.become(first));
    ASSERT_NO_FATAL_FAILURE(second.decode(1));
    EXPECT_TRUE(saved(second, save_to(path))) << "it goes on with the chat of the file";
    refused(first, " was saved by another chat since" + hint);
    for (const bool resets : {true, false}) {
        EXPECT_TRUE(saved(first, overwrite));
        const std::vector<int> tokens = first.host().context().history_tokens;
        ASSERT_NO_FATAL_FAILURE(first.clear());
        if (resets) {
            first.host().reset();
        }
        ASSERT_NO_FATAL_FAILURE(first.say(30));
        refused(first, " holds another chat" + hint);
        first.host().context().history_tokens = tokens;
        EXPECT_TRUE(saved(first, save_to(path))) << "the same messages, computed anew";
    }
    std::ofstream(path, std::ios::binary) << "no chat";
    EXPECT_FALSE(first.host().command(save_to(path)));
    EXPECT_NE(lines(mnn_stub::take_log()).find(hint), std::string::npos);
    EXPECT_TRUE(saved(first, overwrite));
    EXPECT_TRUE(second.host().command(load_from(path)));
    EXPECT_EQ(type_of(path + ".old"), 0u);
}

TEST_F(MnnChat, SaysThatASaveWasNotFinished) {
    const std::string path = fresh_file(), killed = fresh_file();
    chat chat(bounded(path));
    std::ofstream(killed, std::ios::binary) << bytes_of(path);
    EXPECT_FALSE(chat.host().command(load_from(killed)));
    EXPECT_EQ(lines(mnn_stub::take_log()), "mnn-kv: the chat is not loaded: no chat was saved in " + killed + " yet\n");
    ASSERT_NO_FATAL_FAILURE(chat.say(20));
    EXPECT_TRUE(chat.host().command(save_to(killed))) << "it has no chat that would be lost";
}

TEST_F(MnnChat, HasAFileWithoutABudget) {
    const std::string path = fresh_file(), model = fresh_file();
    settings how = configured(settings(), R"("kv_chat_enable": true, "kv_memory_file": ")" + path + "\"");
    how.model_files = {model};
    chat chat(how);
    ASSERT_NO_FATAL_FAILURE(chat.say(150));
    ASSERT_TRUE(chat.host().command(save_to(path)));
    ASSERT_NO_FATAL_FAILURE(chat.restart("", how));
    ASSERT_NO_FATAL_FAILURE(chat.decode(3));
    EXPECT_FALSE(chat.host().command(R"({"kv_park": true})")) << "there is nothing that could leave";
    ASSERT_TRUE(chat.host().command(save_to(path)));
    ASSERT_NO_FATAL_FAILURE(chat.restart("", how));
    chat.host().reset();
    ASSERT_NO_FATAL_FAILURE(chat.clear());
    ASSERT_NO_FATAL_FAILURE(chat.say(40));
    (void)mnn_stub::take_log();
    EXPECT_FALSE(chat.host().command(save_to(path))) << "it has the chat of before";
    EXPECT_TRUE(chat.host().command(R"({"kv_overwrite": true, "kv_save": ")" + path + "\"}"));
}

TEST_F(MnnChat, GoesOnWithTheChatOfItsFileWhenItIsLoaded) {
    const std::string path = fresh_file(), model = fresh_file();
    settings how = bounded(path);
    how.model_files = {model};
    chat chat(how);
    ASSERT_NO_FATAL_FAILURE(chat.say(150));
    for (int turn = 0; turn < 2; ++turn) {
        chat.host().prompt() = "a text";
        ASSERT_TRUE(chat.host().command(save_to(path)));
        const std::vector<int> tokens = chat.host().context().history_tokens;
        ASSERT_NO_FATAL_FAILURE(chat.restart("", how));
        EXPECT_EQ(chat.host().context().history_tokens, tokens);
        EXPECT_EQ(chat.host().prompt(), "a text");
        ASSERT_NO_FATAL_FAILURE(chat.decode(3));
    }
    EXPECT_EQ(lines(mnn_stub::take_log()), "");
    ASSERT_TRUE(chat.host().command(save_to(path)));
    const std::string bytes = bytes_of(path);
    const std::string refused = "mnn-kv: the chat is not saved: " + path + " holds another chat; \"kv_overwrite\": true beside "
                                "kv_save replaces it\n";

    // Another prompt.
    ASSERT_NO_FATAL_FAILURE(chat.restart("", how));
    chat.host().reset();
    ASSERT_NO_FATAL_FAILURE(chat.clear());
    ASSERT_NO_FATAL_FAILURE(chat.say(40));
    EXPECT_EQ(lines(mnn_stub::take_log()),
              "mnn-kv: the chat of kv_memory_file does not go on, since another one begins; it stays in " + path + "\n");
    EXPECT_FALSE(chat.host().command(save_to(path)));
    EXPECT_EQ(lines(mnn_stub::take_log()), refused);
    EXPECT_TRUE(chat.host().command(save_to(fresh_file())));
    EXPECT_TRUE(bytes_of(path) == bytes);

    // A model with the same file, one of another model, and a file that is damaged.
    support::chat one(how), two(how);
    const std::string busy = lines(mnn_stub::take_log());
    EXPECT_NE(busy.find("is open already, in this process or another"), std::string::npos) << busy;
    EXPECT_EQ(busy.find('\n'), busy.size() - 1) << busy;
    ASSERT_NO_FATAL_FAILURE(two.say(40));
    one.host() = mnn_stub::engine(settings());
    EXPECT_TRUE(bytes_of(path) == bytes);
    const std::string damaged = fresh_file();
    std::ofstream(damaged, std::ios::binary) << bytes;
    flip(damaged, bytes.size() / 2);
    const std::string before = bytes_of(damaged);
    settings how_damaged = bounded(damaged);
    how_damaged.model_files = {model};
    support::chat three(how_damaged);
    const std::string refusal = lines(mnn_stub::take_log());
    EXPECT_EQ(refusal.find("mnn-kv: the chat of kv_memory_file does not go on, and stays there: layer "), 0u) << refusal;
    ASSERT_NO_FATAL_FAILURE(three.say(40));
    three.host() = mnn_stub::engine(settings());
    EXPECT_TRUE(bytes_of(damaged) == before);
    std::ofstream(model) << "another model";
    support::chat other(how);
    const std::string log = lines(mnn_stub::take_log());
    EXPECT_NE(log.find(path + " is for another fingerprint"), std::string::npos) << log;
    EXPECT_EQ(log.find('\n'), log.size() - 1) << log;
    ASSERT_NO_FATAL_FAILURE(other.say(40));
    EXPECT_FALSE(other.host().command(save_to(path)));
    EXPECT_EQ(lines(mnn_stub::take_log()), refused);
    EXPECT_TRUE(bytes_of(path) == bytes);
    EXPECT_TRUE(other.host().command(R"({"kv_overwrite": true, "kv_save": ")" + path + "\"}"));
    ASSERT_NO_FATAL_FAILURE(other.restart("", how));
    ASSERT_NO_FATAL_FAILURE(other.decode(2));
    EXPECT_EQ(lines(mnn_stub::take_log()), "");
}

void make_socket(const std::string& path) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    ASSERT_LT(path.size(), sizeof name.sun_path);
    std::memcpy(name.sun_path, path.c_str(), path.size());
    const int made = socket(AF_UNIX, SOCK_STREAM, 0);
    ASSERT_EQ(bind(made, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0) << path;
    close(made);
}

TEST_F(MnnChat, OverwritesNothingThatIsNoRegularFile) {
    // A rename as root would put a file in the place of a device; a pipe is as good as one here.
    const std::string pipe = fresh_file(), socket = fresh_file(), folder = fresh_file(), nowhere = fresh_file();
    const auto overwrite = [](const std::string& path) {
        return R"({"kv_overwrite": true, "kv_save": ")" + path + "\"}";
    };
    ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
    ASSERT_NO_FATAL_FAILURE(make_socket(socket));
    ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
    ASSERT_EQ(symlink((nowhere + "-absent").c_str(), nowhere.c_str()), 0);
    chat chat(configured(settings(), enabled));
    ASSERT_NO_FATAL_FAILURE(chat.say(60));
    const auto refused = [&](const std::string& path, const std::string& at, const std::string& what, mode_t type) {
        EXPECT_FALSE(chat.host().command(overwrite(path)));
        EXPECT_EQ(lines(mnn_stub::take_log()),
                  "mnn-kv: the chat is not saved: " + at + " is " + what + "; a regular file expected\n");
        EXPECT_EQ(type_of(at), type) << at;
        EXPECT_NO_FATAL_FAILURE(chat.decode(1));
    };
    refused(pipe, pipe, "a pipe", S_IFIFO);
    refused(socket, socket, "a socket", S_IFSOCK);
    refused(folder, folder, "a folder", S_IFDIR);
    refused(nowhere, nowhere, "a symbolic link to nothing", S_IFLNK);
    for (const std::string& path : {pipe, socket, folder, nowhere}) {
        EXPECT_EQ(type_of(path + ".old"), 0u) << "nothing is left beside " << path;
    }

    const std::string path = fresh_file(), old = path + ".old";
    std::ofstream(path, std::ios::binary) << "kept";
    ASSERT_EQ(mkfifo(old.c_str(), 0600), 0);
    refused(path, old, "a pipe", S_IFIFO);
    ASSERT_EQ(std::remove(old.c_str()), 0);
    ASSERT_EQ(mkdir(old.c_str(), 0700), 0);
    refused(path, old, "a folder", S_IFDIR);
    ASSERT_EQ(std::remove(old.c_str()), 0);
    EXPECT_EQ(bytes_of(path), "kept");
    std::ofstream(old, std::ios::binary) << "of a save that was killed";
    EXPECT_TRUE(chat.host().command(overwrite(path)));
    EXPECT_EQ(type_of(old), 0u);
    EXPECT_TRUE(chat.host().command(load_from(path)));

    const std::string target = fresh_file(), link = fresh_file();
    std::ofstream(target, std::ios::binary) << "kept";
    ASSERT_EQ(symlink(target.c_str(), link.c_str()), 0);
    EXPECT_TRUE(chat.host().command(overwrite(link))) << "the link is replaced";
    EXPECT_EQ(type_of(link), mode_t(S_IFREG));
    EXPECT_EQ(bytes_of(target), "kept");
    EXPECT_TRUE(chat.host().command(load_from(link)));
    EXPECT_EQ(lines(mnn_stub::take_log()), "");
}

}  // namespace
