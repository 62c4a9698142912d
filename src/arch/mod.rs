//! Kernels that have a SIMD version, and the choice between the versions.
//!
//! Every kernel exists in [`portable`], which is its definition and its oracle in tests; an instruction-set file
//! holds the faster versions. Results never depend on the level, only the time does.
//!
//! The level is detected once. The environment variable `MNNKV_CPU_LEVEL` (`portable`, `avx2`) can lower it, never
//! raise it above what the CPU has; any other value is ignored.

pub mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::sync::OnceLock;

/// Instruction-set levels, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Plain Rust, on every CPU.
    Portable,
    /// x86-64 with AVX2.
    Avx2,
}

impl Level {
    const ALL: [Level; 2] = [Level::Portable, Level::Avx2];

    /// The name in `MNNKV_CPU_LEVEL`, with a terminating NUL for C.
    const fn c_name(self) -> &'static core::ffi::CStr {
        match self {
            Level::Portable => c"portable",
            Level::Avx2 => c"avx2",
        }
    }
}

/// Rearranges bytes between words and lanes: lane `i` of an n-byte word stream is byte `i` of every word.
type Shuffle = fn(src: &[u8], dst: &mut [u8]);

/// A matrix of `rows x columns` elements inside larger ones, and its transpose; strides are in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transposition {
    /// Rows of the source, columns of the target.
    pub rows: usize,
    /// Columns of the source, rows of the target.
    pub columns: usize,
    /// From one row of the source to the next, at least `columns`.
    pub src_stride: usize,
    /// From one row of the target to the next, at least `rows`.
    pub dst_stride: usize,
}

/// `dst[j * dst_stride + i] = src[i * src_stride + j]`; nothing else of `dst` changes.
type Transpose<T> = fn(shape: &Transposition, src: &[T], dst: &mut [T]);

/// An element as bytes, so that it has no alignment.
pub trait Element: Copy {
    /// The level's version of transpose for this size.
    fn transpose(kernels: &Kernels) -> Transpose<Self>;
}

impl Element for [u8; 2] {
    fn transpose(kernels: &Kernels) -> Transpose<Self> {
        kernels.transpose2
    }
}

impl Element for [u8; 4] {
    fn transpose(kernels: &Kernels) -> Transpose<Self> {
        kernels.transpose4
    }
}

/// One level's version of every kernel. For splits and merges `dst` is as long as `src`, and that is a multiple of the
/// word size; lanes lie one after the other.
pub struct Kernels {
    /// The level these kernels need.
    pub level: Level,
    /// 2-byte words to 2 lanes.
    pub split2: Shuffle,
    /// 4-byte words to 4 lanes.
    pub split4: Shuffle,
    /// 2 lanes to 2-byte words.
    pub merge2: Shuffle,
    /// 4 lanes to 4-byte words.
    pub merge4: Shuffle,
    /// Transpose of 2-byte elements.
    pub transpose2: Transpose<[u8; 2]>,
    /// Transpose of 4-byte elements.
    pub transpose4: Transpose<[u8; 4]>,
}

static PORTABLE: Kernels = Kernels {
    level: Level::Portable,
    split2: portable::split::<2>,
    split4: portable::split::<4>,
    merge2: portable::merge::<2>,
    merge4: portable::merge::<4>,
    transpose2: portable::transpose,
    transpose4: portable::transpose,
};

/// The kernels of every level this CPU can run, lowest first.
pub fn available() -> Vec<&'static Kernels> {
    #[allow(unused_mut)]
    let mut all = vec![&PORTABLE];
    #[cfg(target_arch = "x86_64")]
    all.extend(x86_64::avx2());
    all
}

/// The kernels in use.
pub fn kernels() -> &'static Kernels {
    static CHOSEN: OnceLock<&'static Kernels> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let wanted = std::env::var("MNNKV_CPU_LEVEL").unwrap_or_default();
        choose(&available(), &wanted)
    })
}

/// The name of the level in use.
pub fn level_name() -> &'static core::ffi::CStr {
    kernels().level.c_name()
}

fn choose(available: &[&'static Kernels], wanted: &str) -> &'static Kernels {
    let limit = Level::ALL.into_iter().find(|level| level.c_name().to_str() == Ok(wanted));
    available.iter().rev().find(|k| limit.is_none_or(|limit| k.level <= limit)).unwrap_or(&&PORTABLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_lowers_the_level_and_never_raises_it() {
        let all = available();
        assert_eq!(choose(&all, "portable").level, Level::Portable);
        assert_eq!(choose(&all, "").level, all.last().unwrap().level);
        assert_eq!(choose(&all, "no such level").level, all.last().unwrap().level);
        assert_eq!(choose(&[&PORTABLE], "avx2").level, Level::Portable);
    }

    fn noise(len: u32) -> Vec<u8> {
        (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    fn check_transposes<T: Element + PartialEq + std::fmt::Debug>(src: &[T]) {
        let gaps = [0, 1, 5];
        for (rows, columns) in (0..20).flat_map(|r| (0..20).map(move |c| (r, c))).chain([(128, 16), (64, 7), (9, 64)]) {
            for (gap, k) in gaps.iter().flat_map(|g| available().into_iter().map(move |k| (g, k))) {
                let shape =
                    Transposition { rows, columns, src_stride: columns + gap, dst_stride: rows + (gap + 1) % 3 };
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

    #[test]
    fn every_level_agrees_with_portable_for_every_length_and_offset() {
        let bytes = noise(4096);
        for k in available() {
            for words in (0..200).chain([511, 1000]) {
                for offset in [0, 1, 3] {
                    for (width, split, merge) in [(2, k.split2, k.merge2), (4, k.split4, k.merge4)] {
                        let src = &bytes[offset..offset + words * width];
                        let lanes_of = |f: Shuffle, s: &[u8]| {
                            let mut out = vec![0xEE; s.len()];
                            f(s, &mut out);
                            out
                        };
                        let oracle = if width == 2 { PORTABLE.split2 } else { PORTABLE.split4 };
                        let lanes = lanes_of(split, src);
                        assert_eq!(lanes, lanes_of(oracle, src), "{:?} split{width} of {words}", k.level);
                        assert_eq!(lanes_of(merge, &lanes), src, "{:?} merge{width} of {words}", k.level);
                    }
                }
            }
        }
    }
}
