//! The tags of a description.

/// The quantisation of a tensor's layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tag {
    /// Not quantised.
    Float,
    /// 8-bit weights with scales and offsets of their own.
    W8A16,
    /// 8-bit weights, 8-bit inputs with one scale for all.
    W8A8,
    /// [`Tag::W8A8`] with sparse weights.
    W8A8S,
    /// 8-bit weights, inputs with a scale per token, which the file does not have.
    W8A8Dynamic,
    /// The parameters of [`Tag::W8A8`] and of [`Tag::W8A8Dynamic`] together.
    W8A8Mix,
    /// Scales and offsets of a KV cache in 8 bits.
    C8,
    /// A word of the format for an unsupported type.
    Other(&'static str),
}

/// Words of the format whose layers are listed, not read.
const OTHER: &[&str] = &[
    "W8A8SC",
    "W8A8_TIMESTEP",
    "W4A16",
    "W4A8_DYNAMIC",
    "W4A4_DYNAMIC",
    "W4A4_FLATQUANT_DYNAMIC",
    "W16A16S",
    "W16A16SC",
    "NF4",
    "FAQuant",
    "WFP8AFP8_DYNAMIC",
    "W8A8_MXFP8",
    "W4A8_MXFP",
    "W4A4_MXFP4",
    "W4A4_MXFP4_DUALSCALE",
    "W4A4_MXFP4_SVD",
    "UNKNOWN",
];

/// Tags and their words.
const WORDS: [(Tag, &str); 7] = [
    (Tag::Float, "FLOAT"),
    (Tag::W8A16, "W8A16"),
    (Tag::W8A8, "W8A8"),
    (Tag::W8A8S, "W8A8S"),
    (Tag::W8A8Dynamic, "W8A8_DYNAMIC"),
    (Tag::W8A8Mix, "W8A8_MIX"),
    (Tag::C8, "C8"),
];

impl Tag {
    /// The tag with this word.
    pub fn from_word(word: &str) -> Option<Tag> {
        if let Some((tag, _)) = WORDS.iter().find(|(_, known)| *known == word) {
            return Some(*tag);
        }
        Some(Tag::Other(match word {
            _ if word.contains("_FLATQUANT") => "W4A4_FLATQUANT_DYNAMIC",
            _ if word.ends_with("_SVD") => "W4A4_MXFP4_SVD",
            _ => OTHER.iter().find(|other| **other == word)?,
        }))
    }

    /// The word in a description.
    pub fn word(self) -> &'static str {
        match self {
            Tag::Other(word) => word,
            tag => WORDS.iter().find(|(known, _)| *known == tag).map_or("", |(_, word)| word),
        }
    }

    /// Whether linears of this tag can be dequantised: 8-bit weights with scales.
    pub fn is_int8(self) -> bool {
        matches!(self, Tag::W8A16 | Tag::W8A8 | Tag::W8A8S | Tag::W8A8Dynamic | Tag::W8A8Mix)
    }

    /// Whether the file has input parameters: input_scale, input_offset, deq_scale and quant_bias.
    pub fn has_static_input(self) -> bool {
        matches!(self, Tag::W8A8 | Tag::W8A8S | Tag::W8A8Mix)
    }

    /// Whether the weights require weight_scale.
    pub fn needs_weight_scale(self) -> bool {
        matches!(self, Tag::W8A16 | Tag::W8A8Dynamic | Tag::W8A8Mix)
    }
}
