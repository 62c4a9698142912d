//! Bytes that planes have after compression.

use super::options::{CodecMode, EntryMode, Lists, Options, Predictor};
use super::planes::{Planes, bitshuffle, predict};
use super::result::TensorSums;
use rayon::prelude::*;
use std::cell::RefCell;
use zstd_safe::{CCtx, CParameter};

/// Bytes of a token in a plane, and of a head.
#[derive(Clone, Copy)]
pub struct Shape {
    pub row: usize,
    pub dim: usize,
}

/// Blocks that each predictor won.
pub type Counts = [u64; Predictor::NAMES.len()];

/// Sizes of a tensor: both planes, cut into chunks where the mode says so.
pub fn tensor(planes: &Planes, shape: Shape, entries: usize, [hi, lo]: &Lists, options: &Options) -> TensorSums {
    let tokens = planes.hi.len() / shape.row;
    let cut = usize::try_from(options.online_chunk_seq).unwrap_or(usize::MAX);
    let chunk = if options.entry_mode.is_chunked() && cut > 0 { cut.min(tokens) } else { tokens };
    let sizes = |plane: &[u8], is_hi: bool, predictors: &[Predictor]| {
        let chunks = plane.par_chunks(chunk * shape.row);
        chunks.map(|chunk| stream(chunk, is_hi, predictors, shape, options)).reduce(Default::default, Size::plus)
    };
    let (hi, lo) = rayon::join(|| sizes(&planes.hi, true, hi), || sizes(&planes.lo, false, lo));
    let chunks = tokens.div_ceil(chunk) as u64;
    let overhead = match options.entry_mode {
        EntryMode::PerMeta => 0,
        EntryMode::Aggregate => 4 + 4 * entries as u64,
        _ => chunks.saturating_mul(options.online_framing_bytes as u64),
    };
    TensorSums {
        raw: 2 * planes.hi.len() as u64,
        compressed: (hi.bytes + lo.bytes).saturating_add(overhead),
        overhead,
        chunks: if options.entry_mode.is_chunked() { chunks } else { 0 },
        hi: hi.counts,
        lo: lo.counts,
    }
}

/// The size of a stream, or of many.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Size {
    bytes: u64,
    counts: Counts,
}

impl Size {
    fn plus(mut self, other: Size) -> Size {
        self.bytes += other.bytes;
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, n)| *sum += n);
        self
    }
}

/// The size of a plane of a chunk.
fn stream(plane: &[u8], is_hi: bool, predictors: &[Predictor], shape: Shape, options: &Options) -> Size {
    if options.codec_mode == CodecMode::Legacy {
        let predictor = if is_hi { Predictor::DeltaSeq } else { Predictor::Raw };
        let bytes = with_bench(options.zstd_level, |bench| {
            bench.choose(plane, &[predictor], shape, options.bitshuffle, true).1
        });
        let mut counts = Counts::default();
        counts[predictor as usize] = 1;
        return Size { bytes, counts };
    }
    let tokens = plane.len() / shape.row;
    let block = usize::try_from(options.adaptive_block_seq).unwrap_or(usize::MAX).min(tokens) * shape.row;
    let is_alone = block == plane.len();
    let trials: Vec<(Predictor, u64)> = plane
        .par_chunks(block)
        .map(|block| {
            with_bench(options.zstd_level, |b| b.choose(block, predictors, shape, options.bitshuffle, is_alone))
        })
        .collect();
    let mut counts = Counts::default();
    trials.iter().for_each(|(chosen, _)| counts[*chosen as usize] += 1);
    // The join of one block is its chosen output.
    let joined = if is_alone {
        trials[0].1
    } else if counts[Predictor::Raw as usize] == trials.len() as u64 && !options.bitshuffle {
        compressed(plane, options.zstd_level)
    } else {
        let mut join = vec![0; plane.len()];
        let blocks = join.chunks_mut(block).zip(plane.chunks(block));
        for ((out, block), (chosen, _)) in blocks.zip(&trials) {
            if options.bitshuffle {
                let mut bytes = vec![0; block.len()];
                predict(*chosen, block, shape, &mut bytes);
                bitshuffle(&bytes, out);
            } else {
                predict(*chosen, block, shape, out);
            }
        }
        compressed(&join, options.zstd_level)
    };
    Size { bytes: joined + trials.len() as u64 + 8, counts }
}

/// A compressor and buffers of a thread.
struct Bench {
    level: i32,
    context: CCtx<'static>,
    compressed: Vec<u8>,
    /// The outputs of predictors on the block, in the order of the list.
    outputs: Vec<Vec<u8>>,
    plain: Vec<u8>,
}

/// The size of `bytes` as one ZSTD frame.
pub fn compressed(bytes: &[u8], level: i32) -> u64 {
    with_bench(level, |bench| bench.compress(bytes))
}

/// Runs `work` with the bench of this thread. `work` must not wait for other threads.
fn with_bench<T>(level: i32, work: impl FnOnce(&mut Bench) -> T) -> T {
    thread_local! {
        static BENCH: RefCell<Option<Bench>> = const { RefCell::new(None) };
    }
    BENCH.with_borrow_mut(|bench| match bench {
        Some(bench) if bench.level == level => work(bench),
        _ => work(bench.insert(Bench::new(level))),
    })
}

impl Bench {
    fn new(level: i32) -> Self {
        let mut context = CCtx::create();
        // Only an unknown parameter or a level out of range fails, which `Options::check` refuses.
        let set = context.set_parameter(CParameter::CompressionLevel(level));
        assert!(set.is_ok(), "ZSTD level {level}");
        Bench { level, context, compressed: Vec::new(), outputs: Vec::new(), plain: Vec::new() }
    }

    /// The size of `bytes` as one ZSTD frame.
    fn compress(&mut self, bytes: &[u8]) -> u64 {
        let bound = zstd_safe::compress_bound(bytes.len());
        if self.compressed.len() < bound {
            self.compressed.resize(bound, 0);
        }
        match self.context.compress2(self.compressed.as_mut_slice(), bytes) {
            Ok(size) => size as u64,
            Err(code) => panic!("ZSTD: {}", zstd_safe::get_error_name(code)),
        }
    }

    /// The predictor with the smallest output, the first of equal ones, and that size. With one predictor the size
    /// is 0 unless `sized`.
    fn choose(
        &mut self,
        block: &[u8],
        predictors: &[Predictor],
        shape: Shape,
        shuffled: bool,
        sized: bool,
    ) -> (Predictor, u64) {
        if let ([only], false) = (predictors, sized) {
            return (*only, 0);
        }
        let mut outputs = std::mem::take(&mut self.outputs);
        outputs.resize_with(predictors.len().max(outputs.len()), Vec::new);
        let mut best: Option<(Predictor, u64)> = None;
        for (i, predictor) in predictors.iter().enumerate() {
            let (tried, rest) = outputs.split_at_mut(i);
            let output = &mut rest[0];
            output.resize(block.len(), 0);
            if shuffled {
                self.plain.resize(block.len(), 0);
                predict(*predictor, block, shape, &mut self.plain);
                bitshuffle(&self.plain, output);
            } else {
                predict(*predictor, block, shape, output);
            }
            // Equal outputs have equal sizes, and the first one wins.
            if tried.contains(output) {
                continue;
            }
            let size = self.compress(output);
            if best.is_none_or(|(_, smallest)| size < smallest) {
                best = Some((*predictor, size));
            }
        }
        self.outputs = outputs;
        // `Options` come from lists that are not empty.
        best.unwrap_or((Predictor::Raw, 0))
    }
}

#[cfg(test)]
#[path = "../../tests/support/recipes.rs"]
mod recipes;

#[cfg(test)]
mod tests {
    use super::super::planes::Planes;
    use super::*;
    use recipes::{golden, lines, words};
    use serde_json::Value;

    /// The sizes of each candidate alone, the choice, and the stream, as traced in the reference's script.
    #[test]
    fn each_candidate_of_each_block_has_the_size_that_the_reference_gives_it() {
        let all: Value = serde_json::from_slice(&std::fs::read(golden("recipes.json")).unwrap()).unwrap();
        for trace in lines("trace.jsonl") {
            let predictors: Vec<Predictor> =
                trace["predictors"].as_array().unwrap().iter().map(|p| p.as_str().unwrap().parse().unwrap()).collect();
            let run = &all[trace["dump"].as_str().unwrap()]["runs"][0];
            let [key, value] = words(run, trace["layer"].as_u64().unwrap()).unwrap();
            let tensor = if trace["tensor"] == "k" { key } else { value };
            let shape = Shape { row: tensor.heads * tensor.dims, dim: tensor.dims };
            let mut planes = Planes::default();
            planes.append(&tensor.bytes);
            let options = Options {
                adaptive_block_seq: trace["block"].as_i64().unwrap(),
                entry_mode: EntryMode::ChunkedGrouped,
                ..Options::default()
            };
            for chunk in trace["chunks"].as_array().unwrap() {
                let [begin, end] = [0, 1].map(|i| chunk["tokens"][i].as_u64().unwrap() as usize * shape.row);
                for (plane, name) in [(&planes.hi, "hi"), (&planes.lo, "lo")] {
                    let stream_size = stream(&plane[begin..end], name == "hi", &predictors, shape, &options);
                    assert_eq!(stream_size.bytes, chunk[name]["stream"], "{name} {chunk}");
                    let blocks = plane[begin..end].chunks(64 * shape.row);
                    for (block, traced) in blocks.zip(chunk[name]["blocks"].as_array().unwrap()) {
                        let choice =
                            with_bench(options.zstd_level, |b| b.choose(block, &predictors, shape, false, true));
                        assert_eq!(choice.0.name(), traced["chosen"], "{name} {chunk}");
                        for (predictor, size) in predictors.iter().zip(traced["sizes"].as_array().unwrap()) {
                            let alone =
                                with_bench(options.zstd_level, |b| b.choose(block, &[*predictor], shape, false, true));
                            assert_eq!(alone.1, *size, "{name} {} {chunk}", predictor.name());
                        }
                    }
                }
            }
        }
    }
}
