//! Arithmetic of rotary position embeddings with the same bits on every machine: IEEE additions, multiplications and
//! divisions in a fixed order, without library functions.

/// A rotation of the plane: cosine and sine of its angle.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Turn {
    pub(super) cos: f64,
    pub(super) sin: f64,
}

/// `theta^(-2 i / dims)` for each of `dims / 2` pairs, rounded to f32 as hosts do: first the power, then its inverse.
pub(super) fn frequencies(theta: f32, pairs: usize) -> impl ExactSizeIterator<Item = f32> {
    let root = root(theta as f64, pairs);
    let mut power = 1.0;
    (0..pairs).map(move |_| {
        let inverse = 1.0 / power as f32;
        power *= root;
        inverse
    })
}

/// The `n`-th root of `x` >= 1, by Newton's method.
fn root(x: f64, n: usize) -> f64 {
    // Near 1 both log2(1 + m) and 2^m - 1 are almost parabolas: near enough for the iteration to converge.
    const ONE: u64 = 1 << 52;
    let mantissa = (x.to_bits() % ONE) as f64 / ONE as f64;
    let log = (x.to_bits() / ONE) as f64 - 1023.0 + mantissa * (1.34 - 0.34 * mantissa);
    let (whole, part) = ((log / n as f64) as u64, log / n as f64 - (log / n as f64) as u64 as f64);
    let mut root = f64::from_bits((whole + 1023) * ONE) * (1.0 + part * (0.657 + 0.343 * part));
    for _ in 0..8 {
        let mut power = 1.0;
        for _ in 1..n {
            power *= root;
        }
        root += (x / power - root) / n as f64;
    }
    root
}

/// The turn at `position` for an angle of `frequency` per position. The angle is rounded to f32, as hosts do.
pub(super) fn turn(position: u32, frequency: f32) -> Turn {
    let angle = position as f32 * frequency;
    // Pi / 2 in three parts, the first two short enough that their products are exact.
    const HALF_PI: [f64; 3] = [1.570796325802803, 9.920935791635221e-10, 5.170182981794105e-19];
    let x = angle as f64;
    let quarters = (x * std::f64::consts::FRAC_2_PI + 0.5) as i64;
    let q = quarters as f64;
    let r = ((x - q * HALF_PI[0]) - q * HALF_PI[1]) - q * HALF_PI[2];
    let (cos, sin) = near_zero(r);
    match quarters & 3 {
        0 => Turn { cos, sin },
        1 => Turn { cos: -sin, sin: cos },
        2 => Turn { cos: -cos, sin: -sin },
        _ => Turn { cos: sin, sin: -cos },
    }
}

/// Cosine and sine between -pi / 4 and pi / 4, by their series. Divisions would take most of the time of a rotated row;
/// their inverses are constants.
fn near_zero(x: f64) -> (f64, f64) {
    let z = x * x;
    let (mut cos, mut sin) = (1.0, 1.0);
    for n in [14.0, 12.0, 10.0, 8.0, 6.0, 4.0, 2.0] {
        cos = 1.0 - z * (1.0 / (n * (n - 1.0))) * cos;
        sin = 1.0 - z * (1.0 / (n * (n + 1.0))) * sin;
    }
    (cos, x * sin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_agree_with_the_libm_of_the_machine() {
        for position in [0, 1, 2, 3, 7, 100, 1087, 4095, 131_071, 1_000_000] {
            for frequency in frequencies(10_000.0, 32) {
                let angle = (position as f32 * frequency) as f64;
                let Turn { cos, sin } = turn(position, frequency);
                assert!((cos - angle.cos()).abs() < 1e-11 && (sin - angle.sin()).abs() < 1e-11, "{angle}: {cos} {sin}");
            }
        }
    }

    #[test]
    fn frequencies_are_the_powers_of_theta() {
        for (theta, pairs) in [(10_000.0f32, 32), (10_000.0, 64), (500_000.0, 64), (1e6, 128), (2.0, 1), (1.0, 4)] {
            for (i, f) in frequencies(theta, pairs).enumerate() {
                let exact = (theta as f64).powf(-(i as f64) / pairs as f64);
                assert!((f as f64 / exact - 1.0).abs() < 2e-7, "{theta} {i}: {f} {exact}");
            }
        }
    }
}
