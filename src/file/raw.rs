//! Raw tokens of a layer as pieces: the rows of each part of K, then of V, each a v1 frame of gear with a checksum.

use crate::bytes::{Reader, push_number};
use crate::gear::{Decoder, Encoder, Format, Options};
use crate::layout::{self, Cache, CacheRef, Kind, Rows};
use crate::run::Run;
use crate::status::{Result, Status, bail};
use crate::sys::pages::Region;
use crate::sys::{self, Mutex, memory, parallel};
use std::ops::Range;

/// Most tokens of a piece. It bounds the copy of its rows.
const MOST_TOKENS: u32 = 8192;
/// Bytes that one thread codes as soon as another one has started.
const LEAST_SHARED: usize = 256 << 10;

/// The pieces of a range of tokens.
pub fn pieces(range: Range<u32>) -> impl Iterator<Item = Range<u32>> {
    let end = range.end;
    range.step_by(MOST_TOKENS as usize).map(move |begin| begin..begin.saturating_add(MOST_TOKENS).min(end))
}

/// The rows of a part, and what they are.
type Part<'a> = Mutex<(Kind, &'a mut [u8])>;

/// The rows of some tokens.
struct Dense {
    memory: Region,
    rows: Rows,
    tokens: usize,
}

impl Dense {
    fn new(rows: Rows, tokens: u32) -> Result<Self> {
        let tokens = tokens as usize;
        Ok(Dense { memory: Region::new(rows.key_bytes(tokens) + rows.value_bytes(tokens))?, rows, tokens })
    }

    /// Of K and of V.
    fn halves(&mut self) -> [&mut [u8]; 2] {
        let (key, value) = (self.rows.key_bytes(self.tokens), self.rows.value_bytes(self.tokens));
        self.memory[..key + value].split_at_mut(key).into()
    }

    /// The rows of each part with their kind, K's before V's.
    fn parts(&mut self) -> Result<Vec<Part<'_>>> {
        let (parts, kinds) = (self.rows.parts(), [self.rows.key, self.rows.value]);
        let halves = kinds.into_iter().zip(self.halves());
        let all = halves.flat_map(|(kind, half)| {
            let len = half.len() / parts;
            half.chunks_exact_mut(len).map(move |part| Mutex::new((kind, part)))
        });
        memory::collect(all)
    }

    fn threads(&self) -> usize {
        if self.memory.len() < LEAST_SHARED { 1 } else { sys::cores() as usize }
    }
}

/// The bytes of a piece with these tokens of a cache.
pub fn encode(cache: &CacheRef<'_>, tokens: Range<u32>) -> Result<Vec<u8>> {
    let mut dense = Dense::new(cache.layout.rows(), tokens.len() as u32)?;
    let [key, value] = dense.halves();
    layout::gather(cache, cache.layout.range(tokens.start, tokens.len() as u32)?, key, value)?;
    let threads = dense.threads();
    let parts = dense.parts()?;
    let encoded = memory::collect((0..parts.len()).map(|_| Mutex::new(Vec::new())))?;
    parallel::for_each(parts.len(), threads, |encoder: &mut Encoder, at| {
        let (Ok(part), Ok(mut to)) = (parts[at].lock(), encoded[at].lock()) else { return Ok(()) };
        let frame = encoder.encode(part.1, part.0.words(), &Options::new(Format::Checked))?;
        *to = memory::copied(frame)?;
        Ok(())
    })?;
    let mut out = Vec::new();
    let encoded = memory::collect(encoded.into_iter().map(|part| part.into_inner().unwrap_or_default()))?;
    encoded.iter().try_for_each(|part| push_number(&mut out, part.len() as u64))?;
    memory::reserve(&mut out, encoded.iter().map(Vec::len).sum())?;
    encoded.iter().try_for_each(|part| memory::extend(&mut out, part))?;
    Ok(out)
}

/// Writes tokens of a piece to the places of a cache that `runs` say.
/// CORRUPT: if the piece does not decode to `tokens` tokens of such rows.
pub fn restore(bytes: &[u8], tokens: u32, runs: impl Iterator<Item = Run>, cache: &mut Cache<'_>) -> Result<()> {
    let mut dense = Dense::new(cache.layout.rows(), tokens)?;
    decode(bytes, &mut dense)?;
    let heads = dense.rows.heads;
    let (mut key, mut value) = (Vec::new(), Vec::new());
    for run in runs {
        let (count, from) = (run.count as usize, (run.offset as usize, dense.tokens));
        let range = cache.layout.range(run.begin, run.count)?;
        for (rows, part) in dense.halves().into_iter().zip([&mut key, &mut value]) {
            memory::resize(part, rows.len() / from.1 * count)?;
            layout::copy_dense(heads, count, (&*rows, from), (&mut part[..], (0, count)));
        }
        layout::scatter(cache, range, &key, &value)?;
    }
    Ok(())
}

/// CORRUPT: as [`restore`].
fn decode(bytes: &[u8], dense: &mut Dense) -> Result<()> {
    let threads = dense.threads();
    let parts = dense.parts()?;
    let mut reader = Reader::new(bytes);
    let (mut ends, mut end) = (Vec::new(), 0usize);
    for _ in 0..parts.len() {
        end = end.saturating_add(reader.small("the length of a part")? as usize);
        memory::push(&mut ends, end)?;
    }
    let bytes = reader.rest();
    if end != bytes.len() {
        bail!(Corrupt, "the parts have {end} bytes; {} follow", bytes.len());
    }
    parallel::for_each(parts.len(), threads, |decoder: &mut Decoder, at| {
        let Ok(mut part) = parts[at].lock() else { return Ok(()) };
        let (kind, rows) = &mut *part;
        let frame = &bytes[at.checked_sub(1).map_or(0, |before| ends[before])..ends[at]];
        match decoder.decode(frame, kind.words(), rows) {
            Ok(len) if len == rows.len() => Ok(()),
            Ok(len) => bail!(Corrupt, "part {at} has {len} bytes; {} expected", rows.len()),
            Err(error) if error.status() == Status::OutOfMemory => Err(error),
            Err(error) => bail!(Corrupt, "part {at} is damaged: {error}"),
        }
    })
}

/// CORRUPT: if a piece is not one of `tokens` tokens of such rows.
pub fn check(bytes: &[u8], tokens: u32, rows: Rows) -> Result<()> {
    let mut reader = Reader::new(bytes);
    let (parts, mut lens) = (rows.parts(), Vec::new());
    for _ in 0..2 * parts {
        memory::push(&mut lens, reader.number("the length of a part")?)?;
    }
    for (at, len) in lens.into_iter().enumerate() {
        let (kind, all) = match at < parts {
            true => (rows.key, rows.key_bytes(tokens as usize)),
            false => (rows.value, rows.value_bytes(tokens as usize)),
        };
        let frame = reader.take(len, "a part")?;
        let len =
            crate::gear::announced_len(frame, kind.words()).map_err(|error| error.within(format_args!("part {at}")))?;
        if len != all / parts {
            bail!(Corrupt, "part {at} has {len} bytes; {} expected for {tokens} tokens", all / parts);
        }
    }
    reader.end("a piece")
}
