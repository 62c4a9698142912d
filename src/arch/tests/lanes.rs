//! Lanes, planes that lie apart, and checksums.

use super::*;
use crate::arch::lanes::{DecodeTable, EncodeTable, MAX_LANES, Pending, SLACK, Source, Target, Windows};
use crate::arch::xxh3;

/// The canonical code of these lengths, which leave no bits unused. Symbol i is 5 i + 3; with an escape, the last code.
fn tables(lens: &[usize], has_escape: bool) -> (DecodeTable, EncodeTable) {
    let (mut decode, mut encode) = (DecodeTable::EMPTY, EncodeTable { codes: [0; 256], lens: [0; 256] });
    (decode.min_len, decode.count) = (lens[0] as u8, lens.len());
    let mut first = 0;
    for (rank, len) in lens.iter().enumerate() {
        let (symbol, code, size) = ((5 * rank + 3) as u8, first >> (8 - len), 256 >> len);
        decode.symbols[first..first + size].fill(symbol);
        decode.lens[first..first + size].fill(*len as u8);
        (decode.ranked[rank], decode.base[*len]) = (symbol, (code as u8).wrapping_sub(rank as u8));
        (encode.codes[symbol as usize], encode.lens[symbol as usize]) = (code as u8, *len as u8);
        if has_escape && rank + 1 == lens.len() {
            (decode.escape, decode.escape_size, decode.escape_rank) = (first as u8, size as u8, rank as u8);
            encode.lens[symbol as usize] = 0;
            for (len_of, code_of) in encode.lens.iter_mut().zip(&mut encode.codes).filter(|(len, _)| **len == 0) {
                (*code_of, *len_of) = (code as u8, *len as u8 | EncodeTable::ESCAPED);
            }
        }
        first += size;
    }
    assert_eq!(first, 256);
    for len in lens[0]..8 {
        let sizes = lens.iter().filter(|other| **other <= len).map(|other| 256 >> other);
        decode.last[len] = (sizes.sum::<usize>() - 1) as u8;
    }
    (decode, encode)
}

/// Lengths of codes: few, many, as uneven as can be, and all of 8 bits.
fn codes() -> Vec<Vec<usize>> {
    let mixed = [vec![3; 3], vec![5; 10], vec![6; 9], vec![8; 44]].concat();
    vec![
        vec![1, 1],
        vec![1, 2, 3, 4, 5, 6, 7, 8, 8],
        vec![4; 16],
        mixed,
        [vec![2], vec![8; 192]].concat(),
        vec![8; 256],
    ]
}

#[test]
fn every_level_writes_the_same_lanes_and_reads_them_back() {
    for (lens, has_escape, lanes) in codes()
        .iter()
        .flat_map(|lens| [(lens, false, 64), (lens, true, 64), (lens, false, MAX_LANES), (lens, true, MAX_LANES)])
    {
        let (decode, encode) = tables(lens, has_escape);
        for steps in [0, 1, 2, 33] {
            // Any byte if there is an escape. The products of two choices are uneven, so that all lengths occur.
            let choice = |i: usize, byte: u8| byte as usize % (i % 7 + 1) * lens.len() / 7;
            let symbol = |(i, byte): (usize, u8)| match has_escape && byte % 16 == 0 {
                true => byte.wrapping_mul(i as u8),
                false => (5 * choice(i, byte) + 3) as u8,
            };
            let symbols: Vec<u8> = noise(steps * lanes).into_iter().enumerate().map(symbol).collect();
            let mut all = available().map(|k| {
                let mut pending = Pending { lanes, bits: [0x81; MAX_LANES], count: [8; MAX_LANES] };
                let room = symbols.len() + SLACK;
                let (mut bytes, mut escapes) = (vec![0; room], vec![0; room]);
                let mut target = Target { bytes: &mut bytes, at: room, escapes: &mut escapes, escape_at: room };
                (k.lanes_encode)(&encode, &mut pending, &symbols, &mut target);
                let (at, escape_at) = (target.at, target.escape_at);
                (pending.bits, pending.count, bytes[at..].to_vec(), escapes[escape_at..].to_vec())
            });
            let (bits, count, stream, escapes) = all.next().unwrap();
            assert!(
                all.all(|other| other == (bits, count, stream.clone(), escapes.clone())),
                "{lens:?} {has_escape} {lanes}"
            );

            let mut windows =
                Windows { lanes, bits, free: count.map(|count| 16 - count), at: escapes.len(), escape_at: 0 };
            windows.bits.iter_mut().zip(&windows.free).for_each(|(bits, free)| *bits <<= free);
            let bytes = [&escapes[..], &stream, &[0x55; MAX_LANES]].concat();
            let source = Source { bytes: &bytes, end: bytes.len() - MAX_LANES, escape_end: escapes.len() };
            for k in available() {
                let mut windows = windows.clone();
                let mut out = vec![0; symbols.len()];
                let middle = steps / 2 * lanes;
                assert!((k.lanes_decode)(&decode, &mut windows, &source, &mut out[..middle]));
                assert!((k.lanes_decode)(&decode, &mut windows, &source, &mut out[middle..]));
                assert!(out == symbols, "{:?} {lens:?} {has_escape} {lanes}", k.level);
                assert_eq!((windows.at, windows.escape_at), (source.end, source.escape_end));
                assert!(
                    windows.bits[..lanes].iter().all(|bits| *bits == 0x8100)
                        && windows.free[..lanes] == [8; MAX_LANES][..lanes]
                );
            }
        }
    }
}

#[test]
fn every_level_stops_at_the_end_of_any_stream() {
    let bytes = noise(3000);
    for (lens, lanes) in codes().iter().flat_map(|lens| [(lens, 64), (lens, MAX_LANES)]) {
        let (decode, _) = tables(lens, true);
        for (escape_end, end) in [(0, 0), (0, 2000), (700, 701), (700, 2872), (2872, 2872)] {
            let source = Source { bytes: &bytes, end, escape_end };
            let read = |k: &Kernels| {
                let bits = std::array::from_fn(|i| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]) & 0xFF00);
                let mut windows = Windows { lanes, bits, free: [8; MAX_LANES], at: escape_end, escape_at: 0 };
                let mut out = vec![0; 60 * lanes];
                let is_inside = (k.lanes_decode)(&decode, &mut windows, &source, &mut out);
                let Windows { bits, free, at, escape_at, .. } = windows;
                (is_inside, out, bits[..lanes].to_vec(), free[..lanes].to_vec(), at, escape_at)
            };
            let expected = read(&PORTABLE);
            assert_eq!(expected.0, expected.4 <= end && expected.5 <= escape_end);
            assert!(available().all(|k| read(k) == expected), "{lens:?} {lanes} {escape_end} {end}");
        }
    }
}

#[test]
fn lanes_refuse_streams_without_padding_and_targets_without_room() {
    let (decode, encode) = tables(&[1, 1], false);
    for k in available() {
        let mut windows = Windows { lanes: 64, bits: [0; MAX_LANES], free: [8; MAX_LANES], at: 0, escape_at: 0 };
        let source = Source { bytes: &[0; 300], end: 300 - MAX_LANES + 1, escape_end: 0 };
        let mut pending = Pending { lanes: 64, bits: [0; MAX_LANES], count: [8; MAX_LANES] };
        let (mut bytes, mut escapes) = ([0; 200], [0; 200]);
        let mut target = Target { bytes: &mut bytes, at: 64 + SLACK - 1, escapes: &mut escapes, escape_at: 200 };
        let refused = |run: &mut dyn FnMut()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err();
        assert!(refused(&mut || _ = (k.lanes_decode)(&decode, &mut windows, &source, &mut [0; 64])), "{:?}", k.level);
        assert!(refused(&mut || (k.lanes_encode)(&encode, &mut pending, &[3; 64], &mut target)), "{:?}", k.level);
    }
}

#[test]
fn every_level_joins_planes_that_lie_apart_and_turns_words() {
    let bytes = noise(5000);
    for count in (0..=200).chain([511, 1000]) {
        let planes: [&[u8]; 4] = std::array::from_fn(|i| &bytes[1100 * i..][..count]);
        let words: Vec<u8> = (0..4 * count).map(|i| planes[i % 4][i / 4]).collect();
        let pairs: Vec<u8> = (0..2 * count).map(|i| planes[i % 2][i / 2]).collect();
        for k in available() {
            assert_eq!(output_of(4 * count, 1, |out| (k.join4)(&planes, out)), words, "{:?}", k.level);
            assert_eq!(output_of(2 * count, 1, |out| (k.join2)(&[planes[0], planes[1]], out)), pairs, "{:?}", k.level);
            for (turn, unturn, width) in [(k.turn2, k.unturn2, 2), (k.turn4, k.unturn4, 4)] {
                let (mut turned, bits) = (words.clone(), 8 * width);
                turn(&mut turned);
                for (word, turned) in words.chunks(width).zip(turned.chunks(width)) {
                    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |n, byte| n << 8 | *byte as u64);
                    let (word, turned) = (number(word), number(turned));
                    assert_eq!(turned, (word << 1 | word >> (bits - 1)) & (u64::MAX >> (64 - bits)), "{:?}", k.level);
                }
                unturn(&mut turned);
                assert_eq!(turned, words, "{:?}", k.level);
            }
        }
    }
}

#[test]
fn every_level_hashes_blocks_as_xxh3() {
    let bytes = noise(9000);
    for len in [1025, 1026, 1088, 1089, 2047, 2048, 2049, 3072, 8193, 9000] {
        let blocks = (len - 1) / xxh3::BLOCK * xxh3::BLOCK;
        for k in available() {
            let mut sums = xxh3::START;
            (k.xxh3_blocks)(&mut sums, &bytes[..xxh3::BLOCK]);
            (k.xxh3_blocks)(&mut sums, &bytes[xxh3::BLOCK..blocks]);
            let hash = xxh3::finish(sums, &bytes[blocks..len], bytes[..len].last_chunk().unwrap(), len);
            assert_eq!(hash, xxhash_rust::xxh3::xxh3_64(&bytes[..len]), "{:?} {len}", k.level);
        }
    }
}
