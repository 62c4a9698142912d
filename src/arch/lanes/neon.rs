//! Prefix codes with NEON: a code's length comes from its first six bits, its rank among all codes from the length, and its
//! symbol from look-ups of 64 ranks each.

use super::shuffles::{COMPRESS, COUNT, EXPAND};
use super::{DecodeTable, EncodeTable, MAX_LANES, Pending, SLACK, Source, Target, Windows};
use core::arch::aarch64::*;

/// The lanes of a vector of bytes.
const PART: usize = 16;

/// The lanes whose byte is 255, those of the first eight and the others. All other bytes are 0.
///
/// # Safety
/// Needs NEON.
#[inline(always)]
unsafe fn masks(chosen: uint8x16_t) -> [u8; 2] {
    // SAFETY: the caller's.
    unsafe {
        let bits = vandq_u8(chosen, vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201)));
        [vaddv_u8(vget_low_u8(bits)), vaddv_u8(vget_high_u8(bits))]
    }
}

/// Bytes to words, as numbers of bits to shift by.
///
/// # Safety
/// Needs NEON.
#[inline(always)]
unsafe fn shifts(bytes: uint8x16_t) -> [int16x8_t; 2] {
    // SAFETY: the caller's.
    unsafe { [vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(bytes))), vreinterpretq_s16_u16(vmovl_high_u8(bytes))] }
}

/// See [`super::Decode`].
///
/// # Safety
/// Needs NEON.
#[inline(always)]
pub(in crate::arch) unsafe fn decode(
    table: &DecodeTable,
    windows: &mut Windows,
    source: &Source<'_>,
    out: &mut [u8],
) -> bool {
    source.check(windows);
    let from = source.bytes.as_ptr();
    // SAFETY: every CPU of this architecture has NEON. A step begins with both places at most at the ends of their
    // streams, takes at most a byte of each for every lane, and these are behind the ends, too.
    unsafe {
        // Lengths by six bits, up to 7: codes of 7 and 8 bits are told apart by a comparison. A code may have 8 alone.
        let most = vdupq_n_u8(table.min_len.max(7));
        let of_six = |i: usize| vminq_u8(vld4q_u8(table.lens.as_ptr().add(64 * i)).0, most);
        let lens = uint8x16x4_t(of_six(0), of_six(1), of_six(2), of_six(3));
        let (last, eight) = (vdupq_n_u8(table.last[7]), vdupq_n_u8(8));
        let base = vld1q_u8(table.base.as_ptr());
        let escape = vdupq_n_u8(table.escape_rank);
        let has_escape = vdupq_n_u8(if table.escape_size > 0 { 255 } else { 0 });
        let ranked = table.ranked.as_ptr();
        let (block, next_block) = (vld1q_u8_x4(ranked), vld1q_u8_x4(ranked.add(64)));
        let rare_blocks = &table.ranked.as_chunks::<64>().0[2..table.count.div_ceil(64).clamp(2, 4)];
        let (mut at, mut escape_at) = (windows.at, windows.escape_at);
        let mut is_inside = true;
        for step in out.chunks_exact_mut(windows.lanes) {
            for (i, out) in step.as_chunks_mut::<PART>().0.iter_mut().enumerate() {
                let bits = windows.bits.as_mut_ptr().add(PART * i);
                let (a, b) = (vld1q_u16(bits), vld1q_u16(bits.add(8)));
                let first = vuzp2q_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b));
                let len = vsubq_u8(vqtbl4q_u8(lens, vshrq_n_u8::<2>(first)), vcgtq_u8(first, last));
                let code = vshlq_u8(first, vreinterpretq_s8_u8(vsubq_u8(len, eight)));
                let rank = vsubq_u8(code, vqtbl1q_u8(base, len));
                // Places from 64 on look up nothing.
                let mut place = vsubq_u8(rank, vdupq_n_u8(64));
                let mut symbol = vqtbx4q_u8(vqtbl4q_u8(block, rank), next_block, place);
                for block in rare_blocks {
                    place = vsubq_u8(place, vdupq_n_u8(64));
                    symbol = vqtbx4q_u8(symbol, vld1q_u8_x4(block.as_ptr()), place);
                }
                vst1q_u8(out.as_mut_ptr(), symbol);
                let escaped = vandq_u8(vceqq_u8(rank, escape), has_escape);
                if vmaxvq_u8(escaped) != 0 {
                    let [low, high] = masks(escaped);
                    let mut escaped = low as u32 | (high as u32) << 8;
                    while escaped != 0 {
                        out[escaped.trailing_zeros() as usize % PART] = *from.add(escape_at);
                        escape_at += 1;
                        escaped &= escaped - 1;
                    }
                }

                let free = windows.free.as_mut_ptr().add(PART * i);
                let more = vaddq_u8(vld1q_u8(free), len);
                let short = vcgtq_u8(more, eight);
                let still_free = vsubq_u8(more, vandq_u8(short, eight));
                vst1q_u8(free, still_free);
                let next = masks(short).map(|mask| {
                    let next = vtbl1_u8(vld1_u8(from.add(at)), vld1_u8(EXPAND[mask as usize].as_ptr()));
                    at += COUNT[mask as usize] as usize;
                    vmovl_u8(next)
                });
                let ([len_a, len_b], [free_a, free_b]) = (shifts(len), shifts(still_free));
                vst1q_u16(bits, vorrq_u16(vshlq_u16(a, len_a), vshlq_u16(next[0], free_a)));
                vst1q_u16(bits.add(8), vorrq_u16(vshlq_u16(b, len_b), vshlq_u16(next[1], free_b)));
            }
            if at > source.end || escape_at > source.escape_end {
                is_inside = false;
                break;
            }
        }
        (windows.at, windows.escape_at) = (at, escape_at);
        is_inside
    }
}

/// See [`super::Encode`].
///
/// # Safety
/// Needs NEON.
#[inline(always)]
pub(in crate::arch) unsafe fn encode(
    table: &EncodeTable,
    pending: &mut Pending,
    symbols: &[u8],
    target: &mut Target<'_>,
) {
    target.check(symbols.len());
    let to = target.bytes.as_mut_ptr();
    let (mut at, mut escape_at) = (target.at, target.escape_at);
    let (mut codes, mut lens) = ([0; MAX_LANES], [0; MAX_LANES]);
    // SAFETY: every CPU of this architecture has NEON. A symbol takes at most a byte of each stream, for which there is
    // room, with slack for what a store of eight bytes writes before them.
    unsafe {
        let eight = vdupq_n_u8(8);
        for step in symbols.chunks_exact(pending.lanes.min(MAX_LANES)).rev() {
            // All look-ups come before the vectors, which else would wait for the stores of single bytes.
            for ((code, len), symbol) in codes.iter_mut().zip(&mut lens).zip(step) {
                (*code, *len) = (table.codes[*symbol as usize], table.lens[*symbol as usize]);
            }
            for (i, symbols) in step.as_chunks::<PART>().0.iter().enumerate().rev() {
                let (code, len) = (vld1q_u8(codes.as_ptr().add(PART * i)), vld1q_u8(lens.as_ptr().add(PART * i)));
                if vmaxvq_u8(len) >= EncodeTable::ESCAPED {
                    for (symbol, len) in symbols.iter().zip(&lens[PART * i..]).rev() {
                        if len & EncodeTable::ESCAPED != 0 {
                            escape_at -= 1;
                            target.escapes[escape_at] = *symbol;
                        }
                    }
                }
                let len = vandq_u8(len, vdupq_n_u8(!EncodeTable::ESCAPED));
                let bits = pending.bits.as_mut_ptr().add(PART * i);
                let counts = pending.count.as_mut_ptr().add(PART * i);
                let (a, b) = (vld1q_u16(bits), vld1q_u16(bits.add(8)));
                let more = vaddq_u8(vld1q_u8(counts), len);
                let full = vcgtq_u8(more, vdupq_n_u8(15));
                let gone = vandq_u8(full, eight);
                let count = vsubq_u8(more, gone);
                vst1q_u8(counts, count);
                let place = vsubq_u8(count, len);
                let (place, gone) = (shifts(place), shifts(vreinterpretq_u8_s8(vnegq_s8(vreinterpretq_s8_u8(gone)))));
                // Sign extension of the shifts to the right.
                let gone = gone.map(|gone| vshrq_n_s16::<8>(vshlq_n_s16::<8>(gone)));
                let code = [vmovl_u8(vget_low_u8(code)), vmovl_high_u8(code)];
                vst1q_u16(bits, vorrq_u16(vshlq_u16(a, gone[0]), vshlq_u16(code[0], place[0])));
                vst1q_u16(bits.add(8), vorrq_u16(vshlq_u16(b, gone[1]), vshlq_u16(code[1], place[1])));
                let bytes = vuzp1q_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b));
                let [low, high] = masks(full);
                for (mask, eight) in [(high, vget_high_u8(bytes)), (low, vget_low_u8(bytes))] {
                    let places = vld1_u8(COMPRESS[mask as usize].as_ptr());
                    vst1_u8(to.add(at - SLACK), vtbl1_u8(eight, places));
                    at -= COUNT[mask as usize] as usize;
                }
            }
        }
    }
    (target.at, target.escape_at) = (at, escape_at);
}
