//! Maps tensors of a checkpoint to weights of the file, and checks the mapping.

use super::Arguments;
use super::checkpoint::Checkpoint;
use crate::dtype;
use crate::failure::Failure;
use mnnkv_model::compressor::{LinearWeights, Weights};
use std::collections::BTreeSet;

/// Suffixes of the usual MLP names, in the order of the file.
const ROLES: [&str; 4] = ["_tk", "_tv", "_ik", "_iv"];

/// A tensor of the naming scheme `<prefix>.<layer>.<slot>.<weight or bias>`.
struct Name<'a> {
    prefix: &'a str,
    layer: u32,
    slot: u32,
}

impl<'a> Name<'a> {
    fn parse(name: &'a str) -> Option<Self> {
        let mut parts = name.rsplitn(4, '.');
        parts.next().filter(|kind| ["weight", "bias"].contains(kind))?;
        let slot = parts.next()?.parse().ok()?;
        let layer = parts.next()?.parse().ok()?;
        Some(Name { prefix: parts.next()?, layer, slot })
    }
}

/// The weights in the order of the file, and the names of the tensors that it leaves out.
pub fn weights(checkpoint: &mut Checkpoint, arguments: &Arguments) -> Result<(Weights<'static>, Vec<String>), Failure> {
    let (prefixes, slots) = (&arguments.prefix_order, &arguments.slot_order);
    check_order(prefixes, slots)?;
    let path = checkpoint.path.clone();
    let layers = layers(checkpoint, prefixes)?;
    let ignored = left_out(checkpoint, prefixes, slots)?;
    let mut weights = Weights {
        dtype: dtype::float(arguments.dtype).expect("floats only"),
        num_heads: arguments.num_heads,
        head_dim: arguments.head_dim,
        factor: arguments.compression_factor,
        min_seq_len: arguments.min_seq_len,
        layers: Vec::new(),
    };
    for layer in 0..layers {
        let mut linears = Vec::new();
        for prefix in prefixes {
            for slot in slots {
                linears.push(linear(checkpoint, &format!("{prefix}.{layer}.{slot}"), layers)?);
            }
        }
        weights.layers.push(linears);
    }
    infer_shape(&mut weights, &path)?;
    Ok((weights, ignored))
}

/// Refuses an impossible order. A file has no names, so a runtime cannot detect a wrong order.
fn check_order(prefixes: &[String], slots: &[u32]) -> Result<(), Failure> {
    if ![2, 4].contains(&prefixes.len()) {
        return Err(Failure(format!(
            "--prefix-order names {} MLPs; 2 (text keys and values) or 4 (image keys and values, too) expected",
            prefixes.len()
        )));
    }
    for (i, prefix) in prefixes.iter().enumerate() {
        if prefixes[..i].contains(prefix) {
            return Err(Failure(format!("--prefix-order names {prefix} twice")));
        }
        let role = ROLES.iter().position(|role| prefix.ends_with(role));
        if role.is_some_and(|role| role != i) {
            return Err(Failure(format!(
                "--prefix-order has {prefix} at place {}; the places of a file mean, in this order, text keys (tk), text \
                 values (tv), image keys (ik), image values (iv)",
                i + 1
            )));
        }
    }
    match slots {
        [a, b, c] if a < b && b < c => Ok(()),
        _ => Err(Failure(format!("--slot-order is {slots:?}; three places in ascending order expected"))),
    }
}

/// The number of layers of the chosen MLPs.
fn layers(checkpoint: &Checkpoint, prefixes: &[String]) -> Result<u32, Failure> {
    let path = &checkpoint.path;
    let mut last = None;
    let mut found = BTreeSet::new();
    for name in checkpoint.names().filter_map(Name::parse) {
        if prefixes.iter().any(|p| p == name.prefix) {
            last = last.max(Some(name.layer));
        }
        found.insert(name.prefix);
    }
    let found = found.into_iter().collect::<Vec<_>>().join(",");
    match last {
        // Above every model, and low enough to bound the loop for a forged number.
        Some(layer) if layer < 10_000 => Ok(layer + 1),
        Some(layer) => {
            Err(Failure(format!("{path}: a tensor has the layer number {layer}; fewer than 10,000 layers expected")))
        }
        None if found.is_empty() => Err(Failure(format!(
            "{path}: no tensor is named like {}.0.0.weight; this is not a compressor",
            prefixes[0]
        ))),
        None => Err(Failure(format!(
            "{path}: no tensor belongs to {}; the checkpoint has {found}, which --prefix-order can name",
            prefixes.join(",")
        ))),
    }
}

/// The tensors that no runtime reads. `Failure` if a linear layer of a chosen MLP would be left out.
fn left_out(checkpoint: &Checkpoint, prefixes: &[String], slots: &[u32]) -> Result<Vec<String>, Failure> {
    let mut out: BTreeSet<String> = checkpoint.others.iter().cloned().collect();
    for text in checkpoint.names() {
        match Name::parse(text) {
            Some(name) if prefixes.iter().any(|p| p == name.prefix) => {
                if !slots.contains(&name.slot) {
                    return Err(Failure(format!(
                        "{}: {text} is a layer of an MLP at a place that is not in --slot-order ({slots:?}); without it \
                         the MLP would have other results",
                        checkpoint.path
                    )));
                }
                // `linear` reports a bias without a weight.
            }
            Some(name) => drop(out.insert(format!("{}.*", name.prefix))),
            None => {
                let group = text.split('.').next().unwrap_or(text);
                out.insert(if group == text { text.to_owned() } else { format!("{group}.*") });
            }
        }
    }
    Ok(out.into_iter().collect())
}

/// One linear layer.
fn linear(checkpoint: &mut Checkpoint, name: &str, layers: u32) -> Result<LinearWeights<'static>, Failure> {
    let path = checkpoint.path.clone();
    let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
    let Some(shape) = checkpoint.shape(&weight) else {
        return Err(Failure(format!(
            "{path}: {weight} is missing; every chosen MLP needs all layers 0 to {} (--prefix-order and --slot-order \
             choose others)",
            layers - 1
        )));
    };
    let &[rows, cols] = shape else {
        return Err(Failure(format!("{path}: {weight} has the shape {shape:?}; [out, in] expected")));
    };
    let bias = match checkpoint.shape(&bias) {
        None => None,
        Some(shape) if shape.iter().try_fold(1usize, |all, dim| all.checked_mul(*dim)) == Some(rows) => {
            Some(checkpoint.values(&bias)?.into())
        }
        Some(shape) => {
            return Err(Failure(format!(
                "{path}: {bias} has the shape {shape:?}; [{rows}] expected, the rows of its weight"
            )));
        }
    };
    Ok(LinearWeights { rows, cols, weight: checkpoint.values(&weight)?.into(), bias })
}

/// Fills in missing flags from the shapes. `Failure` if flags and shapes disagree.
fn infer_shape(weights: &mut Weights, path: &str) -> Result<(), Failure> {
    let [first, _, last, ..] = &weights.layers[0][..] else { unreachable!("each MLP has three layers") };
    let (rows, cols, out) = (first.rows, first.cols, last.rows);
    let head_dim = match weights.head_dim as usize {
        0 if rows != out => {
            return Err(Failure(format!(
                "{path}: the first layer has {rows} rows and the last {out}, so the head dimension is \
                 ambiguous; --head-dim {out} sets it"
            )));
        }
        0 => rows,
        given => given,
    };
    if head_dim != out {
        return Err(Failure(format!("--head-dim is {head_dim}; the last layer has {out} rows, which must be equal")));
    }
    if head_dim == 0 || !cols.is_multiple_of(head_dim) {
        return Err(Failure(format!(
            "{path}: the first layer has {cols} columns, which is not a multiple of the head dimension {head_dim}"
        )));
    }
    let factor = cols / head_dim;
    if weights.factor != 0 && weights.factor as usize != factor {
        return Err(Failure(format!(
            "--compression-factor is {}; the first layer takes {cols} values, {factor} vectors of {head_dim}",
            weights.factor
        )));
    }
    let size = |n: usize| u32::try_from(n).map_err(|_| Failure(format!("{path}: the first layer is {rows} x {cols}")));
    (weights.head_dim, weights.factor) = (size(head_dim)?, size(factor)?);
    Ok(())
}
