//! Scales and offsets of KV caches in 8 bits.

use super::{FLOATS, Inspector, keep};
use crate::msmodelslim::config::AttentionConfig;
use crate::msmodelslim::finding::{FindingKind, Severity};
use crate::names::Name;
use mnnkv::status::{Error, Result};
use mnnkv::sys::memory;
use std::fmt;

/// The tensors of K or V of a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvSide {
    /// Name of the scales; empty if there are none.
    pub scale: String,
    /// Name of the offsets; `None` = all zero.
    pub offset: Option<String>,
    /// KV heads times head_dim, or 1 for one scale for all.
    pub channels: usize,
}

/// A layer with KV scales.
#[derive(Clone, Debug)]
pub struct KvLayer {
    /// Common prefix of the names: the attention module or its merged linear.
    pub prefix: String,
    /// The layer number: the first number in the prefix.
    pub layer: Option<u64>,
    /// Keys.
    pub key: KvSide,
    /// Values.
    pub value: KvSide,
    pub(in crate::msmodelslim) error: Option<Error>,
}

/// Type words for 8 bits with scale and offset.
const INT8: &[&str] = &["C8", "KV8"];

/// A parsed tensor name: prefix, whether K, whether a scale.
struct Role<'a> {
    prefix: &'a str,
    key: bool,
    scale: bool,
    /// Whether all readers of the format accept the name.
    regular: bool,
}

/// `None`: no KV tensor. `Some(None)`: one without K or V in its name.
fn role(name: &str) -> Option<Option<Role<'_>>> {
    let (module, suffix) = name.rsplit_once('.')?;
    let (scale, regular) = match suffix {
        "kv_cache_scale" => (true, true),
        "kv_cache_offset" => (false, true),
        // A misspelling in an example of the format's authors, and two names from its first description.
        "kv_cacahe_scale" => (true, false),
        "kv_offset" | "kv_scale_offset" | "kv_cacahe_offset" => (false, false),
        _ => return None,
    };
    let (prefix, key) = match (module.strip_suffix(".k_proj"), module.strip_suffix(".v_proj")) {
        (Some(prefix), _) => (prefix, true),
        (_, Some(prefix)) => (prefix, false),
        _ => return Some(None),
    };
    Some(Some(Role { prefix, key, scale, regular }))
}

impl Inspector<'_> {
    pub(super) fn kv(&mut self, config: &AttentionConfig) -> Result<Vec<KvLayer>> {
        let mut names = memory::collect(self.names().filter(|name| role(name).is_some()))?;
        names.sort_unstable();
        names.dedup();
        let mut layers = Vec::new();
        let mut prefixes = memory::collect(names.iter().filter_map(|name| Some(role(name)??.prefix)))?;
        prefixes.sort_unstable();
        prefixes.dedup();
        for prefix in prefixes {
            let layer = KvLayer {
                prefix: memory::text(prefix)?,
                layer: prefix.split('.').find_map(|part| part.parse().ok()),
                key: KvSide::default(),
                value: KvSide::default(),
                error: None,
            };
            memory::push(&mut layers, layer)?;
        }
        // Regular names first; others only fill gaps.
        for pass in [true, false] {
            for name in &names {
                match role(name) {
                    Some(Some(role)) if role.regular == pass => {
                        if let Some(layer) = Name::from(role.prefix).find(&layers, |layer| &layer.prefix) {
                            self.take(&mut layers[layer], name, &role)?;
                        }
                    }
                    Some(None) if pass && self.files.get(*name).is_some() => {
                        let text = format_args!("tensor {name} says neither k_proj nor v_proj");
                        self.findings.error(FindingKind::KvAlias, name, "", text)?;
                    }
                    _ => {}
                }
            }
        }
        let unsupported = self.kv_declaration(config, !names.is_empty())?;
        layers.sort_unstable_by(|a, b| (a.layer, &a.prefix).cmp(&(b.layer, &b.prefix)));
        for layer in &mut layers {
            self.error = layer.error.take();
            if let Some(error) = &unsupported {
                keep(&mut self.error, || Error::kept(error.status(), format_args!("{}", error.message())))?;
            }
            self.kv_side(&layer.prefix, &mut layer.key, "k_proj", config)?;
            self.kv_side(&layer.prefix, &mut layer.value, "v_proj", config)?;
            layer.error = self.error.take();
        }
        Ok(layers)
    }

    /// Adds a tensor to its layer.
    fn take(&mut self, layer: &mut KvLayer, name: &str, role: &Role) -> Result<()> {
        if self.files.get(name).is_none() {
            let text = format_args!("tensor {name} does not exist");
            keep(&mut layer.error, || Error::kept(FindingKind::MissingTensor.status(), text))?;
        }
        let side = if role.key { &mut layer.key } else { &mut layer.value };
        let taken = if role.scale { !side.scale.is_empty() } else { side.offset.is_some() };
        if taken {
            return Ok(());
        }
        if !role.regular {
            let what = if role.scale { "kv_cache_scale" } else { "kv_cache_offset" };
            let text = format_args!("tensor {name} is taken for {what}; other readers reject or ignore this name");
            self.findings.warn(FindingKind::KvAlias, name, "", text)?;
        }
        match role.scale {
            true => side.scale = memory::text(name)?,
            false => side.offset = Some(memory::text(name)?),
        }
        Ok(())
    }

    /// Compares the declared cache type with the scales. The error applies to every layer.
    fn kv_declaration(&mut self, config: &AttentionConfig, any: bool) -> Result<Option<Error>> {
        const KEY: &str = "kv_cache_type";
        let described = self.description.kv_cache_type.as_deref().map(|word| (word, self.description.file.as_str()));
        let (word, file) = match described.or(config.kv_quant_type.as_deref().map(|word| (word, "config.json"))) {
            Some((word, file)) => (Some(word), file),
            None => (None, self.description.file.as_str()),
        };
        let finding = match word {
            Some(word) if !INT8.contains(&word) => {
                let text = format_args!("{KEY} is {word:?}, which this library does not read; C8 expected");
                self.findings.error(FindingKind::UnsupportedQuantType, KEY, file, text)?
            }
            Some(word) if !any && !self.blind => {
                let text = format_args!("{KEY} is {word}; there are no KV scales and offsets");
                self.findings.error(FindingKind::KvIncomplete, KEY, file, text)?
            }
            None if any && self.described => {
                let text = format_args!("there are KV scales and no {KEY}; some readers ignore them then");
                self.findings.add(Severity::Warning, FindingKind::KvUndeclared, KEY, file, text)?
            }
            _ => return Ok(None),
        };
        (finding.severity == Severity::Error).then(|| finding.kept_error()).transpose()
    }

    fn kv_side(&mut self, prefix: &str, side: &mut KvSide, linear: &str, config: &AttentionConfig) -> Result<()> {
        let part = |part: &str| memory::format(format_args!("{linear}.{part}"));
        let [weight, scale, offset] = [part("weight")?, part("kv_cache_scale")?, part("kv_cache_offset")?];
        // Else the rows of the projection.
        let rows = || self.files.get(Name::of(prefix, &weight))?.tensor.shape.first().copied();
        let expected = config.channels.or_else(rows);
        let (scale_name, offset_name) = (Name::of(prefix, &scale), Name::of(prefix, &offset));
        let file = self.description.file.as_str();
        if side.scale.is_empty() {
            if self.blind || self.lost.contains(scale_name) {
                let text = format_args!("there is no tensor {scale_name}");
                return keep(&mut self.error, || Error::kept(FindingKind::MissingTensor.status(), text));
            }
            let text = format_args!("{prefix} has KV scales or offsets, and no tensor {scale_name}");
            let finding = self.findings.error(FindingKind::KvIncomplete, scale_name, file, text)?;
            return keep(&mut self.error, || finding.kept_error());
        }
        if side.offset.is_none() && !self.blind && !self.lost.contains(offset_name) {
            let text = format_args!("{prefix} has no tensor {offset_name}; zeros are taken");
            self.findings.warn(FindingKind::KvIncomplete, offset_name, file, text)?;
        }
        let Some(scale) = self.files.get(&side.scale) else { return Ok(()) };
        side.channels = usize::try_from(scale.tensor.elements()).unwrap_or(0);
        let offset = side.offset.as_ref().and_then(|offset| self.files.get(offset));
        for part in [Some(scale), offset].into_iter().flatten() {
            self.expect_dtype(part, FLOATS)?;
            let elements = part.tensor.elements();
            let fits = expected.is_none_or(|expected| elements == expected || elements == 1);
            if part.tensor.shape.len() > 2 || elements == 0 || !fits {
                self.wrong_shape(part, Channels(expected))?;
            } else if elements != scale.tensor.elements() {
                let expected = format_args!("{:?} as {} has", scale.tensor.shape, scale.tensor.name);
                self.wrong_shape(part, expected)?;
            }
        }
        Ok(())
    }
}

/// The legal shapes of scales for this number of channels.
struct Channels(Option<u64>);

impl fmt::Display for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(channels) => write!(f, "[{channels}], KV heads times head_dim, or [1]"),
            None => write!(f, "[channels], KV heads times head_dim, or [1]"),
        }
    }
}
