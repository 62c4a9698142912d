//! A report as JSON, with the names of its fields.

use super::report::{Group, SizeReport, Total};
use super::savings::Savings;
use super::shape::{Attention, Kv, LayerShape, Span};
use super::sizer::Bytes;
use mnnkv::json::Escaped;
use mnnkv::status::Result;
use mnnkv::sys::memory;
use std::fmt::{self, Display, Formatter};

impl SizeReport {
    /// The report as a JSON object. Fields that were not requested are absent.
    pub fn json(&self) -> Result<String> {
        memory::format(format_args!("{}", Shown(|f: &mut Formatter<'_>| report(f, self))))
    }
}

/// What a function writes.
struct Shown<F>(F);

impl<F: Fn(&mut Formatter<'_>) -> fmt::Result> Display for Shown<F> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0(f)
    }
}

/// Writes a field that is not the first, if it is present.
fn field(f: &mut Formatter<'_>, key: &str, value: Option<impl Display>) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(f, ",\"{key}\":{value}"))
}

/// Writes a list.
fn list<T>(
    f: &mut Formatter<'_>,
    key: &str,
    items: &[T],
    each: impl Fn(&mut Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    write!(f, ",\"{key}\":[")?;
    for (number, item) in items.iter().enumerate() {
        f.write_str(if number > 0 { "," } else { "" })?;
        each(f, item)?;
    }
    f.write_str("]")
}

fn report(f: &mut Formatter<'_>, report: &SizeReport) -> fmt::Result {
    let SizeReport { setup, layers, bytes_per_token, bytes_per_late_token, .. } = report;
    write!(f, "{{\"element\":\"{}\",\"ranks\":{},\"batch\":{}", setup.element.name(), setup.ranks, setup.batch)?;
    field(f, "model_type", report.model_type.as_deref().map(Escaped))?;
    field(f, "max_context", report.max_context)?;
    if let Some(mnn) = &setup.mnn {
        let ([key, value], mode, cpu) = (mnn.names(), mnn.mode.number(), mnn.cpu.name);
        let mnn = format_args!("\"key\":\"{key}\",\"value\":\"{value}\",\"cpu\":\"{cpu}\"");
        write!(f, ",\"mnn\":{{\"attention_mode\":{mode},{mnn}}}")?;
    }
    savings(f, &report.savings)?;
    list(f, "groups", &report.groups, group)?;
    write!(f, ",\"layers\":{layers},\"bytes_per_token\":{bytes_per_token}")?;
    write!(f, ",\"bytes_per_late_token\":{bytes_per_late_token}")?;
    list(f, "totals", &report.totals, total)?;
    for (key, longest) in [("longest", report.longest), ("longest_without_savings", report.longest_without_savings)] {
        if let Some(longest) = longest {
            let (tokens, bytes, bounded) = (longest.tokens, longest.bytes, longest.bounded);
            write!(f, ",\"{key}\":{{\"tokens\":{tokens},\"bytes\":{bytes},\"bounded\":{bounded}}}")?;
        }
    }
    list(f, "notes", &report.notes, |f, note| Escaped(note).fmt(f))?;
    f.write_str("}")
}

/// Ratios are finite: others are refused.
fn savings(f: &mut Formatter<'_>, savings: &Savings) -> fmt::Result {
    f.write_str(",\"savings\":{")?;
    if let Some(h2o) = &savings.h2o {
        let (first, protected, trigger) = (h2o.first_layer, h2o.protected_tokens, h2o.trigger_tokens);
        write!(f, "\"h2o\":{{\"ratio\":{:?},\"first_layer\":{first}", h2o.ratio)?;
        field(f, "last_layer", h2o.last_layer)?;
        write!(f, ",\"protected_tokens\":{protected},\"trigger_tokens\":{trigger}}}")?;
    }
    if let Some(lossless) = &savings.lossless {
        let (layers, h2o_layers, hot) = (lossless.front_layers, lossless.h2o_layers, lossless.hot_tokens);
        f.write_str(if savings.h2o.is_some() { "," } else { "" })?;
        write!(f, "\"lossless\":{{\"ratio\":{:?},\"front_layers\":{layers}", lossless.ratio)?;
        write!(f, ",\"h2o_layers\":{h2o_layers},\"hot_tokens\":{hot}}}")?;
    }
    f.write_str("}")
}

fn group(f: &mut Formatter<'_>, group: &Group) -> fmt::Result {
    match group.layer {
        LayerShape::Shared => f.write_str("{\"kind\":\"shared\"")?,
        LayerShape::Recurrent { state_elements } => {
            f.write_str("{\"kind\":\"recurrent\"")?;
            field(f, "state_elements", state_elements)?;
        }
        LayerShape::Attention(Attention { kv, span }) => {
            match span {
                Span::Full => f.write_str("{\"kind\":\"full\""),
                Span::Sliding(most) => write!(f, "{{\"kind\":\"sliding\",\"most_tokens\":{most}"),
                Span::Chunked(most) => write!(f, "{{\"kind\":\"chunked\",\"most_tokens\":{most}"),
            }?;
            match kv {
                Kv::Heads { kv_heads, head_dim } => {
                    write!(f, ",\"kv_heads\":{kv_heads},\"head_dim\":{head_dim}")
                }
                Kv::Latent { kv_lora_rank, qk_rope_head_dim } => {
                    write!(f, ",\"kv_lora_rank\":{kv_lora_rank},\"qk_rope_head_dim\":{qk_rope_head_dim}")
                }
            }?;
        }
    }
    write!(f, ",\"numbers\":{:?},\"layer_bytes_per_token\":{}}}", group.numbers, group.layer_bytes_per_token)
}

fn total(f: &mut Formatter<'_>, total: &Total) -> fmt::Result {
    write!(f, "{{\"context\":{}", total.context)?;
    bytes(f, "rank", &total.rank)?;
    bytes(f, "all_ranks", &total.all_ranks)?;
    f.write_str("}")
}

fn bytes(f: &mut Formatter<'_>, key: &str, bytes: &Bytes) -> fmt::Result {
    let Bytes { raw, after_h2o, after_lossless, peak } = bytes;
    write!(f, ",\"{key}\":{{\"raw\":{raw},\"after_h2o\":{after_h2o}")?;
    write!(f, ",\"after_lossless\":{after_lossless},\"peak\":{peak}}}")
}
