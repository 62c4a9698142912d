// Config, warnings, and metrics as a struct and as JSON.

#include "session_host.hpp"

#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

namespace {

using namespace support;

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
        EXPECT_TRUE(ok(layer.begin(count)));
        layer.append(count);
        std::thread other([&] { wrong += layer.score(1, 1, favouring(0, 50)) != MNNKV_OK; });
        EXPECT_TRUE(ok(layer.score(0, 0, favouring(0, 50))));
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
