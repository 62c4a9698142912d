//! What a session measured, under the names that hosts print.

use crate::status::Result;
use crate::sys::memory;

macro_rules! metrics {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Measurements; NaN is "not measured". The names are those that hosts print.
        #[derive(Clone, Copy, Debug)]
        pub struct Metrics {
            $($(#[$doc])* pub $name: f64,)*
        }

        impl Default for Metrics {
            /// Nothing measured.
            fn default() -> Self {
                Metrics { $($name: f64::NAN),* }
            }
        }

        impl Metrics {
            /// Name and value of every field, in the order of the struct.
            pub fn fields(&self) -> impl Iterator<Item = (&'static str, f64)> + use<> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

metrics! {
    /// Ratio: tokens in the caches over the chat's, of the layers that tokens are evicted from.
    h2o_keep_ratio,
    /// Ratio: the chat's tokens over those in the caches, of the layers that tokens are evicted from.
    h2o_lossy_ratio,
    /// Ratio: raw bytes over compressed bytes; blocks that stayed raw count as 1.
    h2o_lossless_ratio,
    /// Ratio: share of the chat (basis physical: of the cache) that the last plans aimed at: the target, or the protected
    /// tokens where those are more; mean over layers.
    h2o_target_keep_effective,
    /// Ratio: share of it in protected (first and recent) blocks; mean over layers.
    h2o_floor_keep_by_recent_sink,
    /// Ratio: the share aimed at, rounded up to whole blocks; mean over layers.
    h2o_block_quantized_keep,
    /// Microseconds: evicting, that is moving the tokens that stay and giving the pages behind them back; sum.
    h2o_evict_us,
    /// Microseconds: encoding and decoding; sum.
    h2o_codec_us,
    /// Bytes: raw size of all blocks that were encoded.
    h2o_lossless_raw_bytes,
    /// Bytes: what those blocks became; raw ones count with their raw size.
    h2o_lossless_compressed_bytes,
    /// Bytes: raw size of all that was decoded.
    h2o_lossless_decompressed_bytes,
    /// Microseconds: encoding; sum.
    h2o_lossless_compress_us,
    /// Microseconds: decoding; sum.
    h2o_lossless_decompress_us,
    /// Count: most blocks that ever waited for a worker or were with one; needs workers.
    h2o_lossless_queue_depth_peak,
    /// Count: blocks that stayed raw, and plans that were not made, because something failed.
    h2o_lossless_fallback_count,
    /// Count: blocks that were skipped because the queue was full.
    h2o_lossless_backpressure_skip_count,
    /// Count: the same as h2o_lossless_queue_depth_peak, where there are workers.
    h2o_lossless_async_queue_peak,
    /// Microseconds: begin restoring compressed tokens, waiting for workers included; sum.
    h2o_lossless_async_wait_us,
    /// Count: restored blocks whose decoded rows were there, decoded ahead or kept.
    h2o_lossless_decode_cache_hit,
    /// Count: restored blocks that begin had to decode.
    h2o_lossless_decode_cache_miss,
    /// Tokens: evicted by the last eviction, summed over layers.
    h2o_last_evict_tokens,
    /// Tokens: evicted by all evictions, summed over layers.
    h2o_total_evict_tokens,
    /// Tokens: the chat's length, with those that were evicted, summed over layers.
    h2o_logical_tokens,
    /// Tokens: what the caches hold, summed over layers.
    h2o_physical_tokens,
    /// Microseconds: turning what the lanes gathered into scores, at end; sum. The time that attention threads spend in
    /// mnnkv_session_scores is not measured: asking for it would cost as much as a tile.
    h2o_score_us,
    /// Microseconds: deciding what stays; sum.
    h2o_plan_us,
    /// Count: plans made.
    h2o_plan_count,
    /// Count: plans dropped because the cache had changed.
    h2o_stale_plan_count,
    /// Bytes: memory given back to the system, ever.
    h2o_released_bytes,
    /// Bytes: raw size of the tokens that are not in the caches now, less the blobs and decoded rows kept for them.
    /// Rounding to pages and the threads' working memory are not in it.
    h2o_resident_saved_bytes,
    /// Bytes: tails of the caches behind their tokens; a host could move to buffers this much smaller.
    h2o_reclaimable_bytes,
    /// Count: blocks written back to a cache.
    h2o_lossless_restored_blocks,
    /// Bytes: raw size of what was written back.
    h2o_lossless_restored_bytes,
    /// Count: restored blocks whose decoded rows had been kept from an earlier step.
    h2o_lossless_restore_hit,
    /// Count: restored blocks that were decoded ahead.
    h2o_lossless_prefetch_hit,
    /// Count: restored blocks that should have been decoded ahead and were not.
    h2o_lossless_prefetch_miss,
    /// Count: compressed blocks dropped because the cache had changed.
    h2o_lossless_stale_count,
    /// Microseconds: what begin spent on restoring, where there was something; half of the calls took less.
    h2o_host_wait_us_p50,
    /// Microseconds: as above; 95 of 100 calls took less.
    h2o_host_wait_us_p95,
    /// Microseconds: as above, the longest.
    h2o_host_wait_us_max,
    /// Count: plans that were not made, or left more tokens than the config says, since no scored row has seen them;
    /// see kv_h2o_evict_unscored.
    h2o_unscored_plan_count,
    /// Count: steps that left more tokens in a cache than kv_h2o_max_tokens, where there is such a limit.
    h2o_over_limit_count,
}

impl Metrics {
    /// Appends what was measured as members of a JSON object, in order, without its braces. Whole numbers below 2^53 have
    /// no fraction.
    pub fn write_json(&self, out: &mut String) -> Result<()> {
        // JSON has no infinity. None occurs, and one would be no measurement either.
        for (i, (name, value)) in self.fields().filter(|(_, value)| value.is_finite()).enumerate() {
            let comma = if i > 0 { "," } else { "" };
            memory::append(out, format_args!("{comma}\"{name}\":"))?;
            match value {
                v if v.fract() == 0.0 && v.abs() < (1u64 << 53) as f64 => {
                    memory::append(out, format_args!("{}", v as i64))?;
                }
                // Plain digits would fill a line.
                v if v.abs() >= 1e16 || v.abs() < 1e-5 => memory::append(out, format_args!("{v:e}"))?,
                v => memory::append(out, format_args!("{v}"))?,
            }
        }
        Ok(())
    }
}

/// How often each duration occurred: a histogram of fixed size whose quantiles are at most 5 % off.
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

    /// The shortest duration in microseconds that the share `q` (0 to 1) of all durations does not exceed, at most 5 %
    /// off; `None` when there is none. `q` = 1 is the exact maximum.
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

    /// The row is how far the number is shifted until `FINE` to `2 FINE - 1` is left, the column what is left.
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
