//! Codes of int8 and back, by their definition.

use super::*;

/// Every f16; scales from the least that is allowed to the largest; offsets in turn.
fn check_quantisation(columns: usize, rows: usize, offsets: &[f32]) {
    let bits: Vec<u16> = (0..=u16::MAX).cycle().take(rows * columns).collect();
    let scale: Vec<f32> =
        (0..columns).map(|c| [0.0118, 1.0, 1.1920929e-7, 2f32.powi(-100), 3.7e-3, 515.78, f32::MAX][c % 7]).collect();
    let offset: Vec<f32> = (0..columns).map(|c| offsets[c % offsets.len()]).collect();
    let f16s: Vec<half::f16> = bits.iter().map(|b| half::f16::from_bits(*b)).collect();
    let bf16s: Vec<half::bf16> = bits.iter().map(|b| half::bf16::from_bits(*b)).collect();
    let f32s: Vec<f32> = bits.iter().map(|b| f32::from_bits(u32::from(*b) << 16 | 0x9e37)).collect();
    let all_codes: Vec<i8> = bits.iter().map(|b| *b as i8).collect();
    let at = |i: usize| (scale[i % columns], offset[i % columns]);
    let code = |(i, x): (usize, f32)| {
        let (scale, offset) = at(i);
        let steps = x / scale + offset;
        if x.is_nan() { offset as i8 } else { steps.round_ties_even().clamp(-128.0, 127.0) as i8 }
    };
    let value = |i: usize| (f32::from(all_codes[i]) - at(i).1) * at(i).0;
    let n = bits.len();
    for k in available_model() {
        let check =
            |name: &str, numbers: Vec<f32>, bytes: Vec<u8>, restored: Vec<u8>, quantize: Quantize, de: Dequantize| {
                let width = bytes.len() / n;
                for skew in [0, 1] {
                    let mut src = vec![0; skew];
                    src.extend_from_slice(&bytes);
                    let mut codes = vec![99i8; n + 2];
                    quantize(&src[skew..], &scale, &offset, &mut codes[1..=n]);
                    let expected: Vec<i8> = numbers.iter().copied().enumerate().map(code).collect();
                    assert!(codes[1..=n] == expected, "{:?} {name} to int8, {columns} columns", k.level);
                    assert_eq!((codes[0], codes[n + 1]), (99, 99), "wrote outside");
                    let values = output_of(n * width, skew, |out| de(&all_codes, &scale, &offset, out));
                    assert!(values == restored, "{:?} int8 to {name}, {columns} columns", k.level);
                }
            };
        check(
            "f32",
            f32s.clone(),
            f32s.iter().flat_map(|x| x.to_ne_bytes()).collect(),
            (0..n).flat_map(|i| value(i).to_ne_bytes()).collect(),
            k.quantize_f32,
            k.dequantize_f32,
        );
        check(
            "f16",
            f16s.iter().map(|x| x.to_f32()).collect(),
            f16s.iter().flat_map(|x| x.to_ne_bytes()).collect(),
            (0..n).flat_map(|i| half::f16::from_f32(value(i)).to_ne_bytes()).collect(),
            k.quantize_f16,
            k.dequantize_f16,
        );
        check(
            "bf16",
            bf16s.iter().map(|x| x.to_f32()).collect(),
            bf16s.iter().flat_map(|x| x.to_ne_bytes()).collect(),
            (0..n).flat_map(|i| half::bf16::from_f32(value(i)).to_ne_bytes()).collect(),
            k.quantize_bf16,
            k.dequantize_bf16,
        );
    }
}

#[test]
fn every_level_quantises_and_restores_by_the_definition() {
    // Extreme and inner offsets; only 0, for which kernels may have a path; zeros of both signs.
    for offsets in [&[0.0, -128.0, 127.0, 18.0, -77.0][..], &[0.0], &[0.0, -0.0]] {
        // Coprime to 65,536, so that every number meets every scale and offset: 35 pairs of them, 71 columns.
        check_quantisation(71, 65_536, offsets);
        for columns in (1..=40).chain([64, 80, 128, 1024]) {
            check_quantisation(columns, 3, offsets);
        }
    }
}

/// Runs `body` with denormals flushed to zero, as hosts' threads may have it.
#[cfg(target_arch = "x86_64")]
fn without_denormals(body: impl FnOnce()) {
    const FLUSH_RESULTS_AND_INPUTS: u32 = 1 << 15 | 1 << 6;
    let mut before = 0u32;
    // SAFETY: the register's own address is not used beyond the instruction, and what changes is set back below.
    unsafe { core::arch::asm!("stmxcsr [{}]", in(reg) &raw mut before, options(nostack)) };
    let flushed = before | FLUSH_RESULTS_AND_INPUTS;
    // SAFETY: as above.
    unsafe { core::arch::asm!("ldmxcsr [{}]", in(reg) &raw const flushed, options(nostack)) };
    body();
    // SAFETY: as above.
    unsafe { core::arch::asm!("ldmxcsr [{}]", in(reg) &raw const before, options(nostack)) };
}

#[cfg(target_arch = "x86_64")]
#[test]
fn quantisation_is_the_same_where_the_host_has_denormals_turned_off() {
    let columns = 7 * 24;
    let scale: Vec<f32> =
        (0..columns).map(|c| [2f32.powi(-100), 1.2e-7, 1e-5, 0.01, 1.0, 600.0, 1e30][c % 7]).collect();
    let offset: Vec<f32> = (0..columns).map(|c| [0.0, -128.0, 127.0, 1.0, -77.0][c % 5]).collect();
    // Denormals of each type and their neighbours, of both signs.
    let words: Vec<u16> = (0..0x600).flat_map(|bits| [bits, bits | 0x8000]).collect();
    let n = words.len() / columns * columns;
    let narrow: Vec<u8> = words[..n].iter().flat_map(|w| w.to_ne_bytes()).collect();
    let wide: Vec<u8> = words[..n].iter().flat_map(|w| (u32::from(*w) << 16 | 0x1234).to_ne_bytes()).collect();
    let all_codes: Vec<i8> = words[..n].iter().map(|w| *w as i8).collect();
    for k in available_model() {
        for (name, src, quantize, dequantize) in [
            ("f32", &wide, k.quantize_f32, k.dequantize_f32),
            ("f16", &narrow, k.quantize_f16, k.dequantize_f16),
            ("bf16", &narrow, k.quantize_bf16, k.dequantize_bf16),
        ] {
            let run = || {
                let (mut codes, mut values) = (vec![0; n], vec![0; src.len()]);
                quantize(src, &scale, &offset, &mut codes);
                dequantize(&all_codes, &scale, &offset, &mut values);
                (codes, values)
            };
            let expected = run();
            let mut flushed = (Vec::new(), Vec::new());
            without_denormals(|| flushed = run());
            assert!(flushed == expected, "{:?} {name}", k.level);
        }
    }
}
