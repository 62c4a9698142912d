//! Steps against attention in f64 over the numbers of blocks and cache.

use super::*;
use crate::attend::sketch::{Group, Sketches};
use crate::host::packing::flash;
use crate::layout::{CacheRef, Layout, Spec, scatter};
use crate::sys::memory::shortage;
use crate::sys::storage::{Medium, Storage};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// A layer's chat: the numbers of each token as they are in blocks or in the cache.
struct Chat {
    layout: Layout,
    key: Vec<u8>,
    value: Vec<u8>,
    blocks: Blocks,
    positions: Vec<[i32; 2]>,
    raw: usize,
    /// Of each KV head, by logical position: K and V.
    numbers: Vec<Vec<(Vec<f64>, Vec<f64>)>>,
}

const KV_HEADS: usize = 2;
const GROUP: usize = 3;

/// A chat of `sink` raw tokens, blocks with some tokens left, and `recent` raw tokens; `rows` of these are of the step.
fn chat(
    dims: usize,
    dtype: Dtype,
    packs: [u32; 3],
    (sink, blocks, recent, rows): (usize, usize, usize, usize),
    noise: &mut Noise,
) -> Chat {
    let ([l_pack, h_pack, flash_block], max_tokens) = (packs, (sink + recent + 5) as u32);
    let common = flash(KV_HEADS as u32, dims as u32, h_pack, max_tokens);
    let spec = Spec { key: dtype.into(), value: dtype.into(), l_pack, flash_block, ..common };
    let layout = Layout::new(&spec).unwrap();
    let shape = Shape::new(dims).unwrap();
    let (mut key, mut value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
    let mut numbers = vec![Vec::new(); KV_HEADS];
    let (raw, count) = (sink + recent, (sink + recent) * KV_HEADS * dims);
    let (keys, values) = (many(noise, count), many(noise, count));
    let bytes = |numbers: &[f32]| {
        let mut bytes = vec![0; numbers.len() * dtype.bytes()];
        crate::dtype::convert::narrow(dtype, crate::dtype::convert::Endian::Native, numbers, &mut bytes);
        bytes
    };
    let mut cache = crate::layout::Cache::new(&layout, &mut key, &mut value).unwrap();
    scatter(&mut cache, layout.range(0, raw as u32).unwrap(), &bytes(&keys), &bytes(&values)).unwrap();
    let token = |head: usize, at: usize| {
        let row = |all: &[f32]| -> Vec<f64> {
            let row = &all[(head * raw + at) * dims..][..dims];
            row.iter().map(|x| f64::from(crate::dtype::convert::rounded(dtype, *x))).collect()
        };
        (row(&keys), row(&values))
    };
    for (head, numbers) in numbers.iter_mut().enumerate() {
        numbers.extend((0..sink).map(|at| token(head, at)));
    }
    let (mut blocks_of, mut widths) = (Blocks::NONE, Widths::default());
    blocks_of.reserve(shape, KV_HEADS, blocks).unwrap();
    for block in 0..blocks {
        let rows: Vec<[Vec<f32>; 2]> =
            (0..KV_HEADS).map(|_| [many(noise, 64 * dims), many(noise, 64 * dims)]).collect();
        let read = |head: usize, k: &mut [f32], v: &mut [f32]| {
            k.copy_from_slice(&rows[head][0]);
            v.copy_from_slice(&rows[head][1]);
            Ok(())
        };
        let mut whole = Block::default();
        let few = (noise.wide() > 0.0).then_some(&mut widths);
        whole.encode(shape, KV_HEADS, few, &mut EncodeWork::default(), read).unwrap().unwrap();
        let live = [u64::MAX, 0xF0F3_FFFF_0000_0001][block % 2];
        let first = numbers[0].len() as u32;
        for (numbers, codes) in numbers.iter_mut().zip(whole.heads()) {
            let (k, v) = by_format(dims, codes.bytes());
            for t in (0..64).filter(|t| live >> t & 1 == 1) {
                numbers.push((k[t * dims..][..dims].to_vec(), v[t * dims..][..dims].to_vec()));
            }
        }
        blocks_of.push(&whole, first, live).unwrap();
    }
    let first = numbers[0].len();
    for (head, numbers) in numbers.iter_mut().enumerate() {
        numbers.extend((sink..raw).map(|at| token(head, at)));
    }
    let positions = vec![[0, sink as i32], [first as i32, recent.saturating_sub(rows) as i32]];
    Chat { layout, key, value, blocks: blocks_of, positions, raw, numbers }
}

impl Chat {
    /// All tokens, without a file.
    fn tokens(&self, dims: usize) -> Tokens<'_> {
        Tokens {
            source: None,
            weighs: false,
            learns: false,
            shape: Shape::new(dims).unwrap(),
            blocks: &self.blocks,
            cache: CacheRef::new(&self.layout, &self.key, &self.value).unwrap(),
            raw: self.raw,
            missing: 0,
            positions: &self.positions,
            logical: self.numbers[0].len() as u32,
        }
    }
}

/// Query rows of f32, `[row][head][dim]`.
fn queries_of(rows: usize, heads: usize, dims: usize, data: &[u8]) -> Queries<'_> {
    let head_stride = dims * 4;
    let row_stride = heads * head_stride;
    Queries { dtype: Dtype::F32, heads, rows, dims, head_stride, row_stride, scale: 0.0, data }
}

/// A file whose bytes are not in memory at the first looks, or cannot be read.
#[derive(Default)]
struct Slow {
    bytes: Vec<u8>,
    looks: AtomicUsize,
    fault: Option<Status>,
}

impl Medium for Slow {
    fn len(&self) -> crate::status::Result<u64> {
        Ok(self.bytes.len() as u64)
    }
    fn read_at(&self, offset: u64, to: &mut [u8]) -> crate::status::Result<()> {
        to.copy_from_slice(&self.bytes[offset as usize..][..to.len()]);
        Ok(())
    }
    fn read_now(&self, offset: u64, to: &mut [u8]) -> crate::status::Result<bool> {
        if let Some(fault) = self.fault {
            return Err(crate::status::Error::new(fault, "no such sector"));
        }
        let is_there = self.looks.fetch_update(SeqCst, SeqCst, |looks| looks.checked_sub(1)).is_err();
        if is_there {
            self.read_at(offset, to)?;
        }
        Ok(is_there)
    }
    fn write_at(&self, _: u64, _: &[u8]) -> crate::status::Result<()> {
        unreachable!()
    }
    fn sync(&self) -> crate::status::Result<()> {
        unreachable!()
    }
}

/// Moves some heads of blocks to a file; returns its bytes.
fn written(blocks: &mut Blocks, noise: &mut Noise) -> Vec<u8> {
    let mut file = vec![0; 64];
    let (keys, tokens) = blocks.samples().unwrap();
    let basis = Basis::learn(&keys, tokens, KV_HEADS, blocks.shape().dims).unwrap();
    if tokens > 0 {
        blocks.set_basis(crate::sys::Shared::new(basis).unwrap());
    }
    for block in 0..blocks.list().len() as u32 {
        let Some(basis) = &blocks.basis else { break };
        let (mut work, mut sketches) = (SketchWork::default(), Vec::new());
        let first = file.len() as u64;
        let heads = (0..KV_HEADS).map(|head| {
            let offset = file.len();
            assert!(blocks.copy(block, head, &mut file).unwrap());
            let codes = blocks.view(block, head, &[]).unwrap();
            let at = ((offset as u64 - first) / 64) as u32;
            Some(Offloaded::new(&codes, (at, &file[offset..]), (basis, head), &mut work, &mut sketches).unwrap())
        });
        let heads = heads.collect();
        let codes = first..file.len() as u64;
        let sketched = Group::default().next(1, blocks.size(), |_| Ok(codes.end)).unwrap();
        file.extend(sketches);
        blocks.writes(block, Place { codes, sketches: sketched }, 1);
        blocks.end_write(block, Some(heads));
        for head in (0..KV_HEADS).filter(|_| noise.wide() > 0.0) {
            blocks.leave(block, head);
        }
    }
    file
}

#[test]
fn lists_of_blocks_that_memory_is_refused_for_are_whole_after_the_next_call() {
    let shape = Shape::new(64).unwrap();
    for round in 0..40 {
        let (mut blocks, mut block) = (Blocks::NONE, Block::default());
        block.heads_mut(2).unwrap();
        shortage::set_least(1);
        shortage::set(3, round);
        let _ = blocks.reserve(shape, 2, 1);
        shortage::set(0, 0);
        shortage::set_least(1024);
        blocks.reserve(shape, 2, 1).unwrap();
        blocks.push(&block, 0, u64::MAX).unwrap();
        blocks.writes(0, Place { codes: 16..17, sketches: Sketches::default() }, 1);
        assert_eq!(blocks.written(1), Some(0));
        blocks.end_write(0, Some(vec![None, None]));
        assert_eq!((blocks.heads(), blocks.away(1)), (2, &[][..]));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn steps_attend_to_the_numbers_of_blocks_and_cache(
        seed in any::<u64>(), (dims, group) in prop::sample::select(vec![(16usize, 3usize), (64, 3), (72, 1), (64, 8), (256, 4), (256, 16), (512, 2)]),
        (dtype, packs) in prop::sample::select(vec![
            (Dtype::F32, [1, 8, 64]), (Dtype::F32, [1, 4, 64]), (Dtype::F16, [1, 16, 300]), (Dtype::Bf16, [8, 4, 64]), (Dtype::F16, [1, 1, 1]),
        ]),
        sink in 0usize..20, blocks in 0usize..4, recent in 0usize..150, rows in prop::sample::select(vec![1usize, 2, 5, 16, 17, 40]),
        parts in 1u32..8, is_causal in any::<bool>(), window in prop::option::of(1u32..300), soft_cap in prop::option::of(0.5f32..30.0),
        has_sinks in any::<bool>(), mask_tokens in prop::option::of(0u32..200),
    ) {
        let mut noise = Noise(seed);
        let mut chat = chat(dims, dtype, packs, (sink, blocks, recent, rows), &mut noise);
        let heads = KV_HEADS * group;
        let queries = many(&mut noise, rows * heads * dims);
        let bytes: Vec<u8> = queries.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let logical = chat.numbers[0].len();
        let sinks: Vec<f32> = many(&mut noise, heads);
        let mask_tokens = mask_tokens.map(|tokens| tokens.min(logical as u32));
        let mut mask = many(&mut noise, rows * (mask_tokens.unwrap_or(0) as usize + 3));
        mask.iter_mut().step_by(7).for_each(|x| *x = f32::NEG_INFINITY);
        let mask = mask_tokens.map(|tokens| Mask { data: &mask, stride: tokens as usize + 3, tokens });
        let step = Step {
            queries: queries_of(rows, heads, dims, &bytes),
            is_causal, window, soft_cap, sinks: has_sinks.then_some(&sinks), mask,
        };
        // Some heads of blocks are in a file, of which the first looks of a part see nothing.
        let written_bytes = written(&mut chat.blocks, &mut noise);
        let file = Slow { bytes: written_bytes.clone(), looks: AtomicUsize::new(3), fault: None };
        let file = Storage::host("slow", file).unwrap();
        let source = chat.blocks.basis.as_ref().map(|basis| Source { file: &file, basis, wait: Duration::from_secs(9) });
        let tokens = Tokens {
            source, weighs: seed % 2 == 0, learns: seed % 3 == 0, shape: Shape::new(dims).unwrap(), blocks: &chat.blocks, cache: CacheRef::new(&chat.layout, &chat.key, &chat.value).unwrap(),
            raw: chat.raw, missing: seed as usize % 64, positions: &chat.positions, logical: logical as u32,
        };
        let mut round = Round::default();
        let newest = if blocks > 0 { recent } else { sink + recent };
        if rows > logical || is_causal && rows > newest.max(1) {
            let error = attend(&tokens, &step, (0, parts), &round, &mut Work::default(), &mut |_, _, _| {}).unwrap_err();
            prop_assert!(error.status() == Status::InvalidArgument && error.message().contains("rows of a"), "{}", error.message());
            return Ok(());
        }
        let mut output = vec![f32::NAN; rows * heads * dims];
        for part in (0..parts).rev() {
            let mut write = |row: usize, head: usize, x: &[f32]| output[(row * heads + head) * dims..][..dims].copy_from_slice(x);
            attend(&tokens, &step, (part, parts), &round, &mut Work::default(), &mut write).unwrap();
        }
        prop_assert_eq!(round.done().unwrap().0, rows);
        let found = round.all_found();
        // Of each block and KV head, the greatest share in the softmax of a query vector.
        let mut shares = vec![[0.0f64; KV_HEADS]; blocks];
        for (row, head) in (0..rows).flat_map(|row| (0..heads).map(move |head| (row, head))) {
            let query = &queries[(row * heads + head) * dims..][..dims];
            let (own, all) = (logical - rows + row, &chat.numbers[head / group]);
            let logits: Vec<f64> = all.iter().enumerate().map(|(at, (k, _))| {
                let mut logit = k.iter().zip(query).map(|(k, q)| k * f64::from(*q)).sum::<f64>() / (dims as f64).sqrt();
                if let Some(cap) = soft_cap {
                    logit = f64::from(cap) * (logit / f64::from(cap)).tanh();
                }
                if let Some(mask) = &mask && let Some(column) = (at + mask.tokens as usize).checked_sub(logical) {
                    logit += f64::from(mask.data[row * mask.stride + column]);
                }
                let seen = (!is_causal || at <= own) && window.is_none_or(|window| at + window as usize > own);
                if seen { logit } else { f64::NEG_INFINITY }
            }).collect();
            let weights = softmax(&logits, has_sinks.then(|| f64::from(sinks[head])));
            let parts_of = softmax(&logits, None);
            for (placed, most) in chat.blocks.list().iter().zip(&mut shares) {
                let share = parts_of[placed.first as usize..][..placed.tokens() as usize].iter().sum();
                most[head / group] = most[head / group].max(share);
            }
            for dim in 0..dims {
                let exact: f64 = all.iter().zip(&weights).filter(|(_, w)| **w > 0.0).map(|((_, v), w)| v[dim] * w).sum();
                let got = f64::from(output[(row * heads + head) * dims + dim]);
                // Queries and weights are codes, too. Six thousand cases had no larger error; one had 0.0103. Beside codes of few
                // bits queries have 7.
                let bound = if chat.blocks.is_rotated() { 0.04 } else { 0.015 };
                prop_assert!((got - exact).abs() < bound, "row {} head {} dim {}: {} and {}", row, head, dim, got, exact);
            }
        }
        for (block, head) in (0..blocks as u32).flat_map(|block| (0..KV_HEADS).map(move |head| (block, head))) {
            let masses = found.masses.iter().filter(|mass| (mass.block, mass.head as usize) == (block, head));
            let (most, share) = (masses.fold(0.0f32, |most, mass| most.max(mass.share)), shares[block as usize][head]);
            prop_assert!(!tokens.weighs || (f64::from(most) - share).abs() < 0.01, "block {} head {}: {} and {}", block, head, most, share);
            // What is read stays where it counts, in steps of few rows.
            let is_away = chat.blocks.cell(block, head).is_away();
            let mut arrived = found.arrived.iter().filter(|arrived| (arrived.block, arrived.head) == (block, head));
            match arrived.next() {
                Some(_) => prop_assert!(is_away && tokens.weighs && rows <= 16),
                None => prop_assert!(!is_away || !tokens.weighs || rows > 16 || share < 0.04, "block {} head {}: {}", block, head, share),
            }
        }
        // In any order of any number of parts, where the system has all blocks of the file in memory.
        let now = Storage::host("now", Slow { bytes: written_bytes, ..Slow::default() }).unwrap();
        let source = tokens.source.map(|source| Source { file: &now, ..source });
        let tokens = Tokens { source, ..tokens };
        prop_assert!(bits(&tokens, &step, 0..parts) == bits(&tokens, &step, (0..1).rev()), "{} parts and one", parts);
    }
}

/// A row, its query head and its numbers.
type RowBits = (usize, usize, Vec<u32>);

/// The bits of the output, row by row, and of what blocks got, and what queries are like, of parts in this order.
fn bits(
    tokens: &Tokens<'_>,
    step: &Step<'_>,
    order: impl ExactSizeIterator<Item = u32>,
) -> (Vec<RowBits>, Vec<[u32; 3]>, String) {
    let (mut round, mut rows, parts) = (Round::default(), Vec::new(), order.len() as u32);
    for part in order {
        let mut write =
            |row: usize, head: usize, x: &[f32]| rows.push((row, head, x.iter().map(|x| x.to_bits()).collect()));
        attend(tokens, step, (part, parts), &round, &mut Work::default(), &mut write).unwrap();
    }
    let found = round.all_found();
    let mut masses: Vec<_> = found.masses.iter().map(|mass| [mass.block, mass.head, mass.share.to_bits()]).collect();
    rows.sort();
    masses.sort();
    (rows, masses, format!("{:?}", found.squares))
}

#[test]
fn a_step_of_any_number_of_parts_has_the_same_bits() {
    let mut noise = Noise(9);
    for (blocks, rows) in [(45, 1), (45, 9), (110, 1), (10, 33)] {
        let mut chat = chat(64, Dtype::F32, [1, 8, 64], (16, blocks, 90, rows), &mut noise);
        let file = Slow { bytes: written(&mut chat.blocks, &mut noise), ..Slow::default() };
        let file = Storage::host("file", file).unwrap();
        let queries: Vec<u8> =
            many(&mut noise, rows * KV_HEADS * GROUP * 64).iter().flat_map(|x| x.to_ne_bytes()).collect();
        let queries = queries_of(rows, KV_HEADS * GROUP, 64, &queries);
        let step = Step { queries, is_causal: true, window: None, soft_cap: None, sinks: None, mask: None };
        let basis = chat.blocks.basis.as_ref().unwrap();
        let tokens = Tokens {
            source: Some(Source { file: &file, basis, wait: SOON }),
            weighs: true,
            learns: true,
            ..chat.tokens(64)
        };
        let one = bits(&tokens, &step, 0..1);
        for parts in [2, 3, 4, 7, 8, 24, 63, 64] {
            assert!(bits(&tokens, &step, (0..parts).rev()) == one, "{blocks} blocks, {rows} rows, {parts} parts");
        }
    }
}

#[test]
fn logits_that_overflow_are_refused_by_name() {
    let mut noise = Noise(11);
    let run = |chat: &Chat, query: f32, scale: f32, mask: &[f32]| {
        let queries: Vec<u8> = vec![query; KV_HEADS * GROUP * 64].iter().flat_map(|x| x.to_ne_bytes()).collect();
        let queries = Queries { scale, ..queries_of(1, KV_HEADS * GROUP, 64, &queries) };
        let mask = Some(Mask { data: mask, stride: mask.len(), tokens: mask.len() as u32 });
        let step = Step { queries, is_causal: true, window: None, soft_cap: None, sinks: None, mask };
        let tokens = chat.tokens(64);
        let mut is_finite = true;
        let mut write = |_: usize, _: usize, x: &[f32]| is_finite &= x.iter().all(|x| x.is_finite());
        let result = attend(&tokens, &step, (0, 1), &Round::default(), &mut Work::default(), &mut write);
        result.map(|()| is_finite).map_err(|error| error.message().to_owned())
    };
    let mut chat = chat(64, Dtype::F32, [1, 8, 64], (4, 2, 40, 1), &mut noise);
    assert_eq!(run(&chat, 1e26, 1.0, &[]), Ok(true), "the largest query that is taken");
    for (query, scale) in [(1e30, 0.0), (1e20, 1e10), (-1e38, 10.0)] {
        let error = run(&chat, query, scale, &[]).unwrap_err();
        assert!(error.contains("row 0 of query head 0") && error.contains("logits overflow"), "{error}");
    }
    // K of the last raw token, which a mask may hide.
    let raw = chat.raw as u32 - 1;
    for bad in [f32::NAN, 1e38] {
        let keys = [vec![bad; KV_HEADS * 64], vec![1.0; KV_HEADS * 64]]
            .map(|row| row.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>());
        let mut cache = crate::layout::Cache::new(&chat.layout, &mut chat.key, &mut chat.value).unwrap();
        scatter(&mut cache, chat.layout.range(raw, 1).unwrap(), &keys[0], &keys[1]).unwrap();
        let error = run(&chat, 100.0, 1.0, &[]).unwrap_err();
        assert!(error.contains("a logit of row 0 of query head 0 is not finite"), "{error}");
        assert_eq!(run(&chat, 100.0, 1.0, &[f32::NEG_INFINITY]), Ok(true), "{bad}");
    }
}

/// What a step finds in which a raw token of each head has this logit.
fn found(chat: &Chat, file: Slow, logit: f64, (parts, wait): (u32, Duration)) -> Found {
    let dims = chat.numbers[0][0].0.len();
    let of_head = |head: usize| {
        let key = &chat.numbers[head / GROUP][1].0;
        let factor = logit * (dims as f64).sqrt() / key.iter().map(|x| x * x).sum::<f64>();
        key.iter().map(|x| (x * factor) as f32).collect::<Vec<_>>()
    };
    let bytes: Vec<u8> = (0..KV_HEADS * GROUP).flat_map(of_head).flat_map(|x| x.to_ne_bytes()).collect();
    let step = Step {
        queries: queries_of(1, KV_HEADS * GROUP, dims, &bytes),
        is_causal: true,
        window: None,
        soft_cap: None,
        sinks: None,
        mask: None,
    };
    let file = Storage::host("slow", file).unwrap();
    let tokens = Tokens {
        source: Some(Source { file: &file, basis: chat.blocks.basis.as_ref().unwrap(), wait }),
        weighs: true,
        learns: false,
        shape: Shape::new(dims).unwrap(),
        blocks: &chat.blocks,
        cache: CacheRef::new(&chat.layout, &chat.key, &chat.value).unwrap(),
        raw: chat.raw,
        missing: 48,
        positions: &chat.positions,
        logical: chat.numbers[0].len() as u32,
    };
    let mut round = Round::default();
    for part in 0..parts {
        attend(&tokens, &step, (part, parts), &round, &mut Work::default(), &mut |_, _, _| {}).unwrap();
    }
    std::mem::take(round.all_found())
}

/// A chat of three blocks whose heads are all in a file, and its bytes.
fn offloaded() -> (Chat, Vec<u8>) {
    let mut noise = Noise(4);
    let mut chat = chat(64, Dtype::F32, [1, 8, 64], (4, 3, 40, 1), &mut noise);
    let bytes = written(&mut chat.blocks, &mut noise);
    (0..3).for_each(|block| (0..KV_HEADS).for_each(|head| chat.blocks.leave(block, head)));
    (chat, bytes)
}

const OFFLOADED: u64 = 3 * KV_HEADS as u64;
const SOON: Duration = Duration::from_secs(9);

#[test]
fn blocks_of_the_file_are_read_where_a_query_attends_to_them_and_stay_where_it_does_so_most() {
    let (chat, bytes) = offloaded();
    // The logit of a raw token of each head is far above those of all blocks, above, or below.
    for (logit, read, stays) in [(40.0, 0, false), (10.0, OFFLOADED, false), (-40.0, OFFLOADED, true)] {
        for parts in [1, 3] {
            let file = Slow { bytes: bytes.clone(), ..Slow::default() };
            let found = found(&chat, file, logit, (parts, SOON));
            let all = (found.reads.read, !found.arrived.is_empty());
            assert_eq!(all, (read, stays), "a logit of {logit} in {parts} parts");
        }
    }
}

#[test]
fn blocks_that_cannot_be_read_are_lost_failed_or_late_and_counted_once() {
    let (mut chat, bytes) = offloaded();
    let damaged = bytes.iter().map(|byte| byte ^ 1).collect();
    let late = |looks| Slow { bytes: bytes.clone(), looks: AtomicUsize::new(looks), fault: None };
    let fails = |status| Slow { fault: Some(status), ..Slow::default() };
    let never = usize::MAX;
    let waits = Duration::from_millis(300);
    // Read, lost, failed, late.
    for (file, wait, expected) in [
        (Slow { bytes: damaged, ..Slow::default() }, SOON, [0, OFFLOADED, 0, 0]),
        (fails(Status::Corrupt), SOON, [0, OFFLOADED, 0, 0]),
        (fails(Status::Io), SOON, [0, 0, OFFLOADED, 0]),
        (late(never), Duration::ZERO, [0, 0, 0, OFFLOADED]),
        (late(never), waits, [0, 0, 0, OFFLOADED]),
        (late(5), SOON, [OFFLOADED, 0, 0, 0]),
    ] {
        let found = found(&chat, file, -40.0, (2, wait));
        let Reads { read, late, failed, wait_ns } = found.reads;
        assert_eq!([read, found.lost.len() as u64, failed, late], expected);
        assert_eq!(found.failure.is_some(), failed > 0);
        // From the begin of the step on, of which attention takes a part.
        assert!(wait != waits || wait_ns > 0);
        assert!(wait != Duration::ZERO || wait_ns == 0, "{wait_ns}");
    }
    // Of these nothing is known but that they got no attention lately.
    for (block, head) in (0..3).flat_map(|block| (0..KV_HEADS).map(move |head| (block, head))) {
        chat.blocks.set_score(block, head, 0.0);
    }
    for parts in [1, 2, 5] {
        let found = found(&chat, late(never), -40.0, (parts, Duration::ZERO));
        assert_eq!([found.reads.read, found.reads.late], [0, OFFLOADED], "{parts} parts");
    }
    // A head that has none counts none.
    (0..3).for_each(|block| assert!(chat.blocks.forget(block, 1)));
    let found = found(&chat, late(never), -40.0, (1, Duration::ZERO));
    assert_eq!(found.reads.late, OFFLOADED / 2);
}
