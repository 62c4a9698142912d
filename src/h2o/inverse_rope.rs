//! Keys turned back to position 0, so that tokens at different positions can be compared.

use crate::status::{Result, bail};
use crate::sys::memory;

/// The rotation of a layer's keys by their positions (RoPE): pair i of a key at position p is turned by
/// `p * frequencies[i]`.
#[derive(Debug)]
pub struct InverseRope {
    /// Pairs are channels 2 d and 2 d + 1, else d and d + dims / 2.
    adjacent: bool,
    frequencies: Vec<f32>,
}

/// Cosines and sines of some tokens, `[token][2][pair]`; working memory.
#[derive(Debug, Default)]
pub struct Angles(Vec<f32>);

impl InverseRope {
    /// The rotation with these angles per position, one per pair.
    pub fn new(adjacent: bool, frequencies: Vec<f32>) -> Self {
        InverseRope { adjacent, frequencies }
    }

    /// INVALID_ARGUMENT: if the rotation has more channels than a key.
    pub fn check(&self, head_dim: usize) -> Result<()> {
        let dims = 2 * self.frequencies.len();
        if dims > head_dim {
            bail!(InvalidArgument, "the rotation has {dims} dims; {head_dim} or fewer expected, those of a key");
        }
        Ok(())
    }

    /// Turns keys `[head][token][dim]`, one token per position, back to position 0.
    pub fn back(&self, keys: &mut [f32], dims: usize, positions: &[u32], angles: &mut Angles) -> Result<()> {
        let pairs = self.frequencies.len();
        if pairs == 0 || positions.is_empty() {
            return Ok(());
        }
        angles.set(&self.frequencies, positions)?;
        for (key, angles) in keys.chunks_exact_mut(dims).zip(angles.0.chunks_exact(2 * pairs).cycle()) {
            let (cos, sin) = angles.split_at(pairs);
            let angles = cos.iter().zip(sin);
            let turn = |x: &mut f32, y: &mut f32, (cos, sin): (&f32, &f32)| {
                (*x, *y) = (*x * cos + *y * sin, *y * cos - *x * sin);
            };
            if self.adjacent {
                key.as_chunks_mut::<2>().0.iter_mut().zip(angles).for_each(|([x, y], angle)| turn(x, y, angle));
            } else {
                let (x, y) = key.split_at_mut(pairs);
                x.iter_mut().zip(y).zip(angles).for_each(|((x, y), angle)| turn(x, y, angle));
            }
        }
        Ok(())
    }
}

impl Angles {
    fn set(&mut self, frequencies: &[f32], positions: &[u32]) -> Result<()> {
        let (pairs, tokens) = (frequencies.len(), positions.len());
        memory::at_least(&mut self.0, 2 * pairs * tokens)?;
        for (pair, frequency) in frequencies.iter().enumerate() {
            let frequency = f64::from(*frequency);
            let (step_sin, step_cos) = frequency.sin_cos();
            let (mut sin, mut cos, mut next) = (0.0, 0.0, None);
            for (token, position) in positions.iter().enumerate() {
                // Neighbours are a step apart: a function call for each would take longer than all else.
                (sin, cos) = match next {
                    Some(next) if next == *position => {
                        (sin * step_cos + cos * step_sin, cos * step_cos - sin * step_sin)
                    }
                    _ => (frequency * f64::from(*position)).sin_cos(),
                };
                next = position.checked_add(1);
                self.0[2 * pairs * token + pair] = cos as f32;
                self.0[2 * pairs * token + pairs + pair] = sin as f32;
            }
        }
        self.0.truncate(2 * pairs * tokens);
        Ok(())
    }
}
