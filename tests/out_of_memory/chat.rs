//! A host of the C ABI: a chat of one layer through a session, or through a store alone. One of its calls is short of
//! memory. Each token must read as it was written after every begin and restore.

use crate::failing_allocator::{Refused, refusing};
use crate::host::Host;
use crate::host::packing::flash;
use mnnkv::dtype::Dtype;
use mnnkv::ffi::cache::{mnnkv_cache, mnnkv_layout};
use mnnkv::ffi::h2o::*;
use mnnkv::ffi::session::*;
use mnnkv::ffi::status::*;
use mnnkv::ffi::store::*;
use mnnkv::ffi::version::MNNKV_ABI_VERSION;
use mnnkv::layout::{Cache, Spec};
use std::ffi::CStr;
use std::ptr::{null, null_mut};

/// The call that is short of memory, and its refused allocations.
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
    /// Runs a call. A call that returns OUT_OF_MEMORY runs again with memory, and must succeed.
    pub fn run(&mut self, name: &str, mut call: impl FnMut() -> mnnkv_status) {
        let Shortage { call: which, refused } = self.shortage;
        let number = self.made;
        self.made += 1;
        let mut status = MNNKV_OUT_OF_MEMORY;
        if number == which {
            let (result, refusals) = refusing(refused, &mut call);
            (status, self.refusals) = (result, refusals);
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

impl Drop for Calls {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with {:?}", self.shortage);
        }
    }
}

/// Runs a C function whose pointers are of live values, as long as its arguments say.
macro_rules! call {
    ($calls:expr, $function:ident($($argument:expr),*)) => {
        // SAFETY: pointers are of live values, as long as the arguments say.
        $calls.run(stringify!($function), || unsafe { $function($($argument),*) })
    };
}

/// A layer's host, whose layout C reads.
struct Layer {
    host: Host,
    layout: mnnkv_layout,
}

impl Layer {
    fn new() -> Self {
        let spec = Spec { flash_block: 16, ..flash(2, 16, 8, 256) };
        let layout = mnnkv_layout {
            struct_size: size_of::<mnnkv_layout>() as u32,
            key_dtype: spec.key.words() as u32,
            value_dtype: spec.value.words() as u32,
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
            int8: std::ptr::null(),
        };
        Layer { host: Host::new(spec, 1), layout }
    }

    fn cache(&mut self) -> mnnkv_cache {
        let kv_len = self.host.len();
        let Cache { key, value, .. } = self.host.cache();
        mnnkv_cache {
            struct_size: size_of::<mnnkv_cache>() as u32,
            layout: &self.layout,
            key: key.as_mut_ptr().cast(),
            value: value.as_mut_ptr().cast(),
            kv_len,
        }
    }

    fn rewrite(&mut self, tokens: std::ops::Range<usize>) {
        tokens.for_each(|at| self.host.write(at));
    }

    /// Removes the tokens that a call has removed: `before` are the positions of those that there were.
    fn keep(&mut self, before: &[u32], stays: impl Fn(u32) -> bool) {
        self.host.keep(before.iter().map(|position| stays(*position)));
    }
}

/// Defaults of the host.
const DEFAULTS: &CStr = c"{\"kv_h2o_prefill_queries\": 0, \"kv_h2o_unknown\": 1}";

/// A chat through a session, from its first prompt to its end; the host attends where `attends`. Returns its calls.
pub fn chat(config: &CStr, attends: bool, shortage: Shortage) -> Calls {
    let mut calls = Calls { shortage, made: 0, refusals: 0, failures: 0 };
    let mut layer = Layer::new();
    let mut session = null_mut();
    let options = mnnkv_session_options {
        struct_size: size_of::<mnnkv_session_options>() as u32,
        abi_version: MNNKV_ABI_VERSION,
        layers: 1,
        lanes: 2,
        config_json: config.as_ptr(),
        config_len: config.count_bytes(),
        defaults_json: DEFAULTS.as_ptr(),
        defaults_len: DEFAULTS.count_bytes(),
        attends: attends.into(),
        reserved: 0,
        fingerprint: null(),
        fingerprint_len: 0,
    };
    call!(calls, mnnkv_session_create(&options, &mut session));
    for step in 0..12 {
        let count = if step == 0 { 100 } else { 1 + step % 3 };
        let heads = 4u32;
        let before = positions(session, MNNKV_IN_CACHE);
        let mut c = layer.cache();
        let size = size_of::<mnnkv_step>() as u32;
        let mut begun = mnnkv_step { struct_size: size, rows: count, ..Default::default() };
        call!(calls, mnnkv_session_begin(session, 0, &mut c, &mut begun));
        let now = positions(session, MNNKV_IN_CACHE);
        layer.keep(&before, |position| now.contains(&position));
        assert_eq!(layer.host.len(), c.kv_len, "step {step}, {shortage:?}");
        layer.host.check_tokens(false);
        layer.host.append(count as usize);
        if begun.attends != 0 {
            attend(session, &mut layer, count, &mut calls);
        }
        let (rows, block_tokens) = (begun.scored_rows, begun.block_tokens);
        let mut weights: Vec<f64> = (0..64 * rows).map(|i| 1.0 / (1 + i % 97) as f64).collect();
        // Two parts a head.
        let (half, len) = (layer.host.len() / 2, layer.host.len());
        let parts = [(MNNKV_TILE_FIRST, 0, half), (MNNKV_TILE_LAST, half, len)];
        for (head, (flags, token_begin, token_end)) in
            (0..heads).flat_map(|head| parts.map(|part| (head, part))).filter(|_| rows > 0)
        {
            let sums = mnnkv_block_sums {
                struct_size: size_of::<mnnkv_block_sums>() as u32,
                flags,
                heads: 1,
                rows,
                block_tokens,
                blocks: 64,
                sums: weights.as_mut_ptr(),
                factors: null_mut(),
                token_begin,
                token_end,
                state: MNNKV_SUMS_COMPLETE,
                queries: 0,
                used: 0,
                reserved: 0,
            };
            call!(calls, mnnkv_session_block_sums(session, 0, head % 2, &sums));
        }
        let mut c = layer.cache();
        call!(calls, mnnkv_session_end(session, 0, heads, count, &mut c));
        if step == 6 {
            edit(session, &mut layer, &mut calls);
        }
        if step % 5 == 3 {
            call!(calls, mnnkv_session_pin(session, 7 * step, 3, 1));
        }
        // Quantised tokens cannot be written.
        if step == 8 && !attends {
            layer.rewrite(30..35);
            call!(calls, mnnkv_session_rewritten(session, 0, 30, 5));
        }
        ask(session, &mut calls);
        if attends {
            let (mut logical, mut physical) = (0, 0);
            // SAFETY: pointers are of live values and as long as they are said to be.
            assert_eq!(unsafe { mnnkv_session_lengths(session, 0, &mut logical, &mut physical) }, MNNKV_OK);
            let all = (0..2).map(|head| positions(session, head).len() as u32);
            assert!(all.eq([logical; 2]), "a token is nowhere in step {step}, {shortage:?}");
            assert!(step < 11 || physical < logical, "no token was quantised");
        }
    }
    call!(calls, mnnkv_session_reset(session, MNNKV_ALL_LAYERS));
    layer.host.tokens.clear();
    let mut c = layer.cache();
    call!(calls, mnnkv_session_begin(session, 0, &mut c, null_mut()));
    call!(calls, mnnkv_session_abort(session, 0, &mut c));
    // SAFETY: pointers are of live values and as long as they are said to be.
    unsafe { mnnkv_session_destroy(session) };
    calls
}

/// Attends to all tokens with rows of some numbers.
fn attend(session: *mut mnnkv_session, layer: &mut Layer, rows: u32, calls: &mut Calls) {
    let queries: Vec<f32> = (0..rows * 4 * 16).map(|i| (i % 13) as f32 - 6.0).collect();
    let mut output = vec![0f32; queries.len()];
    let attend = mnnkv_attend {
        struct_size: size_of::<mnnkv_attend>() as u32,
        dtype: Dtype::F32 as u32,
        heads: 4,
        rows,
        head_dim: 16,
        queries: queries.as_ptr().cast(),
        output: output.as_mut_ptr().cast(),
        causal: 1,
        // SAFETY: all fields are numbers and pointers.
        ..unsafe { std::mem::zeroed() }
    };
    let c = layer.cache();
    call!(calls, mnnkv_session_attend(session, 0, 0, 1, &c, &attend));
    assert!(output.iter().all(|x| x.is_finite()));
}

/// The logical positions that a KV head can attend to, or of the tokens in the cache.
fn positions(session: *mut mnnkv_session, kv_head: u32) -> Vec<u32> {
    let (mut pairs, mut n) = ([[0i32; 2]; 64], 0);
    // SAFETY: pointers are of live values and as long as they are said to be.
    let status =
        unsafe { mnnkv_session_positions(session, 0, kv_head, pairs.as_mut_ptr().cast(), pairs.len(), &mut n) };
    assert_eq!(status, MNNKV_OK);
    pairs[..n].iter().flat_map(|p| p[0] as u32..(p[0] + p[1]) as u32).collect()
}

/// Erases a part of the history.
fn edit(session: *mut mnnkv_session, layer: &mut Layer, calls: &mut Calls) {
    let (mut logical, mut physical) = (0, 0);
    // SAFETY: pointers are of live values and as long as they are said to be.
    let status = unsafe { mnnkv_session_lengths(session, 0, &mut logical, &mut physical) };
    assert_eq!((status, physical), (MNNKV_OK, layer.host.len()));
    let before = positions(session, MNNKV_IN_CACHE);
    let keep = [[0, 20], [40, logical as i32 - 40]];
    let mut c = layer.cache();
    call!(calls, mnnkv_session_keep(session, 0, keep.as_ptr().cast(), keep.len(), &mut c));
    let stays = |at: u32| keep.iter().any(|p| (p[0]..p[0] + p[1]).contains(&(at as i32)));
    layer.keep(&before, stays);
    assert_eq!(layer.host.len(), c.kv_len);
}

/// Reads all that a session reports.
fn ask(session: *mut mnnkv_session, calls: &mut Calls) {
    let mut text = vec![0u8; 32 << 10];
    let mut len = 0;
    let (to, cap) = (text.as_mut_ptr(), text.len());
    call!(calls, mnnkv_session_report(session, to.cast(), cap, &mut len));
    let (mut pairs, mut n) = ([[0i32; 2]; 64], 0);
    call!(calls, mnnkv_session_positions(session, 0, MNNKV_IN_CACHE, pairs.as_mut_ptr().cast(), pairs.len(), &mut n));
}

/// Blocks of tokens through a store alone. Returns its calls.
pub fn blocks(shortage: Shortage) -> Calls {
    let mut calls = Calls { shortage, made: 0, refusals: 0, failures: 0 };
    let mut layer = Layer::new();
    layer.host.append(160);
    let config = mnnkv_store_config {
        struct_size: size_of::<mnnkv_store_config>() as u32,
        decode_cache_bytes: 4096,
        strict_roundtrip: 1,
        ..Default::default()
    };
    let (mut store, mut ticket, mut bytes) = (null_mut(), 0, 0);
    call!(calls, mnnkv_store_create(&config, MNNKV_ABI_VERSION, &mut store));
    for round in 0..3u32 {
        for (begin, count) in [(8 + round, 32), (60, 16), (80, 30)] {
            let c = layer.cache();
            call!(calls, mnnkv_store_submit(store, 3, c.layout, c.key, c.value, begin, count, &mut ticket));
        }
        let c = layer.cache();
        call!(calls, mnnkv_store_commit(store, 3, c.layout, c.key, c.value, &mut bytes));
        match round {
            0 => {
                // Cuts a released block in three.
                let pairs = [[0, 12], [14, 10], [30, 80]];
                layer.host.compact(&pairs);
                call!(calls, mnnkv_store_compacted(store, 3, pairs.as_ptr().cast(), 3));
            }
            1 => {
                let c = layer.cache();
                call!(calls, mnnkv_store_restore(store, 3, c.layout, c.key, c.value, &mut bytes));
                layer.rewrite(62..65);
                call!(calls, mnnkv_store_compacted(store, 3, [0, 62].as_ptr(), 1));
            }
            _ => {
                layer.host.tokens.truncate(90);
                call!(calls, mnnkv_store_compacted(store, 3, [0, 90].as_ptr(), 1));
            }
        }
        let c = layer.cache();
        call!(calls, mnnkv_store_restore(store, 3, c.layout, c.key, c.value, &mut bytes));
        layer.host.check_tokens(false);
        layer.host.append(20);
        // The cut tokens are another block from here on.
        call!(calls, mnnkv_store_compacted(store, 3, null(), 0));
    }
    // SAFETY: pointers are of live values and as long as they are said to be, and all fields are numbers.
    unsafe {
        let size = size_of::<mnnkv_store_statistics>() as u32;
        let mut statistics = mnnkv_store_statistics { struct_size: size, ..std::mem::zeroed() };
        assert_eq!(mnnkv_store_stats(store, &mut statistics), MNNKV_OK);
        assert_eq!(statistics.failed_blocks, 0, "a submit without memory counts for nothing");
        mnnkv_store_destroy(store);
    }
    calls
}
