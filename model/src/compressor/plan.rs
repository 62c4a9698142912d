//! New lengths of caches.

use super::Compressor;
use mnnkv::status::{Result, bail};
use std::ops::Range;

/// The segments to compress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Segments {
    /// Text, and images where the file has networks for them.
    #[default]
    All,
    /// Text only.
    Text,
    /// Images only.
    Image,
}

/// Options of a compression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompressorOptions {
    /// Tokens that become one: the factor of the weights; 0 and 1 mean that, too.
    pub factor: u32,
    /// Groups that a segment must have to be compressed; 0 = the value of the file.
    pub min_seq_len: u32,
    /// Image tokens at the start of the cache; values above the length mean all.
    pub image_len: u32,
    /// Segments to compress.
    pub segments: Segments,
}

/// Neighbouring tokens of one kind: `groups * factor` compressed ones, then `rest` unchanged ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// First token.
    pub begin: usize,
    /// Compressed tokens.
    pub groups: usize,
    /// Unchanged tokens after the groups.
    pub rest: usize,
}

impl Segment {
    fn new(range: Range<usize>, factor: usize, least: usize, compressed: bool) -> Self {
        let groups = range.len() / factor;
        let groups = if compressed && groups >= least { groups } else { 0 };
        Segment { begin: range.start, groups, rest: range.len() - groups * factor }
    }

    /// Tokens after compression.
    pub fn new_len(&self) -> usize {
        self.groups + self.rest
    }
}

/// The lengths of a cache before and after compression, image first, then text. Equal for all layers and heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthPlan {
    pub(super) factor: usize,
    /// The image at the start.
    pub image: Segment,
    /// The text after it.
    pub text: Segment,
}

impl LengthPlan {
    /// Tokens before.
    pub fn len(&self) -> usize {
        [self.image, self.text].iter().map(|s| s.groups * self.factor + s.rest).sum()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens after.
    pub fn new_len(&self) -> usize {
        self.image.new_len() + self.text.new_len()
    }
}

impl Compressor {
    /// The plan of a cache of `len` tokens. INVALID_ARGUMENT: if the factor is not that of the weights. Without
    /// networks for images the image stays unchanged.
    pub fn plan(&self, len: usize, options: &CompressorOptions) -> Result<LengthPlan> {
        let CompressorOptions { factor, min_seq_len, image_len, segments } = *options;
        if factor > 1 && factor != self.header.factor {
            bail!(
                InvalidArgument,
                "factor is {factor}; the weights take {} tokens at once (0 means that)",
                self.header.factor
            );
        }
        let factor = self.header.factor as usize;
        let least = if min_seq_len == 0 { self.header.min_seq_len } else { min_seq_len } as usize;
        let border = len.min(image_len as usize);
        Ok(LengthPlan {
            factor,
            image: Segment::new(0..border, factor, least, self.has_image() && segments != Segments::Text),
            text: Segment::new(border..len, factor, least, segments != Segments::Image),
        })
    }
}
