// The adapter for MNN (integrations/mnn/kv_plugin.hpp) in a stand-in for MNN: attention outputs, kept tokens, printed
// lines, and cases in which MNN must be unchanged.

#include "chat.hpp"

namespace {

using namespace support;

class MnnAdapter : public testing::Test {
protected:
    void SetUp() override { mnn_stub::take_log(); }
};

/// An attention shape per number of threads, with padding in heads, dims and blocks.
settings shape(int threads, bool flash, int element_bytes = 4) {
    settings how;
    how.threads = threads;
    how.flash = flash;
    how.element_bytes = element_bytes;
    how.heads = threads == 3 ? 6 : std::max(4, threads);
    if (element_bytes == 2) {
        how.h_pack = 8;
        how.l_pack = threads > 2 ? 2 : 1;
        how.tile_pack = threads > 4 ? 4 : 8;
    }
    return how;
}

// Nothing enabled.

TEST_F(MnnAdapter, DoesNothingUnlessEnabled) {
    for (const bool flash : {true, false}) {
        settings how = configured(shape(2, flash), R"("kv_h2o_enable": false, "kv_lossless_enable": false)");
        chat chat(how);
        ASSERT_NO_FATAL_FAILURE(live(chat));
        EXPECT_TRUE(chat.is_untouched());
        EXPECT_FALSE(chat.last(0).hooked);
        EXPECT_EQ(chat.host().metrics(), "");
        EXPECT_EQ(lines(mnn_stub::take_log()), "");
    }
}

// Lossless.

class MnnAdapterLossless : public testing::TestWithParam<std::tuple<std::string, int, bool, int>> {};

TEST_P(MnnAdapterLossless, ChangesNoOutput) {
    mnn_stub::take_log();
    const auto& [mode, workers, flash, threads] = GetParam();
    const int bytes = threads == 8 ? 2 : 4;
    chat chat(configured(shape(threads, flash, bytes), compressing(mode, workers)));
    ASSERT_NO_FATAL_FAILURE(live(chat));
    EXPECT_TRUE(chat.last(0).hooked);
    EXPECT_GT(chat.metric("h2o_lossless_raw_bytes"), 0.0) << "something was compressed";
    if (mode == "store") {
        if (workers == 0) {
            EXPECT_GT(chat.metric("h2o_lossless_restored_blocks"), 0.0) << "and taken out of the caches";
        }
    } else {
        EXPECT_TRUE(chat.metric("h2o_lossless_restored_blocks") <= 0.0);
    }
    chat.clear();
    ASSERT_NO_FATAL_FAILURE(chat.say(120)) << "a new chat";
    ASSERT_NO_FATAL_FAILURE(chat.decode(10));
    EXPECT_EQ(lines(mnn_stub::take_log()), "");
}

INSTANTIATE_TEST_SUITE_P(EveryWay, MnnAdapterLossless,
                         testing::Combine(testing::Values("full", "store"), testing::Values(0, 1), testing::Bool(),
                                          testing::Values(1, 3, 8)),
                         [](const auto& tested) {
                             return std::get<0>(tested.param) + "_workers" + std::to_string(std::get<1>(tested.param)) +
                                    (std::get<2>(tested.param) ? "_flash" : "_no_flash") + "_threads" +
                                    std::to_string(std::get<3>(tested.param));
                         });

TEST_F(MnnAdapter, KeepsColdTokensOutOfTheCacheBetweenSteps) {
    chat chat(configured(shape(2, true), compressing("store", 0)));
    ASSERT_NO_FATAL_FAILURE(chat.say(300));
    ASSERT_NO_FATAL_FAILURE(chat.decode(12));
    EXPECT_FALSE(chat.is_untouched()) << "tokens that are compressed read as zero";
    EXPECT_GT(chat.metric("h2o_lossless_ratio"), 1.0);
}

// Eviction.

class MnnAdapterEviction : public testing::TestWithParam<std::tuple<std::string, bool, int, int>> {};

TEST_P(MnnAdapterEviction, ChangesNoKeptToken) {
    // Each step's output is that of MNN with only the kept tokens: see chat::judge.
    mnn_stub::take_log();
    const auto& [mode, flash, threads, bytes] = GetParam();
    settings how = shape(threads, flash, bytes);
    how.layers = 3;
    const std::string lossless = R"("kv_lossless_scope": "front_n_and_h2o_kept")";
    chat chat(mode.empty() ? configured(how, evicting())
                           : configured(how, evicting(), compressing(mode, 1) + ", " + lossless));
    ASSERT_NO_FATAL_FAILURE(live(chat));
    EXPECT_EQ(chat.held(0), chat.length()) << "below kv_h2o_layer_start";
    for (const int layer : {1, 2}) {
        EXPECT_LT(chat.held(layer), chat.length() * 3 / 4);
    }
    EXPECT_GT(chat.metric("h2o_lossy_ratio"), 1.3);
    EXPECT_GT(chat.metric("h2o_total_evict_tokens"), 100.0);
    chat.clear();
    ASSERT_NO_FATAL_FAILURE(chat.say(120)) << "a new chat";
    EXPECT_EQ(chat.held(1), 120);
    ASSERT_NO_FATAL_FAILURE(chat.decode(10));
    EXPECT_LT(chat.held(1), 100);
    EXPECT_EQ(lines(mnn_stub::take_log()), "");
}

INSTANTIATE_TEST_SUITE_P(EveryWay, MnnAdapterEviction,
                         testing::Combine(testing::Values("", "store"), testing::Bool(), testing::Values(1, 4),
                                          testing::Values(4, 2)),
                         [](const auto& tested) {
                             return (std::get<0>(tested.param).empty() ? "alone" : "with_store") +
                                    std::string(std::get<1>(tested.param) ? "_flash" : "_no_flash") + "_threads" +
                                    std::to_string(std::get<2>(tested.param)) + "_bytes" +
                                    std::to_string(std::get<3>(tested.param));
                         });

TEST_F(MnnAdapter, EvictsRightAfterThePromptByDefault) {
    chat chat(configured(shape(2, true), evicting()));
    ASSERT_NO_FATAL_FAILURE(chat.say(200));
    EXPECT_EQ(chat.held(1), 200);
    ASSERT_NO_FATAL_FAILURE(chat.say(1));
    EXPECT_LT(chat.held(1), 140) << "eight queries of the prompt are scored";
    for (const int serial : {0, 7, 176, 200}) {
        EXPECT_TRUE(chat.holds(1, serial)) << "token " << serial << " is among the first or the last";
    }

    class chat other(configured(shape(2, true), evicting(R"("kv_h2o_prefill_queries": 0)")));
    ASSERT_NO_FATAL_FAILURE(other.say(200));
    ASSERT_NO_FATAL_FAILURE(other.say(1));
    EXPECT_EQ(other.held(1), 201) << "no token has a score yet";
    ASSERT_NO_FATAL_FAILURE(other.decode(12));
    EXPECT_LT(other.held(1), 140);
}

TEST_F(MnnAdapter, ContinuesWithALayerThatLostAllItsTokens) {
    // The tokens that the chat keeps were evicted: MNN gets an empty cache in the middle of a chat.
    for (const bool stores : {false, true}) {
        settings how = shape(2, true);
        how.layers = 6;
        const std::string config = evicting(R"("kv_h2o_sink_tokens": 0)");
        chat chat(stores ? configured(how, config, compressing("store", 0)) : configured(how, config));
        ASSERT_NO_FATAL_FAILURE(chat.say(200));
        ASSERT_NO_FATAL_FAILURE(chat.decode(5));
        int empty = 0;
        for (int layer = 1; layer < 6; ++layer) {
            empty += chat.holds(layer, 0) ? 0 : 1;
        }
        ASSERT_GT(empty, 0);
        chat.erase(3, chat.length());
        ASSERT_NO_FATAL_FAILURE(chat.say(2));
        EXPECT_EQ(chat.held(0), 5);
        for (int layer = 1; layer < 6; ++layer) {
            empty -= chat.held(layer) == 2 ? 1 : 0;
        }
        EXPECT_EQ(empty, 0);
        ASSERT_NO_FATAL_FAILURE(chat.say(150));
        ASSERT_NO_FATAL_FAILURE(chat.decode(10));
        EXPECT_LT(chat.held(1), chat.held(0));
    }
}

TEST_F(MnnAdapter, ClearsAChatWhoseFrontIsErasedAsMnnDoes) {
    // MNN starts a new chat but counts the tokens that should be left; later edits are of the end.
    for (const settings& how : {configured(shape(2, true), compressing("store", 0)),
                                configured(shape(2, true), evicting(), compressing("store", 1))}) {
        chat chat(how);
        ASSERT_NO_FATAL_FAILURE(chat.say(150));
        ASSERT_NO_FATAL_FAILURE(chat.decode(5));
        chat.erase(0, 25);
        ASSERT_NO_FATAL_FAILURE(chat.say(90));
        EXPECT_EQ(chat.length(), 90);
        EXPECT_EQ(chat.forgotten(), 130);
        ASSERT_NO_FATAL_FAILURE(chat.decode(12));
        chat.edit(7);
        ASSERT_NO_FATAL_FAILURE(chat.say(60));
        chat.edit(50, {{4, 10}, {20, 30}});
        ASSERT_NO_FATAL_FAILURE(chat.decode(12));
        chat.clear();
        ASSERT_NO_FATAL_FAILURE(chat.say(150));
        EXPECT_EQ(chat.forgotten(), 0);
    }
}

TEST_F(MnnAdapter, TakesEqualCountsForNoFailure) {
    // KVMeta has the same number before and after a step that adds as many as it removes. MNN's count may also exceed
    // the tokens that exist.
    for (const bool forgets : {false, true}) {
        SCOPED_TRACE(forgets ? "with tokens that MNN only counts" : "");
        chat chat(configured(shape(2, true), compressing("store", 0)));
        ASSERT_NO_FATAL_FAILURE(chat.say(155));
        if (forgets) {
            chat.erase(0, 25);
            ASSERT_NO_FATAL_FAILURE(chat.say(25)) << "as many as were erased";
            ASSERT_NO_FATAL_FAILURE(chat.say(90));
        }
        for (int draft = 0; draft < 3; ++draft) {
            chat.edit(3);
            ASSERT_NO_FATAL_FAILURE(chat.say(3));
            chat.edit(5, {{1, 2}});
            ASSERT_NO_FATAL_FAILURE(chat.say(3));
        }
        const int before = static_cast<int>(chat.host().previous());
        ASSERT_NO_FATAL_FAILURE(chat.say(1));
        chat.clear();
        ASSERT_NO_FATAL_FAILURE(chat.say(before)) << "a new chat that is as long as the last was a step ago";
        ASSERT_NO_FATAL_FAILURE(chat.decode(3));
    }
}

TEST_F(MnnAdapter, PassesOnTheNumbersOfTheModelInKvMeta) {
    settings how = shape(2, true);
    how.attn_scale = 0.75f;
    chat chat(configured(how, compressing("store", 0)));
    ASSERT_NO_FATAL_FAILURE(live(chat)) << "attention reads it from the KVMeta of its step";
}

// Growth.

TEST_F(MnnAdapter, GrowsCachesByAQuarterAndGivesTheTailBack) {
    settings how = configured(shape(2, true), compressing("full", 0));
    how.heads = how.kv_heads = 1;
    how.head_dim = 64;
    chat chat(how);
    ASSERT_NO_FATAL_FAILURE(chat.say(600));
    EXPECT_EQ(chat.last(0).capacity, 664);
    ASSERT_NO_FATAL_FAILURE(chat.say(65));
    EXPECT_EQ(chat.last(0).capacity, 665 + 665 / 4);
#ifdef __linux__
    // The stub's memory is all ones; pages that were released are zero.
    const bytes ours = chat.host().buffers(0), plain = chat.plain().buffers(0);
    EXPECT_GT(std::count(ours.begin(), ours.end(), 0), std::count(plain.begin(), plain.end(), 0) + 32768);
#endif
    ASSERT_NO_FATAL_FAILURE(chat.say(166));
    EXPECT_EQ(chat.last(0).capacity, 831) << "full";
    ASSERT_NO_FATAL_FAILURE(chat.decode(1));
    EXPECT_EQ(chat.last(0).capacity, 832 + 832 / 4);

    how.mapped = true;
    class chat mapped(how);
    ASSERT_NO_FATAL_FAILURE(mapped.say(600));
    ASSERT_NO_FATAL_FAILURE(mapped.say(65));
    EXPECT_EQ(mapped.last(0).capacity, 665 + 64) << "a file's tail would not go back";
    EXPECT_GT(mapped.metric("h2o_lossless_raw_bytes"), 0.0);
}

// Off.

struct refused {
    const char* name;
    settings how;
    std::string line;
};

std::vector<refused> all_refused() {
    const std::string both = evicting() + ", " + compressing("store", 0);
    const settings usual = configured(shape(2, true), both);
    std::vector<refused> all;
    const auto add = [&](const char* name, const std::string& line) -> settings& {
        all.push_back({name, usual, line});
        all.back().how.layers = 4;
        return all.back().how;
    };
    settings& no_mode = add("float_keys_and_tq", "layout->key_dtype is F32 and value_dtype TQ3");
    no_mode.head_dim = 32;
    no_mode.value_quant_mode = 2;
    for (const int mode : {4, 6}) {
        const char* const why =
            "attention_mode is 4 or 6: MNN overruns its buffer of softmax weights without flash attention";
        settings& tq = add(mode == 4 ? "tq3_without_flash" : "tq4_without_flash", why);
        tq.head_dim = 32;
        tq = tq.in_mode(mode);
    }
    settings& dims = add("tq_of_48_dims", "layout->head_dim is 48 where key_dtype is TQ4; a multiple of 32 expected");
    dims.head_dim = 48;
    dims = dims.in_mode(14);
    settings& unit = add("int8_unit", "layout->int8->l_pack is 4 and h_pack 16; a unit of MNN expected");
    unit.h_pack_8 = 16;
    unit = unit.in_mode(10);
    add("bytes", "an element of the cache has 1 bytes").element_bytes = 1;
    add("windows_and_h2o", R"(attention_type is "mix": its masks count the tokens that kv_h2o_enable evicts)").attention_type = "mix";
    settings& no_width = add("windows_without_a_width", R"(attention_type is "mix", and the config has no sliding_window)");
    no_width = configured(no_width, R"("kv_memory_mb": 10)");
    no_width.attention_type = "mix";
    add("attention_type", R"(attention_type is "chunked", not "full", "mix" or "sliding")").attention_type = "chunked";
    add("glm_mask", R"(attention_mask is "glm", not "float")").attention_mask = "glm";
    settings& wrong = add("wrong_type", "kv_h2o_block_tokens");
    wrong = configured(wrong, both, R"("kv_h2o_block_tokens": "x")");
    settings& small = add("budget_below_the_least", "a cache is refused: the budget is 0.1 MB");
    small.head_dim = 64;
    small = configured(small, R"("kv_memory_mb": 0.1)");
    add("wrong_library", "kv_library is 7; the path of a file expected").config = R"({"kv_memory_mb": 64, "kv_library": 7})";
    add("all_caches_shared", "a cache is read by more than one layer").reads = {-1, 0, -1, 2};
    return all;
}

class MnnAdapterRefusal : public testing::TestWithParam<refused> {};
void PrintTo(const refused& r, std::ostream* out) { *out << r.name; }

TEST_P(MnnAdapterRefusal, IsOneLineAndMnnAlone) {
    mnn_stub::take_log();
    mnn_stub::take_outlooks();
    mnn_stub::engine host(GetParam().how);
    const std::vector<std::string> log = mnn_stub::take_log();
    ASSERT_EQ(log.size(), 1u) << "while it is loaded: " << lines(log);
    EXPECT_NE(log[0].find(GetParam().line), std::string::npos) << log[0];
    EXPECT_EQ(log[0].find("mnn-kv: off where "), 0u) << log[0];
    const std::string why = log[0].substr(std::string("mnn-kv: off where ").size());
    std::string quoted;
    for (const char letter : why) {
        quoted += letter == '"' ? "\\\"" : std::string(1, letter);
    }
    const auto says_off = [&] {
        EXPECT_EQ(host.metrics(), "{\"off\":\"" + quoted + "\",\"memory\":{\"state\":\"off\"}}");
        EXPECT_EQ(host.chunk_of(4096, 0), 0) << "MNN's own";
        for (const char* command : {R"({"kv_trim_mb": 1})", R"({"kv_park": true})", R"({"kv_save": "x"})",
                                    R"({"kv_load": "x"})"}) {
            EXPECT_FALSE(host.command(command)) << command;
            EXPECT_EQ(lines(mnn_stub::take_log()), "error: mnn-kv: the command is not carried out: off where " + why + "\n");
        }
    };
    says_off();
    settings plain = GetParam().how;
    plain.patched = false;
    mnn_stub::engine other(plain);
    int serial = 0;
    const auto step = [&](int count) {
        std::vector<token> come;
        for (int i = 0; i < count; ++i) {
            come.push_back({serial++, static_cast<int>(host.previous()) + i});
        }
        const std::vector<layer_step> ours = host.forward(come), theirs = other.forward(come);
        for (std::size_t layer = 0; layer < ours.size(); ++layer) {
            EXPECT_TRUE(ours[layer].output == theirs[layer].output);
            EXPECT_TRUE(host.buffers(static_cast<int>(layer)) == other.buffers(static_cast<int>(layer)));
            EXPECT_EQ(ours[layer].capacity, theirs[layer].capacity);
        }
    };
    step(150);
    for (int i = 0; i < 75; ++i) {
        step(1);
    }
    for (const std::size_t begin : {100, 0}) {
        host.erase_history(begin, begin + 30);
        other.erase_history(begin, begin + 30);
        step(40);
    }
    host.clear();
    other.clear();
    step(50);
    step(1);
    EXPECT_EQ(lines(mnn_stub::take_log()), "") << "it is said once";
    says_off();
}

TEST_P(MnnAdapterRefusal, FailsEachStepWhereItIsRequired) {
    mnn_stub::take_log();
    settings how = GetParam().how;
    how.config.insert(how.config.rfind('}'), R"(, "kv_required": true)");
    mnn_stub::engine host(how);
    EXPECT_FALSE(host.is_loaded());
    for (int step = 0; step < 3; ++step) {
        const std::vector<layer_step> layers = host.forward({{step, 0}});
        EXPECT_TRUE(std::any_of(layers.begin(), layers.end(), [](const layer_step& layer) {
            return layer.error == 2;  // MNN's NOT_SUPPORT
        })) << "step " << step;
    }
    const std::vector<std::string> log = mnn_stub::take_log();
    ASSERT_EQ(log.size(), 1u) << lines(log);
    EXPECT_NE(log[0].find(GetParam().line), std::string::npos) << log[0];
}

TEST_F(MnnAdapter, FailsEachStepWhereItIsRequiredAndNoKeySwitchesItOn) {
    for (const std::string more : {"", R"(, "kv_dump_folder": "/nowhere/dump")"}) {
        settings how;
        how.config = R"({"kv_memroy_mb": 64, "kv_required": true)" + more + "}";
        mnn_stub::engine host(how);
        for (int step = 0; step < 3; ++step) {
            EXPECT_EQ(host.forward({{step, 0}})[0].error, 2) << "MNN's NOT_SUPPORT, in step " << step;
        }
        EXPECT_EQ(lines(mnn_stub::take_log()),
                  "mnn-kv: kv_memroy_mb is not a key of this version; did you mean kv_memory_mb?\n"
                  "mnn-kv: off where kv_required is true, and no key switches mnn-kv on\n");
    }
}

INSTANTIATE_TEST_SUITE_P(EachReason, MnnAdapterRefusal, testing::ValuesIn(all_refused()),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST_F(MnnAdapter, LeavesOnlyTheSharedCacheAlone) {
    settings how = configured(shape(2, true), compressing("store", 0));
    how.layers = 4;
    how.reads = {-1, -1, 1, -1};
    chat chat(how);
    ASSERT_NO_FATAL_FAILURE(live(chat));
    EXPECT_FALSE(chat.last(2).attended) << "MNN attends";
    const bytes ours = chat.host().buffers(1);
    EXPECT_TRUE(same(ours, chat.plain().buffers(1)));
    EXPECT_FALSE(same(chat.host().buffers(0), chat.plain().buffers(0)));
    EXPECT_FALSE(same(chat.host().buffers(3), chat.plain().buffers(3)));
    const json metrics = json_reader(chat.host().metrics()).read();
    const std::string why = "a cache is read by more than one layer, and kv_h2o_enable or kv_lossless_enable is on";
    EXPECT_EQ(metrics["off"].text, why);
    EXPECT_GT(metrics["h2o_lossless_raw_bytes"].number, 0.0) << "of the other caches";
    EXPECT_EQ(lines(mnn_stub::take_log()), "mnn-kv: off where " + why + "\n");
}

TEST_F(MnnAdapter, LeavesCachesAloneBeyondLayerNums) {
    settings how = configured(shape(2, true), compressing("store", 0));
    how.layers = 4;
    how.layer_nums = 2;
    how.steps_at_load = false;  // no step counts the caches
    chat chat(how);
    ASSERT_NO_FATAL_FAILURE(live(chat));
    for (int layer = 0; layer < 4; ++layer) {
        EXPECT_EQ(same(chat.host().buffers(layer), chat.plain().buffers(layer)), layer >= 2) << "layer " << layer;
    }
    EXPECT_EQ(lines(mnn_stub::take_log()), "mnn-kv: off where a model has more caches than layer_nums says\n");
}

TEST_F(MnnAdapter, LeavesAPrefixCacheFileAloneUntilThePromptThatClearsIt) {
    for (const bool reads : {false, true}) {
        SCOPED_TRACE(reads ? "read" : "written");
        chat chat(configured(shape(2, true), compressing("store", 0)));
        reads ? chat.read_prefix(100) : chat.write_prefix();
        ASSERT_NO_FATAL_FAILURE(chat.say(150));
        ASSERT_NO_FATAL_FAILURE(chat.decode(75));
        ASSERT_NO_FATAL_FAILURE(chat.say(70));
        EXPECT_TRUE(chat.is_untouched());
        EXPECT_EQ(lines(mnn_stub::take_log()),
                  "mnn-kv: off where the cache is a prefix cache file, until a prompt that clears it\n");
        EXPECT_NE(chat.host().metrics().find("\"state\":\"off\""), std::string::npos) << chat.host().metrics();
        chat.clear();
        ASSERT_NO_FATAL_FAILURE(chat.say(150));
        ASSERT_NO_FATAL_FAILURE(chat.decode(12));
        EXPECT_FALSE(chat.is_untouched()) << "on again";
        EXPECT_EQ(chat.host().metrics().find("off\""), std::string::npos) << chat.host().metrics();
        EXPECT_EQ(lines(mnn_stub::take_log()), "");
    }
}

// What a config does, and what is wrong with it.

/// The lines of a model with this config: what it does, then the others.
std::pair<std::string, std::string> lines_of(const std::string& keys, const std::string& more = "") {
    mnn_stub::take_log();
    mnn_stub::take_outlooks();
    settings how = configured(settings(), keys, more);
    how.layer_nums = 30;
    how.steps_at_load = false;  // no step counts the caches
    mnn_stub::engine engine(how);
    (void)engine.forward({{0, 0}, {1, 1}});
    (void)engine.forward({{2, 2}});
    return {lines(mnn_stub::take_outlooks()), lines(mnn_stub::take_log())};
}

TEST_F(MnnAdapter, SaysInOneLineWhatAConfigDoes) {
    typedef std::pair<std::string, std::string> both;
    EXPECT_EQ(lines_of(R"("kv_h2o_enable": true)"),
              both("mnn-kv: layers 2 to 29: one token in 3.5 stays, from 1,152 tokens on; layers 0 and 1 keep all\n", ""));
    EXPECT_EQ(lines_of(R"("kv_chat_enable": true)"),
              both("mnn-kv: all layers keep all tokens; the chat can be saved and loaded\n", ""));
    const both bounded = lines_of(R"("kv_memory_mb": 64)");
    EXPECT_EQ(bounded.first.find("mnn-kv: 64 MB, as far as raw tokens hold it, "), 0u) << "heads of 12 dims: " << bounded.first;
    EXPECT_EQ(bounded.first.find('\n'), bounded.first.size() - 1) << bounded.first;
    EXPECT_EQ(bounded.second, "");
    EXPECT_EQ(lines_of(R"("kv_memory_mb": 0.0)"), both("", ""));
    EXPECT_EQ(lines_of(R"("kv_dump_folder": "")"), both("", ""));
    EXPECT_EQ(lines_of(R"("kv_h2o_enable": false, "kv_h2o_sink_tokens": 4)"), both("", "")) << "switched off";
    EXPECT_EQ(lines_of(R"("temperature": 0.5)"), both("", ""));
}

TEST_F(MnnAdapter, NamesEveryKeyWithoutEffect) {
    const std::string no = " is not a key of this version\n";
    const std::vector<std::pair<std::string, std::string>> mistakes = {
        {R"("kv_h2o_enabled": true)",
         "kv_h2o_enabled is not a key of this version; did you mean kv_h2o_enable?\n"},
        {R"("kv_memroy_mb": 64)", "kv_memroy_mb is not a key of this version; did you mean kv_memory_mb?\n"},
        {R"("kv_chat_enabled": true)", "kv_chat_enabled" + no},
        {R"("kv_savee": "x.kv")", "kv_savee" + no},
        {R"("kv_losslessmode": "store")", "kv_losslessmode" + no},
        {R"("kv_rope_theta": 10000)", "kv_rope_theta" + no},
        {R"("kv_lossless": true)", "kv_lossless" + no},
        {R"("kv_load": "x.kv")", "kv_load is a command, which a config does not carry out\n"},
        {R"("kv_h2o_sink_tokens": "x")",
         "off where the config is refused: kv_h2o_sink_tokens is \"x\"; a whole number from 0 to 2147483647 expected\n"},
    };
    for (const auto& mistake : mistakes) {
        EXPECT_EQ(lines_of(mistake.first).second, "mnn-kv: " + mistake.second) << "without a session";
        EXPECT_EQ(lines_of(R"("kv_chat_enable": true)", mistake.first).second, "mnn-kv: " + mistake.second);
    }
    const char* const wrong[][2] = {{R"("kv_chat_enable": "yes")", R"(kv_chat_enable is "yes"; true or false expected)"},
                                    {R"("kv_required": "false")", R"(kv_required is "false"; true or false expected)"},
                                    {R"("kv_required": null)", "kv_required is null; true or false expected"},
                                    {R"("kv_memory_base": "a.kv")",
                                     "kv_memory_base is not for MNN: load the chat with kv_load, and save to another file"},
                                    {R"("kv_library": 5)", "kv_library is 5; the path of a file expected, in UTF-8"},
                                    {R"("kv_library": "/opt/\u0062")",
                                     R"(kv_library is "/opt/\u0062"; the path of a file expected, in UTF-8)"},
                                    {R"("kv_library": "/opt/a\tb")",
                                     R"(kv_library is "/opt/a\tb"; the path of a file expected, in UTF-8)"}};
    for (const auto& key : wrong) {
        EXPECT_EQ(lines_of(evicting(), key[0]).second, std::string("mnn-kv: off where ") + key[1] + "\n");
    }
}

TEST_F(MnnAdapter, NamesKeysThatAreNearlyItsOwn) {
    for (const char* const key : {"KV_MEMORY_MB", "kv-memory-mb", "kvmemory_mb", "Kv_memory_mb"}) {
        EXPECT_EQ(lines_of(std::string("\"") + key + "\": 64").second,
                  std::string("mnn-kv: ") + key + " is not a key of mnn-kv; did you mean kv_memory_mb?\n");
    }
    EXPECT_EQ(lines_of(R"("kv_library": 7)").second,
              "mnn-kv: off where kv_library is 7; the path of a file expected, in UTF-8\n");
    EXPECT_EQ(lines_of(R"("kvcache_mmap": true, "KVCACHE_LIMIT": 5)").second, "") << "MNN's";
}

TEST_F(MnnAdapter, SetsTheChunkOfPromptsThatABudgetDoesNotHoldRaw) {
    settings how;
    how.head_dim = 64;
    const auto engine_of = [&how](const std::string& keys, const std::string& more = "") {
        return mnn_stub::engine(configured(how, keys, more));
    };
    // Two layers of 1,024 bytes a token each, and working memory of at least 512 KiB.
    const mnn_stub::engine bounded = engine_of(R"("kv_memory_mb": 4)");
    EXPECT_NE(lines(mnn_stub::take_outlooks()).find("a prompt beyond the raw tokens is computed 256 tokens at a time\n"),
              std::string::npos);
    EXPECT_EQ(bounded.chunk_of(100000, 0), 256);
    EXPECT_EQ(bounded.chunk_of(2000, 0), 256) << "4.1 MB raw";
    EXPECT_EQ(bounded.chunk_of(600, 0), 0) << "1.2 MB raw, which MNN computes as without mnn-kv";
    EXPECT_EQ(bounded.chunk_of(100000, 32), 32) << "the config's";
    EXPECT_EQ(engine_of(R"("kv_chat_enable": true)").chunk_of(100000, 0), 0) << "no budget";
    EXPECT_EQ(engine_of(R"("kv_memory_mb": 64, "chunk": 512)").chunk_of(100000, 512), 512);
    EXPECT_EQ(lines(mnn_stub::take_log()), "") << "64 MB hold more";
    (void)engine_of(R"("kv_memory_mb": 4, "chunk": 4096)");
    EXPECT_EQ(lines(mnn_stub::take_log()).find("mnn-kv: chunk is 4096: a prompt exceeds the budget, which holds "), 0u);
    EXPECT_EQ(lines(mnn_stub::take_outlooks()).find("256 tokens at a time"), std::string::npos);
}

}  // namespace
