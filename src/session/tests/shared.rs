//! A session with its lanes behind locks: a host in Rust whose threads share both.

use crate::h2o::Tile;
use crate::session::{self, Lane};
use crate::status::{Result, bail};
use crate::store::Cache;
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard};

pub(super) struct Session {
    session: session::Session,
    lanes: Vec<Mutex<Lane>>,
}

impl Session {
    pub(super) fn new(json: &[u8], layers: u32, lanes: u32) -> Result<Self> {
        let session = session::Session::new(json, b"", layers)?;
        Ok(Session { session, lanes: session::Session::lanes(lanes)?.into_iter().map(Mutex::new).collect() })
    }

    fn with_lanes<T>(&self, body: impl FnOnce(&mut [&mut Lane]) -> T) -> T {
        let mut guards: Vec<MutexGuard<'_, Lane>> = self.lanes.iter().map(|lane| lane.lock().unwrap()).collect();
        body(&mut guards.iter_mut().map(|guard| &mut **guard).collect::<Vec<_>>())
    }

    pub(super) fn begin(&self, layer: u32, cache: Cache<'_>, kv_len: u32) -> Result<u32> {
        self.with_lanes(|lanes| self.session.begin(lanes, layer, Some(cache), kv_len))
    }

    /// Begins a step of a layer whose cache does not exist yet.
    pub(super) fn begin_without(&self, layer: u32, kv_len: u32) -> Result<u32> {
        self.with_lanes(|lanes| self.session.begin(lanes, layer, None, kv_len))
    }

    pub(super) fn abort(&self, layer: u32, cache: Option<Cache<'_>>, kv_len: u32) -> Result<()> {
        self.with_lanes(|lanes| self.session.abort(lanes, layer, cache, kv_len))
    }

    pub(super) fn scores(&self, layer: u32, lane: u32, tile: &Tile<'_>) -> Result<()> {
        let Some(lane) = self.lanes.get(lane as usize) else { bail!(InvalidArgument, "there is no lane {lane}") };
        lane.lock().unwrap().scores(layer, tile)
    }

    pub(super) fn end(&self, layer: u32, heads: u32, queries: u32, cache: Cache<'_>, kv_len: u32) -> Result<()> {
        self.with_lanes(|lanes| self.session.end(lanes, layer, heads, queries, cache, kv_len))
    }

    pub(super) fn reset(&self, layer: Option<u32>) -> Result<()> {
        self.with_lanes(|lanes| self.session.reset(lanes, layer))
    }
}

/// Calls without lanes.
impl Deref for Session {
    type Target = session::Session;

    fn deref(&self) -> &session::Session {
        &self.session
    }
}
