//! A report as JSON, with the names of its fields.

use super::budget::Longest;
use super::mnn::MnnCache;
use super::report::{Group, SizeReport, Total};
use super::savings::{H2o, Lossless, Savings};
use super::shape::{Attention, Kv, LayerShape, Span};
use super::sizer::Bytes;
use crate::json::{ToJson, Writer};
use mnnkv::status::Result;

impl SizeReport {
    /// The report as a JSON object. Fields that were not requested are absent.
    pub fn json(&self) -> Result<String> {
        Writer::compact(|to| self.write(to))
    }
}

/// Writes a field if it is present.
fn some(to: &mut Writer, key: &str, value: Option<impl ToJson>) -> Result<()> {
    value.map_or(Ok(()), |value| to.field(key, value))
}

impl ToJson for SizeReport {
    fn write(&self, to: &mut Writer) -> Result<()> {
        to.object(|to| {
            some(to, "model_type", self.model_type.as_ref())?;
            some(to, "max_context", self.max_context)?;
            to.field("element", self.setup.element.name())?;
            to.field("ranks", self.setup.ranks)?;
            to.field("batch", self.setup.batch)?;
            some(to, "mnn", self.setup.mnn)?;
            to.field("savings", self.savings)?;
            to.field("layers", self.layers)?;
            to.field("groups", &self.groups[..])?;
            to.field("bytes_per_token", self.bytes_per_token)?;
            to.field("bytes_per_late_token", self.bytes_per_late_token)?;
            to.field("c8_scale_bytes", self.c8_scale_bytes)?;
            to.field("totals", &self.totals[..])?;
            some(to, "longest", self.longest.as_ref())?;
            some(to, "longest_without_savings", self.longest_without_savings.as_ref())?;
            to.field("notes", &self.notes[..])
        })
    }
}

impl ToJson for MnnCache {
    fn write(&self, to: &mut Writer) -> Result<()> {
        let [key, value] = self.names();
        to.object(|to| {
            to.field("attention_mode", self.mode.number())?;
            to.field("key", key)?;
            to.field("value", value)?;
            to.field("cpu", self.cpu.name)
        })
    }
}

impl ToJson for Savings {
    fn write(&self, to: &mut Writer) -> Result<()> {
        to.object(|to| {
            some(to, "h2o", self.h2o.as_ref())?;
            to.field("c8", self.c8)?;
            some(to, "lossless", self.lossless.as_ref())
        })
    }
}

impl ToJson for H2o {
    fn write(&self, to: &mut Writer) -> Result<()> {
        to.object(|to| {
            to.field("ratio", self.ratio)?;
            to.field("first_layer", self.first_layer)?;
            some(to, "last_layer", self.last_layer)?;
            to.field("protected_tokens", self.protected_tokens)?;
            to.field("trigger_tokens", self.trigger_tokens)
        })
    }
}

impl ToJson for Lossless {
    fn write(&self, to: &mut Writer) -> Result<()> {
        to.object(|to| {
            to.field("ratio", self.ratio)?;
            to.field("front_layers", self.front_layers)?;
            to.field("h2o_layers", self.h2o_layers)?;
            to.field("hot_tokens", self.hot_tokens)
        })
    }
}

impl ToJson for Group {
    fn write(&self, to: &mut Writer) -> Result<()> {
        to.object(|to| {
            match self.layer {
                LayerShape::Shared => to.field("kind", "shared")?,
                LayerShape::Recurrent { state_elements } => {
                    to.field("kind", "recurrent")?;
                    some(to, "state_elements", state_elements)?;
                }
                LayerShape::Attention(Attention { kv, span }) => {
                    let (kind, most) = match span {
                        Span::Full => ("full", None),
                        Span::Sliding(window) => ("sliding", Some(window)),
                        Span::Chunked(chunk) => ("chunked", Some(chunk)),
                    };
                    to.field("kind", kind)?;
                    some(to, "most_tokens", most)?;
                    match kv {
                        Kv::Heads { kv_heads, head_dim } => {
                            to.field("kv_heads", kv_heads)?;
                            to.field("head_dim", head_dim)?;
                        }
                        Kv::Latent { kv_lora_rank, qk_rope_head_dim } => {
                            to.field("kv_lora_rank", kv_lora_rank)?;
                            to.field("qk_rope_head_dim", qk_rope_head_dim)?;
                        }
                    }
                }
            }
            to.field("numbers", &self.numbers[..])?;
            to.field("layer_bytes_per_token", self.layer_bytes_per_token)
        })
    }
}

impl ToJson for Bytes {
    fn write(&self, to: &mut Writer) -> Result<()> {
        to.object(|to| self.stages().into_iter().try_for_each(|(name, value)| to.field(name, value)))
    }
}

impl ToJson for Total {
    fn write(&self, to: &mut Writer) -> Result<()> {
        to.object(|to| {
            to.field("context", self.context)?;
            to.field("rank", self.rank)?;
            to.field("all_ranks", self.all_ranks)?;
            to.key("alone")?.object(|to| {
                some(to, "h2o", self.alone.h2o)?;
                some(to, "c8", self.alone.c8)?;
                some(to, "lossless", self.alone.lossless)
            })
        })
    }
}

impl ToJson for Longest {
    fn write(&self, to: &mut Writer) -> Result<()> {
        to.object(|to| {
            to.field("tokens", self.tokens)?;
            to.field("bytes", self.bytes)?;
            to.field("bounded", self.bounded)
        })
    }
}
