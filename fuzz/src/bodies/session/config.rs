//! The config of a schedule.

use crate::bodies::given::Given;

/// A config, and what a schedule must know of it.
pub struct Config {
    pub json: String,
    /// The first layer that tokens are evicted from.
    pub start: usize,
}

impl Config {
    pub fn any(given: &mut Given<'_>) -> Self {
        let mut keys = Vec::new();
        let mut key = |name: &str, value: String| keys.push(format!("\"kv_{name}\":{value}"));
        let (evicts, stores) = (given.flag(), given.flag());
        key("h2o_enable", evicts.to_string());
        key("lossless_enable", stores.to_string());
        key("lossless_runtime_enable", stores.to_string());
        key("lossless_async_threads", "0".into());
        let start = given.below(2);
        key("h2o_layer_start", start.to_string());
        if evicts {
            key("h2o_evict_unscored", given.flag().to_string());
            for (name, most) in [
                ("h2o_sink_tokens", 8),
                ("h2o_recent_tokens", 8),
                ("h2o_trigger_min_tokens", 40),
                ("h2o_prefill_queries", 8),
            ] {
                key(name, given.below(most).to_string());
            }
            key("h2o_block_tokens", given.from(1, 8).to_string());
            key("h2o_update_interval", given.from(1, 4).to_string());
            key("h2o_target_lossy_ratio", given.from(1, 6).to_string());
            key("h2o_max_tokens", given.pick(&[0, 0, 0, 90, 120]).to_string());
        }
        if stores {
            key("lossless_runtime_mode", given.pick(&["\"store\"", "\"store\"", "\"full\"", "\"probe\""]).into());
            key("lossless_scope", given.pick(&["\"front_n\"", "\"h2o_kept\"", "\"front_n_and_h2o_kept\""]).into());
            for (name, most) in [
                ("lossless_front_n", 3),
                ("lossless_hot_sink_tokens", 5),
                ("lossless_hot_recent_tokens", 9),
                ("lossless_store_bootstrap_tokens", 9),
                ("lossless_decode_cache_blocks", 5),
            ] {
                key(name, given.below(most).to_string());
            }
            key("lossless_block_tokens", given.from(1, 16).to_string());
            key("lossless_store_grouped_step_tokens", given.from(1, 40).to_string());
        }
        Config { json: format!("{{{}}}", keys.join(",")), start: if evicts { start } else { usize::MAX } }
    }
}
