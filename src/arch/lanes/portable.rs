//! The definitions.

use super::{DecodeTable, EncodeTable, MAX_LANES, Pending, Source, Target, Windows};

/// See [`super::Decode`].
pub fn decode(table: &DecodeTable, windows: &mut Windows, source: &Source<'_>, out: &mut [u8]) -> bool {
    source.check(windows);
    for step in out.chunks_exact_mut(windows.lanes) {
        let next: &[u8; MAX_LANES] = source.bytes[windows.at..].first_chunk().expect("padding");
        let mut taken = 0;
        for ((out, bits), free) in step.iter_mut().zip(&mut windows.bits).zip(&mut windows.free) {
            let first = (*bits >> 8) as u8;
            *out = table.symbols[first as usize];
            if first.wrapping_sub(table.escape) < table.escape_size {
                *out = source.bytes[windows.escape_at];
                windows.escape_at += 1;
            }
            let len = table.lens[first as usize];
            // Without a branch: which lanes take a byte is no pattern.
            let is_short = (*free + len + 7) >> 4;
            *free = *free + len - 8 * is_short;
            let byte = next[taken % MAX_LANES] as u16 & (is_short as u16).wrapping_neg();
            *bits = *bits << (len & 15) | byte << (*free & 15);
            taken += is_short as usize;
        }
        windows.at += taken;
        if !source.has(windows) {
            return false;
        }
    }
    true
}

/// See [`super::Encode`].
pub fn encode(table: &EncodeTable, pending: &mut Pending, symbols: &[u8], target: &mut Target<'_>) {
    target.check(symbols.len());
    for step in symbols.chunks_exact(pending.lanes).rev() {
        let lanes = pending.bits.iter_mut().zip(&mut pending.count).take(pending.lanes);
        for ((bits, count), symbol) in lanes.zip(step).rev() {
            let (code, len) = (table.codes[*symbol as usize], table.lens[*symbol as usize]);
            if len & EncodeTable::ESCAPED != 0 {
                target.escape_at -= 1;
                target.escapes[target.escape_at] = *symbol;
            }
            let len = len & !EncodeTable::ESCAPED;
            // Without a branch, as above: the byte is written, and kept if it is due.
            let is_full = (*count + len) >> 4;
            target.bytes[target.at - 1] = *bits as u8;
            target.at -= is_full as usize;
            *bits >>= 8 * is_full;
            *count -= 8 * is_full;
            *bits |= (code as u16) << (*count & 15);
            *count += len;
        }
    }
}
