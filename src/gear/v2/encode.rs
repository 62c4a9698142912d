//! Words to blobs: the shortest of the ways that an effort has.

use super::container::{self, Header, Mode, OVERHEAD, RowForm};
use super::planes::{self, Coder};
use super::rows::{self, Angles, Repeats};
use super::{REPEATS, ROTATED};
use crate::dtype::Dtype;
use crate::gear::budget::held;
use crate::gear::checksum::checksum;
use crate::gear::codec::Buffers;
use crate::gear::matches;
use crate::gear::options::{Effort, Options, Rotation};
use crate::gear::zstd;
use crate::status::{Result, bail};
use crate::sys::memory;

/// The largest blob for `src_len` bytes, or `None` if no such input can be encoded.
pub(in crate::gear) fn bound(src_len: usize, dtype: Dtype) -> Option<usize> {
    let whole = src_len > 0 && src_len.is_multiple_of(dtype.bytes());
    src_len.checked_add(OVERHEAD).filter(|bound| whole && *bound <= isize::MAX as usize)
}

/// The words of a blob: whole rows, and a tail of less than a row.
#[derive(Clone, Copy)]
struct Words<'a> {
    form: RowForm,
    matrix: &'a [u8],
    tail: &'a [u8],
}

/// The kind of rows that [`Encoder::find_repeats`] found; the encoder has their [`Repeats`].
#[derive(Clone, Copy)]
struct Found<'a> {
    has_repeats: bool,
    /// The rows repeat when turned back by these.
    angles: Option<&'a Angles<'a>>,
}

/// Working memory of an encoder, beside [`Buffers`].
#[derive(Default)]
pub(in crate::gear) struct Encoder {
    repeats: Repeats,
    planes_scratch: planes::Scratch,
    packed: Vec<u8>,
}

/// Bytes that an encoder may hold beside six times its words and its ZSTD context.
const FIXED_BYTES: usize = 512 << 10;

impl Encoder {
    /// Encodes `words`, a whole number of words and at least one.
    pub(in crate::gear) fn encode<'b>(
        &mut self,
        words: &[u8],
        dtype: Dtype,
        options: &Options<'_>,
        zstd: &mut zstd::Compressor,
        buffers: &'b mut Buffers,
    ) -> Result<&'b [u8]> {
        let width = dtype.bytes();
        if bound(words.len(), dtype).is_none() {
            bail!(InvalidArgument, "src_len is {}; a multiple of {width} and at least {width} expected", words.len());
        }
        let count = words.len() / width;
        let angles = options.rotation.map(|hint| angles(&hint, count, dtype, options.head_dim)).transpose()?;
        // Less than a row is a column, and so are rows that are too few.
        let row_len = match options.head_dim {
            0 => 1,
            dim if dim > count || dim > u32::MAX as usize => 1,
            dim if planes::has_too_few_rows(&RowForm { dtype, len: dim }.shape(count / dim)) => 1,
            dim => dim,
        };
        let angles = angles.filter(|_| row_len == options.head_dim);
        let form = RowForm { dtype, len: row_len };
        let (matrix, tail) = words.split_at(words.len() / form.bytes() * form.bytes());
        let parts = Words { form, matrix, tail };
        let header = Header { dtype, mode: Mode::Coded, row_len, decoded_len: words.len(), checksum: checksum(words) };

        let has_repeats = self.push_best(parts, &header, angles.as_ref(), options.effort, zstd, buffers)?;
        let rows = (has_repeats, buffers.blob.len());
        if self.push_flat(words, &header, rows, options.effort, zstd, buffers)?
            && buffers.other.len() < buffers.blob.len()
        {
            buffers.swap_blobs();
        }
        let blob = &mut buffers.blob;
        if blob.len() > words.len() + OVERHEAD - container::TRAILER_LEN {
            container::begin(blob, &Header { mode: Mode::Stored, ..header })?;
            memory::extend(blob, words)?;
        }
        container::end(blob)?;
        Ok(blob)
    }

    /// Encodes the words as rows to `buffers.blob`, in the shortest of the ways that the effort has. Most efforts also
    /// have those of lower ones: a higher one finds more, but that does not always pay. Returns whether rows are left out
    /// at the default effort, or a lower one.
    fn push_best(
        &mut self,
        words: Words<'_>,
        header: &Header,
        angles: Option<&Angles<'_>>,
        effort: Effort,
        zstd: &mut zstd::Compressor,
        buffers: &mut Buffers,
    ) -> Result<bool> {
        let mut found = self.find_repeats(words, angles, effort, buffers)?;
        self.push_rows(words, header, found, effort, zstd, buffers)?;
        if effort == Effort::MAX {
            self.push_shorter(words, header, found, Effort::THOROUGH, zstd, buffers)?;
        }
        if effort >= Effort::THOROUGH {
            found = self.find_repeats(words, angles, Effort::DEFAULT, buffers)?;
            self.push_shorter(words, header, found, Effort::DEFAULT, zstd, buffers)?;
        }
        let has_repeats = found.has_repeats;
        if has_repeats && found.angles.is_none() && self.saves_much(words, effort, buffers)? {
            return Ok(true);
        }
        // More groups seldom cost more than they save, except in steps, or in one plane that they save little of.
        let saves_little = || {
            let bits = matches::bits(words.matrix) * words.matrix.len() as f64;
            words.form.dtype == Dtype::Int8 && buffers.blob.len() as f64 * 8.0 > bits * 0.975
        };
        if effort > Effort::QUICK && (has_repeats || saves_little()) {
            if found.angles.is_none() {
                found = self.find_repeats(words, angles, Effort::QUICK, buffers)?;
            }
            self.push_shorter(words, header, found, Effort::QUICK, zstd, buffers)?;
        }
        if effort > Effort::FASTEST && (effort <= Effort::QUICK || has_repeats) {
            self.push_shorter(words, header, found, Effort::FASTEST, zstd, buffers)?;
        }
        Ok(has_repeats)
    }

    /// Whether steps from near rows save more than the ways without them could.
    fn saves_much(&self, words: Words<'_>, effort: Effort, buffers: &mut Buffers) -> Result<bool> {
        /// The least share that channel groups leave of codes for single bytes.
        const GROUPED: f64 = 0.92;
        if effort >= Effort::THOROUGH || self.repeats.steps.is_empty() {
            return Ok(false);
        }
        let Words { form, matrix, .. } = words;
        let equal = self.repeats.kinds.iter().filter(|kind| **kind == 0).count();
        let others = 1.0 - equal as f64 / self.repeats.distances.len() as f64;
        let planes = memory::at_least(&mut buffers.planes, matrix.len())?;
        RowForm { len: 1, ..form }.to_planes(matrix, planes);
        let plane_len = matrix.len() / form.dtype.bytes();
        let bits = planes.chunks_exact(plane_len).map(matches::bits).sum::<f64>() * plane_len as f64;
        Ok((buffers.blob.len() * 8) as f64 <= bits * others * GROUPED)
    }

    /// As [`Encoder::push_rows`], but keeps the blob that is there unless the new one is shorter.
    fn push_shorter(
        &mut self,
        words: Words<'_>,
        header: &Header,
        found: Found<'_>,
        effort: Effort,
        zstd: &mut zstd::Compressor,
        buffers: &mut Buffers,
    ) -> Result<()> {
        buffers.swap_blobs();
        self.push_rows(words, header, found, effort, zstd, buffers)?;
        if buffers.other.len() <= buffers.blob.len() {
            buffers.swap_blobs();
        }
        Ok(())
    }

    /// Encodes the words to `buffers.other` as one channel with ZSTD's matches. Returns false if those promise nothing.
    /// Rows that resemble earlier ones compress better in one piece than cut into channels.
    fn push_flat(
        &mut self,
        words: &[u8],
        header: &Header,
        (has_repeats, blob_len): (bool, usize),
        effort: Effort,
        zstd: &mut zstd::Compressor,
        buffers: &mut Buffers,
    ) -> Result<bool> {
        let form = RowForm { dtype: header.dtype, len: 1 };
        // Words of one byte are quickly surveyed.
        if effort <= Effort::QUICK && form.dtype != Dtype::Int8 || has_repeats && effort < Effort::THOROUGH {
            return Ok(false);
        }
        let plane_len = words.len() / form.bytes();
        let Buffers { other: blob, planes, grouped: payload, .. } = buffers;
        let planes = memory::at_least(planes, words.len())?;
        form.to_planes(words, planes);
        let bits: f64 = planes.chunks_exact(plane_len).map(matches::bits).sum();
        // A word has at most four bytes.
        let mut surveys = [matches::Survey::default(); 4];
        let surveys = &mut surveys[..form.bytes()];
        surveys
            .iter_mut()
            .zip(planes.chunks_exact(plane_len))
            .for_each(|(survey, plane)| *survey = matches::survey(plane));
        let saved: f64 = surveys.iter().filter(|survey| survey.search.is_some()).map(|survey| survey.saved).sum();
        // Bits that channels save. The estimate of what matches save may be half of it.
        let channels = bits - 8.0 * blob_len as f64 / plane_len as f64;
        if effort.get() < 7 && (saved == 0.0 || 2.0 * saved < channels) {
            return Ok(false);
        }
        container::begin(blob, &Header { mode: Mode::Flat, row_len: 1, ..*header })?;
        planes::encode_flat(planes, surveys, zstd, payload, blob)?;
        Ok(true)
    }

    /// Fills in `self.repeats`.
    fn find_repeats<'a>(
        &mut self,
        Words { form, matrix, tail }: Words<'_>,
        angles: Option<&'a Angles<'a>>,
        effort: Effort,
        buffers: &mut Buffers,
    ) -> Result<Found<'a>> {
        let rows = matrix.len() / form.bytes();
        let needed = rows::room(matrix.len(), rows, form, angles.is_some(), effort);
        let held = buffers.held() + self.repeats.held() + self.planes_scratch.held() + held(&self.packed);
        if held + needed > 6 * (matrix.len() + tail.len()) + FIXED_BYTES {
            buffers.release();
            self.packed = Vec::new();
        }
        if angles.is_some() && rows::find(matrix, form, angles, effort, &mut self.repeats)? {
            return Ok(Found { has_repeats: true, angles });
        }
        let has_repeats = rows::find(matrix, form, None, effort, &mut self.repeats)?;
        Ok(Found { has_repeats, angles: None })
    }

    /// Encodes the words to `buffers.blob` as rows, with the result of [`Encoder::find_repeats`].
    fn push_rows(
        &mut self,
        Words { form, matrix, tail }: Words<'_>,
        header: &Header,
        Found { has_repeats, angles }: Found<'_>,
        effort: Effort,
        zstd: &mut zstd::Compressor,
        buffers: &mut Buffers,
    ) -> Result<()> {
        let Encoder { repeats, planes_scratch: scratch, packed } = self;
        let Buffers { blob, planes, grouped, .. } = buffers;
        container::begin(blob, header)?;
        memory::push(blob, if angles.is_some() { REPEATS | ROTATED } else { has_repeats as u8 })?;
        let mut coder = Coder { effort, zstd, scratch, grouped };
        if has_repeats {
            rows::push_repeats(repeats, form, &mut coder, (&mut *planes, packed), blob)?;
        }
        if let Some(angles) = angles {
            angles.push(coder.zstd, (&mut *planes, &mut *coder.grouped), blob)?;
        }
        let mut rows = matrix;
        if has_repeats || form.has_split_exponents() {
            let copy = memory::at_least(coder.grouped, matrix.len())?;
            let mut len = matrix.len();
            if has_repeats {
                len = rows::keep_new(matrix, form.bytes(), &repeats.distances, copy);
            } else {
                copy.copy_from_slice(matrix);
            }
            form.align_exponents(&mut copy[..len]);
            rows = &copy[..len];
        }
        let planes = memory::at_least(planes, planes::room(rows.len()))?;
        let shape = form.shape(rows.len() / form.bytes());
        form.to_planes(rows, &mut planes[..shape.len()]);
        coder.encode(planes, &shape, blob)?;
        memory::reserve(blob, tail.len())?;
        memory::extend(blob, tail)
    }
}

/// The angles of a hint. Fails unless it fits `count` words.
fn angles<'a>(hint: &Rotation<'a>, count: usize, dtype: Dtype, head_dim: usize) -> Result<Angles<'a>> {
    if head_dim == 0 {
        bail!(InvalidArgument, "a rotation hint needs head_dim");
    }
    if head_dim > count || head_dim > u32::MAX as usize {
        bail!(InvalidArgument, "a rotation hint with less than a row: head_dim is {head_dim}");
    }
    if !count.is_multiple_of(head_dim) {
        bail!(
            InvalidArgument,
            "src_len is {} with a rotation hint; whole rows of {} bytes expected",
            count * dtype.bytes(),
            head_dim * dtype.bytes()
        );
    }
    if dtype == Dtype::Int8 {
        bail!(InvalidArgument, "INT8 words take no rotation hint");
    }
    Angles::new(hint, head_dim, count / head_dim)
}
