//! Right calls.

use super::chat::{Chat, LANES, LAYERS, MOST_TOKENS, Step, c, right, size};
use crate::bodies::given::Given;
use mnnkv::ffi::h2o::*;
use mnnkv::ffi::session::*;
use mnnkv::ffi::status::MNNKV_OK as OK;
use std::ffi::CStr;
use std::ptr::{null, null_mut};

impl Chat {
    pub fn call(&mut self, given: &mut Given<'_>) {
        let choice = given.byte();
        let layer = (choice >> 7) as usize;
        if self.is_traced {
            let mine = &self.layers[layer];
            let step = mine.step.as_ref().map(|step| step.appended.len());
            eprintln!(
                "call {} of layer {layer}: {} of {} tokens, step {step:?}",
                choice % 32,
                mine.len,
                mine.tokens.len()
            );
        }
        match (choice % 32, self.layers[layer].step.is_some()) {
            (0..=3, _) => {
                let count = if choice.is_multiple_of(32) { given.below(80) } else { 1 };
                self.step(layer, count, given);
            }
            (4, false) => self.begin(layer, given.below(4), given),
            (4..=6, true) => {
                let count = given.below(6);
                self.append(layer, count, given);
            }
            (7..=8, true) => self.sums(layer, given),
            (11, true) => self.abort(layer),
            (5..=12, is_open) => {
                if is_open {
                    let queries = self.rows(layer);
                    self.end(layer, queries);
                } else {
                    self.step(layer, 1, given);
                }
            }
            (13, _) => self.rewrite(layer, given),
            (14..=15, false) => self.keep(layer, given),
            (16, _) => self.pin(given),
            (17..=18, _) if self.is_closed() => self.save(given),
            (19, _) => {
                let section = given.byte();
                right(c!(mnnkv_session_put(self.session, c"tokens".as_ptr(), (&raw const section).cast(), 1)));
            }
            (20, _) if self.is_closed() => self.open(given),
            (22, _) if given.byte() < 64 => self.reset(layer, given.flag()),
            (23, _) => {
                let room = self.layers[layer].whole_len() + given.below(60);
                self.layers[layer].relayout(room, given);
            }
            (27, _) => self.texts(),
            _ => self.wrong(layer, given),
        }
    }

    /// The query rows of an open step, at least one.
    fn rows(&self, layer: usize) -> u32 {
        self.layers[layer].step.as_ref().map_or(1, |step| step.appended.len().max(1)) as u32
    }

    /// A whole step; of an open one, its end.
    fn step(&mut self, layer: usize, count: usize, given: &mut Given<'_>) {
        let flags = given.byte();
        if self.layers[layer].step.is_none() {
            self.begin(layer, count, given);
        }
        self.append(layer, count, given);
        if flags & 1 == 0 {
            self.sums(layer, given);
        }
        let queries = if flags & 24 == 24 { 0 } else { self.rows(layer) };
        self.end(layer, queries);
    }

    pub fn begin(&mut self, layer: usize, count: usize, given: &mut Given<'_>) {
        let mine = &mut self.layers[layer];
        let room = mine.len as usize + count + given.below(40);
        if room > mine.spec.max_tokens as usize {
            mine.relayout(room, given);
        }
        let before = self.positions(layer);
        let (session, mine) = (self.session, &mut self.layers[layer]);
        let (layout, len) = (mine.layout(), mine.len as usize);
        let mut cache = mine.cache(&layout, len);
        if len == 0 && mine.tokens.is_empty() && given.flag() {
            (cache.layout, cache.key, cache.value) = (null(), null_mut(), null_mut());
        }
        let mut step =
            mnnkv_step { struct_size: size::<mnnkv_step>(), rows: count.max(1) as u32, ..Default::default() };
        right(c!(mnnkv_session_begin(session, layer as u32, &mut cache, &mut step)));
        assert_eq!((step.kv_len, step.attends), (cache.kv_len, 0));
        (mine.len, mine.is_away, mine.step) = (cache.kv_len, false, Some(Step { begun: step, ..Step::default() }));
        mine.is_known |= !cache.layout.is_null();
        assert!(mine.len <= mine.spec.max_tokens);
        let after = self.positions(layer);
        let pins = &self.layers[layer].pins;
        let is_pinned = |at: &&u32| pins.get(**at as usize).is_some_and(|pinned| *pinned);
        assert!(before.iter().filter(is_pinned).all(|at| after.contains(at)), "a pinned token left");
        assert!(after.iter().all(|at| before.contains(at)), "a token came back");
        self.check(layer, false);
    }

    fn append(&mut self, layer: usize, count: usize, given: &mut Given<'_>) {
        let is_plain = given.byte() < 200;
        for _ in 0..count {
            let token = self.token(layer, is_plain);
            let mine = &mut self.layers[layer];
            let at = mine.whole_len();
            let step = mine.step.as_mut().expect("only called of open layers");
            let total = mine.tokens.len() + step.appended.len();
            let is_full = total >= MOST_TOKENS || at == mine.spec.max_tokens as usize;
            if is_full || step.scored.is_some() || step.is_spoiled {
                return;
            }
            step.appended.push(token.clone());
            mine.put(at, &token);
        }
    }

    /// The block sums of all heads.
    fn sums(&mut self, layer: usize, given: &mut Given<'_>) {
        let (queries, mine) = (self.rows(layer), &self.layers[layer]);
        let step = mine.step.as_ref().expect("only called of open layers");
        let (token_end, mnnkv_step { scored_rows: rows, block_tokens, .. }) = (mine.whole_len() as u32, step.begun);
        // The rows are those of a step as it was announced.
        if rows == 0 || queries != step.begun.rows || token_end == 0 || step.scored.is_some() || step.is_spoiled {
            return;
        }
        let heads = mine.spec.kv_heads * given.from(1, 2) as u32;
        let base = f64::from(given.byte());
        let blocks = token_end.div_ceil(block_tokens);
        for head in 0..heads {
            let value = |at: u32| f64::from((at * 7 + head * 3) % 13) * base + 0.25;
            let mut data: Vec<f64> = (0..rows * blocks).map(value).collect();
            let sums = mnnkv_block_sums {
                struct_size: size::<mnnkv_block_sums>(),
                flags: MNNKV_TILE_FIRST | MNNKV_TILE_LAST,
                heads: 1,
                rows,
                block_tokens,
                blocks,
                sums: data.as_mut_ptr(),
                factors: null_mut(),
                token_begin: 0,
                token_end,
                state: MNNKV_SUMS_COMPLETE,
                queries: 0,
                used: 0,
                reserved: 0,
            };
            right(c!(mnnkv_session_block_sums(self.session, layer as u32, head % LANES, &sums)));
        }
        self.layers[layer].step.as_mut().expect("as above").scored = Some((heads, queries));
    }

    fn end(&mut self, layer: usize, queries: u32) {
        let (session, mine) = (self.session, &mut self.layers[layer]);
        let (layout, len) = (mine.layout(), mine.whole_len());
        let mut cache = mine.cache(&layout, len);
        let step = mine.step.as_ref().expect("only called of open layers");
        let (heads, rows) = step.scored.filter(|_| queries > 0).unwrap_or((4, queries));
        let mut status = c!(mnnkv_session_end(session, layer as u32, heads, rows, &mut cache));
        if step.is_spoiled && status != OK {
            status = c!(mnnkv_session_end(session, layer as u32, 0, 0, &mut cache));
        }
        right(status);
        let mut step = mine.step.take().expect("as above");
        mine.tokens.append(&mut step.appended);
        (mine.len, mine.is_known) = (len as u32, true);
        self.check(layer, true);
    }

    pub fn abort(&mut self, layer: usize) {
        let (session, mine) = (self.session, &mut self.layers[layer]);
        let (layout, len) = (mine.layout(), mine.len as usize);
        let mut cache = mine.cache(&layout, len);
        right(c!(mnnkv_session_abort(session, layer as u32, &mut cache)));
        (mine.step, mine.is_known) = (None, true);
        self.check(layer, true);
    }

    /// Writes tokens of the cache in place.
    fn rewrite(&mut self, layer: usize, given: &mut Given<'_>) {
        let len = self.layers[layer].len as usize;
        if len == 0 || self.layers[layer].is_away {
            return;
        }
        let begin = given.below(len);
        let count = given.from(1, 5).min(len - begin);
        let session = self.session;
        let positions = self.positions(layer);
        for (at, position) in (begin..begin + count).zip(&positions[begin..]) {
            let token = self.token(layer, true);
            let mine = &mut self.layers[layer];
            mine.put(at, &token);
            mine.tokens[*position as usize] = token;
        }
        right(c!(mnnkv_session_rewritten(session, layer as u32, begin as u32, count as u32)));
        self.check(layer, self.layers[layer].step.is_none());
    }

    /// An edit of the history.
    fn keep(&mut self, layer: usize, given: &mut Given<'_>) {
        let (session, mine) = (self.session, &mut self.layers[layer]);
        let logical = mine.tokens.len();
        let (mut pairs, mut at) = (Vec::new(), 0);
        // A rollback, or ranges.
        if given.flag() {
            pairs.push([0, logical.saturating_sub(given.below(12)) as i32]);
        } else {
            while at < logical && !given.is_empty() {
                let begin = (at + given.below(12)).min(logical);
                let count = given.below(60).min(logical - begin);
                pairs.push([begin as i32, count as i32]);
                at = begin + count;
            }
        }
        let (layout, len) = (mine.layout(), mine.len as usize);
        let mut cache = mine.cache(&layout, len);
        right(c!(mnnkv_session_keep(session, layer as u32, pairs.as_ptr().cast(), pairs.len(), &mut cache)));
        (mine.len, mine.is_known) = (cache.kv_len, true);
        let kept: Vec<usize> = pairs.iter().flat_map(|p| p[0] as usize..(p[0] + p[1]) as usize).collect();
        if kept.len() < logical {
            let end = kept.last().map_or(0, |last| last + 1);
            let to_come = mine.pins.split_off(mine.pins.len().min(end));
            mine.pins.resize(end, false);
            mine.pins = kept.iter().map(|at| mine.pins[*at]).chain(to_come).collect();
            mine.tokens = kept.iter().map(|at| mine.tokens[*at].clone()).collect();
        }
        self.check(layer, true);
    }

    fn pin(&mut self, given: &mut Given<'_>) {
        let (first, count, on) = (given.below(MOST_TOKENS), given.below(12), given.byte() < 128);
        right(c!(mnnkv_session_pin(self.session, first as u32, count as u32, on.into())));
        for layer in &mut self.layers {
            layer.pins.resize(layer.pins.len().max(first + count), false);
            layer.pins[first..first + count].fill(on);
        }
    }

    fn reset(&mut self, layer: usize, all: bool) {
        right(c!(mnnkv_session_reset(self.session, if all { MNNKV_ALL_LAYERS } else { layer as u32 })));
        for number in 0..LAYERS {
            if all || number == layer {
                let mine = &mut self.layers[number];
                (mine.len, mine.step, mine.is_away, mine.is_known) = (0, None, true, false);
                mine.tokens.clear();
                mine.pins.clear();
                self.check(number, true);
            }
        }
    }

    fn texts(&self) {
        let (mut text, mut len) = ([0; 16384], 0);
        right(c!(mnnkv_session_report(self.session, text.as_mut_ptr(), text.len(), &mut len)));
        // SAFETY: written with a zero behind it.
        let json = unsafe { CStr::from_ptr(text.as_ptr()) };
        serde_json::from_slice::<serde_json::Value>(json.to_bytes()).expect("a report is JSON");
    }
}
