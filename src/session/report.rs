//! What a session has measured, per layer and in total.

use super::layer::{Layer, Seen, Shares};
use super::metrics::{Metrics, WaitTimes};
use super::{Session, State, find, zones};
use crate::status::Result;
use crate::store::{Statistics, Store};
use crate::sys::memory;

impl Session {
    /// The metrics of one layer, or of all together.
    pub fn metrics(&self, layer: Option<u32>) -> Result<Metrics> {
        let mut state = self.state()?;
        if let Some(layer) = layer {
            find(&mut state.layers, layer)?;
        }
        state.measure(layer)
    }

    /// All of them as a JSON object: the totals, and a list "layers" of those that were ever named.
    pub fn metrics_json(&self) -> Result<String> {
        let mut state = self.state()?;
        let mut text = memory::text("{")?;
        state.measure(None)?.write_json(&mut text)?;
        let mut comma = if text.len() > 1 { "," } else { "" };
        memory::append(&mut text, format_args!("{comma}\"layers\":["))?;
        comma = "";
        for number in 0..state.layers.len() as u32 {
            if !state.layers[number as usize].is_used() {
                continue;
            }
            memory::append(&mut text, format_args!("{comma}{{\"layer\":{number},"))?;
            state.measure(Some(number))?.write_json(&mut text)?;
            if text.ends_with(',') {
                text.pop();
            }
            memory::append(&mut text, format_args!("}}"))?;
            comma = ",";
        }
        memory::append(&mut text, format_args!("]}}"))?;
        Ok(text)
    }
}

impl State {
    fn measure(&mut self, layer: Option<u32>) -> Result<Metrics> {
        let mut metrics = Metrics::default();
        let wanted = |l: &&Layer| l.is_used() && layer.is_none_or(|wanted| wanted == l.number);
        let layers = memory::collect(self.layers.iter().filter(wanted))?;
        if layers.is_empty() {
            return Ok(metrics);
        }
        lengths(&mut metrics, &layers);
        let limited = self.config.h2o.as_ref().is_some_and(|h2o| h2o.max_tokens.is_some());
        eviction(&mut metrics, memory::collect(layers.iter().copied().filter(|l| l.evicts()))?, limited);
        let Some(store) = &mut self.store else { return Ok(metrics) };
        let compressed = layers.iter().any(|l| zones::zone(&self.config, l.number).is_some());
        if compressed {
            let stats = store.statistics(layer);
            let workers = self.config.lossless.as_ref().is_some_and(|l| l.workers > 0);
            // Memory that the system does not drop stays.
            let dropped = layers.iter().filter(|_| stats.released_bytes > 0);
            let pages = dropped.filter_map(|l| Some(released_pages(store, l.number, l.seen.as_ref()?))).sum();
            compression(&mut metrics, &layers, &stats, pages, workers);
        }
        Ok(metrics)
    }
}

/// Bytes of the whole pages that a layer's released tokens have left.
fn released_pages(store: &Store, layer: u32, seen: &Seen) -> u64 {
    store.released_runs(layer, &seen.layout).into_iter().map(|range| seen.pages_of(range)).sum()
}

/// Sums over layers.
fn total(layers: &[&Layer], of: impl Fn(&Layer) -> u64) -> f64 {
    layers.iter().map(|l| of(l)).sum::<u64>() as f64
}

fn us(ns: f64) -> f64 {
    ns / 1000.0
}

fn lengths(metrics: &mut Metrics, layers: &[&Layer]) {
    metrics.h2o_logical_tokens = total(layers, |l| l.lengths.logical.into());
    metrics.h2o_physical_tokens = total(layers, |l| l.lengths.physical.into());
    metrics.h2o_resident_saved_bytes = total(layers, Layer::evicted_bytes);
    let tail = |l: &Layer| l.buffer_tokens.saturating_sub(l.lengths.physical as usize) as u64 * l.token_bytes() as u64;
    metrics.h2o_reclaimable_bytes = total(layers, tail);
    metrics.h2o_released_bytes = total(layers, |l| l.counts.released_bytes);
}

fn eviction(metrics: &mut Metrics, layers: Vec<&Layer>, limited: bool) {
    if layers.is_empty() {
        return;
    }
    let logical = total(&layers, |l| l.lengths.logical.into());
    let physical = total(&layers, |l| l.lengths.physical.into());
    if physical > 0.0 {
        metrics.h2o_keep_ratio = physical / logical;
        metrics.h2o_lossy_ratio = logical / physical;
    }
    let shares = || layers.iter().filter_map(|l| l.shares);
    if shares().next().is_some() {
        let mean = |of: fn(&Shares) -> f32| shares().map(|s| f64::from(of(&s))).sum::<f64>() / shares().count() as f64;
        metrics.h2o_target_keep_effective = mean(|s| s.target);
        metrics.h2o_floor_keep_by_recent_sink = mean(|s| s.floor);
        metrics.h2o_block_quantized_keep = mean(|s| s.quantized);
        metrics.h2o_plan_us = us(total(&layers, |l| l.counts.plan_ns));
    }
    metrics.h2o_plan_count = total(&layers, |l| l.counts.plans);
    metrics.h2o_stale_plan_count = total(&layers, |l| l.counts.stale_plans);
    metrics.h2o_total_evict_tokens = total(&layers, |l| l.counts.evicted);
    metrics.h2o_unscored_plan_count = total(&layers, |l| l.counts.unscored_plans);
    if limited {
        metrics.h2o_over_limit_count = total(&layers, |l| l.counts.over_steps);
    }
    // Plans; blocks are added where tokens are compressed.
    metrics.h2o_lossless_fallback_count = total(&layers, |l| l.counts.fallbacks);
    if total(&layers, |l| l.counts.evictions) > 0.0 {
        metrics.h2o_last_evict_tokens = total(&layers, |l| l.counts.last_evicted);
        metrics.h2o_evict_us = us(total(&layers, |l| l.counts.evict_ns));
    }
    if total(&layers, |l| l.counts.scored_steps) > 0.0 {
        metrics.h2o_score_us = us(total(&layers, |l| l.counts.score_ns));
    }
}

fn compression(metrics: &mut Metrics, layers: &[&Layer], stats: &Statistics, pages: u64, workers: bool) {
    metrics.h2o_lossless_fallback_count = stats.failed_blocks as f64 + total(layers, |l| l.counts.fallbacks);
    metrics.h2o_lossless_stale_count = stats.stale_blocks as f64;
    metrics.h2o_resident_saved_bytes += pages as f64 - stats.compressed_bytes as f64 - stats.decoded_cache_bytes as f64;
    metrics.h2o_released_bytes += stats.released_bytes as f64;
    metrics.h2o_lossless_backpressure_skip_count = stats.busy_blocks as f64;
    if workers {
        metrics.h2o_lossless_queue_depth_peak = stats.queue_peak as f64;
        metrics.h2o_lossless_async_queue_peak = stats.queue_peak as f64;
    }
    if stats.encoded_bytes > 0 {
        metrics.h2o_lossless_ratio = stats.encoded_bytes as f64 / stats.encoded_to_bytes as f64;
        metrics.h2o_lossless_raw_bytes = stats.encoded_bytes as f64;
        metrics.h2o_lossless_compressed_bytes = stats.encoded_to_bytes as f64;
        metrics.h2o_lossless_compress_us = us(stats.encode_ns as f64);
        metrics.h2o_codec_us = us((stats.encode_ns + stats.decode_ns) as f64);
    }
    if stats.decoded_bytes > 0 {
        metrics.h2o_lossless_decompressed_bytes = stats.decoded_bytes as f64;
        metrics.h2o_lossless_decompress_us = us(stats.decode_ns as f64);
    }
    let mut waits = WaitTimes::default();
    layers.iter().for_each(|l| waits.merge(&l.counts.waits));
    if let (Some(p50), Some(p95), Some(max)) = (waits.quantile(0.5), waits.quantile(0.95), waits.max()) {
        metrics.h2o_lossless_async_wait_us = us(total(layers, |l| l.counts.wait_ns));
        metrics.h2o_host_wait_us_p50 = p50;
        metrics.h2o_host_wait_us_p95 = p95;
        metrics.h2o_host_wait_us_max = max;
        metrics.h2o_lossless_restored_blocks = stats.restored_blocks as f64;
        metrics.h2o_lossless_restored_bytes = stats.restored_bytes as f64;
        metrics.h2o_lossless_decode_cache_hit = (stats.prefetch_hits + stats.cache_hits) as f64;
        metrics.h2o_lossless_decode_cache_miss = stats.cache_misses as f64;
        metrics.h2o_lossless_restore_hit = stats.cache_hits as f64;
        if workers {
            metrics.h2o_lossless_prefetch_hit = stats.prefetch_hits as f64;
            metrics.h2o_lossless_prefetch_miss = stats.cache_misses as f64;
        }
    }
}
