//! Format v2: a blob knows its rows. Rows that repeat earlier ones are left out ([`rows`]; with the host's hint, also
//! keys that differ by their [`rotation`] alone); what remains is split into byte planes, channel by channel, and
//! channels of like distribution share an entropy table ([`planes`], [`cluster`]). [`container`] puts a header and
//! checksums around it.

mod cluster;
mod container;
mod decode;
mod form;
mod list;
mod near;
mod planes;
mod predict;
mod repeats;
mod rotation;
mod rows;
mod steps;
mod survey;
mod turn;
mod word;

pub(in crate::gear) use container::is_v2;
pub(in crate::gear) use decode::{DecodeBuffers, decode, decoded_len};

use super::budget::held;
use super::codec::Buffers;
use super::matches;
use super::options::{Effort, Options, Predictors, Rotation};
use super::zstd;
use crate::dtype::Dtype;
use crate::status::{Result, bail};
use crate::sys::memory;
use container::{Header, Mode, OVERHEAD};
use form::RowForm;
use repeats::Repeats;
use rotation::Angles;
use word::{Bf16, F16, F32, Int8};
use xxhash_rust::xxh3::xxh3_64;

/// The body has distances of repeated rows.
const REPEATS: u8 = 1;
/// Rows with a distance repeat but for their rotation, and the body has angles and residuals.
const ROTATED: u8 = 2;

/// The largest blob for `src_len` bytes, or `None` when no such input can be encoded.
pub(super) fn bound(src_len: usize, dtype: Dtype) -> Option<usize> {
    let whole = src_len > 0 && src_len.is_multiple_of(dtype.bytes());
    src_len.checked_add(OVERHEAD).filter(|bound| whole && *bound <= isize::MAX as usize)
}

/// The words of a blob: whole rows, and less than one more.
#[derive(Clone, Copy)]
struct Words<'a> {
    form: RowForm,
    matrix: &'a [u8],
    tail: &'a [u8],
}

/// What is known of a blob's repeats, beside the encoder's [`Repeats`].
#[derive(Clone, Copy)]
struct Found<'a> {
    has_repeats: bool,
    /// They are of rows turned back by these.
    angles: Option<&'a Angles<'a>>,
}

/// Working memory of an encoder, beside what it shares with other formats.
#[derive(Default)]
pub(super) struct Encoder {
    repeats: Repeats,
    planes_scratch: planes::Scratch,
    packed: Vec<u8>,
}

/// What an encoder may hold beside six times its words, but for its ZSTD context.
const FIXED_BYTES: usize = 512 << 10;

impl Encoder {
    /// Encodes `words`, a whole number of words and at least one.
    pub(super) fn encode<'b>(
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
        let header = Header { dtype, mode: Mode::Coded, row_len, decoded_len: words.len(), checksum: xxh3_64(words) };

        let has_repeats = self.push_best(parts, &header, angles.as_ref(), options, zstd, buffers)?;
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
    /// have those of lower ones: a higher one finds more, but what is found does not always pay. Returns whether rows
    /// are left out as the default does it, or a lower effort.
    fn push_best(
        &mut self,
        words: Words<'_>,
        header: &Header,
        angles: Option<&Angles<'_>>,
        options: &Options<'_>,
        zstd: &mut zstd::Compressor,
        buffers: &mut Buffers,
    ) -> Result<bool> {
        let with = |effort| Options { effort, ..*options };
        let mut found = self.find_repeats(words, angles, options.effort, buffers)?;
        self.push_rows(words, header, found, options, zstd, buffers)?;
        if options.effort == Effort::MAX && options.predictors.has(Predictors::RAW) {
            // Predictors are chosen by what they promise, which is not always kept.
            let raw = Options { predictors: Predictors::raw(), ..*options };
            self.push_shorter(words, header, found, &raw, zstd, buffers)?;
        }
        if options.effort == Effort::MAX {
            self.push_shorter(words, header, found, &with(Effort::THOROUGH), zstd, buffers)?;
        }
        if options.effort >= Effort::THOROUGH {
            found = self.find_repeats(words, angles, Effort::DEFAULT, buffers)?;
            self.push_shorter(words, header, found, &with(Effort::DEFAULT), zstd, buffers)?;
        }
        let has_repeats = found.has_repeats;
        // More groups seldom cost more than they save, except in steps, or in one plane that they save little of.
        let saves_little = || {
            let bits = matches::bits(words.matrix) * words.matrix.len() as f64;
            words.form.dtype == Dtype::Int8 && buffers.blob.len() as f64 * 8.0 > bits * 0.975
        };
        if options.effort > Effort::QUICK && (has_repeats || saves_little()) {
            if found.angles.is_none() {
                found = self.find_repeats(words, angles, Effort::QUICK, buffers)?;
            }
            self.push_shorter(words, header, found, &with(Effort::QUICK), zstd, buffers)?;
        }
        if options.effort > Effort::FASTEST && (options.effort <= Effort::QUICK || has_repeats) {
            self.push_shorter(words, header, found, &with(Effort::FASTEST), zstd, buffers)?;
        }
        Ok(has_repeats)
    }

    /// As [`Encoder::push_rows`], but leaves the blob that is there when that is no longer.
    fn push_shorter(
        &mut self,
        words: Words<'_>,
        header: &Header,
        found: Found<'_>,
        options: &Options<'_>,
        zstd: &mut zstd::Compressor,
        buffers: &mut Buffers,
    ) -> Result<()> {
        buffers.swap_blobs();
        self.push_rows(words, header, found, options, zstd, buffers)?;
        if buffers.other.len() <= buffers.blob.len() {
            buffers.swap_blobs();
        }
        Ok(())
    }

    /// Encodes the words to `buffers.other` as one channel with ZSTD's matches, when those promise something: rows that
    /// resemble earlier ones are better left in one piece than cut into channels. Returns false when they promise
    /// nothing.
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
        if effort.get() <= 3 || has_repeats && effort.get() < 7 {
            return Ok(false);
        }
        let lane = words.len() / form.bytes();
        let Buffers { other: blob, planes, grouped: payload, .. } = buffers;
        let planes = memory::at_least(planes, words.len())?;
        form.to_planes(words, planes);
        let bits: f64 = planes.chunks_exact(lane).map(matches::bits).sum();
        // A word has at most four bytes.
        let mut surveys = [matches::Survey::default(); 4];
        let surveys = &mut surveys[..form.bytes()];
        surveys.iter_mut().zip(planes.chunks_exact(lane)).for_each(|(survey, plane)| *survey = matches::survey(plane));
        let saved: f64 = surveys.iter().filter(|survey| survey.search.is_some()).map(|survey| survey.saved).sum();
        // What channels save; matches save about five times what the piece shows that is looked at.
        let channels = bits - 8.0 * blob_len as f64 / lane as f64;
        if effort.get() < 7 && (saved == 0.0 || 5.0 * saved < channels) {
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
        let needed = if angles.is_some() {
            rotation::room(matrix.len(), rows)
        } else {
            rows::room(matrix.len(), rows, form, effort)
        };
        let held = buffers.held() + self.repeats.held() + self.planes_scratch.held() + held(&self.packed);
        if held + needed > 6 * (matrix.len() + tail.len()) + FIXED_BYTES {
            buffers.release();
            self.packed = Vec::new();
        }
        let repeats = &mut self.repeats;
        let angles = match angles {
            Some(angles) if find_rotated(matrix, form, angles, effort, repeats)? => Some(angles),
            _ => None,
        };
        let has_repeats = angles.is_some() || find_alike(matrix, form, effort, repeats)?;
        Ok(Found { has_repeats, angles })
    }

    /// Encodes the words to `buffers.blob` as rows, with what [`Encoder::find_repeats`] found.
    fn push_rows(
        &mut self,
        Words { form, matrix, tail }: Words<'_>,
        header: &Header,
        Found { has_repeats, angles }: Found<'_>,
        options: &Options<'_>,
        zstd: &mut zstd::Compressor,
        buffers: &mut Buffers,
    ) -> Result<()> {
        let Encoder { repeats, planes_scratch: scratch, packed } = self;
        let Buffers { blob, planes, grouped, .. } = buffers;
        let planes_options = planes::Options { predictors: options.predictors, effort: options.effort };
        container::begin(blob, header)?;
        memory::push(blob, if angles.is_some() { REPEATS | ROTATED } else { has_repeats as u8 })?;
        if has_repeats {
            repeats::push(repeats, form, &planes_options, zstd, scratch, planes, packed, grouped, blob)?;
        }
        if let Some(angles) = angles {
            angles.push(zstd, (&mut *planes, &mut *grouped), blob)?;
        }
        let mut rows = matrix;
        if has_repeats || form.has_split_exponents() {
            let copy = memory::at_least(grouped, matrix.len())?;
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
        form.to_planes(rows, &mut planes[..rows.len()]);
        let shape = form.shape(rows.len() / form.bytes());
        planes::encode(planes, &shape, &planes_options, zstd, scratch, grouped, blob)?;
        memory::reserve(blob, tail.len())?;
        memory::extend(blob, tail)
    }
}

/// The hint in numbers, when it fits `count` words.
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

fn find_rotated(
    matrix: &[u8],
    form: RowForm,
    angles: &Angles<'_>,
    effort: Effort,
    repeats: &mut Repeats,
) -> Result<bool> {
    match form.dtype {
        Dtype::F16 => rotation::find::<F16>(matrix, form.len, angles, effort, repeats),
        Dtype::Bf16 => rotation::find::<Bf16>(matrix, form.len, angles, effort, repeats),
        Dtype::F32 => rotation::find::<F32>(matrix, form.len, angles, effort, repeats),
        Dtype::Int8 => bail!(InvalidArgument, "INT8 words take no rotation hint"),
    }
}

fn find_alike(matrix: &[u8], form: RowForm, effort: Effort, repeats: &mut Repeats) -> Result<bool> {
    match form.dtype {
        Dtype::F16 => rows::find::<F16>(matrix, form.len, effort, repeats),
        Dtype::Bf16 => rows::find::<Bf16>(matrix, form.len, effort, repeats),
        Dtype::F32 => rows::find::<F32>(matrix, form.len, effort, repeats),
        Dtype::Int8 => rows::find::<Int8>(matrix, form.len, effort, repeats),
    }
}
