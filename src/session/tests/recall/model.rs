//! The rules of recall in f64, from the documents alone.

/// The keys of each KV head, by logical position.
pub(super) type Keys = Vec<Vec<Vec<f32>>>;
/// Mean and directions `[dim][direction]` of each KV head, as the library has learned them.
pub(super) type Bases = Vec<(Vec<f32>, Vec<[f32; 16]>)>;

#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) block: usize,
    pub(super) sink: usize,
    pub(super) recent: usize,
    pub(super) ratio: usize,
    pub(super) trigger: usize,
    pub(super) most: usize,
    pub(super) window: usize,
    pub(super) interval: usize,
    pub(super) hysteresis: f64,
    pub(super) exchanges: usize,
}

#[derive(Clone, Debug)]
struct Block {
    begin: usize,
    count: usize,
    away: bool,
    judged: bool,
    shares: Vec<f64>,
}

/// One layer.
pub(super) struct Model {
    rules: Rules,
    blocks: Vec<Block>,
    first: usize,
    end: usize,
    judges: bool,
    steps: usize,
    exchanges: Vec<(usize, usize)>,
    /// Logical positions.
    pub(super) pins: Vec<u32>,
}

/// The logits of keys from their sketches: codes in f32, as the rule says, and the rest in f64.
fn logits(keys: &[Vec<f32>], basis: &(Vec<f32>, Vec<[f32; 16]>), query: &[f64]) -> Vec<f64> {
    let (mean, directions) = basis;
    let along = |d: usize| query.iter().zip(directions).map(|(q, row)| q * f64::from(row[d])).sum::<f64>();
    let base: f64 = query.iter().zip(mean).map(|(q, mean)| q * f64::from(*mean)).sum();
    let weights: [f64; 16] = std::array::from_fn(along);
    let logit = |key: &Vec<f32>| {
        let centred = || key.iter().zip(mean).map(|(key, mean)| key - mean).zip(directions);
        let parts: [f32; 16] = std::array::from_fn(|d| centred().fold(0.0, |sum, (x, row)| sum + x * row[d]));
        let largest = parts.iter().fold(0.0f32, |most, part| most.max(part.abs()));
        let scale = half::bf16::from_f32(largest / 7.0).to_f32();
        let code = |part: f32| if scale == 0.0 { 0.0 } else { (part / scale).round_ties_even().clamp(-7.0, 7.0) };
        base + parts.iter().zip(weights).map(|(part, weight)| f64::from(scale * code(*part)) * weight).sum::<f64>()
    };
    keys.iter().map(logit).collect()
}

impl Model {
    pub(super) fn new(rules: Rules) -> Self {
        let sink = rules.sink;
        Model {
            rules,
            blocks: Vec::new(),
            first: sink,
            end: sink,
            judges: false,
            steps: 0,
            exchanges: Vec::new(),
            pins: Vec::new(),
        }
    }

    pub(super) fn window(&self) -> usize {
        self.rules.window
    }

    pub(super) fn reset(&mut self) {
        *self = Model::new(self.rules.clone());
    }

    /// The logical positions that are away.
    pub(super) fn away(&self) -> Vec<u32> {
        let away = self.blocks.iter().filter(|block| block.away);
        away.flat_map(|block| block.begin as u32..(block.begin + block.count) as u32).collect()
    }

    fn room(&self, logical: usize, next: usize) -> usize {
        let limit = if self.rules.most == 0 { usize::MAX } else { self.rules.most.saturating_sub(next) };
        let step = if next > 64 { 0 } else { next };
        if logical + step < self.rules.trigger {
            return limit;
        }
        let target = (logical + step).div_ceil(self.rules.ratio);
        target.saturating_sub(step).min(limit)
    }

    fn share(block: &Block) -> f64 {
        let mean = block.shares.iter().rev().sum::<f64>() / block.shares.len() as f64;
        if block.shares.is_empty() { 0.0 } else { mean }
    }

    fn resident(&self, logical: usize) -> usize {
        logical - self.blocks.iter().filter(|block| block.away).map(|block| block.count).sum::<usize>()
    }

    fn must_stay(&self, at: usize, logical: usize) -> bool {
        let Block { begin, count, .. } = self.blocks[at];
        let is_pinned = self.pins.iter().any(|pin| (begin..begin + count).contains(&(*pin as usize)));
        is_pinned || begin < self.rules.sink || begin + count + self.rules.recent > logical
    }

    fn may_leave(&self, at: usize, logical: usize) -> bool {
        !self.blocks[at].away && !self.must_stay(at, logical)
    }

    fn grow(&mut self, logical: usize) {
        while self.end + self.rules.block <= logical.saturating_sub(self.rules.recent) {
            let (begin, count) = (self.end, self.rules.block);
            self.blocks.push(Block { begin, count, away: false, judged: false, shares: Vec::new() });
            self.end += count;
        }
    }

    /// The blocks of the lowest shares leave until `room` tokens are left.
    fn leave(&mut self, logical: usize, room: usize) {
        let mut order: Vec<usize> = (0..self.blocks.len()).collect();
        order.sort_by(|a, b| Self::share(&self.blocks[*a]).total_cmp(&Self::share(&self.blocks[*b])));
        for at in order {
            if self.resident(logical) > room && self.may_leave(at, logical) {
                self.blocks[at].away = true;
            }
        }
    }

    /// `space`: tokens for which the buffers have room.
    pub(super) fn begin(&mut self, logical: usize, next: usize, space: usize) {
        for (out, back) in std::mem::take(&mut self.exchanges) {
            if self.may_leave(out, logical) {
                (self.blocks[out].away, self.blocks[back].away) = (true, false);
            }
        }
        let room = self.room(logical, next);
        let due = |model: &Self, at: &usize| model.blocks[*at].away && model.must_stay(*at, logical);
        let due: usize = (0..self.blocks.len()).filter(|at| due(self, at)).map(|at| self.blocks[at].count).sum();
        self.leave(logical, room.saturating_sub(due));
        let limit = if self.rules.most == 0 { usize::MAX } else { self.rules.most.saturating_sub(next) };
        if self.resident(logical) > limit {
            self.grow(logical);
            self.leave(logical, limit);
        }
        let resident = self.resident(logical);
        let left = |most: usize| most.saturating_sub(resident + next);
        let (mut more, buffers, limit) = (room.saturating_sub(resident), left(space), left(limit.saturating_add(next)));
        let mut filling: Vec<usize> = (0..self.blocks.len()).filter(|at| self.blocks[*at].away).collect();
        filling.sort_by(|a, b| Self::share(&self.blocks[*b]).total_cmp(&Self::share(&self.blocks[*a])));
        let (first, rest): (Vec<usize>, Vec<usize>) = filling.iter().partition(|at| self.must_stay(**at, logical));
        let mut first = first;
        first.sort_unstable();
        let mut chosen = first.clone();
        first.iter().for_each(|at| more = more.saturating_sub(self.blocks[*at].count));
        for at in rest {
            let block = &self.blocks[at];
            if chosen.len() < first.len() + self.rules.exchanges && Self::share(block) > 0.0 && block.count <= more {
                more -= block.count;
                chosen.push(at);
            }
        }
        let mut added = 0;
        for at in chosen {
            let most = if self.must_stay(at, logical) { buffers } else { buffers.min(limit) };
            if added + self.blocks[at].count <= most {
                added += self.blocks[at].count;
                self.blocks[at].away = false;
            }
        }
    }

    /// `keys`: `[KV head][position]`; `rows`: `[row][query head][dim]`, the last of the step.
    pub(super) fn end(&mut self, keys: &Keys, bases: &Bases, rows: &[Vec<Vec<f64>>], expected: usize, is_prompt: bool) {
        let logical = keys[0].len();
        self.exchanges.clear();
        self.steps += 1;
        if !is_prompt && !self.steps.is_multiple_of(self.rules.interval) {
            return;
        }
        self.grow(logical);
        let due = logical >= 512 || self.resident(logical) > self.room(logical, expected);
        if self.blocks.is_empty() || !(due || self.judges) {
            return;
        }
        self.judges = true;
        let mut left = 16;
        for block in self.blocks.iter_mut().filter(|block| !block.judged) {
            left -= i32::from(block.away);
            (block.judged, block.shares) = (left >= 0 || !block.away, Vec::new());
        }
        for row in rows {
            let shares = self.shares(keys, bases, row);
            for (block, share) in self.blocks.iter_mut().zip(shares).filter(|(block, _)| block.judged) {
                block.shares.push(share);
                let excess = block.shares.len().saturating_sub(self.rules.window);
                block.shares.drain(..excess);
            }
        }
        if !rows.is_empty() {
            self.choose(logical);
        }
    }

    /// The share of each block in the attention of a row, summed over query heads.
    fn shares(&self, keys: &Keys, bases: &Bases, row: &[Vec<f64>]) -> Vec<f64> {
        let logical = keys[0].len();
        let mut sums = vec![0.0; self.blocks.len()];
        for (head, query) in row.iter().enumerate() {
            let kv_head = head / (row.len() / keys.len());
            let keys = &keys[kv_head];
            let scale = 1.0 / (query.len() as f64).sqrt();
            let query: Vec<f64> = query.iter().map(|q| q * scale).collect();
            let dot = |key: &[f32]| query.iter().zip(key).map(|(q, k)| q * f64::from(*k)).sum::<f64>();
            let outside = (0..self.first.min(logical)).chain(self.end.max(self.first.min(logical))..logical);
            let others: f64 = outside.map(|at| dot(&keys[at]).exp()).sum();
            let mass = |block: &Block| {
                let keys = &keys[block.begin..block.begin + block.count];
                let mass = || logits(keys, &bases[kv_head], &query).into_iter().map(f64::exp).sum();
                if block.judged { mass() } else { 0.0 }
            };
            let masses: Vec<f64> = self.blocks.iter().map(mass).collect();
            let all = masses.iter().sum::<f64>() + others;
            sums.iter_mut().zip(masses).for_each(|(sum, mass)| *sum += mass / all);
        }
        sums
    }

    fn choose(&mut self, logical: usize) {
        for _ in 0..self.rules.exchanges {
            let chosen = |at: usize| self.exchanges.iter().any(|(out, back)| [*out, *back].contains(&at));
            let known: Vec<usize> =
                (0..self.blocks.len()).filter(|at| !chosen(*at) && !self.blocks[*at].shares.is_empty()).collect();
            let share = |at: usize| Self::share(&self.blocks[at]);
            let back = known.iter().copied().filter(|at| self.blocks[*at].away);
            let Some(back) = back.reduce(|a, b| if share(b) > share(a) { b } else { a }) else { return };
            let same = |at: &usize| self.blocks[*at].count == self.blocks[back].count;
            let out = known.iter().copied().filter(|at| same(at) && self.may_leave(*at, logical));
            let Some(out) = out.reduce(|a, b| if share(b) < share(a) { b } else { a }) else { return };
            let nats = (share(back) / share(out)).ln();
            if nats.is_nan() || nats < self.rules.hysteresis {
                return;
            }
            self.exchanges.push((out, back));
        }
    }

    /// `kept`: the logical positions that stay, ascending.
    pub(super) fn keep(&mut self, kept: &[u32]) {
        let (end, len) = (kept.last().map_or(0, |last| last + 1), kept.len() as u32);
        let behind = self.pins.iter().filter(|at| **at >= end).map(|at| at - end + len);
        let stay = kept.iter().zip(0..).filter(|(at, _)| self.pins.contains(at)).map(|(_, now)| now);
        self.pins = stay.chain(behind).collect();
        let before = |position: usize| kept.partition_point(|at| (*at as usize) < position);
        for block in &mut self.blocks {
            let (begin, end) = (before(block.begin), before(block.begin + block.count));
            if end - begin < block.count {
                (block.judged, block.shares) = (false, Vec::new());
            }
            (block.begin, block.count) = (begin, end - begin);
        }
        self.blocks.retain(|block| block.count > 0);
        (self.first, self.end) = (before(self.first), before(self.end));
        if self.blocks.is_empty() {
            (self.first, self.end) = (self.rules.sink, self.rules.sink);
        }
        self.exchanges.clear();
    }

    /// Estimates begin anew.
    pub(super) fn restart(&mut self) {
        self.blocks.iter_mut().for_each(|block| (block.judged, block.shares) = (false, Vec::new()));
        self.exchanges.clear();
        (self.judges, self.steps) = (false, 0);
    }

    /// The host wrote tokens in place.
    pub(super) fn rewritten(&mut self, positions: &[u32]) {
        for block in self.blocks.iter_mut().filter(|block| !block.away) {
            let own = block.begin as u32..(block.begin + block.count) as u32;
            if positions.iter().any(|at| own.contains(at)) {
                (block.judged, block.shares) = (false, Vec::new());
            }
        }
        self.exchanges.clear();
    }
}
