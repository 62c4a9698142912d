//! Orders of bytes that compress better: byte planes, bit planes, channels.

/// A plain loop, part of the baseline: must not be optimised.
#[inline(never)]
pub fn split(words: &[u8], planes: &mut [u8], width: usize) {
    let count = words.len() / width;
    for i in 0..count {
        for plane in 0..width {
            planes[plane * count + i] = words[i * width + plane];
        }
    }
}

#[inline(never)]
pub fn merge(planes: &[u8], words: &mut [u8], width: usize) {
    let count = words.len() / width;
    for i in 0..count {
        for plane in 0..width {
            words[i * width + plane] = planes[plane * count + i];
        }
    }
}

/// [`split`] in loops that the compiler vectorises.
pub fn shuffle(words: &[u8], planes: &mut [u8], width: usize) {
    match width {
        2 => shuffle_by::<2>(words, planes),
        _ => shuffle_by::<4>(words, planes),
    }
}

fn shuffle_by<const W: usize>(words: &[u8], planes: &mut [u8]) {
    let items = words.as_chunks::<W>().0;
    for (i, plane) in planes.chunks_exact_mut(items.len()).enumerate() {
        for (byte, item) in plane.iter_mut().zip(items) {
            *byte = item[i];
        }
    }
}

pub fn unshuffle(planes: &[u8], words: &mut [u8], width: usize) {
    let count = words.len() / width;
    let (low, high) = planes.split_at(planes.len() / 2);
    if width == 2 {
        for ((word, a), b) in words.as_chunks_mut::<2>().0.iter_mut().zip(low).zip(high) {
            *word = [*a, *b];
        }
    } else {
        let ((a, b), (c, d)) = (low.split_at(count), high.split_at(count));
        for ((((word, a), b), c), d) in words.as_chunks_mut::<4>().0.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *word = [*a, *b, *c, *d];
        }
    }
}

/// Elements whose bits are transposed together: a row receives a cache line.
const TILE: usize = 512;

/// Bit planes of byte planes, each a row of `count / 8` bytes; elements past the last whole tile stay unchanged.
pub fn bit_shuffle(words: &[u8], rows: &mut [u8], width: usize) {
    let (tiles, tail) = words.split_at(words.len() / (TILE * width) * (TILE * width));
    let (rows, rest) = rows.split_at_mut(tiles.len());
    rest.copy_from_slice(tail);
    let row_len = tiles.len() / width / 8;
    let mut planes = [[0; TILE]; 4];
    for (t, tile) in tiles.chunks_exact(TILE * width).enumerate() {
        shuffle(tile, &mut planes.as_flattened_mut()[..tile.len()], width);
        for (p, plane) in planes[..width].iter().enumerate() {
            for (k, line) in bit_lines(plane).iter().enumerate() {
                rows[(p * 8 + k) * row_len + t * 64..][..64].copy_from_slice(line);
            }
        }
    }
}

pub fn bit_unshuffle(rows: &[u8], words: &mut [u8], width: usize) {
    let whole = words.len() / (TILE * width) * (TILE * width);
    let (tiles, tail) = words.split_at_mut(whole);
    let (rows, rest) = rows.split_at(whole);
    tail.copy_from_slice(rest);
    let row_len = whole / width / 8;
    let mut planes = [[0; TILE]; 4];
    for (t, tile) in tiles.chunks_exact_mut(TILE * width).enumerate() {
        for (p, plane) in planes[..width].iter_mut().enumerate() {
            let line = |k| rows[(p * 8 + k) * row_len + t * 64..].first_chunk::<64>().unwrap();
            *plane = bytes_of_lines(std::array::from_fn(line));
        }
        unshuffle(&planes.as_flattened()[..tile.len()], tile, width);
    }
}

/// Line k: bit k of each byte.
fn bit_lines(bytes: &[u8; TILE]) -> [[u8; 64]; 8] {
    let mut lines = [[0; 64]; 8];
    for (at, eight) in bytes.as_chunks::<64>().0.iter().enumerate() {
        let columns = turn(std::array::from_fn(|i| *eight[i * 8..].first_chunk().unwrap()));
        for (k, line) in lines.iter_mut().enumerate() {
            line[at * 8..][..8].copy_from_slice(&columns.map(|column| column[k]));
        }
    }
    lines
}

fn bytes_of_lines(lines: [&[u8; 64]; 8]) -> [u8; TILE] {
    let mut bytes = [0; TILE];
    for (at, eight) in bytes.as_chunks_mut::<64>().0.iter_mut().enumerate() {
        let columns = turn(std::array::from_fn(|i| lines.map(|line| line[at * 8 + i])));
        eight.copy_from_slice(columns.as_flattened());
    }
    bytes
}

/// Transposes eight squares of 8 x 8 bits by swaps of 1 x 1, 2 x 2 and 4 x 4 (Hacker's Delight, 7-3).
fn turn(squares: [[u8; 8]; 8]) -> [[u8; 8]; 8] {
    squares.map(|square| {
        let mut x = u64::from_le_bytes(square);
        for (shift, mask) in [(7, 0x00AA_00AA_00AA_00AA), (14, 0x0000_CCCC_0000_CCCC), (28, 0x0000_0000_F0F0_F0F0)] {
            let swap: u64 = (x ^ (x >> shift)) & mask;
            x ^= swap ^ (swap << shift);
        }
        x.to_le_bytes()
    })
}

/// Transposes matrices of `rows` x `columns`, one after another, in squares that stay in the cache.
pub fn transpose<T: Copy>(from: &[T], to: &mut [T], rows: usize, columns: usize) {
    const SQUARE: usize = 16;
    for (from, to) in from.chunks_exact(rows * columns).zip(to.chunks_exact_mut(rows * columns)) {
        for row in (0..rows).step_by(SQUARE) {
            for column in (0..columns).step_by(SQUARE) {
                for r in row..rows.min(row + SQUARE) {
                    for c in column..columns.min(column + SQUARE) {
                        to[c * rows + r] = from[r * columns + c];
                    }
                }
            }
        }
    }
}
