// The cost of stored tokens in a step: restored by begin, with a worker that decodes the next layer while the host
// computes this one (prefetch) and without.
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

const char* const decoding = "h2o_lossless_decompress_us";

struct Times {
    std::vector<double> begin, end, weights, attention, step;  // us
    double decoding_before, decoding_after;                    // us, in all; NaN without mnn-kv
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
          const std::string& config) {
    Times times = {};
    times.decoding_before = times.decoding_after = std::nan("");
    Caches caches(content, layers, prompt + steps);
    Session session(config, layers);
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
            times.decoding_before = mnnkv_host::json_number_of(session.report(), decoding);
        }
        const double start = seconds();
        for (std::uint32_t l = 0; l < layers; ++l) {
            double at = seconds();
            session.begin(l, caches[l]);
            lap(at, times.begin, keep);
            caches.append(l, 1);
            at = seconds();
            decoder.attend_only(caches[l]);
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
        times.decoding_after = mnnkv_host::json_number_of(session.report(), decoding);
    }
    return times;
}

/// Medians of a layer, and of the step.
void print(Table& table, const std::string& name, const Times& times) {
    const auto us = [](const std::vector<double>& laps, double share) { return number("%.0f", quantile(laps, share)); };
    const double us_decoding = (times.decoding_after - times.decoding_before) / double(steps - settled) / layers;
    table.row({name, us(times.begin, 0.5), us(times.begin, 0.95), us(times.attention, 0.5), us(times.weights, 0.5),
               us(times.end, 0.5), number("%.0f", us_decoding), number("%.1f", quantile(times.step, 0.5) / 1e3)});
}

/// The floor of a restore: the same rows written into a cache with resident or released pages.
void print_floor(Table& table, const Content& content, std::uint32_t count) {
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
    const std::string what = "mnnkv_kv_scatter of " + std::to_string(count) + " tokens alone, into pages ";
    table.row({what + "that are there", number("%.0f", quantile(there, 0.5)), "", "", "", "", "", ""});
    table.row({what + "given back", number("%.0f", quantile(gone, 0.5)), "", "", "", "", "", ""});
}

}  // namespace

void waits(const Content& content, Report& report) {
    std::vector<std::uint32_t> weights(layers * weight_bytes / sizeof(std::uint32_t));
    for (std::size_t i = 0; i < weights.size(); ++i) {
        weights[i] = static_cast<std::uint32_t>(i);
    }
    Table table("waits", "one thread and its workers, 2,048 tokens",
                {"weights of a model, run", "begin us", "95 %", "attention us", "weights us", "end us", "decoding us", "step ms"});
    struct Model {
        const char* name;
        std::size_t bytes;
    };
    for (const Model& model : {Model{"1B", 34 << 20}, Model{"7B", weight_bytes}}) {
        const Times none = run(content, weights, model.bytes, "");
        const Times inside = run(content, weights, model.bytes, "{" + store_config(layers, 0) + "}");
        const Times ahead = run(content, weights, model.bytes, "{" + store_config(layers, 1) + "}");
        const std::string name = model.name;
        print(table, name + ", without mnn-kv", none);
        print(table, name + ", store, no worker", inside);
        print(table, name + ", store, one worker", ahead);
        const auto median = [](const std::vector<double>& times) { return quantile(times, 0.5); };
        const double share = 100 * median(ahead.begin) / median(inside.begin);
        report.claim(share <= 25, name + ": begin with a worker takes 25 % of one without, or less", share, "%");
        const double all = 100 * (median(ahead.step) / median(none.step) - 1);
        report.claim(all <= 15, name + ": a step with all layers stored takes 15 % more, or less", all, "%");
    }
    print_floor(table, content, 13 * 128);
    table.print();
}

}  // namespace bench
