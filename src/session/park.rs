//! Parking a layer while no step is due, and its way back.

use super::layer::Layer;
use super::{Session, State, find, tail};
use crate::layout::{self, Cache};
use crate::status::{Result, bail};
use crate::store::{Packing, Parked, Store};
use crate::sys;
use std::sync::atomic::Ordering;

impl Session {
    /// Encodes all tokens of a closed layer and releases the memory of its cache; the next [`Session::begin`] writes them
    /// back. A layer that is parked stays so. On an error tokens may have been restored from the store, and nothing else
    /// has changed.
    /// BUSY: if the session is interrupted.
    pub fn park(&self, layer: u32, cache: Option<Cache<'_>>, kv_len: u32, packing: &Packing) -> Result<Parked> {
        let mut state = self.state()?;
        let State { layers, store, .. } = &mut *state;
        let layer = find(layers, layer)?;
        layer.check_closed(kv_len)?;
        layer.check_cache(cache.as_ref(), kv_len)?;
        if self.interrupted.load(Ordering::Relaxed) {
            bail!(Busy, "layer {} was not parked: the session is interrupted until the next begin", layer.number);
        }
        layer.step_mut()?;
        let Some(mut cache) = cache else { return Ok(Parked::default()) };
        if store.is_parked(layer.number) {
            if store.uncovered(layer.number, 0..kv_len)?.is_empty() {
                return Ok(Parked::default());
            }
            // Tokens were written in place since.
            layer.unpark(store, &mut cache)?;
        }
        if let Some(lossless) = &mut layer.lossless {
            lossless.restore(store, &mut cache, kv_len)?;
        }
        let parked = store.park(layer.number, cache.reborrow(), kv_len, packing, &self.interrupted)?;
        layer.see(&cache);
        Ok(parked)
    }

    /// Ends a [`Session::park`] or [`Session::save`] that runs on another thread, and refuses others until the next begin, or
    /// until it is called with false. Non-blocking.
    pub fn interrupt(&self, interrupted: bool) {
        self.interrupted.store(interrupted, Ordering::Relaxed);
    }
}

impl Layer {
    /// Writes the tokens of a parked layer back to its cache.
    pub(super) fn unpark(&mut self, store: &mut Store, cache: &mut Cache<'_>) -> Result<()> {
        if !store.is_parked(self.number) {
            // A layer that was loaded and emptied.
            self.value_scales = Vec::new();
            return Ok(());
        }
        let len = self.lengths().physical;
        if !self.value_scales.is_empty() {
            layout::scatter_scales(cache, cache.layout.range(0, len)?, &self.value_scales)?;
        }
        let unparked = store.unpark(self.number, cache.reborrow(), sys::cores() as usize);
        unparked.map_err(|error| error.within(format_args!("layer {}", self.number)))?;
        // Value sums of tokens that were edited meanwhile.
        store.take_edited(self.number);
        layout::mended(cache, cache.layout.range(0, len)?, len)?;
        // The buffers may have had other tokens, or have them still.
        tail::discard(cache, len)?;
        self.value_scales = Vec::new();
        Ok(())
    }
}
