// Dumps (integrations/common/mnnkv_dump.hpp) through the adapter for MNN: every word of every step is in a file.

#include "chat.hpp"

#include <filesystem>
#include <map>

#ifdef __linux__
#include "../suites/full_disk.hpp"
#endif

namespace {

using namespace support;
namespace fs = std::filesystem;

class MnnDump : public testing::Test {
protected:
    void SetUp() override {
        mnn_stub::take_log();
        fs::remove_all(folder_);
    }
    void TearDown() override { fs::remove_all(folder_); }

    settings dumping(settings how, const std::string& keys = R"("kv_h2o_enable": false)") const {
        how = configured(how, keys);
        how.dump_folder = folder_;
        return how;
    }

    const std::string folder_ = support::temp_path("dump");
};

bytes contents(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

/// A step of one layer, as attention saw it or as a dump has it.
struct entry {
    std::string run;
    std::uint32_t layer, begin, tokens;
    bool prompt;
    bytes key, value;
};

void expect_layer(const settings& how, const chat& chat, int layer, int count, std::vector<entry>& all) {
    const layer_step& step = chat.last(layer);
    const auto tail = [&](const std::vector<float>& rows) {
        const auto words = static_cast<std::ptrdiff_t>(count * how.kv_heads * how.head_dim);
        return mnn_stub::elements_of(how, std::vector<float>(rows.end() - words, rows.end()));
    };
    const int begin = chat.length() - count;
    all.push_back({"", static_cast<std::uint32_t>(layer), static_cast<std::uint32_t>(begin),
                   static_cast<std::uint32_t>(count), count > 1 || begin == 0, tail(step.held.keys),
                   tail(step.held.values)});
}

std::vector<entry> read_dump(const settings& how) {
    std::vector<entry> all;
    std::size_t files = 0;
    for (const fs::directory_entry& at : fs::recursive_directory_iterator(how.dump_folder)) {
        files += at.is_regular_file() ? 1 : 0;
        if (at.path().filename().string().rfind("meta_", 0) != 0) {
            continue;
        }
        const bytes text = contents(at.path());
        const json meta = json_reader(std::string(text.begin(), text.end())).read();
        EXPECT_EQ(meta["bytes_per_elem"].number, how.element_bytes);
        EXPECT_EQ(meta["dtype"].text, how.element_bytes == 2 ? "fp16" : "fp32");
        EXPECT_EQ(meta["kv_heads"].number, how.kv_heads);
        EXPECT_EQ(meta["head_dim"].number, how.head_dim);
        EXPECT_EQ(meta["seq_end_exclusive"].number, meta["seq_start"].number + meta["seq_len"].number);
        EXPECT_EQ(at.path().parent_path().filename(), "layer_" + std::to_string(meta["layer_id"].u32()));
        EXPECT_EQ(at.path().parent_path().parent_path().filename(), meta["run_id"].text);
        const auto file = [&](const char* key) { return contents(at.path().parent_path() / meta[key].text); };
        all.push_back({meta["run_id"].text, meta["layer_id"].u32(), meta["seq_start"].u32(), meta["seq_len"].u32(),
                       meta["stage"].text == "prefill", file("k_file"), file("v_file")});
    }
    EXPECT_EQ(files, 3 * all.size()) << "files that no meta names";
    return all;
}

/// Every step is there once, and a run's steps are consecutive.
void expect_dump(const settings& how, const std::vector<entry>& expected, std::size_t runs) {
    const std::vector<entry> dumped = read_dump(how);
    EXPECT_EQ(dumped.size(), expected.size());
    std::map<std::pair<std::string, std::uint32_t>, std::map<std::uint32_t, std::uint32_t>> ends;
    for (const entry& step : expected) {
        const auto equal = [&](const entry& other) {
            return std::tie(other.layer, other.begin, other.tokens, other.prompt) ==
                       std::tie(step.layer, step.begin, step.tokens, step.prompt) &&
                   other.key == step.key && other.value == step.value;
        };
        const auto at = std::find_if(dumped.begin(), dumped.end(), equal);
        ASSERT_NE(at, dumped.end()) << "layer " << step.layer << ", token " << step.begin;
        ends[{at->run, at->layer}][at->begin] = at->begin + at->tokens;
    }
    EXPECT_EQ(ends.size(), runs * static_cast<std::size_t>(how.layers));
    for (const auto& run : ends) {
        for (auto at = run.second.begin(), next = std::next(at); next != run.second.end(); at = next++) {
            EXPECT_EQ(at->second, next->first) << run.first.first << ", layer " << run.first.second;
        }
    }
}

/// Dumps a chat with edits, and compares every step.
void expect_dump_of_a_chat(const settings& how) {
    chat chat(how);
    std::vector<entry> expected;
    const auto say = [&](int count) {
        ASSERT_NO_FATAL_FAILURE(chat.say(count));
        for (int layer = 0; layer < how.layers; ++layer) {
            expect_layer(how, chat, layer, count, expected);
        }
    };
    // Longer than the writer's buffer; the 66th token after it lets the cache grow.
    for (const int count : {300, 1, 1, 70, 1}) {
        ASSERT_NO_FATAL_FAILURE(say(count));
    }
    chat.erase(chat.length() - 30, chat.length());
    for (const int count : {1, 5}) {
        ASSERT_NO_FATAL_FAILURE(say(count));
    }
    chat.clear();
    for (const int count : {1, 1, 90}) {
        ASSERT_NO_FATAL_FAILURE(say(count));
    }
    ASSERT_NO_FATAL_FAILURE(expect_dump(how, expected, 3));
    EXPECT_EQ(lines(mnn_stub::take_log()), "");
    EXPECT_EQ(chat.host().metrics().empty(), !how.evicts && !how.compresses);
}

TEST_F(MnnDump, HasEveryWordOfEveryStep) {
    for (const std::string& keys : {std::string(R"("kv_h2o_enable": false)"), compressing("store", 0), evicting(),
                                    evicting() + ", " + compressing("store", 1)}) {
        for (const int bytes : {4, 2}) {
            SCOPED_TRACE(keys + ", " + std::to_string(bytes) + " bytes");
            fs::remove_all(folder_);
            settings how;
            how.element_bytes = bytes;
            ASSERT_NO_FATAL_FAILURE(expect_dump_of_a_chat(dumping(how, keys)));
        }
    }
}

TEST_F(MnnDump, EndsWithOneLineAtAQuantisedCache) {
    settings how;
    how.head_dim = 32;
    how = dumping(how.in_mode(10));
    chat chat(how);
    ASSERT_NO_FATAL_FAILURE(chat.say(7));
    ASSERT_NO_FATAL_FAILURE(chat.decode(2));
    const std::vector<std::string> log = mnn_stub::take_log();
    ASSERT_EQ(log.size(), 1u) << lines(log);
    EXPECT_NE(log[0].find(": a quantised cache is not dumped"), std::string::npos) << log[0];
    EXPECT_EQ(read_dump(how).size(), 0u);
}

TEST_F(MnnDump, KeepsModelsApartInOneFolder) {
    const settings how = dumping(settings());
    chat one(how), other(how);
    std::vector<entry> expected;
    for (chat* chat : {&one, &other, &one, &other}) {
        ASSERT_NO_FATAL_FAILURE(chat->say(7));
        for (int layer = 0; layer < how.layers; ++layer) {
            expect_layer(how, *chat, layer, 7, expected);
        }
    }
    // Both models have the same words: half of the entries are found twice.
    EXPECT_EQ(read_dump(how).size(), expected.size());
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 2);
}

TEST_F(MnnDump, EndsWithOneLineWhereTheFolderCannotBeMade) {
    settings how = dumping(settings(), compressing("store", 0));
    how.dump_folder = folder_ + "/missing/dump";
    chat chat(how);
    ASSERT_NO_FATAL_FAILURE(live(chat));
    EXPECT_EQ(lines(mnn_stub::take_log()),
              "mnn-kv: dump off: " + how.dump_folder + ": " + std::generic_category().message(ENOENT) + "\n");
    EXPECT_FALSE(fs::exists(folder_));
}

#ifdef __linux__
TEST_F(MnnDump, LeavesNoPartOfAStepThatTheDiskHasNoRoomFor) {
    // K of the second prompt exceeds the limit; that of the first does not.
    const settings how = dumping(settings());
    chat chat(how);
    ASSERT_NO_FATAL_FAILURE(chat.say(20));
    {
        const full_disk disk(50 * 96);
        chat.say(100);
    }
    ASSERT_NO_FATAL_FAILURE(chat.decode(3));

    EXPECT_EQ(read_dump(how).size(), 2u) << "the first step of two layers";
    const std::vector<std::string> log = mnn_stub::take_log();
    ASSERT_EQ(log.size(), 1u) << lines(log);
    EXPECT_EQ(log[0].find("mnn-kv: dump off: " + folder_ + "/run_"), 0u) << log[0];
    EXPECT_NE(log[0].find("/layer_0/k_t20_120.bin: " + std::generic_category().message(EFBIG)), std::string::npos)
        << log[0];
}
#endif

TEST_F(MnnDump, NamesAFolderThatIsNoString) {
    chat chat(configured(settings(), R"("kv_dump_folder": 7)"));
    ASSERT_NO_FATAL_FAILURE(chat.say(5));
    EXPECT_EQ(lines(mnn_stub::take_log()), "mnn-kv: dump off where kv_dump_folder is 7, not a path in UTF-8\n");
}

TEST_F(MnnDump, RefusesPrefixFilesWithOneLine) {
    class chat prefixed(dumping(settings()));
    prefixed.read_prefix(100);
    ASSERT_NO_FATAL_FAILURE(prefixed.say(150));
    EXPECT_EQ(lines(mnn_stub::take_log()),
              "mnn-kv: dump off where the cache is a prefix cache file, until a prompt that clears it\n");
    EXPECT_FALSE(fs::exists(folder_));
    prefixed.clear();
    ASSERT_NO_FATAL_FAILURE(prefixed.say(5));
    EXPECT_EQ(read_dump(prefixed.how()).size(), 2u);
}

}  // namespace
