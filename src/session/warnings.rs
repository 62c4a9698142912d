//! What a session warns of: its config, and the steps since.

use super::budget::Kept;
use super::layer::Layer;
use super::offload::Offload;
use super::quant::Raw;
use super::{Session, State, lossless};
use crate::status::Result;
use crate::sys::memory;

impl Session {
    /// The warnings about the config and about the steps since, one per line.
    pub fn warnings(&self) -> Result<String> {
        let state = self.state()?;
        let mut text = String::new();
        for warning in &self.warnings {
            line(&mut text, format_args!("{warning}"))?;
        }
        let unscored = |layer: &Layer| (layer.eviction.counts().unscored_plans > 0).then_some(());
        if let Some((number, (), count)) = first(&state.layers, unscored) {
            line(
                &mut text,
                format_args!(
                    "layer {number} ({count} in all) kept tokens that were due for eviction, since no scored row has \
                     seen them: the host must give the layer's block sums (in prompts: kv_h2o_prefill_queries), or \
                     kv_h2o_evict_unscored must be true"
                ),
            )?;
        }
        let too_long = |layer: &&Layer| layer.too_long_step > 0;
        if let Some((layer, (limit, most))) = state.layers.iter().find(too_long).and_then(|l| Some((l, l.limit()?))) {
            line(
                &mut text,
                format_args!(
                    "layer {}, and perhaps others, got {} tokens in a step: kv_h2o_max_tokens of {limit} can hold only for \
                     steps, and chunks of a prompt, of at most {most}",
                    layer.number, layer.too_long_step
                ),
            )?;
        }
        let poor = |layer: &Layer| layer.lossless.as_ref()?.counts().poor_ratio;
        if let Some((number, ratio, count)) = first(&state.layers, poor) {
            line(
                &mut text,
                format_args!(
                    "layer {number} ({count} in all) is not compressed until its reset: its quantised tokens became \
                     smaller by a ratio of {ratio:.3} only, below {}",
                    lossless::LEAST_RATIO
                ),
            )?;
        }
        let pages = |layer: &Layer| layer.lossless.as_ref()?.counts().page_tokens;
        if let Some((number, tokens, count)) = first(&state.layers, pages) {
            line(
                &mut text,
                format_args!(
                    "layer {number} ({count} in all) has V of {tokens} tokens in each page (flash_block, h_pack): tokens \
                     are compressed once all of their page are cold, others stay raw"
                ),
            )?;
        }
        let raw = |layer: &Layer| layer.quant.as_ref()?.raw();
        if let Some((number, why, count)) = first(&state.layers, raw) {
            let why = match why {
                Raw::Layout => "its cache is quantised by the host, or head_dim is no multiple of 8 up to 512",
                Raw::Error => "8 and 4 bits would be too far from its numbers",
            };
            line(&mut text, format_args!("layer {number} ({count} in all) stays raw until its reset: {why}"))?;
        }
        let drops = |layer: &Layer| layer.quant.as_ref().filter(|quant| quant.kept.drops()).map(drop);
        if let Some((number, (), count)) = first(&state.layers, drops) {
            let why = match &state.budget {
                None => "before the chat was saved: they are missing",
                Some(budget) => match &budget.offload {
                    Some(file) if file.failure().is_some() => {
                        "to hold the budget: kv_memory_file did not take all blocks (see its line)"
                    }
                    Some(_) => {
                        "to hold the budget: before the chat was saved, or since the sketches of blocks in kv_memory_file \
                         have no more room"
                    }
                    None => "to hold the budget: kv_memory_file would keep them",
                },
            };
            line(&mut text, format_args!("layer {number} ({count} in all) has dropped tokens {why}"))?;
        }
        state.budget_warnings(&mut text)?;
        Ok(text)
    }
}

impl State {
    /// What a budget has cost, and what has failed.
    fn budget_warnings(&self, text: &mut String) -> Result<()> {
        let Some(budget) = &self.budget else { return Ok(()) };
        let kept = || self.layers.iter().filter_map(|layer| Some(&layer.quant.as_ref()?.kept));
        // A layer that stays raw has a line of its own.
        let over = |layer: &Layer| {
            let quant = layer.quant.as_ref().filter(|quant| quant.kept.is_over() && quant.raw().is_none())?;
            Some((quant.unfit_tokens(), quant.is_short()))
        };
        if let Some((number, (unfit, is_short), count)) = first(&self.layers, over) {
            let layers = format_args!("layer {number} ({count} in all) takes more than its share of the budget");
            let blocks = "of its tokens stay raw, since 8 and 4 bits do not hold their blocks: a number is not finite, \
                          beyond f16 or far from the others";
            match (unfit, is_short) {
                (_, true) => line(text, format_args!("{layers}: memory to quantise its tokens was refused"))?,
                (0, false) => line(text, format_args!("{layers}: pinned tokens stay"))?,
                (unfit, false) => line(text, format_args!("{layers}: {unfit} {blocks}"))?,
            }
        }
        let lost: u64 = kept().map(Kept::loses).sum();
        if lost > 0 {
            let path = budget.offload.as_ref().map_or("", Offload::path);
            line(text, format_args!("kv_memory_file, {path}, was cut or changed: {lost} heads of blocks are lost"))?;
        }
        let failed = budget.offload.as_ref().and_then(Offload::failure);
        let failed = failed.or_else(|| kept().find_map(Kept::failure));
        failed.map_or(Ok(()), |error| line(text, format_args!("kv_memory_file: {error}")))
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
