//! Scales and offsets of KV caches in 8 bits.

use super::{FLOATS, Inspector};
use crate::model::msmodelslim::config::Config;
use crate::model::msmodelslim::finding::{Kind, Severity};
use crate::status::Error;
use std::collections::{BTreeMap, BTreeSet};

/// The tensors of K or V of a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvSide {
    /// Name of the scales, empty where there are none.
    pub scale: String,
    /// Name of the offsets; `None` is "all zero".
    pub offset: Option<String>,
    /// Channels: KV heads times elements of a head, or 1 for one scale for all.
    pub channels: usize,
}

/// A layer whose KV cache has scales.
#[derive(Clone, Debug)]
pub struct KvLayer {
    /// The names' common part: the attention module or its merged linear.
    pub prefix: String,
    /// The first number in the prefix, which counts the layers.
    pub layer: Option<u64>,
    /// Keys.
    pub key: KvSide,
    /// Values.
    pub value: KvSide,
    pub(in crate::model::msmodelslim) error: Option<Error>,
}

/// Type words that stand for 8 bits with scale and offset.
const INT8: &[&str] = &["C8", "KV8"];

/// What a name says about a tensor: whose, of keys, and whether it is a scale.
struct Role<'a> {
    prefix: &'a str,
    key: bool,
    scale: bool,
    /// Whether the name is one that readers of the format know.
    regular: bool,
}

/// `None`: no KV tensor. `Some(None)`: one that does not say whether it is K's or V's.
fn role(name: &str) -> Option<Option<Role<'_>>> {
    let (module, suffix) = name.rsplit_once('.')?;
    let (scale, regular) = match suffix {
        "kv_cache_scale" => (true, true),
        "kv_cache_offset" => (false, true),
        // A slip in an example of the format's authors, and two names from its first description.
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
    pub(super) fn kv(&mut self, config: &Config) -> Vec<KvLayer> {
        let mut layers = BTreeMap::<String, KvLayer>::new();
        let names = self.files.places.keys().chain(self.description.tags.keys());
        let names: BTreeSet<String> = names.filter(|name| role(name).is_some()).cloned().collect();
        let mut any = false;
        // Regular names first, so that others only fill gaps.
        for pass in [true, false] {
            for name in &names {
                let role = match role(name) {
                    Some(Some(role)) => role,
                    Some(None) if pass => {
                        any = true;
                        if self.files.get(name).is_some() {
                            let text = format!("tensor {name} says neither k_proj nor v_proj");
                            self.findings.error(Kind::KvAlias, name, text);
                        }
                        continue;
                    }
                    _ => continue,
                };
                any = true;
                if role.regular != pass {
                    continue;
                }
                let layer = layers.entry(role.prefix.to_owned()).or_insert_with(|| KvLayer {
                    prefix: role.prefix.to_owned(),
                    layer: role.prefix.split('.').find_map(|part| part.parse().ok()),
                    key: KvSide::default(),
                    value: KvSide::default(),
                    error: None,
                });
                if self.files.get(name).is_none() {
                    let text = format!("there is no tensor {name}");
                    layer.error.get_or_insert_with(|| Error::new(Kind::MissingTensor.status(), text));
                }
                let side = if role.key { &mut layer.key } else { &mut layer.value };
                let taken = if role.scale { !side.scale.is_empty() } else { side.offset.is_some() };
                if !pass && !taken {
                    let what = if role.scale { "kv_cache_scale" } else { "kv_cache_offset" };
                    let text = format!("tensor {name} is taken for {what}; other readers do not know this name");
                    self.findings.warn(Kind::KvAlias, name, text);
                }
                match role.scale {
                    _ if taken => {}
                    true => name.clone_into(&mut side.scale),
                    false => side.offset = Some(name.clone()),
                }
            }
        }
        let unsupported = self.kv_declaration(config, any);
        let mut layers: Vec<_> = layers.into_values().collect();
        layers.sort_by(|a, b| (a.layer, &a.prefix).cmp(&(b.layer, &b.prefix)));
        for layer in &mut layers {
            layer.error = layer.error.take().or_else(|| unsupported.clone());
            self.kv_layer(layer, config);
        }
        layers
    }

    /// Compares what the documents say of the KV cache with whether there are scales. The error is that of every layer.
    fn kv_declaration(&mut self, config: &Config, any: bool) -> Option<Error> {
        let described = self.description.kv_cache_type.as_deref().map(|word| (word, self.description.file.as_str()));
        let (word, file) = match described.or(config.kv_quant_type.as_deref().map(|word| (word, "config.json"))) {
            Some((word, file)) => (Some(word), file),
            None => (None, self.description.file.as_str()),
        };
        let finding = match word {
            Some(word) if !INT8.contains(&word) => {
                let text = format!("kv_cache_type is {word:?}, which this library does not read; C8 expected");
                self.findings.error(Kind::UnsupportedQuantType, "kv_cache_type", text)
            }
            Some(word) if !any && !self.blind => {
                let text = format!("kv_cache_type is {word}; there are no KV scales and offsets");
                self.findings.error(Kind::KvIncomplete, "kv_cache_type", text)
            }
            None if any && self.described => {
                let text = "there are KV scales and no kv_cache_type; some readers ignore them then".to_owned();
                self.findings.warn(Kind::KvUndeclared, "kv_cache_type", text)
            }
            _ => return None,
        };
        file.clone_into(&mut finding.file);
        (finding.severity == Severity::Error).then(|| finding.error())
    }

    /// KV heads times head_dim: from the config, else the rows of the linear that makes the keys or values.
    fn channels(&self, linear: &str, config: &Config) -> Option<u64> {
        let (heads, dim) = (config.shape.kv_heads, config.shape.head_dim);
        let rows = || self.files.get(&format!("{linear}.weight"))?.tensor.shape.first().copied();
        heads.zip(dim).and_then(|(heads, dim)| heads.checked_mul(dim)).or_else(rows)
    }

    fn kv_layer(&mut self, layer: &mut KvLayer, config: &Config) {
        let mut error = layer.error.take();
        let prefix = layer.prefix.clone();
        for (side, name) in [(&mut layer.key, "k_proj"), (&mut layer.value, "v_proj")] {
            let expected = self.channels(&format!("{prefix}.{name}"), config);
            let scale_name = format!("{prefix}.{name}.kv_cache_scale");
            let offset_name = format!("{prefix}.{name}.kv_cache_offset");
            if side.scale.is_empty() {
                if self.blind || self.lost.contains(&scale_name) {
                    error.get_or_insert_with(|| {
                        Error::new(Kind::MissingTensor.status(), format!("there is no tensor {scale_name}"))
                    });
                    continue;
                }
                let text = format!("{prefix} has KV scales or offsets, and no tensor {scale_name}");
                let finding = self.findings.error(Kind::KvIncomplete, &scale_name, text);
                self.description.file.clone_into(&mut finding.file);
                error.get_or_insert_with(|| finding.error());
                continue;
            }
            if side.offset.is_none() && !self.blind && !self.lost.contains(&offset_name) {
                let text = format!("{prefix} has no tensor {offset_name}; zeros are taken");
                let finding = self.findings.warn(Kind::KvIncomplete, &offset_name, text);
                self.description.file.clone_into(&mut finding.file);
            }
            let Some(scale) = self.files.get(&side.scale) else { continue };
            side.channels = usize::try_from(scale.tensor.elements()).unwrap_or(0);
            let offset = side.offset.as_ref().and_then(|offset| self.files.get(offset));
            for part in [Some(scale), offset].into_iter().flatten() {
                self.expect_dtype(part, FLOATS, &mut error);
                let elements = part.tensor.elements();
                let fits = expected.is_none_or(|expected| elements == expected || elements == 1);
                if part.tensor.shape.len() > 2 || elements == 0 || !fits {
                    let channels = expected.map_or("channels".to_owned(), |expected| expected.to_string());
                    self.wrong_shape(part, &format!("[{channels}], KV heads times head_dim, or [1]"), &mut error);
                } else if elements != scale.tensor.elements() {
                    let text = format!("{:?} as {} has", scale.tensor.shape, scale.tensor.name);
                    self.wrong_shape(part, &text, &mut error);
                }
            }
        }
        layer.error = error;
    }
}
