//! The keys and values of new tokens, read once for the policies that rank tokens by them.

use crate::dtype::Dtype;
use crate::dtype::convert::{Endian, widen};
use crate::h2o::{Angles, InverseRope, NewTokens, TokenRows, TokenScores};
use crate::layout::{self, CacheRef, Kind, TokenRange};
use crate::status::Result;
use crate::sys::memory;

/// Tokens read at once, which are compared with the same mean.
const CHUNK: usize = 64;

/// Rows of the tokens under work, `[head][token][dim]`.
#[derive(Default)]
struct Chunk {
    /// As `keys` and `values`, in bytes.
    bytes: [Vec<u8>; 2],
    keys: Vec<f32>,
    values: Vec<f32>,
    positions: Vec<u32>,
    angles: Angles,
}

/// Reads the tokens of a cache of `kv_len` tokens that have no numbers yet, none of which is in the store.
/// `position`: the logical position of a token.
/// INVALID_ARGUMENT: if `turn` does not fit the keys.
pub(super) fn read(
    scores: &mut TokenScores,
    cache: &CacheRef<'_>,
    kv_len: u32,
    turn: Option<&InverseRope>,
    position: impl Fn(u32) -> u32,
) -> Result<NewTokens> {
    let rows = cache.layout.rows();
    if let Some(turn) = turn {
        turn.check(rows.dims)?;
    }
    let begin = scores.known();
    let count = (kv_len - begin) as usize;
    let mut new = scores.begin(rows.heads, rows.dims, count)?;
    let mut chunk = Chunk::default();
    for first in (0..count).step_by(CHUNK) {
        let range = cache.layout.range(begin + first as u32, CHUNK.min(count - first) as u32)?;
        chunk.load(cache, range, turn, &position)?;
        new.see(&TokenRows { heads: rows.heads, dims: rows.dims, keys: &chunk.keys, values: &chunk.values })?;
    }
    Ok(new)
}

impl Chunk {
    fn load(
        &mut self,
        cache: &CacheRef<'_>,
        range: TokenRange,
        turn: Option<&InverseRope>,
        position: impl Fn(u32) -> u32,
    ) -> Result<()> {
        let rows = cache.layout.rows();
        let elements = rows.heads * range.count() * rows.dims;
        let [keys, values] = &mut self.bytes;
        // Floating-point rows need no second copy.
        let (key, value) = match (rows.key, rows.value) {
            (Kind::Float(key), Kind::Float(value)) => (key, value),
            _ => (Dtype::F32, Dtype::F32),
        };
        memory::resize(keys, elements * key.bytes())?;
        memory::resize(values, elements * value.bytes())?;
        if matches!((rows.key, rows.value), (Kind::Float(_), Kind::Float(_))) {
            layout::gather(cache, range, keys, values)?;
        } else {
            layout::dequantize(cache, None, range, Dtype::F32, keys, values)?;
        }
        for (dtype, bytes, numbers) in [(key, keys, &mut self.keys), (value, values, &mut self.values)] {
            memory::resize(numbers, elements)?;
            widen(dtype, Endian::Native, bytes, numbers);
        }
        let Some(turn) = turn else { return Ok(()) };
        memory::cleared(&mut self.positions, range.count())?;
        (0..range.count() as u32)
            .try_for_each(|at| memory::push(&mut self.positions, position(range.begin() as u32 + at)))?;
        turn.back(&mut self.keys, rows.dims, &self.positions, &mut self.angles)
    }
}
