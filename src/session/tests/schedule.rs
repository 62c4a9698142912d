//! One random schedule: a host and a session. Everything that the host can see is checked after every call.

use super::attention::Attention;
use super::model::{Counts, Model};
use super::settings::{Kind, Rules, Settings};
use super::{Coverage, trace};
use crate::common::Random;
use crate::host::{Host, expand};
use crate::layout::{Cache, Pair};
use crate::session::tests::saved::ChatPath;
use crate::session::tests::shared::Session;
use crate::session::{CacheLengths, LayerCache};
use crate::status::{Result, Status};
use crate::sys::memory::shortage;
use std::rc::Rc;

/// The most tokens of a chat: longer schedules are slow.
const MOST_TOKENS: u32 = 160;
/// The scale of an edit's gaps and ranges.
const FEW_TOKENS: usize = 24;

pub(super) struct Layer {
    pub(super) host: Host,
    pub(super) model: Model,
    pub(super) step: Option<Step>,
    /// The host never names it.
    idle: bool,
    /// No step has begun since the chat was opened.
    is_away: bool,
    /// The attention that each token of the chat draws.
    worth: Vec<f64>,
    query_heads: usize,
}

/// An open step.
#[derive(Clone, Copy)]
pub(super) struct Step {
    /// Tokens in the cache at its begin.
    pub(super) begin: u32,
}

pub(super) struct Run {
    pub(super) random: Random,
    pub(super) settings: Settings,
    pub(super) session: Rc<Session>,
    pub(super) layers: Vec<Layer>,
    path: ChatPath,
    shortage: bool,
    pub(super) coverage: Coverage,
}

impl Run {
    pub(super) fn new(kind: &Kind, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let settings = Settings::new(kind, &mut random);
        trace!("{}", settings.json);
        // Workers are short of memory if the thread is that creates the session.
        shortage::set(if kind.shortage { 60 } else { 0 }, seed);
        shortage::set_least(1);
        let made = std::iter::repeat_with(|| {
            let (json, layers, lanes) = (settings.json.as_bytes(), settings.layers, settings.lanes);
            let made = Session::new(json, layers, lanes);
            made.inspect_err(|error| assert!(kind.shortage && error.status() == Status::OutOfMemory, "{error}"))
        });
        let session = made.flatten().next().expect("the shortage ends by chance");
        let session = Rc::new(session);
        shortage::set(0, 0);
        assert!(!session.warnings().unwrap().contains("not a key"));
        let layer = |number| Layer {
            host: Host::any(random.next()),
            model: Model::new(settings.rules_of(number)),
            step: None,
            idle: random.once_in(8),
            is_away: false,
            worth: Vec::new(),
            query_heads: random.from(1, 3),
        };
        let layers = (0..settings.layers).map(layer).collect();
        let (path, shortage, coverage) = (ChatPath::new(), kind.shortage, Coverage::default());
        Run { random, settings, session, layers, path, shortage, coverage }
    }

    /// A chat from its prompt to its end.
    pub(super) fn chat(mut self) -> Coverage {
        let prompt = self.random.from(1, 60);
        self.forward(prompt);
        for _ in 0..self.random.from(5, 45) {
            self.something();
        }
        self.finish();
        self.coverage
    }

    fn something(&mut self) {
        let random = &mut self.random;
        match random.below(32) {
            0 => {
                let more = random.from(2, 40);
                self.forward(more);
            }
            // A prompt, by its length.
            1 if random.once_in(4) => self.forward(70),
            2..=4 => {
                let rows = random.from(2, 8);
                self.forward(rows);
                let wrong = self.random.below(rows + 1);
                self.each(|run, layer| {
                    let left = run.layers[layer].model.logical.saturating_sub(wrong as u32);
                    run.keep(layer, &[[0, left as i32]]);
                    run.coverage.count("drafts rolled back", u64::from(wrong > 0));
                });
            }
            5 => self.each(|run, layer| {
                let pairs = run.some_ranges(layer);
                run.keep(layer, &pairs);
                run.coverage.count("edits", 1);
            }),
            6 if random.once_in(6) => {
                let layer = random.below(self.layers.len());
                self.reset(Some(layer));
            }
            6 if random.once_in(6) => self.reset(None),
            7 => {
                let layer = random.below(self.layers.len());
                self.relayout(layer);
            }
            8 => {
                let layer = random.below(self.layers.len());
                self.wrong_calls(layer);
            }
            9 => {
                let layer = random.below(self.layers.len());
                self.rewrite(layer);
            }
            10 if random.once_in(3) => self.reopen(),
            11 => self.pin(),
            _ => self.forward(1),
        }
    }

    fn each(&mut self, mut what: impl FnMut(&mut Self, usize)) {
        for layer in 0..self.layers.len() {
            if !self.layers[layer].idle {
                what(self, layer);
            }
        }
    }

    /// Ranges of a layer's chat, mostly large.
    fn some_ranges(&mut self, layer: usize) -> Vec<Pair> {
        let len = self.layers[layer].model.logical as usize;
        let random = &mut self.random;
        let drop_all = random.once_in(20);
        let mut pairs = Vec::new();
        let mut at = 0;
        while at < len && !drop_all {
            let gap = if random.once_in(2) { random.below(4) } else { random.below(FEW_TOKENS) };
            let begin = (at + gap).min(len);
            let count = random.from(0, 2 * FEW_TOKENS).min(len - begin);
            pairs.push([begin as i32, count as i32]);
            at = begin + count;
        }
        pairs
    }

    /// The model computes `rows` new tokens: layer by layer, or all at once.
    fn forward(&mut self, rows: usize) {
        let together = self.random.once_in(8);
        let skipped = if self.random.once_in(10) { self.random.below(self.layers.len()) } else { usize::MAX };
        let mut open = Vec::new();
        for layer in 0..self.layers.len() {
            let Layer { idle, model, .. } = &self.layers[layer];
            if *idle || layer == skipped || model.logical + rows as u32 > MOST_TOKENS {
                continue;
            }
            self.begin(layer);
            if together {
                open.push(layer);
            } else {
                self.compute(layer, rows);
            }
        }
        if together && self.random.once_in(30) {
            let layer = self.random.below(self.layers.len());
            self.coverage.count("resets of open steps", u64::from(self.layers[layer].step.is_some()));
            self.reset(Some(layer));
        }
        for layer in open {
            if self.layers[layer].step.is_some() {
                self.compute(layer, rows);
            }
        }
    }

    /// Runs a call on a layer's cache. It may fail once for lack of memory, which `short` counts.
    fn call<T>(&mut self, layer: usize, short: &str, mut what: impl FnMut(&Session, Cache<'_>, u32) -> Result<T>) -> T {
        let len = self.layers[layer].host.len();
        if self.shortage && self.random.once_in(3) {
            let (before, dense) = (self.view(), self.layers[layer].host.all());
            shortage::set(self.random.pick(&[1, 2, 4, 16]), self.random.next());
            let result = what(&self.session, self.layers[layer].host.cache(), len);
            if let Some(value) = self.unless_short(result, short, &before) {
                return value;
            }
            self.check(layer, &dense, len as usize, Bytes::MayBeGone);
        }
        what(&self.session, self.layers[layer].host.cache(), len).unwrap()
    }

    /// The value of a call that had enough memory; after others nothing has changed.
    fn unless_short<T>(&mut self, result: Result<T>, short: &str, before: &View) -> Option<T> {
        shortage::set(0, 0);
        let error = match result {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        assert_eq!(error.status(), Status::OutOfMemory, "{error}");
        trace!("  no memory");
        self.coverage.count(short, 1);
        assert_eq!(self.view(), *before);
        None
    }

    /// Saves the chat, and opens it again with other buffers. Edits may follow.
    fn reopen(&mut self) {
        trace!("reopen");
        let view = self.view();
        // Pins of a layer that never had tokens are in no file.
        let is_new = |layer: &crate::session::layer::Layer| layer.rows.is_none();
        let new: Vec<bool> = self.session.state().unwrap().layers.iter().map(is_new).collect();
        for short in ["no memory to save", "no memory to open"] {
            loop {
                let before = self.view();
                let dense: Vec<_> = self.layers.iter().map(|layer| layer.host.all()).collect();
                if self.shortage && self.random.once_in(2) {
                    shortage::set(self.random.pick(&[4, 16, 64]), self.random.next());
                }
                let Run { session, layers, path, .. } = self;
                let result = if short.ends_with("save") {
                    let hosts = layers.iter_mut().map(|layer| (layer.host.len(), &mut layer.host));
                    let mut caches: Vec<LayerCache<'_>> = hosts.map(|(len, host)| (Some(host.cache()), len)).collect();
                    session.save(Some(path.text()), &mut caches).map(drop)
                } else {
                    session.open(Some(path.text()))
                };
                let done = self.unless_short(result, short, &before).is_some();
                for (layer, dense) in dense.iter().enumerate() {
                    let len = self.layers[layer].host.len();
                    self.check(layer, dense, len as usize, Bytes::MayBeGone);
                }
                if done {
                    break;
                }
            }
        }
        self.coverage.count("chats opened again", 1);
        assert_eq!(self.view(), view);
        for (layer, is_new) in new.into_iter().enumerate() {
            let mine = &mut self.layers[layer];
            if is_new {
                mine.model.reset();
            }
            mine.is_away = true;
            self.relayout(layer);
            let host = &mut self.layers[layer].host;
            let all = host.range(0, host.len());
            crate::layout::zero(&mut host.cache(), all);
        }
    }

    fn begin(&mut self, layer: usize) {
        trace!("begin {layer}");
        if self.random.once_in(12) {
            self.relayout(layer);
        }
        if self.random.once_in(80) {
            self.wrong_calls(layer);
        }
        let before = self.layers[layer].host.all();
        let old = self.layers[layer].host.len();
        let short = "no memory to begin";
        let lazily = self.layers[layer].model.logical == 0 && self.random.once_in(2);
        self.coverage.count("begins without a cache", u64::from(lazily));
        let len = self.call(layer, short, |session, cache, len| match lazily {
            true => session.begin_without(layer as u32, len),
            false => session.begin(layer as u32, cache, len),
        });
        let kept: Vec<u32> = expand(&self.session.positions(layer as u32, None).unwrap()).collect();
        let mine = &mut self.layers[layer];
        self.coverage.count("opened layers that go on", u64::from(std::mem::take(&mut mine.is_away)));
        let mask = mine.model.begin(&kept);
        mine.host.keep(mask);
        mine.step = Some(Step { begin: len });
        assert_eq!(len as usize, mine.model.len());
        self.check_lengths(layer);
        self.check(layer, &before, old as usize, Bytes::All);
    }

    /// Appends, attends and closes an open step.
    fn compute(&mut self, layer: usize, rows: usize) {
        trace!("compute {layer}: {rows} rows, {} tokens", self.layers[layer].host.len());
        if self.random.once_in(12) {
            self.rewrite(layer);
        }
        match self.random.below(80) {
            // The step fails before its tokens are written.
            0 => return self.end(layer, 0, 0, None),
            1 => return self.abort(layer),
            _ => {}
        }
        if self.layers[layer].host.room() < rows || self.random.once_in(20) {
            let room = self.layers[layer].host.tokens.len() + rows + self.random.below(30);
            self.layers[layer].host.move_to_room_for(room);
        }
        if self.random.once_in(80) {
            self.wrong_calls(layer);
        }
        self.layers[layer].host.append(rows);
        let Run { layers, random, .. } = self;
        let mine = &mut layers[layer];
        let positions = mine.model.positions().into_iter().chain(mine.model.logical..mine.model.logical + rows as u32);
        mine.worth.resize_with(MOST_TOKENS as usize, || 6.0 * random.unit());
        let worth: Vec<f64> = positions.map(|l| mine.worth[l as usize]).collect();
        let counted = if mine.model.evicts() { mine.model.counted(rows) } else { 0 };
        let scored = (!random.once_in(12)).then(|| Attention::new(&worth, mine.query_heads, rows, counted, random));
        let whole = scored.as_ref().is_none_or(|attention| self.send(layer, attention));
        if self.random.once_in(40) {
            let begin = self.layers[layer].step.unwrap().begin;
            self.layers[layer].host.tokens.truncate(begin as usize);
            return self.abort(layer);
        }
        let failed = !whole || self.random.once_in(25);
        self.end(layer, rows as u32, if failed { 0 } else { rows }, scored.as_ref());
    }

    /// Writes new contents to some tokens, as a shift of positions does.
    fn rewrite(&mut self, layer: usize) {
        let len = self.layers[layer].host.tokens.len();
        let len = self.layers[layer].step.map_or(len, |step| step.begin as usize);
        let begin = self.random.below(len + 1);
        let count = self.random.below(len - begin + 1);
        if self.layers[layer].is_away {
            return;
        }
        trace!("rewrite {layer}: {count} from {begin} of {len}");
        (begin..begin + count).for_each(|at| self.layers[layer].host.write(at));
        let before = self.layers[layer].host.all();
        self.call(layer, "no memory to rewrite", |session, _, _| {
            session.rewritten(layer as u32, begin as u32, count as u32)
        });
        self.coverage.count("tokens rewritten", count as u64);
        let open = self.layers[layer].step.is_some();
        self.check(layer, &before, len, if open { Bytes::All } else { Bytes::MayBeGone });
    }

    /// Closes a step that failed.
    fn abort(&mut self, layer: usize) {
        trace!("abort {layer}");
        let before = self.layers[layer].host.all();
        let lazily = self.layers[layer].model.logical == 0 && self.random.once_in(2);
        self.call(layer, "no memory to abort", |session, cache, len| {
            session.abort(layer as u32, (!lazily).then_some(cache), len)
        });
        self.coverage.count("aborted steps", 1);
        let mine = &mut self.layers[layer];
        mine.step = None;
        let len = mine.host.tokens.len();
        for (at, token) in mine.host.tokens.iter_mut().enumerate() {
            token.cold |= self.settings.is_cold(at, len);
        }
        self.check_lengths(layer);
        self.check(layer, &before, len, Bytes::MayBeGone);
    }

    /// Closes a step of which `rows` tokens were appended.
    fn end(&mut self, layer: usize, rows: u32, mut queries: usize, scored: Option<&Attention>) {
        let heads = self.layers[layer].query_heads as u32;
        trace!("end {layer}: {queries} queries, scored: {}", scored.is_some());
        if self.random.once_in(30) && self.wrong_ends(layer, scored.filter(|_| queries > 0)) {
            queries = 0;
        }
        let before = self.layers[layer].host.all();
        let plans = self.plans(layer);
        let number = layer as u32;
        let prompt = self.layers[layer].model.is_prompt(queries);
        self.call(layer, "no memory to append", |session, cache, len| {
            session.end(number, heads, queries as u32, cache, len)
        });
        let planned = self.plans(layer) > plans;
        let mine = &mut self.layers[layer];
        mine.step = None;
        let masses = scored.map(|a| (&a.masses[..], a.heads()));
        let wanted = mine.model.end(rows, queries, masses, planned || !self.shortage);
        assert!(planned == wanted || self.shortage && !planned, "planned: {planned}");
        let what = match queries {
            0 => "failed steps",
            _ if prompt && mine.model.len() > rows as usize => "prompts behind others",
            _ if prompt => "prompts",
            _ => "decode steps",
        };
        self.coverage.count(what, 1);
        let len = mine.host.tokens.len();
        for (at, token) in mine.host.tokens.iter_mut().enumerate() {
            token.cold |= self.settings.is_cold(at, len);
        }
        self.check_lengths(layer);
        self.check(layer, &before, len, Bytes::MayBeGone);
    }

    /// The number of plans of a layer.
    fn plans(&self, layer: usize) -> u64 {
        self.session.state().unwrap().layers[layer].eviction.as_ref().map_or(0, |eviction| eviction.counts().plans)
    }

    fn keep(&mut self, layer: usize, pairs: &[Pair]) {
        trace!("keep {layer}: {pairs:?} of {}", self.layers[layer].model.logical);
        if self.random.once_in(12) {
            self.relayout(layer);
        }
        let before = self.layers[layer].host.all();
        let old = self.layers[layer].host.len();
        let plans = self.plans(layer);
        let released = self.released(layer);
        let len =
            self.call(layer, "no memory to edit", |session, cache, len| session.keep(layer as u32, pairs, cache, len));
        let left = self.released(layer);
        self.coverage.count("released blocks cut", u64::from(left.0 == released.0 && left.1 < released.1));
        let planned = self.plans(layer) > plans;
        let mine = &mut self.layers[layer];
        let mask = mine.model.keep(pairs, planned || !self.shortage);
        mine.host.keep(mask);
        mine.worth = expand(pairs).map(|l| mine.worth[l as usize]).collect();
        assert_eq!(len as usize, mine.model.len());
        self.check_lengths(layer);
        self.check(layer, &before, old as usize, Bytes::MayBeGone);
    }

    /// Pins or unpins some tokens of all layers, perhaps of those to come.
    fn pin(&mut self) {
        let longest = self.layers.iter().map(|layer| layer.model.logical as usize).max().unwrap();
        let (first, count, on) = (self.random.below(longest + 20), self.random.from(0, 8), !self.random.once_in(3));
        trace!("pin {count} from {first}: {on}");
        let plans: Vec<u64> = (0..self.layers.len()).map(|layer| self.plans(layer)).collect();
        self.call(0, "no memory to pin", |session, _, _| session.pin(first as u32, count as u32, on));
        for (layer, plans) in plans.into_iter().enumerate() {
            let planned = self.plans(layer) > plans || !self.shortage;
            self.layers[layer].model.pin(first, count, on, planned);
        }
        self.coverage.count("pins", u64::from(on));
    }

    fn reset(&mut self, layer: Option<usize>) {
        trace!("reset {layer:?}");
        self.coverage.count("resets", 1);
        self.session.reset(layer.map(|l| l as u32)).unwrap();
        for number in 0..self.layers.len() {
            if layer.is_none_or(|l| l == number) {
                let mine = &mut self.layers[number];
                mine.model.reset();
                (mine.step, mine.is_away) = (None, false);
                mine.worth.clear();
                mine.host = Host::any(self.random.next());
                self.check_lengths(number);
            }
        }
    }

    /// Moves a layer to other buffers: larger ones mostly.
    fn relayout(&mut self, layer: usize) {
        let Run { layers, random, .. } = self;
        let host = &mut layers[layer].host;
        let room = host.tokens.len().max(1) + random.below(40);
        trace!("relayout {layer}: room for {room}");
        self.coverage.count("larger or smaller buffers", 1);
        host.move_to_room_for(room);
    }

    /// Ends the chat. Every token must be restored.
    fn finish(&mut self) {
        trace!("finish");
        self.each(Self::begin);
        self.check_measures();
        for layer in &self.layers {
            let Counts { plans, stale, evictions, ties, scored, unplanned, unscored, over, .. } = layer.model.counts;
            for (what, times) in [
                ("plans", plans),
                ("stale plans", stale),
                ("evictions", evictions),
                ("ties", ties),
                ("scored steps", scored),
                ("no memory to plan", unplanned),
                ("plans without scores", unscored),
                ("steps above a cap", over),
            ] {
                self.coverage.count(what, times);
            }
            if let Some(Rules { cap, .. }) = &layer.model.rules {
                let cap = if cap.is_some() { " below a cap" } else { "" };
                self.coverage.count(format!("evictions{cap}, by chat"), evictions);
            }
        }
    }

    /// Released blocks of a layer, and their raw bytes.
    fn released(&self, layer: usize) -> (u64, u64) {
        let mut state = self.session.state().unwrap();
        let stats = state.store.statistics(Some(layer as u32));
        (stats.released_blocks, stats.released_raw_bytes)
    }

    /// Lengths and positions of all layers.
    pub(super) fn view(&self) -> View {
        let layers = 0..self.settings.layers;
        layers.map(|l| (self.session.lengths(l).unwrap(), self.session.positions(l, None).unwrap())).collect()
    }

    fn check_lengths(&self, layer: usize) {
        let model = &self.layers[layer].model;
        let lengths = CacheLengths { logical: model.logical, physical: model.len() as u32 };
        assert_eq!(self.session.lengths(layer as u32).unwrap(), lengths);
        let room = self.layers[layer].host.layout.max_tokens();
        assert!(model.logical == 0 || self.session.state().unwrap().layers[layer].buffer_tokens == room);
        let positions = self.session.positions(layer as u32, None).unwrap();
        assert!(expand(&positions).eq(model.positions()), "{positions:?}");
        assert!(positions.windows(2).all(|w| w[0][0] + w[0][1] < w[1][0]), "{positions:?} ascend and never touch");
    }

    pub(super) fn check(&self, layer: usize, before: &(Vec<u8>, Vec<u8>), free: usize, bytes: Bytes) {
        let Layer { host, is_away, .. } = &self.layers[layer];
        let stored = self.settings.stores(layer as u32) && bytes == Bytes::MayBeGone;
        host.check(before, free, |_, token| *is_away || stored && token.cold);
    }
}

/// See [`Run::view`].
pub(super) type View = Vec<(CacheLengths, Vec<Pair>)>;

/// The tokens of a layer that a call leaves raw.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bytes {
    All,
    /// Cold tokens may be released.
    MayBeGone,
}

mod calls;
mod measures;
