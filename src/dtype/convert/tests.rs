//! Conversions between element types.

use super::*;

#[test]
fn every_half_is_converted_as_it_should_and_back() {
    let bits: Vec<u16> = (0..=u16::MAX).collect();
    for (order, bytes) in [
        (Endian::Little, bits.iter().flat_map(|b| b.to_le_bytes()).collect::<Vec<u8>>()),
        (Endian::Native, bits.iter().flat_map(|b| b.to_ne_bytes()).collect()),
    ] {
        for dtype in [Dtype::F16, Dtype::Bf16] {
            let mut numbers = vec![0.0; bits.len()];
            widen(dtype, order, &bytes, &mut numbers);
            for (x, bits) in numbers.iter().zip(&bits) {
                let exact = match dtype {
                    Dtype::F16 => f16::from_bits(*bits).to_f32(),
                    _ => f32::from_bits(u32::from(*bits) << 16),
                };
                assert!(x.to_bits() == exact.to_bits() || x.is_nan() && exact.is_nan(), "{dtype:?} {bits:#x}: {x}");
            }
            let mut back = vec![0; bytes.len()];
            narrow(dtype, order, &numbers, &mut back);
            for (i, x) in numbers.iter().enumerate().filter(|(_, x)| !x.is_nan()) {
                assert_eq!(back[2 * i..2 * i + 2], bytes[2 * i..2 * i + 2], "{dtype:?} {x}");
            }
        }
    }
}

#[test]
fn numbers_in_the_middle_are_rounded_to_even() {
    // One, and numbers between it and the next two of the type.
    for (dtype, step) in [(Dtype::F16, 1.0 / 1024.0), (Dtype::Bf16, 1.0 / 128.0)] {
        let mut values = [0.5, 0.4999, 1.5, 1.4999, 2.5].map(|steps| 1.0 + steps * step);
        round(dtype, &mut values);
        assert_eq!(values, [0.0, 0.0, 2.0, 1.0, 2.0].map(|steps| 1.0 + steps * step), "{dtype:?}");
    }
    let mut same = [f32::MIN_POSITIVE, 1.0 + f32::EPSILON];
    round(Dtype::F32, &mut same);
    assert_eq!(same, [f32::MIN_POSITIVE, 1.0 + f32::EPSILON]);
    assert_eq!(bf16::from_f32(same[1]), bf16::ONE);
}
