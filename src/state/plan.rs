//! Tensors to regions with fields, and regions to sections.

use crate::dtype::Dtype;
use crate::status::{Result, bail};
use crate::sys::memory;
use std::ops::Range;

/// Sections of a region are as equal as rows allow, and at most this long: enough words for a good table per channel,
/// and few enough for all cores.
const SECTION: usize = 1 << 20;

/// The elements of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Words. A column of the rows is a channel.
    Words(Dtype),
    /// Words; a row is a channel, as in a transposed V.
    Channels(Dtype),
    /// Blocks of `block` bytes: first `scale` bytes that are words, then codes.
    Blocks {
        /// The type of the words.
        dtype: Dtype,
        /// Bytes of a block.
        block: u16,
        /// Bytes of its words.
        scale: u16,
    },
}

impl Form {
    /// The bytes that a row is a multiple of, or `None` if no row can have this form.
    pub(super) fn unit(self) -> Option<usize> {
        match self {
            Form::Words(dtype) | Form::Channels(dtype) => Some(dtype.bytes()),
            Form::Blocks { dtype, block, scale } => {
                let fits = scale > 0 && scale < block && (scale as usize).is_multiple_of(dtype.bytes());
                fits.then_some(block as usize)
            }
        }
    }
}

/// A tensor inside of a buffer: `rows` rows of `row_bytes` bytes, `stride` bytes from one to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Where the first row begins.
    pub offset: usize,
    /// The number of rows, at least 1.
    pub rows: usize,
    /// Bytes of a row, at least 1.
    pub row_bytes: usize,
    /// Bytes from a row to the next, at least `row_bytes`.
    pub stride: usize,
    /// The elements of a row.
    pub form: Form,
}

impl Tensor {
    /// The end of the last row, or `None` beyond the address space.
    fn end(&self) -> Option<usize> {
        (self.rows - 1).checked_mul(self.stride)?.checked_add(self.row_bytes)?.checked_add(self.offset)
    }

    fn check(&self, len: usize, at: usize) -> Result<()> {
        let Some(unit) = self.form.unit() else {
            let Form::Blocks { dtype, block, scale } = self.form else { unreachable!("words have a unit") };
            bail!(
                InvalidArgument,
                "tensors[{at}].scale_bytes is {scale} in blocks of {block}; a multiple of {} below {block} expected",
                dtype.bytes()
            );
        };
        if self.rows == 0 {
            bail!(InvalidArgument, "tensors[{at}].rows is 0; at least 1 expected");
        }
        if self.row_bytes == 0 || !self.row_bytes.is_multiple_of(unit) {
            bail!(InvalidArgument, "tensors[{at}].row_bytes is {}; a multiple of {unit} expected", self.row_bytes);
        }
        if self.stride < self.row_bytes {
            bail!(InvalidArgument, "tensors[{at}].stride is {}; at least {} expected", self.stride, self.row_bytes);
        }
        match self.end() {
            Some(end) if end <= len => Ok(()),
            _ => bail!(
                InvalidArgument,
                "tensors[{at}] has {} rows of {} bytes at a stride of {} from byte {} on; src_len is {len}",
                self.rows,
                self.row_bytes,
                self.stride,
                self.offset
            ),
        }
    }
}

/// The same bytes of each row of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    /// From the start of the row.
    pub(super) offset: usize,
    pub(super) bytes: usize,
    pub(super) form: Form,
}

/// Consecutive bytes of a buffer, as rows. Bytes of a row that are in no field are opaque.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Region {
    pub(super) rows: usize,
    /// Bytes of a row, the gap to the next one included.
    pub(super) stride: usize,
    /// Rows of a section; the last one may have fewer.
    pub(super) section_rows: usize,
    /// Indices into [`Plan::fields`].
    pub(super) fields: Range<usize>,
}

/// Whole rows of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) region: usize,
    start: usize,
    pub(super) rows: usize,
    len: usize,
}

impl Section {
    /// The bytes in the buffer.
    pub(super) fn bytes(&self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

/// A buffer, cut.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) len: usize,
    pub(super) regions: Vec<Region>,
    pub(super) fields: Vec<Field>,
    pub(super) sections: Vec<Section>,
}

impl Plan {
    /// Cuts a buffer of `len` bytes. INVALID_ARGUMENT: if a tensor is out of range, or overlaps another.
    pub(super) fn of(len: usize, tensors: &[Tensor]) -> Result<Self> {
        if tensors.len() > u32::MAX as usize / 4 {
            bail!(InvalidArgument, "n_tensors is {}; at most 2^30 expected", tensors.len());
        }
        tensors.iter().enumerate().try_for_each(|(at, tensor)| tensor.check(len, at))?;
        let mut order = memory::collect(0..tensors.len())?;
        order.sort_unstable_by_key(|at| (tensors[*at].offset, *at));
        let mut plan = Plan::default();
        let mut left = &order[..];
        // The end of the tensors so far, which the bytes in regions may not have reached.
        let mut claimed = 0;
        while let Some((first, _)) = left.split_first() {
            let tensor = &tensors[*first];
            if tensor.offset < claimed {
                bail!(InvalidArgument, "tensors[{first}] begins at byte {}, inside of another one", tensor.offset);
            }
            let interleaved = left.iter().take_while(|at| is_interleaved(tensor, &tensors[**at])).count().max(1);
            let (group, rest) = left.split_at(interleaved);
            claimed = plan.push_group(tensors, group)?;
            left = rest;
        }
        plan.push_opaque(len)?;
        plan.cut()?;
        Ok(plan)
    }

    /// Appends tensors of which each has a place between the rows of the first, and returns their end.
    fn push_group(&mut self, tensors: &[Tensor], group: &[usize]) -> Result<usize> {
        let first = &tensors[group[0]];
        let fields = self.fields.len();
        let mut end = 0;
        for at in group {
            let tensor = &tensors[*at];
            let offset = tensor.offset - first.offset;
            if offset < end {
                bail!(InvalidArgument, "tensors[{at}] begins at byte {}, inside of another one", tensor.offset);
            }
            end = offset + tensor.row_bytes;
            if end > first.stride && first.rows > 1 {
                bail!(InvalidArgument, "a row of tensors[{at}] goes on into the next row of tensors[{}]", group[0]);
            }
            if tensor.rows != first.rows {
                bail!(
                    InvalidArgument,
                    "tensors[{at}].rows is {}; it lies between the {} rows of tensors[{}]",
                    tensor.rows,
                    first.rows,
                    group[0]
                );
            }
            memory::push(&mut self.fields, Field { offset, bytes: tensor.row_bytes, form: tensor.form })?;
        }
        self.push_opaque(first.offset)?;
        // The last row ends with its last field: where that leaves a gap, it is opaque.
        let stride = if first.rows == 1 { end } else { first.stride };
        let rows = if stride == end { first.rows } else { first.rows - 1 };
        self.push_region(rows, stride, fields..self.fields.len())?;
        Ok(first.offset + (first.rows - 1) * stride + end)
    }

    /// Appends opaque bytes up to `end`.
    fn push_opaque(&mut self, end: usize) -> Result<()> {
        let at = self.fields.len();
        if end > self.len { self.push_region(end - self.len, 1, at..at) } else { Ok(()) }
    }

    fn push_region(&mut self, rows: usize, stride: usize, fields: Range<usize>) -> Result<()> {
        let len = rows * stride;
        let section_rows = rows.div_ceil(len.div_ceil(SECTION));
        // Opaque bytes may be words of any width.
        let section_rows = if fields.is_empty() { section_rows.next_multiple_of(8).min(rows) } else { section_rows };
        self.len += len;
        memory::push(&mut self.regions, Region { rows, stride, section_rows, fields })
    }

    /// The fields of a region.
    pub(super) fn fields_of(&self, section: &Section) -> &[Field] {
        &self.fields[self.regions[section.region].fields.clone()]
    }

    /// The number of sections of all regions, or `None` beyond the address space.
    pub(super) fn section_count(&self) -> Option<usize> {
        let mut counts = self.regions.iter().map(|region| region.rows.div_ceil(region.section_rows));
        counts.try_fold(0usize, usize::checked_add)
    }

    /// Fills in the sections of complete regions.
    pub(super) fn cut(&mut self) -> Result<()> {
        let count = self.section_count().unwrap_or(usize::MAX);
        memory::reserve(&mut self.sections, count)?;
        let mut start = 0;
        for (at, region) in self.regions.iter().enumerate() {
            let mut left = region.rows;
            while left > 0 {
                let rows = left.min(region.section_rows);
                let len = rows * region.stride;
                memory::push(&mut self.sections, Section { region: at, start, rows, len })?;
                start += len;
                left -= rows;
            }
        }
        Ok(())
    }
}

/// Whether `other`, which does not begin before `tensor`, has a place between its rows.
fn is_interleaved(tensor: &Tensor, other: &Tensor) -> bool {
    let is_grid = tensor.rows > 1 && tensor.stride > tensor.row_bytes;
    is_grid && other.stride == tensor.stride && other.offset - tensor.offset < tensor.stride
}
