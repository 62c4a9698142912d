//! The frequencies of rotary position embeddings with the same bits on every machine: IEEE additions, multiplications
//! and divisions in a fixed order, without library functions.

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

#[cfg(test)]
mod tests {
    use super::*;

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
