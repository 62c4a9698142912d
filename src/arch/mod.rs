//! SIMD kernels, and the choice between their levels.
//!
//! [`portable`] defines every kernel and is its oracle in tests. `vector` has each kernel once, over a vector type; a
//! level (`x86_64`, `aarch64`) has the vector types and the tables of its kernels. A table is reached through the
//! witness of its level alone, a value that exists if the CPU has the level's features. Results never depend on the
//! level.
//!
//! The level is detected once. The environment variable `MNNKV_CPU_LEVEL` (`portable`; on x86-64 `sse2`, `avx2`,
//! `avx512`; on AArch64 `neon`) may lower it. A value that names no level of this CPU is ignored.

#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod aarch64;
pub mod attend;
pub mod estimates;
#[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))]
mod level;
pub mod portable;
mod prefetch;
mod product;
#[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))]
mod vector;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(test)]
mod tests;

use crate::sys;
pub use prefetch::{prefetch, prefetch_far};
pub use product::{PANEL, Product, pack_panels};
use std::sync::OnceLock;

/// Instruction-set levels, lowest first within an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Plain Rust, on every CPU.
    Portable,
    /// Every x86-64.
    Sse2,
    /// x86-64 with AVX2, F16C and FMA.
    Avx2,
    /// x86-64 with AVX-512 F, BW, VL, VBMI, VBMI2 and VNNI.
    Avx512,
    /// Every AArch64.
    Neon,
}

impl Level {
    /// The name in `MNNKV_CPU_LEVEL`, with a terminating NUL for C.
    const fn c_name(self) -> &'static core::ffi::CStr {
        match self {
            Level::Portable => c"portable",
            Level::Sse2 => c"sse2",
            Level::Avx2 => c"avx2",
            Level::Avx512 => c"avx512",
            Level::Neon => c"neon",
        }
    }
}

/// Rearranges bytes between words and planes: plane `i` of n-byte words is byte `i` of every word.
type Shuffle = fn(src: &[u8], dst: &mut [u8]);

/// A byte stream to its residual, as long.
type Residual = fn(src: &[u8], dst: &mut [u8]);

/// Changes bytes in place, such as a residual back to its byte stream.
type Undo = fn(bytes: &mut [u8]);

/// A position, a length or a number in a byte stream.
type Scan = fn(src: &[u8]) -> usize;

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

/// Writes the product of two matrices, `[row][panel][PANEL]`.
type MatrixProduct = fn(product: &Product, result: &mut [[f32; PANEL]]);

/// An element as bytes, so that it has no alignment.
pub trait Element: Copy {
    /// The level's version of transpose for this size.
    fn transpose(kernels: &Kernels) -> Transpose<Self>;
}

impl Element for [u8; 1] {
    // No cache has bytes whose neighbours are tokens.
    fn transpose(_: &Kernels) -> Transpose<Self> {
        portable::transpose
    }
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

/// One level's version of every kernel for caches and blobs. For splits and merges `dst` is as long as `src`, which is a
/// multiple of the word size; planes lie one after the other.
pub struct Kernels {
    /// The level of these kernels.
    pub level: Level,
    /// 2-byte words to 2 planes.
    pub split2: Shuffle,
    /// 4-byte words to 4 planes.
    pub split4: Shuffle,
    /// 2 planes to 2-byte words.
    pub merge2: Shuffle,
    /// 4 planes to 4-byte words.
    pub merge4: Shuffle,
    /// Transpose of 2-byte elements.
    pub transpose2: Transpose<[u8; 2]>,
    /// Transpose of 4-byte elements.
    pub transpose4: Transpose<[u8; 4]>,
    /// `dst[i] = src[i] - src[i - 1]` mod 256; the byte before the first is 0.
    pub delta: Residual,
    /// `dst[i] = src[i] ^ src[i - 1]`; the byte before the first is 0.
    pub xor: Residual,
    /// The inverse of `delta`, in place.
    pub undo_delta: Undo,
    /// The inverse of `xor`, in place.
    pub undo_xor: Undo,
    /// Adds the number of bytes `b` to `counts[b]`. The sums must fit.
    pub histogram: fn(src: &[u8], counts: &mut [u32; 256]),
    /// The number of bytes that equal the byte before them.
    pub repeats: Scan,
    /// The place of the first four equal bytes in a row; the length if there are none.
    pub next_run: Scan,
    /// The number of bytes at the start that equal the first.
    pub run_len: Scan,
    /// Lists the places of a byte, in order; returns how many there are. There is room for as many as `src` has bytes,
    /// at most 2^16.
    pub places: fn(src: &[u8], byte: u8, places: &mut [u16]) -> usize,
    /// Estimates of attention.
    pub estimates: estimates::EstimateKernels,
    /// Attention over K in 8 bits and V in 4.
    pub attend: attend::AttendKernels,
    /// Product of matrices of f32.
    pub product: MatrixProduct,
}

static PORTABLE: Kernels = Kernels {
    level: Level::Portable,
    split2: portable::split::<2>,
    split4: portable::split::<4>,
    merge2: portable::merge::<2>,
    merge4: portable::merge::<4>,
    transpose2: portable::transpose,
    transpose4: portable::transpose,
    delta: portable::delta,
    xor: portable::xor,
    undo_delta: portable::undo_delta,
    undo_xor: portable::undo_xor,
    histogram: portable::histogram,
    repeats: portable::repeats,
    next_run: portable::next_run,
    run_len: portable::run_len,
    places: portable::places,
    estimates: estimates::PORTABLE,
    attend: attend::PORTABLE,
    product: product::portable,
};

/// A level that this CPU has, with its witness.
#[derive(Clone, Copy)]
enum Available {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Sse2(x86_64::Sse2),
    #[cfg(target_arch = "x86_64")]
    Avx2(x86_64::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(x86_64::Avx512),
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    Neon(aarch64::Neon),
}

impl Available {
    /// The levels of this CPU, lowest first.
    fn all() -> impl Iterator<Item = Self> {
        let more = std::iter::empty();
        #[cfg(target_arch = "x86_64")]
        let more = more.chain([
            x86_64::Sse2::new().map(Available::Sse2),
            x86_64::Avx2::new().map(Available::Avx2),
            x86_64::Avx512::new().map(Available::Avx512),
        ]);
        #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
        let more = more.chain([aarch64::Neon::new().map(Available::Neon)]);
        std::iter::once(Some(Available::Portable)).chain(more).flatten()
    }

    fn kernels(self) -> &'static Kernels {
        match self {
            Available::Portable => &PORTABLE,
            #[cfg(target_arch = "x86_64")]
            Available::Sse2(witness) => witness.kernels(),
            #[cfg(target_arch = "x86_64")]
            Available::Avx2(witness) => witness.kernels(),
            #[cfg(target_arch = "x86_64")]
            Available::Avx512(witness) => witness.kernels(),
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Available::Neon(witness) => witness.kernels(),
        }
    }

    /// Those of the level, or of an extension that the CPU has.
    fn attend_kernels(self) -> &'static attend::AttendKernels {
        let extended: Option<&attend::AttendKernels> = match self {
            #[cfg(target_arch = "x86_64")]
            Available::Avx2(_) => x86_64::attend_with_vnni(),
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Available::Neon(_) => aarch64::attend_with_dotprod(),
            _ => None,
        };
        extended.unwrap_or(&self.kernels().attend)
    }

    /// Not in [`Kernels`], so that a library without attention over rows does not link them.
    fn row_kernels(self) -> &'static attend::rows::RowKernels {
        match self {
            #[cfg(target_arch = "x86_64")]
            Available::Avx2(witness) => x86_64::avx2::row_kernels(witness),
            #[cfg(target_arch = "x86_64")]
            Available::Avx512(witness) => x86_64::avx512::row_kernels(witness),
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Available::Neon(witness) => aarch64::row_kernels(witness),
            _ => &attend::rows::PORTABLE,
        }
    }
}

/// The kernels of every level of this CPU, lowest first.
pub fn available() -> impl Iterator<Item = &'static Kernels> {
    Available::all().map(Available::kernels)
}

/// The kernels in use.
pub fn kernels() -> &'static Kernels {
    static CHOSEN: OnceLock<&'static Kernels> = OnceLock::new();
    CHOSEN.get_or_init(|| chosen().kernels())
}

/// The kernels of attention in use.
pub fn attend_kernels() -> &'static attend::AttendKernels {
    static CHOSEN: OnceLock<&'static attend::AttendKernels> = OnceLock::new();
    CHOSEN.get_or_init(|| chosen().attend_kernels())
}

/// The kernels of attention over rows of a host's own cache in use.
pub fn row_kernels() -> &'static attend::rows::RowKernels {
    static CHOSEN: OnceLock<&'static attend::rows::RowKernels> = OnceLock::new();
    CHOSEN.get_or_init(|| chosen().row_kernels())
}

/// The kernels of attention of every level of this CPU, with and without extensions.
pub fn available_attend() -> impl Iterator<Item = &'static attend::AttendKernels> {
    Available::all().flat_map(|level| [&level.kernels().attend, level.attend_kernels()])
}

/// The name of the level in use.
pub fn level_name() -> &'static core::ffi::CStr {
    kernels().level.c_name()
}

/// The level of the environment.
fn chosen() -> Available {
    sys::with_variable(c"MNNKV_CPU_LEVEL", |wanted| choose(Available::all(), wanted))
}

/// The level of that name if it is there, else the highest.
fn choose(available: impl Iterator<Item = Available>, wanted: Option<&str>) -> Available {
    let mut highest = Available::Portable;
    for level in available {
        if wanted.is_some_and(|wanted| level.kernels().level.c_name().to_str() == Ok(wanted)) {
            return level;
        }
        highest = level;
    }
    highest
}

/// The sum of partial sums, a power of two of them, by halves.
#[inline(always)]
fn across<const P: usize>(mut sums: [f32; P]) -> f32 {
    let mut half = P / 2;
    while half > 0 {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
        half /= 2;
    }
    sums[0]
}
