//! The report: what a session does, its warnings, and the counters of the layers and of the store, added up per layer and in
//! total.

use super::eviction::{EvictionCounts, Shares};
use super::layer::Layer;
use super::lossless::{Lossless, LosslessCounts};
use super::metrics::{Metrics, WaitTimes};
use super::quant::QuantStats;
use super::{Session, State, find};
use crate::json::Escaped;
use crate::status::Result;
use crate::store::Statistics;
use crate::sys::memory;

impl Session {
    /// The metrics of one layer, or of all.
    pub fn metrics(&self, layer: Option<u32>) -> Result<Metrics> {
        let mut state = self.state()?;
        if let Some(layer) = layer {
            find(&mut state.layers, layer)?;
        }
        state.measure(layer)
    }

    /// What the session does, warns of and has counted, as a JSON object: "does", the line of [`Session::outlook`]; "warnings",
    /// the lines of [`Session::warnings`]; the metrics of all layers; with a budget or a file "memory", and "layers", a list of
    /// the layers that have been named.
    pub fn report(&self) -> Result<String> {
        let mut state = self.state()?;
        let does = self.outlook_of(&state)?;
        let mut text = memory::format(format_args!("{{\"does\":{},\"warnings\":[", Escaped(&does)))?;
        let warnings = self.warnings_of(&state)?;
        for (i, line) in warnings.lines().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            memory::append(&mut text, format_args!("{comma}{}", Escaped(line)))?;
        }
        memory::append(&mut text, format_args!("]"))?;
        state.measure(None)?.write_json(&mut text)?;
        if state.budget.is_some() || state.tier.is_some() {
            let working = self.working_bytes(&state)?;
            let memory = state.memory_stats(working);
            memory::append(&mut text, format_args!(",\"memory\":{{\"state\":\"{}\"", memory.rung.name()))?;
            for (name, value) in memory.fields() {
                memory::append(&mut text, format_args!(",\"{name}\":{value}"))?;
            }
            memory::append(&mut text, format_args!("}}"))?;
        }
        memory::append(&mut text, format_args!(",\"layers\":["))?;
        let mut comma = "";
        for number in 0..state.layers.len() as u32 {
            if !state.layers[number as usize].is_used() {
                continue;
            }
            memory::append(&mut text, format_args!("{comma}{{\"layer\":{number}"))?;
            if let Some(window) = state.layers[number as usize].window {
                memory::append(&mut text, format_args!(",\"window\":{}", window.tokens))?;
            }
            state.measure(Some(number))?.write_json(&mut text)?;
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
        let chosen = |l: &&Layer| l.is_used() && layer.is_none_or(|number| number == l.number);
        let layers = memory::collect(self.layers.iter().filter(chosen))?;
        if layers.is_empty() {
            return Ok(metrics);
        }
        lengths(&mut metrics, &layers)?;
        eviction(&mut metrics, memory::collect(layers.iter().copied().filter(|l| l.eviction.is_some()))?);
        let store = &mut self.store;
        let stats = store.statistics(layer);
        let mut pages = 0;
        for layer in &layers {
            // 0 where the system drops no pages. By layer, so that a session has the sum of its layers.
            if store.statistics(Some(layer.number)).released_bytes > 0 {
                pages += layer.compressed_page_bytes(store);
            }
        }
        metrics.h2o_resident_saved_bytes += pages as f64 - stats.compressed_bytes as f64;
        metrics.h2o_released_bytes += stats.released_bytes as f64;
        if layers.iter().filter_map(|l| l.lossless.as_ref()).any(Lossless::takes_part) {
            compression(&mut metrics, &layers, &stats);
        }
        Ok(metrics)
    }
}

/// Sums over layers.
fn total(layers: &[&Layer], of: impl Fn(&Layer) -> u64) -> f64 {
    layers.iter().map(|l| of(l)).sum::<u64>() as f64
}

fn evicting(layers: &[&Layer], of: fn(&EvictionCounts) -> u64) -> f64 {
    total(layers, |l| l.eviction.as_ref().map_or(0, |eviction| of(eviction.counts())))
}

fn us(ns: f64) -> f64 {
    ns / 1000.0
}

fn lengths(metrics: &mut Metrics, layers: &[&Layer]) -> Result<()> {
    metrics.h2o_logical_tokens = total(layers, |l| l.lengths().logical.into());
    metrics.h2o_physical_tokens = total(layers, |l| l.lengths().physical.into());
    let quantised = memory::collect(layers.iter().filter_map(|l| Some(l.quant.as_ref()?.stats(l.tokens()))))?;
    let count = |of: fn(&QuantStats) -> u64| quantised.iter().map(of).sum::<u64>() as f64;
    if !quantised.is_empty() {
        metrics.quant_tokens = count(|c| c.tokens);
        metrics.quant_bytes = count(|c| c.bytes);
        metrics.quant_block_count = count(|c| c.blocks);
        metrics.quant_unfit_block_count = count(|c| c.unfit);
        metrics.quant_k8v4_count = count(|c| c.k8v4);
        metrics.quant_failure_count = count(|c| c.failures);
        metrics.quant_begin_us = us(count(|c| c.begin_ns));
    }
    metrics.h2o_resident_saved_bytes = total(layers, Layer::evicted_bytes) - count(|c| c.bytes);
    metrics.h2o_reclaimable_bytes = total(layers, Layer::tail_bytes);
    metrics.h2o_released_bytes = total(layers, |l| l.released_bytes);
    Ok(())
}

/// `layers`: those that tokens are evicted from.
fn eviction(metrics: &mut Metrics, layers: Vec<&Layer>) {
    if layers.is_empty() {
        return;
    }
    let count = |of| evicting(&layers, of);
    let logical = total(&layers, |l| l.lengths().logical.into());
    let physical = total(&layers, |l| l.lengths().physical.into());
    if physical > 0.0 {
        metrics.h2o_keep_ratio = physical / logical;
        metrics.h2o_lossy_ratio = logical / physical;
    }
    let shares = || layers.iter().filter_map(|l| l.eviction.as_ref()?.shares());
    if shares().next().is_some() {
        let mean = |of: fn(&Shares) -> f32| shares().map(|s| f64::from(of(&s))).sum::<f64>() / shares().count() as f64;
        metrics.h2o_target_keep_effective = mean(|s| s.target);
        metrics.h2o_floor_keep_by_recent_sink = mean(|s| s.floor);
        metrics.h2o_block_quantized_keep = mean(|s| s.quantized);
        metrics.h2o_plan_us = us(count(|c| c.plan_ns));
    }
    metrics.h2o_plan_count = count(|c| c.plans);
    metrics.h2o_stale_plan_count = count(|c| c.stale_plans);
    metrics.h2o_total_evict_tokens = count(|c| c.evicted);
    metrics.h2o_unscored_plan_count = count(|c| c.unscored_plans);
    if layers.iter().any(|l| l.limit().is_some()) {
        metrics.h2o_over_limit_count = count(|c| c.over_steps);
    }
    // Plans; `compression` adds blocks.
    metrics.h2o_lossless_fallback_count = count(|c| c.failed_plans);
    if count(|c| c.evictions) > 0.0 {
        metrics.h2o_last_evict_tokens = count(|c| c.last_evicted);
        metrics.h2o_evict_us = us(count(|c| c.evict_ns));
    }
    if count(|c| c.scored_steps) > 0.0 {
        metrics.h2o_score_us = us(count(|c| c.score_ns));
    }
}

fn compression(metrics: &mut Metrics, layers: &[&Layer], stats: &Statistics) {
    let compressed = || layers.iter().filter_map(|l| l.lossless.as_ref());
    let count = |of: fn(&LosslessCounts) -> u64| compressed().map(|l| of(l.counts())).sum::<u64>() as f64;
    let failures = count(|c| c.failed_calls) + evicting(layers, |c| c.failed_plans);
    let workers = compressed().any(Lossless::has_workers);
    metrics.h2o_lossless_fallback_count = stats.failed_blocks as f64 + failures;
    metrics.h2o_lossless_stale_count = stats.stale_blocks as f64;
    metrics.h2o_resident_saved_bytes -= stats.decoded_cache_bytes as f64;
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
    compressed().for_each(|l| waits.merge(&l.counts().waits));
    if let (Some(p50), Some(p95), Some(max)) = (waits.quantile(0.5), waits.quantile(0.95), waits.max()) {
        metrics.h2o_lossless_async_wait_us = us(count(|c| c.wait_ns));
        metrics.h2o_host_wait_us_p50 = p50;
        metrics.h2o_host_wait_us_p95 = p95;
        metrics.h2o_host_wait_us_p99 = waits.quantile(0.99).unwrap_or(max);
        metrics.h2o_host_wait_us_max = max;
    }
    if stats.restored_blocks > 0 {
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
