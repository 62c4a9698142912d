//! Layers whose rows attend to the newest tokens alone: older ones go, at no loss.

use super::eviction::Eviction;
use super::layer::Layer;
use super::tier::Tier;
use super::tokens::{Tokens, stay_before};
use super::{Session, find};
use crate::attend::BLOCK;
use crate::layout::{Cache, Pair};
use crate::status::{Result, bail};
use crate::store::Store;
use crate::sys::memory;

/// How far the rows of a layer attend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// A row attends to so many tokens, its own included.
    pub(super) tokens: u32,
    /// The host may take back so many of the newest tokens: as many more are kept.
    pub(super) rollback: u32,
}

impl Window {
    /// The first position that rows behind a chat of this length may attend to. One token stays: MNN cannot go on from an empty
    /// cache whose K is INT8.
    fn first(&self, length: u32) -> u32 {
        length.saturating_sub(self.rollback).saturating_sub(self.tokens.max(2) - 1)
    }

    /// The most tokens between two steps: whole tiles and blocks leave.
    pub(super) fn most(&self) -> u32 {
        self.tokens.saturating_add(self.rollback).saturating_add(BLOCK as u32)
    }

    /// The first position that the next row behind a chat of this length attends to.
    pub(super) fn seen_from(&self, length: u32) -> u32 {
        length.saturating_sub(self.tokens - 1)
    }
}

impl Session {
    /// Rows of a layer, or of all, attend to the `tokens` newest tokens, their own included, from the next begin on; 0: to all. The
    /// host may take back `rollback` of the newest tokens.
    /// INVALID_ARGUMENT: if a layer is out of range or open, both together are above 2^31 - 1, or tokens have gone that a wider
    /// window would show.
    pub fn set_window(&self, layer: Option<u32>, tokens: u32, rollback: u32) -> Result<()> {
        let mut state = self.state()?;
        if tokens.checked_add(rollback).is_none_or(|all| all > i32::MAX as u32) {
            bail!(
                InvalidArgument,
                "window is {tokens} and rollback {rollback}; {} or less together expected",
                i32::MAX
            );
        }
        let window = (tokens > 0).then_some(Window { tokens, rollback });
        let layers = match layer {
            Some(layer) => std::slice::from_mut(find(&mut state.layers, layer)?),
            None => &mut state.layers[..],
        };
        for layer in &mut *layers {
            layer.check_closed(layer.lengths().physical)?;
            check_wider((layer.number, window), layer.tokens())?;
            let physical = layer.lengths().physical;
            if let (Some(eviction), None) = (&mut layer.set_aside, window) {
                // Rows that have attended so far were not scored.
                eviction.reset();
                eviction.reserve(physical)?;
            }
        }
        for layer in layers {
            layer.own_window = Some(window);
            layer.set_window(window);
        }
        Ok(())
    }
}

/// Adds to the line of what a session does the layers that have a window.
pub(super) fn describe(layers: &[Layer], text: &mut String) -> Result<()> {
    let windows = || layers.iter().filter_map(|layer| layer.window);
    let Some(most) = windows().map(|window| window.tokens).max() else { return Ok(()) };
    let (count, all) = (windows().count(), layers.len());
    let at_most = if windows().all(|window| window.tokens == most) { "" } else { "at most " };
    memory::append(
        text,
        format_args!("; {count} of {all} layers attend to the newest {at_most}{most} tokens, and keep no others"),
    )
}

/// INVALID_ARGUMENT: if tokens of a layer have gone that its window shows.
pub(super) fn check_wider((layer, window): (u32, Option<Window>), tokens: &Tokens) -> Result<()> {
    let first = window.map_or(0, |window| window.seen_from(tokens.lengths.logical));
    if first < tokens.passed {
        bail!(
            InvalidArgument,
            "layer {layer} has no tokens before position {}, which its window has left behind; a window that begins at {first} \
             needs them: reset the layer first",
            tokens.passed
        );
    }
    Ok(())
}

impl Layer {
    pub(super) fn set_window(&mut self, window: Option<Window>) {
        // It keeps what rows attend to, and no more.
        match (self.window, window) {
            (None, Some(_)) => {
                self.eviction.iter_mut().for_each(Eviction::reset);
                self.set_aside = self.eviction.take();
            }
            (Some(_), None) => self.eviction = self.set_aside.take(),
            _ => {}
        }
        self.window = window;
    }

    /// INVALID_ARGUMENT: if a row behind the tokens that stay would attend to some that the window has left behind.
    pub(super) fn check_rollback(&self, stays: &[Pair]) -> Result<()> {
        let (Some(window), passed) = (self.window, self.tokens().passed) else { return Ok(()) };
        let all: u32 = stays.iter().map(|range| range[1] as u32).sum();
        let gone = stay_before(stays, passed);
        if gone > window.seen_from(all) {
            bail!(
                InvalidArgument,
                "layer {} has a window of {} tokens, which has left those before position {passed} behind: of the {all} tokens \
                 that are to stay the next row attends to {} of them; the newest {} can be taken back, or all",
                self.number,
                window.tokens,
                gone - window.seen_from(all),
                window.seen_from(self.lengths().logical) - passed
            );
        }
        Ok(())
    }

    /// Lets tokens go that no later row attends to: whole raw tiles and whole blocks of them. On an error nothing has changed.
    pub(super) fn pass(&mut self, cache: &mut Cache<'_>, store: &mut Store, tier: Option<&mut Tier>) -> Result<()> {
        let Some(window) = self.window else { return Ok(()) };
        if self.quant.as_ref().is_some_and(|quant| quant.is_holding(self.tokens())) {
            return Ok(());
        }
        match self.tokens().behind(window.first(self.lengths().logical))? {
            Some(edit) => self.apply(edit, Some(cache), store, tier),
            None => Ok(()),
        }
    }
}
