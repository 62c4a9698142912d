//! The directions of sketches: the mean of a head's keys, and the main directions around it.

use super::sketch::{directions, tame};
use crate::arch::estimates::{PANEL, Shorts};
use crate::status::{Result, bail};
use crate::sys::memory;

/// Tokens that a basis is made of, at most.
const SAMPLE: usize = 512;
/// Steps of the iteration. Directions that are not apart by then are equally good.
const STEPS: usize = 12;
/// A vector that keeps less of its length than this beside the others is one of them.
const DEPENDENT: f64 = 1e-9;

/// Mean and directions of each KV head.
#[derive(Debug, Default)]
pub struct Basis {
    dims: usize,
    /// `[head][dim]`.
    means: Vec<f32>,
    /// `[head][panel][dim][direction]`, upper halves of f32; directions that do not exist are 0.
    directions: Vec<Shorts>,
}

impl Basis {
    pub(super) fn mean(&self, head: usize) -> &[f32] {
        &self.means[head * self.dims..][..self.dims]
    }

    /// Of each panel `[dim][direction]`.
    pub(super) fn panels(&self, head: usize) -> impl Iterator<Item = &[Shorts]> {
        let panels = directions(self.dims) / PANEL;
        self.directions[head * panels * self.dims..].chunks_exact(self.dims).take(panels)
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.means) + size_of_val(&*self.directions)
    }

    /// Bytes of memory of one of so many heads.
    pub fn bytes_of(heads: usize, dims: usize) -> usize {
        heads * dims * (size_of::<f32>() + directions(dims) / PANEL * size_of::<Shorts>())
    }

    /// The bytes, as a file has them: of each head the mean, f32, then of each panel and dimension its part of each direction, upper
    /// halves of f32; little-endian.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        memory::reserve(&mut out, self.bytes())?;
        for (head, mean) in self.means.chunks_exact(self.dims.max(1)).enumerate() {
            mean.iter().try_for_each(|x| memory::extend(&mut out, &x.to_le_bytes()))?;
            let parts = self.panels(head).flatten().flatten();
            parts.into_iter().try_for_each(|x| memory::extend(&mut out, &u16::from_ne_bytes(*x).to_le_bytes()))?;
        }
        Ok(out)
    }

    /// Reads what [`Basis::to_bytes`] returned. CORRUPT: if it is not of so many heads and dims, or a number is not finite.
    pub fn read(bytes: &[u8], heads: usize, dims: usize) -> Result<Self> {
        let expected = Basis::bytes_of(heads, dims);
        if bytes.len() != expected {
            bail!(Corrupt, "directions of sketches have {} bytes; {expected} expected", bytes.len());
        }
        let (mut means, mut all) = (Vec::new(), Vec::new());
        memory::reserve(&mut means, heads * dims)?;
        memory::reserve(&mut all, heads * dims * directions(dims) / PANEL)?;
        for head in bytes.chunks_exact(expected / heads.max(1)) {
            let (mean, parts) = head.split_at(dims * size_of::<f32>());
            for x in mean.as_chunks::<4>().0 {
                memory::push(&mut means, f32::from_le_bytes(*x))?;
            }
            for row in parts.as_chunks::<2>().0.as_chunks::<PANEL>().0 {
                memory::push(&mut all, row.map(|x| u16::from_le_bytes(x).to_ne_bytes()))?;
            }
        }
        if !means.iter().copied().chain(all.as_flattened().iter().map(|x| widen(*x))).all(f32::is_finite) {
            bail!(Corrupt, "a direction of sketches is not finite");
        }
        Ok(Basis { dims, means, directions: all })
    }

    /// The basis of keys `[head][token][dim]`, of at most [`SAMPLE`] tokens that are evenly apart. The directions, before they are
    /// rounded, are orthonormal: those that an orthogonal iteration finds in [`STEPS`] steps on the covariance, from fixed
    /// vectors. All sums are of f64 in a fixed order.
    pub fn learn(keys: &[f32], tokens: usize, heads: usize, dims: usize) -> Result<Self> {
        let count = tokens.min(SAMPLE);
        let mut means = memory::filled(0.0, heads * dims)?;
        let panels = directions(dims) / PANEL;
        let mut all = memory::filled([[0; 2]; PANEL], heads * panels * dims)?;
        let mut sample = memory::filled(0.0f64, count * dims)?;
        let mut covariance = memory::filled(0.0f64, dims * dims)?;
        let mut space = Space::new(dims)?;
        for head in 0..heads {
            let keys = &keys[head * tokens * dims..][..tokens * dims];
            for (at, row) in sample.chunks_exact_mut(dims).enumerate() {
                let key = &keys[at * tokens / count * dims..][..dims];
                row.iter_mut().zip(key).for_each(|(x, key)| *x = f64::from(tame(*key)));
            }
            let mean = &mut means[head * dims..][..dims];
            centre(&mut sample, mean);
            covary(&sample, dims, &mut covariance);
            space.iterate(&covariance);
            for (at, vector) in space.vectors().enumerate() {
                let panel = &mut all[(head * panels + at / PANEL) * dims..][..dims];
                panel.iter_mut().zip(vector).for_each(|(to, x)| to[at % PANEL] = short(*x as f32));
            }
        }
        Ok(Basis { dims, means, directions: all })
    }
}

/// The upper half of a float, to nearest, ties to even.
pub(super) fn short(x: f32) -> [u8; 2] {
    let bits = x.to_bits();
    (((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) as u16).to_ne_bytes()
}

/// The float of an upper half.
pub(super) fn widen(short: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_ne_bytes(short)) << 16)
}

/// Subtracts the mean from rows, as it is rounded to `mean`.
fn centre(rows: &mut [f64], mean: &mut [f32]) {
    let (dims, count) = (mean.len(), (rows.len() / mean.len()) as f64);
    for (d, mean) in mean.iter_mut().enumerate() {
        *mean = (rows.iter().skip(d).step_by(dims).sum::<f64>() / count) as f32;
    }
    for row in rows.chunks_exact_mut(dims) {
        row.iter_mut().zip(&*mean).for_each(|(x, mean)| *x -= f64::from(*mean));
    }
}

/// The sums of products of columns; the factor of a covariance has no effect on its directions.
fn covary(rows: &[f64], dims: usize, sums: &mut [f64]) {
    /// Rows at once, so that sums are loaded and stored less often.
    const ABREAST: usize = 8;
    sums.fill(0.0);
    let mut parts = rows.chunks_exact(ABREAST * dims);
    for part in parts.by_ref() {
        for i in 0..dims {
            let factors: [f64; ABREAST] = std::array::from_fn(|r| part[r * dims + i]);
            let columns: [&[f64]; ABREAST] = std::array::from_fn(|r| &part[r * dims + i..(r + 1) * dims]);
            for (j, sum) in sums[i * dims + i..(i + 1) * dims].iter_mut().enumerate() {
                *sum += (0..ABREAST).fold(0.0, |sum, r| sum + factors[r] * columns[r][j]);
            }
        }
    }
    for row in parts.remainder().chunks_exact(dims) {
        for i in 0..dims {
            let sums = sums[i * dims + i..(i + 1) * dims].iter_mut();
            sums.zip(&row[i..]).for_each(|(sum, x)| *sum += row[i] * x);
        }
    }
    for i in 0..dims {
        for j in 0..i {
            sums[i * dims + j] = sums[j * dims + i];
        }
    }
}

/// Orthonormal vectors, and their images.
struct Space {
    dims: usize,
    /// `[direction][dim]`.
    vectors: Vec<f64>,
    images: Vec<f64>,
}

impl Space {
    fn new(dims: usize) -> Result<Self> {
        let len = dims * dims.min(directions(dims));
        Ok(Space { dims, vectors: memory::filled(0.0, len)?, images: memory::filled(0.0, len)? })
    }

    fn vectors(&self) -> impl Iterator<Item = &[f64]> {
        self.vectors.chunks_exact(self.dims)
    }

    /// Moves fixed vectors to the main directions of a symmetric matrix.
    fn iterate(&mut self, matrix: &[f64]) {
        // Numbers without a pattern: the vectors must have a part of each direction.
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        self.images.fill_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f64 / (1u64 << 23) as f64 - 1.0
        });
        self.orthonormalise();
        for _ in 0..STEPS {
            self.images.fill(0.0);
            for (vector, image) in self.vectors.chunks_exact(self.dims).zip(self.images.chunks_exact_mut(self.dims)) {
                for (x, row) in vector.iter().zip(matrix.chunks_exact(self.dims)) {
                    image.iter_mut().zip(row).for_each(|(sum, a)| *sum += x * a);
                }
            }
            self.orthonormalise();
        }
    }

    /// Images to orthonormal vectors. An image that is a sum of those before it is replaced by the first unit vector that
    /// is none.
    fn orthonormalise(&mut self) {
        let dims = self.dims;
        let mut units = 0..dims;
        for at in 0..self.images.len() / dims {
            let (done, rest) = self.vectors.split_at_mut(at * dims);
            let vector = &mut rest[..dims];
            vector.copy_from_slice(&self.images[at * dims..][..dims]);
            while !is_made_unit(vector, done) {
                // There are fewer vectors than units, so one of them is left.
                let Some(unit) = units.next() else { break };
                vector.fill(0.0);
                vector[unit] = 1.0;
            }
        }
    }
}

/// Removes the parts of a vector along others, twice because the first time rounds, and makes its length 1. Returns false
/// if nothing is left.
fn is_made_unit(vector: &mut [f64], others: &[f64]) -> bool {
    let before = dot(vector, vector).sqrt();
    for _ in 0..2 {
        for other in others.chunks_exact(vector.len()) {
            let part = dot(vector, other);
            vector.iter_mut().zip(other).for_each(|(x, other)| *x -= part * other);
        }
    }
    let length = dot(vector, vector).sqrt();
    if length <= before * DEPENDENT || length < f64::MIN_POSITIVE {
        return false;
    }
    vector.iter_mut().for_each(|x| *x /= length);
    true
}

/// The sum of products in four parts, in a fixed order.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<4>(), b.as_chunks::<4>());
    let mut sums = [0.0; 4];
    for (a, b) in a.iter().zip(b) {
        (0..4).for_each(|i| sums[i] += a[i] * b[i]);
    }
    a_rest.iter().zip(b_rest).fold((sums[0] + sums[2]) + (sums[1] + sums[3]), |sum, (a, b)| sum + a * b)
}
