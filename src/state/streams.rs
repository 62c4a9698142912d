//! The rows of a section to streams: words of one type and significance, dense, and back.

use super::plan::{Field, Form, Plan, Section};
use crate::dtype::Dtype;
use crate::status::Result;
use crate::sys::memory;
use std::ops::Range;

/// The bytes of a stream in each row: `count` runs of `len` bytes, `step` bytes from one to the next.
#[derive(Clone, Copy, Debug)]
struct Runs {
    first: usize,
    len: usize,
    step: usize,
    count: usize,
}

/// What a stream is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A tensor of words.
    Words,
    /// The scales or the codes of a quantised tensor.
    Blocks,
    /// Bytes that are in no tensor.
    Opaque,
}

/// Words that are encoded as one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub(super) dtype: Dtype,
    pub(super) origin: Origin,
    runs: Runs,
    /// Rows of the section are columns of the stream.
    is_transposed: bool,
    rows: usize,
    stride: usize,
}

/// Calls `body` with the streams of a section in the order of the blob.
pub(super) fn for_each(plan: &Plan, section: &Section, mut body: impl FnMut(Stream) -> Result<()>) -> Result<()> {
    let (rows, stride) = (section.rows, plan.regions[section.region].stride);
    let opaque = |first, len| Stream {
        dtype: Dtype::Int8,
        origin: Origin::Opaque,
        runs: Runs { first, len, step: len, count: 1 },
        is_transposed: false,
        rows,
        stride,
    };
    let mut end = 0;
    for field in plan.fields_of(section) {
        if field.offset > end {
            body(opaque(end, field.offset - end))?;
        }
        let [first, second] = of_field(field, rows, stride);
        body(first)?;
        if second.runs.len > 0 {
            body(second)?;
        }
        end = field.offset + field.bytes;
    }
    if stride > end { body(opaque(end, stride - end)) } else { Ok(()) }
}

/// The one or two streams of a field. The second has no bytes where there is one.
fn of_field(field: &Field, rows: usize, stride: usize) -> [Stream; 2] {
    let whole = Runs { first: field.offset, len: field.bytes, step: field.bytes, count: 1 };
    let none = Runs { len: 0, ..whole };
    let origin = if matches!(field.form, Form::Blocks { .. }) { Origin::Blocks } else { Origin::Words };
    let stream = |dtype, runs, is_transposed| Stream { dtype, origin, runs, is_transposed, rows, stride };
    match field.form {
        Form::Words(dtype) => [stream(dtype, whole, false), stream(dtype, none, false)],
        Form::Channels(dtype) => [stream(dtype, whole, true), stream(dtype, none, false)],
        Form::Blocks { dtype, block, scale } => {
            let (block, scale) = (block as usize, scale as usize);
            let scales = Runs { first: field.offset, len: scale, step: block, count: field.bytes / block };
            let codes = Runs { first: field.offset + scale, len: block - scale, ..scales };
            [stream(dtype, scales, false), stream(Dtype::Int8, codes, false)]
        }
    }
}

impl Stream {
    pub(super) fn len(&self) -> usize {
        self.row_len() * self.rows
    }

    /// Words per row of the stream.
    pub(super) fn columns(&self) -> usize {
        if self.is_transposed { self.rows } else { self.row_len() / self.dtype.bytes() }
    }

    /// Whether the section is the stream as it is.
    pub(super) fn is_whole(&self) -> bool {
        !self.is_transposed && self.runs.count == 1 && self.runs.len == self.stride
    }

    fn row_len(&self) -> usize {
        self.runs.len * self.runs.count
    }

    /// The bytes of the stream in the section `raw`, in `room` unless it is whole.
    pub(super) fn gather<'a>(&self, raw: &'a [u8], room: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        if self.is_whole() {
            return Ok(raw);
        }
        let out = memory::at_least(room, self.len())?;
        if self.is_transposed {
            match self.dtype.bytes() {
                1 => self.gather_columns::<1>(raw, out),
                2 => self.gather_columns::<2>(raw, out),
                _ => self.gather_columns::<4>(raw, out),
            }
            return Ok(out);
        }
        for (row, out) in raw.chunks_exact(self.stride).zip(out.chunks_exact_mut(self.row_len())) {
            for (i, out) in out.chunks_exact_mut(self.runs.len).enumerate() {
                out.copy_from_slice(&row[self.runs.first + i * self.runs.step..][..self.runs.len]);
            }
        }
        Ok(out)
    }

    /// Writes the bytes of the stream, which is not whole, to the section.
    pub(super) fn scatter(&self, words: &[u8], raw: &mut [u8]) {
        if self.is_transposed {
            return match self.dtype.bytes() {
                1 => self.scatter_columns::<1>(words, raw),
                2 => self.scatter_columns::<2>(words, raw),
                _ => self.scatter_columns::<4>(words, raw),
            };
        }
        for (row, words) in raw.chunks_exact_mut(self.stride).zip(words.chunks_exact(self.row_len())) {
            for (i, run) in words.chunks_exact(self.runs.len).enumerate() {
                row[self.runs.first + i * self.runs.step..][..self.runs.len].copy_from_slice(run);
            }
        }
    }

    fn gather_columns<const W: usize>(&self, raw: &[u8], out: &mut [u8]) {
        let out = out.as_chunks_mut::<W>().0;
        for (row, columns) in self.tiles::<W>() {
            let words = raw[self.place(row, columns.start * W)..][..columns.len() * W].as_chunks::<W>().0;
            for (word, column) in words.iter().zip(columns) {
                out[column * self.rows + row] = *word;
            }
        }
    }

    fn scatter_columns<const W: usize>(&self, words: &[u8], raw: &mut [u8]) {
        let words = words.as_chunks::<W>().0;
        for (row, columns) in self.tiles::<W>() {
            let out = raw[self.place(row, columns.start * W)..][..columns.len() * W].as_chunks_mut::<W>().0;
            for (word, column) in out.iter_mut().zip(columns) {
                *word = words[column * self.rows + row];
            }
        }
    }

    /// Rows, and runs of their columns that stay in the first-level cache while all rows are walked.
    fn tiles<const W: usize>(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        const TILE: usize = 32;
        let (rows, columns) = (self.rows, self.runs.len / W);
        (0..columns)
            .step_by(TILE)
            .flat_map(move |first| (0..rows).map(move |row| (row, first..columns.min(first + TILE))))
    }

    fn place(&self, row: usize, byte: usize) -> usize {
        row * self.stride + self.runs.first + byte
    }
}
