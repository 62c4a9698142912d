//! Scores from several lanes, and calls that a session must refuse.

use super::{Cache, Host, Run};
use crate::h2o::SumFields;
use crate::session::tests::attention::{Attention, OwnedSums};
use crate::session::tests::shared::Session;
use crate::session::tests::trace;
use crate::status::{Result, Status};
use crate::sys::memory::shortage;

impl Run {
    /// Sends the block sums of a step: its parts in any order and from any lanes, or at once. Returns whether all were
    /// accepted. The first refusal of memory ends it.
    pub(super) fn send(&mut self, layer: usize, attention: &Attention) -> bool {
        let (number, lanes) = (layer as u32, self.settings.lanes as usize);
        let scored = self.session.scored_rows(number, attention.queries as u32).unwrap();
        assert_eq!(scored.rows as usize, attention.counted);
        if scored.rows == 0 {
            return true;
        }
        let mut parts: Vec<OwnedSums> = (0..attention.heads())
            .flat_map(|head| attention.block_sums(head, scored.block_tokens, &mut self.random))
            .collect();
        self.wrong_attention(number, parts[0].clone());
        let mut queues: Vec<Vec<OwnedSums>> = vec![Vec::new(); lanes];
        while !parts.is_empty() {
            let part = parts.swap_remove(self.random.below(parts.len()));
            queues[self.random.below(lanes)].push(part);
        }
        let session: &Session = &self.session;
        let send = |(lane, queue): (usize, &Vec<OwnedSums>)| {
            queue.iter().try_for_each(|part| session.block_sums(number, lane as u32, part))
        };
        if !self.shortage && self.random.once_in(25) {
            std::thread::scope(|scope| {
                let threads: Vec<_> = queues.iter().enumerate().map(|lane| scope.spawn(move || send(lane))).collect();
                threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
            });
            self.coverage.count("steps scored by several threads", 1);
            return true;
        }
        if self.shortage && self.random.once_in(6) {
            shortage::set(self.random.pick(&[2, 16, 64]), self.random.next());
        }
        let result = queues.iter().enumerate().try_for_each(send);
        shortage::set(0, 0);
        match result {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error.status(), Status::OutOfMemory, "{error}");
                trace!("  no memory for block sums of layer {layer}");
                self.coverage.count("no memory to score", 1);
                false
            }
        }
    }

    /// Sums that are no attention change nothing.
    fn wrong_attention(&self, layer: u32, mut part: OwnedSums) {
        for bad in [f64::NAN, f64::INFINITY, -1e6, 1e13] {
            part.sums[0] = bad;
            let error = self.session.block_sums(layer, 0, &part).unwrap_err();
            assert_eq!(error.status(), Status::InvalidArgument, "{error}");
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
        self.refused(layer, |session, _| session.scored_rows(none, 1).map(drop));
        self.refused(layer, |session, _| session.lengths(none).map(drop));
        self.refused(layer, |session, _| session.positions(none, None).map(drop));
        self.refused(layer, |session, _| session.metrics(Some(none)).map(drop));
        self.refused(layer, |session, _| session.save(Some("nowhere"), &mut []).map(drop));
        self.refused(layer, |session, run| session.begin(number, run.cache(layer), len + 1).map(drop));
        let lane = self.settings.lanes;
        self.refused(layer, |session, _| session.block_sums(number, lane, &one_token()));
        self.refused(layer, |session, _| session.block_sums(none, 0, &one_token()));
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
            self.refused(layer, |session, _| session.open(Some("nowhere")));
            // A layer that began without a cache has no layout yet.
            if self.session.state().unwrap().layers[layer].token_bytes() > 0 {
                self.refused(layer, |session, run| {
                    let mut other = run.impostor(layer);
                    session.end(number, 1, 0, other.cache(), len)
                });
            }
            if self.layers[layer].model.evicts() {
                self.wrong_sums(layer);
            }
        } else {
            self.refused(layer, |session, run| session.end(number, 1, 1, run.cache(layer), len));
            self.refused(layer, |session, run| session.abort(number, Some(run.cache(layer)), len));
            self.refused(layer, |session, _| session.rewritten(number, len, 1));
            self.refused(layer, |session, _| session.rewritten(number, 1, u32::MAX));
            if len > 0 {
                self.refused(layer, |session, _| session.begin_without(number, len).map(drop));
            }
            self.refused(layer, |session, _| session.block_sums(number, 0, &one_token()));
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

    /// Invalid block sums.
    fn wrong_sums(&mut self, layer: usize) {
        let number = layer as u32;
        let good = OwnedSums::of_heads(1, self.session.scored_rows(number, 1).unwrap().block_tokens, &[vec![1.0]]);
        let fields = good.fields;
        for wrong in [
            SumFields { flags: 4, ..fields },
            SumFields { heads: 0, ..fields },
            SumFields { heads: 2, ..fields },
            SumFields { rows: 0, ..fields },
            SumFields { block_tokens: 0, ..fields },
            SumFields { block_tokens: fields.block_tokens + 1, ..fields },
            SumFields { blocks: 0, ..fields },
            SumFields { token_begin: 1, ..fields },
            SumFields { token_end: u32::MAX, ..fields },
        ] {
            let wrong = OwnedSums { fields: wrong, ..good.clone() };
            self.refused(layer, |session, _| session.block_sums(number, 0, &wrong));
        }
    }

    /// Ends with other heads, rows or tokens than were scored. Returns true if extra sums were accepted, so that the
    /// step can only end as failed.
    pub(super) fn wrong_ends(&mut self, layer: usize, scored: Option<&Attention>) -> bool {
        let (number, len) = (layer as u32, self.layers[layer].host.len());
        let room = self.layers[layer].host.layout.max_tokens() as u32;
        self.refused(layer, |session, run| session.end(number, 1, 0, run.cache(layer), room + 1));
        let Some(scored) = scored.filter(|scored| scored.counted > 0) else { return false };
        let (heads, queries) = (scored.heads() as u32, scored.queries as u32);
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
        // One head too many without its last part, then with it.
        let block_tokens = self.session.scored_rows(number, queries).unwrap().block_tokens;
        let rows = vec![vec![1.0]; scored.counted];
        let mut part = OwnedSums::of_heads(1, block_tokens, &rows);
        part.fields.flags = SumFields::FIRST;
        self.session.block_sums(number, 0, &part).unwrap();
        self.refused(layer, |session, run| session.end(number, heads, queries, run.cache(layer), len));
        part.fields = SumFields { flags: SumFields::LAST, token_begin: 1, token_end: 2, blocks: 2, ..part.fields };
        part.sums.resize(2 * scored.counted, 1.0);
        self.session.block_sums(number, 0, &part).unwrap();
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

/// A head of one token.
fn one_token() -> OwnedSums {
    OwnedSums::of_heads(1, 1, &[vec![1.0]])
}
