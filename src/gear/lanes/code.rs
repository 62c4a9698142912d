//! Canonical codes of at most 8 bits.
//!
//! Codes are in the order of their lengths, and within a length in the order of their symbols; the escape comes after all
//! symbols. No bits are left over, so the length of the escape follows from the others.

use super::package_merge;
use crate::arch::lanes::{DecodeTable, EncodeTable, MAX_LEN};
use crate::status::{Result, bail};

/// The number of the escape, behind all symbols.
const ESCAPE: u16 = 256;
/// Symbols that are rarer than one in so many are escaped.
const RARE: u64 = 1024;

/// The length of each code.
pub(crate) struct Code {
    /// Symbols with a code, ascending.
    symbols: [u16; 257],
    /// The length of each.
    lens: [u8; 257],
    count: usize,
}

impl Code {
    const EMPTY: Code = Code { symbols: [0; 257], lens: [0; 257], count: 0 };

    /// The best code for `counts`, of which at least two are not 0. Rare symbols are escaped.
    pub(crate) fn of(counts: &[u32; 256]) -> Self {
        let total: u64 = counts.iter().map(|count| *count as u64).sum();
        let mut code = Self::EMPTY;
        let mut weights = [0; 257];
        let mut rare = 0;
        for (symbol, count) in counts.iter().enumerate() {
            let is_rare = *count as u64 * RARE < total;
            rare += if is_rare { *count as u64 } else { 0 };
            code.symbols[code.count] = symbol as u16;
            weights[code.count] = *count as u64;
            code.count += !is_rare as usize;
        }
        if rare > 0 {
            code.symbols[code.count] = ESCAPE;
            weights[code.count] = rare;
            code.count += 1;
        }
        package_merge::lens(&weights[..code.count], &mut code.lens);
        code
    }

    /// The bits of symbols that occur as often as `counts` says.
    pub(crate) fn bits(&self, counts: &[u32; 256]) -> u64 {
        let total: u64 = counts.iter().map(|count| *count as u64).sum();
        let (mut bits, mut coded) = (0, 0);
        for (symbol, len) in self.symbols[..self.count].iter().zip(&self.lens) {
            match *symbol {
                ESCAPE => bits += (total - coded) * (*len as u64 + 8),
                symbol => {
                    (bits, coded) =
                        (bits + counts[symbol as usize] as u64 * *len as u64, coded + counts[symbol as usize] as u64)
                }
            }
        }
        bits
    }

    /// Writes the lengths to `out`, which holds 260 bytes, and returns their length: nibbles, low ones first. 1 to 8 is
    /// the length of the next symbol, 9 to 15 are 1 to 7 symbols without a code; 0 precedes the low and the high nibble
    /// of a number, which is one less than that of symbols without a code.
    pub(crate) fn write(&self, out: &mut [u8]) -> usize {
        let mut nibbles = 0;
        let mut put = |nibble: usize| {
            let byte = &mut out[nibbles / 2];
            *byte = if nibbles % 2 == 0 { nibble as u8 } else { *byte | (nibble as u8) << 4 };
            nibbles += 1;
        };
        let mut next = 0;
        let symbols = self.symbols[..self.count].iter().zip(&self.lens);
        for (symbol, len) in symbols.filter(|(symbol, _)| **symbol != ESCAPE).chain([(&ESCAPE, &0)]) {
            match *symbol - next {
                0 => {}
                absent @ 1..8 => put(MAX_LEN + absent as usize),
                absent => [0, (absent - 1) % 16, (absent - 1) / 16].into_iter().for_each(|nibble| put(nibble as usize)),
            }
            if *symbol != ESCAPE {
                put(*len as usize);
            }
            next = *symbol + 1;
        }
        nibbles.div_ceil(2)
    }

    /// Reads what [`Code::write`] wrote from the start of `bytes`. Returns the code and its length in bytes.
    pub(crate) fn read(bytes: &[u8]) -> Result<(Self, usize)> {
        let mut code = Self::EMPTY;
        // Free codes of MAX_LEN bits.
        let mut free = 1i32 << MAX_LEN;
        let (mut symbol, mut nibbles) = (0, 0);
        let mut take = || {
            let Some(byte) = bytes.get(nibbles / 2) else {
                bail!(Corrupt, "the blob ends inside the lengths of a code, after {nibbles} nibbles");
            };
            nibbles += 1;
            Ok(if nibbles % 2 == 1 { byte & 15 } else { byte >> 4 })
        };
        while symbol < ESCAPE {
            match take()? {
                len @ 1..=8 => {
                    (code.symbols[code.count], code.lens[code.count]) = (symbol, len);
                    code.count += 1;
                    free -= 1 << (MAX_LEN as u8 - len);
                    symbol += 1;
                }
                0 => symbol += take()? as u16 + 16 * take()? as u16 + 1,
                absent => symbol += absent as u16 - MAX_LEN as u16,
            }
        }
        if symbol > ESCAPE {
            bail!(Corrupt, "the lengths of a code are for {symbol} symbols; {ESCAPE} expected");
        }
        if nibbles % 2 == 1 && bytes[nibbles / 2] >> 4 != 0 {
            bail!(Corrupt, "the last nibble of the lengths of a code is {}; 0 expected", bytes[nibbles / 2] >> 4);
        }
        match free {
            0 => {}
            1..256 if free.count_ones() == 1 => {
                (code.symbols[code.count], code.lens[code.count]) = (ESCAPE, 8 - free.trailing_zeros() as u8);
                code.count += 1;
            }
            _ => bail!(
                Corrupt,
                "the lengths of a code leave {free} of 256 codes of 8 bits; 0 or a power of 2 below 256 expected"
            ),
        }
        Ok((code, nibbles.div_ceil(2)))
    }

    /// Symbols in the order of their codes, and the number of those of each length.
    fn ranked(&self) -> ([u16; 257], [usize; MAX_LEN + 1]) {
        let lens = &self.lens[..self.count];
        let mut counts = [0; MAX_LEN + 1];
        lens.iter().for_each(|len| counts[*len as usize % 16] += 1);
        let mut next = [0; MAX_LEN + 1];
        for len in 1..MAX_LEN {
            next[len + 1] = next[len] + counts[len];
        }
        let mut ranked = [0; 257];
        for (symbol, len) in self.symbols.iter().zip(lens) {
            ranked[next[*len as usize]] = *symbol;
            next[*len as usize] += 1;
        }
        (ranked, counts)
    }

    /// The code as decoders look it up.
    pub(crate) fn decode_table(&self, table: &mut DecodeTable) {
        let (ranked, counts) = self.ranked();
        let (mut rank, mut first) = (0, 0);
        (table.escape_size, table.last, table.min_len) = (0, [255; MAX_LEN], 0);
        for len in 1..=MAX_LEN {
            let size = 256 >> len;
            let of_len = &ranked[rank..rank + counts[len]];
            table.base[len] = ((first >> (MAX_LEN - len)) as u8).wrapping_sub(rank as u8);
            for (i, symbol) in of_len.iter().enumerate() {
                table.ranked[rank + i] = *symbol as u8;
                let mut at = first + i * size;
                let end = at + size;
                // Entries behind those of the symbol are written again.
                loop {
                    table.symbols[at..at + 8].fill(*symbol as u8);
                    table.lens[at..at + 8].fill(len as u8);
                    at += 8;
                    if at >= end {
                        break;
                    }
                }
                if *symbol == ESCAPE {
                    (table.escape, table.escape_size) = ((end - size) as u8, size as u8);
                    table.escape_rank = (rank + i) as u8;
                }
            }
            rank += counts[len];
            first += counts[len] * size;
            if first > 0 {
                table.min_len = if table.min_len == 0 { len as u8 } else { table.min_len };
                table.last[len % MAX_LEN] = (first - 1) as u8;
            }
        }
        table.count = rank;
    }

    /// The code as encoders look it up.
    pub(crate) fn encode_table(&self) -> EncodeTable {
        let (ranked, counts) = self.ranked();
        let (mut rank, mut first) = (0, 0);
        let mut table = EncodeTable { codes: [0; 256], lens: [0; 256] };
        if self.symbols[self.count - 1] == ESCAPE {
            // The last of its length.
            let len = self.lens[self.count - 1] as usize;
            let end: usize = (1..=len).map(|len| counts[len] << (MAX_LEN - len)).sum();
            table.codes.fill(((end >> (MAX_LEN - len)) - 1) as u8);
            table.lens.fill(len as u8 | EncodeTable::ESCAPED);
        }
        for len in 1..=MAX_LEN {
            for symbol in &ranked[rank..rank + counts[len]] {
                if *symbol != ESCAPE {
                    let symbol = *symbol as usize;
                    (table.codes[symbol], table.lens[symbol]) = ((first >> (MAX_LEN - len)) as u8, len as u8);
                }
                first += 256 >> len;
            }
            rank += counts[len];
        }
        table
    }
}
