//! Scores from several lanes, and calls that a session must refuse.

use super::{Cache, Host, Run};
use crate::common::Random;
use crate::h2o::{OwnedTile, Tile};
use crate::session::tests::attention::{Attention, OwnedSums, rows_of};
use crate::session::tests::shared::Session;
use crate::session::tests::trace;
use crate::status::{Result, Status};
use crate::sys::memory::shortage;

impl Run {
    /// Sends the tiles of a step: each head in order in one lane, lanes in any order or at once. Returns whether all were
    /// accepted. The first refusal of memory ends it.
    pub(super) fn send(&mut self, layer: usize, attention: &Attention) -> bool {
        let lanes = self.settings.lanes as usize;
        let mut queues: Vec<Vec<&OwnedTile>> = vec![Vec::new(); lanes];
        let block_tokens = self.session.scored_rows(layer as u32, 1).unwrap().block_tokens;
        for (number, head) in attention.heads.iter().enumerate() {
            if attention.counted > 0 && self.random.once_in(4) {
                let parts = attention.block_sums(number, block_tokens, &mut self.random);
                self.send_sums(layer as u32, parts);
                continue;
            }
            queues[self.random.below(lanes)].extend(head);
        }
        let layer = layer as u32;
        if !self.shortage && self.random.once_in(25) {
            let session: &Session = &self.session;
            std::thread::scope(|scope| {
                let send = |(lane, queue): (usize, &Vec<&OwnedTile>)| {
                    queue.iter().for_each(|tile| session.scores(layer, lane as u32, &tile.tile()).unwrap());
                };
                let threads: Vec<_> = queues.iter().enumerate().map(|lane| scope.spawn(move || send(lane))).collect();
                threads.into_iter().for_each(|thread| thread.join().unwrap());
            });
            self.coverage.count("steps scored by several threads", 1);
            return true;
        }
        if self.shortage && self.random.once_in(6) {
            shortage::set(self.random.pick(&[2, 16, 64]), self.random.next());
        }
        let refuses = self.layers[layer as usize].model.evicts();
        let result = in_turns(&self.session, layer, &queues, refuses, &mut self.random);
        shortage::set(0, 0);
        match result {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error.status(), Status::OutOfMemory, "{error}");
                trace!("  no memory for tiles of layer {layer}");
                self.coverage.count("no memory to score", 1);
                false
            }
        }
    }

    /// Sends the parts of a head that the host has summed, in any order and from any lanes. One that is no attention
    /// changes nothing.
    fn send_sums(&mut self, layer: u32, mut parts: Vec<OwnedSums>) {
        self.coverage.count("heads summed by the host", 1);
        while !parts.is_empty() {
            let mut part = parts.swap_remove(self.random.below(parts.len()));
            let lane = self.random.below(self.settings.lanes as usize) as u32;
            let good = part.sums[0];
            for bad in [f64::NAN, f64::INFINITY, -1e6, 1e13] {
                part.sums[0] = bad;
                let error = self.session.block_sums(layer, lane, &part.checked().unwrap()).unwrap_err();
                assert_eq!(error.status(), Status::InvalidArgument, "{error}");
            }
            part.sums[0] = good;
            self.session.block_sums(layer, lane, &part.checked().unwrap()).unwrap();
        }
    }

    /// Calls that are always wrong, and calls that are wrong now. Each must change nothing.
    pub(super) fn wrong_calls(&mut self, layer: usize) {
        trace!("wrong calls {layer}, open: {}", self.layers[layer].step.is_some());
        let (number, none) = (layer as u32, self.settings.layers);
        let (len, logical) = (self.layers[layer].host.len(), self.layers[layer].model.logical as i32);
        let pairs = [[[0, -1]], [[-1, 1]], [[0, logical + 1]], [[logical, 1]], [[i32::MAX, i32::MAX]]];
        let (backwards, overlap) = ([[2, 1], [0, 1]], [[0, 2], [1, 1]]);
        self.refused(layer, |session, run| session.begin(none, run.cache(layer), 0).map(drop));
        self.refused(layer, |session, run| session.end(none, 1, 1, run.cache(layer), 0));
        self.refused(layer, |session, run| session.keep(none, &[], run.cache(layer), 0).map(drop));
        self.refused(layer, |session, _| session.reset(Some(none)));
        self.refused(layer, |session, _| session.abort(none, None, 0));
        self.refused(layer, |session, _| session.rewritten(none, 0, 0));
        self.refused(layer, |session, _| session.wants_scores(none, 1).map(drop));
        self.refused(layer, |session, _| session.lengths(none).map(drop));
        self.refused(layer, |session, _| session.positions(none).map(drop));
        self.refused(layer, |session, _| session.metrics(Some(none)).map(drop));
        self.refused(layer, |session, run| session.begin(number, run.cache(layer), len + 1).map(drop));
        let lane = self.settings.lanes;
        self.refused(layer, |session, _| session.scores(number, lane, &one_token(&[0; 4])));
        self.refused(layer, |session, _| session.scores(none, 0, &one_token(&[0; 4])));
        if self.layers[layer].step.is_some() {
            self.refused(layer, |session, run| session.begin(number, run.cache(layer), len).map(drop));
            self.refused(layer, |session, run| session.keep(number, &[], run.cache(layer), len).map(drop));
            let begin = self.layers[layer].step.unwrap().begin;
            if begin > 0 {
                self.refused(layer, |session, run| session.end(number, 1, 0, run.cache(layer), begin - 1));
                self.refused(layer, |session, run| session.abort(number, Some(run.cache(layer)), begin - 1));
                self.refused(layer, |session, _| session.abort(number, None, begin));
            }
            self.refused(layer, |session, run| session.abort(number, Some(run.cache(layer)), begin + 1));
            self.refused(layer, |session, _| session.rewritten(number, 0, begin + 1));
            // A layer that began without a cache has no layout yet.
            if self.session.state().unwrap().layers[layer].token_bytes() > 0 {
                self.refused(layer, |session, run| {
                    let mut other = run.impostor(layer);
                    session.end(number, 1, 0, other.cache(), len)
                });
            }
            if self.layers[layer].model.evicts() {
                self.wrong_tiles(layer);
            }
        } else {
            self.refused(layer, |session, run| session.end(number, 1, 1, run.cache(layer), len));
            self.refused(layer, |session, run| session.abort(number, Some(run.cache(layer)), len));
            self.refused(layer, |session, _| session.rewritten(number, len, 1));
            self.refused(layer, |session, _| session.rewritten(number, 1, u32::MAX));
            if len > 0 {
                self.refused(layer, |session, _| session.begin_without(number, len).map(drop));
            }
            self.refused(layer, |session, _| session.scores(number, 0, &one_token(&[0; 4])));
            for pairs in &pairs {
                self.refused(layer, |session, run| session.keep(number, pairs, run.cache(layer), len).map(drop));
            }
            for pairs in [&backwards[..], &overlap] {
                self.refused(layer, |session, run| session.keep(number, pairs, run.cache(layer), len).map(drop));
            }
            self.refused(layer, |session, run| session.keep(number, &[], run.cache(layer), len + 1).map(drop));
            if self.session.state().unwrap().layers[layer].token_bytes() > 0 {
                self.refused(layer, |session, run| {
                    let mut other = run.impostor(layer);
                    session.begin(number, other.cache(), len).map(drop)
                });
                self.refused(layer, |session, run| {
                    let mut other = run.impostor(layer);
                    session.keep(number, &[], other.cache(), len).map(drop)
                });
            }
        }
    }

    /// Invalid first tiles.
    fn wrong_tiles(&mut self, layer: usize) {
        let number = layer as u32;
        let bytes = [0; 4];
        let tile = one_token(&bytes);
        for wrong in [
            Tile { first: false, ..tile },
            Tile { queries: 0, ..tile },
            Tile { tokens: 0, ..tile },
            Tile { tokens: 2, ..tile },
            Tile { pack: 4, ..tile },
            Tile { token_begin: usize::MAX, ..tile },
            Tile { row_sum: Some(&[1.0, 1.0]), ..tile },
            Tile { last: false, row_sum: Some(&[1.0]), ..tile },
            Tile { update_scale: Some(&[]), ..tile },
        ] {
            self.refused(layer, |session, _| session.scores(number, 0, &wrong));
        }
    }

    /// Ends with other heads, rows or tokens than were scored. Returns true if extra tiles were accepted, so that the
    /// step can only end as failed.
    pub(super) fn wrong_ends(&mut self, layer: usize, scored: Option<&Attention>) -> bool {
        let (number, len) = (layer as u32, self.layers[layer].host.len());
        let room = self.layers[layer].host.layout.max_tokens() as u32;
        self.refused(layer, |session, run| session.end(number, 1, 0, run.cache(layer), room + 1));
        let Some(scored) = scored.filter(|_| self.layers[layer].model.evicts()) else { return false };
        let (heads, queries) = (scored.heads.len() as u32, scored.queries as u32);
        self.refused(layer, |session, run| session.end(number, heads + 1, queries, run.cache(layer), len));
        if heads > 1 {
            self.refused(layer, |session, run| session.end(number, heads - 1, queries, run.cache(layer), len));
        }
        let begin = self.layers[layer].step.unwrap().begin;
        if begin < len {
            self.refused(layer, |session, run| session.end(number, heads, queries, run.cache(layer), len - 1));
        }
        if scored.counted == scored.queries && !self.layers[layer].model.is_prompt(scored.queries + 1) {
            self.refused(layer, |session, run| session.end(number, heads, queries + 1, run.cache(layer), len));
        }
        if self.shortage || self.random.once_in(2) {
            return false;
        }
        // One head too many without its last tile, then with it.
        let values = vec![0; 4 * scored.queries];
        let begun = Tile { queries: scored.queries, last: false, ..one_token(&values) };
        self.session.scores(number, 0, &begun).unwrap();
        self.refused(layer, |session, run| session.end(number, heads, queries, run.cache(layer), len));
        self.session.scores(number, 0, &Tile { first: false, last: true, token_begin: 1, ..begun }).unwrap();
        self.refused(layer, |session, run| session.end(number, heads, queries, run.cache(layer), len));
        true
    }

    fn cache(&mut self, layer: usize) -> Cache<'_> {
        self.layers[layer].host.cache()
    }

    fn impostor(&mut self, layer: usize) -> Host {
        self.layers[layer].host.impostor()
    }

    fn refused(&mut self, layer: usize, call: impl FnOnce(&Session, &mut Run) -> Result<()>) {
        let bytes = |run: &Run| (run.layers[layer].host.key.to_vec(), run.layers[layer].host.value.to_vec());
        let (view, before) = (self.view(), bytes(self));
        let session = self.session.clone();
        let error = call(&session, self).expect_err("a wrong call was accepted");
        assert_eq!(error.status(), Status::InvalidArgument, "{error}");
        assert_eq!(self.view(), view);
        assert!(bytes(self) == before);
        self.coverage.count("refused calls", 1);
    }
}

/// Sends each lane's tiles in order, lanes in random turns. `refuses`: the layer checks its tiles.
fn in_turns(
    session: &Session,
    layer: u32,
    queues: &[Vec<&OwnedTile>],
    refuses: bool,
    random: &mut Random,
) -> Result<()> {
    let mut next = vec![0; queues.len()];
    loop {
        let waiting: Vec<usize> = (0..queues.len()).filter(|lane| next[*lane] < queues[*lane].len()).collect();
        let Some(lane) = (!waiting.is_empty()).then(|| random.pick(&waiting)) else { return Ok(()) };
        let tile = queues[lane][next[lane]].tile();
        if refuses && random.once_in(50) {
            // A wrong first flag, then the right tile.
            let error = session.scores(layer, lane as u32, &Tile { first: !tile.first, ..tile }).unwrap_err();
            assert_eq!(error.status(), Status::InvalidArgument, "{error}");
        }
        session.scores(layer, lane as u32, &tile)?;
        next[lane] += 1;
    }
}

/// A head's only tile, of one token.
fn one_token(data: &[u8]) -> Tile<'_> {
    rows_of(data, 1, 1, None)
}
