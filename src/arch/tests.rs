//! Every level against the definitions at the fields of [`Kernels`], not only against `portable`.

mod estimates;
mod gear;
mod product;
mod rows;

use super::*;

#[test]
fn the_variable_lowers_the_level_and_never_raises_it() {
    let highest = available().last().unwrap().level;
    let choose = |levels: Vec<Available>, wanted| choose(levels.into_iter(), wanted).kernels().level;
    let all = || Available::all().collect();
    for k in available() {
        assert_eq!(choose(all(), k.level.c_name().to_str().ok()), k.level);
    }
    let foreign = if cfg!(target_arch = "aarch64") { "sse2" } else { "neon" };
    for unknown in [None, Some(""), Some("no such level"), Some(foreign)] {
        assert_eq!(choose(all(), unknown), highest);
    }
    assert_eq!(choose(all(), Some("portable")), Level::Portable);
    assert_eq!(choose(vec![Available::Portable], Some("avx2")), Level::Portable);
}

fn noise(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// Runs of `len` equal bytes of changing values.
fn runs(len: usize, total: usize) -> Vec<u8> {
    (0..total).map(|i| (i / len * 77) as u8).collect()
}

/// Contents of streams: noise, constants, and mixtures.
fn contents(len: usize) -> Vec<Vec<u8>> {
    let mut all = vec![noise(len), vec![0; len], vec![255; len], (0..len).map(|i| i as u8).collect()];
    all.extend([1, 2, 3, 4, 5, 31, 63, 64, 65, 200].map(|run| runs(run, len)));
    // Few values in no order: short runs at every place.
    all.push(noise(len).into_iter().map(|b| (b >> 3) % 2).collect());
    all
}

/// Every length up to 300 and some beyond.
fn lengths() -> impl Iterator<Item = usize> {
    (0..=300).chain([511, 512, 513, 1000, 1023, 1024, 1025, 4096, 5001])
}

fn check_transposes<T: Element + PartialEq + std::fmt::Debug>(src: &[T]) {
    let gaps = [0, 1, 5];
    for (rows, columns) in (0..20).flat_map(|r| (0..20).map(move |c| (r, c))).chain([(128, 16), (64, 7), (9, 64)]) {
        for (gap, k) in gaps.iter().flat_map(|g| available().map(move |k| (g, k))) {
            let shape = Transposition { rows, columns, src_stride: columns + gap, dst_stride: rows + (gap + 1) % 3 };
            // Exactly as long as the last element needs.
            let len = |n: usize, stride: usize, m: usize| if n * m == 0 { 0 } else { (n - 1) * stride + m };
            let src = &src[..len(rows, shape.src_stride, columns)];
            let Some(first) = src.first() else { continue };
            let mut dst = vec![*first; len(columns, shape.dst_stride, rows)];
            let mut expected = dst.clone();
            for i in 0..rows {
                for j in 0..columns {
                    expected[j * shape.dst_stride + i] = src[i * shape.src_stride + j];
                }
            }
            T::transpose(k)(&shape, src, &mut dst);
            assert_eq!(dst, expected, "{:?} {shape:?}", k.level);
        }
    }
}

#[test]
fn every_level_transposes_by_the_definition() {
    let bytes = noise(20_000);
    check_transposes(bytes.as_chunks::<2>().0);
    check_transposes(bytes.as_chunks::<4>().0);
}

/// Runs a kernel into the middle of a larger buffer, at an odd place, and checks that it wrote nothing outside.
fn output_of(len: usize, offset: usize, kernel: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut out = vec![0xEE; len + offset + 64];
    kernel(&mut out[offset..offset + len]);
    assert!(out[..offset].iter().chain(&out[offset + len..]).all(|b| *b == 0xEE), "wrote outside");
    out[offset..offset + len].to_vec()
}

#[test]
fn every_level_splits_and_merges_by_the_definition() {
    let bytes = noise(40_000);
    for words in (0..=300).chain([511, 1000, 4096, 5001]) {
        for offset in [0, 1, 3] {
            for width in [2, 4] {
                let src = &bytes[offset..offset + words * width];
                let expected: Vec<u8> = (0..words * width).map(|i| src[i % words * width + i / words]).collect();
                for k in available() {
                    let (split, merge) = if width == 2 { (k.split2, k.merge2) } else { (k.split4, k.merge4) };
                    let lanes = output_of(src.len(), 3 - offset, |out| split(src, out));
                    assert_eq!(lanes, expected, "{:?} split{width} of {words}", k.level);
                    let back = output_of(src.len(), offset, |out| merge(&expected, out));
                    assert_eq!(back, src, "{:?} merge{width} of {words}", k.level);
                }
            }
        }
    }
}

#[test]
fn every_level_predicts_by_the_definition_and_back() {
    for len in lengths() {
        for (i, src) in contents(len + 3).iter().enumerate() {
            let (from, to) = ([0, 1, 3][i % 3], [1, 0, 2][i % 3]);
            let src = &src[from..from + len];
            let before = |i: usize| if i == 0 { 0 } else { src[i - 1] };
            let delta: Vec<u8> = (0..len).map(|i| src[i].wrapping_sub(before(i))).collect();
            let xor: Vec<u8> = (0..len).map(|i| src[i] ^ before(i)).collect();
            for k in available() {
                assert_eq!(output_of(len, to, |out| (k.delta)(src, out)), delta, "{:?} delta of {len}", k.level);
                assert_eq!(output_of(len, to, |out| (k.xor)(src, out)), xor, "{:?} xor of {len}", k.level);
                let undone = |residual: &[u8], undo: Undo| {
                    output_of(len, to, |out| {
                        out.copy_from_slice(residual);
                        undo(out);
                    })
                };
                assert_eq!(undone(&delta, k.undo_delta), src, "{:?} undo_delta of {len}", k.level);
                assert_eq!(undone(&xor, k.undo_xor), src, "{:?} undo_xor of {len}", k.level);
            }
        }
    }
}

#[test]
fn every_level_counts_by_the_definition() {
    for len in lengths().chain([20_000]) {
        for (i, src) in contents(len + 3).iter().enumerate() {
            let src = &src[i % 4..i % 4 + len];
            let mut expected = [7u32; 256];
            src.iter().for_each(|b| expected[*b as usize] += 1);
            let repeats = (1..len).filter(|i| src[*i] == src[*i - 1]).count();
            for k in available() {
                let mut counts = [7u32; 256];
                (k.histogram)(src, &mut counts);
                assert_eq!(counts, expected, "{:?} histogram of {len}", k.level);
                assert_eq!((k.repeats)(src), repeats, "{:?} repeats of {len}", k.level);
            }
        }
    }
}

#[test]
fn every_level_finds_the_first_run() {
    for len in lengths() {
        for (i, src) in contents(len + 3).iter().enumerate() {
            let src = &src[i % 4..i % 4 + len];
            let expected = (0..len).find(|i| *i + 3 < len && (1..4).all(|j| src[i + j] == src[*i])).unwrap_or(len);
            let run = (0..len).find(|i| src[*i] != src[0]).unwrap_or(len);
            for k in available() {
                assert_eq!((k.next_run)(src), expected, "{:?} next_run in {len}", k.level);
                assert_eq!((k.run_len)(src), run, "{:?} run_len in {len}", k.level);
            }
        }
    }
}

#[test]
fn every_level_finds_a_run_wherever_it_is() {
    for len in [4, 5, 19, 20, 35, 64, 67, 68, 131, 200, 300] {
        for run in 1..=len.min(80) {
            for at in 0..=len - run {
                // No neighbours alike but in the run, which is of the byte before it or of another.
                let mut src: Vec<u8> = (0..len).map(|i| (i % 200) as u8).collect();
                let byte = if at % 2 == 0 { 240 } else { src[at] };
                src[at..at + run].fill(byte);
                let expected = if run >= 4 { at } else { len };
                for k in available() {
                    assert_eq!((k.next_run)(&src), expected, "{:?} next_run of {run} at {at} in {len}", k.level);
                    assert_eq!((k.run_len)(&src[at..]), run, "{:?} run_len of {run} at {at} in {len}", k.level);
                    assert_eq!((k.repeats)(&src), run - 1, "{:?} repeats of {run} at {at} in {len}", k.level);
                }
            }
        }
    }
}
