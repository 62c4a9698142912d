//! Chats in 8 and 4 bits: every token is attended to, once, as the numbers of its codes or as it was written.

mod budget;
mod examples;
mod found;
mod opened;
mod shares;
mod windows;

use crate::attend::tests::{bits, by_format};
use crate::attend::{Mask, Queries, Step};
use crate::common::Random;
use crate::dtype::Dtype;
use crate::dtype::convert::{Endian, narrow, rounded};
use crate::host::expand;
use crate::host::packing::flash;
use crate::layout::{Cache, CacheRef, Layout, Pair, Spec, scatter};
use crate::session::tests::saved::ChatPath;
use crate::session::tests::{number, reported};
use crate::session::{CacheLengths, Holds, Host, Rung, Session};
use crate::status::{Error, Result, Status};
use crate::sys::memory::shortage;

/// The first position of a block, the tokens that are left, and each head's bytes.
type BlockBytes = (u32, u64, Vec<Option<Vec<u8>>>);

impl Session {
    /// The blocks of a layer, in memory or in the file.
    pub(in crate::session) fn blocks_for_tests(&self, layer: usize) -> Vec<BlockBytes> {
        let state = self.state().unwrap();
        let tier = state.tier.as_ref();
        let blocks = &state.layers[layer].tokens().blocks;
        let bytes = |block: u32, head: usize| {
            let mut bytes = Vec::new();
            if blocks.copy(block, head, &mut bytes).unwrap() {
                return Some(bytes);
            }
            blocks.in_file(block, head)?;
            tier.unwrap().read(blocks, (block, head), &mut bytes).ok().map(|_| bytes)
        };
        let all = (0..).zip(blocks.list());
        all.map(|(at, placed)| (placed.first, placed.live, (0..blocks.heads()).map(|head| bytes(at, head)).collect()))
            .collect()
    }
}

const DIMS: usize = 24;
const KV_HEADS: usize = 2;
const HEADS: usize = 4;
const SINK: usize = 5;
/// Of random chats.
const LEAST_BUDGET: u64 = 130_000;

/// K and V of a token: `[head][dim]`.
#[derive(Clone)]
struct Token(Vec<f32>, Vec<f32>);

/// What tokens a chat quantises, and what becomes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Always,
    /// A budget whose blocks are dropped.
    Drops,
    /// A budget whose blocks go to a file.
    Offloads,
}

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
    /// Where it is saved; with `Offloads` the file of its config, too.
    path: ChatPath,
    mode: Mode,
    /// Some head of a block was dropped.
    dropped: bool,
    /// Blocks do not fit k4v4.
    is_wide: bool,
}

fn layout(dtype: Dtype, packs: [u32; 3], max_tokens: u32) -> Layout {
    Layout::new(&spec(dtype, packs, max_tokens)).unwrap()
}

fn spec(dtype: Dtype, packs: [u32; 3], max_tokens: u32) -> Spec {
    let [l_pack, h_pack, flash_block] = packs;
    let common = flash(KV_HEADS as u32, DIMS as u32, h_pack, max_tokens);
    Spec { key: dtype.into(), value: dtype.into(), l_pack, flash_block, ..common }
}

const PACKS: [[u32; 3]; 3] = [[1, 8, 64], [8, 4, 64], [1, 1, 1]];

fn session(config: &str) -> Session {
    Session::with_host(config.as_bytes(), b"", 1, 2, Host { attends: true }).unwrap()
}

/// A config of a random chat.
fn config(mode: Mode, path: &ChatPath, random: &mut Random) -> String {
    let budget = LEAST_BUDGET as usize + random.below(120_000);
    let file = format!(r#""kv_memory_file": "{}", "kv_memory_wait_us": 10000000"#, path.text());
    let rest = match mode {
        Mode::Always => format!(r#""kv_quant": "{}""#, ["k8v4", "k4v4"][random.below(2)]),
        Mode::Drops => format!(r#""kv_memory_bytes": {budget}"#),
        Mode::Offloads => format!(r#""kv_memory_bytes": {budget}, {file}"#),
    };
    format!(r#"{{"kv_quant_sink_tokens": {SINK}, {rest}}}"#)
}

impl Chat {
    fn new(dtype: Dtype, is_short: bool, mode: Mode, mut random: Random) -> Self {
        let path = ChatPath::new();
        let session = session(&config(mode, &path, &mut random));
        let layout = layout(dtype, PACKS[random.below(3)], 128);
        let (key, value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
        let (tokens, is_wide) = (Vec::new(), random.below(3) == 0);
        let (kv_len, dropped) = (0, false);
        Chat { session, layout, key, value, kv_len, dtype, tokens, random, is_short, path, mode, dropped, is_wide }
    }

    /// A chat in f16 with these keys, and with its file in `Offloads`.
    fn with(mode: Mode, seed: u64, keys: &str) -> Self {
        let mut chat = Chat::new(Dtype::F16, false, mode, Random::new(seed));
        chat.configure(keys);
        chat
    }

    /// Takes another session, with these keys.
    fn configure(&mut self, keys: &str) {
        let file = match self.mode {
            Mode::Offloads => format!(r#", "kv_memory_file": "{}""#, self.path.text()),
            _ => String::new(),
        };
        // Its file is closed first.
        self.session = session("{}");
        self.session = session(&format!("{{{keys}{file}}}"));
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
            Ok(session.begin(0, Some(Cache::new(layout, key, value).unwrap()), kv_len)?.kv_len)
        });
        let stays_raw = self.is_short || self.session.warnings().unwrap().contains("stays raw");
        let stays_raw = stays_raw || !self.session.attends(0).unwrap();
        assert!(stays_raw || self.kv_len as usize <= SINK + 32 + 63 + 64 * self.unfit());
    }

    fn unfit(&self) -> usize {
        self.session.metrics(None).unwrap().quant_unfit_block_count as usize
    }

    /// Appends tokens behind those of the cache.
    fn append(&mut self, count: usize) {
        let rows: Vec<Token> = (0..count)
            .map(|_| {
                let mut row = || (0..KV_HEADS * DIMS).map(|_| self.number()).collect::<Vec<f32>>();
                let (mut key, value) = (row(), row());
                // A channel that needs 16 bits.
                key[3] *= if self.is_wide { 100.0 } else { 1.0 };
                Token(key, value)
            })
            .collect();
        let (key, value) = dense(self.dtype, &rows);
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
        for (first, live, heads) in self.session.blocks_for_tests(0) {
            let is_few = heads.iter().flatten().any(|head| bits::by_format(DIMS, head).is_some());
            // Numbers of heads that were dropped count nowhere.
            let none = || (vec![f64::NAN; 64 * DIMS], vec![f64::NAN; 64 * DIMS]);
            let heads: Vec<_> =
                heads.iter().map(|head| head.as_ref().map_or_else(none, |head| by_format(DIMS, head))).collect();
            let is_whole = heads.iter().all(|head| !head.0[0].is_nan());
            assert!(
                self.mode == Mode::Drops
                    || self.dropped
                    || is_whole
                    || self.session.memory_stats().unwrap().dropped_tokens > 0
            );
            let live = (0..64).filter(|token| live >> token & 1 == 1);
            for (token, at) in live.zip(first as usize..) {
                let row = |head: &[f64]| head[token * DIMS..][..DIMS].iter().map(|x| *x as f32).collect::<Vec<_>>();
                let token = Token(
                    heads.iter().flat_map(|head| row(&head.0)).collect(),
                    heads.iter().flat_map(|head| row(&head.1)).collect(),
                );
                // Codes are of this token.
                let (of_k, of_v) = if is_few { (1.3, 0.9) } else { (0.03, 0.3) };
                for (x, y) in token.0.iter().zip(&self.tokens[at].0) {
                    assert!(x.is_nan() || (x - y).abs() < of_k, "K of token {at}: {x} for {y}");
                }
                for (x, y) in token.1.iter().zip(&self.tokens[at].1) {
                    assert!(x.is_nan() || (x - y).abs() < of_v, "V of token {at}: {x} for {y}");
                }
                assert!(all[at].replace(token).is_none(), "token {at} is in two blocks");
            }
        }
        let mut raw = self.session.positions(0, None).unwrap();
        let known: i32 = raw.iter().map(|run| run[1]).sum();
        raw.push([self.tokens.len() as i32 - (self.kv_len as i32 - known), self.kv_len as i32 - known]);
        for at in raw.iter().flat_map(|run| run[0]..run[0] + run[1]) {
            let token = self.tokens[at as usize].clone();
            assert!(all[at as usize].replace(token).is_none(), "token {at} is in a block and in the cache");
        }
        let begun = self.tokens.len() - (self.kv_len as i32 - known) as usize;
        for head in 0..KV_HEADS {
            let is_there = |at: &u32| all[*at as usize].as_ref().is_some_and(|token| !token.0[head * DIMS].is_nan());
            let there: Vec<u32> = (0..begun as u32).filter(is_there).collect();
            let known: Vec<u32> = expand(&self.session.positions(0, Some(head as u32)).unwrap()).collect();
            // A file may be damaged, which nobody knows yet.
            let is_damaged = self.mode == Mode::Drops && self.session.memory_stats().unwrap().file_bytes > 0;
            assert!(known == there || is_damaged && known.len() > there.len(), "positions of head {head}");
        }
        // A token whose heads were all dropped is nowhere.
        let none = || Token(vec![f32::NAN; KV_HEADS * DIMS], vec![f32::NAN; KV_HEADS * DIMS]);
        let drops = self.session.memory_stats().unwrap().dropped_tokens > 0 || self.dropped;
        assert!(drops || all.iter().all(Option::is_some), "every token is somewhere");
        all.into_iter().map(|token| token.unwrap_or_else(none)).collect()
    }

    /// Attends with `rows` rows in random parts, and compares with attention in f64. Returns what the library has written.
    fn attend(&mut self, rows: usize) -> Vec<f32> {
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
        let blocks = self.session.blocks_for_tests(0);
        let is_few =
            blocks.iter().flat_map(|(.., heads)| heads.iter().flatten()).any(|x| bits::by_format(DIMS, x).is_some());
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
                    let logit = dot(&all[at].0[kv..][..DIMS]) * 0.3 + addend;
                    if seen && !logit.is_nan() { logit } else { f64::NEG_INFINITY }
                })
                .collect();
            let peak = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = logits.iter().map(|x| (x - peak).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for dim in 0..DIMS {
                let there = weights.iter().zip(&all).filter(|(w, _)| **w > 0.0);
                let exact: f64 = there.map(|(w, token)| w * f64::from(token.1[kv + dim])).sum();
                let got = f64::from(output[(row * HEADS + head) * DIMS + dim]);
                // Beside codes of few bits queries have 7.
                let bound = if is_few { 0.05 } else { 0.02 };
                assert!(
                    (got - exact / sum).abs() < bound,
                    "row {row} of {rows} head {head}: {got} for {}, {:?} {window:?} {mask_tokens:?} {parts} of {} tokens",
                    exact / sum,
                    self.session.memory_stats(),
                    all.len()
                );
            }
        }
        output
    }

    fn end(&mut self, rows: usize) {
        self.again(|chat| {
            let kv_len = chat.kv_len;
            let Chat { session, layout, key, value, .. } = chat;
            session.end(0, HEADS as u32, rows as u32, Cache::new(layout, key, value).unwrap(), kv_len)
        });
    }

    /// A step of so many tokens in which nobody attends.
    fn write(&mut self, tokens: usize) {
        self.move_cache(tokens as u32);
        self.begin();
        self.append(tokens);
        self.end(0);
    }

    /// A whole step. Returns what it has attended to.
    fn step(&mut self, rows: usize) -> Vec<f32> {
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
        let output = if self.session.attends(0).unwrap() { self.attend(rows) } else { Vec::new() };
        self.end(rows);
        self.check_memory(rows);
        output
    }

    /// The budget holds, a prompt's chunk aside.
    fn check_memory(&mut self, rows: usize) {
        let stats = self.session.memory_stats().unwrap();
        // Working memory may grow in the step that makes room.
        let slack = 25_000 + if rows > 16 { rows * KV_HEADS * DIMS * 2 * self.dtype.bytes() } else { 0 };
        assert!(
            self.mode == Mode::Always
                || self.is_short
                || stats.bytes <= stats.budget_bytes + slack as u64
                || stats.block_bytes < 20_000,
            "{stats:?}"
        );
        self.check_drops();
        assert_eq!((stats.lost, stats.failed_writes, stats.late_reads, stats.failed_reads), (0, 0, 0, 0));
    }

    /// Nothing is dropped while lists have room.
    fn check_drops(&mut self) {
        let stats = self.session.memory_stats().unwrap();
        let has_room = stats.budget_bytes > stats.working_bytes + 200_000;
        assert!(self.mode == Mode::Drops || !has_room || stats.dropped_tokens == 0 || self.dropped, "{stats:?}");
        self.dropped |= stats.dropped_tokens > 0;
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

    /// Saves the chat to its file. Returns the bytes written.
    fn save(&mut self) -> Result<u64> {
        let Chat { session, layout, key, value, kv_len, path, .. } = self;
        session.save(Some(path.text()), &mut [(Some(Cache::new(layout, key, value).unwrap()), *kv_len)])
    }

    /// What a save keeps, and a call that fails leaves as it was.
    fn view(&self) -> (CacheLengths, Vec<Pair>, Vec<BlockBytes>) {
        let session = &self.session;
        (session.lengths(0).unwrap(), session.positions(0, None).unwrap(), session.blocks_for_tests(0))
    }

    /// As [`Chat::again`]; a call that fails changes nothing.
    fn unharmed(&mut self, call: impl Fn(&mut Self) -> Result<()>) {
        let before = self.view();
        self.again(|chat| {
            call(chat).inspect_err(|_| {
                shortage::set(0, 0);
                assert!(chat.view() == before);
            })
        });
    }

    /// Saves the chat, and goes on from its file: in this session, or in another one with another budget.
    fn restart(&mut self) {
        self.unharmed(|chat| chat.save().map(drop));
        // A file that is mostly holes is written anew.
        self.again(Chat::save);
        assert_eq!(self.again(Chat::save), 0, "nothing is new");
        let (before, saved) = (self.session.memory_stats().unwrap(), self.view());
        if self.random.below(3) > 0 {
            self.session = session("{}");
            self.session = session(&config(self.mode, &self.path, &mut self.random));
        }
        self.unharmed(|chat| chat.session.open(Some(chat.path.text())));
        let (after, opened) = (self.session.memory_stats().unwrap(), self.view());
        // Raw tokens that a chunk had appended take the room of some blocks.
        let is_less = after.budget_bytes < before.budget_bytes;
        let gone = after.dropped_tokens - before.dropped_tokens;
        assert!(self.mode == Mode::Drops && (is_less || gone <= 256) || opened == saved, "{gone} {before:?} {after:?}");
        self.dropped |= after.dropped_tokens > 0;
        self.layout = layout(self.dtype, PACKS[self.random.below(3)], self.kv_len + 7);
        (self.key, self.value) = (vec![0; self.layout.key_bytes()], vec![0; self.layout.value_bytes()]);
        if self.random.below(2) == 0 {
            self.check_rows();
        }
    }

    /// A step in vain: the cache has the tokens at the positions that the session names, as they were written.
    fn check_rows(&mut self) {
        self.begin();
        let positions = self.session.positions(0, None).unwrap();
        let rows: Vec<Token> = expand(&positions).map(|at| self.tokens[at as usize].clone()).collect();
        assert!(layout_rows(&self.layout, &self.key, &self.value, self.kv_len) == dense(self.dtype, &rows));
        let Chat { session, layout, key, value, kv_len, .. } = self;
        session.abort(0, Some(Cache::new(layout, key, value).unwrap()), *kv_len).unwrap();
    }
}

/// Dense rows of tokens.
fn dense(dtype: Dtype, rows: &[Token]) -> (Vec<u8>, Vec<u8>) {
    let bytes = |part: &dyn Fn(&Token) -> &[f32]| -> Vec<u8> {
        let heads = (0..KV_HEADS).flat_map(|head| rows.iter().map(move |row| (head, row)));
        let numbers: Vec<f32> = heads.flat_map(|(head, row)| part(row)[head * DIMS..][..DIMS].to_vec()).collect();
        let mut bytes = vec![0; numbers.len() * dtype.bytes()];
        narrow(dtype, Endian::Native, &numbers, &mut bytes);
        bytes
    };
    (bytes(&|row| &row.0), bytes(&|row| &row.1))
}

/// Dense rows of a cache.
fn layout_rows(layout: &Layout, key: &[u8], value: &[u8], kv_len: u32) -> (Vec<u8>, Vec<u8>) {
    let range = layout.range(0, kv_len).unwrap();
    let mut rows =
        (vec![0; layout.dense_key_bytes(kv_len as usize)], vec![0; layout.dense_value_bytes(kv_len as usize)]);
    crate::layout::gather(&CacheRef::new(layout, key, value).unwrap(), range, &mut rows.0, &mut rows.1).unwrap();
    rows
}

fn schedule(seed: u64) -> [u64; 4] {
    let mut random = Random::new(seed);
    let dtype = [Dtype::F32, Dtype::F16, Dtype::Bf16][random.below(3)];
    let is_short = random.below(3) == 0;
    let mode = [Mode::Always, Mode::Drops, Mode::Offloads][random.below(3)];
    // A chat that was saved has a file, and drops nothing.
    let saves = mode != Mode::Drops || random.below(2) == 0;
    let mut chat = Chat::new(dtype, is_short, mode, random);
    for _ in 0..if mode == Mode::Always { 12 } else { 24 } {
        match chat.random.below(10) {
            at if at < 2 || mode != Mode::Always && at > 6 => {
                let rows = 1 + chat.random.below(250);
                drop(chat.step(rows));
            }
            2 if !chat.tokens.is_empty() => chat.edit(),
            6 if mode != Mode::Always => {
                let before = chat.session.memory_stats().unwrap();
                let budget = before.budget_bytes - chat.random.below(20_000) as u64;
                let bytes = chat.session.trim(budget.max(LEAST_BUDGET)).unwrap();
                // The first write to a file takes working memory.
                assert!(bytes <= before.bytes + 25_000);
                chat.check_drops();
            }
            3 if saves && chat.kv_len > 0 => drop(chat.again(Chat::save)),
            4 | 5 if saves && chat.random.below(2) == 0 && chat.kv_len > 0 => chat.restart(),
            4 if chat.random.below(8) == 0 => {
                chat.session.reset(None).unwrap();
                (chat.kv_len, chat.tokens) = (0, Vec::new());
            }
            _ => {
                let rows = 1 + chat.random.below(5);
                drop(chat.step(rows));
            }
        }
    }
    let stats = chat.session.memory_stats().unwrap();
    [
        chat.session.metrics(None).unwrap().quant_block_count as u64,
        u64::from(stats.written_bytes > 0),
        u64::from(stats.rung == Rung::Dropping),
        u64::from(stats.returned > 0),
    ]
}

#[test]
fn random_chats_attend_to_every_token_once() {
    let count = number("MNNKV_SCHEDULES").unwrap_or(180).div_ceil(3);
    // Numbers of other kinds of schedules have a part.
    let seeds = match super::alone() {
        Some(seed) if seed >> 32 == 0 => seed..seed + 1,
        Some(_) => return,
        None => 0..count,
    };
    let mut all = [0; 4];
    for seed in seeds {
        all.iter_mut().zip(reported(seed, || schedule(seed))).for_each(|(sum, n)| *sum += n);
    }
    let [blocks, offloaded, dropped, returned] = all;
    assert!(
        super::alone().is_some()
            || blocks > count && offloaded >= count / 30 && dropped >= count / 20 && returned >= count / 50,
        "{all:?} in {count} chats"
    );
}
