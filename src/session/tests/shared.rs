//! A session as tests call it: with caches that exist, and block sums that are not checked yet.

use super::attention::OwnedSums;
use crate::layout::Cache;
use crate::session;
use crate::status::Result;
use std::ops::Deref;

pub(super) struct Session(session::Session);

impl Session {
    pub(super) fn new(json: &[u8], layers: u32, lanes: u32) -> Result<Self> {
        Ok(Session(session::Session::new(json, b"", layers, lanes)?))
    }

    /// The host calls attend.
    pub(super) fn attending(json: &[u8], layers: u32, lanes: u32) -> Result<Self> {
        let host = session::Host { attends: true };
        Ok(Session(session::Session::with_host(json, b"", layers, lanes, host)?))
    }

    pub(super) fn begin(&self, layer: u32, cache: Cache<'_>, kv_len: u32) -> Result<u32> {
        Ok(self.0.begin(layer, Some(cache), kv_len)?.kv_len)
    }

    /// Begins a step of a layer whose cache does not exist yet.
    pub(super) fn begin_without(&self, layer: u32, kv_len: u32) -> Result<u32> {
        Ok(self.0.begin(layer, None, kv_len)?.kv_len)
    }

    pub(super) fn block_sums(&self, layer: u32, lane: u32, sums: &OwnedSums) -> Result<()> {
        self.0.block_sums(layer, lane, &sums.checked()?)
    }
}

impl Deref for Session {
    type Target = session::Session;

    fn deref(&self) -> &session::Session {
        &self.0
    }
}
