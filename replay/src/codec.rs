//! gear on dumps: bytes and speed of each tensor, whole or cut into blocks as a session cuts, in the format of its store.

use crate::dumps::{Layer, LayerInfo};
use crate::error::{Error, Result};
use crate::results::LosslessResult;
use crate::watch::Watch;
use mnnkv::gear::{Decoder, Encoder, Format, Options};
use mnnkv::session::config::LosslessRules;
use rayon::prelude::*;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The name of tensors in one blob, in results.
pub const WHOLE: &str = "whole";
/// The name of tensors in blocks of a session.
pub const BLOCKS: &str = "blocks";

/// The zones of a session's layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zones {
    /// `kv_lossless_block_tokens`
    pub block_tokens: usize,
    /// `kv_lossless_hot_sink_tokens`
    pub hot_sink_tokens: usize,
    /// `kv_lossless_hot_recent_tokens`
    pub hot_recent_tokens: usize,
}

impl Zones {
    /// The zones of a session's config.
    pub fn of(rules: &LosslessRules) -> Self {
        Zones {
            block_tokens: rules.block_tokens as usize,
            hot_sink_tokens: rules.hot_sink_tokens as usize,
            hot_recent_tokens: rules.hot_recent_tokens as usize,
        }
    }

    /// The blocks of a cache of `tokens` tokens, without a first block of another length and without alignment to pages:
    /// those depend on the host's packing.
    pub fn blocks(&self, tokens: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let Zones { block_tokens, hot_sink_tokens, hot_recent_tokens } = *self;
        let begin = hot_sink_tokens.min(tokens);
        let cold = tokens.saturating_sub(hot_recent_tokens).saturating_sub(begin);
        (0..cold / block_tokens).map(move |i| begin + i * block_tokens..begin + (i + 1) * block_tokens)
    }

    /// Tokens in blocks of a cache of `tokens` tokens.
    pub fn cold_tokens(&self, tokens: usize) -> usize {
        self.blocks(tokens).map(|block| block.len()).sum()
    }
}

/// One tensor in one cut.
struct Job<'a> {
    info: &'a LayerInfo,
    tensor: &'static str,
    /// `[head][token][dim]`
    words: &'a [u8],
    cut: &'static str,
    /// The tokens of each part, and whether each head of a part is a blob of its own, as in a session.
    ranges: Vec<Range<usize>>,
    by_head: bool,
}

/// Encodes and decodes both tensors of a layer, whole and in blocks, on all threads of the pool. Tensors that have not begun
/// when the watch stops are left out. `done` gets the raw bytes of each, [`work`] in all.
///
/// An error means that the codec failed or returned other words; the dump itself cannot cause one.
pub fn evaluate(layer: &Layer, zones: &Zones, watch: Watch<'_>) -> Result<Vec<LosslessResult>> {
    let info = &layer.info;
    let whole = std::iter::once(0..info.tokens).collect::<Vec<_>>();
    let blocks: Vec<Range<usize>> = zones.blocks(info.tokens).collect();
    let jobs = [("k", &layer.key), ("v", &layer.value)].into_iter().flat_map(|(tensor, words)| {
        let job = |cut, ranges: &[_], by_head| Job { info, tensor, words, cut, ranges: ranges.to_vec(), by_head };
        [job(WHOLE, &whole, false), job(BLOCKS, &blocks, true)]
    });
    let jobs: Vec<Job<'_>> = jobs.collect();
    let results: Vec<Option<LosslessResult>> = jobs
        .par_iter()
        .map(|job| {
            if watch.is_stopped() {
                return Ok(None);
            }
            let result = job.run();
            (watch.done)(job.words.len() as u64);
            result.map(Some)
        })
        .collect::<Result<_>>()?;
    Ok(results.into_iter().flatten().collect())
}

/// Raw bytes of all that [`evaluate`] encodes of a layer.
pub fn work(info: &LayerInfo) -> u64 {
    4 * info.key_bytes() as u64
}

/// A pass shorter than this is timed again: its time is mostly that of the clock and of cold caches.
const SHORT: Duration = Duration::from_millis(20);
/// Most passes.
const PASSES: usize = 5;

/// Returns the result of `work` and the least time of its passes.
fn timed<T>(mut work: impl FnMut() -> Result<T>) -> Result<(T, Duration)> {
    let mut least = Duration::MAX;
    let mut all = Duration::ZERO;
    for pass in 1.. {
        let start = Instant::now();
        let value = work()?;
        let time = start.elapsed();
        least = least.min(time);
        all += time;
        if all >= SHORT || pass == PASSES {
            return Ok((value, least));
        }
    }
    unreachable!("the last pass returns")
}

impl Job<'_> {
    fn run(&self) -> Result<LosslessResult> {
        let info = self.info;
        let (row, dtype) = (info.head_dim * info.dtype.bytes(), info.dtype);
        let place = || format!("run {} layer {} {}", info.run, info.layer, self.tensor);
        let failed = |e: mnnkv::status::Error| Error::new(place(), e);
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        let (mut raw, mut kept, mut times) = (0, 0, [Duration::ZERO; 2]);
        let (mut rows, mut back) = (Vec::new(), Vec::new());
        let options = Options::new(Format::V1);
        for range in &self.ranges {
            rows.clear();
            let heads = self.words.chunks_exact((info.tokens * row).max(1));
            heads.for_each(|head| rows.extend_from_slice(&head[range.start * row..range.end * row]));
            let parts = if self.by_head { info.kv_heads.max(1) } else { 1 };
            let mut encoded = 0;
            for part in rows.chunks_exact((rows.len() / parts).max(1)) {
                let (blob, encoding) =
                    timed(|| encoder.encode(part, dtype, &options).map(<[u8]>::to_vec).map_err(failed))?;
                back.resize(part.len(), 0);
                let (len, decoding) = timed(|| decoder.decode(&blob, dtype, &mut back).map_err(failed))?;
                if back[..len] != *part {
                    let bug = "decoded words differ from the encoded ones: a bug of the codec";
                    return Err(Error::new(place(), bug));
                }
                encoded += blob.len();
                times = [times[0] + encoding, times[1] + decoding];
            }
            raw += rows.len();
            // A session keeps a block raw that does not shrink.
            kept += encoded.min(rows.len());
        }
        let hot = self.words.len() - raw;
        let speed = |time: Duration| (raw > 0).then(|| raw as f64 / time.as_secs_f64().max(1e-9));
        Ok(LosslessResult {
            run: info.run.clone(),
            layer: info.layer,
            tensor: self.tensor.into(),
            cut: self.cut.into(),
            raw_bytes: self.words.len() as u64,
            kept_bytes: (kept + hot) as u64,
            hot_bytes: hot as u64,
            ratio: self.words.len() as f64 / (kept + hot).max(1) as f64,
            encode_bytes_per_second: speed(times[0]),
            decode_bytes_per_second: speed(times[1]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_lie_between_the_hot_zones_and_are_whole() {
        let zones = Zones { block_tokens: 128, hot_sink_tokens: 16, hot_recent_tokens: 256 };
        assert_eq!(
            zones.blocks(1088).collect::<Vec<_>>(),
            (0..6).map(|i| 16 + 128 * i..144 + 128 * i).collect::<Vec<_>>()
        );
        assert_eq!((zones.cold_tokens(1088), zones.cold_tokens(399), zones.cold_tokens(400)), (768, 0, 128));
        assert_eq!((zones.cold_tokens(0), zones.cold_tokens(10)), (0, 0));
    }
}
