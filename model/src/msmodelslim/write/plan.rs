//! The contents of a new directory, from its declarations.

use crate::json::Writer;
use crate::msmodelslim::tags::{self, Tag};
use crate::names::{Name, is_strange};
use crate::safetensors::FileDtype;
use mnnkv::status::{Result, bail, error};
use mnnkv::sys::memory;
use std::collections::HashSet;

/// Tensors in the order of their data, and the steps that fill them.
#[derive(Debug, Default)]
pub(super) struct WritePlan {
    pub(super) tensors: Vec<Planned>,
    pub(super) steps: Vec<Step>,
    names: HashSet<String>,
}

/// A new tensor.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) name: String,
    pub(super) tag: Tag,
    pub(super) dtype: FileDtype,
    pub(super) shape: Vec<u64>,
    pub(super) bytes: u64,
}

/// Contents of one step.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) name: String,
    pub(super) contents: Contents,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Contents {
    Tensor { bytes: u64 },
    Linear { n: usize, k: usize, group: usize },
    Kv { channels: usize },
}

impl Contents {
    /// The unit of its contents.
    pub(super) fn what(self) -> &'static str {
        match self {
            Contents::Tensor { .. } => "bytes",
            Contents::Linear { .. } => "rows",
            Contents::Kv { .. } => "KV scales",
        }
    }
}

/// A declared tensor.
struct Announced<'a> {
    name: Name<'a>,
    tag: Tag,
    dtype: FileDtype,
    shape: &'a [u64],
}

impl WritePlan {
    /// Adds tensors, all or none.
    fn add(&mut self, step: &str, contents: Contents, tensors: &[Announced<'_>]) -> Result<()> {
        let mut planned = Vec::new();
        let mut total = self.tensors.iter().map(|tensor| tensor.bytes).sum::<u64>();
        for Announced { name, tag, dtype, shape } in tensors {
            let name = memory::format(format_args!("{name}"))?;
            // Keys of a description without a dot belong to the model.
            if !name.contains('.') || is_strange(&name) {
                bail!(
                    InvalidArgument,
                    "{name:?} cannot be the name of a tensor; the name of a layer, a dot and a part expected"
                );
            }
            if self.names.contains(&name) {
                bail!(InvalidArgument, "tensor {name} was declared before");
            }
            let elements = shape.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim));
            let Some(bytes) = elements.and_then(|elements| dtype.bytes_of(elements)) else {
                bail!(InvalidArgument, "tensor {name}: shape {shape:?} of {} has no possible size", dtype.name());
            };
            total = (total.checked_add(bytes))
                .ok_or_else(|| error!(InvalidArgument, "{step}: all tensors together have more than 2^64 bytes"))?;
            let (shape, copy) = (memory::copied(shape)?, memory::text(&name)?);
            memory::push(&mut planned, (Planned { name, tag: *tag, dtype: *dtype, shape, bytes }, copy))?;
        }
        let step = Step { name: memory::text(step)?, contents };
        let count = planned.len();
        self.names.try_reserve(count).map_err(|_| memory::out_of_memory(count * size_of::<String>()))?;
        memory::reserve_amortized(&mut self.tensors, count)?;
        memory::push(&mut self.steps, step)?;
        for (tensor, name) in planned {
            #[expect(clippy::disallowed_methods, reason = "room is reserved above")]
            {
                self.names.insert(name);
                self.tensors.push(tensor);
            }
        }
        Ok(())
    }

    pub(super) fn tensor(&mut self, name: &str, tag: Tag, dtype: FileDtype, shape: &[u64]) -> Result<()> {
        let bytes = shape.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim));
        let bytes = bytes.and_then(|elements| dtype.bytes_of(elements)).unwrap_or(0);
        self.add(name, Contents::Tensor { bytes }, &[Announced { name: name.into(), tag, dtype, shape }])
    }

    /// `group`: columns per scale; 0 = all of a row.
    pub(super) fn linear(&mut self, name: &str, n: usize, k: usize, group: usize) -> Result<()> {
        let group = if group == 0 { k } else { group };
        if n == 0 || k == 0 || !k.is_multiple_of(group) {
            bail!(InvalidArgument, "linear {name} is {n} by {k}; columns in groups of {group} expected");
        }
        let (codes, scales) = ([n as u64, k as u64], [n as u64, (k / group) as u64]);
        let part = |part, dtype, shape| Announced { name: Name::of(name, part), tag: Tag::W8A16, dtype, shape };
        let tensors = [
            part("weight", FileDtype::I8, &codes[..]),
            part("weight_scale", FileDtype::F32, &scales),
            part("weight_offset", FileDtype::F32, &scales),
        ];
        self.add(name, Contents::Linear { n, k, group }, &tensors)
    }

    pub(super) fn kv(&mut self, prefix: &str, channels: usize) -> Result<()> {
        if channels == 0 {
            bail!(InvalidArgument, "{prefix}: KV scales of 0 channels; at least 1 expected");
        }
        let shape = [channels as u64];
        let tensors =
            ["k_proj.kv_cache_scale", "k_proj.kv_cache_offset", "v_proj.kv_cache_scale", "v_proj.kv_cache_offset"].map(
                |part| Announced { name: Name::of(prefix, part), tag: Tag::C8, dtype: FileDtype::F32, shape: &shape },
            );
        self.add(prefix, Contents::Kv { channels }, &tensors)
    }

    /// Numbers of the first tensors of parts. A part ends where the next tensor would bring it to `limit` bytes.
    pub(super) fn parts(&self, limit: u64) -> Result<Vec<usize>> {
        let mut begins = memory::filled(0, 1)?;
        let mut pending = 0u64;
        for (number, tensor) in self.tensors.iter().enumerate() {
            if limit > 0 && pending > 0 && pending.saturating_add(tensor.bytes) >= limit {
                memory::push(&mut begins, number)?;
                pending = 0;
            }
            pending += tensor.bytes;
        }
        Ok(begins)
    }

    pub(super) fn description(&self, group_size: usize) -> Result<String> {
        let tags = || self.tensors.iter().map(|tensor| tensor.tag);
        Writer::indented(|to| {
            to.object(|to| {
                to.field("model_quant_type", tags::label(tags()))?;
                to.field("version", "1.0.0")?;
                to.field("group_size", group_size)?;
                to.key("metadata")?.object(|_| Ok(()))?;
                to.key("optional")?.object(|_| Ok(()))?;
                if tags().any(|tag| tag == Tag::C8) {
                    to.field("kv_cache_type", "C8")?;
                    to.field("kv_quant_type", "C8")?;
                }
                self.tensors.iter().try_for_each(|tensor| to.field(&tensor.name, tensor.tag.word()))
            })
        })
    }
}
