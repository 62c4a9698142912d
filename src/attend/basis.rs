//! The directions of sketches: the mean of a head's keys, and the main directions around it.

use super::sketch::tame;
use crate::arch::estimates::{DIRECTIONS, LANES};
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
    /// `[head][dim][direction]`; directions that do not exist are 0.
    directions: Vec<[f32; LANES]>,
}

impl Basis {
    pub(super) fn mean(&self, head: usize) -> &[f32] {
        &self.means[head * self.dims..][..self.dims]
    }

    /// `[dim][direction]`.
    pub(super) fn directions(&self, head: usize) -> &[[f32; LANES]] {
        &self.directions[head * self.dims..][..self.dims]
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.means) + size_of_val(&*self.directions)
    }

    /// Bytes of memory of one of so many heads.
    pub fn bytes_of(heads: usize, dims: usize) -> usize {
        heads * dims * (size_of::<f32>() + size_of::<[f32; LANES]>())
    }

    /// The bytes, as a file has them: of each head the mean, then of each dimension its part of each direction; f32, little-endian.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        memory::reserve(&mut out, self.bytes())?;
        let means = self.means.chunks_exact(self.dims.max(1));
        for (mean, directions) in means.zip(self.directions.chunks_exact(self.dims.max(1))) {
            let all = mean.iter().chain(directions.as_flattened());
            all.into_iter().try_for_each(|x| memory::extend(&mut out, &x.to_le_bytes()))?;
        }
        Ok(out)
    }

    /// Reads what [`Basis::to_bytes`] returned. CORRUPT: if it is not of so many heads and dims, or a number is not finite.
    pub fn read(bytes: &[u8], heads: usize, dims: usize) -> Result<Self> {
        let expected = Basis::bytes_of(heads, dims);
        if bytes.len() != expected {
            bail!(Corrupt, "directions of sketches have {} bytes; {expected} expected", bytes.len());
        }
        let (mut means, mut directions) = (Vec::new(), Vec::new());
        memory::reserve(&mut means, heads * dims)?;
        memory::reserve(&mut directions, heads * dims)?;
        for head in bytes.chunks_exact(expected / heads.max(1)) {
            let mut numbers = head.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            if numbers.clone().any(|x| !x.is_finite()) {
                bail!(Corrupt, "a direction of sketches is not finite");
            }
            for _ in 0..dims {
                memory::push(&mut means, numbers.next().unwrap_or_default())?;
            }
            for _ in 0..dims {
                memory::push(&mut directions, std::array::from_fn(|_| numbers.next().unwrap_or_default()))?;
            }
        }
        Ok(Basis { dims, means, directions })
    }

    /// The basis of keys `[head][token][dim]`, of at most [`SAMPLE`] tokens that are evenly apart. The directions are
    /// orthonormal: those that an orthogonal iteration finds in [`STEPS`] steps on the covariance, from fixed vectors.
    /// All sums are of f64 in a fixed order.
    pub fn learn(keys: &[f32], tokens: usize, heads: usize, dims: usize) -> Result<Self> {
        let count = tokens.min(SAMPLE);
        let mut means = memory::filled(0.0, heads * dims)?;
        let mut directions = memory::filled([0.0; LANES], heads * dims)?;
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
            for (d, to) in directions[head * dims..][..dims].iter_mut().enumerate() {
                to.iter_mut().zip(space.vectors()).for_each(|(to, vector)| *to = vector[d] as f32);
            }
        }
        Ok(Basis { dims, means, directions })
    }
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
        let len = dims * dims.min(DIRECTIONS);
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
