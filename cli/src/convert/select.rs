//! Which tensors of a checkpoint become which weights of the file, and whether they can be meant so.

use super::Arguments;
use super::checkpoint::Checkpoint;
use crate::failure::Failure;
use mnnkv_model::compressor::{LinearWeights, Weights};
use std::collections::BTreeSet;

/// What the places of MLPs in a file mean, by the ends of the usual names.
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

/// The weights as they go to the file, and the names of tensors that do not.
pub fn weights(checkpoint: &mut Checkpoint, arguments: &Arguments) -> Result<(Weights<'static>, Vec<String>), Failure> {
    let (prefixes, slots) = (&arguments.prefix_order, &arguments.slot_order);
    check_order(prefixes, slots)?;
    let path = checkpoint.path().to_owned();
    let layers = layers(checkpoint, prefixes)?;
    let ignored = left_out(checkpoint, prefixes, slots)?;
    let mut weights = Weights {
        dtype: arguments.dtype.dtype(),
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

/// An order that cannot be meant: a file has no names in it, so a wrong one would be computed with.
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

/// How many layers the chosen MLPs have.
fn layers(checkpoint: &Checkpoint, prefixes: &[String]) -> Result<u32, Failure> {
    let path = checkpoint.path();
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
        // As many as any model has, and far fewer than a number that someone made up would have us try.
        Some(layer) if layer < 10_000 => Ok(layer + 1),
        Some(layer) => Err(Failure(format!("{path}: there is a layer {layer}; fewer than 10,000 layers expected"))),
        None if found.is_empty() => {
            Err(Failure(format!("{path}: no tensor is named like {}.0.0.weight; this is no compressor", prefixes[0])))
        }
        None => Err(Failure(format!(
            "{path}: no tensor belongs to {}; the checkpoint has {found}, which --prefix-order can name",
            prefixes.join(",")
        ))),
    }
}

/// The tensors that no runtime reads. A linear layer of a chosen MLP is not among them: without it the MLP is another.
fn left_out(checkpoint: &Checkpoint, prefixes: &[String], slots: &[u32]) -> Result<Vec<String>, Failure> {
    let mut out: BTreeSet<String> = checkpoint.others().iter().cloned().collect();
    for text in checkpoint.names() {
        match Name::parse(text) {
            Some(name) if prefixes.iter().any(|p| p == name.prefix) => {
                if !slots.contains(&name.slot) {
                    return Err(Failure(format!(
                        "{}: {text} is a layer of an MLP at a place that is not in --slot-order ({slots:?}); without it \
                         the MLP would compute something else",
                        checkpoint.path()
                    )));
                }
                // A bias without its weight is found when the weight is read.
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
    let path = checkpoint.path().to_owned();
    let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
    let Some(shape) = checkpoint.shape(&weight) else {
        return Err(Failure(format!(
            "{path}: there is no {weight}; every chosen MLP needs all layers 0 to {} (--prefix-order and --slot-order \
             choose others)",
            layers - 1
        )));
    };
    let &[rows, cols] = shape else {
        return Err(Failure(format!("{path}: {weight} has the shape {shape:?}; [out, in] expected")));
    };
    let bias = match checkpoint.shape(&bias) {
        None => None,
        Some(shape) if shape.iter().product::<usize>() == rows => Some(checkpoint.values(&bias)?.into()),
        Some(shape) => {
            return Err(Failure(format!(
                "{path}: {bias} has the shape {shape:?}; [{rows}] expected, the rows of its weight"
            )));
        }
    };
    Ok(LinearWeights { rows, cols, weight: checkpoint.values(&weight)?.into(), bias })
}

/// Fills in what the flags leave open, and refuses what the shapes contradict.
fn infer_shape(weights: &mut Weights, path: &str) -> Result<(), Failure> {
    let [first, _, last, ..] = &weights.layers[0][..] else { unreachable!("each MLP has three layers") };
    let (rows, cols, out) = (first.rows, first.cols, last.rows);
    let head_dim = match weights.head_dim as usize {
        0 if rows != out => {
            return Err(Failure(format!(
                "{path}: the first layer has {rows} rows and the last {out}, so the length of a head's vectors cannot be \
                 taken from the first; --head-dim {out} says it"
            )));
        }
        0 => rows,
        given => given,
    };
    if head_dim != out {
        return Err(Failure(format!(
            "--head-dim is {head_dim}; the last layer has {out} rows, which must be the same"
        )));
    }
    if head_dim == 0 || !cols.is_multiple_of(head_dim) {
        return Err(Failure(format!(
            "{path}: the first layer has {cols} columns, which is no multiple of the head dimension {head_dim}"
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
