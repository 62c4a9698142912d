//! A session's metrics against the model's counts.

use super::Run;
use crate::layout::Spec;
use crate::session::metrics::Metrics;

/// Metrics that are sums over layers.
const SUMS: &[&str] = &[
    "h2o_logical_tokens",
    "h2o_physical_tokens",
    "h2o_total_evict_tokens",
    "h2o_last_evict_tokens",
    "h2o_plan_count",
    "h2o_stale_plan_count",
    "h2o_unscored_plan_count",
    "h2o_over_limit_count",
    "h2o_released_bytes",
    "h2o_resident_saved_bytes",
    "h2o_reclaimable_bytes",
    "h2o_lossless_raw_bytes",
    "h2o_lossless_compressed_bytes",
    "h2o_lossless_decompressed_bytes",
    "h2o_lossless_restored_blocks",
    "h2o_lossless_restored_bytes",
    "h2o_lossless_decode_cache_hit",
    "h2o_lossless_decode_cache_miss",
    "h2o_lossless_fallback_count",
    "h2o_lossless_backpressure_skip_count",
    "h2o_lossless_stale_count",
];

impl Run {
    /// Checks the metrics after the last begin of every layer, when no block is released.
    pub(super) fn check_measures(&mut self) {
        let total = self.session.metrics(None).unwrap();
        let mut sums = vec![0.0; SUMS.len()];
        for (number, layer) in self.layers.iter().enumerate() {
            // Before the metrics: a worker may fail between two calls.
            let failed = self.session.state().unwrap().store.statistics(Some(number as u32)).failed_blocks;
            let metrics = self.session.metrics(Some(number as u32)).unwrap();
            if layer.idle {
                assert!(metrics.fields().all(|(_, value)| value.is_nan()), "{metrics:?}");
                continue;
            }
            let model = &layer.model;
            assert_eq!(metrics.h2o_logical_tokens, f64::from(model.logical));
            assert_eq!(metrics.h2o_physical_tokens, model.len() as f64);
            if model.evicts() {
                assert_eq!(metrics.h2o_plan_count, model.counts.plans as f64);
                assert_eq!(metrics.h2o_stale_plan_count, model.counts.stale as f64);
                assert_eq!(metrics.h2o_total_evict_tokens, model.counts.evicted as f64);
                assert_eq!(metrics.h2o_unscored_plan_count, model.counts.unscored as f64);
                assert_eq!(measured(&metrics, "h2o_over_limit_count"), model.counts.over as f64);
                assert_eq!(metrics.h2o_score_us.is_nan(), model.counts.scored == 0);
                let last = Some(metrics.h2o_last_evict_tokens).filter(|tokens| !tokens.is_nan());
                assert_eq!(last, (model.counts.evictions > 0).then_some(model.counts.last_evicted as f64));
            } else {
                assert!(metrics.h2o_plan_count.is_nan() && metrics.h2o_keep_ratio.is_nan());
            }
            let token_bytes = self.session.state().unwrap().layers[number].token_bytes();
            let is_missing = self.session.state().unwrap().layers[number].buffer_tokens == 0;
            assert!(!is_missing || model.logical == 0);
            let token_bytes = if is_missing { 0 } else { token_bytes };
            let tail = (layer.host.layout.max_tokens() - layer.host.tokens.len()) * token_bytes;
            assert_eq!(metrics.h2o_reclaimable_bytes, tail as f64);
            let failures = measured(&metrics, "h2o_lossless_fallback_count");
            if metrics.h2o_lossless_backpressure_skip_count.is_nan() {
                assert_eq!(failures, model.counts.unplanned as f64, "layer {number} is not compressed");
            } else {
                self.coverage.count("no memory to encode", failed);
                let rest = failures - (model.counts.unplanned + failed) as f64;
                assert!(rest >= 0.0, "layer {number}: {failures} failures");
                self.coverage.count("no memory to submit", rest as u64);
            }
            sums.iter_mut().zip(SUMS).for_each(|(sum, name)| *sum += measured(&metrics, name));
        }
        // Workers may finish a block between two calls.
        if self.settings.workers == 0 {
            for (sum, name) in sums.iter().zip(SUMS) {
                assert_eq!(measured(&total, name), *sum, "{name}");
            }
        }
        if !self.shortage {
            assert_eq!(measured(&total, "h2o_lossless_fallback_count"), 0.0);
        }
        let count = |name| measured(&total, name) as u64;
        self.coverage.count("blocks refused by a full queue", count("h2o_lossless_backpressure_skip_count"));

        let mut state = self.session.state().unwrap();
        let store = &mut state.store;
        let stats = store.statistics(None);
        assert_eq!((stats.released_blocks, stats.released_raw_bytes), (0, 0));
        assert_eq!(stats.restored_blocks, stats.prefetch_hits + stats.cache_hits + stats.cache_misses);
        let rewritten = self.coverage.of("tokens rewritten") > 0;
        assert!(stats.stale_blocks == 0 || rewritten, "stale blocks without rewritten tokens");
        for (what, times) in [
            ("encoded blocks", stats.submitted_blocks),
            (&format!("encoded blocks of {}", self.settings.compression), stats.submitted_blocks),
            ("queues of two or more", u64::from(stats.queue_peak > 1)),
            ("restored blocks", stats.restored_blocks),
            ("blocks decoded ahead", stats.prefetch_hits),
            ("blocks found decoded", stats.cache_hits),
        ] {
            self.coverage.count(what, times);
        }
        for (number, layer) in self.layers.iter().enumerate() {
            let restored = store.statistics(Some(number as u32)).restored_blocks;
            let Spec { head_dim, l_pack, h_pack, .. } = layer.host.spec();
            let interleaved = if l_pack > 1 { restored } else { 0 };
            let padded = if head_dim % l_pack > 0 && head_dim % h_pack > 0 { restored } else { 0 };
            self.coverage.count("restored blocks of interleaved tokens", interleaved);
            self.coverage.count("restored blocks with padding dims", padded);
        }
    }
}

/// A metric by its name, or 0 if it was not measured.
fn measured(metrics: &Metrics, name: &str) -> f64 {
    let field = metrics.fields().find(|(field, _)| *field == name);
    field.map(|(_, value)| value).filter(|value| !value.is_nan()).unwrap_or(0.0)
}
