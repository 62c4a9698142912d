// Columns of a benchmark's table, read from the metrics of a report (mnnkv_session_report). Needs no library.

#ifndef MNNKV_COLUMNS_HPP
#define MNNKV_COLUMNS_HPP

#include <string>
#include <vector>

#include "mnnkv_json.hpp"

namespace mnnkv_host {

/// The metrics of a JSON object that has them as "kv_metrics"; "" when it has none.
inline std::string metrics_in(const std::string& config) { return json_member(config, "kv_metrics"); }

/// Names of metrics, one per column: the savings, then those that `mnnkv gate` judges a store by.
inline const std::vector<std::string>& metric_columns() {
    static const std::vector<std::string> names = {
        "h2o_lossy_ratio",
        "h2o_lossless_ratio",
        "h2o_total_evict_tokens",
        "h2o_resident_saved_bytes",
        "h2o_lossless_decompress_us",
        "h2o_lossless_queue_depth_peak",
        "h2o_lossless_fallback_count",
        "h2o_lossless_backpressure_skip_count",
        "h2o_lossless_async_queue_peak",
        "h2o_lossless_async_wait_us",
        "h2o_lossless_decode_cache_hit",
        "h2o_lossless_decode_cache_miss",
    };
    return names;
}

/// One number of the metrics; "-" when it was not measured.
inline std::string metric_text(const std::string& metrics, const std::string& name) {
    return json_member(metrics, name).empty() ? "-" : json_number_text(json_number_of(metrics, name), 10);
}

}  // namespace mnnkv_host

#endif  // MNNKV_COLUMNS_HPP
