// Sections and claims of the benchmark, and its configs.

#ifndef MNNKV_BENCH_REPORT_HPP
#define MNNKV_BENCH_REPORT_HPP

#include "content.hpp"
#include "demo/table.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace bench {

/// The claims of a section, each with its figure. A figure that misses is RED, and no failure; wrong bytes are one.
class Report {
public:
    explicit Report(const std::string& section)
        : table_(section + "-claims", "one thread", {"claim", "figure", "verdict"}) {}

    void claim(bool holds, const std::string& text, double figure, const std::string& unit) {
        table_.row({text, number("%.2f", figure) + (unit.empty() ? "" : " ") + unit, holds ? "ok" : "RED"});
    }
    void exact(bool holds, const char* text) {
        if (!holds) {
            std::fprintf(stderr, "wrong: %s\n", text);
            std::exit(1);
        }
    }
    void print() const { table_.print(); }

private:
    Table table_;
};

/// 3.5:1 in all layers, as in the design's figures.
inline std::string h2o_config() {
    return "\"kv_h2o_enable\": true, \"kv_h2o_layer_start\": 0, "
           "\"kv_h2o_target_lossy_ratio\": 3.5, \"kv_h2o_block_tokens\": 32, "
           "\"kv_h2o_sink_tokens\": 16, \"kv_h2o_recent_tokens\": 96";
}

/// All layers compressed.
inline std::string store_config(std::uint32_t layers, std::uint32_t workers) {
    return "\"kv_lossless_enable\": true, \"kv_lossless_runtime_enable\": true, "
           "\"kv_lossless_runtime_mode\": \"store\", \"kv_lossless_front_n\": " + std::to_string(layers) +
           ", \"kv_lossless_async_threads\": " + std::to_string(workers);
}

/// The value above `share` of the others.
inline double quantile(std::vector<double> values, double share) {
    std::sort(values.begin(), values.end());
    return values.empty() ? std::nan("") : values[static_cast<std::size_t>(share * double(values.size() - 1))];
}

inline double zero_if_nan(double value) { return std::isnan(value) ? 0 : value; }

void memory(const Content& content, Report& report);
void waits(const Content& content, Report& report);

}  // namespace bench

#endif
