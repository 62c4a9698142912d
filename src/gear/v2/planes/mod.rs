//! Byte planes to bytes and back: units that are distributed alike are coded together.
//!
//! The input is `[plane][channel][row]`. A unit is a run of rows of one channel of one plane. Every unit belongs to a
//! group. A group has one payload, which holds its units one after another.

mod cluster;
mod flat;
mod group;
mod predict;
mod survey;

pub(super) use flat::{decode_flat, encode_flat};

use crate::bytes::{Reader, push_bytes, push_number};
use crate::gear::budget::held;
use crate::gear::codec::Context;
use crate::gear::options::Effort;
use crate::gear::zstd::{self, Search};
use crate::status::{Result, bail};
use crate::sys::memory;
use group::Coding;
use predict::Predictor;
use survey::Survey;

/// Group numbers are bytes.
const MAX_GROUPS: usize = 256;

/// The groups of coded units that all planes of a blob share at most, beside the one of noise.
const MAX_CODED_GROUPS: usize = 51;

/// The bytes of a group beside its codes: headers, and the description of the code.
const GROUP_BYTES: usize = 60;

/// The extents of the planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlaneShape {
    pub(super) planes: usize,
    pub(super) channels: usize,
    pub(super) rows: usize,
}

impl PlaneShape {
    /// Bytes in all; callers have them in memory.
    pub(super) fn len(&self) -> usize {
        self.planes * self.channels * self.rows
    }

    fn units(&self, unit_rows: usize) -> usize {
        self.planes * self.channels * self.rows.div_ceil(unit_rows)
    }
}

/// The position of a unit.
#[derive(Clone, Copy, Debug)]
struct Unit {
    /// The index of the first byte in the planes.
    at: usize,
    len: usize,
    /// The index of the first byte in its channel.
    row: usize,
    /// The channel before this one is its pair.
    odd: bool,
}

/// The rows of a unit. More units find more, and cost more: time to group them, and bytes for their group numbers.
fn unit_rows(shape: &PlaneShape, effort: Effort) -> usize {
    let units = if effort.get() <= 3 { 256 } else { 1536 };
    let rows = shape.channels * shape.rows / units;
    rows.next_power_of_two().clamp(128, cluster::MAX_UNIT)
}

/// Units shorter than this must be few: to group them takes more time and room than they are worth.
const LEAST_ROWS: usize = 64;
const FEW_UNITS: usize = 4096;

/// Whether the rows are too few to tell their channels apart.
pub(super) fn has_too_few_rows(shape: &PlaneShape) -> bool {
    shape.rows < LEAST_ROWS && shape.planes.saturating_mul(shape.channels) > FEW_UNITS
}

/// Calls `each` with every unit, in the order of the planes' bytes.
#[inline(always)]
fn for_units(shape: &PlaneShape, unit_rows: usize, mut each: impl FnMut(usize, Unit)) {
    let mut number = 0;
    for channel in 0..shape.planes * shape.channels {
        let odd = channel % shape.channels % 2 == 1;
        let mut row = 0;
        while row < shape.rows {
            let len = unit_rows.min(shape.rows - row);
            each(number, Unit { at: channel * shape.rows + row, len, row, odd });
            number += 1;
            row += len;
        }
    }
}

/// The units of one group, beside their distribution.
struct Group {
    /// No coding is tried.
    noise: bool,
    /// Bytes of all units.
    len: usize,
}

/// Working memory of [`Coder::encode`].
#[derive(Default)]
pub(super) struct Scratch {
    groups: Vec<Group>,
    /// The group of each unit.
    unit_groups: Vec<u8>,
    /// The channels of one plane that are not noise.
    channels: Vec<u32>,
}

impl Scratch {
    /// Bytes that are held.
    pub(super) fn held(&self) -> usize {
        held(&self.groups) + held(&self.unit_groups) + held(&self.channels)
    }
}

/// The length of a buffer for `len` bytes of planes, which also holds the code of any group.
pub(super) fn room(len: usize) -> usize {
    zstd::bound(len)
}

/// An encoder of planes, over working memory of the caller.
pub(super) struct Coder<'a> {
    pub(super) effort: Effort,
    pub(super) zstd: &'a mut zstd::Compressor,
    pub(super) scratch: &'a mut Scratch,
    pub(super) grouped: &'a mut Vec<u8>,
}

impl Coder<'_> {
    /// Appends planes to `out`. They are the start of `planes`, which has the length of [`room`] and is overwritten.
    pub(super) fn encode(&mut self, planes: &mut [u8], shape: &PlaneShape, out: &mut Vec<u8>) -> Result<()> {
        if shape.len() == 0 {
            return Ok(());
        }
        let unit_rows = unit_rows(shape, self.effort);
        find_groups(planes, shape, unit_rows, self.effort, self.scratch)?;
        let Scratch { groups, unit_groups, .. } = &*self.scratch;

        // Every unit goes to the end of its group.
        let mut ends = [0; MAX_GROUPS];
        let mut start = 0;
        for (end, group) in ends.iter_mut().zip(groups) {
            *end = start;
            start += group.len;
        }
        let grouped = memory::at_least(self.grouped, shape.len())?;
        for_units(shape, unit_rows, |number, unit| {
            let end = &mut ends[unit_groups[number] as usize];
            grouped[*end..*end + unit.len].copy_from_slice(&planes[unit.at..unit.at + unit.len]);
            *end += unit.len;
        });

        // The planes are not read any more.
        let payload = planes;
        memory::reserve(out, unit_groups.len() + shape.len() + 32 * groups.len())?;
        push_number(out, unit_rows as u64)?;
        push_number(out, groups.len() as u64)?;
        if groups.len() > 1 {
            let len = self.zstd.encode(unit_groups, Search::Level(1), payload)?;
            push_bytes(out, &payload[..len])?;
        }
        for (group, end) in groups.iter().zip(&ends) {
            let bytes = &grouped[end - group.len..*end];
            let len = if group.noise { bytes.len() } else { group::code(bytes, self.effort, self.zstd, payload)? };
            group::push(bytes, &payload[..len.min(bytes.len())], out)?;
        }
        Ok(())
    }
}

/// Fills in `scratch.groups` and `scratch.unit_groups`.
fn find_groups(
    planes: &[u8],
    shape: &PlaneShape,
    unit_rows: usize,
    effort: Effort,
    scratch: &mut Scratch,
) -> Result<()> {
    let Scratch { groups, unit_groups, channels } = scratch;
    let most = match effort.get() {
        1 => 4,
        2 | 3 => 8,
        4..=6 => 16,
        _ => 32,
    };
    let most = most.min(MAX_CODED_GROUPS / shape.planes);
    groups.clear();
    memory::resize(unit_groups, shape.units(unit_rows))?;
    let mut noise = None;

    let per_channel = shape.rows.div_ceil(unit_rows);
    for (plane, unit_groups) in unit_groups.chunks_exact_mut(per_channel * shape.channels).enumerate() {
        let Survey { counts, is_noise } = survey::survey(planes, shape, plane, effort)?;
        let bins = cluster::bins(&counts);
        memory::cleared(channels, shape.channels)?;
        for (channel, is_noise) in is_noise.iter().enumerate() {
            if !is_noise {
                memory::push(channels, channel as u32)?;
                continue;
            }
            // The noise of all planes is one group.
            let group = *noise.get_or_insert(groups.len());
            if group == groups.len() {
                memory::push(groups, Group { noise: true, len: 0 })?;
            }
            unit_groups[channel * per_channel..][..per_channel].fill(group as u8);
            groups[group].len += shape.rows;
        }
        // Units of the other channels, in the order of the plane.
        let unit = |number: usize| {
            let channel = channels[number / per_channel] as usize;
            let row = number % per_channel * unit_rows;
            let at = (plane * shape.channels + channel) * shape.rows + row;
            &planes[at..at + unit_rows.min(shape.rows - row)]
        };
        let first = groups.len();
        let mut lens = [0; MAX_GROUPS];
        let histogram = |number: usize| cluster::histogram(&bins, unit(number));
        let assign = |number: usize, group: usize| {
            let channel = channels[number / per_channel] as usize;
            unit_groups[channel * per_channel + number % per_channel] = (first + group) as u8;
            lens[group] += unit(number).len();
        };
        let count = match channels.len() * per_channel {
            0 => 0,
            units => cluster::cluster(units, histogram, most, GROUP_BYTES, assign)?,
        };
        for len in &lens[..count] {
            memory::push(groups, Group { noise: false, len: *len })?;
        }
    }
    Ok(())
}

/// Replaces `planes`, which has the length of `shape`, by the planes that [`Coder::encode`] wrote. `spare` is working
/// memory at least as long.
pub(super) fn decode(
    body: &mut Reader<'_>,
    shape: &PlaneShape,
    context: &mut Context<'_>,
    unit_groups: &mut Vec<u8>,
    planes: &mut [u8],
    mut spare: &mut [u8],
) -> Result<()> {
    if shape.len() == 0 {
        return Ok(());
    }
    let unit_rows = body.number_within(usize::MAX, "rows per unit")?;
    if unit_rows == 0 {
        bail!(Corrupt, "rows per unit is 0");
    }
    let unit_rows = unit_rows.min(shape.rows);
    let count = body.number_within(MAX_GROUPS, "number of groups")?;
    if count == 0 {
        bail!(Corrupt, "number of groups is 0");
    }
    if count == 1 {
        // Units lie in the order of the planes.
        let group = group::read(body, 0, shape.len())?;
        group.decode_into(context, planes)?;
        if group.predictor != Predictor::Raw {
            for_units(shape, unit_rows, |_, unit| predict::restore(group.predictor, planes, &unit, shape.rows));
        }
        return Ok(());
    }
    // No more units than bytes, so no more than the caller has room for.
    let unit_groups = context.budget.at_least(unit_groups, shape.units(unit_rows))?;
    context.unzstd(body.bytes("groups of the units")?, unit_groups)?;
    let lens = group_lens(shape, unit_rows, unit_groups);
    if let Some(beyond) = lens[count..].iter().position(|len| *len > 0) {
        bail!(Corrupt, "a unit is of group {}; there are {count}", count + beyond);
    }

    let mut groups: [(Predictor, &[u8]); MAX_GROUPS] = [(Predictor::Raw, &[]); MAX_GROUPS];
    for (number, len) in lens[..count].iter().enumerate() {
        let group = group::read(body, number, *len)?;
        let bytes = match group.coding {
            Coding::Raw => group.payload,
            Coding::Zstd => {
                let (target, rest) = spare.split_at_mut(*len);
                spare = rest;
                context.unzstd(group.payload, target)?;
                target
            }
        };
        groups[number] = (group.predictor, bytes);
    }
    for_units(shape, unit_rows, |number, unit| {
        let (predictor, bytes) = &mut groups[unit_groups[number] as usize];
        let (head, rest) = bytes.split_at(unit.len);
        match head {
            // A call takes longer than a byte.
            [byte] => planes[unit.at] = *byte,
            _ => planes[unit.at..unit.at + unit.len].copy_from_slice(head),
        }
        *bytes = rest;
        if *predictor != Predictor::Raw {
            predict::restore(*predictor, planes, &unit, shape.rows);
        }
    });
    Ok(())
}

/// The bytes of each group.
fn group_lens(shape: &PlaneShape, unit_rows: usize, unit_groups: &[u8]) -> [usize; MAX_GROUPS] {
    let mut lens = [0; MAX_GROUPS];
    // Counted with the full length for all units; the last one of a channel may be shorter.
    let excess = shape.rows.next_multiple_of(unit_rows) - shape.rows;
    for of_channel in unit_groups.chunks_exact(shape.rows.div_ceil(unit_rows)) {
        for group in of_channel {
            lens[*group as usize] += unit_rows;
        }
        if let Some(last) = of_channel.last() {
            lens[*last as usize] -= excess;
        }
    }
    lens
}
