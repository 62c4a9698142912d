//! Random configs, and their meaning for each layer.

use crate::common::Random;

/// The eviction rules of a layer.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) block: usize,
    pub(super) sink: usize,
    pub(super) recent: usize,
    /// The share to keep.
    pub(super) ratio: f32,
    pub(super) cap: Option<usize>,
    pub(super) trigger: usize,
    pub(super) interval: usize,
    pub(super) alpha: f64,
    /// The last rows of a prompt that are scored.
    pub(super) prompt_rows: usize,
    /// Tokens that no scored row has seen may be evicted.
    pub(super) evict_unscored: bool,
}

/// The expectations of a schedule.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) json: String,
    pub(super) layers: u32,
    pub(super) lanes: u32,
    pub(super) workers: usize,
    pub(super) rules: Option<Rules>,
    /// Layers that tokens are evicted from.
    evicted: std::ops::Range<u32>,
    /// Layers whose blocks are released.
    stored: Vec<bool>,
    /// The scope and the mode of compression.
    pub(super) compression: String,
    pub(super) hot_sink: usize,
    pub(super) hot_recent: usize,
}

/// A kind of schedules.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    pub(super) workers: &'static [usize],
    /// Allocations fail by chance.
    pub(super) shortage: bool,
}

impl Settings {
    pub(super) fn new(kind: &Kind, random: &mut Random) -> Self {
        let layers = random.from(2, 4) as u32;
        let lanes = random.from(1, 3) as u32;
        let mut keys = Vec::new();
        let mut key = |name: &str, value: String| keys.push(format!("\"kv_{name}\": {value}"));

        let evict = !random.once_in(8);
        let start = random.pick(&[0, 0, 0, 1, 2]);
        let end = random.pick(&[-1, -1, start as i32, layers as i32 + 3]);
        let evicted = match end {
            -1 => start.min(layers)..layers,
            end => start.min(layers)..(end as u32 + 1).min(layers),
        };
        let rules = rules(random);
        key("h2o_enable", evict.to_string());
        key("h2o_policy", "\"mass\"".into());
        key("h2o_evict_unscored", rules.evict_unscored.to_string());
        key("h2o_layer_start", start.to_string());
        key("h2o_layer_end", end.to_string());
        for (name, number) in [
            ("h2o_block_tokens", rules.block),
            ("h2o_sink_tokens", rules.sink),
            ("h2o_recent_tokens", rules.recent),
            ("h2o_trigger_min_tokens", rules.trigger),
            ("h2o_update_interval", rules.interval),
            ("h2o_max_tokens", rules.cap.unwrap_or(0)),
        ] {
            key(name, number.to_string());
        }
        let rows = if rules.prompt_rows == usize::MAX { "-1".into() } else { rules.prompt_rows.to_string() };
        key("h2o_prefill_queries", rows);
        // The ratio in one of two forms. Powers of two are exact in both.
        if rules.ratio == 0.75 || random.once_in(2) {
            key("h2o_target_mode", "\"static\"".into());
            key("h2o_target_keep_ratio", rules.ratio.to_string());
        } else {
            key("h2o_target_lossy_ratio", (1.0 / rules.ratio).to_string());
        }
        key("h2o_ema_alpha", rules.alpha.to_string());

        let workers = random.pick(kind.workers);
        let mode = random.pick(&["off", "probe", "full", "store", "store", "store", "store", "store"]);
        let scope = random.pick(&[
            "front_n",
            "front_n",
            "h2o_kept",
            "h2o_kept",
            "front_n_and_h2o_kept",
            "front_n_and_h2o_kept",
            "none",
        ]);
        let front_n = random.from(1, layers as usize + 1) as u32 - u32::from(random.once_in(8));
        let (hot_sink, hot_recent) = (random.pick(&[0, 1, 4]), random.pick(&[0, 1, 4, 8]));
        if mode != "off" {
            key("lossless_enable", "true".into());
            key("lossless_runtime_enable", "true".into());
            key("lossless_runtime_mode", format!("\"{mode}\""));
        }
        key("lossless_scope", format!("\"{scope}\""));
        key("lossless_front_n", front_n.to_string());
        let codec = random.pick(&["fp16_gear_predictive_v3", "gear_delta", "auto"]);
        key("lossless_codec_runtime", format!("\"{codec}\""));
        key("lossless_strict_roundtrip_check", random.once_in(3).to_string());
        for (name, number) in [
            ("hot_sink_tokens", hot_sink),
            ("hot_recent_tokens", hot_recent),
            ("block_tokens", random.pick(&[1, 2, 4, 4, 7, 8, 16, 40])),
            ("store_bootstrap_tokens", random.pick(&[0, 3, 8])),
            ("store_grouped_step_tokens", random.pick(&[1, 8, 64])),
            ("async_threads", workers),
            ("max_queue", random.pick(&[1, 2, 4, 256])),
            ("decode_cache_blocks", random.pick(&[0, 1, 4, 64])),
            ("decode_cache_bytes", random.pick(&[0, 500, 4000, 1_000_000])),
        ] {
            key(&format!("lossless_{name}"), number.to_string());
        }

        let front = |layer: u32| scope.starts_with("front_n") && layer < front_n;
        let kept = |layer: u32| scope.ends_with("h2o_kept") && evict && evicted.contains(&layer);
        let stored = |layer: u32| mode == "store" && (front(layer) || kept(layer));
        Settings {
            json: format!("{{{}}}", keys.join(", ")),
            layers,
            lanes,
            workers,
            rules: evict.then_some(rules),
            stored: (0..layers).map(stored).collect(),
            compression: format!("{scope}, {mode}"),
            evicted,
            hot_sink,
            hot_recent,
        }
    }

    /// The rules of a layer, if it evicts.
    pub(super) fn rules_of(&self, layer: u32) -> Option<&Rules> {
        self.rules.as_ref().filter(|_| self.evicted.contains(&layer))
    }

    /// Whether blocks of a layer may be released.
    pub(super) fn stores(&self, layer: u32) -> bool {
        self.stored[layer as usize]
    }

    /// Whether a token is cold at the end of a step that leaves `len`.
    pub(super) fn is_cold(&self, at: usize, len: usize) -> bool {
        at >= self.hot_sink && at + self.hot_recent < len
    }
}

fn rules(random: &mut Random) -> Rules {
    let (block, sink, recent) = (random.from(1, 6), random.pick(&[0, 1, 4, 8]), random.pick(&[0, 1, 3, 8]));
    let interval = random.pick(&[1, 1, 2, 3, 5]);
    let least_cap = sink + recent + 3 * block + interval;
    Rules {
        block,
        sink,
        recent,
        ratio: random.pick(&[0.5, 0.5, 0.25, 0.25, 0.75, 0.125, 0.03125]),
        cap: random.once_in(3).then(|| least_cap + random.below(20)),
        trigger: random.pick(&[0, 1, 8, 16, 32]),
        interval,
        alpha: random.pick(&[0.0, 0.5, 0.75, 0.9375]),
        prompt_rows: random.pick(&[0, 0, 1, 4, 30, usize::MAX]),
        evict_unscored: random.once_in(4),
    }
}
