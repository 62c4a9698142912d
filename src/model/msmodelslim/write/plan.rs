//! What a directory will have, known before its contents.

use crate::model::msmodelslim::tags::{self, Tag};
use crate::model::safetensors::Dtype;
use crate::status::{Error, Result, Status, bail};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Tensors in the order of their data, and what brings their contents.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) tensors: Vec<Planned>,
    pub(super) steps: Vec<Step>,
    tags: BTreeMap<String, Tag>,
}

/// A tensor to be written.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<u64>,
    pub(super) bytes: u64,
}

/// Contents that come together.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Tensor { name: String, bytes: u64 },
    Linear { name: String, n: usize, k: usize, group: usize },
    Kv { prefix: String, channels: usize },
}

impl Step {
    pub(super) fn name(&self) -> &str {
        match self {
            Step::Tensor { name, .. } | Step::Linear { name, .. } => name,
            Step::Kv { prefix, .. } => prefix,
        }
    }

    /// How its contents are given.
    pub(super) fn what(&self) -> &'static str {
        match self {
            Step::Tensor { .. } => "bytes",
            Step::Linear { .. } => "rows",
            Step::Kv { .. } => "KV scales",
        }
    }
}

impl Plan {
    /// Adds tensors, all or none.
    fn add(&mut self, tensors: Vec<(String, Tag, Dtype, Vec<u64>)>, step: Step) -> Result<()> {
        let mut planned = Vec::new();
        for (name, tag, dtype, shape) in tensors {
            // Keys of a description without a dot are about the model.
            if !name.contains('.') {
                bail!(InvalidArgument, "{name:?} cannot be the name of a tensor; one with a dot expected");
            }
            if self.tags.contains_key(&name) {
                bail!(InvalidArgument, "tensor {name} was announced before");
            }
            let elements = shape.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim));
            let bytes = elements.and_then(|elements| dtype.bytes_of(elements)).ok_or_else(|| {
                let text = format!("tensor {name}: shape {shape:?} of {} has no possible size", dtype.name());
                Error::new(Status::InvalidArgument, text)
            })?;
            planned.push((Planned { name, dtype, shape, bytes }, tag));
        }
        let total = self.tensors.iter().chain(planned.iter().map(|(tensor, _)| tensor));
        if total.map(|tensor| tensor.bytes).try_fold(0u64, u64::checked_add).is_none() {
            bail!(InvalidArgument, "{}: all tensors together have more than 2^64 bytes", step.name());
        }
        for (tensor, tag) in planned {
            self.tags.insert(tensor.name.clone(), tag);
            self.tensors.push(tensor);
        }
        self.steps.push(step);
        Ok(())
    }

    pub(super) fn tensor(&mut self, name: &str, tag: Tag, dtype: Dtype, shape: &[u64]) -> Result<()> {
        let bytes = shape.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim));
        let bytes = bytes.and_then(|elements| dtype.bytes_of(elements)).unwrap_or(0);
        let step = Step::Tensor { name: name.to_owned(), bytes };
        self.add(vec![(name.to_owned(), tag, dtype, shape.to_vec())], step)
    }

    /// `group`: columns with one scale, 0 for all of a row.
    pub(super) fn linear(&mut self, name: &str, n: usize, k: usize, group: usize) -> Result<()> {
        let group = if group == 0 { k } else { group };
        if n == 0 || k == 0 || !k.is_multiple_of(group) {
            bail!(InvalidArgument, "linear {name} is {n} by {k}; columns in groups of {group} expected");
        }
        let part = |part: &str, dtype, columns: usize| {
            (format!("{name}.{part}"), Tag::W8A16, dtype, vec![n as u64, columns as u64])
        };
        let tensors = vec![
            part("weight", Dtype::I8, k),
            part("weight_scale", Dtype::F32, k / group),
            part("weight_offset", Dtype::F32, k / group),
        ];
        self.add(tensors, Step::Linear { name: name.to_owned(), n, k, group })
    }

    pub(super) fn kv(&mut self, prefix: &str, channels: usize) -> Result<()> {
        if channels == 0 {
            bail!(InvalidArgument, "{prefix}: KV scales of 0 channels; at least 1 expected");
        }
        let part = |part: &str| (format!("{prefix}.{part}"), Tag::C8, Dtype::F32, vec![channels as u64]);
        let tensors = vec![
            part("k_proj.kv_cache_scale"),
            part("k_proj.kv_cache_offset"),
            part("v_proj.kv_cache_scale"),
            part("v_proj.kv_cache_offset"),
        ];
        self.add(tensors, Step::Kv { prefix: prefix.to_owned(), channels })
    }

    /// Numbers of the tensors at which parts begin. A part ends where the next tensor would bring it to `limit` bytes.
    pub(super) fn parts(&self, limit: u64) -> Vec<usize> {
        let mut begins = vec![0];
        let mut pending = 0u64;
        for (number, tensor) in self.tensors.iter().enumerate() {
            if limit > 0 && pending > 0 && pending.saturating_add(tensor.bytes) >= limit {
                begins.push(number);
                pending = 0;
            }
            pending += tensor.bytes;
        }
        begins
    }

    pub(super) fn description(&self, group_size: usize) -> String {
        let mut keys = Map::new();
        for (name, tag) in &self.tags {
            keys.insert(name.clone(), tag.word().into());
        }
        keys.insert("model_quant_type".to_owned(), tags::label(self.tags.values().copied()).into());
        keys.insert("version".to_owned(), "1.0.0".into());
        keys.insert("group_size".to_owned(), group_size.into());
        keys.insert("metadata".to_owned(), json!({}));
        keys.insert("optional".to_owned(), json!({}));
        if self.steps.iter().any(|step| matches!(step, Step::Kv { .. })) || self.tags.values().any(|t| *t == Tag::C8) {
            keys.insert("kv_cache_type".to_owned(), "C8".into());
            keys.insert("kv_quant_type".to_owned(), "C8".into());
        }
        format!("{:#}", Value::Object(keys))
    }
}
