//! Error figures of the library, against a second computation.

use super::brute::Brute;
use super::{f32_bytes, f32_shape};
use mnnkv::dtype::Dtype;
use mnnkv_model::c8::{Figures, Order, Scales, errors};

#[test]
fn figures_of_a_worked_example() {
    // Channel 0 has steps of 1: 1.25 becomes 1, 200 saturates at 127. Channel 1 has steps of 0.5 and loses nothing.
    let values = f32_bytes(&[1.25, 0.5, 200.0, -3.0]);
    let scales = Scales::new(&[1.0, 0.5], &[0.0, 3.0]).unwrap();
    let errors = errors(&f32_shape(2, 1, 2), &values, &scales).unwrap();
    let squares = 0.0625 + 73.0 * 73.0;
    let (value, restored) = (1.5625 + 40_000.0, 1.0 + 16_129.0);
    let close = |a: f64, b: f64| (a - b).abs() < 1e-12;
    let check = |f: &Figures, elements: u64, value: f64, restored: f64, product: f64| {
        assert_eq!((f.elements, f.saturated, f.max_abs_error), (elements, 1, 73.0));
        assert!(close(f.rms_error, (squares / elements as f64).sqrt()), "{f:?}");
        assert!(close(f.relative_rms_error, (squares / value).sqrt()), "{f:?}");
        assert!(close(f.cosine_similarity, product / (value * restored).sqrt()), "{f:?}");
    };
    check(&errors.channels[0], 2, value, restored, 1.25 + 25_400.0);
    check(&errors.total, 4, value + 9.25, restored + 9.25, 1.25 + 25_400.0 + 9.25);
    let nothing = Figures { elements: 2, cosine_similarity: 1.0, ..Figures::default() };
    assert_eq!(errors.channels[1], nothing);
    assert_eq!(errors.worst_channel(), 0);
}

#[test]
fn figures_have_values_where_quotients_have_none() {
    let of = |values: &[f32], scale: f32| {
        let bytes: Vec<u8> = values.iter().flat_map(|x| half::f16::from_f32(*x).to_ne_bytes()).collect();
        let brute = Brute { dtype: Dtype::F16, order: Order::TokenHeadDim, heads: 1, dims: 1, tokens: values.len() };
        errors(&brute.shape(), &bytes, &Scales::new(&[scale], &[0.0]).unwrap()).unwrap().total
    };
    assert_eq!(of(&[], 1.0), Figures { cosine_similarity: 1.0, ..Figures::default() });
    assert_eq!(of(&[0.0, -0.0], 1.0), Figures { elements: 2, cosine_similarity: 1.0, ..Figures::default() });
    let lost = of(&[0.25, -0.25], 1.0);
    assert_eq!((lost.relative_rms_error, lost.cosine_similarity, lost.saturated), (1.0, 0.0, 0));
    // 127 steps of 516 are more than f16 holds.
    let overflown = of(&[65_504.0], 516.0);
    let infinite = f64::INFINITY;
    assert_eq!(
        (overflown.max_abs_error, overflown.rms_error, overflown.relative_rms_error),
        (infinite, infinite, infinite)
    );
    assert_eq!((overflown.cosine_similarity, overflown.saturated), (0.0, 0));
}

#[test]
fn figures_are_those_of_the_brute_force_for_every_type_and_order() {
    for (dtype, order) in [Dtype::F16, Dtype::Bf16, Dtype::F32]
        .into_iter()
        .flat_map(|dtype| [Order::TokenHeadDim, Order::HeadTokenDim].map(|order| (dtype, order)))
    {
        let b = Brute { dtype, order, heads: 3, dims: 5, tokens: 40 };
        let mut random = crate::common::Random(11);
        let n = 3 * 5 * 40;
        let values: Vec<u8> = (0..n).flat_map(|_| b.bytes((random.below(4001) as f32 - 2000.0) / 300.0)).collect();
        // Seven units of range in steps that reach 3 to 8 of them.
        let scale: Vec<f32> = (0..15).map(|c| (3.0 + c as f32 / 3.0) / 127.0).collect();
        let offset: Vec<f32> = (0..15).map(|c| [0.0, 10.0, -20.0][c % 3]).collect();
        let restored = b.values(&b.codes(&values, &scale, &offset), &scale, &offset);
        let errors = errors(&b.shape(), &values, &Scales::new(&scale, &offset).unwrap()).unwrap();
        let channels = (0..15).map(Some).chain([None]);
        for (channel, figures) in channels.zip(errors.channels.iter().chain([&errors.total])) {
            let of: Vec<usize> = (0..n).filter(|i| channel.is_none_or(|c| b.place(*i).1 == c)).collect();
            let x: Vec<f64> = of.iter().map(|i| b.number(&values, *i).into()).collect();
            let y: Vec<f64> = of.iter().map(|i| b.number(&restored, *i).into()).collect();
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let d: Vec<f64> = x.iter().zip(&y).map(|(x, y)| x - y).collect();
            let outside = |i: &&usize| {
                let c = b.place(**i).1;
                !(-128.0..=127.0).contains(&Brute::unclamped(b.number(&values, **i), scale[c], offset[c]))
            };
            assert_eq!(figures.elements, of.len() as u64);
            assert_eq!(figures.saturated, of.iter().filter(outside).count() as u64, "{dtype:?} {order:?} {channel:?}");
            assert_eq!(figures.max_abs_error, d.iter().fold(0.0, |max: f64, d| max.max(d.abs())));
            for (ours, theirs) in [
                (figures.rms_error, (dot(&d, &d) / of.len() as f64).sqrt()),
                (figures.relative_rms_error, (dot(&d, &d) / dot(&x, &x)).sqrt()),
                (figures.cosine_similarity, dot(&x, &y) / (dot(&x, &x) * dot(&y, &y)).sqrt()),
            ] {
                assert!((ours - theirs).abs() < 1e-9 * theirs, "{dtype:?} {order:?} {channel:?}: {ours} {theirs}");
            }
        }
        assert!(errors.total.saturated > 20 && errors.total.saturated < 400, "{}", errors.total.saturated);
        let largest = errors.channels.iter().map(|f| f.rms_error).fold(0.0, f64::max);
        assert_eq!(errors.channels[errors.worst_channel()].rms_error, largest);
    }
}
