//! Layers with numbers of their own: `per_layer_config`.

use super::super::shape::{Attention, Kv, Span};
use super::keys::Keys;
use super::kv::KV_HEADS;
use super::unread;
use mnnkv::json::Json;
use mnnkv::status::{Result, bail};
use mnnkv::sys::memory;

pub(super) const PER_LAYER: &str = "per_layer_config";

/// What a layer has instead of what the config says of all.
#[derive(Clone, Copy, Default)]
pub(super) struct Own {
    kv_heads: Option<u32>,
    head_dim: Option<u32>,
    span: Option<Span>,
}

impl Own {
    pub fn apply(self, attention: &mut Attention) {
        if let Kv::Heads { kv_heads, head_dim } = &mut attention.kv {
            *kv_heads = self.kv_heads.unwrap_or(*kv_heads);
            *head_dim = self.head_dim.unwrap_or(*head_dim);
        }
        attention.span = self.span.unwrap_or(attention.span);
    }
}

/// The numbers of each layer, none without `per_layer_config`. Its keys are layers, with zeros before them or none.
pub(super) fn of(text: &Keys, layers: u32) -> Result<Vec<Own>> {
    let Some(all) = text.inner(PER_LAYER)? else { return Ok(Vec::new()) };
    let mut own = memory::filled(Own::default(), layers as usize)?;
    for (name, value) in all.fields() {
        let number = name.parse().ok().filter(|_| name.bytes().all(|digit| digit.is_ascii_digit()));
        let Some(own) = number.and_then(|number: usize| own.get_mut(number)) else {
            bail!(InvalidArgument, "{} is no layer; a layer from 0 to {} expected", all.path(name), layers - 1);
        };
        if value.is_null() {
            continue;
        }
        let keys = all.within(name, value)?;
        if let Some((key, value)) = keys.fields().find(|(key, value)| is_other_rule(key, value)) {
            bail!(
                Unsupported,
                "{} is {value}: it may change what the layer keeps, which this version cannot size",
                keys.path(key)
            );
        }
        own.kv_heads = keys.number(&KV_HEADS, u32::MAX)?;
        own.head_dim = keys.number(&["head_dim"], u32::MAX)?;
        own.span = match keys.number(&["sliding_window"], u32::MAX)? {
            Some(window) => Some(Span::Sliding(window)),
            None => keys.has("sliding_window").then_some(Span::Full),
        };
    }
    Ok(own)
}

/// Whether a key of a layer may change its cache in a way that is not read. Query heads change nothing beside head_dim.
fn is_other_rule(key: &str, value: &Json) -> bool {
    const READ: [&str; 3] = ["head_dim", "sliding_window", "num_attention_heads"];
    let is_read = READ.contains(&key) || KV_HEADS.contains(&key);
    !is_read && (unread::is_about_the_cache(key, value) || key == "skip")
}
