//! Prefix codes of bytes in 64 or 128 lanes: symbol i belongs to lane i mod lanes.
//!
//! No code is longer than 8 bits, so the first byte of a lane's window determines the next symbol, and vectors look it up
//! in registers. All lanes of a step share one stream of bytes: after a step, each lane with fewer than 8 bits takes the
//! next byte, in the order of the lanes. The last code may be an escape; escaped symbols are bytes of a second stream.
//!
//! [`portable`] defines the kernels.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
pub(super) mod neon;
pub mod portable;
#[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))]
mod shuffles;

/// The lanes of a vector.
const GROUP: usize = 64;
/// The largest number of lanes, which are one or two vectors.
pub const MAX_LANES: usize = 2 * GROUP;

/// The longest code in bits.
pub const MAX_LEN: usize = 8;

/// Bytes before each stream of an encoder, which it may overwrite.
pub const SLACK: usize = 8;

/// A code, as decoders look it up.
#[derive(Clone)]
#[repr(C, align(64))]
pub struct DecodeTable {
    /// The symbol by the first eight bits of a window. Entries from 256 on are room for whoever fills the table.
    pub symbols: [u8; 256 + 64],
    /// The length of its code, likewise.
    pub lens: [u8; 256 + 64],
    /// Symbols in the order of their codes; that of the escape has no meaning.
    pub ranked: [u8; 256],
    /// The code of this length less its rank, mod 256.
    pub base: [u8; 16],
    /// The last first byte of codes that are at most this long; 255 if there are none.
    pub last: [u8; MAX_LEN],
    /// The length of the shortest code.
    pub min_len: u8,
    /// The first of the first bytes of the escape.
    pub escape: u8,
    /// Their number, 0 without an escape.
    pub escape_size: u8,
    /// The rank of the escape.
    pub escape_rank: u8,
    /// The number of codes.
    pub count: usize,
}

impl DecodeTable {
    /// A table of no code.
    pub const EMPTY: DecodeTable = DecodeTable {
        symbols: [0; 256 + 64],
        lens: [0; 256 + 64],
        ranked: [0; 256],
        base: [0; 16],
        last: [255; MAX_LEN],
        min_len: 0,
        escape: 0,
        escape_size: 0,
        escape_rank: 0,
        count: 0,
    };
}

/// A code, as encoders look it up.
#[derive(Clone)]
#[repr(C, align(64))]
pub struct EncodeTable {
    /// The code of each symbol, or the escape.
    pub codes: [u8; 256],
    /// The length of the code; with [`EncodeTable::ESCAPED`] for symbols without one.
    pub lens: [u8; 256],
}

impl EncodeTable {
    /// The bit of the length of a symbol that is escaped.
    pub const ESCAPED: u8 = 0x80;
}

/// The state of a decoder between two steps.
#[derive(Clone)]
#[repr(C, align(64))]
pub struct Windows {
    /// 64 or 128; a step is as many symbols.
    pub lanes: usize,
    /// The next bits of each lane, high ones first; zeros below.
    pub bits: [u16; MAX_LANES],
    /// The bits that are free, 1 to 8.
    pub free: [u8; MAX_LANES],
    /// The next byte of the stream in [`Source::bytes`].
    pub at: usize,
    /// The next escaped symbol there.
    pub escape_at: usize,
}

/// The streams of a decoder.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// Escaped symbols, the stream, and at least [`MAX_LANES`] bytes more.
    pub bytes: &'a [u8],
    /// The end of the stream.
    pub end: usize,
    /// The end of the escaped symbols.
    pub escape_end: usize,
}

impl Source<'_> {
    /// Whether both places of `windows` are inside of their streams, or at their ends.
    #[inline(always)]
    fn has(&self, windows: &Windows) -> bool {
        windows.at <= self.end && windows.escape_at <= self.escape_end
    }

    /// Panics unless `windows` begin inside of the streams, and a step may be read from any place up to their ends.
    #[inline(always)]
    fn check(&self, windows: &Windows) {
        assert!(self.has(windows), "the streams have ended");
        let end = self.end.max(self.escape_end).checked_add(MAX_LANES);
        assert!(end.is_some_and(|end| end <= self.bytes.len()), "no padding behind the streams");
        assert!(matches!(windows.lanes, GROUP | MAX_LANES));
    }
}

/// The streams of an encoder, which writes backwards.
pub struct Target<'a> {
    /// The stream, from [`Target::at`] on.
    pub bytes: &'a mut [u8],
    /// The first byte that is written.
    pub at: usize,
    /// Escaped symbols, from [`Target::escape_at`] on.
    pub escapes: &'a mut [u8],
    /// The first escaped symbol that is written.
    pub escape_at: usize,
}

impl Target<'_> {
    /// Panics unless `symbols` more symbols find room in any case, behind the slack.
    #[inline(always)]
    fn check(&self, symbols: usize) {
        let has_room = |at: usize, len: usize| symbols.checked_add(SLACK).is_some_and(|least| least <= at) && at <= len;
        assert!(has_room(self.at, self.bytes.len()) && has_room(self.escape_at, self.escapes.len()), "no room");
    }
}

/// The state of an encoder between two steps.
#[derive(Clone)]
#[repr(C, align(64))]
pub struct Pending {
    /// 64 or 128.
    pub lanes: usize,
    /// The bits of each lane that no byte of the stream has yet, the first ones high, in the low bits.
    pub bits: [u16; MAX_LANES],
    /// Their number, 8 to 15.
    pub count: [u8; MAX_LANES],
}

/// Decodes whole steps to `out`. Stops behind the first step that takes more bytes than a stream has, and returns false.
pub type Decode = fn(table: &DecodeTable, windows: &mut Windows, source: &Source<'_>, out: &mut [u8]) -> bool;

/// Encodes whole steps, the last one first.
pub type Encode = fn(table: &EncodeTable, pending: &mut Pending, symbols: &[u8], target: &mut Target<'_>);
