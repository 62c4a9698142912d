// A budget in bytes: what is refused, what a chat of some thousand tokens attends to in each state, and files that
// fail, by the C API.

#include "budget_chat.hpp"

#include <atomic>
#include <cstdio>
#include <memory>
#include <thread>

#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#define HAS_FILES 1
#endif

namespace {

using namespace support;

/// Of 3 layers and 1 KB for a token: room for some thousand tokens in blocks, and for one thousand.
constexpr std::uint64_t roomy = 8000000, small = 2000000;

TEST(Budget, CallsThatDoNotFitAreRefused) {
    mnnkv::session without = made("{}");
    slot<std::uint64_t> in_use;
    const std::vector<bad_call> calls = {
        {bad, "session", [&] { return mnnkv_session_trim(nullptr, 1000000, in_use.get()); }},
        {bad, "kv_memory_mb", [&] { return mnnkv_session_trim(without.get(), 1000000, in_use.get()); }},
        {bad, "kv_memory_mb", [&] { return mnnkv_session_trim(without.get(), 0, nullptr); }},
    };
    expect_refused(calls, in_use);
    EXPECT_FALSE(report_of(without).has("memory"));
}

TEST(Budget, OneBelowTheFloorIsRefusedAndItsMessageHasOneThatWorks) {
    Chat below(budget(100000));
    mnnkv_layout layout = mnnkv::make<mnnkv_layout>();
    std::vector<float> key(std::size_t{kv_heads} * block * dims), value(key.size());
    layout.key_dtype = layout.value_dtype = MNNKV_DTYPE_F32;
    layout.kv_heads = kv_heads;
    layout.head_dim = dims;
    layout.max_tokens = block;
    layout.l_pack = layout.h_pack = layout.flash_block = 1;
    mnnkv_cache cache = mnnkv::make<mnnkv_cache>();
    cache.layout = &layout;
    cache.key = key.data();
    cache.value = value.data();
    EXPECT_TRUE(refuses(bad, "the budget is 0.1 MB (kv_memory_mb or kv_memory_bytes); at least ", [&] { return below.session.begin(0, cache).code(); }));
    const std::string text = mnnkv_last_error();
    const double least = std::atof(text.c_str() + text.find("at least ") + 9);
    ASSERT_GT(least, 0.1) << text;
    ASSERT_LT(least, 2) << text;

    char config[100];
    std::snprintf(config, sizeof config, "{\"kv_memory_mb\": %.1f}", least);
    Chat chat(config);
    for (int at = 0; at < 100; ++at) {
        ASSERT_NO_FATAL_FAILURE(chat.step(4));
    }
    ASSERT_NO_FATAL_FAILURE(chat.singles(20));
    const session_report stats = report_of(chat.session);
    EXPECT_LE(stats.memory("bytes"), stats.memory("budget_bytes"));
    EXPECT_TRUE(chat.is_average());
}

#ifdef HAS_FILES

/// A folder of its own, and a path in it.
class BudgetFile : public testing::Test {
protected:
    BudgetFile() {
        folder_ = support::temp_path("budget");
        EXPECT_EQ(mkdir(folder_.c_str(), 0700), 0);
        path_ = folder_ + "/blocks";
    }
    ~BudgetFile() override {
        unlink(path_.c_str());
        rmdir(folder_.c_str());
    }

    bool exists() const {
        struct stat found;
        return lstat(path_.c_str(), &found) == 0;
    }

    std::string contents() const {
        std::ifstream file(path_, std::ios::binary);
        return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    }

    void write(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }

    /// Of a chat that the budget has no room for: blocks are dropped, and the warnings say that this is why.
    void expect_dropping(const std::string& path, const std::string& why) const {
        Chat chat(with_file(small, path));
        ASSERT_NO_FATAL_FAILURE(chat.prompt(4 * 1024));
        ASSERT_NO_FATAL_FAILURE(chat.singles(3));
        const session_report stats = report_of(chat.session);
        EXPECT_EQ(stats.state(), "dropping");
        EXPECT_GT(stats.memory("dropped_tokens"), 0u);
        EXPECT_EQ(stats.memory("file_tokens"), 0u);
        EXPECT_GT(stats.memory("failed_writes"), 0u);
        EXPECT_LE(stats.memory("bytes"), stats.memory("budget_bytes"));
        EXPECT_EQ(stats.memory("over_steps"), 0u);
        const std::string said = stats.warnings();
        EXPECT_NE(said.find("has dropped tokens to hold the budget"), std::string::npos) << said;
        EXPECT_NE(said.find("kv_memory_file: "), std::string::npos) << said;
        EXPECT_NE(said.find(why), std::string::npos) << said;
        EXPECT_TRUE(chat.is_average());
    }

    std::string folder_, path_;
};

TEST_F(BudgetFile, AChatIsPlainAttentionInEveryState) {
    Chat chat(with_file(small, path_));
    const std::string states[] = {"raw", "k8v4", "k4v4", "file"};
    std::size_t seen = 0;
    for (int at = 0; at < 18; ++at) {
        ASSERT_NO_FATAL_FAILURE(chat.step(chunk));
        const session_report after = report_of(chat.session);
        if (chat.attended > 0) {
            ASSERT_EQ(chat.attended, layers);
            // A chunk reads all that is in the file.
            EXPECT_LT(chat.distance(), after.state() == "k8v4" ? rounding : unread) << chat.length() << " tokens, state " << after.state();
        }
        ASSERT_NO_FATAL_FAILURE(chat.step(1));
        const session_report stats = report_of(chat.session);
        const std::string state = stats.state();
        if (state != states[seen]) {
            ASSERT_LT(seen, 3u);
            ASSERT_EQ(state, states[++seen]) << "none is skipped, and none goes back";
        }
        EXPECT_EQ(chat.attended, state == "raw" ? 0 : layers);
        EXPECT_TRUE(exists()) << "from the begin of the session on";
        EXPECT_EQ(stats.memory("bytes"), stats.memory("raw_bytes") + stats.memory("block_bytes") + stats.memory("working_bytes"));
        EXPECT_LE(stats.memory("bytes"), stats.memory("budget_bytes"));
        EXPECT_EQ(stats.memory("dropped_tokens"), 0u);
        EXPECT_EQ(stats.memory("over_steps"), 0u);
        EXPECT_EQ(stats.memory("late_reads"), 0u);
        if (state != "raw") {
            EXPECT_LT(chat.distance(), state == "k8v4" ? rounding : unread)
                << chat.length() << " tokens, state " << state;
        }
    }
    EXPECT_EQ(seen, 3u) << "the file was used";
    EXPECT_GT(chat.memory("file_tokens"), 0u);
    EXPECT_EQ(report_of(chat.session).warnings(), "");
    chat.session.reset();
    EXPECT_FALSE(exists()) << "the file goes with its session";
}

TEST_F(BudgetFile, ATokenInTheFileIsFoundByTheQueryThatAsksForIt) {
    Chat chat(with_file(small, path_));
    ASSERT_NO_FATAL_FAILURE(chat.prompt(6 * 1024));
    ASSERT_GT(chat.memory("file_tokens"), 2u * 1024 * layers) << "most are away";
    for (int wanted = 100; wanted < 6000; wanted += 590) {
        ASSERT_NO_FATAL_FAILURE(chat.step(1, wanted));
        EXPECT_LT(chat.distance(), unread) << "token " << wanted;
    }
    EXPECT_GT(chat.memory("reads"), 0u);
    EXPECT_GT(chat.memory("returned"), 0u) << "what is used comes back";
}

TEST_F(BudgetFile, WhichBlocksLeaveDependsOnTheChatAlone) {
    Chat chat(with_file(small, path_)), other(with_file(small, path_ + "2"));
    for (int at = 0; at < 160; ++at) {
        const std::uint32_t rows = at % 10 == 0 ? chunk : at % 10 == 5 ? 20 : 1;
        const int wanted = at % 3 == 0 ? 20 * at : -1;
        for (Chat* one : {&chat, &other}) {
            ASSERT_NO_FATAL_FAILURE(one->step(rows, wanted));
        }
        for (std::uint32_t layer = 0; layer < layers; ++layer) {
            const std::vector<float>&mine = chat.output(layer), &theirs = other.output(layer);
            ASSERT_EQ(std::memcmp(mine.data(), theirs.data(), mine.size() * sizeof(float)), 0) << "step " << at;
        }
    }
    EXPECT_GT(chat.memory("reads"), 0u);
    EXPECT_EQ(chat.memory("late_writes"), 0u);
}

TEST_F(BudgetFile, WhatCannotBeItsFileIsLeftAloneAndTokensAreDropped) {
    {
        SCOPED_TRACE("a folder");
        expect_dropping(folder_, folder_);
    }
    {
        SCOPED_TRACE("in a folder that is not there");
        expect_dropping(folder_ + "/none/blocks", folder_ + "/none/blocks");
        EXPECT_FALSE(exists());
    }
    for (const std::string& text : {std::string("a letter"), std::string("mnn-kv on"), std::string(5000, 'x')}) {
        SCOPED_TRACE("another's file of " + std::to_string(text.size()) + " bytes");
        write(text);
        expect_dropping(path_, "left alone");
        EXPECT_TRUE(exists());
        EXPECT_EQ(contents(), text);
        unlink(path_.c_str());
    }
    for (const char* text : {"", "mnn-kv offload 1"}) {
        SCOPED_TRACE("a link to a file that it could replace");
        const std::string target = folder_ + "/target";
        std::ofstream(target) << text;
        ASSERT_EQ(symlink(target.c_str(), path_.c_str()), 0);
        expect_dropping(path_, "left alone");
        EXPECT_EQ(contents(), text) << "the link is there, and leads to the same";
        unlink(path_.c_str());
        unlink(target.c_str());
    }
}

TEST_F(BudgetFile, TheFileOfAnotherSessionIsLeftToIt) {
    Chat first(with_file(small, path_));
    ASSERT_NO_FATAL_FAILURE(first.prompt(4 * 1024));
    ASSERT_GT(first.memory("file_tokens"), 0u);
    expect_dropping(path_, "open already");
    EXPECT_TRUE(exists()) << "the second session has not removed it";
    ASSERT_NO_FATAL_FAILURE(first.step(1, 700));
    EXPECT_LT(first.distance(), unread);
    EXPECT_EQ(first.memory("lost"), 0u);
    first.session.reset();
    EXPECT_FALSE(exists());
}

TEST_F(BudgetFile, ItIsTrimmedByAnotherThreadBetweenSteps) {
    Chat chat(with_file(roomy, path_));
    ASSERT_NO_FATAL_FAILURE(chat.prompt(3 * 1024));
    ASSERT_EQ(chat.memory("file_tokens"), 0u);
    ASSERT_NE(report_of(chat.session).state(), "file");
    std::atomic<bool> ends{false};
    std::thread other([&] {
        for (std::uint64_t at = 0; !ends; ++at) {
            std::uint64_t in_use = 0;
            EXPECT_TRUE(ok(mnnkv_session_trim(chat.session.get(), at % 2 == 0 ? small : roomy / 2, &in_use)));
            EXPECT_GT(in_use, 0u);
            (void)report_of(chat.session);
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    });
    for (int at = 0; at < 60; ++at) {
        chat.step(at % 20 == 0 ? chunk : 1, at % 3 == 0 ? 50 * at : -1);
        EXPECT_LT(chat.distance(), at % 20 == 0 ? unread : 0.25) << "step " << at;
    }
    ends = true;
    other.join();
    EXPECT_EQ(chat.memory("dropped_tokens"), 0u);
}

TEST(Budget, WithoutAFileTrimDropsAndTheChatGoesOn) {
    Chat chat(budget(roomy));
    ASSERT_NO_FATAL_FAILURE(chat.prompt(3 * 1024));
    ASSERT_NO_FATAL_FAILURE(chat.singles(1));
    ASSERT_TRUE(ok(chat.session.trim(0).code()));
    ASSERT_NO_FATAL_FAILURE(chat.singles(3));
    session_report stats = report_of(chat.session);
    EXPECT_EQ(stats.state(), "dropping");
    EXPECT_GT(stats.memory("dropped_tokens"), 1536u * layers);
    const double dropped = stats.memory("dropped_tokens");
    ASSERT_TRUE(ok(chat.session.trim(roomy).code()));
    ASSERT_NO_FATAL_FAILURE(chat.singles(100));
    stats = report_of(chat.session);
    EXPECT_EQ(stats.memory("dropped_tokens"), dropped) << "nothing leaves that has room, and nothing dropped comes back";
    EXPECT_TRUE(chat.is_average());
    ASSERT_TRUE(ok(chat.session.reset_all().code()));
    EXPECT_EQ(report_of(chat.session).state(), "raw");
    EXPECT_EQ(chat.memory("dropped_tokens"), 0u);
}

/// What the test does to the file while blocks are away.
void expect_loss_alone(Chat& chat, const char* what) {
    SCOPED_TRACE(what);
    const session_report before = report_of(chat.session);
    ASSERT_EQ(before.memory("lost"), 0u);
    ASSERT_EQ(before.memory("dropped_tokens"), 0u);
    for (int wanted = 100; wanted < 3000; wanted += 290) {
        ASSERT_NO_FATAL_FAILURE(chat.step(1, wanted));
        ASSERT_TRUE(chat.is_average());
    }
    ASSERT_NO_FATAL_FAILURE(chat.prompt(2 * chunk));
    ASSERT_NO_FATAL_FAILURE(chat.singles(3));
    const session_report stats = report_of(chat.session);
    EXPECT_GT(stats.memory("lost"), 0u);
    EXPECT_EQ(stats.memory("dropped_tokens"), stats.memory("lost") * block / kv_heads) << "what is lost, and no more";
    EXPECT_LE(stats.memory("bytes"), stats.memory("budget_bytes"));
    EXPECT_EQ(stats.memory("over_steps"), 0u);
    EXPECT_TRUE(chat.is_average());
    const std::string said = stats.warnings();
    EXPECT_NE(said.find("was cut or changed: "), std::string::npos) << said;
    EXPECT_EQ(said.find("did not take"), std::string::npos) << "which is not why: " << said;
    // The chat goes on in a new one as if nothing had been.
    ASSERT_TRUE(ok(chat.session.reset_all().code()));
    EXPECT_EQ(report_of(chat.session).state(), "raw");
}

TEST_F(BudgetFile, FlippedBytesLoseTheirBlocksAlone) {
    Chat chat(with_file(small, path_));
    ASSERT_NO_FATAL_FAILURE(chat.prompt(4 * 1024));
    ASSERT_GT(chat.memory("file_tokens"), 0u);
    std::string bytes = contents();
    for (std::size_t at = 16; at < bytes.size(); at += 1000) {
        bytes[at] = static_cast<char>(bytes[at] ^ 1);
    }
    const int file = open(path_.c_str(), O_WRONLY);
    ASSERT_GE(file, 0);
    ASSERT_EQ(pwrite(file, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    close(file);
    expect_loss_alone(chat, "flipped");
}

#endif  // HAS_FILES

}  // namespace
