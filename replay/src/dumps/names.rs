//! Names of tensors in files of NumPy and safetensors, and the names of flat files.

use mnnkv::dtype::Dtype;

/// The job of a tensor in its layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Key,
    Value,
}

const KINDS: [(&str, Kind); 6] = [
    ("k", Kind::Key),
    ("key", Kind::Key),
    ("keys", Kind::Key),
    ("v", Kind::Value),
    ("value", Kind::Value),
    ("values", Kind::Value),
];

fn kind(word: &str) -> Option<Kind> {
    KINDS.iter().find(|(name, _)| *name == word).map(|(_, kind)| *kind)
}

/// The number at the beginning of `text`, and the rest.
fn number(text: &str) -> Option<(usize, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

fn layer(text: &str) -> Option<(u32, &str)> {
    let (layer, rest) = number(text)?;
    Some((layer.try_into().ok()?, rest))
}

/// Layer and kind of names such as `l0_k`, `layer_0_key`, `layers.0.key` and `model.layers.0.self_attn.k`.
pub(super) fn tensor(name: &str) -> Option<(u32, Kind)> {
    let separated = |text| -> Option<&str> { str::strip_prefix(text, ['.', '_']) };
    let after = |text, word| str::strip_prefix(text, word).and_then(separated);
    let rest = after(name, "model").unwrap_or(name);
    let rest = ["layers", "layer", "past_key_values", "l"].iter().find_map(|word| rest.strip_prefix(word))?;
    let (layer, rest) = layer(separated(rest).unwrap_or(rest))?;
    let rest = separated(rest)?;
    Some((layer, kind(after(rest, "self_attn").unwrap_or(rest))?))
}

/// Whether a file is of rows of Q or of attention, which a dump may have beside K and V.
pub(super) fn is_score(stem: &str) -> bool {
    stem.starts_with("attention_")
        || stem.contains("_q_")
        || ["_q", "_query", "_attention"].iter().any(|end| stem.ends_with(end))
}

/// A flat file, by its name.
#[derive(Debug, PartialEq)]
pub(super) struct Flat {
    pub(super) layer: u32,
    pub(super) kind: Kind,
    pub(super) shape: [usize; 3],
    pub(super) dtype: Dtype,
}

/// The types of flat files, by extension.
pub(super) const EXTENSIONS: [(&str, Dtype); 3] = [("f16", Dtype::F16), ("bf16", Dtype::Bf16), ("f32", Dtype::F32)];

/// Shape and type of names such as `l0_k_h2_t1088_d64.f16`.
pub(super) fn flat(name: &str) -> Option<Flat> {
    let (stem, extension) = name.rsplit_once('.')?;
    let (_, dtype) = *EXTENSIONS.iter().find(|(name, _)| *name == extension)?;
    let field = |part: &str, letter: char| match number(part.strip_prefix(letter)?)? {
        (n, "") => Some(n),
        _ => None,
    };
    let parts: Vec<&str> = stem.split('_').collect();
    let [at, word @ ("k" | "v"), heads, tokens, dims] = parts[..] else { return None };
    let (layer, "") = layer(at.strip_prefix('l')?)? else { return None };
    let shape = [field(heads, 'h')?, field(tokens, 't')?, field(dims, 'd')?];
    Some(Flat { layer, kind: kind(word)?, shape, dtype })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_layers_are_read_and_those_of_weights_are_not() {
        for name in [
            "l3_k",
            "layer_3_key",
            "layers.3.k",
            "layer3.keys",
            "model.layers.3.self_attn.k",
            "model_layers_3_self_attn_k",
        ] {
            assert_eq!(tensor(name), Some((3, Kind::Key)), "{name}");
        }
        assert_eq!(tensor("past_key_values.12.value"), Some((12, Kind::Value)));
        for name in ["", "l_k", "layers.0", "layers.0.self_attn.k_proj.weight", "layers.99999999999.k", "3_k"] {
            assert_eq!(tensor(name), None, "{name}");
        }
    }

    #[test]
    fn names_of_flat_files_hold_layer_kind_shape_and_type() {
        let file = flat("l10_v_h4_t64_d32.bf16").unwrap();
        assert_eq!(file, Flat { layer: 10, kind: Kind::Value, shape: [4, 64, 32], dtype: Dtype::Bf16 });
        for name in ["l0_k_h2_t8_d4", "l0_k_h2_t8_d4.f64", "l0_x_h2_t8_d4.f16", "l0_k_h-2_t8_d4.f16"] {
            assert_eq!(flat(name), None, "{name}");
        }
    }
}
