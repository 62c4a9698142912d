//! What a session says it measured, against what the model counted.

use super::Run;
use crate::session::metrics::Metrics;

/// Metrics that are sums over layers.
const SUMS: &[&str] = &[
    "h2o_logical_tokens",
    "h2o_physical_tokens",
    "h2o_total_evict_tokens",
    "h2o_last_evict_tokens",
    "h2o_plan_count",
    "h2o_stale_plan_count",
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
    /// After the last begin of every layer: nothing is compressed only.
    pub(super) fn check_measures(&mut self) {
        let total = self.session.metrics(None).unwrap();
        let mut sums = vec![0.0; SUMS.len()];
        for (number, layer) in self.layers.iter().enumerate() {
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
                assert_eq!(metrics.h2o_score_us.is_nan(), model.counts.scored == 0);
                assert_eq!(metrics.h2o_last_evict_tokens.is_nan(), model.counts.evictions == 0);
            } else {
                assert!(metrics.h2o_plan_count.is_nan() && metrics.h2o_keep_ratio.is_nan());
            }
            sums.iter_mut().zip(SUMS).for_each(|(sum, name)| *sum += measured(&metrics, name));
        }
        // Workers may hand something in between two looks.
        if self.settings.workers == 0 {
            for (sum, name) in sums.iter().zip(SUMS) {
                assert_eq!(measured(&total, name), *sum, "{name}");
            }
        }
        if !self.shortage {
            assert_eq!(measured(&total, "h2o_lossless_fallback_count"), 0.0);
        }
        self.coverage.busy += measured(&total, "h2o_lossless_backpressure_skip_count") as u64;

        let mut state = self.session.state().unwrap();
        let Some(store) = &mut state.store else { return };
        let stats = store.statistics(None);
        assert_eq!((stats.released_blocks, stats.released_raw_bytes), (0, 0));
        assert_eq!(stats.restored_blocks, stats.prefetch_hits + stats.cache_hits + stats.cache_misses);
        assert_eq!(stats.stale_blocks, 0, "this host writes to no token twice");
        self.coverage.restored += stats.restored_blocks;
        self.coverage.prefetched += stats.prefetch_hits;
        self.coverage.kept_decoded += stats.cache_hits;
        self.coverage.failed_blocks += stats.failed_blocks;
    }
}

/// A metric by its name, 0 when it was not measured.
fn measured(metrics: &Metrics, name: &str) -> f64 {
    let field = metrics.fields().find(|(field, _)| *field == name);
    field.map(|(_, value)| value).filter(|value| !value.is_nan()).unwrap_or(0.0)
}
