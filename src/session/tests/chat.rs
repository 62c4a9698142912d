//! A session, and a host for each of its layers: worked examples run through it.

use super::attention::OwnedSums;
use super::shared::Session;
use crate::host::{Host, expand};
use crate::layout::{Pair, Spec};
use crate::session::CacheLengths;
use crate::session::metrics::Metrics;
use crate::status::Result;
use serde_json::Value;

pub(super) struct Chat {
    pub(super) session: Session,
    pub(super) hosts: Vec<Host>,
}

impl Chat {
    pub(super) fn new(config: Value, layers: u32, spec: Spec) -> Self {
        let session = Session::new(config.to_string().as_bytes(), layers, 1).unwrap();
        Chat { session, hosts: (0..layers).map(|layer| Host::new(spec, u64::from(layer))).collect() }
    }

    /// Begins a step. The host removes the tokens that are evicted.
    pub(super) fn begin(&mut self, layer: usize) {
        let before = self.positions(layer);
        let host = &mut self.hosts[layer];
        let len = host.len();
        let left = self.session.begin(layer as u32, host.cache(), len).unwrap();
        if left < len {
            let now: Vec<u32> = expand(&self.session.positions(layer as u32, None).unwrap()).collect();
            host.keep(expand(&before).map(|position| now.binary_search(&position).is_ok()));
        }
        assert_eq!(left, host.len());
    }

    /// Begins a step. Every token is there afterwards.
    pub(super) fn begin_whole(&mut self, layer: usize) {
        self.begin(layer);
        self.hosts[layer].check_tokens(false);
    }

    /// Ends a step whose tokens have been appended.
    pub(super) fn close(&mut self, layer: usize, heads: usize, rows: usize) -> Result<()> {
        let host = &mut self.hosts[layer];
        let len = host.len();
        self.session.end(layer as u32, heads as u32, rows as u32, host.cache(), len)
    }

    /// Appends tokens and ends a step without scores.
    pub(super) fn end(&mut self, layer: usize, rows: usize) {
        self.hosts[layer].append(rows);
        self.close(layer, 0, rows).unwrap();
    }

    /// A step without scores.
    pub(super) fn step(&mut self, layer: usize, rows: usize) {
        self.begin_whole(layer);
        self.end(layer, rows);
    }

    /// A step of one head. `look`: the attention of a row (the last is 0) to the token at a logical position.
    pub(super) fn look(&mut self, layer: usize, rows: usize, look: impl Fn(usize, u32) -> f32) {
        self.begin(layer);
        let logical = self.lengths(layer).0;
        let held: Vec<u32> = expand(&self.positions(layer)).chain(logical..logical + rows as u32).collect();
        self.hosts[layer].append(rows);
        let scored = self.session.scored_rows(layer as u32, rows as u32).unwrap();
        if scored.rows > 0 {
            let row = |row| held.iter().map(|at| f64::from(look(row, *at))).collect();
            let weights: Vec<Vec<f64>> = (0..scored.rows as usize).rev().map(row).collect();
            let sums = OwnedSums::of_heads(1, scored.block_tokens, &weights);
            self.session.block_sums(layer as u32, 0, &sums).unwrap();
        }
        self.close(layer, 1, rows).unwrap();
    }

    /// Edits the history.
    pub(super) fn keep(&mut self, layer: usize, pairs: &[Pair]) {
        let before = self.positions(layer);
        let host = &mut self.hosts[layer];
        let len = host.len();
        let left = self.session.keep(layer as u32, pairs, host.cache(), len).unwrap();
        let stays = |at: u32| pairs.iter().any(|p| (p[0]..p[0] + p[1]).contains(&(at as i32)));
        host.keep(expand(&before).map(stays));
        assert_eq!(left, host.len());
    }

    pub(super) fn positions(&self, layer: usize) -> Vec<Pair> {
        self.session.positions(layer as u32, None).unwrap()
    }

    /// Logical and physical.
    pub(super) fn lengths(&self, layer: usize) -> (u32, u32) {
        let CacheLengths { logical, physical } = self.session.lengths(layer as u32).unwrap();
        (logical, physical)
    }

    pub(super) fn metrics(&self, layer: usize) -> Metrics {
        self.session.metrics(Some(layer as u32)).unwrap()
    }

    /// The metrics of all layers.
    pub(super) fn total(&self) -> Metrics {
        self.session.metrics(None).unwrap()
    }

    pub(super) fn plans(&self, layer: usize) -> f64 {
        self.metrics(layer).h2o_plan_count
    }
}
