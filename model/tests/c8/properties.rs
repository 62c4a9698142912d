//! Any shape, type, order and bits, against the brute force.

use super::brute::Brute;
use super::{codes_of, parameters_of, ranges_of, values_of};
use mnnkv::dtype::Dtype;
use mnnkv_model::c8::{CacheShape, Order, Scales, Symmetry, dequantize, quantize, ranges};
use proptest::prelude::*;

impl Brute {
    pub fn shape(&self) -> CacheShape {
        CacheShape::new(self.dtype, self.order, self.heads, self.dims, self.tokens).unwrap()
    }
}

fn brute() -> impl Strategy<Value = Brute> {
    let dtype = prop::sample::select(vec![Dtype::F16, Dtype::Bf16, Dtype::F32]);
    let order = prop::sample::select(vec![Order::TokenHeadDim, Order::HeadTokenDim]);
    let dims = prop_oneof![1usize..40, prop::sample::select(vec![64usize, 80, 128])];
    (dtype, order, 1usize..4, dims, 0usize..9).prop_map(|(dtype, order, heads, dims, tokens)| Brute {
        dtype,
        order,
        heads,
        dims,
        tokens,
    })
}

/// Values of a shape: any bits, or numbers such as caches hold.
fn with_values(finite: bool) -> impl Strategy<Value = (Brute, Vec<u8>)> {
    (brute(), any::<bool>()).prop_flat_map(move |(b, any_bits)| {
        let n = b.heads * b.dims * b.tokens;
        let bits = any::<u32>().prop_map(move |bits| {
            let x = f32::from_bits(bits);
            // The bits in their upper half are those of a bf16, and as good as any for an f16.
            if !finite && any_bits { (bits, true) } else { ((x.abs() % 8.0).copysign(x).to_bits(), false) }
        });
        let b2 = b.clone();
        let bytes = prop::collection::vec(bits, n).prop_map(move |all| {
            let each = |(bits, raw): (u32, bool)| match (raw, f32::from_bits(bits)) {
                (true, _) if b2.dtype != Dtype::F32 => ((bits >> 16) as u16).to_ne_bytes().to_vec(),
                (true, _) => bits.to_ne_bytes().to_vec(),
                (false, x) => b2.bytes(if x.is_nan() { 0.0 } else { x }),
            };
            all.into_iter().flat_map(each).collect()
        });
        (Just(b), bytes)
    })
}

/// A scale and an offset for each channel.
fn scales(channels: usize) -> impl Strategy<Value = (Vec<f32>, Vec<f32>)> {
    // A range of f32 whose ends are far apart fails an assertion of proptest 1.12 itself, once in many runs (float_samplers.rs).
    let between = |least: f32, greatest: f32| {
        (0u32..=1_000_000).prop_map(move |x| least * (greatest / least).powf(x as f32 * 1e-6))
    };
    let scale = prop_oneof![between(1e-3, 0.1), between(1e-7, 1e3), Just(1.0), Just(2f32.powi(-100)), Just(f32::MAX)];
    let offset = prop_oneof![Just(0.0), (-128i32..=127).prop_map(|x| x as f32)];
    prop::collection::vec((scale, offset), channels).prop_map(|all| all.into_iter().unzip())
}

fn with_scales() -> impl Strategy<Value = (Brute, Vec<u8>, (Vec<f32>, Vec<f32>))> {
    with_values(false).prop_flat_map(|(b, values)| {
        let channels = b.heads * b.dims;
        (Just(b), Just(values), scales(channels))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn codes_and_values_are_those_of_the_formulas(
        (b, values, (scale, offset)) in with_scales(),
        skew in 0usize..4,
    ) {
        let (shape, given) = (b.shape(), Scales::new(&scale, &offset).unwrap());
        // Neither values nor codes are aligned, and nothing beside them is written.
        let mut bytes = vec![0; skew];
        bytes.extend_from_slice(&values);
        let mut codes = vec![77i8; skew + shape.elements() + 1];
        quantize(&shape, &bytes[skew..], &given, &mut codes[skew..skew + shape.elements()]).unwrap();
        prop_assert!(codes[..skew].iter().chain(&codes[skew + shape.elements()..]).all(|c| *c == 77));
        let codes = &codes[skew..skew + shape.elements()];
        prop_assert_eq!(codes, b.codes(&values, &scale, &offset));

        let mut restored = vec![0xEE; skew + shape.bytes() + 1];
        dequantize(&shape, codes, &given, &mut restored[skew..skew + shape.bytes()]).unwrap();
        prop_assert!(restored[..skew].iter().chain(&restored[skew + shape.bytes()..]).all(|x| *x == 0xEE));
        prop_assert_eq!(&restored[skew..skew + shape.bytes()], b.values(codes, &scale, &offset));
    }

    #[test]
    fn what_calibration_saw_comes_back_to_within_half_a_step((b, values) in with_values(true), asymmetric: bool) {
        if b.tokens == 0 {
            return Ok(());
        }
        let shape = b.shape();
        let symmetry = if asymmetric { Symmetry::Asymmetric } else { Symmetry::Symmetric };
        let (scale, offset) = parameters_of(&ranges_of(&shape, &values), symmetry, Dtype::F32);
        let restored = values_of(&shape, &codes_of(&shape, &values, &scale, &offset), &scale, &offset);
        for i in 0..shape.elements() {
            let (x, y) = (b.number(&values, i), b.number(&restored, i));
            // Half a step, and the rounding to a type of 8 significant bits or to a denormal of f16.
            let bound = 0.5001 * scale[b.place(i).1] + y.abs() / 256.0 + 2f32.powi(-25);
            prop_assert!((x - y).abs() <= bound, "{x} became {y}");
        }
    }

    #[test]
    fn ranges_are_least_and_greatest_however_batches_are_cut((b, values) in with_values(true), cut in 0usize..9) {
        // Tokens of this order can be cut in two.
        let b = Brute { order: Order::TokenHeadDim, ..b };
        let (shape, cut) = (b.shape(), cut.min(b.tokens));
        let (min, max) = ranges_of(&shape, &values);
        for c in 0..shape.channels() {
            let seen = || (0..shape.elements()).filter(|i| b.place(*i).1 == c).map(|i| b.number(&values, i));
            prop_assert_eq!(min[c], seen().fold(f32::INFINITY, f32::min));
            prop_assert_eq!(max[c], seen().fold(f32::NEG_INFINITY, f32::max));
        }
        // The later part first, into ranges of its own that are merged.
        let (first, second) = values.split_at(cut * shape.bytes() / b.tokens.max(1));
        let parts = [(second, b.tokens - cut), (first, cut)]
            .map(|(part, tokens)| ranges_of(&Brute { tokens, ..b.clone() }.shape(), part));
        let [(mut low, mut high), (other_low, other_high)] = parts;
        ranges::merge(&mut low, &mut high, &other_low, &other_high).unwrap();
        prop_assert_eq!((low, high), (min, max));
    }

    #[test]
    fn codes_survive_a_round_trip_through_f32(
        codes in prop::collection::vec(any::<i8>(), 12 * 5),
        (scale, offset) in scales(12),
    ) {
        // So that no value overflows.
        let scale: Vec<f32> = scale.iter().map(|s| s.min(1e30)).collect();
        let shape = CacheShape::new(Dtype::F32, Order::HeadTokenDim, 3, 4, 5).unwrap();
        let values = values_of(&shape, &codes, &scale, &offset);
        prop_assert_eq!(codes_of(&shape, &values, &scale, &offset), codes);
    }

    #[test]
    fn offsets_are_the_code_of_zero_and_fit_a_byte(
        low in -1e6f32..1e6, width in 0f32..1e6, exponent in -40i32..20,
    ) {
        let unit = 2f32.powi(exponent);
        let ranges = (vec![low * unit], vec![low * unit + width * unit]);
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let (scale, offset) = parameters_of(&ranges, Symmetry::Asymmetric, dtype);
            prop_assert!(Scales::new(&scale, &offset).is_ok(), "{scale:?} {offset:?}");
            let shape = CacheShape::new(Dtype::F32, Order::TokenHeadDim, 1, 1, 1).unwrap();
            prop_assert_eq!(f32::from(codes_of(&shape, &0f32.to_ne_bytes(), &scale, &offset)[0]), offset[0]);
        }
    }
}
