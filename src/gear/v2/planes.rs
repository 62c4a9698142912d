//! Byte planes, channel by channel, to bytes: units that are distributed alike are coded together.
//!
//! The input is `[plane][channel][row]`. A unit is a run of rows of one channel of one plane. Every unit belongs to a
//! group; a group has one predictor and one payload, which holds its units one after another.

use super::cluster::{self, Histogram};
use super::container::{Reader, push_bytes, push_number};
use super::predict::{self, Predictor, Unit};
use super::survey::survey;
use crate::arch;
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

/// Every unit, in the order of the planes' bytes.
fn units(shape: &Shape, unit_rows: usize) -> impl Iterator<Item = Unit> + use<> {
    let Shape { planes, channels, rows } = *shape;
    (0..planes).flat_map(move |_| 0..channels).enumerate().flat_map(move |(lane, channel)| {
        (0..rows).step_by(unit_rows).map(move |row| Unit {
            at: lane * rows + row,
            len: unit_rows.min(rows - row),
            row,
            odd: channel % 2 == 1,
        })
    })
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
    /// Units of one plane to be grouped, and their histograms.
    members: Vec<Unit>,
    histograms: Vec<Histogram>,
    residual: Vec<u8>,
    /// Units, or residuals in their place, group after group.
    grouped: Vec<u8>,
    payload: Vec<u8>,
    trial: Vec<u8>,
}

/// Working memory of [`decode`].
#[derive(Default)]
pub(super) struct DecodeScratch {
    unit_groups: Vec<u8>,
    /// Payloads, group after group.
    grouped: Vec<u8>,
}

/// Appends `planes` to `out`.
pub(super) fn encode(
    planes: &[u8],
    shape: &Shape,
    options: &Options,
    zstd: &mut zstd::Compressor,
    scratch: &mut Scratch,
    out: &mut Vec<u8>,
) -> Result<()> {
    if shape.len() == 0 {
        return Ok(());
    }
    let unit_rows = unit_rows(shape, options.effort);
    find_groups(planes, shape, unit_rows, options, scratch)?;
    let Scratch { groups, unit_groups, grouped, payload, trial, .. } = scratch;

    // Every unit goes to the end of its group.
    let mut ends: Vec<usize> = Vec::with_capacity(groups.len());
    ends.extend(groups.iter().scan(0, |end, group| Some(std::mem::replace(end, *end + group.len))));
    let grouped = memory::at_least(grouped, shape.len())?;
    for (unit, group) in units(shape, unit_rows).zip(&*unit_groups) {
        let end = &mut ends[*group as usize];
        let target = &mut grouped[*end..*end + unit.len];
        predict::residual(groups[*group as usize].predictor, planes, &unit, shape.rows, target);
        *end += unit.len;
    }

    memory::reserve(out, unit_groups.len() + shape.len() + 32 * groups.len())?;
    push_number(out, unit_rows);
    push_number(out, groups.len());
    if groups.len() > 1 {
        let len =
            zstd.encode(unit_groups, Search::Level(1), memory::at_least(payload, zstd::bound(unit_groups.len()))?)?;
        push_bytes(out, &payload[..len])?;
    }
    for (group, end) in groups.iter().zip(&ends) {
        let bytes = &grouped[end - group.len..*end];
        let len = if group.noise { bytes.len() } else { code(bytes, options.effort, zstd, payload, trial)? };
        push_group(group.predictor, bytes, payload.get(..len).unwrap_or(bytes), out)?;
    }
    Ok(())
}

/// Appends planes of equal length to `out`, each as one group, which keeps matches whole; one survey for each.
pub(super) fn encode_flat(
    planes: &[u8],
    surveys: &[matches::Survey],
    zstd: &mut zstd::Compressor,
    scratch: &mut Scratch,
    out: &mut Vec<u8>,
) -> Result<()> {
    let len = planes.len() / surveys.len();
    for (plane, survey) in planes.chunks_exact(len).zip(surveys) {
        let payload = memory::at_least(&mut scratch.payload, zstd::bound(len).max(entropy::bound(len)))?;
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
    zstd: &mut zstd::Decompressor,
    planes: &mut [u8],
) -> Result<()> {
    for (number, plane) in planes.chunks_exact_mut(len).enumerate() {
        let group = read_group(&mut body, number, len)?;
        match group.coding {
            Coding::Raw => plane.copy_from_slice(group.payload),
            Coding::Zstd => zstd.decode(group.payload, plane)?,
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
    out.extend_from_slice(&[predictor as u8, coding as u8]);
    push_bytes(out, payload)
}

/// Codes a group's bytes as one ZSTD frame in `out`, whose length is returned. `trial` is working memory.
fn code(
    bytes: &[u8],
    effort: Effort,
    zstd: &mut zstd::Compressor,
    out: &mut Vec<u8>,
    trial: &mut Vec<u8>,
) -> Result<usize> {
    // Where neighbours are often equal, ZSTD's matches find more than a code for single bytes does.
    let repeats = (arch::kernels().repeats)(bytes);
    if effort.get() < 7 && 2 * repeats < bytes.len() {
        return Ok(entropy::literals(bytes, memory::at_least(out, entropy::bound(bytes.len()))?));
    }
    let search = if effort.get() < 7 { Search::lanes(4) } else { Search::Level(9) };
    let len = zstd.encode(bytes, search, memory::at_least(out, zstd::bound(bytes.len()))?)?;
    if effort.get() < 7 {
        return Ok(len);
    }
    let trial_len = entropy::literals(bytes, memory::at_least(trial, entropy::bound(bytes.len()))?);
    if trial_len < len {
        std::mem::swap(out, trial);
    }
    Ok(len.min(trial_len))
}

/// Fills in `scratch.groups` and `scratch.unit_groups`.
fn find_groups(planes: &[u8], shape: &Shape, unit_rows: usize, options: &Options, scratch: &mut Scratch) -> Result<()> {
    let Scratch { groups, unit_groups, members, histograms, residual, .. } = scratch;
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
    let mut plane_units = units(shape, unit_rows);
    for (plane, unit_groups) in unit_groups.chunks_exact_mut(per_channel * shape.channels).enumerate() {
        let survey = survey(planes, shape, plane, options.predictors, options.effort);
        let bins = cluster::bins(&survey.counts);
        members.clear();
        members.extend(plane_units.by_ref().take(unit_groups.len()));
        for kind in survey.kinds() {
            let of_kind = |number: &usize| survey.verdicts[number / per_channel] == kind;
            let first = if kind.noise { *noise.get_or_insert(groups.len()) } else { groups.len() };
            if kind.noise {
                if first == groups.len() {
                    groups.push(Group { predictor: kind.predictor, noise: true, len: 0 });
                }
                for number in (0..members.len()).filter(of_kind) {
                    unit_groups[number] = first as u8;
                    groups[first].len += members[number].len;
                }
                continue;
            }
            histograms.clear();
            for unit in (0..members.len()).filter(of_kind).map(|n| &members[n]) {
                let bytes = &mut residual[..unit.len];
                predict::residual(kind.predictor, planes, unit, shape.rows, bytes);
                histograms.push(cluster::histogram(&bins, bytes));
            }
            let (assignment, count) = cluster::cluster(histograms, most, GROUP_BYTES)?;
            groups.extend((0..count).map(|_| Group { predictor: kind.predictor, noise: false, len: 0 }));
            for (number, group) in (0..members.len()).filter(of_kind).zip(assignment) {
                let group = first + group as usize;
                unit_groups[number] = group as u8;
                groups[group].len += members[number].len;
            }
        }
    }
    Ok(())
}

/// Replaces `planes`, which is as long as `shape` says, by the planes that [`encode`] wrote.
pub(super) fn decode(
    body: &mut Reader<'_>,
    shape: &Shape,
    zstd: &mut zstd::Decompressor,
    scratch: &mut DecodeScratch,
    planes: &mut [u8],
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
    // No more units than bytes, so no more than the caller has room for.
    let unit_groups = memory::at_least(&mut scratch.unit_groups, shape.units(unit_rows))?;
    unit_groups.fill(0);
    if count > 1 {
        zstd.decode(body.bytes("groups of the units")?, unit_groups)?;
    }
    let mut lens = [0usize; MAX_GROUPS];
    for (unit, group) in units(shape, unit_rows).zip(&*unit_groups) {
        lens[*group as usize] += unit.len;
    }
    if let Some(beyond) = lens[count..].iter().position(|len| *len > 0) {
        bail!(Corrupt, "a unit is of group {}; there are {count}", count + beyond);
    }

    let mut decoded = memory::at_least(&mut scratch.grouped, shape.len())?;
    let mut groups: Vec<(Predictor, &[u8])> = Vec::with_capacity(count);
    for (number, len) in lens[..count].iter().enumerate() {
        let group = read_group(body, number, *len)?;
        let bytes = match group.coding {
            Coding::Raw => group.payload,
            Coding::Zstd => {
                let (target, rest) = decoded.split_at_mut(*len);
                decoded = rest;
                zstd.decode(group.payload, target)?;
                target
            }
        };
        groups.push((group.predictor, bytes));
    }
    for (unit, group) in units(shape, unit_rows).zip(&*unit_groups) {
        let (predictor, bytes) = &mut groups[*group as usize];
        let (head, rest) = bytes.split_at(unit.len);
        planes[unit.at..unit.at + unit.len].copy_from_slice(head);
        *bytes = rest;
        predict::restore(*predictor, planes, &unit, shape.rows);
    }
    Ok(())
}
