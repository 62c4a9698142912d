// The adapter for MNN over the models whose layers differ: some have a sliding window, some read the cache of another one, and
// some have no KV cache.

#include <cmath>

#include "chat.hpp"

namespace {

using namespace support;

/// Six layers, the third and the sixth of which attend to all tokens.
settings with_windows(const std::string& keys, int element_bytes = 4) {
    settings how = configured(settings(), keys, R"("sliding_window": 40)");
    how.layers = 6;
    how.head_dim = 16;
    how.h_pack = 8;
    how.element_bytes = element_bytes;
    how.attention_type = "mix";
    how.window = 40;
    how.windowed = {0, 1, 3, 4};
    return how;
}

/// The same steps with the adapter and without.
class two_engines {
public:
    explicit two_engines(const settings& how) : host_(how), plain_(unpatched(how)) {}

    /// Returns the greatest difference of an output.
    double step(int count) {
        std::vector<token> come;
        for (int i = 0; i < count; ++i) {
            come.push_back({serial_++, static_cast<int>(host_.previous()) + i});
        }
        ours = host_.forward(come);
        const std::vector<layer_step> theirs = plain_.forward(come);
        double worst = 0;
        for (std::size_t layer = 0; layer < ours.size(); ++layer) {
            EXPECT_EQ(ours[layer].error, 0) << "layer " << layer;
            EXPECT_EQ(ours[layer].output.size(), theirs[layer].output.size());
            for (std::size_t i = 0; i < ours[layer].output.size(); ++i) {
                worst = std::max(worst, std::fabs(static_cast<double>(ours[layer].output[i]) - theirs[layer].output[i]));
            }
        }
        return worst;
    }

    mnn_stub::engine& host() { return host_; }
    mnn_stub::engine& plain() { return plain_; }
    std::vector<layer_step> ours;

private:
    static settings unpatched(settings how) {
        how.patched = false;
        return how;
    }

    mnn_stub::engine host_, plain_;
    int serial_ = 0;
};

const char* const all_quantised =
    "mnn-kv: all layers: K in 8 bits and V in 4, but for the first 16 tokens and the newest 25 to 95\n";

class MnnWindows : public testing::Test {
protected:
    void SetUp() override { mnn_stub::take_log(); }
};

TEST_F(MnnWindows, AreLearntFromTheMaskAndKeepNoMoreThanTheyShow) {
    for (const int bytes : {4, 2}) {
        two_engines chat(with_windows(R"("kv_memory_mb": 10)", bytes));
        for (const int count : {30, 1, 1, 60, 1, 5, 1, 100, 1, 1, 1}) {
            EXPECT_LT(chat.step(count), bytes == 4 ? 1e-5 : 4e-3) << "raw tokens";
        }
        for (int step = 0; step < 200; ++step) {
            ASSERT_LT(chat.step(1), bytes == 4 ? 1e-5 : 4e-3) << step;
            for (const int layer : {0, 1, 3, 4}) {
                EXPECT_LT(chat.ours[static_cast<std::size_t>(layer)].length, 40 + 64);
                EXPECT_TRUE(chat.ours[static_cast<std::size_t>(layer)].attended);
            }
            EXPECT_EQ(static_cast<std::size_t>(chat.ours[2].length), chat.host().previous()) << "it attends to all";
            EXPECT_FALSE(chat.ours[2].attended) << "raw tokens are MNN's";
        }
        EXPECT_NE(chat.host().metrics().find("4 of 6 layers attend to the newest 40 tokens"), std::string::npos);
        EXPECT_EQ(lines(mnn_stub::take_log()), "");
    }
}

TEST_F(MnnWindows, HaveFewerBitsWithKvQuant) {
    two_engines chat(with_windows(R"("kv_quant": "k8v4")"));
    for (const int count : {300, 1, 1, 20, 1, 1, 70, 1}) {
        EXPECT_LT(chat.step(count), 0.2) << "8 and 4 bits of numbers up to 1";
        EXPECT_TRUE(chat.ours[2].attended && chat.ours[4].attended);
    }
    EXPECT_LE(chat.ours[4].length, 40 + 64);
    EXPECT_EQ(lines(mnn_stub::take_log()), all_quantised);
}

TEST_F(MnnWindows, RefuseARollbackBehindWhatHasGone) {
    const settings how = with_windows(R"("kv_quant": "k8v4")");
    two_engines chat(how);
    for (const int count : {100, 100, 1}) {
        (void)chat.step(count);
    }
    chat.host().remove(150);
    EXPECT_EQ(chat.host().forward({{1000, 51}}, 0, failure::none, false).back().error, 5) << "INVALID_VALUE";
    const std::string log = lines(mnn_stub::take_log());
    EXPECT_NE(log.find("layer 0 has a window of 40 tokens, which has left those before position"), std::string::npos) << log;
    chat.host().clear();
    EXPECT_EQ(chat.host().forward({{1000, 0}, {1001, 1}})[0].length, 2) << "another chat begins";
}

TEST_F(MnnWindows, MustStayAsTheyWere) {
    settings how = with_windows(R"("kv_quant": "k8v4")"), other = how;
    other.windowed = {};
    mnn_stub::engine host(how);
    std::vector<token> come;
    for (int i = 0; i < 90; ++i) {
        come.push_back({i, i});
    }
    (void)host.forward(come);
    host.change_masks(other);
    EXPECT_EQ(host.forward({{100, 90}})[0].error, 5);
    EXPECT_NE(lines(mnn_stub::take_log()).find("its mask shows tokens before its sliding_window, unlike that of an earlier step"),
              std::string::npos);
}

TEST_F(MnnWindows, SaveAndOpenTheirChat) {
    const std::string path = testing::TempDir() + "windows.kv";
    std::remove(path.c_str());
    const settings how = with_windows(R"("kv_quant": "k8v4")");
    mnn_stub::engine host(how), other(how);
    const auto say = [](mnn_stub::engine& engine, int from, int count) {
        std::vector<token> come;
        for (int i = 0; i < count; ++i) {
            come.push_back({from + i, from + i});
        }
        return engine.forward(come);
    };
    (void)say(host, 0, 200);
    (void)say(host, 200, 3);
    ASSERT_TRUE(host.command(R"({"kv_save": ")" + path + R"("})")) << lines(mnn_stub::take_log());
    const std::vector<layer_step> here = say(host, 203, 1);
    ASSERT_TRUE(host.command(R"({"kv_load": ")" + path + R"("})")) << lines(mnn_stub::take_log());
    const std::vector<layer_step> again = say(host, 203, 1);
    for (std::size_t layer = 0; layer < here.size(); ++layer) {
        EXPECT_TRUE(here[layer].output == again[layer].output) << "layer " << layer;
    }
    ASSERT_TRUE(host.command(R"({"kv_save": ")" + path + R"(", "kv_overwrite": true})"));
}

TEST_F(MnnWindows, LayersThatReadAnothersCacheAttendToItsBlocks) {
    for (const char* keys : {R"("kv_quant": "k8v4")", R"("kv_memory_mb": 10)"}) {
        const bool quantises = std::string(keys).find("kv_quant") != std::string::npos;
        settings how = configured(settings(), keys);
        how.layers = 5;
        how.head_dim = 16;
        how.h_pack = 8;
        how.reads = {-1, -1, -1, 1, 2};
        two_engines chat(how);
        for (const int count : {150, 1, 1, 40, 1, 1, 1}) {
            EXPECT_LT(chat.step(count), quantises ? 0.2 : 1e-5);
            EXPECT_EQ(chat.ours[3].attended, quantises);
            EXPECT_EQ(chat.ours[1].attended, quantises);
        }
        EXPECT_LT(chat.ours[1].length, quantises ? 150 : 1000);
        EXPECT_EQ(lines(mnn_stub::take_log()), quantises ? all_quantised : "");
    }
}

TEST_F(MnnWindows, StatesOfLinearAttentionAreSavedWithTheChat) {
    const std::string path = testing::TempDir() + "hybrid.kv";
    std::remove(path.c_str());
    settings how = configured(settings(), R"("kv_quant": "k8v4")", R"("layer_nums": 5)");
    how.layer_nums = 5;
    how.linear = 3;
    how.head_dim = 16;
    how.h_pack = 8;
    const auto say = [](mnn_stub::engine& engine, int from, int count) {
        std::vector<token> come;
        for (int i = 0; i < count; ++i) {
            come.push_back({from + i, from + i});
        }
        return engine.forward(come);
    };
    mnn_stub::engine host(how);
    (void)say(host, 0, 150);
    ASSERT_TRUE(host.command(R"({"kv_save": ")" + path + R"("})")) << lines(mnn_stub::take_log());
    (void)say(host, 150, 3);
    const std::vector<char> states[] = {host.state(0), host.state(1), host.state(2)};
    (void)say(host, 153, 9);
    ASSERT_TRUE(host.command(R"({"kv_load": ")" + path + R"("})")) << lines(mnn_stub::take_log());
    (void)say(host, 150, 3);
    for (int layer = 0; layer < 3; ++layer) {
        EXPECT_TRUE(host.state(layer) == states[layer]) << "layer " << layer;
    }
    host = mnn_stub::engine(settings());
    settings fewer = how;
    fewer.linear = 2;
    fewer.layer_nums = 4;
    fewer.config = configured(settings(), R"("kv_quant": "k8v4")", R"("layer_nums": 4)").config;
    mnn_stub::engine other(fewer);
    mnn_stub::take_log();
    EXPECT_FALSE(other.command(R"({"kv_load": ")" + path + R"("})"));
    EXPECT_NE(lines(mnn_stub::take_log()).find("75 bytes of states of linear attention; 49 expected; a new chat begins"),
              std::string::npos);
}

TEST_F(MnnWindows, LayersWithoutAKvCacheGetNoShare) {
    settings how = configured(settings(), R"("kv_memory_mb": 4)", R"("layer_nums": 24)");
    how.head_dim = 16;
    how.h_pack = 8;
    how.layer_nums = 24;
    mnn_stub::engine hybrid(how);
    how.config = configured(settings(), R"("kv_memory_mb": 4)").config;
    how.layer_nums = how.layers;
    mnn_stub::engine dense(how);
    const auto raw_tokens = [](mnn_stub::engine& engine) {
        (void)engine.forward({{0, 0}, {1, 1}});
        return json_reader(engine.metrics()).read()["memory"]["raw_tokens"].number;
    };
    EXPECT_GT(raw_tokens(hybrid), 1000.0);
    EXPECT_EQ(raw_tokens(hybrid), raw_tokens(dense));
}

}  // namespace
