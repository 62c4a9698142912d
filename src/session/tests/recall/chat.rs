//! A host of one layer whose tokens leave and come back.

use super::disk::Disk;
use super::model::{Bases, Keys, Model, Rules};
use crate::common::Random;
use crate::dtype::Dtype;
use crate::host::packing::{Dense, flash};
use crate::host::{Host, expand};
use crate::layout::Spec;
use crate::session::tests::file::FASTEST;
use crate::session::tests::shared::Session;
use crate::session::tests::trace;
use crate::session::{Queries, compact_file};
use crate::snapshot::{SharedSnapshot, Snapshot};
use crate::status::Status;
use crate::sys::memory::shortage;
use serde_json::Value;

const DIMS: usize = 6;
const KV_HEADS: usize = 2;
const QUERY_HEADS: usize = 4;
const ROOM: u32 = 700;

/// Repeats a call until there is memory for it.
macro_rules! repeat {
    ($chat:expr, $call:expr) => {
        loop {
            let seed = $chat.random.next();
            shortage::set(if $chat.is_short { 40 } else { 0 }, seed);
            let result = $call;
            shortage::set(0, 0);
            match result {
                Err(error) if $chat.is_short && error.status() == Status::OutOfMemory => {}
                result => break result.unwrap(),
            }
        }
    };
}

pub(super) struct Chat {
    pub(super) config: Value,
    /// Tokens are compressed between steps.
    is_stored: bool,
    /// Allocations of the session fail at random.
    is_short: bool,
    pub(super) session: Session,
    host: Host,
    /// The file that it parks in, and that it is saved to.
    pub(super) file: SharedSnapshot,
    /// Every token of the chat.
    tokens: Vec<Dense>,
    model: Option<Model>,
    /// Tokens of the last two steps, the last one first, and of the largest that was no prompt.
    steps: [usize; 2],
    largest_draft: usize,
    /// No step has begun since.
    is_parked: bool,
    is_open: bool,
    /// Tokens that left before there was recall.
    lost: usize,
    /// Tokens that edits have removed; blocks that were parked before still have them.
    removed: u32,
    random: Random,
}

impl Chat {
    pub(super) fn new(config: Value, is_short: bool, random: &mut Random) -> Self {
        trace!("{config}");
        let session = Session::new(config.to_string().as_bytes(), 1, 1).unwrap();
        assert!(!session.warnings().unwrap().contains("not a key"));
        let file = Disk::default().create();
        session.park_to(Some(file.clone())).unwrap();
        let spec =
            Spec { key: Dtype::F32.into(), value: Dtype::F16.into(), ..flash(KV_HEADS as u32, DIMS as u32, 4, ROOM) };
        let (host, random) = (Host::new(spec, random.next()), Random::new(random.next()));
        let is_stored = config["kv_lossless_enable"] == true;
        let session = session.restoring_heads(is_stored);
        Chat {
            config,
            is_stored,
            is_short,
            session,
            host,
            file,
            tokens: Vec::new(),
            model: None,
            steps: [0; 2],
            largest_draft: 0,
            is_parked: false,
            is_open: false,
            lost: 0,
            removed: 0,
            random,
        }
    }

    /// Compares the tokens in the cache with those that the rules choose from here on. The chat must be new.
    pub(super) fn by_the_rules(mut self) -> Self {
        let number = |key: &str| self.config[key].as_f64().unwrap_or_default();
        let whole = |key: &str| number(key) as usize;
        self.model = Some(Model::new(Rules {
            block: whole("kv_recall_block_tokens"),
            sink: whole("kv_recall_sink_tokens"),
            recent: whole("kv_recall_recent_tokens"),
            ratio: whole("kv_h2o_target_lossy_ratio"),
            trigger: whole("kv_h2o_trigger_min_tokens"),
            most: whole("kv_h2o_max_tokens"),
            window: whole("kv_recall_query_window"),
            interval: whole("kv_recall_interval"),
            hysteresis: number("kv_recall_hysteresis"),
            exchanges: whole("kv_recall_exchanges"),
        }));
        self
    }

    fn logical(&self) -> u32 {
        self.tokens.len() as u32
    }

    fn positions(&self) -> Vec<u32> {
        expand(&self.session.positions(0).unwrap()).collect()
    }

    /// Numbers of a bell curve, with directions that some tokens share.
    fn vector(&mut self, len: usize, topic: usize) -> Vec<f32> {
        let mut one = || (0..4).map(|_| self.random.below(1001) as f32 / 500.0 - 1.0).sum::<f32>();
        (0..len).map(|d| one() + if d % 5 == topic { 3.0 } else { 0.0 }).collect()
    }

    /// The cache has the tokens that its positions say, and those that are missing are away in the model.
    fn check(&mut self) {
        let positions = self.positions();
        self.host.arrange(positions.iter().map(|at| self.tokens[*at as usize].clone()).collect());
        self.host.check_tokens(self.is_parked || (self.is_stored && !self.is_open));
        let lengths = self.session.lengths(0).unwrap();
        assert_eq!((lengths.logical, lengths.physical as usize), (self.logical(), positions.len()));
        let mut there = positions;
        there.sort_unstable();
        let away: Vec<u32> = (0..self.logical()).filter(|at| there.binary_search(at).is_err()).collect();
        if let Some(model) = &self.model {
            assert_eq!(away, model.away());
        }
        if self.config["kv_recall_enable"] != true {
            self.lost = away.len();
        }
        assert_eq!(self.session.recall_stats(None).unwrap().away_tokens as usize, away.len() - self.lost);
    }

    fn begin(&mut self, next: usize) {
        let len = self.host.len();
        repeat!(self, self.session.begin_step(0, Some(self.host.cache()), len, next as u32));
        (self.is_parked, self.is_open) = (false, true);
        let (logical, room) = (self.tokens.len(), ROOM as usize);
        self.model.iter_mut().for_each(|model| model.begin(logical, next, room));
        self.check();
    }

    fn append(&mut self, count: usize) {
        let topic = self.random.below(5);
        for _ in 0..count {
            let key: Vec<u8> = self.vector(KV_HEADS * DIMS, topic).iter().flat_map(|x| x.to_ne_bytes()).collect();
            let value = (0..KV_HEADS * DIMS * 2).map(|_| self.random.next() as u8).collect();
            self.tokens.push((key, value));
            self.host.push(self.tokens.last().unwrap().clone());
        }
    }

    /// A step of `count` tokens, which a host with buffers of `ROOM` tokens can append.
    pub(super) fn step(&mut self, count: usize, with_queries: bool) {
        trace!("step of {count}, queries {with_queries}");
        if self.host.room() < count + 64 {
            return;
        }
        self.begin(count);
        self.append(count);
        let topic = self.random.below(5);
        let rows: Vec<Vec<f32>> = (0..count).map(|_| self.vector(QUERY_HEADS * DIMS, topic)).collect();
        let bytes: Vec<u8> = rows.iter().flatten().flat_map(|x| x.to_ne_bytes()).collect();
        let row = DIMS * 4;
        let queries = Queries {
            dtype: Dtype::F32,
            heads: QUERY_HEADS,
            rows: count,
            dims: DIMS,
            head_stride: row,
            row_stride: QUERY_HEADS * row,
            scale: 0.0,
            data: &bytes,
        };
        if with_queries {
            repeat!(self, self.session.queries(0, &queries));
        }
        let len = self.host.len();
        repeat!(self, self.session.end(0, 0, count as u32, self.host.cache(), len));
        self.steps = [count, self.steps[0]];
        if self.tokens.len() > count && count <= 64 {
            self.largest_draft = self.largest_draft.max(count);
        }
        let expected = self.largest_draft.max(self.steps[0].min(self.steps[1])).max(1);
        let keys = self.keys();
        let bases: Bases = (0..KV_HEADS).map_while(|head| self.session.recall_basis(0, head)).collect();
        if let Some(model) = &mut self.model {
            let last = rows.len().saturating_sub(model.window());
            let heads = |row: &Vec<f32>| row.chunks(DIMS).map(|q| q.iter().map(|x| f64::from(*x)).collect()).collect();
            let rows: Vec<Vec<Vec<f64>>> = rows[last..].iter().map(heads).collect();
            let is_prompt = count > 64 || self.tokens.len() == count;
            model.end(&keys, &bases, if with_queries { &rows } else { &[] }, expected, is_prompt);
        }
        self.is_open = false;
        self.host.check_tokens(self.is_stored);
    }

    fn keys(&self) -> Keys {
        let key = |token: &Dense, head: usize| {
            let floats = token.0.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
            floats.skip(head * DIMS).take(DIMS).collect()
        };
        (0..KV_HEADS).map(|head| self.tokens.iter().map(|token| key(token, head)).collect()).collect()
    }

    /// A step that fails after `count` tokens were appended.
    pub(super) fn fail(&mut self, count: usize) {
        trace!("a step fails");
        self.begin(1);
        let len = self.host.len();
        let kept = self.tokens.len();
        self.append(count);
        self.tokens.truncate(kept);
        let before = self.positions();
        self.session.abort(0, Some(self.host.cache()), len).unwrap();
        self.is_open = false;
        assert_eq!(before, self.positions());
        self.check();
    }

    pub(super) fn roll_back(&mut self, count: u32) {
        let left = self.logical().saturating_sub(count);
        self.keep(&[[0, left as i32]]);
    }

    pub(super) fn edit(&mut self) {
        let (mut pairs, mut at) = (Vec::new(), 0);
        while at < self.logical() as i32 {
            let (skip, len) = (self.random.below(12) as i32, self.random.below(60) as i32);
            let begin = (at + skip).min(self.logical() as i32);
            let len = len.min(self.logical() as i32 - begin);
            pairs.push([begin, len]);
            at = begin + len;
        }
        self.keep(&pairs);
    }

    fn keep(&mut self, pairs: &[[i32; 2]]) {
        trace!("keep {pairs:?}");
        let len = self.host.len();
        repeat!(self, self.session.keep(0, pairs, self.host.cache(), len));
        let kept: Vec<u32> = expand(pairs).collect();
        if kept.len() < self.tokens.len() {
            self.removed += (self.tokens.len() - kept.len()) as u32;
            self.tokens = kept.iter().map(|at| self.tokens[*at as usize].clone()).collect();
            self.model.iter_mut().for_each(|model| model.keep(&kept));
        }
        self.check();
    }

    /// Leaves the chat without a token in its cache, but with those that it has lost.
    pub(super) fn keep_what_is_lost(&mut self) {
        let there = self.positions();
        let lost: Vec<_> = (0..self.logical()).filter(|at| !there.contains(at)).map(|at| [at as i32, 1]).collect();
        assert!(!lost.is_empty(), "the chat has lost no token");
        self.keep(&lost);
    }

    pub(super) fn reset(&mut self) {
        trace!("reset");
        self.session.reset(None).unwrap();
        self.tokens.clear();
        (self.steps, self.largest_draft, self.is_parked) = ([0; 2], 0, false);
        self.model.iter_mut().for_each(Model::reset);
        self.check();
        self.step(30, true);
    }

    /// The host writes tokens of its cache in place.
    pub(super) fn rewrite(&mut self) {
        if self.host.len() == 0 {
            return;
        }
        let begin = self.random.below(self.host.len() as usize);
        let count = self.random.from(1, 5).min(self.host.len() as usize - begin);
        trace!("{count} tokens from {begin} on are written in place");
        let positions = self.positions();
        for (at, position) in (begin..begin + count).zip(&positions[begin..]) {
            self.host.write(at);
            let key: Vec<u8> = self.vector(KV_HEADS * DIMS, 0).iter().flat_map(|x| x.to_ne_bytes()).collect();
            let value = self.host.dense(at..at + 1).1;
            self.tokens[*position as usize] = (key, value);
            self.host.put(at, self.tokens[*position as usize].clone());
        }
        repeat!(self, self.session.rewritten(0, begin as u32, count as u32));
        self.model.iter_mut().for_each(|model| model.rewritten(&positions[begin..begin + count]));
        self.check();
    }

    /// Pins some tokens of the chat, or unpins them.
    pub(super) fn pin(&mut self) {
        let begin = self.random.below(self.tokens.len() + 1) as u32;
        let count = self.random.from(1, 12).min(self.tokens.len() - begin as usize) as u32;
        let on = !self.random.once_in(3);
        trace!("pin {count} tokens from {begin} on: {on}");
        repeat!(self, self.session.pin(begin, count, on));
        if let Some(model) = &mut self.model {
            model.pins.retain(|at| !(begin..begin + count).contains(at));
            model.pins.extend((begin..begin + count).filter(|_| on));
        }
    }

    /// The process ends after a save. Another one goes on with the file.
    pub(super) fn restart(&mut self) {
        trace!("restart");
        let (len, before, file) = (self.host.len(), self.positions(), self.file.clone());
        let save = |chat: &mut Self, file: &mut Snapshot| {
            repeat!(chat, chat.session.save(0, Some(chat.host.cache()), len, &FASTEST, file)).tokens
        };
        let saved = file.with(|file| {
            let written = save(self, file);
            file.commit()?;
            Ok((written, save(self, file)))
        });
        let (written, again) = saved.unwrap();
        let most = self.logical() + self.removed + 64;
        assert!(written <= most && again == 0, "{written} tokens, and {again} that the file had");
        if self.random.once_in(3) {
            self.file = Disk::default().create();
            let compacted = self.file.with(|small| {
                file.with(|file| compact_file(file, &FASTEST, small))?;
                small.commit()
            });
            compacted.unwrap();
        }
        let session = Session::new(self.config.to_string().as_bytes(), 1, 1).unwrap();
        self.session = session.restoring_heads(self.is_stored);
        let file = self.file.clone();
        let load = |file: &mut Snapshot| {
            repeat!(self, self.session.load(None, file));
            Ok(())
        };
        file.with(load).unwrap();
        self.session.park_to(Some(file)).unwrap();
        if !self.tokens.is_empty() {
            self.host.arrange(Vec::new());
            self.host.arrange(before.iter().map(|at| self.tokens[*at as usize].clone()).collect());
            let all = self.host.range(0, len);
            crate::layout::zero(&mut self.host.cache(), all);
        }
        self.is_parked = true;
        assert_eq!(self.positions(), before);
        self.model.iter_mut().for_each(Model::restart);
        self.check();
    }

    /// Brings all tokens back that can be read, where the buffers have room for all. Returns those that are missing.
    pub(super) fn bring_all(&mut self) -> u64 {
        if self.logical() + 70 >= ROOM {
            return 0;
        }
        self.session.pin(0, self.logical(), true).unwrap();
        self.step(1, true);
        self.session.recall_stats(None).unwrap().away_tokens
    }

    pub(super) fn park(&mut self) {
        trace!("park");
        let len = self.host.len();
        repeat!(self, self.session.park(0, Some(self.host.cache()), len, &FASTEST));
        self.is_parked = true;
    }
}
