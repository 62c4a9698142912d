//! A host of the C ABI: a chat of one layer through a session, or through a store alone. One of its calls is short of
//! memory; after every call each token must read as it was written.

use crate::failing_allocator::{Refused, refusing};
use mnnkv::dtype::Dtype;
use mnnkv::ffi::cache::{mnnkv_cache, mnnkv_layout};
use mnnkv::ffi::session::*;
use mnnkv::ffi::status::*;
use mnnkv::ffi::store::*;
use mnnkv::ffi::version::MNNKV_ABI_VERSION;
use mnnkv::layout::{self, Layout, Spec};
use std::ffi::CStr;
use std::ptr::{null, null_mut};

const HEADS: u32 = 2;
const DIMS: u32 = 16;
const MAX_TOKENS: u32 = 256;

fn spec() -> Spec {
    Spec {
        key_dtype: Dtype::F16,
        value_dtype: Dtype::F16,
        kv_heads: HEADS,
        head_dim: DIMS,
        l_pack: 1,
        h_pack: 8,
        flash_block: 16,
        max_tokens: MAX_TOKENS,
        key_head_stride: 0,
        value_head_stride: 0,
        key_token_stride: 0,
        value_token_stride: 0,
    }
}

/// Which call is short of memory, and of what.
#[derive(Clone, Copy, Debug)]
pub struct Shortage {
    pub call: usize,
    pub refused: Refused,
}

/// Counts calls, and makes one of them short of memory.
pub struct Calls {
    pub shortage: Shortage,
    pub made: usize,
    /// Allocations that were refused.
    pub refusals: u64,
    pub failures: u64,
}

impl Calls {
    /// Runs a call. When it answers OUT_OF_MEMORY it runs again with memory, and must succeed.
    pub fn run(&mut self, name: &str, mut call: impl FnMut() -> mnnkv_status) {
        let Shortage { call: which, refused } = self.shortage;
        let number = self.made;
        self.made += 1;
        let mut status = MNNKV_OUT_OF_MEMORY;
        if number == which {
            let (answer, refusals) = refusing(refused, &mut call);
            (status, self.refusals) = (answer, refusals);
            self.failures += u64::from(status == MNNKV_OUT_OF_MEMORY);
        }
        if status == MNNKV_OUT_OF_MEMORY {
            status = call();
        }
        // SAFETY: the text is terminated and lives until the next call.
        let text = unsafe { CStr::from_ptr(mnnkv_last_error()) };
        assert_eq!(status, MNNKV_OK, "{name}, {:?}: {text:?}", self.shortage);
    }
}

/// The cache of a layer, and the number of each token that it should hold.
pub struct Cache {
    c_layout: mnnkv_layout,
    layout: Layout,
    key: Vec<u8>,
    value: Vec<u8>,
    pub tokens: Vec<u32>,
    said: u32,
}

/// Rows of a token: every bit of its number comes out, in words of few values.
fn row(token: u32, of_value: bool) -> Vec<u8> {
    let hash = (token * 2 + u32::from(of_value)).wrapping_mul(2_654_435_761);
    let word = |at: u32| (0x3C00 + (hash >> (4 * (at % 8)) & 0xF)) as u16;
    (0..DIMS).flat_map(|at| word(at).to_ne_bytes()).collect()
}

/// Rows of tokens as `[head][token][dim]`.
fn rows(tokens: &[u32], of_value: bool) -> Vec<u8> {
    (0..HEADS).flat_map(|_| tokens.iter().flat_map(|token| row(*token, of_value))).collect()
}

impl Cache {
    pub fn new() -> Self {
        let spec = spec();
        let layout = Layout::new(&spec).unwrap();
        let c_layout = mnnkv_layout {
            struct_size: size_of::<mnnkv_layout>() as u32,
            key_dtype: spec.key_dtype as u32,
            value_dtype: spec.value_dtype as u32,
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim,
            e_pack: 1,
            l_pack: spec.l_pack,
            h_pack: spec.h_pack,
            flash_block: spec.flash_block,
            max_tokens: spec.max_tokens,
            key_head_stride: 0,
            value_head_stride: 0,
            key_token_stride: 0,
            value_token_stride: 0,
        };
        let (key, value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
        Cache { c_layout, layout, key, value, tokens: Vec::new(), said: 0 }
    }

    pub fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    fn write(&mut self, at: u32, tokens: &[u32]) {
        let range = self.layout.range(at, tokens.len() as u32).unwrap();
        let (keys, values) = (rows(tokens, false), rows(tokens, true));
        layout::scatter(&self.layout, &keys, &values, range, &mut self.key, &mut self.value).unwrap();
    }

    pub fn append(&mut self, count: u32) {
        let new: Vec<u32> = (self.said..self.said + count).collect();
        self.write(self.len(), &new);
        self.tokens.extend(new);
        self.said += count;
    }

    /// Writes new tokens over those at `at`.
    pub fn rewrite(&mut self, at: u32, count: u32) {
        let new: Vec<u32> = (self.said..self.said + count).collect();
        self.said += count;
        self.write(at, &new);
        self.tokens[at as usize..][..count as usize].copy_from_slice(&new);
    }

    pub fn keep(&mut self, pairs: &[[i32; 2]]) {
        self.tokens = pairs.iter().flat_map(|p| self.tokens[p[0] as usize..][..p[1] as usize].to_vec()).collect();
    }

    pub fn compact(&mut self, pairs: &[[i32; 2]]) {
        let len = self.len();
        layout::compact(&self.layout, &mut self.key, &mut self.value, 0, pairs, len).unwrap();
        self.keep(pairs);
    }

    /// Checks every token.
    pub fn check(&self, what: &str) {
        let range = self.layout.range(0, self.len()).unwrap();
        let bytes = self.layout.dense_key_bytes(range.count());
        let (mut keys, mut values) = (vec![0; bytes], vec![0; bytes]);
        layout::gather(&self.layout, &self.key, &self.value, range, &mut keys, &mut values).unwrap();
        assert!(keys == rows(&self.tokens, false) && values == rows(&self.tokens, true), "{what}");
    }
}

/// A chat through a session, from its first prompt to its end; how many calls it made.
pub fn chat(config: &CStr, shortage: Shortage) -> Calls {
    let mut calls = Calls { shortage, made: 0, refusals: 0, failures: 0 };
    let mut cache = Cache::new();
    let mut session = null_mut();
    let (text, len) = (config.as_ptr(), config.count_bytes());
    // SAFETY: here and below, pointers are of live values and as long as they are said to be.
    calls.run("create", || unsafe { mnnkv_session_create(text, len, 1, 2, MNNKV_ABI_VERSION, &mut session) });
    for step in 0..12 {
        let count = if step == 0 { 100 } else { 1 + step % 3 };
        let heads = 4u32;
        let before = positions(session);
        let mut c = with_cache(&mut cache);
        // SAFETY: pointers are of live values and as long as they are said to be.
        calls.run("begin", || unsafe { mnnkv_session_begin(session, 0, &mut c) });
        follow(session, &mut cache, &before);
        assert_eq!(cache.len(), c.kv_len);
        cache.check(&format!("after begin of step {step}, {shortage:?}"));
        cache.append(count);
        let weights: Vec<f32> = (0..count * cache.len()).map(|i| 1.0 / (1 + i % 97) as f32).collect();
        // Two tiles a head.
        let half = cache.len() / 2;
        for (head, (begin, end)) in (0..heads).flat_map(|head| [(head, (0, half)), (head, (half, cache.len()))]) {
            let tile = mnnkv_score_tile {
                struct_size: size_of::<mnnkv_score_tile>() as u32,
                dtype: Dtype::F32 as u32,
                pack: 0,
                queries: count,
                tokens: end - begin,
                token_begin: begin,
                flags: if begin == 0 { MNNKV_TILE_FIRST } else { MNNKV_TILE_LAST },
                heads: 0,
                data: weights.as_ptr().cast(),
                update_scale: null(),
                row_sum: null(),
            };
            // SAFETY: pointers are of live values and as long as they are said to be.
            calls.run("scores", || unsafe { mnnkv_session_scores(session, 0, head % 2, &tile) });
        }
        let mut c = with_cache(&mut cache);
        // SAFETY: pointers are of live values and as long as they are said to be.
        calls.run("end", || unsafe { mnnkv_session_end(session, 0, heads, count, &mut c) });
        if step == 6 {
            edit(session, &mut cache, &mut calls);
        }
        if step == 8 {
            cache.rewrite(30, 5);
            // SAFETY: pointers are of live values and as long as they are said to be.
            calls.run("rewritten", || unsafe { mnnkv_session_rewritten(session, 0, 30, 5) });
        }
        ask(session, &mut calls);
    }
    // SAFETY: pointers are of live values and as long as they are said to be.
    calls.run("reset", || unsafe { mnnkv_session_reset(session, MNNKV_ALL_LAYERS) });
    cache.tokens.clear();
    let mut c = with_cache(&mut cache);
    // SAFETY: pointers are of live values and as long as they are said to be.
    calls.run("begin", || unsafe { mnnkv_session_begin(session, 0, &mut c) });
    // SAFETY: pointers are of live values and as long as they are said to be.
    calls.run("abort", || unsafe { mnnkv_session_abort(session, 0, &mut c) });
    // SAFETY: pointers are of live values and as long as they are said to be.
    unsafe { mnnkv_session_destroy(session) };
    calls
}

fn with_cache(cache: &mut Cache) -> mnnkv_cache {
    mnnkv_cache {
        struct_size: size_of::<mnnkv_cache>() as u32,
        layout: &cache.c_layout,
        key: cache.key.as_mut_ptr().cast(),
        value: cache.value.as_mut_ptr().cast(),
        kv_len: cache.len(),
    }
}

/// The logical positions of the tokens in the cache.
fn positions(session: *mut mnnkv_session) -> Vec<u32> {
    let (mut pairs, mut n) = ([[0i32; 2]; 64], 0);
    // SAFETY: pointers are of live values and as long as they are said to be.
    let status = unsafe { mnnkv_session_positions(session, 0, pairs.as_mut_ptr().cast(), pairs.len(), &mut n) };
    assert_eq!(status, MNNKV_OK);
    pairs[..n].iter().flat_map(|p| p[0] as u32..(p[0] + p[1]) as u32).collect()
}

/// Drops the tokens that begin has evicted: `before` are the positions that there were.
fn follow(session: *mut mnnkv_session, cache: &mut Cache, before: &[u32]) {
    let now = positions(session);
    let mut at = before.iter();
    cache.tokens.retain(|_| at.next().is_some_and(|position| now.contains(position)));
    assert_eq!(cache.tokens.len(), now.len());
}

/// Erases a part of the history.
fn edit(session: *mut mnnkv_session, cache: &mut Cache, calls: &mut Calls) {
    let (mut logical, mut physical) = (0, 0);
    // SAFETY: pointers are of live values and as long as they are said to be.
    let status = unsafe { mnnkv_session_lengths(session, 0, &mut logical, &mut physical) };
    assert_eq!((status, physical), (MNNKV_OK, cache.len()));
    let before = positions(session);
    let keep = [[0, 20], [40, logical as i32 - 40]];
    let mut c = with_cache(cache);
    // SAFETY: pointers are of live values and as long as they are said to be.
    calls.run("keep", || unsafe { mnnkv_session_keep(session, 0, keep.as_ptr().cast(), keep.len(), &mut c) });
    let stays = |at: u32| keep.iter().any(|p| (p[0]..p[0] + p[1]).contains(&(at as i32)));
    let mut at = before.iter();
    cache.tokens.retain(|_| at.next().is_some_and(|position| stays(*position)));
    assert_eq!(cache.len(), c.kv_len);
}

/// Reads everything that a session tells.
fn ask(session: *mut mnnkv_session, calls: &mut Calls) {
    let mut text = vec![0u8; 16 << 10];
    let (mut len, mut wanted) = (0, 0);
    let (to, cap) = (text.as_mut_ptr(), text.len());
    // SAFETY: pointers are of live values and as long as they are said to be.
    calls.run("metrics_json", || unsafe { mnnkv_session_metrics_json(session, to.cast(), cap, &mut len) });
    // SAFETY: pointers are of live values and as long as they are said to be.
    calls.run("warnings", || unsafe { mnnkv_session_warnings(session, to.cast(), cap, &mut len) });
    // SAFETY: pointers are of live values and as long as they are said to be.
    calls.run("wants_scores", || unsafe { mnnkv_session_wants_scores(session, 0, 1, &mut wanted) });
    let (mut pairs, mut n) = ([[0i32; 2]; 64], 0);
    // SAFETY: pointers are of live values and as long as they are said to be.
    calls.run("positions", || unsafe {
        mnnkv_session_positions(session, 0, pairs.as_mut_ptr().cast(), pairs.len(), &mut n)
    });
}

/// Blocks of tokens through a store alone.
pub fn blocks(format: u32, shortage: Shortage) -> Calls {
    let mut calls = Calls { shortage, made: 0, refusals: 0, failures: 0 };
    let mut cache = Cache::new();
    cache.append(160);
    let config = mnnkv_store_config {
        struct_size: size_of::<mnnkv_store_config>() as u32,
        format,
        decode_cache_bytes: 4096,
        strict_roundtrip: 1,
        ..Default::default()
    };
    let (mut store, mut ticket, mut bytes) = (null_mut(), 0, 0);
    // SAFETY: pointers are of live values and as long as they are said to be.
    calls.run("create", || unsafe { mnnkv_store_create(&config, MNNKV_ABI_VERSION, &mut store) });
    for round in 0..3u32 {
        for (begin, count) in [(8 + round, 32), (60, 16), (80, 30)] {
            let c = with_cache(&mut cache);
            // SAFETY: pointers are of live values and as long as they are said to be.
            calls.run("submit", || unsafe {
                mnnkv_store_submit(store, 3, c.layout, c.key, c.value, begin, count, &mut ticket)
            });
        }
        let c = with_cache(&mut cache);
        // SAFETY: pointers are of live values and as long as they are said to be.
        calls.run("commit", || unsafe { mnnkv_store_commit(store, 3, c.layout, c.key, c.value, &mut bytes) });
        match round {
            0 => {
                // Cuts a block in three while it is only in the store.
                let pairs = [[0, 12], [14, 10], [30, 80]];
                cache.compact(&pairs);
                // SAFETY: pointers are of live values and as long as they are said to be.
                calls.run("compacted", || unsafe { mnnkv_store_compacted(store, 3, pairs.as_ptr().cast(), 3) });
            }
            1 => {
                cache.rewrite(62, 3);
                // SAFETY: pointers are of live values and as long as they are said to be.
                calls.run("rewritten", || unsafe { mnnkv_store_rewritten(store, 3, 62, 3) });
            }
            _ => {
                cache.tokens.truncate(90);
                // SAFETY: pointers are of live values and as long as they are said to be.
                calls.run("truncated", || unsafe { mnnkv_store_truncated(store, 3, 90) });
            }
        }
        // SAFETY: pointers are of live values and as long as they are said to be.
        calls.run("prefetch", || unsafe { mnnkv_store_prefetch(store, 3) });
        let c = with_cache(&mut cache);
        // SAFETY: pointers are of live values and as long as they are said to be.
        calls.run("restore", || unsafe { mnnkv_store_restore(store, 3, c.layout, c.key, c.value, &mut bytes) });
        cache.check(&format!("after restore {round}, {shortage:?}"));
        cache.append(20);
        // What was cut is another block from here on.
        // SAFETY: pointers are of live values and as long as they are said to be.
        calls.run("truncated", || unsafe { mnnkv_store_truncated(store, 3, 0) });
    }
    // SAFETY: pointers are of live values and as long as they are said to be.
    unsafe { mnnkv_store_destroy(store) };
    calls
}
