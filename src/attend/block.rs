//! Blocks of 64 tokens: their bytes, from rows to codes and back. docs/format.md has the format.
//!
//! One head takes [`Shape::head_lines`] lines of 64 bytes, and three more for each channel of K in 16 bits. Blocks are the
//! same bytes in memory and in files.

use crate::arch::attend::lines::{WIDE_LINES, bytes, bytes_mut, shorts, shorts_mut, wides};
use crate::arch::attend::{BLOCK, HeadBlock, Line, MOST_DIMS, VALUE_GROUP, Wide};
use crate::arch::estimates::{LANES, Shorts};
use crate::status::{Result, bail};
use crate::sys::memory;
use half::f16;
use std::fmt;

/// Codes of K on either side of the middle.
const KEY_CODES: f32 = 127.0;
/// The same of a channel in 16 bits.
const WIDE_CODES: f32 = 32767.0;
/// Codes of V above the minimum.
const VALUE_CODES: f32 = 15.0;
/// A channel of K whose numbers are so many times the median channel's magnitude from their middle has 16 bits. Of the
/// magnitude, since ranges of equal tokens are small: theirs alone turn with the position.
const WIDE_RANGE: f32 = 8.0;
/// Most channels in 16 bits, one of so many.
const WIDE_SHARE: usize = 8;
/// Most error of V, as a share of its mean distance from the mean of its group. Of a bell curve it is 0.09, of equal tokens
/// up to 0.31, and 1 where one number of each group hides the others.
const MOST_VALUE_ERROR: f32 = 0.5;

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
    /// Codes would be too far from the numbers.
    Error,
}

/// The lines of a block's heads.
pub struct Block {
    lines: Vec<Line>,
    /// The line behind each head.
    ends: Vec<u32>,
}

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

    /// Lines of a head without channels in 16 bits.
    pub fn head_lines(self) -> usize {
        self.key_lines() + self.key_scale_lines() + self.value_lines() + self.value_scale_lines()
    }

    /// Most channels in 16 bits.
    pub fn most_wide(self) -> usize {
        self.dims / WIDE_SHARE
    }

    /// A head's lines, which are whole.
    fn view<'a>(self, lines: &'a [Line], next: &'a [Line]) -> HeadBlock<'a> {
        let (keys, rest) = lines.split_at(self.key_lines());
        let (key_scales, rest) = rest.split_at(self.key_scale_lines());
        let (values, rest) = rest.split_at(self.value_lines());
        let (value_scales, wide) = rest.split_at(self.value_scale_lines());
        let (key_scales, key_mids) = shorts(key_scales).split_at(self.lanes());
        let (value_scales, value_mins) = shorts(value_scales).as_chunks().0.split_at(self.groups());
        let wide = wides(wide);
        HeadBlock { dims: self.dims, keys, key_scales, key_mids, values, value_scales, value_mins, wide, next }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("heads", &self.heads()).field("bytes", &self.bytes()).finish()
    }
}

impl Block {
    /// Encodes one head after another; `read` writes the dense rows of a head, `[token][dim]`.
    /// On an error, or where the block is unfit, nothing is left of it.
    pub fn encode(
        shape: Shape,
        heads: usize,
        work: &mut EncodeWork,
        mut read: impl FnMut(usize, &mut [f32], &mut [f32]) -> Result<()>,
    ) -> Result<std::result::Result<Self, Unfit>> {
        let mut block = Block { lines: Vec::new(), ends: Vec::new() };
        memory::reserve(&mut block.ends, heads)?;
        memory::reserve(&mut block.lines, heads * shape.head_lines())?;
        for head in 0..heads {
            let count = BLOCK * shape.dims;
            let EncodeWork { keys, values, wide } = work;
            let (keys, values) = (memory::at_least(keys, count)?, memory::at_least(values, count)?);
            read(head, keys, values)?;
            let begin = block.lines.len();
            memory::resize(&mut block.lines, begin + shape.head_lines())?;
            memory::cleared(wide, shape.most_wide() * WIDE_LINES)?;
            if let Err(unfit) = encode_head(shape, keys, values, &mut block.lines[begin..], wide) {
                return Ok(Err(unfit));
            }
            memory::extend(&mut block.lines, wide)?;
            memory::push(&mut block.ends, block.lines.len() as u32)?;
        }
        if block.lines.len() > heads * shape.head_lines() {
            // Growth by channels in 16 bits may have doubled the room.
            block.lines = memory::copied(&block.lines)?;
        }
        Ok(Ok(block))
    }

    /// The block of bytes from a file: each head's.
    /// CORRUPT: if a head has the wrong length, or anything in it is out of range.
    pub fn of_bytes<'a>(shape: Shape, heads: impl Iterator<Item = &'a [u8]>) -> Result<Self> {
        let mut block = Block { lines: Vec::new(), ends: Vec::new() };
        for (at, bytes) in heads.enumerate() {
            let (lines, rest) = bytes.as_chunks::<{ size_of::<Line>() }>();
            let most = shape.head_lines() + shape.most_wide() * WIDE_LINES;
            let extra = lines.len().wrapping_sub(shape.head_lines());
            if !rest.is_empty()
                || lines.len() > most
                || !extra.is_multiple_of(WIDE_LINES)
                || lines.len() < shape.head_lines()
            {
                bail!(
                    Corrupt,
                    "head {at} of a quantised block has {} bytes; {} and up to {} times {} more expected",
                    bytes.len(),
                    shape.head_lines() * size_of::<Line>(),
                    shape.most_wide(),
                    size_of::<Wide>()
                );
            }
            memory::reserve(&mut block.lines, lines.len())?;
            let begin = block.lines.len();
            for line in lines {
                memory::push(&mut block.lines, Line(*line))?;
            }
            check(&shape.view(&block.lines[begin..], &[])).map_err(|error| error.within(format_args!("head {at}")))?;
            memory::push(&mut block.ends, block.lines.len() as u32)?;
        }
        Ok(block)
    }

    /// Heads of the block.
    pub fn heads(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.lines.capacity() * size_of::<Line>() + self.ends.capacity() * size_of::<u32>()
    }

    fn lines(&self, head: usize) -> &[Line] {
        let begin = head.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.lines[begin as usize..self.ends[head] as usize]
    }

    /// A head for the kernels, which fetch the next one meanwhile.
    pub fn head<'a>(&'a self, shape: Shape, head: usize, next: Option<(&'a Block, usize)>) -> HeadBlock<'a> {
        shape.view(self.lines(head), next.map_or(&[], |(block, head)| block.lines(head)))
    }

    /// The bytes of a head, as a file has them.
    pub fn head_bytes(&self, head: usize) -> &[u8] {
        bytes(self.lines(head))
    }
}

/// Working memory of [`Block::encode`].
#[derive(Debug, Default)]
pub struct EncodeWork {
    keys: Vec<f32>,
    values: Vec<f32>,
    wide: Vec<Line>,
}

/// Encodes rows `[token][dim]` of a head; lines are zero. Channels in 16 bits go to `wide`, which has room.
fn encode_head(
    shape: Shape,
    keys: &[f32],
    values: &[f32],
    lines: &mut [Line],
    wide: &mut Vec<Line>,
) -> std::result::Result<(), Unfit> {
    let (key_lines, rest) = lines.split_at_mut(shape.key_lines());
    let (key_scales, rest) = rest.split_at_mut(shape.key_scale_lines());
    let (value_lines, value_scales) = rest.split_at_mut(shape.value_lines());
    let (scales, mids) = shorts_mut(key_scales).as_flattened_mut().split_at_mut(shape.lanes() * LANES);
    encode_keys(shape.dims, keys, key_lines, scales, mids, wide)?;
    let (scales, mins) = shorts_mut(value_scales).as_flattened_mut().split_at_mut(shape.groups() * BLOCK);
    encode_values(shape.dims, values, value_lines, scales, mins)
}

fn encode_keys(
    dims: usize,
    keys: &[f32],
    lines: &mut [Line],
    scales: &mut [[u8; 2]],
    mids: &mut [[u8; 2]],
    wide: &mut Vec<Line>,
) -> std::result::Result<(), Unfit> {
    let (mut low, mut high) = ([f32::INFINITY; MOST_DIMS], [f32::NEG_INFINITY; MOST_DIMS]);
    let (mut inverse, mut middle, mut halves) = ([0.0f32; MOST_DIMS], [0.0f32; MOST_DIMS], [0.0f32; MOST_DIMS]);
    // NaN in a sum of magnitudes shows that one number is not finite.
    let mut sum = 0.0f32;
    for row in keys.chunks_exact(dims) {
        for ((x, low), high) in row.iter().zip(&mut low).zip(&mut high) {
            sum += x * 0.0;
            *low = if *x < *low { *x } else { *low };
            *high = if *x > *high { *x } else { *high };
        }
    }
    if sum != 0.0 {
        return Err(Unfit::Range);
    }
    for channel in 0..dims {
        let (low, high) = (low[channel], high[channel]);
        let mid = f16::from_f32(0.5 * low + 0.5 * high);
        mids[channel] = mid.to_le_bytes();
        middle[channel] = mid.to_f32();
        halves[channel] = (high - middle[channel]).max(middle[channel] - low);
    }
    let mut sorted = [0.0f32; MOST_DIMS];
    let sorted = &mut sorted[..dims];
    sorted.iter_mut().zip(low.iter().zip(&high)).for_each(|(most, (low, high))| *most = high.abs().max(low.abs()));
    sorted.sort_unstable_by(f32::total_cmp);
    let limit = sorted[dims / 2] * WIDE_RANGE;
    for channel in 0..dims {
        let half = halves[channel];
        let scale = if half > limit && limit > 0.0 {
            if wide.len() == dims / WIDE_SHARE * WIDE_LINES {
                return Err(Unfit::Error);
            }
            encode_wide(dims, keys, channel, half, middle[channel], wide)?;
            f16::ZERO
        } else {
            at_least(half / KEY_CODES).ok_or(Unfit::Range)?
        };
        scales[channel] = scale.to_le_bytes();
        inverse[channel] = if scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32() };
    }
    for (token, row) in keys.chunks_exact(dims).enumerate() {
        let lines = lines[token / LANES * dims / 4..].iter_mut();
        for (line, (at, row)) in lines.zip(row.as_chunks::<4>().0.iter().enumerate()) {
            let to = &mut line.0[token % LANES * 4..][..4];
            for (i, x) in row.iter().enumerate() {
                let channel = 4 * at + i;
                let code = ((x - middle[channel]) * inverse[channel]).round_ties_even();
                to[i] = (code.clamp(-KEY_CODES, KEY_CODES) + 128.0) as u8;
            }
        }
    }
    Ok(())
}

/// Encodes a channel of K in 16 bits.
fn encode_wide(
    dims: usize,
    keys: &[f32],
    channel: usize,
    half: f32,
    middle: f32,
    wide: &mut Vec<Line>,
) -> std::result::Result<(), Unfit> {
    let scale = at_least(half / WIDE_CODES).ok_or(Unfit::Range)?;
    let mut lines = [Line::default(); WIDE_LINES];
    let codes = keys.iter().skip(channel).step_by(dims).map(|x| ((x - middle) / scale.to_f32()).round_ties_even());
    let bytes = bytes_mut(&mut lines);
    for (to, code) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
        *to = (code.clamp(-WIDE_CODES, WIDE_CODES) as i16).to_le_bytes();
    }
    bytes[2 * BLOCK..2 * BLOCK + 2].copy_from_slice(&(channel as u16).to_le_bytes());
    bytes[2 * BLOCK + 2..2 * BLOCK + 4].copy_from_slice(&scale.to_le_bytes());
    #[expect(clippy::disallowed_methods, reason = "the caller has reserved room for all channels in 16 bits")]
    wide.extend_from_slice(&lines);
    Ok(())
}

fn encode_values(
    dims: usize,
    values: &[f32],
    lines: &mut [Line],
    scales: &mut [[u8; 2]],
    mins: &mut [[u8; 2]],
) -> std::result::Result<(), Unfit> {
    let (mut noise, mut spread) = (0.0f32, 0.0f32);
    for (token, row) in values.chunks_exact(dims).enumerate() {
        for (group, row) in row.chunks(VALUE_GROUP).enumerate() {
            let (mut low, mut high, mut sum) = (f32::INFINITY, f32::NEG_INFINITY, 0.0f32);
            for x in row {
                sum += x;
                low = if *x < low { *x } else { low };
                high = if *x > high { *x } else { high };
            }
            if !sum.is_finite() {
                return Err(Unfit::Range);
            }
            let min = at_most(low).ok_or(Unfit::Range)?;
            let scale = at_least((high - min.to_f32()) / VALUE_CODES).ok_or(Unfit::Range)?;
            let at = group * BLOCK + token;
            (scales[at], mins[at]) = (scale.to_le_bytes(), min.to_le_bytes());
            let (min, unit) = (min.to_f32(), scale.to_f32());
            let inverse = if unit > 0.0 { 1.0 / unit } else { 0.0 };
            // The spread of all but the least and the greatest, which alone may make the scale.
            let mean = (sum - low - high) / (row.len() - 2) as f32;
            spread -= (low - mean).abs() + (high - mean).abs();
            let lines = &mut lines[group * BLOCK / 4 + token / 4];
            for (channel, x) in row.iter().enumerate() {
                let code = ((x - min) * inverse).round_ties_even().clamp(0.0, VALUE_CODES);
                noise += (x - (min + unit * code)).abs();
                spread += (x - mean).abs();
                lines.0[channel % LANES * 4 + token % 4] |= (code as u8) << (channel / LANES * 4);
            }
        }
    }
    if noise > spread * MOST_VALUE_ERROR { Err(Unfit::Error) } else { Ok(()) }
}

/// The least f16 that is not below a number, which is not negative; `None` above all.
fn at_least(x: f32) -> Option<f16> {
    let near = f16::from_f32(x);
    let up = if near.to_f32() < x { f16::from_bits(near.to_bits() + 1) } else { near };
    up.is_finite().then_some(up)
}

/// The greatest f16 that is not above a number.
fn at_most(x: f32) -> Option<f16> {
    let near = f16::from_f32(x);
    let down = match near.to_bits() {
        _ if near.to_f32() <= x => near,
        0 => f16::from_bits(0x8001),
        bits if near.is_sign_negative() => f16::from_bits(bits + 1),
        bits => f16::from_bits(bits - 1),
    };
    down.is_finite().then_some(down)
}

/// CORRUPT: if a scale is negative or not finite, or a channel in 16 bits does not exist or does not ascend.
fn check(block: &HeadBlock) -> Result<()> {
    let halves =
        |shorts: &[Shorts]| shorts.iter().flatten().map(|bytes| f16::from_le_bytes(*bytes)).all(f16::is_finite);
    let signs = |shorts: &[Shorts]| shorts.iter().flatten().all(|bytes| bytes[1] & 0x80 == 0);
    let (scales, mins) = (block.value_scales.as_flattened(), block.value_mins.as_flattened());
    let lists = [
        (block.key_scales, "scale of K"),
        (block.key_mids, "middle of K"),
        (scales, "scale of V"),
        (mins, "minimum of V"),
    ];
    if let Some((_, name)) = lists.into_iter().find(|(list, _)| !halves(list)) {
        bail!(Corrupt, "a {name} is not finite");
    }
    if let Some((_, name)) = [lists[0], lists[2]].into_iter().find(|(list, _)| !signs(list)) {
        bail!(Corrupt, "a {name} is negative");
    }
    let mut next = 0;
    for wide in block.wide {
        let (channel, scale) = (usize::from(u16::from_le_bytes(wide.channel)), f16::from_le_bytes(wide.scale));
        if channel < next || channel >= block.dims || !scale.is_finite() || scale.is_sign_negative() {
            bail!(Corrupt, "channel {channel} in 16 bits, with a scale of {scale}; of {} channels", block.dims);
        }
        next = channel + 1;
    }
    Ok(())
}

/// Writes the numbers of a head's tokens to panels of 16: K as `[token / 16][dim][token % 16]`, and V as
/// `[dim / 16][token][dim % 16]`, in whole groups.
pub fn decode(block: &HeadBlock, keys: &mut [[f32; LANES]], values: &mut [[f32; LANES]]) {
    let (scales, mids) = (floats(block.key_scales), floats(block.key_mids));
    let dims = block.dims;
    for (lines, panel) in block.keys.chunks_exact(dims / 4).zip(keys.chunks_exact_mut(dims)) {
        for (at, (line, rows)) in lines.iter().zip(panel.as_chunks_mut::<4>().0).enumerate() {
            for (i, row) in rows.iter_mut().enumerate() {
                let (scale, mid) = (scales[4 * at + i], mids[4 * at + i]);
                for (x, codes) in row.iter_mut().zip(line.0.as_chunks::<4>().0) {
                    *x = (f32::from(codes[i]) - 128.0) * scale + mid;
                }
            }
        }
    }
    for wide in block.wide {
        let (channel, scale) = (usize::from(u16::from_le_bytes(wide.channel)), f16::from_le_bytes(wide.scale).to_f32());
        for (codes, panel) in wide.codes.iter().zip(keys.chunks_exact_mut(dims)) {
            for (x, code) in panel[channel].iter_mut().zip(codes) {
                *x = f32::from(i16::from_le_bytes(*code)) * scale + mids[channel];
            }
        }
    }
    let groups = block.values.chunks_exact(BLOCK / 4).zip(values.as_chunks_mut::<{ 2 * BLOCK }>().0);
    for ((lines, panels), (scales, mins)) in groups.zip(block.value_scales.iter().zip(block.value_mins)) {
        let (low, high) = panels.split_at_mut(BLOCK);
        let (scales, mins) = (scales.as_flattened(), mins.as_flattened());
        for (at, line) in lines.iter().enumerate() {
            for token in 4 * at..4 * at + 4 {
                let (scale, min) = (half(scales[token]), half(mins[token]));
                for channel in 0..LANES {
                    let pair = line.0[4 * channel + token % 4];
                    low[token][channel] = f32::from(pair & 15) * scale + min;
                    high[token][channel] = f32::from(pair >> 4) * scale + min;
                }
            }
        }
    }
}

fn half(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}

fn floats(shorts: &[Shorts]) -> [f32; MOST_DIMS] {
    let mut floats = [0.0; MOST_DIMS];
    floats.iter_mut().zip(shorts.as_flattened()).for_each(|(x, bytes)| *x = half(*bytes));
    floats
}
