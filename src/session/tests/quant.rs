//! Chats in 8 and 4 bits: every token is attended to, once, as the numbers of its codes or as it was written.

use crate::attend::tests::by_format;
use crate::attend::{Mask, Queries, Step};
use crate::common::Random;
use crate::dtype::Dtype;
use crate::dtype::convert::{Endian, narrow, rounded};
use crate::layout::{Cache, CacheRef, Layout, Pair, Spec, scatter};
use crate::session::compact_file;
use crate::session::tests::file::{Disk, FASTEST};
use crate::session::tests::{number, reported};
use crate::session::{Host, Session};
use crate::snapshot::Snapshot;
use crate::status::{Error, Result, Status};
use crate::sys::memory::shortage;

const DIMS: usize = 24;
const KV_HEADS: usize = 2;
const HEADS: usize = 4;
const SINK: usize = 5;

/// K and V of a token: `[head][dim]`.
#[derive(Clone)]
struct Token(Vec<f32>, Vec<f32>);

/// A host of one layer that keeps the numbers of every token.
struct Chat {
    session: Session,
    layout: Layout,
    key: Vec<u8>,
    value: Vec<u8>,
    kv_len: u32,
    dtype: Dtype,
    tokens: Vec<Token>,
    random: Random,
    is_short: bool,
    disk: Disk,
    file: Snapshot,
}

fn layout(dtype: Dtype, packs: [u32; 3], max_tokens: u32) -> Layout {
    Layout::new(&Spec {
        key: dtype.into(),
        value: dtype.into(),
        kv_heads: KV_HEADS as u32,
        head_dim: DIMS as u32,
        l_pack: packs[0],
        h_pack: packs[1],
        int8: Default::default(),
        flash_block: packs[2],
        max_tokens,
        key_head_stride: 0,
        value_head_stride: 0,
        key_token_stride: 0,
        value_token_stride: 0,
    })
    .unwrap()
}

const PACKS: [[u32; 3]; 3] = [[1, 8, 64], [8, 4, 64], [1, 1, 1]];

fn session(config: &str) -> Session {
    Session::with_host(config.as_bytes(), b"", 1, 2, Host { attends: true, ..Host::default() }).unwrap()
}

impl Chat {
    fn new(dtype: Dtype, is_short: bool, mut random: Random) -> Self {
        let config = format!(r#"{{"kv_quant": "k8v4", "kv_quant_sink_tokens": {SINK}}}"#);
        let layout = layout(dtype, PACKS[random.below(3)], 128);
        let (key, value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
        let (disk, tokens, session) = (Disk::default(), Vec::new(), session(&config));
        let file = disk.create();
        Chat { session, layout, key, value, kv_len: 0, dtype, tokens, random, is_short, disk, file }
    }

    /// Runs a call whose memory may be refused.
    fn short<T>(&mut self, call: impl Fn(&mut Self) -> Result<T>) -> Result<T> {
        shortage::set(if self.is_short { 30 } else { 0 }, self.random.next());
        let result = call(self);
        shortage::set(0, 0);
        result
    }

    fn again<T>(&mut self, call: impl Fn(&mut Self) -> Result<T>) -> T {
        loop {
            match self.short(&call) {
                Err(error) if self.is_short && error.status() == Status::OutOfMemory => {}
                result => return result.unwrap(),
            }
        }
    }

    fn cache(&mut self) -> Cache<'_> {
        Cache::new(&self.layout, &mut self.key, &mut self.value).unwrap()
    }

    fn number(&mut self) -> f32 {
        let sum: i64 = (0..4).map(|_| self.random.below(2001) as i64 - 1000).sum();
        sum as f32 / 1000.0
    }

    /// Moves the cache to buffers with room for the step, of another packing.
    fn move_cache(&mut self, tokens: u32) {
        let from = layout_rows(&self.layout, &self.key, &self.value, self.kv_len);
        self.layout = layout(self.dtype, PACKS[self.random.below(3)], self.kv_len + tokens + 7);
        (self.key, self.value) = (vec![0; self.layout.key_bytes()], vec![0; self.layout.value_bytes()]);
        let range = self.layout.range(0, self.kv_len).unwrap();
        scatter(&mut Cache::new(&self.layout, &mut self.key, &mut self.value).unwrap(), range, &from.0, &from.1)
            .unwrap();
    }

    fn begin(&mut self) {
        self.kv_len = self.again(|chat| {
            let kv_len = chat.kv_len;
            let Chat { session, layout, key, value, .. } = chat;
            session.begin(0, Some(Cache::new(layout, key, value).unwrap()), kv_len)
        });
        let stays_raw = self.is_short || self.session.warnings().unwrap().contains("stays raw");
        assert!(stays_raw || self.kv_len as usize <= SINK + 32 + 63 + 64 * self.unfit());
    }

    fn unfit(&self) -> usize {
        self.session.quant_stats(None).unwrap().unfit as usize
    }

    /// Appends tokens behind those of the cache.
    fn append(&mut self, count: usize) {
        let rows: Vec<Token> = (0..count)
            .map(|_| {
                let mut row = || (0..KV_HEADS * DIMS).map(|_| self.number()).collect::<Vec<f32>>();
                let (mut key, value) = (row(), row());
                // A channel that needs 16 bits.
                key[3] *= 100.0;
                Token(key, value)
            })
            .collect();
        let bytes = |part: &dyn Fn(&Token) -> &[f32]| -> Vec<u8> {
            let heads = (0..KV_HEADS).flat_map(|head| rows.iter().map(move |row| (head, row)));
            let numbers: Vec<f32> = heads.flat_map(|(head, row)| part(row)[head * DIMS..][..DIMS].to_vec()).collect();
            let mut bytes = vec![0; numbers.len() * self.dtype.bytes()];
            narrow(self.dtype, Endian::Native, &numbers, &mut bytes);
            bytes
        };
        let (key, value) = (bytes(&|row| &row.0), bytes(&|row| &row.1));
        let range = self.layout.range(self.kv_len, count as u32).unwrap();
        scatter(&mut self.cache(), range, &key, &value).unwrap();
        let dtype = self.dtype;
        let round = |row: &[f32]| row.iter().map(|x| rounded(dtype, *x)).collect();
        self.tokens.extend(rows.iter().map(|row| Token(round(&row.0), round(&row.1))));
        self.kv_len += count as u32;
    }

    /// The numbers that attention reads, by logical position: of codes, or as written.
    fn read(&self) -> Vec<Token> {
        let mut all: Vec<Option<Token>> = vec![None; self.tokens.len()];
        for placed in self.session.blocks_for_tests(0) {
            let heads: Vec<_> = (0..KV_HEADS).map(|head| by_format(DIMS, placed.block().head_bytes(head))).collect();
            let live = (0..64).filter(|token| placed.live >> token & 1 == 1);
            for (token, at) in live.zip(placed.first as usize..) {
                let row = |head: &[f64]| head[token * DIMS..][..DIMS].iter().map(|x| *x as f32).collect::<Vec<_>>();
                let token = Token(
                    heads.iter().flat_map(|head| row(&head.0)).collect(),
                    heads.iter().flat_map(|head| row(&head.1)).collect(),
                );
                // Codes are of this token.
                for (x, y) in token.0.iter().zip(&self.tokens[at].0) {
                    assert!((x - y).abs() < 0.03, "K of token {at}: {x} for {y}");
                }
                for (x, y) in token.1.iter().zip(&self.tokens[at].1) {
                    assert!((x - y).abs() < 0.3, "V of token {at}: {x} for {y}");
                }
                assert!(all[at].replace(token).is_none(), "token {at} is in two blocks");
            }
        }
        let mut raw = self.session.positions(0).unwrap();
        let known: i32 = raw.iter().map(|run| run[1]).sum();
        raw.push([self.tokens.len() as i32 - (self.kv_len as i32 - known), self.kv_len as i32 - known]);
        for at in raw.iter().flat_map(|run| run[0]..run[0] + run[1]) {
            let token = self.tokens[at as usize].clone();
            assert!(all[at as usize].replace(token).is_none(), "token {at} is in a block and in the cache");
        }
        all.into_iter().map(|token| token.expect("every token is somewhere")).collect()
    }

    /// Attends with `rows` rows in random parts, and compares with attention in f64.
    fn attend(&mut self, rows: usize) {
        let queries: Vec<f32> = (0..rows * HEADS * DIMS).map(|_| self.number()).collect();
        let mut bytes = vec![0; queries.len() * 4];
        narrow(Dtype::F32, Endian::Native, &queries, &mut bytes);
        let has_window = self.random.below(4) == 0;
        let window = has_window.then(|| 1 + self.random.below(300) as u32);
        let mask_tokens = (self.random.below(4) == 0).then(|| 1 + self.random.below(self.tokens.len()));
        let mask: Vec<f32> = (0..mask_tokens.unwrap_or(0) * rows).map(|_| self.number()).collect();
        let step = Step {
            queries: Queries {
                dtype: Dtype::F32,
                heads: HEADS,
                rows,
                dims: DIMS,
                head_stride: DIMS * 4,
                row_stride: HEADS * DIMS * 4,
                scale: 0.3,
                data: &bytes,
            },
            is_causal: true,
            window,
            soft_cap: None,
            sinks: None,
            mask: mask_tokens.map(|tokens| Mask { data: &mask, stride: tokens, tokens: tokens as u32 }),
        };
        let parts = 1 + self.random.below(5) as u32;
        let mut order: Vec<u32> = (0..parts).collect();
        order.sort_by_key(|_| self.random.next());
        let mut output = vec![f32::NAN; queries.len()];
        for part in order {
            let mut write = |row: usize, head: usize, x: &[f32]| {
                output[(row * HEADS + head) * DIMS..][..DIMS].copy_from_slice(x);
            };
            loop {
                shortage::set(if self.is_short { 30 } else { 0 }, self.random.next());
                let cache = CacheRef::new(&self.layout, &self.key, &self.value).unwrap();
                let result = self.session.attend(0, (&cache, self.kv_len), &step, (part, parts), &mut write);
                shortage::set(0, 0);
                match result {
                    Err(error) if self.is_short && error.status() == Status::OutOfMemory => {}
                    result => break result.unwrap(),
                }
            }
        }
        let all = self.read();
        for (row, head) in (0..rows).flat_map(|row| (0..HEADS).map(move |head| (row, head))) {
            let (kv, own) = (head / (HEADS / KV_HEADS) * DIMS, all.len() - rows + row);
            let query = &queries[(row * HEADS + head) * DIMS..][..DIMS];
            let dot = |key: &[f32]| key.iter().zip(query).map(|(k, q)| f64::from(*k) * f64::from(*q)).sum::<f64>();
            let logits: Vec<f64> = (0..=own)
                .map(|at| {
                    let addend =
                        mask_tokens.and_then(|tokens| (at + tokens).checked_sub(all.len()).map(|at| (tokens, at)));
                    let addend = addend.map_or(0.0, |(tokens, at)| f64::from(mask[row * tokens + at]));
                    let seen = window.is_none_or(|window| at + window as usize > own);
                    if seen { dot(&all[at].0[kv..][..DIMS]) * 0.3 + addend } else { f64::NEG_INFINITY }
                })
                .collect();
            let peak = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = logits.iter().map(|x| (x - peak).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for dim in 0..DIMS {
                let exact: f64 = weights.iter().zip(&all).map(|(w, token)| w * f64::from(token.1[kv + dim])).sum();
                let got = f64::from(output[(row * HEADS + head) * DIMS + dim]);
                assert!((got - exact / sum).abs() < 0.02, "row {row} head {head}: {got} for {}", exact / sum);
            }
        }
    }

    fn end(&mut self, rows: usize) {
        self.again(|chat| {
            let kv_len = chat.kv_len;
            let Chat { session, layout, key, value, .. } = chat;
            session.end(0, HEADS as u32, rows as u32, Cache::new(layout, key, value).unwrap(), kv_len)
        });
    }

    fn step(&mut self, rows: usize) {
        if self.random.below(5) == 0 || self.layout.max_tokens() < self.kv_len as usize + rows {
            self.move_cache(rows as u32);
        }
        self.begin();
        if self.random.below(12) == 0 {
            let kv_len = self.kv_len;
            self.append(rows.min(2));
            self.tokens.truncate(self.tokens.len() - rows.min(2));
            self.kv_len = kv_len;
            let Chat { session, layout, key, value, .. } = self;
            session.abort(0, Some(Cache::new(layout, key, value).unwrap()), kv_len).unwrap();
            self.begin();
        }
        if self.layout.max_tokens() < self.kv_len as usize + rows {
            self.move_cache(rows as u32);
        }
        self.append(rows);
        self.attend(rows);
        self.end(rows);
    }

    /// Keeps random ranges of the history.
    fn edit(&mut self) {
        let len = self.tokens.len();
        let pairs: Vec<Pair> = match self.random.below(3) {
            // A rollback.
            0 => vec![[0, (len - self.random.below(len.min(90) + 1)) as i32]],
            // A range out of the middle.
            1 => {
                let begin = self.random.below(len);
                let end = begin + self.random.below(len - begin + 1);
                vec![[0, begin as i32], [end as i32, (len - end) as i32]]
            }
            _ => {
                let (mut pairs, mut at) = (Vec::new(), 0);
                while at < len {
                    let (skip, count) = (self.random.below(30), 1 + self.random.below(60));
                    if at + skip + count <= len {
                        pairs.push([(at + skip) as i32, count as i32]);
                    }
                    at += skip + count;
                }
                pairs
            }
        };
        let pairs: Vec<Pair> = pairs.into_iter().filter(|pair| pair[1] > 0).collect();
        self.kv_len = self.again(|chat| {
            let kv_len = chat.kv_len;
            let Chat { session, layout, key, value, .. } = chat;
            session.keep(0, &pairs, Cache::new(layout, key, value).unwrap(), kv_len)
        });
        let kept = pairs.iter().flat_map(|pair| pair[0]..pair[0] + pair[1]);
        self.tokens = kept.map(|at| self.tokens[at as usize].clone()).collect();
    }

    fn park(&mut self) {
        self.again(|chat| {
            let kv_len = chat.kv_len;
            let Chat { session, layout, key, value, .. } = chat;
            session.park(0, Some(Cache::new(layout, key, value).unwrap()), kv_len, &FASTEST)
        });
    }

    /// Saves the chat, and goes on in another session and other buffers from the file, which may have been compacted.
    fn restart(&mut self) {
        let before = self.session.quant_stats(None).unwrap().tokens;
        loop {
            let Chat { session, layout, key, value, kv_len, file, .. } = self;
            shortage::set(if self.is_short { 30 } else { 0 }, self.random.next());
            let cache = Cache::new(layout, key, value).unwrap();
            let saved = session.save(0, Some(cache), *kv_len, &FASTEST, file).and_then(|_| file.commit());
            shortage::set(0, 0);
            match saved {
                Err(error) if self.is_short && error.status() == Status::OutOfMemory => file.discard(),
                saved => break saved.unwrap(),
            }
        }
        if self.random.below(3) == 0 {
            let disk = Disk::default();
            let mut file = disk.create();
            compact_file(&self.file, &FASTEST, &mut file).unwrap();
            file.commit().unwrap();
            (self.disk, self.file) = (disk, file);
        }
        self.file = self.disk.open();
        self.session = session(&format!(r#"{{"kv_quant": "k8v4", "kv_quant_sink_tokens": {SINK}}}"#));
        self.again(|chat| chat.session.load(None, &chat.file));
        assert_eq!(self.session.quant_stats(None).unwrap().tokens, before);
        self.layout = layout(self.dtype, PACKS[self.random.below(3)], self.kv_len + 7);
        (self.key, self.value) = (vec![0; self.layout.key_bytes()], vec![0; self.layout.value_bytes()]);
    }
}

/// Dense rows of a cache.
fn layout_rows(layout: &Layout, key: &[u8], value: &[u8], kv_len: u32) -> (Vec<u8>, Vec<u8>) {
    let range = layout.range(0, kv_len).unwrap();
    let mut rows =
        (vec![0; layout.dense_key_bytes(kv_len as usize)], vec![0; layout.dense_value_bytes(kv_len as usize)]);
    crate::layout::gather(&CacheRef::new(layout, key, value).unwrap(), range, &mut rows.0, &mut rows.1).unwrap();
    rows
}

fn schedule(seed: u64) -> u64 {
    let mut random = Random::new(seed);
    let dtype = [Dtype::F32, Dtype::F16, Dtype::Bf16][random.below(3)];
    let is_short = random.below(3) == 0;
    let mut chat = Chat::new(dtype, is_short, random);
    for _ in 0..12 {
        match chat.random.below(10) {
            0 | 1 => {
                let rows = 1 + chat.random.below(250);
                chat.step(rows);
            }
            2 if !chat.tokens.is_empty() => chat.edit(),
            3 if chat.kv_len > 0 => chat.park(),
            4 | 5 if chat.random.below(3) == 0 && chat.kv_len > 0 => chat.restart(),
            4 if chat.random.below(8) == 0 => {
                chat.disk = Disk::default();
                chat.file = chat.disk.create();
                chat.session.reset(None).unwrap();
                (chat.kv_len, chat.tokens) = (0, Vec::new());
            }
            _ => {
                let rows = 1 + chat.random.below(5);
                chat.step(rows);
            }
        }
    }
    chat.session.quant_stats(None).unwrap().blocks
}

#[test]
fn random_chats_attend_to_every_token_once() {
    let count = number("MNNKV_SCHEDULES").unwrap_or(600).div_ceil(3);
    let blocks: u64 = (0..count).map(|seed| reported(seed, || schedule(seed))).sum();
    assert!(blocks > count, "{blocks} blocks in {count} chats");
}

#[test]
fn steps_that_did_not_attend_are_refused_and_unharmed() {
    let mut chat = Chat::new(Dtype::F32, false, Random::new(7));
    chat.step(300);
    chat.begin();
    let stats = chat.session.quant_stats(Some(0)).unwrap();
    assert!(stats.tokens >= 128);
    let metrics = chat.session.metrics(None).unwrap();
    assert_eq!(metrics.h2o_logical_tokens - metrics.h2o_physical_tokens, stats.tokens as f64);
    // Tokens for which the buffers have no room, less their codes.
    let row = (2 * KV_HEADS * DIMS * 4) as f64;
    let gone = 300.0 - chat.layout.max_tokens() as f64;
    assert!(metrics.h2o_resident_saved_bytes >= gone * row - stats.bytes as f64);
    assert!(metrics.h2o_resident_saved_bytes < stats.tokens as f64 * row);
    chat.append(1);
    let refused = |result: Result<()>, words: &str| {
        let error = result.unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument, "{words}");
        assert!(error.message().contains(words), "{} lacks {words}", error.message());
    };
    let end = |chat: &mut Chat| {
        let kv_len = chat.kv_len;
        let Chat { session, layout, key, value, .. } = chat;
        session.end(0, HEADS as u32, 1, Cache::new(layout, key, value).unwrap(), kv_len)
    };
    refused(end(&mut chat), "0 of 1 rows have attended");
    let nan: Vec<u8> = [f32::NAN; HEADS * DIMS].iter().flat_map(|x| x.to_ne_bytes()).collect();
    let good = vec![0u8; HEADS * DIMS * 4];
    let attend = |chat: &Chat, data: &[u8], part: (u32, u32), kv_len: u32, dims: usize| -> Result<()> {
        let queries = Queries {
            dtype: Dtype::F32,
            heads: HEADS,
            rows: 1,
            dims,
            head_stride: DIMS * 4,
            row_stride: HEADS * DIMS * 4,
            scale: 0.0,
            data,
        };
        let step = Step { queries, is_causal: true, window: None, soft_cap: None, sinks: None, mask: None };
        let cache = CacheRef::new(&chat.layout, &chat.key, &chat.value).unwrap();
        chat.session.attend(0, (&cache, kv_len), &step, part, &mut |_, _, _| {})
    };
    let len = chat.kv_len;
    refused(attend(&chat, &nan, (0, 2), len, DIMS), "element 0 of row 0 of query head 0 is NaN");
    refused(attend(&chat, &good, (2, 2), len, DIMS), "part is 2 of 2");
    refused(attend(&chat, &good, (0, 65), len, DIMS), "part is 0 of 65");
    refused(attend(&chat, &good, (0, 2), len - 2, DIMS), "or more expected, as begin left it");
    refused(attend(&chat, &good, (0, 2), len, DIMS - 8), "dims; the cache has");
    attend(&chat, &good, (0, 2), len, DIMS).unwrap();
    refused(attend(&chat, &good, (0, 2), len, DIMS), "part 0 of 2 is given twice");
    refused(attend(&chat, &good, (1, 3), len, DIMS), "the step has begun with 2 parts");
    refused(end(&mut chat), "part 1 of 2 has not attended");
    attend(&chat, &good, (1, 2), len, DIMS).unwrap();
    end(&mut chat).unwrap();
    refused(attend(&chat, &good, (0, 1), len, DIMS), "is not open");
    chat.step(3);
}

#[test]
fn layers_whose_numbers_codes_cannot_hold_stay_raw() {
    let mut chat = Chat::new(Dtype::F32, false, Random::new(9));
    chat.begin();
    chat.move_cache(400);
    chat.append(300);
    // One number that is not finite, in the first block behind the sink tokens: that block alone stays raw.
    let mut nan = layout_rows(&chat.layout, &chat.key, &chat.value, 300);
    nan.0[(SINK + 3) * DIMS * 4..][..4].copy_from_slice(&f32::NAN.to_ne_bytes());
    let range = chat.layout.range(0, 300).unwrap();
    scatter(&mut chat.cache(), range, &nan.0, &nan.1).unwrap();
    chat.end(0);
    chat.begin();
    let stats = chat.session.quant_stats(None).unwrap();
    assert_eq!((stats.blocks, stats.unfit, chat.kv_len), (3, 1, 300 - 3 * 64));
    assert!(!chat.session.warnings().unwrap().contains("stays raw"));

    let mut chat = Chat::new(Dtype::F32, false, Random::new(9));
    chat.begin();
    chat.move_cache(400);
    chat.append(300);
    let mut wild = layout_rows(&chat.layout, &chat.key, &chat.value, 300);
    for x in wild.0.chunks_exact_mut(4).step_by(3) {
        x.copy_from_slice(&(f32::from_ne_bytes([x[0], x[1], x[2], x[3]]) * 500.0).to_ne_bytes());
    }
    scatter(&mut chat.cache(), range, &wild.0, &wild.1).unwrap();
    chat.end(0);
    chat.begin();
    let stats = chat.session.quant_stats(None).unwrap();
    assert_eq!((stats.tokens, stats.unfit, chat.kv_len), (0, 2, 300));
    assert!(chat.session.warnings().unwrap().contains("layer 0 (1 in all) stays raw until its reset"));
}

#[test]
fn a_host_that_does_not_attend_keeps_its_tokens_raw() {
    let session = Session::new(br#"{"kv_quant": "k8v4"}"#, b"", 1, 1).unwrap();
    assert!(session.warnings().unwrap().contains("kv_quant has no effect"));
    assert!(!session.attends(0).unwrap());
    for other in [r#""kv_h2o_enable": true"#, r#""kv_lossless_enable": true, "kv_lossless_runtime_enable": true"#] {
        let config = format!(r#"{{"kv_quant": "k8v4", {other}}}"#);
        let refused: Error = Session::new(config.as_bytes(), b"", 1, 1).err().unwrap();
        assert!(refused.message().contains("one of them expected"), "{}", refused.message());
    }
    let outlook = self::session(r#"{"kv_quant": "k8v4", "kv_quant_layer_start": 0}"#);
    assert_eq!(
        outlook.outlook(),
        "all layers: K in 8 bits and V in 4, but for the first 16 tokens and the newest 32 to 95"
    );
}

#[test]
fn threads_attend_at_once() {
    let mut chat = Chat::new(Dtype::F32, false, Random::new(11));
    chat.step(400);
    for rows in [1usize, 3, 40] {
        chat.begin();
        if chat.layout.max_tokens() < chat.kv_len as usize + rows {
            chat.move_cache(rows as u32);
        }
        chat.append(rows);
        let queries: Vec<u8> = (0..rows * HEADS * DIMS).flat_map(|_| chat.number().to_ne_bytes()).collect();
        let run = |parts: u32| {
            let output = std::sync::Mutex::new(vec![0.0f32; rows * HEADS * DIMS]);
            let cache = CacheRef::new(&chat.layout, &chat.key, &chat.value).unwrap();
            let queries = Queries {
                dtype: Dtype::F32,
                heads: HEADS,
                rows,
                dims: DIMS,
                head_stride: DIMS * 4,
                row_stride: HEADS * DIMS * 4,
                scale: 0.0,
                data: &queries,
            };
            let step = Step { queries, is_causal: true, window: None, soft_cap: None, sinks: None, mask: None };
            std::thread::scope(|scope| {
                for part in 0..parts {
                    let (chat, cache, step, output) = (&chat, &cache, &step, &output);
                    scope.spawn(move || {
                        let mut write = |row: usize, head: usize, x: &[f32]| {
                            output.lock().unwrap()[(row * HEADS + head) * DIMS..][..DIMS].copy_from_slice(x);
                        };
                        chat.session.attend(0, (cache, chat.kv_len), step, (part, parts), &mut write).unwrap();
                    });
                }
            });
            output.into_inner().unwrap()
        };
        let alone = run(1);
        for parts in [2, 3, 8, 64] {
            let many = run(parts);
            let differ = alone.iter().zip(&many).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
            assert!(differ < 1e-4, "{rows} rows in {parts} parts: {differ}");
        }
        chat.end(5 * rows);
    }
}

#[test]
fn a_file_of_quantised_tokens_is_refused_where_nothing_attends_and_where_it_is_damaged() {
    let mut chat = Chat::new(Dtype::F16, false, Random::new(3));
    chat.step(300);
    chat.step(1);
    let tokens = chat.session.quant_stats(None).unwrap().tokens;
    assert!(tokens >= 192);
    let saved = |chat: &mut Chat| {
        let Chat { session, layout, key, value, kv_len, file, .. } = chat;
        let saved = session.save(0, Some(Cache::new(layout, key, value).unwrap()), *kv_len, &FASTEST, file).unwrap();
        file.commit().unwrap();
        saved.tokens
    };
    assert_eq!(saved(&mut chat), 301);
    assert_eq!(saved(&mut chat), 0, "blocks are written once");
    chat.step(64);
    assert!(saved(&mut chat) < 2 * 64 + 2, "and then the new ones alone");
    for config in ["{}", r#"{"kv_quant": "k8v4"}"#] {
        let other = Session::new(config.as_bytes(), b"", 1, 1).unwrap();
        let error = other.load(None, &chat.file).unwrap_err();
        assert_eq!(error.status(), Status::Unsupported);
        assert!(error.message().contains("kv_quant must be"), "{}", error.message());
    }
    let other = session(r#"{"kv_quant": "k8v4", "kv_quant_layer_start": 1}"#);
    assert_eq!(other.load(None, &chat.file).unwrap_err().status(), Status::Unsupported);
    let bytes = chat.disk.bytes();
    let (mut random, mut refused) = (Random::new(5), 0);
    for _ in 0..300 {
        let mut damaged = bytes.clone();
        let at = 2560 + random.below(damaged.len() - 2560);
        damaged[at] ^= 1 << random.below(8);
        let disk = Disk::of(damaged);
        let Ok(file) = disk.try_open() else {
            refused += 1;
            continue;
        };
        let fresh = session(r#"{"kv_quant": "k8v4"}"#);
        match fresh.load(None, &file) {
            Err(error) => {
                assert!(matches!(error.status(), Status::Corrupt | Status::Unsupported), "{error}");
                refused += 1;
            }
            // Bytes of no live token.
            Ok(()) => {
                assert_eq!(fresh.quant_stats(None).unwrap().tokens, chat.session.quant_stats(None).unwrap().tokens)
            }
        }
    }
    assert!(refused > 250, "{refused} of 300");
}
