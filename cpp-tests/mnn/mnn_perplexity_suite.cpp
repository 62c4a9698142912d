// Perplexity by decoding (integrations/common/mnnkv_perplexity.hpp) with an engine whose likelihoods are known.

#include "../suites/support.hpp"
#include "mnnkv_perplexity.hpp"

#include <cmath>
#include <limits>

#ifndef _WIN32
#include <sys/stat.h>
#endif

namespace {

using namespace support;

const int words = 7;

/// After `length` tokens, word w has the weight 1 + (w + length) % 5.
double weight(int length, int word) { return 1 + (word + length) % 5; }

class reader : public mnnkv_host::decoder {
public:
    bool load(const std::string& config, const std::string& settings) override {
        loaded = config + settings;
        return config != "broken";
    }
    std::vector<int> encode(const std::string& text) override {
        std::vector<int> tokens;
        for (const char c : text) {
            tokens.push_back(c - 'a');
        }
        return tokens;
    }
    const float* forward(const std::vector<int>& tokens, std::size_t& vocabulary) override {
        steps.push_back(tokens);
        length += static_cast<int>(tokens.size());
        logits.clear();
        for (int word = 0; word < words; ++word) {
            logits.push_back(static_cast<float>(std::log(weight(length, word))) + 8.0f);
        }
        if (length == broken_at) {
            logits[3] = std::numeric_limits<float>::quiet_NaN();
        }
        vocabulary = words;
        return length == fails_at ? nullptr : logits.data();
    }
    void reset() override {
        steps.clear();
        length = 0;
    }
    std::string config() override {
        return R"({"backend": "cpu", "kv_h2o_enable": true, "list": [{"kv_no": 1}, "}"], "kv_s": "a,\"b}:",)"
               R"( "kv_metrics": {"h2o_keep_ratio":0.5,"layers":[{"layer":0}]} })";
    }

    std::string loaded;
    std::vector<std::vector<int>> steps;
    std::vector<float> logits;
    int length = 0, broken_at = -1, fails_at = -1;
};

class MnnPerplexity : public testing::Test {
protected:
    ~MnnPerplexity() override {
        for (const std::string& path : files_) {
            std::remove(path.c_str());
        }
    }

    std::string file(const std::string& name, const std::string& contents) {
        const std::string path = support::temp_path("perplexity-" + name);
        files_.push_back(path);
        std::ofstream(path, std::ios::binary) << contents;
        return path;
    }

    int run(const std::vector<std::string>& arguments) {
        std::vector<const char*> argv;
        for (const std::string& argument : arguments) {
            argv.push_back(argument.c_str());
        }
        engine.reset();
        testing::internal::CaptureStdout();
        testing::internal::CaptureStderr();
        const int status =
            mnnkv_host::perplexity_run(engine).main(static_cast<int>(argv.size()), argv.data());
        said = testing::internal::GetCapturedStdout();
        errors = testing::internal::GetCapturedStderr();
        return status;
    }

    reader engine;
    std::string said, errors;

private:
    std::vector<std::string> files_;
};

TEST_F(MnnPerplexity, IsOfTheTrueTokensDecodedOneByOne) {
    const std::string text = "gabbcafedcabbage";
    const int length = static_cast<int>(text.size());
    std::string u16, u32;
    for (const char c : text) {
        u16 += std::string(1, static_cast<char>(c - 'a')) + std::string(1, '\0');
        u32 += std::string(1, static_cast<char>(c - 'a')) + std::string(3, '\0');
    }
    const std::string result = file("result.json", "old"), settings = R"({"kv_h2o_enable": true})";
    for (const std::string& path : {file("text.txt", text), file("ids.u16", u16), file("ids.u32", u32)}) {
        for (const int prompt : {1, 5, length - 1}) {
            ASSERT_EQ(run({"-m", "model", path, "-p", std::to_string(prompt), "-o", result, "-s", settings}), 0) << errors;
            EXPECT_EQ(engine.loaded, "model" + settings);
            std::vector<int> seen;
            for (const std::vector<int>& step : engine.steps) {
                EXPECT_EQ(step.size(), seen.empty() ? static_cast<std::size_t>(prompt) : 1u);
                seen.insert(seen.end(), step.begin(), step.end());
            }
            std::vector<int> expected = engine.encode(text);
            double sum = 0;
            for (int at = prompt; at < length; ++at) {
                double all = 0;
                for (int word = 0; word < words; ++word) {
                    all += weight(at, word);
                }
                sum += std::log(weight(at, expected[static_cast<std::size_t>(at)]) / all);
            }
            expected.pop_back();
            EXPECT_EQ(seen, expected) << "no token is computed that scores none";

            std::ifstream written(result);
            EXPECT_EQ(std::string((std::istreambuf_iterator<char>(written)), std::istreambuf_iterator<char>()), said);
            EXPECT_NE(said.find(R"("config": {"kv_h2o_enable": true, "kv_s": "a,\"b}:"},)"), std::string::npos) << said;
            // The test's JSON reader has no escapes.
            std::string plain = said;
            plain.replace(plain.find(R"("a,\"b}:")"), 9, "0");
            const json read = json_reader(plain).read();
            EXPECT_EQ(read["format"].text, "mnnkv-ppl");
            EXPECT_EQ(read["tokens"].number, length);
            EXPECT_EQ(read["prompt_tokens"].number, prompt);
            EXPECT_EQ(read["scored_tokens"].number, length - prompt);
            EXPECT_NEAR(read["mean_log_likelihood"].number, sum / (length - prompt), 1e-6);
            EXPECT_NEAR(read["perplexity"].number, std::exp(-sum / (length - prompt)), 1e-5);
            EXPECT_EQ(read["kv_metrics"]["h2o_keep_ratio"].number, 0.5);
        }
    }
    ASSERT_EQ(run({"-m", "model", file("text.txt", text), "-p", "2", "-n", "6"}), 0);
    EXPECT_EQ(json_reader(said.replace(said.find(R"("a,\"b}:")"), 9, "0")).read()["tokens"].number, 6);
}

TEST_F(MnnPerplexity, OfTasksIsTheLossOfTheScoredTokensByKind) {
    // After n tokens the words of weight 5 are first choices: those whose word + n is 4 or 9.
    const std::string tasks = file("tasks.jsonl",
                                   R"({"kind": "a", "id": "one", "tokens": [1, 2, 3, 0, 5], "question_from": 2,)"
                                   R"( "score_from": 3, "score_to": 5, "depth": [0.5]})"
                                   "\n\n"
                                   R"({"kind":"\u0062","tokens":[6,2,2,1,4,4],"question_from":1,"score_from":2,"score_to":3})"
                                   "\n"
                                   R"({"score_to":3,"kind":"a","id":"last","tokens":[0,6,2],"question_from":2,"score_from":2})");
    const std::string result = file("result.json", "old");
    ASSERT_EQ(run({"-m", "model", "--tasks", tasks, "-o", result}), 0) << errors;
    const auto loss = [](int length, int word) {
        double all = 0;
        for (int other = 0; other < words; ++other) {
            all += weight(length, other);
        }
        return std::log(all / weight(length, word));
    };
    const double one = (loss(3, 0) + loss(4, 5)) / 2, two = loss(2, 2), last = loss(2, 2);
    EXPECT_NE(said.find("{\"kind\": \"b\", \"items\": 1, \"loss\": "), std::string::npos) << said;
    EXPECT_NE(said.find("\"error\": null"), std::string::npos) << said;
    const json read = json_reader(said.replace(said.find(R"("a,\"b}:")"), 9, "0")).read();
    EXPECT_EQ(read["format"].text, "mnnkv-tasks");
    ASSERT_EQ(read["items"].items.size(), 3u);
    const double expected[] = {one, two, last};
    const char* const ids[] = {"one", "line 3", "last"};
    const bool exact[] = {false, true, true};
    for (std::size_t i = 0; i < 3; ++i) {
        const json& item = read["items"].items[i];
        EXPECT_EQ(item["id"].text, ids[i]);
        EXPECT_NEAR(item["loss"].number, expected[i], 1e-6);
        EXPECT_EQ(item["exact"].truth, exact[i]) << ids[i];
    }
    EXPECT_NE(said.find("\"settings\": {}, \"config\""), std::string::npos) << said;
    const json& a = read["kinds"].items[0];
    EXPECT_EQ(a["kind"].text + read["kinds"].items[1]["kind"].text, "ab");
    EXPECT_EQ(a["items"].number, 2);
    EXPECT_NEAR(a["loss"].number, (one + last) / 2, 1e-6);
    EXPECT_NEAR(a["error"].number, std::fabs(one - last) / 2, 1e-3 * one);
    EXPECT_EQ(a["exact_share"].number, 0.5);
    EXPECT_EQ(read["decode_steps"].number, 3);
    // Each text is a chat: its prompt at once, the rest one by one without the last token.
    EXPECT_EQ(engine.steps, (std::vector<std::vector<int>>{{0, 6}}));
}

TEST_F(MnnPerplexity, RefusesAnItemByLineAndField) {
    const std::string good = R"({"kind":"kv","id":"a","tokens":[1,2,3,6,5,0],"question_from":2,"score_from":3,"score_to":5})";
    const struct {
        const char *from, *to, *expected;
    } mistakes[] = {
        {"\"kind\":\"kv\",", "", "line 2: kind: a text expected"},
        {"3,6", "3,7", "line 2: tokens[3]: is 7; 0 to 6, a token of the model, expected"},
        {"3,6", "3,-1", "line 2: tokens[3]: is -1;"},
        {"3,6", "3,,6", "line 2: tokens[3]: is ;"},
        {"[1,2,3,6,5,0]", "[1]", "line 2: tokens: 1 of them;"},
        {"[1,2,3,6,5,0]", "3", "line 2: tokens: an array of token ids expected"},
        {"\"question_from\":2", "\"question_from\":0", "line 2: question_from: is 0; 1 to 5 expected"},
        {"\"score_from\":3", "\"score_from\":1", "line 2: score_from: is 1; 2 to 5 expected"},
        {"\"score_to\":5", "\"score_to\":3", "line 2: score_to: is 3; 4 to 6 expected"},
        {"\"score_to\":5", "\"score_to\":7", "line 2: score_to: is 7; 4 to 6 expected"},
        {",\"score_to\":5", "", "line 2: score_to: is missing"},
        {"\"id\":\"a\"", "\"id\":\"b\"", "line 2: id \"b\" comes twice"},
        {"{\"kind", "[\"kind", "line 2: one JSON object expected"},
        {"\"score_to\":5}", "\"score_to\":5} {}", "line 2: one JSON object expected"},
        {"\"score_to\":5", "\"score_to\":5,\"score_to\":5", "line 2: score_to: comes twice"},
        {"\"score_to\":5", "\"score_to\":5.0", "line 2: score_to: is 5.0; 4 to 6 expected"},
        {"\"id\":\"a\"", "\"id\":7", "line 2: id: is 7; a text expected"},
        {"\"kv\"", "\"k\\ud800v\"", "line 2: kind: a text expected"},
    };
    for (const auto& mistake : mistakes) {
        std::string bad = good, other = good;
        bad.replace(bad.find(mistake.from), std::string(mistake.from).size(), mistake.to);
        other.replace(other.find("\"a\""), 3, "\"b\"");
        EXPECT_EQ(run({"-m", "model", "--tasks", file("tasks.jsonl", other + "\n" + bad + "\n")}), 3) << bad;
        EXPECT_NE(errors.find(mistake.expected), std::string::npos) << errors;
        EXPECT_NE(errors.find("tasks.jsonl: line"), std::string::npos) << errors;
        EXPECT_EQ(said, "");
    }
    EXPECT_EQ(run({"-m", "model", "--tasks", testing::TempDir()}), 3) << "a folder";
    EXPECT_EQ(run({"-m", "model", "--tasks", file("tasks.jsonl", "\n")}), 3);
    EXPECT_NE(errors.find("has no items"), std::string::npos) << errors;
    EXPECT_EQ(run({"-m", "model", "--tasks", file("tasks.jsonl", good), "-p", "4"}), 2);
    engine.fails_at = 4;
    EXPECT_EQ(run({"-m", "model", "--tasks", file("tasks.jsonl", good)}), 3);
    EXPECT_NE(errors.find("cannot compute a: token 4"), std::string::npos) << errors;
}

TEST_F(MnnPerplexity, NamesTheMistakeAndWritesNothing) {
    const std::string text = file("text.txt", "abcdefgabcdefg");
    const auto fails = [&](int status, const std::string& why, std::vector<std::string> arguments) {
        EXPECT_EQ(run(arguments), status) << why;
        EXPECT_NE(errors.find(why), std::string::npos) << errors;
        EXPECT_EQ(said, "");
    };
    fails(2, "-m, and TEXT or --tasks, are required", {"-m", "model"});
    fails(2, "-p 0", {"-m", "model", text, "-p", "0"});
    fails(2, "-p 4x", {"-m", "model", text, "-p", "4x"});
    fails(2, "-q 1", {"-m", "model", text, "-q", "1"});
    fails(2, "wrong argument: -o", {"-m", "model", text, "-o"});
    fails(2, "wrong argument: more", {"-m", "model", text, "more"});
    fails(3, "no-such-file", {"-m", "model", "no-such-file"});
    fails(3, "14 tokens; a prompt of 64 needs at least 65", {"-m", "model", text});
    fails(3, "3 bytes are no whole number of ids", {"-m", "model", file("odd.u16", "abc")});
    fails(3, "id 7 at byte 2; the model has 7 tokens", {"-m", "model", file("far.u16", std::string("\6\0\7\0", 4))});
    for (const std::string bad : {"{bad", "{:}", "{ : 1 }", "{\"", "{\"\\", "[1]", "}{", "{\"a\":,}"}) {
        fails(3, "-s " + bad + ": not a JSON object", {"-m", "model", text, "-p", "4", "-s", bad});
    }
    fails(3, "the engine did not take kv_other", {"-m", "model", text, "-p", "4", "-s", R"({"kv_other": tru})"});
    fails(3, "", {"-m", "broken", text, "-p", "4"});
    engine.fails_at = 6;
    fails(3, "cannot compute token 6", {"-m", "model", text, "-p", "4"});
    engine.fails_at = -1;
    engine.broken_at = 8;
    fails(3, "token 8 no finite likelihood", {"-m", "model", text, "-p", "4"});
    engine.broken_at = -1;
    const std::string nowhere = testing::TempDir() + "no_such_folder/result.json";
    EXPECT_EQ(run({"-m", "model", text, "-p", "4", "-o", nowhere}), 3);
    EXPECT_NE(errors.find(nowhere + ": " + std::generic_category().message(ENOENT)), std::string::npos) << errors;
}

#ifndef _WIN32
TEST_F(MnnPerplexity, ReplacesNothingThatIsNoRegularFile) {
    const std::string text = file("text", "gabbcafedcabbage"), result = file("pipe", ""), part = result + ".part";
    for (const std::string& pipe : {result, part}) {
        (void)std::remove(pipe.c_str());
        ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
        EXPECT_EQ(run({"-m", "model", text, "-p", "4", "-o", result}), 3);
        EXPECT_NE(errors.find(pipe + " is a pipe; a regular file expected"), std::string::npos) << errors;
        struct stat found;
        ASSERT_EQ(lstat(pipe.c_str(), &found), 0);
        EXPECT_TRUE(S_ISFIFO(found.st_mode)) << pipe;
        ASSERT_EQ(std::remove(pipe.c_str()), 0);
    }
    EXPECT_EQ(run({"-m", "model", text, "-p", "4", "-o", result}), 0) << errors;
}
#endif

}  // namespace
