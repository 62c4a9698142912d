//! A buffer to sections, and a section to its payload and back.

use crate::words::Coder;
use mnnkv::dtype::Dtype;
use mnnkv::status::{Result, bail};
use mnnkv::sys::memory;
use std::ops::Range;

/// The most bytes of a section: enough words for good tables, and few enough for all cores.
const SECTION: usize = 1 << 20;
/// A stream begins with its length.
const STREAM_HEAD: usize = 8;

/// What bytes are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// The type of the words.
    pub dtype: Dtype,
    /// Bytes of a block; 0: words all through.
    pub block: u16,
    /// Bytes of the words that a block begins with. Codes of single bytes follow.
    pub scale: u16,
}

impl Form {
    /// The bytes that this form comes in, or `None` if there is no such form.
    pub(super) fn unit(self) -> Option<usize> {
        let Form { dtype, block, scale } = self;
        let is_block = 0 < scale && scale < block && (scale as usize).is_multiple_of(dtype.bytes());
        match (block, scale) {
            (0, 0) => Some(dtype.bytes()),
            _ => is_block.then_some(block as usize),
        }
    }

    /// Bytes that no tensor has: probably f16, as most caches.
    fn opaque(len: usize) -> Self {
        let dtype = if len.is_multiple_of(2) { Dtype::F16 } else { Dtype::Int8 };
        Form { dtype, block: 0, scale: 0 }
    }

    /// The streams of so many bytes: words, and codes where there are any.
    fn streams(self, len: usize) -> [(Dtype, usize); 2] {
        let words = if self.block == 0 { len } else { len / self.block as usize * self.scale as usize };
        [(self.dtype, words), (Dtype::Int8, len - words)]
    }

    /// The words and the codes of each block.
    fn parts<'a>(self, words: &'a mut [u8], codes: &'a mut [u8]) -> impl Iterator<Item = (&'a mut [u8], &'a mut [u8])> {
        words.chunks_exact_mut(self.scale.into()).zip(codes.chunks_exact_mut((self.block - self.scale).into()))
    }
}

/// Bytes of a buffer that have a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Where they begin.
    pub offset: usize,
    /// How many.
    pub bytes: usize,
    /// Their form.
    pub form: Form,
}

/// Bytes of a buffer that are encoded as one.
#[derive(Clone, Copy)]
pub(super) struct Section {
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) form: Form,
}

impl Section {
    pub(super) fn bytes(&self) -> Range<usize> {
        self.start..self.start + self.len
    }

    /// The most bytes of its payload.
    pub(super) fn bound(&self) -> usize {
        self.len + 2 * STREAM_HEAD
    }
}

/// Cuts a buffer of `len` bytes. INVALID_ARGUMENT: if a tensor is out of range, overlaps another or comes before it.
pub(super) fn cut(len: usize, tensors: &[Tensor]) -> Result<Vec<Section>> {
    let (mut sections, mut at) = (Vec::new(), 0);
    for (i, tensor) in tensors.iter().enumerate() {
        let Tensor { offset, bytes, form } = *tensor;
        let Some(unit) = form.unit() else {
            let Form { dtype, block, scale } = form;
            bail!(
                InvalidArgument,
                "tensors[{i}].scale_bytes is {scale} in blocks of {block}; a multiple of {} below {block} expected",
                dtype.bytes()
            );
        };
        if bytes == 0 || !bytes.is_multiple_of(unit) {
            bail!(InvalidArgument, "tensors[{i}].bytes is {bytes}; a multiple of {unit} expected");
        }
        if offset < at {
            bail!(InvalidArgument, "tensors[{i}].offset is {offset}; {at} or more expected, the end of the one before");
        }
        if offset > len || bytes > len - offset {
            bail!(InvalidArgument, "tensors[{i}] has {bytes} bytes from byte {offset} on; src_len is {len}");
        }
        push(&mut sections, at..offset, None)?;
        at = offset + bytes;
        push(&mut sections, offset..at, Some(form))?;
    }
    push(&mut sections, at..len, None)?;
    Ok(sections)
}

fn push(sections: &mut Vec<Section>, bytes: Range<usize>, form: Option<Form>) -> Result<()> {
    let unit = form.and_then(Form::unit).unwrap_or(1);
    let most = SECTION / unit * unit;
    let mut start = bytes.start;
    while start < bytes.end {
        let len = most.min(bytes.end - start);
        let form = form.unwrap_or(Form::opaque(len));
        memory::push(sections, Section { start, len, form })?;
        start += len;
    }
    Ok(())
}

/// Working memory of a thread.
#[derive(Default)]
pub(super) struct Worker {
    coder: Coder,
    room: Vec<u8>,
}

impl Worker {
    /// Encodes the bytes of a section to `out`, of at least [`Section::bound`] bytes; returns the length.
    pub(super) fn encode(&mut self, form: Form, raw: &[u8], out: &mut [u8]) -> Result<usize> {
        let streams = form.streams(raw.len());
        let mut rest = raw;
        if form.block > 0 {
            let room = memory::at_least(&mut self.room, raw.len())?;
            let (words, codes) = room.split_at_mut(streams[0].1);
            for (block, (words, codes)) in raw.chunks_exact(form.block.into()).zip(form.parts(words, codes)) {
                words.copy_from_slice(&block[..words.len()]);
                codes.copy_from_slice(&block[words.len()..]);
            }
            rest = room;
        }
        let mut len = 0;
        for (dtype, bytes) in streams.into_iter().filter(|stream| stream.1 > 0) {
            let words;
            (words, rest) = rest.split_at(bytes);
            let blob = self.coder.encode(words, dtype)?;
            let stored = if blob.len() < words.len() { blob } else { words };
            let (head, body) = out[len..].split_at_mut(STREAM_HEAD);
            head.copy_from_slice(&(stored.len() as u64).to_le_bytes());
            body[..stored.len()].copy_from_slice(stored);
            len += STREAM_HEAD + stored.len();
        }
        Ok(len)
    }

    /// Decodes a payload to the bytes of a section.
    pub(super) fn decode(&mut self, form: Form, mut payload: &[u8], raw: &mut [u8]) -> Result<()> {
        let len = raw.len();
        let Worker { coder, room } = self;
        let whole = if form.block > 0 { memory::at_least(room, len)? } else { &mut *raw };
        let mut rest = &mut *whole;
        for (dtype, bytes) in form.streams(len).into_iter().filter(|stream| stream.1 > 0) {
            let Some((head, behind)) = payload.split_first_chunk() else {
                bail!(Corrupt, "a stream has {} bytes; its length alone has {STREAM_HEAD}", payload.len());
            };
            let stored = u64::from_le_bytes(*head);
            let Some((stored, behind)) = usize::try_from(stored).ok().and_then(|at| behind.split_at_checked(at)) else {
                bail!(Corrupt, "a stream has {stored} bytes; {} are left", behind.len());
            };
            payload = behind;
            let words;
            (words, rest) = rest.split_at_mut(bytes);
            match stored.len() == bytes {
                true => words.copy_from_slice(stored),
                false => coder.decode(stored, dtype, words)?,
            }
        }
        if !payload.is_empty() {
            bail!(Corrupt, "{} bytes after the end of the last stream", payload.len());
        }
        if form.block > 0 {
            let (words, codes) = room[..len].split_at_mut(form.streams(len)[0].1);
            for (block, (words, codes)) in raw.chunks_exact_mut(form.block.into()).zip(form.parts(words, codes)) {
                block[..words.len()].copy_from_slice(words);
                block[words.len()..].copy_from_slice(codes);
            }
        }
        Ok(())
    }
}
