//! Appends, evictions and all that a host may do between them: the library and the oracle leave the same bytes, and each
//! family of MNN's kernels reads the right attention.

use crate::common::{Random, testdata};
use crate::model::{bell, error, shape};
use crate::quantised::{Golden, MnnCache, Query, READERS, Shape, Unit, attend, exact, goldens, live_bytes_equal};
use crate::{edit, layout, range, shapes, view};
use mnnkv::layout::{self as library, Pair};
use proptest::prelude::*;

/// The cache after the library's eviction.
fn compacted(before: &MnnCache, kept: &[(usize, usize)]) -> MnnCache {
    let (mut cache, layout) = (before.clone(), layout(before));
    let pairs: Vec<Pair> = kept.iter().map(|&(offset, len)| [offset as i32, len as i32]).collect();
    cache.n = library::compact(&mut edit(&layout, &mut cache), 0, &pairs, before.n as u32).unwrap() as usize;
    cache
}

#[test]
fn compact_leaves_the_live_bytes_of_the_golden() {
    for golden in goldens() {
        let cache = compacted(&golden.before, &golden.pairs);
        live_bytes_equal(&cache, &golden.after, golden.tolerance()).unwrap_or_else(|e| panic!("{}: {e}", golden.name));
    }
}

/// The last blocks have no next one.
#[test]
fn whole_blocks_at_the_end_of_a_full_cache_move() {
    for mode in 9..15 {
        for (l, h) in [(16, 4), (4, 8), (4, 64), (8, 8), (4, 32)] {
            let unit = Unit { l, h };
            let mut before = MnnCache::new(Shape { max: 256, ..shape(mode, 64, unit) });
            let rows = bell(&mut Random::new(1), 256 * 64, 0.0, 1.0);
            before.append(&rows, &rows);
            let kept = [(0, 64), (192, 64)];
            assert_eq!(
                live_bytes_equal(&compacted(&before, &kept), &before.kept(&kept), 0.0),
                Ok(()),
                "{mode} {unit:?}"
            );
        }
    }
}

/// MNN codes and sums with the scales of block 0, also in blocks that it left without scales when the cache grew. A cache
/// that is described only after its growth is such a one.
#[test]
fn value_sums_are_of_the_first_blocks_scales_where_mnn_has_not_copied_them() {
    let golden = Golden::load(&testdata("mnn_quantised/mode10_growth"));
    let (before, kept) = (&golden.before, [(0, 130), (133, 60)]);
    assert_eq!(before.value_scale(0, 2, 0), (0.0, 0.0));
    assert_eq!(live_bytes_equal(&compacted(before, &kept), &before.kept(&kept), 0.0), Ok(()));
}

/// A call of a host. Numbers are cut to what the cache has.
#[derive(Clone, Debug)]
enum Step {
    /// MNN appends, and grows the cache if it must.
    Append(usize),
    /// Tokens that stay at the start, then tokens that are skipped and kept.
    Evict(usize, Vec<(usize, usize)>),
    Truncate(usize),
    /// Source, target and count. The target may end behind the last token.
    Move(usize, usize, usize),
    /// The same, by way of portable tokens.
    Restore(usize, usize, usize),
    Zero(usize, usize),
    ReleaseTail,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // The ends of blocks are the places where most can go wrong.
    let token = || prop_oneof![2 => 0usize..300, 1 => prop::sample::select(vec![0usize, 1, 63, 64, 65, 127, 128])];
    let count = || prop_oneof![1 => 0usize..6, 1 => 0usize..100, 1 => 63usize..66];
    let pieces = prop::collection::vec((count(), count()), 0..6);
    let step = prop_oneof![
        4 => prop_oneof![Just(1), count(), 0usize..140].prop_map(|count| Step::Append(count.max(1))),
        3 => (token(), pieces).prop_map(|(base, pieces)| Step::Evict(base, pieces)),
        1 => token().prop_map(Step::Truncate),
        1 => (token(), token(), count()).prop_map(|(src, dst, count)| Step::Move(src, dst, count)),
        1 => (token(), token(), count()).prop_map(|(src, dst, count)| Step::Restore(src, dst, count)),
        1 => (token(), count()).prop_map(|(begin, count)| Step::Zero(begin, count)),
        1 => Just(Step::ReleaseTail),
    ];
    prop::collection::vec(step, 1..14)
}

/// The cache that the library edits, and the one that the oracle edits.
struct Caches {
    real: MnnCache,
    model: MnnCache,
    random: Random,
}

impl Caches {
    fn new(shape: Shape, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut real = MnnCache::new(shape);
        real.fill_free_bytes(&mut random);
        let mut caches = Caches { model: real.clone(), real, random };
        caches.append(2 + seed as usize % 200);
        caches
    }

    fn append(&mut self, count: usize) {
        let (s, n) = (self.real.shape, self.real.n);
        // A first append of one token makes V constant for ever.
        let count = if n == 0 { count.max(2) } else { count };
        if n + count > s.max {
            self.real.grow(n + count + 64);
            self.model.grow(n + count + 64);
        }
        let keys = bell(&mut self.random, s.heads * count * s.dims, 0.3, 1.0);
        let values = bell(&mut self.random, s.heads * count * s.dims, 0.5, 1.0);
        self.real.append(&keys, &values);
        self.model.append(&keys, &values);
        let layout = layout(&self.real);
        library::appended(&mut edit(&layout, &mut self.real), range(&layout, n, count));
        self.model = self.model.mended(n, count);
    }

    fn apply(&mut self, step: &Step) {
        let (n, max) = (self.real.n, self.real.shape.max);
        let (layout, real, model) = (layout(&self.real), &mut self.real, &mut self.model);
        match *step {
            Step::Append(count) => self.append(count),
            Step::Evict(base, ref pieces) => {
                let base = base.min(n);
                let (mut at, mut pairs, mut kept) = (base, Vec::<Pair>::new(), vec![(0, base)]);
                for (skip, len) in pieces {
                    let offset = (at + skip).min(n);
                    at = (offset + len).min(n);
                    pairs.push([(offset - base) as i32, (at - offset) as i32]);
                    kept.push((offset, at - offset));
                }
                *model = model.kept(&kept);
                real.n = library::compact(&mut edit(&layout, real), base as u32, &pairs, n as u32).unwrap() as usize;
            }
            Step::Truncate(len) => {
                let len = len.min(n);
                model.cut(len);
                library::changed(&mut edit(&layout, real), range(&layout, len, n - len), len as u32).unwrap();
                real.n = len;
            }
            Step::Move(src, dst, count) => {
                let (src, dst) = (src % (n + 1), dst % (n + 1));
                let count = count.min(n - src).min(max - dst);
                let len = n.max(dst + count);
                model.overwrite(src, dst, count, len);
                let mut cache = edit(&layout, real);
                library::move_tokens(&mut cache, src as u32, dst as u32, count as u32).unwrap();
                library::changed(&mut cache, range(&layout, dst, count), len as u32).unwrap();
                real.n = len;
            }
            Step::Restore(src, dst, count) => {
                let (src, dst) = (src % (n + 1), dst % (n + 1));
                let count = count.min(n - src).min(max - dst);
                let len = n.max(dst + count);
                model.overwrite(src, dst, count, len);
                let mut rows = (vec![0; layout.dense_key_bytes(count)], vec![0; layout.dense_value_bytes(count)]);
                library::gather(&view(&layout, real), range(&layout, src, count), &mut rows.0, &mut rows.1).unwrap();
                let (mut cache, target) = (edit(&layout, real), range(&layout, dst, count));
                library::scatter(&mut cache, target, &rows.0, &rows.1).unwrap();
                library::changed(&mut cache, target, len as u32).unwrap();
                real.n = len;
            }
            Step::Zero(begin, count) => {
                let begin = begin % (n + 1);
                let count = count.min(n - begin);
                model.zero(begin..begin + count);
                model.cut(n);
                let (mut cache, target) = (edit(&layout, real), range(&layout, begin, count));
                library::zero(&mut cache, target);
                library::changed(&mut cache, target, n as u32).unwrap();
            }
            Step::ReleaseTail => {
                model.release_tail();
                let tail = layout.tail(n as u32).unwrap();
                library::release(&mut edit(&layout, real), tail, &mut |run| {
                    run.fill(0);
                    0
                });
            }
        }
    }

    /// All bytes are equal: those that are live, and those that no step may touch.
    fn check(&self) -> Result<(), String> {
        let (real, model) = (&self.real, &self.model);
        for (name, real_bytes, model_bytes) in [
            ("key", &real.key, &model.key),
            ("value", &real.value, &model.value),
            ("key_sum", &real.key_sum, &model.key_sum),
            ("value_sum", &real.value_sum, &model.value_sum),
        ] {
            if real_bytes != model_bytes {
                live_bytes_equal(real, model, 0.0)?;
                let at = (0..model_bytes.len()).find(|at| real_bytes[*at] != model_bytes[*at]);
                return Err(format!("{name}: byte {at:?}, which is not live"));
            }
        }
        Ok(())
    }

    /// Signed readers agree with the one that needs neither sums nor zeros, and that one with exact attention.
    fn check_attention(&mut self) -> Result<(), String> {
        let s = self.real.shape;
        for head in (0..s.heads).filter(|_| self.real.n > 0) {
            let deviation = 24.0 / (s.dims as f64).sqrt();
            let query = Query::new(&bell(&mut self.random, s.dims, 0.0, deviation));
            let exact = exact(&self.model, head, &query);
            let outputs = READERS.map(|reader| attend(&self.real, head, &query, reader));
            for (reader, output) in READERS.iter().zip(&outputs) {
                let (off, apart) = (error(output, &exact), error(output, &outputs[0]));
                if !(off < 0.25 && apart < 1e-3) {
                    return Err(format!("{}: head {head}: {off} from exact, {apart} from x86", reader.name));
                }
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn schedules_leave_the_bytes_and_the_attention_of_the_oracle(shape in shapes(), steps in steps(), seed: u64) {
        let mut caches = Caches::new(shape, seed);
        for (i, step) in steps.iter().enumerate() {
            caches.apply(step);
            prop_assert_eq!(caches.check(), Ok(()), "step {}: {:?}", i, step);
        }
        prop_assert_eq!(caches.check_attention(), Ok(()));
    }
}
