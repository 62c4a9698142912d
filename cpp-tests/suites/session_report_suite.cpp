// Config, warnings, and metrics as a struct and as JSON.

#include "session_host.hpp"

#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

namespace {

using namespace support;

std::string warnings_of(const std::string& config, std::uint32_t layers = 4) {
    mnnkv::session session;
    EXPECT_TRUE(ok(session.create(config.data(), config.size(), layers, 1).code())) << config;
    std::string text = "left over";
    EXPECT_TRUE(ok(session.warnings(text).code()));
    return text;
}

/// Every metric by its name in the header.
#define METRIC(name) {#name, &mnnkv_metrics::name}
const struct {
    const char* name;
    double mnnkv_metrics::*at;
} all_metrics[] = {
    METRIC(h2o_keep_ratio),
    METRIC(h2o_lossy_ratio),
    METRIC(h2o_lossless_ratio),
    METRIC(h2o_target_keep_effective),
    METRIC(h2o_floor_keep_by_recent_sink),
    METRIC(h2o_block_quantized_keep),
    METRIC(h2o_evict_us),
    METRIC(h2o_codec_us),
    METRIC(h2o_lossless_raw_bytes),
    METRIC(h2o_lossless_compressed_bytes),
    METRIC(h2o_lossless_decompressed_bytes),
    METRIC(h2o_lossless_compress_us),
    METRIC(h2o_lossless_decompress_us),
    METRIC(h2o_lossless_queue_depth_peak),
    METRIC(h2o_lossless_fallback_count),
    METRIC(h2o_lossless_backpressure_skip_count),
    METRIC(h2o_lossless_async_queue_peak),
    METRIC(h2o_lossless_async_wait_us),
    METRIC(h2o_lossless_decode_cache_hit),
    METRIC(h2o_lossless_decode_cache_miss),
    METRIC(h2o_last_evict_tokens),
    METRIC(h2o_total_evict_tokens),
    METRIC(h2o_logical_tokens),
    METRIC(h2o_physical_tokens),
    METRIC(h2o_score_us),
    METRIC(h2o_plan_us),
    METRIC(h2o_plan_count),
    METRIC(h2o_stale_plan_count),
    METRIC(h2o_released_bytes),
    METRIC(h2o_resident_saved_bytes),
    METRIC(h2o_reclaimable_bytes),
    METRIC(h2o_lossless_restored_blocks),
    METRIC(h2o_lossless_restored_bytes),
    METRIC(h2o_lossless_restore_hit),
    METRIC(h2o_lossless_prefetch_hit),
    METRIC(h2o_lossless_prefetch_miss),
    METRIC(h2o_lossless_stale_count),
    METRIC(h2o_host_wait_us_p50),
    METRIC(h2o_host_wait_us_p95),
    METRIC(h2o_host_wait_us_max),
    METRIC(h2o_unscored_plan_count),
    METRIC(h2o_over_limit_count),
    METRIC(h2o_host_wait_us_p99),
    METRIC(h2o_parked_raw_bytes),
    METRIC(h2o_parked_bytes),
};
#undef METRIC

/// A JSON object has exactly the metrics that were measured, with their values. `extra`: other fields.
void expect_same(const json& object, const mnnkv_metrics& metrics, std::size_t extra) {
    std::size_t count = extra;
    for (const auto& metric : all_metrics) {
        const double value = metrics.*metric.at;
        const auto named = [&](const auto& field) { return field.first == metric.name; };
        const auto field = std::find_if(object.fields.begin(), object.fields.end(), named);
        if (mnnkv::measured(value)) {
            ++count;
            ASSERT_NE(field, object.fields.end()) << metric.name;
            EXPECT_NEAR(field->second.number, value, 1e-12 * std::abs(value)) << metric.name;
        } else {
            EXPECT_EQ(field, object.fields.end()) << metric.name << " was not measured";
        }
    }
    EXPECT_EQ(object.fields.size(), count);
}

TEST(Measured, IsAnythingButNaN) {
    EXPECT_FALSE(mnnkv::measured(std::numeric_limits<double>::quiet_NaN()));
    EXPECT_FALSE(mnnkv::measured(-std::numeric_limits<double>::quiet_NaN()));
    EXPECT_FALSE(mnnkv::measured(std::numeric_limits<double>::signaling_NaN()));
    for (const double number : {0.0, -0.0, 1.5, -1e300, 5e-324, std::numeric_limits<double>::infinity(),
                                -std::numeric_limits<double>::infinity()}) {
        EXPECT_TRUE(mnnkv::measured(number)) << number;
    }
}

TEST(SessionConfig, TakesAHostsOwnConfig) {
    // Foreign keys of every type are the host's. A switch that is false makes keys without effect intended.
    EXPECT_EQ(warnings_of(R"({"llm_model": "x", "backend_type": "cpu", "thread_num": 4, "nested": {"a": [1, {}]},
                              "kv_heads": 1, "kvcache": null, "precision": false, "kv_h2o": 3})"),
              "");
    EXPECT_EQ(warnings_of(""), "");
    EXPECT_EQ(warnings_of("{}"), "");
    EXPECT_EQ(warnings_of(" \r\n\t{ } \n"), "");
    EXPECT_EQ(warnings_of(R"({"kv_h2o_enable": false, "kv_h2o_block_tokens": 64.0, "kv_h2o_block_tokens": 32,
                              "kv_h2o_sink_tokens": 1e2})"),
              "");
    EXPECT_EQ(warnings_of(R"({"kv_h2o_enable": false, "kv_lossless_enable": false,
                              "kv_lossless_predictors_k": "raw, delta_seq,xor_seq,pair_delta", "kv_h2o_layer_end": -1,
                              "kv_lossless_codec_runtime": "fp16_gear_predictive_v3", "kv_h2o_log_stats": true,
                              "kv_lossless_kept_sample_layers": -1, "kv_h2o_ema_alpha": 0})"),
              "");
}

TEST(SessionConfig, WarnsOfWhatHasNoEffect) {
    const struct {
        const char *config, *word, *other;
    } odd[] = {
        {R"({"kv_h2o_recnt_tokens": 5})", "kv_h2o_recnt_tokens", "kv_h2o_recent_tokens"},
        {R"({"kv_lossless_": 5})", "kv_lossless_", ""},
        {R"({"kv_h2o_enable": true, "kv_h2o_layer_start": 4})", "kv_h2o_layer_start", "4 layers"},
        {R"({"kv_h2o_enable": true, "kv_h2o_trigger_min_tokens": 4000, "kv_h2o_layer_end": 9})", "kv_h2o_layer_end",
         "4 layers"},
        {R"({"kv_h2o_sink_tokens": 4})", "kv_h2o_sink_tokens has no effect", "kv_h2o_enable must be true"},
        {R"({"kv_h2o_sink_tokens": 4, "kv_h2o_layer_end": 3})", "and 1 more have no effect", "kv_h2o_enable must be true"},
        {R"({"kv_h2o_enable": true, "kv_h2o_trigger_min_tokens": 4000, "kv_h2o_target_keep_ratio": 0.3})",
         "kv_h2o_target_keep_ratio has no effect", "static"},
        {R"({"kv_h2o_enable": true, "kv_h2o_trigger_min_tokens": 4000, "kv_h2o_target_mode": "static",
             "kv_h2o_target_lossy_ratio": 2})",
         "kv_h2o_target_lossy_ratio has no effect", "adaptive"},
        {R"({"kv_h2o_enable": true, "kv_h2o_target_lossy_ratio": 1})", "no token is ever evicted", "above 1"},
        {R"({"kv_h2o_enable": true, "kv_h2o_trigger_min_tokens": 512})", "kv_h2o_trigger_min_tokens is 512", "1016 tokens"},
        {R"({"kv_h2o_enable": true, "kv_h2o_trigger_min_tokens": 100})", "kv_h2o_trigger_min_tokens is 100",
         "1016 tokens"},
        {R"({"kv_lossless_enable": true, "kv_lossless_runtime_enable": true})", "kv_lossless_runtime_mode", "store"},
        {R"({"kv_lossless_enable": true})", "kv_lossless_runtime_enable", "kv_lossless_enable"},
        {R"({"kv_lossless_enable": true, "kv_lossless_runtime_enable": true, "kv_lossless_runtime_mode": "store",
             "kv_lossless_front_n": 0})",
         "kv_lossless_front_n", "kv_lossless_scope"},
        {R"({"kv_lossless_enable": true, "kv_lossless_runtime_enable": true, "kv_lossless_runtime_mode": "store",
             "kv_lossless_scope": "h2o_kept"})",
         "kv_h2o_enable", "kv_lossless_scope"},
        {R"({"kv_lossless_enable": true, "kv_lossless_runtime_enable": true, "kv_lossless_runtime_mode": "store",
             "kv_lossless_predictors_v": "raw"})",
         "kv_lossless_predictors_v", "no effect in this version"},
    };
    for (const auto& o : odd) {
        const std::string text = warnings_of(o.config);
        EXPECT_NE(text.find(o.word), std::string::npos) << o.config << ": " << text;
        EXPECT_NE(text.find(o.other), std::string::npos) << o.config << ": " << text;
        EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 0) << "one sentence: " << text;
    }
    EXPECT_EQ(warnings_of(R"({"kv_h2o_enable": true})"), "") << "no key of the config is wrong";
    const std::string two = warnings_of(R"({"kv_h2o_a": 1, "kv_lossless_b": 2})");
    EXPECT_EQ(std::count(two.begin(), two.end(), '\n'), 1) << "one sentence per line: " << two;
    // A key cannot break the lines of a log.
    const std::string hostile = warnings_of(R"({"kv_h2o_a\nb": 1})");
    EXPECT_EQ(std::count(hostile.begin(), hostile.end(), '\n'), 0) << hostile;
}

TEST(SessionConfig, MayBeOneMegabyte) {
    std::string many = "{";
    for (int i = 0; many.size() < (1u << 20); ++i) {
        const std::string key = (i % 2 ? "host_key_" : "kv_h2o_key_") + std::to_string(i);
        many += (i == 0 ? "\"" : ", \"") + key + "\": 1";
    }
    many += ", \"kv_h2o_enable\": true}";
    const std::string text = warnings_of(many);
    EXPECT_LT(text.size(), 10000u) << "warnings are bounded";
    EXPECT_NE(text.find("more"), std::string::npos);
    EXPECT_EQ(warnings_of(R"({"host_text": ")" + std::string(1 << 20, 'x') + "\"}"), "");
}

TEST(SessionMetrics, AreAllUnmeasuredAtFirst) {
    for (const std::string& config : {std::string("{}"), object(evicting(), storing(2))}) {
        mnnkv::session session = made_session(config, 3);
        for (const mnnkv_metrics& metrics : {metrics_of(session), metrics_of(session, 1)}) {
            EXPECT_EQ(metrics.struct_size, sizeof metrics);
            EXPECT_EQ(metrics.reserved, 0u);
            for (const auto& metric : all_metrics) {
                EXPECT_FALSE(mnnkv::measured(metrics.*metric.at)) << metric.name;
            }
        }
        std::string text;
        ASSERT_TRUE(ok(session.metrics_json(text).code()));
        EXPECT_EQ(text, R"({"layers":[]})");
    }
}

TEST(SessionMetrics, AreTheSameInTheStructAndInJson) {
    SEEDED_DICE(random, 1301);
    mnnkv::session session = made_session(object(evicting(), storing(2)), 6);
    session_layer layers[] = {{session, 1, half_layout(300), random}, {session, 4, half_layout(300), random}};
    for (int step = 0; step < 30; ++step) {
        for (session_layer& layer : layers) {
            ASSERT_NO_FATAL_FAILURE(layer.scored_step(favouring(40, 60), step == 0 ? 150 : 1));
        }
    }
    // Workers are idle when nothing changes any more.
    std::string text, again;
    do {
        ASSERT_TRUE(ok(session.metrics_json(text).code()));
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ASSERT_TRUE(ok(session.metrics_json(again).code()));
    } while (text != again);
    const json all = json_reader(text).read();
    expect_same(all, metrics_of(session), 1);
    ASSERT_EQ(all["layers"].items.size(), 2u) << "layers that were never named are absent";
    for (std::size_t i = 0; i < 2; ++i) {
        const json& layer = all["layers"].items[i];
        EXPECT_EQ(layer["layer"].u32(), layers[i].number());
        expect_same(layer, metrics_of(session, layers[i].number()), 1);
    }
    const mnnkv_metrics unused = metrics_of(session, 0);
    EXPECT_FALSE(mnnkv::measured(unused.h2o_logical_tokens));
}

TEST(SessionMetrics, CountWhatHappened) {
    SEEDED_DICE(random, 1302);
    mnnkv::session session = made_session(object(storing(0)), 2);
    session_layer layer(session, 0, half_layout(300), random);
    ASSERT_NO_FATAL_FAILURE(layer.step(200));
    for (int i = 0; i < 5; ++i) {
        ASSERT_NO_FATAL_FAILURE(layer.step());
    }
    const mnnkv_metrics m = metrics_of(session);
    const double token = static_cast<double>(layer.model().token_bytes());
    EXPECT_EQ(m.h2o_logical_tokens, 205.0);
    EXPECT_EQ(m.h2o_physical_tokens, 205.0);
    EXPECT_EQ(m.h2o_reclaimable_bytes, 95 * half_token_bytes);
    EXPECT_GT(m.h2o_lossless_compress_us, 0.0);
    EXPECT_GT(m.h2o_lossless_restored_blocks, 0.0);
    EXPECT_EQ(m.h2o_lossless_decode_cache_hit + m.h2o_lossless_decode_cache_miss, m.h2o_lossless_restored_blocks);
    EXPECT_GT(m.h2o_lossless_async_wait_us, 0.0);
    EXPECT_LE(m.h2o_host_wait_us_p50, m.h2o_host_wait_us_p95);
    EXPECT_LE(m.h2o_host_wait_us_p95, m.h2o_host_wait_us_p99);
    EXPECT_LE(m.h2o_host_wait_us_p99, m.h2o_host_wait_us_max);
    EXPECT_LE(m.h2o_host_wait_us_max, m.h2o_lossless_async_wait_us);
    EXPECT_NEAR(m.h2o_lossless_raw_bytes / m.h2o_lossless_compressed_bytes, m.h2o_lossless_ratio, 1e-9);
    // Whole pages less the blobs: a few pages at most in a small cache.
    EXPECT_GE(m.h2o_resident_saved_bytes, -m.h2o_lossless_compressed_bytes);
    EXPECT_LT(m.h2o_resident_saved_bytes, layer.compressed_tokens() * token);
    // No eviction and no workers: not measured.
    for (const double absent : {m.h2o_keep_ratio, m.h2o_lossy_ratio, m.h2o_plan_count, m.h2o_evict_us, m.h2o_score_us,
                                m.h2o_last_evict_tokens, m.h2o_lossless_async_queue_peak,
                                m.h2o_lossless_prefetch_hit}) {
        EXPECT_FALSE(mnnkv::measured(absent));
    }
}

TEST(SessionMetrics, OfAllLayersAreTheSumOfEach) {
    SEEDED_DICE(random, 1303);
    mnnkv::session session = made_session(object(storing(0, R"("kv_lossless_decode_cache_bytes": 100000)")), 2);
    session_layer layers[] = {{session, 0, half_layout(300), random}, {session, 1, half_layout(300), random}};
    for (int step = 0; step < 6; ++step) {
        for (session_layer& layer : layers) {
            ASSERT_NO_FATAL_FAILURE(layer.step(step == 0 ? 200 : 1));
        }
    }
    const mnnkv_metrics all = metrics_of(session), a = metrics_of(session, 0), b = metrics_of(session, 1);
    EXPECT_EQ(all.h2o_logical_tokens, a.h2o_logical_tokens + b.h2o_logical_tokens);
    EXPECT_EQ(all.h2o_lossless_raw_bytes, a.h2o_lossless_raw_bytes + b.h2o_lossless_raw_bytes);
    EXPECT_EQ(all.h2o_released_bytes, a.h2o_released_bytes + b.h2o_released_bytes);
    EXPECT_EQ(all.h2o_lossless_restored_blocks, a.h2o_lossless_restored_blocks + b.h2o_lossless_restored_blocks);
    EXPECT_EQ(all.h2o_reclaimable_bytes, a.h2o_reclaimable_bytes + b.h2o_reclaimable_bytes);
    EXPECT_EQ(all.h2o_resident_saved_bytes, a.h2o_resident_saved_bytes + b.h2o_resident_saved_bytes)
        << "each layer's own decoded rows count against it, not those of all";
}

TEST(SessionMetrics, GoOnAfterAReset) {
    SEEDED_DICE(random, 1304);
    mnnkv::session session = made_session(object(evicting(), storing(0)), 1);
    session_layer layer(session, 0, half_layout(300), random);
    for (int step = 0; step < 10; ++step) {
        ASSERT_NO_FATAL_FAILURE(layer.scored_step(favouring(40, 60), step == 0 ? 150 : 1));
    }
    const mnnkv_metrics before = metrics_of(session);
    layer.clear();
    const mnnkv_metrics after = metrics_of(session);
    EXPECT_EQ(after.h2o_total_evict_tokens, before.h2o_total_evict_tokens) << "sums are since the session was made";
    EXPECT_EQ(after.h2o_lossless_raw_bytes, before.h2o_lossless_raw_bytes);
    EXPECT_EQ(after.h2o_physical_tokens, 0.0) << "tokens are of now";
    ASSERT_NO_FATAL_FAILURE(layer.step(20));
    EXPECT_EQ(metrics_of(session).h2o_total_evict_tokens, before.h2o_total_evict_tokens);
    EXPECT_EQ(metrics_of(session).h2o_physical_tokens, 20.0);
}

TEST(SessionMetrics, AreReadBesideEveryOtherCall) {
    SEEDED_DICE(random, 1305);
    mnnkv::session session = made_session(object(evicting(), storing(1)), 2, 2);
    session_layer layer(session, 0, half_layout(400), random);
    std::atomic<bool> done{false};
    std::atomic<int> wrong{0}, reads{0};
    std::thread reader([&] {
        double evicted = 0;
        std::string text;
        while (!done) {
            mnnkv_metrics metrics = mnnkv::make<mnnkv_metrics>();
            std::uint32_t logical = 0, physical = 1;
            std::size_t n = 0;
            wrong += !session.metrics(metrics) || metrics.h2o_total_evict_tokens < evicted;
            wrong += !session.metrics(metrics, 1) || !session.lengths(0, logical, physical);
            wrong += physical > logical || !session.metrics_json(text) || !session.warnings(text);
            const mnnkv_status runs = session.positions(0, nullptr, 0, n).code();
            wrong += runs != MNNKV_OK && runs != MNNKV_BUFFER_TOO_SMALL;
            evicted = mnnkv::measured(metrics.h2o_total_evict_tokens) ? metrics.h2o_total_evict_tokens : evicted;
            ++reads;
        }
    });
    for (int step = 0; step < 60 && !HasFailure(); ++step) {
        const std::uint32_t count = step == 0 ? 160 : 1;
        EXPECT_TRUE(ok(layer.begin()));
        layer.append(count);
        std::thread other([&] { wrong += layer.score(1, 1, count, favouring(0, 50)) != MNNKV_OK; });
        EXPECT_TRUE(ok(layer.score(0, 0, count, favouring(0, 50))));
        other.join();
        EXPECT_TRUE(ok(layer.end(2, count)));
    }
    done = true;
    reader.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_GT(reads, 0);
    EXPECT_TRUE(layer.sound());
}

TEST(SessionText, GoesIntoAnythingThatResizes) {
    const std::string config = R"({"kv_h2o_nonsense": 1})";
    mnnkv::session session;
    ASSERT_TRUE(ok(session.create(config.data(), config.size(), 1, 1).code()));
    std::string string = "left over";
    std::vector<char> chars(500, 'x');
    ASSERT_TRUE(ok(session.warnings(string).code()));
    ASSERT_TRUE(ok(session.warnings(chars).code()));
    EXPECT_NE(string.find("kv_h2o_nonsense"), std::string::npos);
    EXPECT_EQ(std::string(chars.begin(), chars.end()), string);

    char buffer[500] = "left over";
    std::size_t len = 0;
    ASSERT_TRUE(ok(session.warnings(buffer, sizeof buffer, len).code()));
    EXPECT_EQ(buffer, string);
    EXPECT_EQ(len, string.size() + 1) << "with the zero";
    mnnkv::session quiet = made_session("", 1);
    ASSERT_TRUE(ok(quiet.warnings(buffer, 1, len).code()));
    EXPECT_TRUE(len == 1 && buffer[0] == 0) << "1 when there is nothing to say";
}

}  // namespace
