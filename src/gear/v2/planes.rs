//! Byte planes, channel by channel, to bytes: units that are distributed alike are coded together.
//!
//! The input is `[plane][channel][row]`. A unit is a run of rows of one channel of one plane. Every unit belongs to a
//! group; a group has one predictor and one payload, which holds its units one after another.

use super::cluster;
use super::container::{Reader, push_bytes, push_number};
use super::predict::{self, Predictor, Unit};
use super::survey::survey;
use crate::arch;
use crate::gear::budget::held;
use crate::gear::codec::Context;
use crate::gear::options::{Effort, Predictors};
use crate::gear::zstd::{self, Search};
use crate::gear::{entropy, matches};
use crate::status::{Result, bail};
use crate::sys::memory;

/// What to try.
#[derive(Clone, Copy)]
pub(super) struct Options {
    pub(super) predictors: Predictors,
    pub(super) effort: Effort,
}

/// Group numbers are bytes.
const MAX_GROUPS: usize = 256;

/// What a group costs beside its codes: headers, and the description of the code.
const GROUP_BYTES: usize = 60;

/// How a group's payload is coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Coding {
    /// As it is.
    Raw = 0,
    /// One ZSTD frame.
    Zstd = 1,
}

/// The extents of the planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) planes: usize,
    pub(super) channels: usize,
    pub(super) rows: usize,
}

impl Shape {
    /// Bytes in all; callers have them in memory.
    pub(super) fn len(&self) -> usize {
        self.planes * self.channels * self.rows
    }

    fn units(&self, unit_rows: usize) -> usize {
        self.planes * self.channels * self.rows.div_ceil(unit_rows)
    }
}

/// More units find more, and cost more: in time to group them and in bytes to say how they were grouped.
fn unit_rows(shape: &Shape, effort: Effort) -> usize {
    let units = if effort.get() <= 3 { 256 } else { 1536 };
    let rows = shape.channels * shape.rows / units;
    rows.next_power_of_two().clamp(128, cluster::MAX_UNIT)
}

/// Units shorter than this must be few: grouping them takes more time and room than they are worth.
const LEAST_ROWS: usize = 64;
const FEW_UNITS: usize = 4096;

/// Whether rows of so many channels are too few to be told apart by channel.
pub(super) fn has_too_few_rows(shape: &Shape) -> bool {
    shape.rows < LEAST_ROWS && shape.planes.saturating_mul(shape.channels) > FEW_UNITS
}

/// Calls `each` with every unit, in the order of the planes' bytes, until one fails.
#[inline(always)]
fn for_units(shape: &Shape, unit_rows: usize, mut each: impl FnMut(usize, Unit) -> Result<()>) -> Result<()> {
    let mut number = 0;
    for lane in 0..shape.planes * shape.channels {
        let odd = lane % shape.channels % 2 == 1;
        let mut row = 0;
        while row < shape.rows {
            let len = unit_rows.min(shape.rows - row);
            each(number, Unit { at: lane * shape.rows + row, len, row, odd })?;
            number += 1;
            row += len;
        }
    }
    Ok(())
}

/// What the units of one group have in common, beside their distribution.
struct Group {
    predictor: Predictor,
    /// Known to be noise: no coding is tried.
    noise: bool,
    /// Bytes of all its units.
    len: usize,
}

/// Working memory of [`encode`].
#[derive(Default)]
pub(super) struct Scratch {
    groups: Vec<Group>,
    /// The group of each unit.
    unit_groups: Vec<u8>,
    /// Channels of one plane that get the same predictor.
    channels: Vec<u32>,
    residual: Vec<u8>,
}

impl Scratch {
    /// The bytes that are held.
    pub(super) fn held(&self) -> usize {
        held(&self.groups) + held(&self.unit_groups) + held(&self.channels) + held(&self.residual)
    }
}

/// The length of a buffer for planes of `len` bytes in all, which also holds the code of any group.
pub(super) fn room(len: usize) -> usize {
    zstd::bound(len).max(entropy::bound(len)).max(len)
}

/// Appends planes to `out`. They are the start of `planes`, which is as long as [`room`] says and is overwritten.
pub(super) fn encode(
    planes: &mut [u8],
    shape: &Shape,
    options: &Options,
    zstd: &mut zstd::Compressor,
    scratch: &mut Scratch,
    grouped: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<()> {
    if shape.len() == 0 {
        return Ok(());
    }
    let unit_rows = unit_rows(shape, options.effort);
    find_groups(planes, shape, unit_rows, options, scratch)?;
    let Scratch { groups, unit_groups, .. } = scratch;

    // Every unit goes to the end of its group.
    let mut ends = [0; MAX_GROUPS];
    let mut start = 0;
    for (end, group) in ends.iter_mut().zip(&*groups) {
        *end = start;
        start += group.len;
    }
    let grouped = memory::at_least(grouped, shape.len())?;
    for_units(shape, unit_rows, |number, unit| {
        let group = unit_groups[number] as usize;
        let end = &mut ends[group];
        let target = &mut grouped[*end..*end + unit.len];
        predict::residual(groups[group].predictor, planes, &unit, shape.rows, target);
        *end += unit.len;
        Ok(())
    })?;

    // The planes have served.
    let payload = planes;
    memory::reserve(out, unit_groups.len() + shape.len() + 32 * groups.len())?;
    push_number(out, unit_rows)?;
    push_number(out, groups.len())?;
    if groups.len() > 1 {
        let len = zstd.encode(unit_groups, Search::Level(1), payload)?;
        push_bytes(out, &payload[..len])?;
    }
    for (group, end) in groups.iter().zip(&ends) {
        let bytes = &grouped[end - group.len..*end];
        let len = if group.noise { bytes.len() } else { code(bytes, options.effort, zstd, payload)? };
        push_group(group.predictor, bytes, &payload[..len.min(bytes.len())], out)?;
    }
    Ok(())
}

/// Appends planes of equal length to `out`, each as one group, which keeps matches whole; one survey for each.
pub(super) fn encode_flat(
    planes: &[u8],
    surveys: &[matches::Survey],
    zstd: &mut zstd::Compressor,
    payload: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<()> {
    let len = planes.len() / surveys.len();
    let payload = memory::at_least(payload, room(len))?;
    for (plane, survey) in planes.chunks_exact(len).zip(surveys) {
        let coded = match survey.search {
            Some(search) => zstd.encode(plane, search.wider(), payload)?,
            None if survey.is_noise => len,
            None => entropy::literals(plane, payload),
        };
        push_group(Predictor::Raw, plane, &payload[..coded.min(len)], out)?;
    }
    Ok(())
}

/// Replaces `planes`, of `len` bytes each, by those that [`encode_flat`] wrote.
pub(super) fn decode_flat(
    mut body: Reader<'_>,
    len: usize,
    context: &mut Context<'_>,
    planes: &mut [u8],
) -> Result<()> {
    for (number, plane) in planes.chunks_exact_mut(len).enumerate() {
        let group = read_group(&mut body, number, len)?;
        match group.coding {
            Coding::Raw => plane.copy_from_slice(group.payload),
            Coding::Zstd => context.unzstd(group.payload, plane)?,
        }
        if group.predictor != Predictor::Raw {
            bail!(Unsupported, "plane {number} with predictor {:?}; a flat blob has none", group.predictor);
        }
    }
    body.end()
}

/// A group as it is in a blob.
struct WireGroup<'a> {
    predictor: Predictor,
    coding: Coding,
    payload: &'a [u8],
}

/// Reads group `number`, whose units have `len` bytes.
fn read_group<'a>(body: &mut Reader<'a>, number: usize, len: usize) -> Result<WireGroup<'a>> {
    let predictor = Predictor::from_wire(body.byte("a group's predictor")?)?;
    let coding = match body.byte("a group's coding")? {
        0 => Coding::Raw,
        1 => Coding::Zstd,
        coding => bail!(Unsupported, "group with coding {coding}; 0 and 1 are known"),
    };
    let payload = body.bytes("a group's payload")?;
    if coding == Coding::Raw && payload.len() != len {
        bail!(Corrupt, "group {number} has {} bytes; its units have {len}", payload.len());
    }
    Ok(WireGroup { predictor, coding, payload })
}

/// Appends a group of these bytes, with `payload` when that is shorter.
fn push_group(predictor: Predictor, bytes: &[u8], payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let (coding, payload) = if payload.len() < bytes.len() { (Coding::Zstd, payload) } else { (Coding::Raw, bytes) };
    memory::reserve(out, payload.len() + 12)?;
    memory::extend(out, &[predictor as u8, coding as u8])?;
    push_bytes(out, payload)
}

/// Codes a group's bytes as one ZSTD frame in `out`, which has [`room`]; returns the length.
fn code(bytes: &[u8], effort: Effort, zstd: &mut zstd::Compressor, out: &mut [u8]) -> Result<usize> {
    // Where neighbours are often equal, ZSTD's matches may find more than a code for single bytes does.
    let repeats = (arch::kernels().repeats)(bytes);
    if effort.get() < 7 && 2 * repeats < bytes.len() {
        return Ok(entropy::literals(bytes, out));
    }
    let search = if effort.get() < 7 { Search::lanes(4) } else { Search::Level(9) };
    let literals = entropy::literals(bytes, out);
    let len = zstd.encode(bytes, search, out)?;
    if len <= literals { Ok(len) } else { Ok(entropy::literals(bytes, out)) }
}

/// Fills in `scratch.groups` and `scratch.unit_groups`.
fn find_groups(planes: &[u8], shape: &Shape, unit_rows: usize, options: &Options, scratch: &mut Scratch) -> Result<()> {
    let Scratch { groups, unit_groups, channels, residual } = scratch;
    let most = match options.effort.get() {
        1 => 4,
        2 | 3 => 8,
        4..=6 => 16,
        _ => 32,
    };
    // Groups have one-byte numbers: each predictor of each plane gets its share, the noise of all planes is one.
    let most = most.min((MAX_GROUPS - 1) / (shape.planes * Predictor::ALL.len()));
    groups.clear();
    memory::resize(unit_groups, shape.units(unit_rows))?;
    let residual = memory::at_least(residual, unit_rows)?;
    let mut noise = None;

    let per_channel = shape.rows.div_ceil(unit_rows);
    for (plane, unit_groups) in unit_groups.chunks_exact_mut(per_channel * shape.channels).enumerate() {
        let survey = survey(planes, shape, plane, options.predictors, options.effort)?;
        let bins = cluster::bins(&survey.counts);
        for kind in survey.kinds() {
            memory::cleared(channels, shape.channels)?;
            for (channel, _) in survey.verdicts.iter().enumerate().filter(|(_, verdict)| **verdict == kind) {
                memory::push(channels, channel as u32)?;
            }
            if kind.noise {
                let group = *noise.get_or_insert(groups.len());
                if group == groups.len() {
                    memory::push(groups, Group { predictor: kind.predictor, noise: true, len: 0 })?;
                }
                for channel in &*channels {
                    unit_groups[*channel as usize * per_channel..][..per_channel].fill(group as u8);
                    groups[group].len += shape.rows;
                }
                continue;
            }
            // Units of these channels, in the order of the plane.
            let unit = |number: usize| {
                let channel = channels[number / per_channel] as usize;
                let row = number % per_channel * unit_rows;
                let at = (plane * shape.channels + channel) * shape.rows + row;
                Unit { at, len: unit_rows.min(shape.rows - row), row, odd: channel % 2 == 1 }
            };
            let histogram = |number: usize| {
                let unit = unit(number);
                let bytes = &mut residual[..unit.len];
                predict::residual(kind.predictor, planes, &unit, shape.rows, bytes);
                cluster::histogram(&bins, bytes)
            };
            let first = groups.len();
            let mut lens = [0; MAX_GROUPS];
            let count =
                cluster::cluster(channels.len() * per_channel, histogram, most, GROUP_BYTES, |number, group| {
                    let channel = channels[number / per_channel] as usize;
                    unit_groups[channel * per_channel + number % per_channel] = (first + group) as u8;
                    lens[group] += unit(number).len;
                })?;
            for len in &lens[..count] {
                memory::push(groups, Group { predictor: kind.predictor, noise: false, len: *len })?;
            }
        }
    }
    Ok(())
}

/// Replaces `planes`, which is as long as `shape` says, by the planes that [`encode`] wrote. `spare` is working memory
/// at least as long.
pub(super) fn decode(
    body: &mut Reader<'_>,
    shape: &Shape,
    context: &mut Context<'_>,
    unit_groups: &mut Vec<u8>,
    planes: &mut [u8],
    mut spare: &mut [u8],
) -> Result<()> {
    if shape.len() == 0 {
        return Ok(());
    }
    let unit_rows = body.number(usize::MAX, "rows per unit")?;
    if unit_rows == 0 {
        bail!(Corrupt, "rows per unit is 0");
    }
    let unit_rows = unit_rows.min(shape.rows);
    let count = body.number(MAX_GROUPS, "number of groups")?;
    if count == 0 {
        bail!(Corrupt, "number of groups is 0");
    }
    if count == 1 {
        // Units lie in the order of the planes.
        let group = read_group(body, 0, shape.len())?;
        match group.coding {
            Coding::Raw => planes.copy_from_slice(group.payload),
            Coding::Zstd => context.unzstd(group.payload, planes)?,
        }
        if group.predictor != Predictor::Raw {
            for_units(shape, unit_rows, |_, unit| {
                predict::restore(group.predictor, planes, &unit, shape.rows);
                Ok(())
            })?;
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
        let group = read_group(body, number, *len)?;
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
        Ok(())
    })
}

/// The bytes of each group.
fn group_lens(shape: &Shape, unit_rows: usize, unit_groups: &[u8]) -> [usize; MAX_GROUPS] {
    let mut lens = [0; MAX_GROUPS];
    // As if all units were of full length; the last one of a channel may be shorter.
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
