// mnn-kv in a small host: host.hpp has the four calls that an engine makes per layer, this file the settings and the
// table. Replays a recorded text in several chats, once without mnn-kv and once for each mode.
//
//   mnnkv_demo [pack mode] [chats]

#include "host.hpp"
#include "table.hpp"

#include <cinttypes>
#include <cmath>

namespace demo {

struct Run {
    const char* name;
    bool evict;
    const char* lossless;  // kv_lossless_runtime_mode, nullptr = off
    const char* what;
};

const Run runs[] = {
    {"baseline", false, nullptr, "without mnn-kv"},
    {"probe", false, "probe", "samples layer 0 of the first chat to measure what compression would save"},
    {"full", false, "full", "encodes, decodes and compares cold tokens of all layers, changes nothing"},
    {"store", false, "store", "keeps cold tokens of all layers compressed only"},
    {"h2o", true, nullptr, "evicts tokens from layers 2 and 3 by attention, to one in 3.5"},
    {"h2o+store", true, "store", "both: what is not evicted is compressed"},
};

/// As in the host's config.json, but for layer numbers, which are 2 and 4 there: here each layer is `chats` layers.
std::string config(const Run& run, std::uint32_t chats) {
    if (!run.evict && run.lossless == nullptr) {
        return "";
    }
    std::string json = "{";
    if (run.evict) {
        json += "\"kv_h2o_enable\": true, \"kv_h2o_policy\": \"mass\", \"kv_h2o_target_lossy_ratio\": 3.5, "
                "\"kv_h2o_block_tokens\": 32, \"kv_h2o_sink_tokens\": 16, \"kv_h2o_recent_tokens\": 96, "
                "\"kv_h2o_update_interval\": 16, \"kv_h2o_layer_start\": " + std::to_string(2 * chats);
    }
    if (run.lossless != nullptr) {
        json += run.evict ? ", " : "";
        json += "\"kv_lossless_enable\": true, \"kv_lossless_runtime_enable\": true, "
                "\"kv_lossless_scope\": \"front_n\", \"kv_lossless_hot_sink_tokens\": 16, "
                "\"kv_lossless_hot_recent_tokens\": 96, \"kv_lossless_async_threads\": 1, "
                "\"kv_lossless_runtime_mode\": \"" + std::string(run.lossless) +
                "\", \"kv_lossless_front_n\": " + std::to_string(Sample::layers * chats);
    }
    return json + "}";
}

struct Result {
    double step_ms, attention_us;
    double prompt_mb, end_mb;  // resident bytes of the caches and all that mnn-kv needs, by the system
    mnnkv_metrics metrics;
    std::uint64_t compared_bytes, tail_bytes;
    std::vector<Outputs::Difference> differences;
};

Result measure(const Run& run, const Sample& sample, const PackMode& mode, std::uint32_t chats, Outputs& outputs) {
    trim_heap();
    const double empty = double(resident_bytes());
    Host host(sample, mode, chats, config(run, chats), run.evict);
    Result result = {};
    host.prompt();
    result.prompt_mb = (double(resident_bytes()) - empty) / 1e6;
    std::vector<double> times;
    outputs.differences.clear();
    for (std::uint32_t step = 0; step < Sample::steps; ++step) {
        const double start = seconds();
        host.step(step, outputs);
        times.push_back(seconds() - start);
    }
    result.end_mb = (double(resident_bytes()) - empty) / 1e6;
    std::sort(times.begin(), times.end());
    result.step_ms = times[times.size() / 2] * 1e3;
    result.attention_us = host.attention_seconds() * 1e6;
    result.metrics = host.metrics();
    result.tail_bytes = host.tail_bytes();
    result.compared_bytes = host.compare();
    result.differences = outputs.differences;
    return result;
}

double zero_if_nan(double value) { return std::isnan(value) ? 0 : value; }

void add_row(Table& table, const Run& run, const Result& r, const Result& baseline, double raw_bytes) {
    const mnnkv_metrics& m = r.metrics;
    const bool used = &r != &baseline;
    const double nan = std::nan("");
    const double held = raw_bytes - (used ? m.h2o_resident_saved_bytes : 0);
    const double h2o_us = m.h2o_score_us + zero_if_nan(m.h2o_plan_us) + zero_if_nan(m.h2o_evict_us);
    const bool waited = used && !std::isnan(m.h2o_host_wait_us_p50);
    const std::string waits = number("%.0f", waited ? m.h2o_host_wait_us_p50 : nan) + (waited ? " / " : "") +
                              number("%.0f", waited ? m.h2o_host_wait_us_p95 : nan);
    table.row({run.name, number("%.1f", r.step_ms), number("%.2f", r.step_ms / baseline.step_ms),
               number("%.1f", r.prompt_mb), number("%.1f", r.end_mb),
               number("%.2f", used ? m.h2o_lossless_ratio : nan), number("%.2f", used ? m.h2o_lossy_ratio : nan),
               number("%.2f", raw_bytes / held), waits, number("%.2f %%", run.evict ? 100 * h2o_us / r.attention_us : nan),
               r.differences.empty() ? "identical" : run.evict ? "evicted" : "DIFFERENT"});
}

/// Prints where a run's attention first differed; false where it must not differ.
bool explain(const Run& run, const Result& r) {
    if (r.differences.empty()) {
        return true;
    }
    const Outputs::Difference& d = r.differences[0];
    std::printf("%s: attention differs from step %u on, first in layer %u, chat %u, head %u: %.6g there, %.6g here\n",
                run.name, d.step + 1, d.layer, d.chat, d.head, double(d.there), double(d.here));
    for (const Outputs::Difference& other : r.differences) {
        if (!run.evict || other.layer < 2) {
            std::printf("%s: step %u, layer %u, chat %u, head %u: %.9g there, %.9g here; this must not be\n", run.name,
                        other.step + 1, other.layer, other.chat, other.head, double(other.there), double(other.here));
            return false;
        }
    }
    std::printf("%s: as it must be where tokens were evicted; in layers 0 and 1 it is identical\n", run.name);
    return true;
}

int compare_runs(const Sample& sample, const PackMode& mode, std::uint32_t chats) {
    const double raw = double(chats) * Sample::layers * Sample::tokens * Sample::token_bytes;
    std::printf("%u chats of %u tokens (%u of them decoded step by step), layers 0 to %u of a small Llama, f16,\n"
                "packed as MNN's %s: %.1f MB of KV\n\n",
                chats, Sample::tokens, Sample::steps, Sample::layers - 1, mode.name, raw / 1e6);
    for (const Run& run : runs) {
        std::printf("  %-10s %s\n", run.name, run.what);
    }
    Table table("demo", std::to_string(chats) + " chats",
                {"run", "step ms", "x", "MB prompt", "MB end", "lossless", "lossy", "joint", "wait us 50/95", "h2o",
                 "attention"});
    Outputs outputs;
    std::vector<Result> results;
    results.reserve(sizeof runs / sizeof runs[0]);
    for (const Run& run : runs) {
        results.push_back(measure(run, sample, mode, chats, outputs));
        add_row(table, run, results.back(), results[0], raw);
    }
    table.print();
    std::printf("\n");
    bool sound = true;
    double compared = 0, restored = 0;
    for (std::size_t i = 0; i < results.size(); ++i) {
        sound = explain(runs[i], results[i]) && sound;
        compared += double(results[i].compared_bytes);
        restored += i > 0 ? zero_if_nan(results[i].metrics.h2o_lossless_restored_bytes) : 0;
    }
    std::printf("every kept byte matches the recording: %.1f MB compared at the ends, %.1f MB restored on the way\n",
                compared / 1e6, restored / 1e6);
    const Result& last = results.back();
    std::printf("h2o+store: buffers without their empty tails would be %.1f MB smaller (metrics: %.1f MB)\n",
                double(last.tail_bytes) / 1e6, last.metrics.h2o_reclaimable_bytes / 1e6);
    std::printf("\nstep ms: median step of all chats, attention and mnn-kv alone: a model's matrix products, during\n"
                "which the worker decodes ahead, are not part of the demo. MB: resident by the system, blobs and\n"
                "working memory included. lossy: of layers 2 and 3. joint: raw KV over what is held. wait: of begin,\n"
                "for compressed tokens. h2o: adding up scores, planning and evicting, as part of attention time.\n");
    return sound ? 0 : 1;
}

}  // namespace demo

int main(int argc, char** argv) {
    using namespace demo;
    const char* wanted = argc > 1 ? argv[1] : pack_modes[0].name;
    const long chats = argc > 2 ? std::strtol(argv[2], nullptr, 10) : 32;
    const PackMode* mode = nullptr;
    for (const PackMode& m : pack_modes) {
        mode = std::strcmp(m.name, wanted) == 0 ? &m : mode;
    }
    if (mode == nullptr || chats < 1 || chats > 1000) {
        std::fprintf(stderr, "usage: mnnkv_demo [arm64-fp16|arm32-fp16|sme2-fp16] [chats 1..1000]\n");
        return 2;
    }
    Sample sample;
    return sample.load(MNNKV_SAMPLE_DIR) ? compare_runs(sample, *mode, static_cast<std::uint32_t>(chats)) : 1;
}
