// The cost of stored tokens in a step: restored by begin, with a worker that decodes the next layer while the host
// computes this one (prefetch) and without, and decoded head by head where attention reads them.
//
// The host computes for the time of a model's layer, or less. Between begin and end: attention of 32 query heads over
// 2,048 tokens. Between end and the next layer's begin, the place of matrix products: a pass over their weights. 1B:
// 34 MB, 61 M parameters of 4 bits with their scales. 7B: 120 MB, 218 M parameters. One thread, so that the worker has
// a core.

#include "decoder.hpp"

namespace bench {
namespace {

const std::uint32_t layers = 16;
const std::uint32_t prompt = 1920;
const std::uint32_t settled = 32;
const std::uint32_t steps = 96;
const std::size_t weight_bytes = 120 << 20;  // of one layer of the larger model

struct Times {
    std::vector<double> begin, end, weights, attention, step;  // us
    mnnkv_metrics before, after;
};

/// Reads everything; the sum prevents the compiler from removing the loop.
std::uint32_t read_weights(const std::uint32_t* weights, std::size_t bytes) {
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < bytes / sizeof *weights; ++i) {
        sum += weights[i];
    }
    return sum;
}

Times run(const Content& content, const std::vector<std::uint32_t>& weights, std::size_t bytes,
          const std::string& config, bool by_head) {
    Times times;
    Caches caches(content, layers, prompt + steps);
    Session session(config, layers, by_head);
    Decoder decoder;
    for (std::uint32_t l = 0; l < layers; ++l) {
        session.begin(l, caches[l]);
        caches.append(l, prompt);
        session.end(l, caches[l], Decoder::query_heads, prompt);
    }
    volatile std::uint32_t sink = 0;
    const auto lap = [](double& since, std::vector<double>& into, bool keep) {
        const double now = seconds();
        if (keep) {
            into.push_back((now - since) * 1e6);
        }
        since = now;
    };
    for (std::uint32_t step = 0; step < steps; ++step) {
        const bool keep = step >= settled;
        if (step == settled && session.on()) {
            times.before = session.metrics();
        }
        const double start = seconds();
        for (std::uint32_t l = 0; l < layers; ++l) {
            double at = seconds();
            session.begin(l, caches[l]);
            lap(at, times.begin, keep);
            caches.append(l, 1);
            at = seconds();
            decoder.attend_only(caches[l], session, l);
            lap(at, times.attention, keep);
            session.end(l, caches[l], Decoder::query_heads, 1);
            lap(at, times.end, keep);
            sink = sink + read_weights(&weights[l * weight_bytes / sizeof weights[0]], bytes);
            lap(at, times.weights, keep);
        }
        if (keep) {
            times.step.push_back((seconds() - start) * 1e6);
        }
    }
    if (session.on()) {
        times.after = session.metrics();
    }
    return times;
}

void print(const char* model, const char* name, const Times& times) {
    std::printf("  %s, %s\n", model, name);
    std::printf("    begin %.0f us (p95 %.0f, max %.0f), attention %.0f, weights %.0f, end %.0f (p95 %.0f); "
                "step %.1f ms\n",
                quantile(times.begin, 0.5), quantile(times.begin, 0.95), quantile(times.begin, 1),
                quantile(times.attention, 0.5), quantile(times.weights, 0.5), quantile(times.end, 0.5),
                quantile(times.end, 0.95), quantile(times.step, 0.5) / 1e3);
}

void print_metrics(const Times& times) {
    const mnnkv_metrics &a = times.before, &b = times.after;
    const double calls = double(steps - settled) * layers;
    const double restored = b.h2o_lossless_restored_bytes - a.h2o_lossless_restored_bytes;
    const double decode_us = b.h2o_lossless_decompress_us - a.h2o_lossless_decompress_us;
    const double decoded = b.h2o_lossless_decompressed_bytes - a.h2o_lossless_decompressed_bytes;
    std::printf("    metrics: wait p50 %.0f us, p95 %.0f, max %.0f; per layer: decoding %.0f us (%.0f MB/s) by worker\n"
                "    and host together, %.2f MB restored; blocks prefetched %.0f, kept %.0f, decoded in begin %.0f\n",
                b.h2o_host_wait_us_p50, b.h2o_host_wait_us_p95, b.h2o_host_wait_us_max, decode_us / calls,
                decoded / decode_us, restored / calls / 1e6,
                zero_if_nan(b.h2o_lossless_prefetch_hit) - zero_if_nan(a.h2o_lossless_prefetch_hit),
                b.h2o_lossless_restore_hit - a.h2o_lossless_restore_hit,
                b.h2o_lossless_decode_cache_miss - a.h2o_lossless_decode_cache_miss);
}

/// The floor of a restore: the same rows written into a cache with resident or released pages.
void print_floor(const Content& content, std::uint32_t count) {
    Caches caches(content, 4, prompt + steps);
    std::vector<half> keys(std::size_t(count) * Content::dims * Caches::kv_heads), values(keys.size());
    std::vector<double> there, gone;
    for (std::uint32_t i = 0; i < 64; ++i) {
        PackedCache& cache = caches[i % caches.layers()];
        for (std::vector<double>* times : {&gone, &there}) {
            const double start = seconds();
            require(mnnkv_kv_scatter(&cache.layout(), keys.data(), values.data(), keys.size() * sizeof(half), 16, count,
                                     cache.key(), cache.value()),
                    "scatter");
            times->push_back((seconds() - start) * 1e6);
        }
        std::uint64_t released = 0;
        require(mnnkv_kv_release(&cache.layout(), cache.key(), cache.value(), 16, count, &released), "release");
    }
    std::printf("  mnnkv_kv_scatter of %u tokens alone: %.0f us into memory that is there, %.0f us into pages given "
                "back\n",
                count, quantile(there, 0.5), quantile(gone, 0.5));
}

}  // namespace

void waits(const Content& content, Report& report) {
    std::vector<std::uint32_t> weights(layers * weight_bytes / sizeof(std::uint32_t));
    for (std::size_t i = 0; i < weights.size(); ++i) {
        weights[i] = static_cast<std::uint32_t>(i);
    }
    struct Model {
        const char* name;
        std::size_t bytes;
    };
    for (const Model& model : {Model{"1B", 34 << 20}, Model{"7B", weight_bytes}}) {
        const Times none = run(content, weights, model.bytes, "", false);
        const Times inside = run(content, weights, model.bytes, "{" + store_config(layers, 0) + "}", false);
        const Times ahead = run(content, weights, model.bytes, "{" + store_config(layers, 1) + "}", false);
        const Times heads = run(content, weights, model.bytes, "{" + store_config(layers, 0) + "}", true);
        print(model.name, "without mnn-kv", none);
        print(model.name, "store, no worker", inside);
        print_metrics(inside);
        print(model.name, "store, 1 worker", ahead);
        print_metrics(ahead);
        print(model.name, "store by head", heads);
        const auto median = [](const std::vector<double>& times) { return quantile(times, 0.5); };
        // Decoding is inside attention.
        const double wait = median(heads.begin) + median(heads.attention) - median(none.attention);
        const double share = 100 * wait / median(inside.begin);
        char text[128];
        std::snprintf(text, sizeof text, "%s: reading stored heads takes 25 %% of a begin that restores them, or less",
                      model.name);
        report.claim(share <= 25, text, share, "%");
        const double all = 100 * (median(heads.step) / median(none.step) - 1);
        std::snprintf(text, sizeof text, "%s: a step with all layers stored takes 15 %% more, or less", model.name);
        report.claim(all <= 15, text, all, "%");
    }
    print_floor(content, 13 * 128);
}

}  // namespace bench
