//! Blocks of 64 tokens: their bytes, from rows to codes and back. docs/format.md has the format.
//!
//! One head takes [`Shape::lines`] lines of 64 bytes, and in k8v4 three more for each channel of K in 16 bits. Their number tells
//! the format. Blocks are the same bytes in memory and in files.

use super::widths::{HeadWidths, Widths};
use crate::arch;
use crate::arch::attend::encode::{self, KeyRanges, ValueScales, at_least};
use crate::arch::attend::lines::{WIDE_LINES, bytes, bytes_mut, shorts, shorts_mut, wides};
use crate::arch::attend::{BLOCK, HeadBlock, Keys, Line, MOST_DIMS, VALUE_GROUP, Wide, bits};
use crate::arch::estimates::{LANES, Shorts};
use crate::status::{Result, bail};
use crate::sys::memory;
use half::f16;
use std::fmt;

/// Lines of the scales and middles of V of all channels.
const ROTATED_SCALE_LINES: usize = 2 * size_of::<[Shorts; BLOCK / LANES]>() / size_of::<Line>();
/// Codes of K on either side of the middle.
const KEY_CODES: f32 = 127.0;
/// The same of a channel in 16 bits.
const WIDE_CODES: f32 = 32767.0;
/// A channel of K has 16 bits where its codes would be further from its numbers than those of a channel whose range is so
/// many times the median channel's magnitude ([`KeyRanges::size`]). Of the magnitude, since ranges of equal tokens are
/// small: theirs alone turn with the position.
const WIDE_RANGE: f32 = 24.0;
/// Most error of a group of V, as [`ValueScales::error`] has it. Of a bell curve it is 0.09, of a text whose tokens are all
/// equal up to 0.7 in some group of SmolLM2, and 0.9 and more where one channel hides the others.
const MOST_VALUE_ERROR: f32 = 0.7;

/// Most error of V in 4 bits and rotated, which is that of all channels: four times that of a bell curve.
const MOST_ROTATED_ERROR: f32 = 0.36;

/// The formats of a head of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// K in 8 bits, and V in 4.
    #[default]
    K8V4,
    /// K in 2, 4 or 6 bits by channel, and V in 4 bits and rotated.
    K4V4,
}

/// The sizes of a head of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Elements of K and of V of a token.
    pub dims: usize,
}

/// Why a block stays raw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// A number is not finite, or too large for f16.
    Range,
    /// Codes would be too far from the numbers, or take no less than these.
    Error,
}

/// The lines of one head of a block; none where the head is not there.
#[derive(Default)]
pub struct Codes(Vec<Line>);

/// The heads of a block. One after another is made in the same memory: codes of their own would leave holes in the heap, which
/// lists that stay keep apart.
#[derive(Debug, Default)]
pub struct Block(Vec<Codes>);

impl Shape {
    /// UNSUPPORTED: if `dims` is not a multiple of 8 up to [`MOST_DIMS`].
    pub fn new(dims: usize) -> Result<Self> {
        if dims == 0 || dims > MOST_DIMS || !dims.is_multiple_of(8) {
            bail!(Unsupported, "head_dim is {dims}; K in 8 bits and V in 4 take multiples of 8 up to {MOST_DIMS}");
        }
        Ok(Shape { dims })
    }

    /// Groups of V that share a scale.
    pub fn groups(self) -> usize {
        self.dims.div_ceil(VALUE_GROUP)
    }

    /// Channels in whole lanes.
    pub fn lanes(self) -> usize {
        self.dims.div_ceil(LANES)
    }

    fn key_lines(self) -> usize {
        self.dims
    }

    /// Lines of codes of K in k4v4: 4 bits in the mean, or what 73 lines for 64 channels leave beside the other parts, 9.1 bits for
    /// a number of K and one of V.
    pub(super) fn bit_lines(self) -> usize {
        let others = self.width_lines() + self.key_scale_lines() + self.value_lines() + ROTATED_SCALE_LINES;
        let left = (73 * self.dims / BLOCK).saturating_sub(others);
        left.clamp(self.dims / 2, 3 * self.dims / 4)
    }

    fn width_lines(self) -> usize {
        (self.dims / 4).div_ceil(size_of::<Line>())
    }

    fn value_lines(self) -> usize {
        self.groups() * BLOCK / 4
    }

    /// Lines of scales and middles of K.
    fn key_scale_lines(self) -> usize {
        (2 * self.lanes() * size_of::<Shorts>()).div_ceil(size_of::<Line>())
    }

    fn value_scale_lines(self) -> usize {
        2 * self.groups() * size_of::<[Shorts; BLOCK / LANES]>() / size_of::<Line>()
    }

    /// Lines of a head, those of channels in 16 bits aside.
    pub fn lines(self, format: Format) -> usize {
        let both = self.key_scale_lines() + self.value_lines();
        match format {
            Format::K8V4 => self.key_lines() + both + self.value_scale_lines(),
            Format::K4V4 => self.width_lines() + self.bit_lines() + both + ROTATED_SCALE_LINES,
        }
    }

    /// The format of a head of so many lines; `None` where it cannot have them.
    pub fn format_of(self, lines: usize) -> Option<Format> {
        if lines == self.lines(Format::K4V4) {
            return Some(Format::K4V4);
        }
        let wide = lines.checked_sub(self.lines(Format::K8V4))?;
        (wide <= self.dims * WIDE_LINES && wide.is_multiple_of(WIDE_LINES)).then_some(Format::K8V4)
    }

    /// Checks the lines of a head that came from a file.
    /// CORRUPT: if anything in them is out of range.
    pub fn check(self, lines: &[Line]) -> Result<()> {
        check(&self.view(self.parts(lines), &[]))
    }

    /// The lines that any head of the format has, and those of its channels in 16 bits.
    pub(super) fn parts(self, lines: &[Line]) -> (&[Line], &[Line]) {
        lines.split_at(lines.len().min(self.lines(Format::K8V4)))
    }

    /// A head's lines, which are whole, and those of its channels in 16 bits.
    pub(super) fn view<'a>(self, (lines, wide): (&'a [Line], &'a [Line]), next: &'a [Line]) -> HeadBlock<'a> {
        let (keys, scales, lines) = match lines.len() == self.lines(Format::K8V4) {
            true => {
                let (codes, rest) = lines.split_at(self.key_lines());
                let (scales, rest) = rest.split_at(self.key_scale_lines());
                (Keys::Bytes { codes, wide: wides(wide) }, scales, rest)
            }
            false => {
                let (widths, rest) = lines.split_at(self.width_lines());
                let (scales, rest) = rest.split_at(self.key_scale_lines());
                let (codes, rest) = rest.split_at(self.bit_lines());
                (Keys::Bits { widths: &bytes(widths)[..self.dims / 4], codes }, scales, rest)
            }
        };
        let (key_scales, key_mids) = shorts(scales).split_at(self.lanes());
        let (values, rest) = lines.split_at(self.value_lines());
        let (value_scales, value_mids) = shorts(rest).as_chunks().0.split_at(rest.len() / 4);
        HeadBlock { dims: self.dims, keys, key_scales, key_mids, values, value_scales, value_mids, next }
    }
}

impl fmt::Debug for Codes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Codes").field(&self.0.len()).finish()
    }
}

impl Codes {
    /// Takes the bytes of a file, which has none where the head is not there.
    /// CORRUPT: if they have the wrong length, or anything in them is out of range.
    pub fn read(&mut self, shape: Shape, from: &[u8]) -> Result<()> {
        let (len, lines) = (from.len(), from.len() / size_of::<Line>());
        self.0.clear();
        if len == 0 {
            return Ok(());
        }
        if !len.is_multiple_of(size_of::<Line>()) || shape.format_of(lines).is_none() {
            let [least, more] = [Format::K4V4, Format::K8V4].map(|format| shape.lines(format) * size_of::<Line>());
            bail!(
                Corrupt,
                "a head of a quantised block has {len} bytes; {least}, or {more} and up to {} times {} more expected",
                shape.dims,
                size_of::<Wide>()
            );
        }
        self.clear(lines)?;
        bytes_mut(&mut self.0).copy_from_slice(from);
        check(&self.view(shape))
    }

    /// Makes all of so many lines zero.
    fn clear(&mut self, lines: usize) -> Result<()> {
        memory::cleared(&mut self.0, lines)?;
        memory::resize(&mut self.0, lines)
    }

    /// A copy of lines that were checked.
    pub(super) fn copy_of(lines: &[Line]) -> Result<Self> {
        Ok(Codes(memory::copied(lines)?))
    }

    /// Its format; `None` where the head is not there.
    pub fn format(&self, shape: Shape) -> Option<Format> {
        shape.format_of(self.0.len())
    }

    /// See [`Shape::parts`].
    pub(super) fn parts(&self, shape: Shape) -> (&[Line], &[Line]) {
        shape.parts(&self.0)
    }

    /// The bytes, as a file has them.
    pub fn bytes(&self) -> &[u8] {
        bytes(&self.0)
    }

    /// For the kernels.
    pub fn view(&self, shape: Shape) -> HeadBlock<'_> {
        shape.view(self.parts(shape), &[])
    }
}

impl Block {
    /// The heads.
    pub fn heads(&self) -> &[Codes] {
        &self.0
    }

    /// Memory for so many heads.
    pub fn heads_mut(&mut self, heads: usize) -> Result<&mut [Codes]> {
        while self.0.len() < heads {
            memory::push(&mut self.0, Codes::default())?;
        }
        self.0.truncate(heads);
        Ok(&mut self.0)
    }

    /// Bytes of the codes of all heads.
    pub fn code_bytes(&self) -> usize {
        self.0.iter().map(|codes| codes.bytes().len()).sum()
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        let lines: usize = self.0.iter().map(|codes| codes.0.capacity()).sum();
        lines * size_of::<Line>() + self.0.capacity() * size_of::<Codes>()
    }

    /// Encodes one head after another; `read` writes the dense rows of a head, `[token][dim]`. Heads that fit k4v4 have it where
    /// there are `widths`, which take note of the block.
    /// On an error, or where the block is unfit, nothing of it is of use.
    pub fn encode(
        &mut self,
        shape: Shape,
        heads: usize,
        mut widths: Option<&mut Widths>,
        work: &mut EncodeWork,
        mut read: impl FnMut(usize, &mut [f32], &mut [f32]) -> Result<()>,
    ) -> Result<std::result::Result<(), Unfit>> {
        for (head, codes) in self.heads_mut(heads)?.iter_mut().enumerate() {
            let count = BLOCK * shape.dims;
            read(head, memory::at_least(&mut work.keys, count)?, memory::at_least(&mut work.values, count)?)?;
            if let Some(widths) = &mut widths {
                codes.clear(shape.lines(Format::K4V4))?;
                if encode_bits(shape, widths.head(shape, (head, heads))?, work, &mut codes.0)? {
                    continue;
                }
            }
            memory::cleared(&mut work.wide, shape.dims * WIDE_LINES)?;
            codes.clear(shape.lines(Format::K8V4))?;
            if let Err(unfit) = encode_bytes(shape, work, &mut codes.0)? {
                return Ok(Err(unfit));
            }
            memory::reserve(&mut codes.0, work.wide.len())?;
            memory::extend(&mut codes.0, &work.wide)?;
        }
        Ok(Ok(()))
    }
}

/// Working memory of [`Block::encode`].
#[derive(Debug, Default)]
pub struct EncodeWork {
    keys: Vec<f32>,
    values: Vec<f32>,
    padded: Vec<f32>,
    /// `[token / 16][dim][token % 16]`.
    panels: Vec<[f32; LANES]>,
    wide: Vec<Line>,
}

impl EncodeWork {
    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        let floats =
            self.keys.capacity() + self.values.capacity() + self.padded.capacity() + self.panels.capacity() * LANES;
        floats * size_of::<f32>() + self.wide.capacity() * size_of::<Line>()
    }
}

/// Working memory of [`Blocks::narrow`](super::Blocks::narrow).
#[derive(Debug, Default)]
pub struct NarrowWork {
    work: EncodeWork,
    /// Numbers of K and V, as kernels decode them.
    panels: [Vec<[f32; LANES]>; 2],
    codes: Codes,
}

impl NarrowWork {
    /// The numbers of a head's codes in k4v4; `None` where they do not fit.
    pub(super) fn encode(
        &mut self,
        shape: Shape,
        codes: &HeadBlock<'_>,
        widths: &mut HeadWidths,
    ) -> Result<Option<&[Line]>> {
        let (dims, NarrowWork { work, panels: [k, v], codes: narrowed }) = (shape.dims, self);
        memory::resize(k, BLOCK / LANES * dims)?;
        memory::resize(v, shape.groups() * 2 * BLOCK)?;
        (arch::attend_kernels().decode)(codes, k, v);
        from_panels(k, dims, memory::at_least(&mut work.keys, BLOCK * dims)?);
        for (token, row) in memory::at_least(&mut work.values, BLOCK * dims)?.chunks_exact_mut(dims).enumerate() {
            let lanes = v.iter().skip(token).step_by(BLOCK);
            row.chunks_mut(LANES).zip(lanes).for_each(|(to, lanes)| to.copy_from_slice(&lanes[..to.len()]));
        }
        narrowed.clear(shape.lines(Format::K4V4))?;
        Ok(encode_bits(shape, widths, work, &mut narrowed.0)?.then_some(&narrowed.0))
    }
}

/// Encodes rows `[token][dim]` of a head in k4v4; lines are zero. Returns whether the block fits.
fn encode_bits(shape: Shape, widths: &mut HeadWidths, work: &mut EncodeWork, lines: &mut [Line]) -> Result<bool> {
    let (width_lines, rest) = lines.split_at_mut(shape.width_lines());
    let (key_scales, rest) = rest.split_at_mut(shape.key_scale_lines());
    let (key_lines, rest) = rest.split_at_mut(shape.bit_lines());
    let (value_lines, value_scales) = rest.split_at_mut(shape.value_lines());
    let (scales, mids) = shorts_mut(key_scales).as_flattened_mut().split_at_mut(shape.lanes() * LANES);
    let kernels = arch::attend_kernels();
    let EncodeWork { keys, values, padded, panels, .. } = work;
    let rows = whole_rows(keys, shape.dims, LANES, padded)?;
    let (stride, [mut low, mut high, mut size]) = (rows.len() / BLOCK, [[0.0f32; MOST_DIMS]; 3]);
    let mut ranges = KeyRanges { low: &mut low[..stride], high: &mut high[..stride], size: &mut size[..stride] };
    if !(kernels.key_ranges)(rows, &mut ranges) || !widths.see(shape, &ranges) {
        return Ok(false);
    }
    let [mut inverse, mut middle] = [[0.0f32; MOST_DIMS]; 2];
    for (at, (channel, bits)) in widths.channels().enumerate() {
        let found = encode::middle_and_scale(low[channel], high[channel], (1 << (bits - 1)) as f32);
        let Some((mid, scale)) = found else { return Ok(false) };
        (middle[at], inverse[at]) = (mid.to_f32(), encode::inverse(scale));
        (scales[at], mids[at]) = (scale.to_le_bytes(), mid.to_le_bytes());
    }
    let panels = memory::at_least(panels, BLOCK / LANES * shape.dims)?;
    to_panels(keys, shape.dims, panels);
    (kernels.key_bits)(panels, &widths.plan(&middle[..shape.dims], &inverse[..shape.dims]), key_lines);
    to_panels(values, shape.dims, panels);
    let (scales, mids) = shorts_mut(value_scales).as_flattened_mut().split_at_mut(BLOCK);
    let mut out = ValueScales { scales, mids, error: 0.0 };
    let is_fit = (kernels.value_bits)(panels, value_lines, &mut out) && out.error <= MOST_ROTATED_ERROR;
    bytes_mut(width_lines)[..shape.dims / 4].copy_from_slice(widths.bytes());
    Ok(is_fit)
}

/// Rows `[token][dim]` to panels `[token / 16][dim][token % 16]`.
fn to_panels(rows: &[f32], dims: usize, panels: &mut [[f32; LANES]]) {
    for (rows, panel) in rows.chunks_exact(LANES * dims).zip(panels.chunks_exact_mut(dims)) {
        for (token, row) in rows.chunks_exact(dims).enumerate() {
            panel.iter_mut().zip(row).for_each(|(to, x)| to[token] = *x);
        }
    }
}

/// The same back.
pub(super) fn from_panels(panels: &[[f32; LANES]], dims: usize, rows: &mut [f32]) {
    for (panel, rows) in panels.chunks_exact(dims).zip(rows.chunks_exact_mut(LANES * dims)) {
        for (token, row) in rows.chunks_exact_mut(dims).enumerate() {
            row.iter_mut().zip(panel).for_each(|(x, lanes)| *x = lanes[token]);
        }
    }
}

/// Encodes rows `[token][dim]` of a head in k8v4; lines are zero. Channels in 16 bits go to `wide`, which has room.
fn encode_bytes(shape: Shape, work: &mut EncodeWork, lines: &mut [Line]) -> Result<std::result::Result<(), Unfit>> {
    let (key_lines, rest) = lines.split_at_mut(shape.key_lines());
    let (key_scales, rest) = rest.split_at_mut(shape.key_scale_lines());
    let (value_lines, value_scales) = rest.split_at_mut(shape.value_lines());
    let (scales, mids) = shorts_mut(key_scales).as_flattened_mut().split_at_mut(shape.lanes() * LANES);
    let EncodeWork { keys, values, padded, wide, .. } = work;
    let rows = whole_rows(keys, shape.dims, LANES, padded)?;
    if let Err(unfit) = encode_keys(shape.dims, rows, key_lines, scales, mids, wide) {
        return Ok(Err(unfit));
    }
    let (scales, mids) = shorts_mut(value_scales).as_flattened_mut().split_at_mut(shape.groups() * BLOCK);
    let rows = whole_rows(values, shape.dims, VALUE_GROUP, padded)?;
    let mut out = ValueScales { scales, mids, error: 0.0 };
    if !(arch::attend_kernels().value_codes)(rows, shape.groups(), value_lines, &mut out) {
        return Ok(Err(Unfit::Range));
    }
    let is_near = out.error <= MOST_VALUE_ERROR;
    // Codes behind the last channel are 0.
    let padding = shape.dims % VALUE_GROUP;
    if padding > 0 {
        for line in &mut value_lines[(shape.groups() - 1) * BLOCK / 4..] {
            for (channel, pairs) in line.0.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let mask = (u8::from(channel < padding) * 0x0F) | (u8::from(channel + LANES < padding) * 0xF0);
                pairs.iter_mut().for_each(|pair| *pair &= mask);
            }
        }
    }
    Ok(if is_near { Ok(()) } else { Err(Unfit::Error) })
}

/// Rows whose length is a multiple of `width`: the last number of a row is repeated.
fn whole_rows<'a>(rows: &'a [f32], dims: usize, width: usize, padded: &'a mut Vec<f32>) -> Result<&'a [f32]> {
    let whole = dims.next_multiple_of(width);
    if whole == dims {
        return Ok(&rows[..BLOCK * dims]);
    }
    let padded = memory::at_least(padded, BLOCK * whole)?;
    for (to, row) in padded.chunks_exact_mut(whole).zip(rows.chunks_exact(dims)) {
        let (to, padding) = to.split_at_mut(dims);
        to.copy_from_slice(row);
        padding.fill(row[dims - 1]);
    }
    Ok(padded)
}

/// Encodes K of rows in whole lanes.
fn encode_keys(
    dims: usize,
    rows: &[f32],
    lines: &mut [Line],
    scales: &mut [[u8; 2]],
    mids: &mut [[u8; 2]],
    wide: &mut Vec<Line>,
) -> std::result::Result<(), Unfit> {
    let (kernels, stride) = (arch::attend_kernels(), rows.len() / BLOCK);
    let [mut low, mut high, mut size, mut inverse, mut middle] = [[0.0f32; MOST_DIMS]; 5];
    let mut ranges = KeyRanges { low: &mut low[..stride], high: &mut high[..stride], size: &mut size[..stride] };
    if !(kernels.key_ranges)(rows, &mut ranges) {
        return Err(Unfit::Range);
    }
    let most_scale = median(&mut size[..dims]) * (WIDE_RANGE / KEY_CODES);
    let is_far = |scale: f16| scale.to_f32() > most_scale && most_scale > 0.0;
    for channel in 0..dims {
        let (low, high) = (low[channel], high[channel]);
        let mid = f16::from_f32(0.5 * low + 0.5 * high);
        mids[channel] = mid.to_le_bytes();
        middle[channel] = mid.to_f32();
        let half = (high - middle[channel]).max(middle[channel] - low);
        let mut scale = at_least(half / KEY_CODES).ok_or(Unfit::Range)?;
        if is_far(scale) {
            scale = f16::ZERO;
            let wide_scale = at_least(half / WIDE_CODES).ok_or(Unfit::Range)?;
            if is_far(wide_scale) {
                return Err(Unfit::Error);
            }
            let keys = rows.iter().skip(channel).step_by(stride).map(|x| x - middle[channel]);
            encode_wide(keys, channel, wide_scale, wide);
        }
        scales[channel] = scale.to_le_bytes();
        inverse[channel] = encode::inverse(scale);
    }
    (kernels.key_codes)(rows, &middle[..stride], &inverse[..stride], dims / 4, lines);
    Ok(())
}

/// The median of the numbers that are not 0, which are not negative; 0 without any.
fn median(numbers: &mut [f32]) -> f32 {
    let zeros = numbers.iter().filter(|x| **x == 0.0).count();
    let middle = (zeros + numbers.len()) / 2;
    if zeros == numbers.len() { 0.0 } else { *numbers.select_nth_unstable_by(middle, f32::total_cmp).1 }
}

/// Encodes a channel of K in 16 bits, whose numbers are less its middle.
fn encode_wide(keys: impl Iterator<Item = f32>, channel: usize, scale: f16, wide: &mut Vec<Line>) {
    let mut lines = [Line::default(); WIDE_LINES];
    let codes = keys.map(|x| (x / scale.to_f32()).round_ties_even());
    let bytes = bytes_mut(&mut lines);
    for (to, code) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
        *to = (code.clamp(-WIDE_CODES, WIDE_CODES) as i16).to_le_bytes();
    }
    bytes[2 * BLOCK..2 * BLOCK + 2].copy_from_slice(&(channel as u16).to_le_bytes());
    bytes[2 * BLOCK + 2..2 * BLOCK + 4].copy_from_slice(&scale.to_le_bytes());
    #[expect(clippy::disallowed_methods, reason = "the caller has reserved room for all channels in 16 bits")]
    wide.extend_from_slice(&lines);
}

/// CORRUPT: if a scale is negative or not finite, a channel in 16 bits does not exist or does not ascend, or widths are not those of
/// so many lines.
fn check(block: &HeadBlock) -> Result<()> {
    let halves =
        |shorts: &[Shorts]| shorts.iter().flatten().map(|bytes| f16::from_le_bytes(*bytes)).all(f16::is_finite);
    let signs = |shorts: &[Shorts]| shorts.iter().flatten().all(|bytes| bytes[1] & 0x80 == 0);
    let (scales, middles) = (block.value_scales.as_flattened(), block.value_mids.as_flattened());
    let lists = [
        (block.key_scales, "scale of K"),
        (block.key_mids, "middle of K"),
        (scales, "scale of V"),
        (middles, "middle of V"),
    ];
    if let Some((_, name)) = lists.into_iter().find(|(list, _)| !halves(list)) {
        bail!(Corrupt, "a {name} is not finite");
    }
    if let Some((_, name)) = [lists[0], lists[2]].into_iter().find(|(list, _)| !signs(list)) {
        bail!(Corrupt, "a {name} is negative");
    }
    let wide = match block.keys {
        Keys::Bytes { wide, .. } => wide,
        Keys::Bits { widths, codes } => {
            if bits::lines(widths) != Some(codes.len()) {
                let (dims, lines) = (block.dims, codes.len());
                bail!(
                    Corrupt,
                    "the widths of {dims} channels of K; 6, 4 or 2 of multiples of 4, in {lines} lines expected"
                );
            }
            &[]
        }
    };
    let mut next = 0;
    for wide in wide {
        let (channel, scale) = (usize::from(u16::from_le_bytes(wide.channel)), f16::from_le_bytes(wide.scale));
        if channel < next || channel >= block.dims || !scale.is_finite() || scale.is_sign_negative() {
            bail!(Corrupt, "channel {channel} in 16 bits, with a scale of {scale}; of {} channels", block.dims);
        }
        next = channel + 1;
    }
    Ok(())
}
