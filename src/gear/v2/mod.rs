//! Format v2: a blob knows its rows. Rows that repeat earlier ones are left out ([`rows`]; with the host's hint, also
//! keys that differ by their [`rotation`] alone); what remains is split into byte planes, channel by channel, and
//! channels of like distribution share an entropy table ([`planes`], [`cluster`]). [`container`] puts a header and
//! checksums around it.

mod cluster;
mod container;
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

use super::matches;
use super::options::{Effort, Options, Predictors};
use super::zstd;
use crate::dtype::Dtype;
use crate::status::{Error, Result, bail};
use crate::sys::memory;
use container::{Header, Mode, OVERHEAD, Reader};
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

/// The decoded size in bytes that a blob announces.
pub(super) fn decoded_len(blob: &[u8], dtype: Dtype) -> Result<usize> {
    Ok(parse(blob, dtype)?.0.decoded_len)
}

fn parse(blob: &[u8], dtype: Dtype) -> Result<(Header, &[u8])> {
    let (header, body) = container::parse(blob)?;
    if header.dtype != dtype {
        bail!(InvalidArgument, "the blob holds {} words; {} asked for", header.dtype.name(), dtype.name());
    }
    Ok((header, body))
}

/// What is known of a blob's repeats, beside the encoder's [`Repeats`].
struct Found {
    has_repeats: bool,
    /// They are of rows turned back by these.
    angles: Option<Angles>,
}

/// Working memory of an encoder.
#[derive(Default)]
pub(super) struct Encoder {
    repeats: Repeats,
    repeats_scratch: repeats::Scratch,
    /// New rows, when some are left out or words are rotated.
    rows: Vec<u8>,
    planes: Vec<u8>,
    planes_scratch: planes::Scratch,
    small: (Vec<u8>, Vec<u8>),
    blob: Vec<u8>,
    /// A blob that may prove shorter.
    other: Vec<u8>,
}

impl Encoder {
    /// Encodes `words`, a whole number of words and at least one.
    pub(super) fn encode(
        &mut self,
        words: &[u8],
        dtype: Dtype,
        options: &Options<'_>,
        zstd: &mut zstd::Compressor,
    ) -> Result<&[u8]> {
        let width = dtype.bytes();
        if bound(words.len(), dtype).is_none() {
            bail!(InvalidArgument, "src_len is {}; a multiple of {width} and at least {width} expected", words.len());
        }
        // Less than a row is a column.
        let row_len = match options.head_dim {
            0 => 1,
            dim if dim > words.len() / width || dim > u32::MAX as usize => 1,
            dim => dim,
        };
        let header = Header { dtype, mode: Mode::Coded, row_len, decoded_len: words.len(), checksum: xxh3_64(words) };
        let (mut blob, mut other) = (std::mem::take(&mut self.blob), std::mem::take(&mut self.other));
        blob.clear();
        memory::reserve(&mut blob, words.len() + OVERHEAD)?;
        container::begin(&mut blob, &header);
        let form = RowForm { dtype, len: row_len };
        let (matrix, tail) = words.split_at(words.len() / form.bytes() * form.bytes());
        let found = self.find_repeats(matrix, tail, form, options)?;
        self.push_rows(matrix, tail, form, &found, options, zstd, &mut blob)?;
        if options.effort == Effort::MAX && options.predictors.has(Predictors::RAW) {
            // Predictors are chosen by what they promise, which is not always kept.
            other.clear();
            container::begin(&mut other, &header);
            let raw = Options { predictors: Predictors::raw(), ..*options };
            self.push_rows(matrix, tail, form, &found, &raw, zstd, &mut other)?;
            if other.len() < blob.len() {
                std::mem::swap(&mut blob, &mut other);
            }
        }
        let rows = (found.has_repeats, blob.len());
        if self.push_flat(words, &header, rows, options.effort, zstd, &mut other)? && other.len() < blob.len() {
            std::mem::swap(&mut blob, &mut other);
        }
        if blob.len() > words.len() + OVERHEAD - container::TRAILER_LEN {
            blob.clear();
            container::begin(&mut blob, &Header { mode: Mode::Stored, ..header });
            blob.extend_from_slice(words);
        }
        container::end(&mut blob);
        (self.blob, self.other) = (blob, other);
        Ok(&self.blob)
    }

    /// Encodes the words as one channel with ZSTD's matches, when those promise something: rows that resemble earlier
    /// ones are better left in one piece than cut into channels. Returns false when they promise nothing.
    fn push_flat(
        &mut self,
        words: &[u8],
        header: &Header,
        (has_repeats, blob_len): (bool, usize),
        effort: Effort,
        zstd: &mut zstd::Compressor,
        blob: &mut Vec<u8>,
    ) -> Result<bool> {
        let form = RowForm { dtype: header.dtype, len: 1 };
        if effort.get() <= 3 || has_repeats && effort.get() < 7 {
            return Ok(false);
        }
        let lane = words.len() / form.bytes();
        let planes = memory::at_least(&mut self.planes, words.len())?;
        form.to_planes(words, planes);
        let bits: f64 = planes.chunks_exact(lane).map(matches::bits).sum();
        let surveys: Vec<_> = planes.chunks_exact(lane).map(matches::survey).collect();
        let saved: f64 = surveys.iter().filter(|survey| survey.search.is_some()).map(|survey| survey.saved).sum();
        // What channels save; matches save about five times what the piece shows that is looked at.
        let channels = bits - 8.0 * blob_len as f64 / lane as f64;
        if effort.get() < 7 && (saved == 0.0 || 5.0 * saved < channels) {
            return Ok(false);
        }
        blob.clear();
        memory::reserve(blob, words.len() + OVERHEAD)?;
        container::begin(blob, &Header { mode: Mode::Flat, row_len: 1, ..*header });
        planes::encode_flat(planes, &surveys, zstd, &mut self.planes_scratch, blob)?;
        Ok(true)
    }

    /// Fills in `self.repeats`.
    fn find_repeats(&mut self, matrix: &[u8], tail: &[u8], form: RowForm, options: &Options<'_>) -> Result<Found> {
        let angles = match &options.rotation {
            Some(_) if options.head_dim == 0 => bail!(InvalidArgument, "a rotation hint needs head_dim"),
            Some(_) if form.len != options.head_dim => {
                bail!(InvalidArgument, "a rotation hint with less than a row: head_dim is {}", options.head_dim)
            }
            Some(_) if !tail.is_empty() => bail!(
                InvalidArgument,
                "src_len is {} with a rotation hint; whole rows of {} bytes expected",
                matrix.len() + tail.len(),
                form.bytes()
            ),
            Some(hint) => Some(Angles::new(hint, form.len, matrix.len() / form.bytes())?),
            None => None,
        };
        let repeats = &mut self.repeats;
        let angles = match angles {
            Some(angles) if find_rotated(matrix, form, &angles, options.effort, repeats)? => Some(angles),
            _ => None,
        };
        let has_repeats = angles.is_some() || find_alike(matrix, form, options.effort, repeats)?;
        Ok(Found { has_repeats, angles })
    }

    /// Appends the body of the words as rows, with what [`Encoder::find_repeats`] found.
    #[expect(clippy::too_many_arguments, reason = "the two halves of the words, and what is known of them")]
    fn push_rows(
        &mut self,
        matrix: &[u8],
        tail: &[u8],
        form: RowForm,
        Found { has_repeats, angles }: &Found,
        options: &Options<'_>,
        zstd: &mut zstd::Compressor,
        blob: &mut Vec<u8>,
    ) -> Result<()> {
        let (repeats, has_repeats) = (&self.repeats, *has_repeats);
        let planes_options = planes::Options { predictors: options.predictors, effort: options.effort };
        let (planes_scratch, repeats_scratch) = (&mut self.planes_scratch, &mut self.repeats_scratch);
        blob.push(if angles.is_some() { REPEATS | ROTATED } else { has_repeats as u8 });
        let mut rows = matrix;
        if has_repeats {
            repeats::push(repeats, form, &planes_options, zstd, planes_scratch, repeats_scratch, blob)?;
            rows::keep_new(matrix, form.bytes(), &repeats.distances, &mut self.rows)?;
            rows = &self.rows;
        }
        if let Some(angles) = angles {
            angles.push(zstd, &mut self.small, blob)?;
        }
        if form.has_split_exponents() {
            if !has_repeats {
                self.rows.clear();
                memory::reserve(&mut self.rows, matrix.len())?;
                self.rows.extend_from_slice(matrix);
            }
            form.align_exponents(&mut self.rows);
            rows = &self.rows;
        }
        let planes = memory::at_least(&mut self.planes, rows.len())?;
        form.to_planes(rows, planes);
        let shape = form.shape(rows.len() / form.bytes());
        planes::encode(planes, &shape, &planes_options, zstd, planes_scratch, blob)?;
        memory::reserve(blob, tail.len())?;
        blob.extend_from_slice(tail);
        Ok(())
    }
}

fn find_rotated(matrix: &[u8], form: RowForm, angles: &Angles, effort: Effort, repeats: &mut Repeats) -> Result<bool> {
    match form.dtype {
        Dtype::F16 => rotation::find::<F16>(matrix, form.len, angles, effort, repeats),
        Dtype::Bf16 => rotation::find::<Bf16>(matrix, form.len, angles, effort, repeats),
        Dtype::F32 => rotation::find::<F32>(matrix, form.len, angles, effort, repeats),
        Dtype::Int8 => bail!(InvalidArgument, "INT8 words take no rotation hint"),
    }
}

fn expand_rotated(rows: &[u8], form: RowForm, angles: &Angles, repeats: &Repeats, matrix: &mut [u8]) -> Result<()> {
    match form.dtype {
        Dtype::F16 => rotation::expand::<F16>(rows, repeats, form.len, angles, matrix),
        Dtype::Bf16 => rotation::expand::<Bf16>(rows, repeats, form.len, angles, matrix),
        Dtype::F32 => rotation::expand::<F32>(rows, repeats, form.len, angles, matrix),
        Dtype::Int8 => bail!(Corrupt, "rotated rows of INT8 words"),
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

fn expand_alike(rows: &[u8], form: RowForm, repeats: &Repeats, matrix: &mut [u8]) {
    match form.dtype {
        Dtype::F16 => rows::expand::<F16>(rows, repeats, form.len, matrix),
        Dtype::Bf16 => rows::expand::<Bf16>(rows, repeats, form.len, matrix),
        Dtype::F32 => rows::expand::<F32>(rows, repeats, form.len, matrix),
        Dtype::Int8 => rows::expand::<Int8>(rows, repeats, form.len, matrix),
    }
}

/// Working memory of a decoder.
#[derive(Default)]
pub(super) struct Decoder {
    words: Vec<u8>,
    /// New rows, when there are others.
    rows: Vec<u8>,
    repeats: Repeats,
    repeats_scratch: repeats::Scratch,
    planes: Vec<u8>,
    small: Vec<u8>,
    planes_scratch: planes::DecodeScratch,
}

impl Decoder {
    /// Decodes `blob` to the start of `words` and returns the length in bytes.
    pub(super) fn decode(
        &mut self,
        blob: &[u8],
        dtype: Dtype,
        words: &mut [u8],
        zstd: &mut zstd::Decompressor,
    ) -> Result<usize> {
        let (header, body) = parse(blob, dtype)?;
        let len = header.decoded_len;
        if words.len() < len {
            return Err(Error::too_small("dst_cap (bytes)", words.len(), len));
        }
        let decoded = match header.mode {
            Mode::Stored if body.len() == len => body,
            Mode::Stored => bail!(Corrupt, "stored blob of {len} words' bytes holds {}", body.len()),
            Mode::Coded => {
                self.read_rows(&header, body, zstd)?;
                &self.words[..len]
            }
            Mode::Flat => {
                let form = RowForm { dtype, len: 1 };
                let planes = memory::at_least(&mut self.planes, len)?;
                planes::decode_flat(Reader(body), len / form.bytes(), zstd, planes)?;
                let words = memory::at_least(&mut self.words, len)?;
                form.to_rows(planes, words);
                words
            }
        };
        if xxh3_64(decoded) != header.checksum {
            bail!(Corrupt, "the decoded words' checksum does not match: the blob is damaged");
        }
        words[..len].copy_from_slice(decoded);
        Ok(len)
    }

    /// Decodes the body of a coded blob to `self.words`.
    fn read_rows(&mut self, header: &Header, body: &[u8], zstd: &mut zstd::Decompressor) -> Result<()> {
        let mut body = Reader(body);
        let flags = body.byte("flags")?;
        if !matches!(flags, 0 | REPEATS) && flags != REPEATS | ROTATED {
            bail!(Unsupported, "blob with flags {flags:#x}; 0, 1 and 3 are known");
        }
        let form = RowForm { dtype: header.dtype, len: header.row_len };
        if header.row_len > header.decoded_len / header.dtype.bytes() {
            bail!(Corrupt, "{} bytes hold no row of {} elements", header.decoded_len, header.row_len);
        }
        let count = header.decoded_len / form.bytes();
        let words = memory::at_least(&mut self.words, header.decoded_len)?;
        let (matrix, tail) = words.split_at_mut(count * form.bytes());
        let (repeats, planes_scratch) = (&mut self.repeats, &mut self.planes_scratch);
        repeats.start(flags & ROTATED != 0);
        let mut new = count;
        if flags & REPEATS != 0 {
            new = repeats::read(&mut body, form, count, zstd, planes_scratch, &mut self.repeats_scratch, repeats)?;
        }
        let angles = match repeats.is_rotated {
            true => Some(Angles::read(&mut body, form.len, count, zstd, &mut self.small)?),
            false => None,
        };
        let planes = memory::at_least(&mut self.planes, new * form.bytes())?;
        planes::decode(&mut body, &form.shape(new), zstd, planes_scratch, planes)?;
        if flags & REPEATS == 0 {
            form.to_rows(planes, matrix);
            form.restore_exponents(matrix);
        } else {
            let rows = memory::at_least(&mut self.rows, planes.len())?;
            form.to_rows(planes, rows);
            form.restore_exponents(rows);
            match angles {
                Some(angles) => expand_rotated(rows, form, &angles, repeats, matrix)?,
                None => expand_alike(rows, form, repeats, matrix),
            }
        }
        tail.copy_from_slice(body.take(tail.len(), "the last words")?);
        body.end()
    }
}
