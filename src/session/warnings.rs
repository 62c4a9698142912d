//! What a session warns of: its config, and the steps since.

use super::budget::Ladder;
use super::layer::Layer;
use super::quant::WhyRaw;
use super::tier::Tier;
use super::{Session, State, lossless};
use crate::status::Result;
use crate::sys::memory;
use std::path::Path;

impl Session {
    /// The warnings about the config and about the steps since, one per line.
    pub fn warnings(&self) -> Result<String> {
        let state = self.state()?;
        self.warnings_of(&state)
    }

    /// As [`Session::warnings`], of a state that is locked.
    pub(super) fn warnings_of(&self, state: &State) -> Result<String> {
        let mut text = String::new();
        for warning in &self.warnings {
            line(&mut text, format_args!("{warning}"))?;
        }
        state.each_warning(&mut |_, warning| line(&mut text, warning))?;
        Ok(text)
    }
}

/// Takes the kind of a warning, and its line.
type Visit<'a> = dyn FnMut(u32, std::fmt::Arguments<'_>) -> Result<()> + 'a;

impl State {
    /// Which kinds of warnings there are about the steps so far: a bit for each.
    pub(super) fn warning_kinds(&self) -> u32 {
        let mut kinds = 0;
        let visited = self.each_warning(&mut |kind, _| {
            kinds |= 1 << kind;
            Ok(())
        });
        debug_assert!(visited.is_ok(), "only a visit fails");
        kinds
    }

    /// Calls `visit` with each warning about the steps so far.
    fn each_warning(&self, visit: &mut Visit<'_>) -> Result<()> {
        let unscored = |layer: &Layer| (layer.eviction.as_ref()?.counts().unscored_plans > 0).then_some(());
        if let Some((number, (), count)) = first(&self.layers, unscored) {
            visit(
                0,
                format_args!(
                    "layer {number} ({count} in all) kept tokens that were due for eviction, since no scored row has \
                     seen them: the host must give the layer's block sums (in prompts: kv_h2o_prefill_queries), or \
                     kv_h2o_evict_unscored must be true"
                ),
            )?;
        }
        let too_long = |layer: &&Layer| layer.too_long_step > 0;
        if let Some((layer, (limit, most))) = self.layers.iter().find(too_long).and_then(|l| Some((l, l.limit()?))) {
            visit(
                1,
                format_args!(
                    "layer {}, and perhaps others, got {} tokens in a step: kv_h2o_max_tokens of {limit} can hold only for \
                     steps, and chunks of a prompt, of at most {most}",
                    layer.number, layer.too_long_step
                ),
            )?;
        }
        let poor = |layer: &Layer| layer.lossless.as_ref()?.counts().poor_ratio;
        if let Some((number, ratio, count)) = first(&self.layers, poor) {
            visit(
                2,
                format_args!(
                    "layer {number} ({count} in all) is not compressed until its reset: its quantised tokens became \
                     smaller by a ratio of {ratio:.3} only, below {}",
                    lossless::LEAST_RATIO
                ),
            )?;
        }
        let pages = |layer: &Layer| layer.lossless.as_ref()?.counts().page_tokens;
        if let Some((number, tokens, count)) = first(&self.layers, pages) {
            visit(
                3,
                format_args!(
                    "layer {number} ({count} in all) has V of {tokens} tokens in each page (flash_block, h_pack): tokens \
                     are compressed once all of their page are cold, others stay raw"
                ),
            )?;
        }
        let raw = |layer: &Layer| layer.quant.as_ref()?.stays_raw();
        if let Some((number, why, count)) = first(&self.layers, raw) {
            let why = match why {
                WhyRaw::Layout => "its cache is quantised by the host, or head_dim is no multiple of 8 up to 512",
                WhyRaw::Error => "8 and 4 bits would be too far from its numbers",
            };
            visit(4, format_args!("layer {number} ({count} in all) stays raw until its reset: {why}"))?;
        }
        let drops = |layer: &Layer| layer.quant.as_ref().filter(|quant| quant.ladder.drops()).map(drop);
        if let Some((number, (), count)) = first(&self.layers, drops) {
            let why = match &self.budget {
                None => "before the chat was saved: they are missing",
                Some(_) => match &self.tier {
                    Some(file) if file.failure().is_some() => {
                        "to hold the budget: kv_memory_file did not take all blocks (see its line)"
                    }
                    Some(_) => {
                        "to hold the budget: before the chat was saved, or since the list of blocks in kv_memory_file has \
                         no more room"
                    }
                    None => "to hold the budget: kv_memory_file would keep them",
                },
            };
            visit(5, format_args!("layer {number} ({count} in all) has dropped tokens {why}"))?;
        }
        self.budget_warnings(visit)
    }

    /// What a budget has cost, and what has failed.
    fn budget_warnings(&self, visit: &mut Visit<'_>) -> Result<()> {
        let ladders = || self.layers.iter().filter_map(|layer| Some(&layer.quant.as_ref()?.ladder));
        // A layer that stays raw has a line of its own.
        let over = |layer: &Layer| {
            let quant = layer.quant.as_ref().filter(|quant| quant.ladder.is_over() && quant.stays_raw().is_none())?;
            Some((quant.unfit_tokens(layer.tokens()), quant.is_short()))
        };
        if let Some((number, (unfit, is_short), count)) = first(&self.layers, over) {
            let layers = format_args!("layer {number} ({count} in all) takes more than its share of the budget");
            let blocks = "of its tokens stay raw, since 8 and 4 bits do not hold their blocks: a number is not finite, \
                          beyond f16 or far from the others";
            match (unfit, is_short) {
                (_, true) => visit(6, format_args!("{layers}: memory to quantise its tokens was refused"))?,
                (0, false) => visit(7, format_args!("{layers}: pinned tokens stay"))?,
                (unfit, false) => visit(8, format_args!("{layers}: {unfit} {blocks}"))?,
            }
        }
        let lost: u64 = ladders().map(Ladder::loses).sum();
        if lost > 0 {
            let path = self.tier.as_ref().map_or(Path::new(""), Tier::path).display();
            visit(9, format_args!("kv_memory_file, {path}, was cut or changed: {lost} heads of blocks are lost"))?;
        }
        let failed = self.tier.as_ref().and_then(Tier::failure);
        let failed = failed.or_else(|| ladders().find_map(Ladder::failure));
        failed.map_or(Ok(()), |error| visit(10, format_args!("kv_memory_file: {error}")))
    }
}

/// The number of the first layer that has something, what it is, and how many layers have it.
fn first<T>(layers: &[Layer], of: impl Fn(&Layer) -> Option<T>) -> Option<(u32, T, usize)> {
    let (number, found) = layers.iter().find_map(|layer| Some((layer.number, of(layer)?)))?;
    Some((number, found, layers.iter().filter_map(of).count()))
}

/// Appends a line to a text that ends without a newline.
fn line(text: &mut String, line: std::fmt::Arguments<'_>) -> Result<()> {
    let end = if text.is_empty() { "" } else { "\n" };
    memory::append(text, format_args!("{end}{line}"))
}
