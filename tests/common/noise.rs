//! Numbers of a bell curve, the same for a seed: linear congruential, four uniform numbers each.

/// A generator with this state.
pub struct Noise(pub u64);

impl Noise {
    /// From -2 to 2, with a deviation of 0.58.
    pub fn next(&mut self) -> f32 {
        let mut sum = -2.0;
        for _ in 0..4 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            sum += (self.0 >> 40) as f32 / (1 << 24) as f32;
        }
        sum
    }

    /// The same, with a deviation of nearly 1.
    pub fn wide(&mut self) -> f32 {
        self.next() * 1.7
    }
}
