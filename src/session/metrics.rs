//! The metrics of a session: names, units and meanings.

use crate::json::Brief;
use crate::status::Result;
use crate::sys::memory;

/// A struct of numbers, and their list: the struct, the JSON and docs/report.md follow from it.
macro_rules! numbers {
    (
        $(#[$about:meta])* $name:ident: $type:ty = $none:expr;
        $({ $(#[$more:meta])* $other:ident: $other_type:ty })?
        $($unit:ident $field:ident: $meaning:literal,)*
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $name {
            $(#[doc = concat!(stringify!($unit), ": ", $meaning)] pub $field: $type,)*
            $($(#[$more])* pub $other: $other_type,)?
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $($field: $none,)* $($other: <$other_type>::default(),)? }
            }
        }

        impl $name {
            /// Every number in the order of the struct.
            pub const FIELDS: &[Field] =
                &[$(Field { name: stringify!($field), unit: stringify!($unit), meaning: $meaning }),*];

            /// Name and value of every number, in the order of the struct.
            pub fn fields(&self) -> impl Iterator<Item = (&'static str, $type)> + use<> {
                [$((stringify!($field), self.$field)),*].into_iter()
            }
        }
    };
}

pub(super) use numbers;

/// The definition of one metric.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// In JSON and in the header.
    pub name: &'static str,
    /// ratio, us (microseconds), ns (nanoseconds), bytes, count or tokens.
    pub unit: &'static str,
    /// The header's text.
    pub meaning: &'static str,
}

numbers! {
    /// Measurements. NaN is "not measured".
    Metrics: f64 = f64::NAN;
    ratio h2o_keep_ratio: "physical / logical tokens, layers that evict",
    ratio h2o_lossy_ratio: "logical / physical tokens, layers that evict",
    ratio h2o_lossless_ratio: "raw / encoded bytes, blocks left raw included",
    ratio h2o_target_keep_effective: "share that plans aim at: target or floor, mean",
    ratio h2o_floor_keep_by_recent_sink: "floor: share in sink, recent and pinned blocks, mean",
    ratio h2o_block_quantized_keep: "that share rounded up to whole blocks, mean; plans keep all where the floor reaches the target",
    us h2o_evict_us: "moving kept tokens, releasing pages",
    us h2o_codec_us: "encoding and decoding",
    bytes h2o_lossless_raw_bytes: "blocks encoded, raw size",
    bytes h2o_lossless_compressed_bytes: "blocks encoded, encoded size (raw if no gain)",
    bytes h2o_lossless_decompressed_bytes: "blocks decoded, raw size",
    us h2o_lossless_compress_us: "encoding",
    us h2o_lossless_decompress_us: "decoding",
    count h2o_lossless_queue_depth_peak: "most blocks queued; absent without workers",
    count h2o_lossless_fallback_count: "failures: blocks left raw, plans not made",
    count h2o_lossless_backpressure_skip_count: "blocks skipped: queue full, pending bytes used up, refused",
    count h2o_lossless_async_queue_peak: "as h2o_lossless_queue_depth_peak",
    us h2o_lossless_async_wait_us: "restoring in begin, waits included",
    count h2o_lossless_decode_cache_hit: "restored blocks decoded before begin",
    count h2o_lossless_decode_cache_miss: "restored blocks decoded by begin",
    tokens h2o_last_evict_tokens: "removed by the last eviction of each layer",
    tokens h2o_total_evict_tokens: "removed by all evictions",
    tokens h2o_logical_tokens: "now: in the chat",
    tokens h2o_physical_tokens: "now: in the caches",
    us h2o_score_us: "scoring in end; block sums are not timed",
    us h2o_plan_us: "planning",
    count h2o_plan_count: "plans made",
    count h2o_stale_plan_count: "plans dropped, cache had changed",
    bytes h2o_released_bytes: "returned to the system; a tail of INT8 V once",
    bytes h2o_resident_saved_bytes: "now: pages of tokens that have left the caches, less blobs, decoded rows and blocks; may be negative",
    bytes h2o_reclaimable_bytes: "now: buffers after the last token",
    count h2o_lossless_restored_blocks: "blocks restored",
    bytes h2o_lossless_restored_bytes: "blocks restored, raw size",
    count h2o_lossless_restore_hit: "restored blocks kept decoded since earlier steps",
    count h2o_lossless_prefetch_hit: "restored blocks that a worker decoded ahead",
    count h2o_lossless_prefetch_miss: "restored blocks that no worker decoded in time",
    count h2o_lossless_stale_count: "blocks dropped, cache had changed",
    us h2o_host_wait_us_p50: "median of the begins that restored, within 5%",
    us h2o_host_wait_us_p95: "95th percentile, likewise",
    us h2o_host_wait_us_max: "maximum, exact",
    count h2o_unscored_plan_count: "plans that kept more than planned: unscored tokens",
    count h2o_over_limit_count: "steps that ended above kv_h2o_max_tokens; absent without",
    us h2o_host_wait_us_p99: "99th percentile, within 5%",
    tokens quant_tokens: "now: in blocks, in memory or in the file, if only for one head",
    bytes quant_bytes: "now: of their codes and lists, in memory",
    count quant_block_count: "blocks of 64 tokens made",
    count quant_unfit_block_count: "blocks that stayed raw: a number is not finite, or codes would be too far from it",
    count quant_k8v4_count: "heads of new blocks with k8v4, since k4v4 did not hold them",
    count quant_failure_count: "begins that left tokens raw: memory was refused",
    us quant_begin_us: "making blocks in begin",
}

impl Metrics {
    /// Appends the measured fields as further members of a JSON object, in order, each behind a comma. Whole numbers below
    /// 2^53 have no fraction.
    pub fn write_json(&self, out: &mut String) -> Result<()> {
        // JSON has no infinity, and no metric becomes infinite.
        for (name, value) in self.fields().filter(|(_, value)| value.is_finite()) {
            memory::append(out, format_args!(",\"{name}\":"))?;
            match value {
                v if v.fract() == 0.0 && v.abs() < (1u64 << 53) as f64 => {
                    memory::append(out, format_args!("{}", v as i64))?;
                }
                v => memory::append(out, format_args!("{}", Brief(v)))?,
            }
        }
        Ok(())
    }
}

/// A histogram of durations of fixed size. Its quantiles are at most 5% off.
///
/// Buckets are as fine as a sixteenth of the power of two below them, so their middle is at most 1/32 off; durations
/// below 32 ns have buckets of their own.
#[derive(Clone, Debug)]
pub struct WaitTimes {
    counts: [u64; WaitTimes::BUCKETS],
    count: u64,
    max_ns: u64,
}

impl Default for WaitTimes {
    fn default() -> Self {
        WaitTimes { counts: [0; WaitTimes::BUCKETS], count: 0, max_ns: 0 }
    }
}

impl WaitTimes {
    /// Buckets per power of two, as a power of two.
    const FINE_BITS: u32 = 4;
    const FINE: u64 = 1 << Self::FINE_BITS;
    /// One row of `FINE` for each shift of 64-bit numbers, one more for those below `FINE`.
    const BUCKETS: usize = (65 - Self::FINE_BITS as usize) << Self::FINE_BITS;

    /// Adds a duration in nanoseconds.
    pub fn record(&mut self, ns: u64) {
        self.counts[Self::bucket(ns)] += 1;
        self.count += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds all durations of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        self.count += other.count;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Durations recorded.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest duration in microseconds, exact; `None` when there is none.
    pub fn max(&self) -> Option<f64> {
        (self.count > 0).then(|| microseconds(self.max_ns as f64))
    }

    /// The quantile `q` (0 to 1) in microseconds, at most 5% off; the exact maximum for 1. `None` when there is none.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let rank = ((q * self.count as f64).ceil() as u64).max(1);
        if rank >= self.count {
            return self.max();
        }
        let mut below = 0;
        let bucket = self.counts.iter().position(|count| {
            below += count;
            below >= rank
        })?;
        Some(microseconds(Self::middle(bucket).min(self.max_ns as f64)))
    }

    /// Row: the shift that leaves `FINE` to `2 FINE - 1`. Column: the number shifted.
    fn bucket(ns: u64) -> usize {
        if ns < Self::FINE {
            return ns as usize;
        }
        let shift = ns.ilog2() - Self::FINE_BITS;
        ((u64::from(shift) << Self::FINE_BITS) + (ns >> shift)) as usize
    }

    /// The mean of the least and the greatest number of a bucket.
    fn middle(bucket: usize) -> f64 {
        let shift = (bucket as u64 >> Self::FINE_BITS).saturating_sub(1);
        let least = (bucket as u64 - (shift << Self::FINE_BITS)) << shift;
        least as f64 + ((1u64 << shift) - 1) as f64 / 2.0
    }
}

fn microseconds(ns: f64) -> f64 {
    ns / 1000.0
}

#[cfg(test)]
mod tests;
