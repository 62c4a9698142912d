// The adapter for MNN over a model's life: failed steps, models made and destroyed, reports, random schedules.

#include "chat.hpp"
#include "mnnkv_host.hpp"

namespace {

using namespace support;

class MnnAdapterLife : public testing::Test {
protected:
    void SetUp() override { mnn_stub::take_log(); }
};

settings lossless(int workers = 0) { return configured(settings(), compressing("store", workers)); }
settings lossy(const std::string& more = "") { return configured(settings(), evicting(more)); }

// Failed ops.

TEST_F(MnnAdapterLife, MendsAStepThatLeftEarly) {
    for (const settings& how : {lossless(), lossless(1), lossy()}) {
        chat chat(how);
        chat.fail(150, 1, failure::after_append, false);
        chat.fail(150, 0, failure::before_room, false);
        ASSERT_NO_FATAL_FAILURE(chat.say(150));
        for (int round = 0; round < 6; ++round) {
            SCOPED_TRACE("round " + std::to_string(round));
            ASSERT_NO_FATAL_FAILURE(chat.decode(5));
            chat.fail(1 + round % 3, round % 2, failure::after_append, true);
            ASSERT_NO_FATAL_FAILURE(chat.say(1 + round)) << "the tokens are in the cache and count";
            chat.fail(round == 4 ? 70 : 2, round % 2, failure::after_append, false);
            ASSERT_NO_FATAL_FAILURE(chat.say(1 + round)) << "the engine does not count them";
            chat.fail(2, round % 2, failure::before_room, false);
        }
        ASSERT_NO_FATAL_FAILURE(live(chat));
        EXPECT_EQ(lines(mnn_stub::take_log()), "");
    }
}

TEST_F(MnnAdapterLife, AbortsAStepThatTheEngineDoesNotCount) {
    // Tokens of the step are neither compressed nor scored, and the step does not advance the layer's clock.
    settings how = lossless();
    how.layers = 1;
    chat failing(how), smooth(how);
    for (chat* chat : {&failing, &smooth}) {
        ASSERT_NO_FATAL_FAILURE(chat->say(100));
    }
    failing.fail(200, 0, failure::after_append, false);
    for (chat* chat : {&failing, &smooth}) {
        ASSERT_NO_FATAL_FAILURE(chat->decode(20));
    }
    EXPECT_GT(smooth.metric("h2o_lossless_raw_bytes"), 0.0);
    EXPECT_EQ(failing.metric("h2o_lossless_raw_bytes"), smooth.metric("h2o_lossless_raw_bytes"));

    how = lossy(R"("kv_h2o_layer_start": 0)");
    how.layers = 1;
    chat counted(how), aborted(how);
    for (chat* chat : {&counted, &aborted}) {
        ASSERT_NO_FATAL_FAILURE(chat->say(60));
    }
    for (int step = 0; step < 3; ++step) {
        aborted.fail(1, 0, failure::after_append, false);
    }
    for (int step = 0; step < 60 && !HasFailure(); ++step) {
        ASSERT_NO_FATAL_FAILURE(counted.say(1));
        ASSERT_NO_FATAL_FAILURE(aborted.say(1));
        EXPECT_EQ(aborted.held(0), counted.held(0)) << "evicts in the same steps";
    }
    EXPECT_LT(counted.held(0), counted.length());
}

TEST_F(MnnAdapterLife, GivesMnnItsChunkBackAfterAGrowthThatFailed) {
    chat chat(lossless());
    ASSERT_NO_FATAL_FAILURE(chat.say(300));
    for (int tries = 0; tries < 3; ++tries) {
        chat.fail(70, 0, failure::before_room, false);
    }
    ASSERT_NO_FATAL_FAILURE(chat.say(70)) << "chat::judge compares it after every step";
    EXPECT_EQ(chat.last(0).capacity, 370 + 370 / 4);
}

TEST_F(MnnAdapterLife, EditsOnceWhenTheStepIsTriedAgain) {
    // The engine counted nothing and repeats the edit. Some layers have made it, the last one has not.
    settings how = lossless();
    how.layers = 3;
    chat chat(how);
    ASSERT_NO_FATAL_FAILURE(chat.say(150));
    for (const failure at : {failure::after_append, failure::before_room}) {
        for (const int count : {2, 5, 7, 9}) {
            chat.edit(7);
            chat.fail(count, 1, at, false);
            ASSERT_NO_FATAL_FAILURE(chat.say(count)) << "the end is dropped";
            chat.erase(40, 45);
            chat.fail(count, 1, at, false);
            chat.fail(count, 0, at, false);
            ASSERT_NO_FATAL_FAILURE(chat.say(count)) << "the middle is dropped";
            chat.fail(count, 1, at, false);
            chat.erase(40, 45);
            ASSERT_NO_FATAL_FAILURE(chat.say(2)) << "an edit after a step without one";
        }
    }
}

TEST_F(MnnAdapterLife, RefusesAnEditOfTokensThatAFailedStepHasRemoved) {
    chat chat(lossless());
    ASSERT_NO_FATAL_FAILURE(chat.say(150));
    chat.edit(7);
    chat.fail(2, 1, failure::after_append, false);
    EXPECT_FALSE(chat.host().command(R"({"kv_save": "unused.kv"})"));
    chat.host().remove(5);
    EXPECT_EQ(chat.host().forward({{1000, 145}}, 0, failure::none, false).back().error, 5) << "INVALID_VALUE";
    EXPECT_EQ(lines(mnn_stub::take_log()),
              "mnn-kv: the chat is not saved: the last step failed after its edit: repeat it first\n"
              "error: mnn-kv: layer 0: the edit keeps tokens that a failed step has removed: the chat must be cleared\n");
    chat.host().remove(9);
    const std::vector<layer_step> steps = chat.host().forward({{1001, 141}});
    EXPECT_EQ(steps[0].length, 142) << "it removes more";
    EXPECT_EQ(steps[1].length, 142);
}

// Lifetimes.

TEST_F(MnnAdapterLife, KeepsModelsApart) {
    std::unique_ptr<chat> first(new chat(lossless(1))), second(new chat(lossy(R"("kv_h2o_log_stats": true)")));
    const auto both = [&](int count) {
        ASSERT_NO_FATAL_FAILURE(first->say(count));
        ASSERT_NO_FATAL_FAILURE(second->say(count));
    };
    ASSERT_NO_FATAL_FAILURE(both(150));
    for (int i = 0; i < 20; ++i) {
        ASSERT_NO_FATAL_FAILURE(both(1 + i % 2));
    }
    EXPECT_EQ(first->held(1), first->length());
    EXPECT_LT(second->held(1), second->length());
    EXPECT_EQ(first->metric("h2o_total_evict_tokens"), -1.0);
    EXPECT_EQ(second->metric("h2o_lossless_raw_bytes"), -1.0);
    EXPECT_FALSE(mnn_stub::take_log().empty());
    second.reset();
    ASSERT_NO_FATAL_FAILURE(first->decode(5));
    EXPECT_EQ(lines(mnn_stub::take_log()), "");
    first.reset();
}

TEST_F(MnnAdapterLife, MayEndInEitherOrder) {
    for (const bool meta_first : {false, true}) {
        for (const settings& how : {lossless(1), lossy(), configured(settings(), R"("kv_h2o_enable": false)")}) {
            chat chat(how);
            ASSERT_NO_FATAL_FAILURE(chat.say(200));
            ASSERT_NO_FATAL_FAILURE(chat.decode(5));
            if (meta_first) {
                chat.host().destroy_meta();
            }
        }
    }
    const chat unused(lossy());  // a model that is loaded and never used
}

TEST_F(MnnAdapterLife, HasOneLayerForAllClonesOfAnOp) {
    // Prompts and single tokens run in separate ops, which share the cache.
    chat chat(lossy());
    ASSERT_NO_FATAL_FAILURE(chat.say(150));
    ASSERT_NO_FATAL_FAILURE(chat.decode(10));
    ASSERT_NO_FATAL_FAILURE(chat.say(20));
    const json metrics = json_reader(chat.host().metrics()).read();
    EXPECT_EQ(metrics["layers"].items.size(), 2u);
    EXPECT_EQ(metrics["h2o_logical_tokens"].number, 360.0);
}

TEST_F(MnnAdapterLife, GivesTheNumberOfADestroyedLayerToTheNext) {
    chat chat(lossless());
    for (int round = 0; round < 5; ++round) {
        ASSERT_NO_FATAL_FAILURE(chat.say(150));
        ASSERT_NO_FATAL_FAILURE(chat.decode(4));
        for (int layer = 0; layer < 2; ++layer) {
            EXPECT_FALSE(same(chat.host().buffers(layer), chat.plain().buffers(layer))) << "compressed";
        }
        chat.host().remake(round % 2);
        chat.plain().remake(round % 2);
        chat.clear();
    }
    EXPECT_EQ(lines(mnn_stub::take_log()), "") << "no number is above layer_nums";
}

// Reports.

TEST_F(MnnAdapterLife, PrintsALinePerEvictionIfConfigured) {
    for (const bool logs : {true, false}) {
        chat chat(lossy(logs ? R"("kv_h2o_log_stats": true)" : R"("kv_h2o_log_stats": false)"));
        std::string expected;
        int evictions = 0, before = 0;
        for (int i = 0; i < 60; ++i) {
            const int count = i == 0 ? 150 : 1;
            ASSERT_NO_FATAL_FAILURE(chat.say(count));
            const int evicted = before + count - chat.held(1);
            if (evicted > 0) {
                expected += "mnn-kv: layer 1 evicted " + std::to_string(evicted) + " of " + std::to_string(before) +
                            " tokens\n";
                ++evictions;
            }
            before = chat.held(1);
        }
        EXPECT_GT(evictions, 3);
        EXPECT_EQ(lines(mnn_stub::take_log()), logs ? expected : "");
    }
}

TEST_F(MnnAdapterLife, PrintsEachWarningOfAConfigOnce) {
    settings how = configured(settings(), evicting(R"("kv_h2o_block_tokns": 4, "kv_lossless_colour": "blue")"));
    how.layers = 4;
    chat odd(how);
    ASSERT_NO_FATAL_FAILURE(odd.say(50));
    ASSERT_NO_FATAL_FAILURE(odd.decode(3));
    const std::vector<std::string> log = mnn_stub::take_log();
    ASSERT_EQ(log.size(), 2u) << lines(log);
    EXPECT_EQ(log[0].find("mnn-kv: kv_h2o_block_tokns "), 0u) << log[0];
    EXPECT_EQ(log[1].find("mnn-kv: kv_lossless_colour "), 0u) << log[1];
}

TEST_F(MnnAdapterLife, ReportsMetricsToTheEngineAndTheBenchmark) {
    settings how;
    how.steps_at_load = false;
    chat chat(configured(how, evicting(), compressing("store", 0)));
    EXPECT_EQ(chat.host().metrics(), "") << "attention has not run";
    ASSERT_NO_FATAL_FAILURE(chat.say(200));
    ASSERT_NO_FATAL_FAILURE(chat.decode(20));
    const std::string text = chat.host().metrics();
    const json metrics = json_reader(text).read();
    EXPECT_NEAR(metrics["h2o_lossy_ratio"].number, 2.0, 0.5);

    const std::string dumped = R"({"attention_mode": 8, "kv_metrics":)" + text + R"(, "llm_model": "llm.mnn"})";
    const std::string found = mnn_stub::bench_metrics(dumped);
    EXPECT_EQ(mnn_stub::bench_metrics(R"({"attention_mode": 8})"), "");
    for (const std::string& column : mnn_stub::bench_columns()) {
        const std::string shown = mnn_stub::bench_value(found, column);
        if (shown == "-") {
            EXPECT_EQ(text.find("\"" + column + "\":"), std::string::npos) << "not measured";
            continue;
        }
        EXPECT_NEAR(std::atof(shown.c_str()), metrics[column.c_str()].number,
                    1e-5 * std::abs(metrics[column.c_str()].number));
    }
    EXPECT_EQ(mnn_stub::bench_value(found, "h2o_lossy"), "-") << "a prefix of a name is not the name";
    EXPECT_EQ(mnn_stub::bench_value("", "h2o_lossy_ratio"), "-");
}

TEST_F(MnnAdapterLife, NeedsNoMoreThanTheNumberOfLayersOfAConfig) {
    mnnkv_host::model_config config;
    config.json = R"({"kv_h2o_enable": true, "kv_memroy_mb": 64})";
    config.layers = 2;
    mnnkv_host::model_session model(config);
    EXPECT_EQ(model.refusal, "");
    model.say("nothing, since nothing prints");
    EXPECT_FALSE(model.logs);
}

// Random schedules.

/// Ranges of the removed tail, ascending and disjoint, as MNN's move to the front needs them.
std::vector<std::pair<int, int>> random_ranges(dice& random, int removed) {
    std::vector<std::pair<int, int>> ranges;
    for (int at = 0; at < removed && ranges.size() < 4;) {
        const int from = at + static_cast<int>(random.below(20)), count = 1 + static_cast<int>(random.below(30));
        if (from + count > removed) {
            break;
        }
        ranges.emplace_back(from, count);
        at = from + count + 1;
    }
    return ranges;
}

settings random_settings(dice& random, bool evicts, bool quantised) {
    settings how;
    if (quantised) {
        const int modes[] = {1, 3, 5, 9, 10, 10, 10, 11, 12, 13, 14};
        const std::pair<int, int> units[] = {{16, 4}, {4, 8}, {4, 64}, {8, 8}, {4, 32}};
        how = how.in_mode(modes[random.below(11)]);
        how.head_dim = how.key_quant_mode == 1 ? 12 : 32;
        std::tie(how.l_pack_8, how.h_pack_8) = units[random.below(5)];
    }
    how.heads = 2;
    how.kv_heads = 1;
    how.threads = static_cast<int>(random.between(1, 3));
    how.flash = quantised ? how.flash : !random.one_in(3);
    how.element_bytes = random.one_in(3) ? 2 : 4;
    how.h_pack = random.one_in(2) ? 8 : 4;
    how.l_pack = random.one_in(3) ? 2 : 1;
    how.tile_pack = 4 << random.below(3);
    how.mapped = random.one_in(8);
    const std::string codec = compressing(random.one_in(4) ? "full" : "store", static_cast<int>(random.below(2)));
    if (!evicts) {
        return configured(how, codec);
    }
    const char* const more[] = {R"("kv_h2o_log_stats": false)", R"("kv_h2o_max_tokens": 80)",
                                R"("kv_h2o_prefill_queries": 0)", R"("kv_h2o_layer_start": 0)",
                                R"("kv_h2o_target_mode": "static")"};
    const std::string keys = evicting(more[random.below(5)]);
    return random.one_in(2) ? configured(how, keys, codec + R"(, "kv_lossless_scope": "h2o_kept")")
                            : configured(how, keys);
}

/// One action of an engine and its user. Returns its description for the trace.
std::string act(chat& chat, dice& random) {
    const int length = chat.length();
    const auto number = [](int n) { return std::to_string(n); };
    std::string did;
    const failure at = random.one_in(2) ? failure::after_append : failure::before_room;
    if (length > 0 && random.one_in(8)) {
        const int count = static_cast<int>(random.between(1, 9));
        chat.fail(count, static_cast<int>(random.below(2)), at, false);
        did = "fail " + number(count) + " before the edit; ";
    }
    int gone = 0;
    if (random.one_in(14)) {
        chat.clear();
        did += "clear; ";
    } else if (length > 0 && random.one_in(3)) {
        const int removed = random.one_in(2) ? static_cast<int>(random.below(static_cast<std::uint32_t>(length) + 1))
                                             : std::min(length, static_cast<int>(random.below(9)));
        const auto ranges = random.one_in(2) ? random_ranges(random, removed) : std::vector<std::pair<int, int>>();
        chat.edit(removed, ranges);
        gone = length - chat.length();
        did += "remove " + number(removed) + " but for " + number(static_cast<int>(ranges.size())) + " ranges; ";
    }
    int count = static_cast<int>(random.one_in(3) || length == 0 ? random.between(2, 110) : random.between(1, 4));
    // The engine's length may stay the same.
    count = gone > 1 && random.one_in(2) ? gone : count;
    // MNN cannot read INT8 K that begins with one token.
    count += count == 1 && chat.length() == 0 && chat.how().is_quantised() ? 1 : 0;
    if (random.one_in(6)) {
        // Not counted: the engine repeats its edits.
        const bool counted = at == failure::after_append && random.one_in(2);
        chat.fail(count, static_cast<int>(random.below(2)), at, counted);
        did += std::string("fail ") + (counted ? "counted " : "") + number(count) + "; ";
    }
    chat.say(count);
    did += "say " + number(count);
    if (random.one_in(3)) {
        chat.decode(static_cast<int>(random.between(1, 8)));
        did += "; decode";
    }
    return did;
}

class MnnAdapterSchedules : public testing::TestWithParam<std::tuple<bool, bool>> {};

TEST_P(MnnAdapterSchedules, NeverShowAWrongTokenOrOutput) {
    for (std::uint32_t seed = 0; seed < 100 && !HasFailure(); ++seed) {
        dice random(seed);
        const settings how = random_settings(random, std::get<0>(GetParam()), std::get<1>(GetParam()));
        SCOPED_TRACE("seed " + std::to_string(seed) + ", config " + how.config);
        chat chat(how);
        std::string trace;
        for (int action = 0; action < 10 && !HasFailure(); ++action) {
            trace += "\n  " + act(chat, random);
        }
        EXPECT_FALSE(HasFailure()) << "the schedule was:" << trace;
    }
}

INSTANTIATE_TEST_SUITE_P(Random, MnnAdapterSchedules, testing::Combine(testing::Bool(), testing::Bool()),
                         [](const auto& tested) {
                             return std::string(std::get<0>(tested.param) ? "Lossy" : "Lossless") +
                                    (std::get<1>(tested.param) ? "Quantised" : "");
                         });

}  // namespace
