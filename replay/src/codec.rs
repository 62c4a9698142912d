//! gear on dumps: bytes and speed of each tensor, whole or cut into blocks as a session cuts.

use crate::dumps::{Layer, LayerInfo};
use crate::error::{Error, Result};
use crate::results::LosslessResult;
use crate::watch::Watch;
use mnnkv::gear::{Decoder, Effort, Encoder, Format, Frequencies, Options, Pairing, Positions, Rotation};
use mnnkv::session::config::LosslessRules;
use rayon::prelude::*;
use std::ops::Range;
use std::time::{Duration, Instant};

/// One choice of format, effort and hint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Encoding {
    /// The format of the blobs.
    pub format: Format,
    /// How long the encoder searches.
    pub effort: Effort,
    /// The rotation of K; V has none. Format v1 ignores it, so it must be `None` there.
    pub rotation: Option<Hint>,
}

/// The rotation hint: RoPE of all dims, with positions from the dump.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hint {
    /// The dims of a pair.
    pub pairing: Pairing,
    /// The base of the angles.
    pub theta: f32,
}

/// A part of a dump that is encoded at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// All tokens in one blob.
    Whole,
    /// Cold tokens in blocks, the hot zones raw.
    Blocks(Zones),
}

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

/// The input of [`evaluate`].
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The encodings.
    pub encodings: Vec<Encoding>,
    /// How tensors are cut.
    pub cuts: Vec<Cut>,
    /// Each head by itself, too. Only whole tensors.
    pub per_head: bool,
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

impl Cut {
    fn name(self) -> &'static str {
        match self {
            Cut::Whole => "whole",
            Cut::Blocks(_) => "blocks",
        }
    }

    fn ranges(self, tokens: usize) -> Vec<Range<usize>> {
        match self {
            Cut::Whole => std::iter::once(0..tokens).collect(),
            Cut::Blocks(zones) => zones.blocks(tokens).collect(),
        }
    }
}

impl Hint {
    /// The pairing's name in results.
    pub fn name(&self) -> String {
        let pairing = match self.pairing {
            Pairing::Half => "half",
            Pairing::Adjacent => "adjacent",
        };
        format!("{pairing}:{}", self.theta)
    }
}

/// The name of a format in results.
pub fn format_name(format: Format) -> &'static str {
    match format {
        Format::V1 => "v1",
        Format::V2 => "v2",
        Format::Lanes => "lanes",
    }
}

/// One tensor, or one head of it, in one encoding and one cut.
struct Job<'a> {
    info: &'a LayerInfo,
    tensor: &'static str,
    head: Option<usize>,
    /// `[head][token][dim]` of the chosen heads.
    words: &'a [u8],
    encoding: Encoding,
    cut: Cut,
}

/// Encodes and decodes both tensors of a layer as requested, on all threads of the pool. Jobs that have not begun when
/// the watch stops are left out. `done` gets the raw bytes of each job, [`work`] in all.
///
/// An error means that the codec failed or returned other words; the dump itself cannot cause one.
pub fn evaluate(layer: &Layer, request: &Request, watch: Watch<'_>) -> Result<Vec<LosslessResult>> {
    let jobs = jobs(layer, request);
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

/// Raw bytes of all jobs of a layer.
pub fn work(info: &LayerInfo, request: &Request) -> u64 {
    let tensor = (info.kv_heads * info.tokens * info.head_dim * info.dtype.bytes()) as u64;
    let encodings = request.encodings.iter();
    encodings
        .map(|encoding| {
            let tensors = match encoding.rotation {
                None => 2,
                Some(_) => u64::from(is_rotated(info)),
            };
            let passes = request.cuts.len() + usize::from(per_head(request, info.kv_heads));
            tensors * passes as u64 * tensor
        })
        .sum()
}

/// A hint is for pairs of dims. V is not rotated.
pub fn is_rotated(info: &LayerInfo) -> bool {
    info.head_dim.is_multiple_of(2)
}

fn per_head(request: &Request, kv_heads: usize) -> bool {
    request.per_head && kv_heads > 1 && request.cuts.contains(&Cut::Whole)
}

fn jobs<'a>(layer: &'a Layer, request: &Request) -> Vec<Job<'a>> {
    let info = &layer.info;
    let mut jobs = Vec::new();
    for (tensor, words) in [("k", &layer.key), ("v", &layer.value)] {
        for encoding in &request.encodings {
            if encoding.rotation.is_some() && (tensor == "v" || !is_rotated(info)) {
                continue;
            }
            let job = |cut, head, words| Job { info, tensor, head, words, encoding: *encoding, cut };
            jobs.extend(request.cuts.iter().map(|cut| job(*cut, None, &words[..])));
            if per_head(request, info.kv_heads) {
                let heads = words.chunks_exact(words.len() / info.kv_heads).enumerate();
                jobs.extend(heads.map(|(head, words)| job(Cut::Whole, Some(head), words)));
            }
        }
    }
    jobs
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
        let row = self.info.head_dim * self.info.dtype.bytes();
        let ranges = self.cut.ranges(self.info.tokens);
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        let (mut raw, mut kept, mut times) = (0, 0, [Duration::ZERO; 2]);
        let mut rows = Vec::new();
        let mut back = Vec::new();
        for range in ranges {
            gather(self.words, self.info.tokens * row, range.start * row..range.end * row, &mut rows);
            let options = self.options(&range);
            let dtype = self.info.dtype;
            let failed = |e: mnnkv::status::Error| Error::new(self.place(), e);
            let mut encoded = 0;
            for part in rows.chunks_exact((rows.len() / self.parts()).max(1)) {
                let (blob, encoding) =
                    timed(|| encoder.encode(part, dtype, &options).map(<[u8]>::to_vec).map_err(failed))?;
                back.resize(part.len(), 0);
                let (len, decoding) = timed(|| decoder.decode(&blob, dtype, &mut back).map_err(failed))?;
                if back[..len] != *part {
                    let bug = "decoded words differ from the encoded ones: a bug of the codec";
                    return Err(Error::new(self.place(), bug));
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
            run: self.info.run.clone(),
            layer: self.info.layer,
            tensor: self.tensor.into(),
            head: self.head,
            format: format_name(self.encoding.format).into(),
            effort: self.encoding.effort.get(),
            rotation: self.encoding.rotation.map(|hint| hint.name()),
            cut: self.cut.name().into(),
            raw_bytes: self.words.len() as u64,
            kept_bytes: (kept + hot) as u64,
            hot_bytes: hot as u64,
            ratio: self.words.len() as f64 / (kept + hot).max(1) as f64,
            encode_bytes_per_second: speed(times[0]),
            decode_bytes_per_second: speed(times[1]),
        })
    }

    /// The blobs of a range: a session stores a block in one for each head.
    fn parts(&self) -> usize {
        match self.cut {
            Cut::Blocks(_) if self.head.is_none() => self.info.kv_heads.max(1),
            _ => 1,
        }
    }

    fn options(&self, range: &Range<usize>) -> Options<'static> {
        let rotation = self.encoding.rotation.map(|hint| Rotation {
            pairing: hint.pairing,
            dims: self.info.head_dim,
            frequencies: Frequencies::Theta(hint.theta),
            tokens: range.len(),
            positions: Positions::Counting { first: (self.info.begin + range.start) as u32 },
        });
        Options {
            effort: self.encoding.effort,
            head_dim: self.info.head_dim,
            rotation,
            ..Options::new(self.encoding.format)
        }
    }

    fn place(&self) -> String {
        format!("run {} layer {} {}", self.info.run, self.info.layer, self.tensor)
    }
}

/// Copies the bytes `part` of every head, each `head` bytes long.
fn gather(words: &[u8], head: usize, part: Range<usize>, rows: &mut Vec<u8>) {
    rows.clear();
    words.chunks_exact(head.max(1)).for_each(|head| rows.extend_from_slice(&head[part.clone()]));
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
