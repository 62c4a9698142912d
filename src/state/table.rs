//! The head of a blob: what its sections are, and where.
//!
//! All of it is little-endian numbers of fixed width, so that a reader is a loop.

use super::plan::{Field, Form, Plan, Region};
use crate::bytes::{self, Reader};
use crate::dtype::Dtype;
use crate::status::{Result, bail, error};
use crate::sys::memory;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"MNKVSTAT";
const VERSION: u32 = 1;
const HEADER_LEN: usize = 48;
const REGION_LEN: usize = 32;
const FIELD_LEN: usize = 24;
const SECTION_LEN: usize = 24;
const CHECKSUM_LEN: usize = 8;

/// The layouts of a field, as numbers.
const WORDS: u16 = 0;
const CHANNELS: u16 = 1;
const BLOCKS: u16 = 2;

/// A section in the blob.
#[derive(Clone, Copy, Default)]
pub(super) struct Sums {
    /// Bytes of the payload.
    pub(super) len: usize,
    /// Checksum of the decoded bytes.
    pub(super) raw: u64,
    /// Checksum of the payload.
    pub(super) stored: u64,
}

/// A head that has been checked.
pub(super) struct Head {
    pub(super) plan: Plan,
    pub(super) sums: Vec<Sums>,
    /// Where the first payload begins. The last one ends with the blob.
    pub(super) payloads: usize,
}

/// Bytes of the head of a plan.
pub(super) fn len_of(plan: &Plan) -> usize {
    let parts = plan.regions.len() * REGION_LEN + plan.fields.len() * FIELD_LEN;
    HEADER_LEN + parts + plan.sections.len() * SECTION_LEN + CHECKSUM_LEN
}

/// Writes the head, which takes all of `out`.
pub(super) fn write(plan: &Plan, sums: &[Sums], blob_len: usize, out: &mut [u8]) {
    let mut to = Writer { out, at: 0 };
    to.put(MAGIC);
    to.put(VERSION.to_le_bytes());
    to.put([0; 4]);
    for number in [blob_len, plan.len, plan.regions.len(), plan.sections.len()] {
        to.put((number as u64).to_le_bytes());
    }
    for region in &plan.regions {
        for number in [region.rows, region.stride, region.section_rows, region.fields.len()] {
            to.put((number as u64).to_le_bytes());
        }
        for field in &plan.fields[region.fields.clone()] {
            let (layout, dtype, block, scale) = match field.form {
                Form::Words(dtype) => (WORDS, dtype, 0, 0),
                Form::Channels(dtype) => (CHANNELS, dtype, 0, 0),
                Form::Blocks { dtype, block, scale } => (BLOCKS, dtype, block, scale),
            };
            to.put((field.offset as u64).to_le_bytes());
            to.put((field.bytes as u64).to_le_bytes());
            [layout, dtype as u16, block, scale].into_iter().for_each(|number| to.put(number.to_le_bytes()));
        }
    }
    for sums in sums {
        for number in [sums.len as u64, sums.raw, sums.stored] {
            to.put(number.to_le_bytes());
        }
    }
    let sum = xxh3_64(&to.out[..to.at]);
    to.put(sum.to_le_bytes());
    debug_assert_eq!(to.at, to.out.len());
}

/// Reads and checks the head. Takes memory for regions and sections that the blob has bytes for.
pub(super) fn read(blob: &[u8]) -> Result<Head> {
    let mut reader = Reader::new(blob);
    let from = &mut reader;
    if from.array("the magic")? != MAGIC {
        bail!(Corrupt, "the blob does not begin as one of a state");
    }
    match from.u32("the version")? {
        VERSION => {}
        version => bail!(Unsupported, "the blob has version {version}; {VERSION} is known"),
    }
    if from.array("the header")? != [0; 4] {
        bail!(Corrupt, "bytes 12 to 16 of the blob are not 0");
    }
    let blob_len = length(from, "the length of the blob")?;
    if blob_len != blob.len() {
        bail!(Corrupt, "the blob has {} bytes; {blob_len} expected", blob.len());
    }
    let mut plan = Plan { len: length(from, "the decoded length")?, ..Plan::default() };
    let regions = length(from, "the number of regions")?;
    let sections = length(from, "the number of sections")?;
    let mut left = plan.len;
    for at in 0..regions {
        let region = read_region(from, &mut plan.fields).map_err(|e| e.within(format_args!("region {at}")))?;
        let rest = region.rows.checked_mul(region.stride).and_then(|len| left.checked_sub(len));
        let Some(rest) = rest else {
            bail!(Corrupt, "region {at} has {} rows of {} bytes; {left} are left", region.rows, region.stride);
        };
        left = rest;
        memory::push(&mut plan.regions, region)?;
    }
    if left > 0 {
        bail!(Corrupt, "no region has the last {left} of {} bytes", plan.len);
    }
    let table = sections.checked_mul(SECTION_LEN).and_then(|table| table.checked_add(CHECKSUM_LEN));
    if plan.section_count() != Some(sections) || table.is_none_or(|table| table > from.rest().len()) {
        bail!(Corrupt, "the blob has {sections} sections, which do not fit its regions and its length");
    }
    let mut sums = Vec::new();
    memory::reserve(&mut sums, sections)?;
    for _ in 0..sections {
        let len = length(from, "the length of a section")?;
        let (raw, stored) = (from.u64("a checksum")?, from.u64("a checksum")?);
        memory::push(&mut sums, Sums { len, raw, stored })?;
    }
    let head_len = blob.len() - from.rest().len();
    let expected = from.u64("the checksum of the head")?;
    let sum = xxh3_64(&blob[..head_len]);
    if sum != expected {
        bail!(Corrupt, "the first {head_len} bytes have checksum {sum:#018x}; {expected:#018x} expected");
    }
    let payloads = head_len + CHECKSUM_LEN;
    let end = sums.iter().try_fold(payloads, |end, sums| end.checked_add(sums.len));
    if end != Some(blob.len()) {
        bail!(Corrupt, "the sections do not end with the blob, at byte {}", blob.len());
    }
    plan.cut()?;
    Ok(Head { plan, sums, payloads })
}

fn read_region(from: &mut Reader<'_>, fields: &mut Vec<Field>) -> Result<Region> {
    let [rows, stride, section_rows, count] =
        [length(from, "rows")?, length(from, "stride")?, length(from, "section_rows")?, length(from, "fields")?];
    if rows == 0 || stride == 0 || section_rows == 0 || section_rows > rows {
        bail!(Corrupt, "it has {rows} rows of {stride} bytes, and sections of {section_rows} rows");
    }
    let first = fields.len();
    let mut end = 0;
    for at in 0..count {
        let (offset, bytes) = (length(from, "offset")?, length(from, "bytes")?);
        let [layout, dtype, block, scale] =
            [from.array("layout")?, from.array("dtype")?, from.array("block")?, from.array("scale")?]
                .map(u16::from_le_bytes);
        let dtype = Dtype::named(dtype.into()).ok_or_else(|| error!(Corrupt, "field {at} has dtype {dtype}"))?;
        let form = match (layout, block, scale) {
            (WORDS, 0, 0) => Form::Words(dtype),
            (CHANNELS, 0, 0) => Form::Channels(dtype),
            (BLOCKS, ..) => Form::Blocks { dtype, block, scale },
            _ => bail!(Corrupt, "field {at} has layout {layout} with blocks of {block} bytes, {scale} of them words"),
        };
        let fits = form.unit().is_some_and(|unit| bytes > 0 && bytes.is_multiple_of(unit)) && offset >= end;
        end = match offset.checked_add(bytes) {
            Some(end) if fits && end <= stride => end,
            _ => bail!(Corrupt, "field {at} has bytes {offset} to {offset} + {bytes} of {stride}, {form:?}"),
        };
        memory::push(fields, Field { offset, bytes, form })?;
    }
    Ok(Region { rows, stride, section_rows, fields: first..fields.len() })
}

struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        self.out[self.at..self.at + N].copy_from_slice(&bytes);
        self.at += N;
    }
}

/// A number of eight bytes.
pub(super) fn length(from: &mut Reader<'_>, what: &str) -> Result<usize> {
    bytes::length(from.u64(what)?, what)
}
