//! The learned compressor against files, rows and damage that were made by others.

#[path = "compressor/files.rs"]
mod files;
#[path = "compressor/model.rs"]
mod model;
#[path = "../../tests/common/npy.rs"]
mod npy;

use half::{bf16, f16};
use mnnkv::dtype::Dtype;
use mnnkv::status::Status;
use mnnkv_model::compressor::{
    Compressor, CompressorOptions, LengthPlan, LinearWeights, Segments, Tokens, Weights, Workspace,
};
use model::{Arithmetic, compress};
use npy::Array;
use proptest::prelude::*;
use std::borrow::Cow;
use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/compressor")
}

fn golden(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn array(name: &str) -> Array {
    Array::read(&golden(name))
}

fn read(bytes: &[u8]) -> Compressor {
    Compressor::read(bytes).unwrap()
}

/// The names in the folder that begin so.
fn names(prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder()).unwrap();
    let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(prefix)).collect()
}

/// Numbers as a cache of that type has them.
fn elements(dtype: Dtype, values: &[f64]) -> Vec<u8> {
    match dtype {
        Dtype::F16 => values.iter().flat_map(|x| f16::from_f64(*x).to_ne_bytes()).collect(),
        Dtype::Bf16 => values.iter().flat_map(|x| bf16::from_f64(*x).to_ne_bytes()).collect(),
        _ => values.iter().flat_map(|x| (*x as f32).to_ne_bytes()).collect(),
    }
}

fn numbers(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    let two = bytes.as_chunks::<2>().0;
    match dtype {
        Dtype::F16 => two.iter().map(|b| f16::from_ne_bytes(*b).to_f64()).collect(),
        Dtype::Bf16 => two.iter().map(|b| bf16::from_ne_bytes(*b).to_f64()).collect(),
        _ => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_ne_bytes(*b).into()).collect(),
    }
}

/// K and V of a layer, compressed.
fn run(
    file: &Compressor,
    layer: usize,
    plan: &LengthPlan,
    dtype: Dtype,
    heads: usize,
    kv: [&[f64]; 2],
) -> [Vec<f64>; 2] {
    let len = heads * plan.new_len() * file.head_dim() * dtype.bytes();
    let (mut key, mut value) = (vec![0xEE; len], vec![0xEE; len]);
    let [k, v] = kv.map(|numbers| elements(dtype, numbers));
    let tokens = Tokens { dtype, heads };
    file.run(layer, plan, tokens, &k, &v, &mut key, &mut value, &mut Workspace::default()).unwrap();
    [numbers(dtype, &key), numbers(dtype, &value)]
}

/// Tokens and image_len of a case of the goldens.
fn case(name: &str) -> (usize, u32) {
    match name {
        "c1" => (11, 0),
        "c2" => (11, 7),
        "c3" => (11, 5),
        "c4" => (14, 7),
        "c5" => (5, 0),
        "c6" => (14, 14),
        "c7" => (14, 20),
        "c8" => (6, 0),
        _ => panic!("case {name}"),
    }
}

/// Runs a case; the result is as the goldens have it, `[K, V][layer][head][token][dim]`.
fn run_case(file: &Compressor, dtype: Dtype, name: &str) -> (usize, Vec<f64>) {
    let input = array("input_kv_f32.npy");
    let [2, layers, heads, max, dims] = input.shape[..] else { panic!("{:?}", input.shape) };
    let (len, image_len) = case(name);
    let plan = file.plan(len, &CompressorOptions { image_len, ..CompressorOptions::default() }).unwrap();
    assert_eq!(plan.len(), len);
    let rows = |kv: usize, layer: usize| -> Vec<f64> {
        let heads = input.values[(kv * layers + layer) * heads * max * dims..].chunks(max * dims).take(heads);
        heads.flat_map(|head| &head[..len * dims]).copied().collect()
    };
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for layer in 0..layers {
        let [k, v] = run(file, layer, &plan, dtype, heads, [&rows(0, layer), &rows(1, layer)]);
        keys.extend(k);
        values.extend(v);
    }
    keys.extend(values);
    (plan.new_len(), keys)
}

#[test]
fn goldens_compress_to_what_exact_arithmetic_and_an_emulation_of_the_cache_type_say() {
    let mut checked = 0;
    for name in names("exp_") {
        let parts: Vec<&str> = name.trim_start_matches("exp_").trim_end_matches(".npy").rsplitn(3, '_').collect();
        let (kind, case, file) = match parts[..] {
            ["bits", _, rest] => {
                let (file, case) = rest.rsplit_once('_').unwrap();
                ("kvbf16", case, file)
            }
            [kind, case, file] => (kind, case, file),
            _ => panic!("{name}"),
        };
        let mut expected = array(&name);
        let (dtype, tolerance) = match kind {
            "f64" => (Dtype::F32, 1e-5),
            "kvf32" => (Dtype::F32, 1e-6),
            // A step of the type at 1: sums in another order may round to its neighbour.
            "kvf16" => (Dtype::F16, 1.0 / 1024.0),
            "kvbf16" => {
                expected.values.iter_mut().for_each(|bits| *bits = bf16::from_bits(*bits as u16).to_f64());
                (Dtype::Bf16, 1.0 / 128.0)
            }
            _ => panic!("{name}"),
        };
        let file = read(&golden(&format!("{file}.bin")));
        let (new_len, result) = run_case(&file, dtype, case);
        assert_eq!(new_len, expected.shape[3], "{name}");
        assert_eq!(result.len(), expected.values.len(), "{name}");
        for (i, (ours, theirs)) in result.iter().zip(&expected.values).enumerate() {
            assert!((ours - theirs).abs() <= tolerance * theirs.abs().max(1.0), "{name} [{i}]: {ours} {theirs}");
        }
        checked += 1;
    }
    assert!(checked >= 40, "{checked} files");
}

#[test]
fn the_worked_example_is_exact_in_every_type() {
    let (input, expected) = (array("toy_input_kv_f32.npy"), array("toy_expected_f32.npy"));
    let (key, value) = input.values.split_at(input.values.len() / 2);
    for name in ["toy_fp16.bin", "toy_bf16.bin", "toy_fp32.bin"] {
        let file = read(&golden(name));
        assert_eq!((file.head_dim(), file.layers(), file.has_image()), (2, 1, false));
        let plan = file.plan(5, &CompressorOptions::default()).unwrap();
        assert_eq!(plan.new_len(), 3);
        for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32] {
            let [k, v] = run(&file, 0, &plan, dtype, 2, [key, value]);
            assert_eq!([k, v].concat(), expected.values, "{name} {dtype:?}");
        }
    }
}

/// Numbers in -2 .. 2 with few bits set, so that sums are neither exact nor wild.
fn reals(len: usize, seed: u64) -> impl Iterator<Item = f32> {
    let mut state = seed | 1;
    (0..len).map(move |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 22) as f32 - 2.0
    })
}

fn linear(rows: usize, cols: usize, bias: bool, seed: u64) -> LinearWeights<'static> {
    let scale = 1.0 / (cols as f32).sqrt();
    let weight = reals(rows * cols, seed).map(|x| x * scale).collect();
    LinearWeights { rows, cols, weight, bias: bias.then(|| reals(rows, seed ^ 77).collect()) }
}

/// Networks of any width, whose numbers are those of their type.
fn networks() -> impl Strategy<Value = Weights<'static>> {
    let dtypes = prop::sample::select(vec![Dtype::F16, Dtype::Bf16, Dtype::F32]);
    (dtypes, 1u32..=20, 2u32..=6, 0u32..=3, 1usize..=3, any::<bool>(), any::<u64>()).prop_flat_map(
        |(dtype, head_dim, factor, min_seq_len, layers, image, seed)| {
            let (dims, networks) = (head_dim as usize, layers * if image { 4 } else { 2 });
            let widths = prop::collection::vec((1usize..=40, 1usize..=40, any::<[bool; 3]>()), networks);
            widths.prop_map(move |widths| {
                let blocks: Vec<LinearWeights> = widths
                    .iter()
                    .enumerate()
                    .flat_map(|(i, &(first, second, bias))| {
                        let seed = seed.wrapping_add(i as u64 * 3);
                        [
                            linear(first, dims * factor as usize, bias[0], seed),
                            linear(second, first, bias[1], seed + 1),
                            linear(dims, second, bias[2], seed + 2),
                        ]
                    })
                    .collect();
                let layers = blocks.chunks(blocks.len() / layers).map(<[LinearWeights]>::to_vec).collect();
                let weights = Weights { dtype, num_heads: 3, head_dim, factor, min_seq_len, layers };
                read(&weights.to_bytes().unwrap()).weights().unwrap()
            })
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn any_networks_compress_any_cache_as_the_definition_says(
        weights in networks(),
        heads in 1usize..=5,
        len in 0usize..=130,
        image_len in prop_oneof![Just(0usize), 0usize..=140],
        least in 0u32..=4,
        dtype in prop::sample::select(vec![Dtype::F16, Dtype::Bf16, Dtype::F32]),
        seed in any::<u64>(),
    ) {
        let file = read(&weights.to_bytes().unwrap());
        let dims = weights.head_dim as usize;
        let options = CompressorOptions { min_seq_len: least, image_len: image_len as u32, ..CompressorOptions::default() };
        let plan = file.plan(len, &options).unwrap();
        let min_groups = if least == 0 { weights.min_seq_len } else { least } as usize;
        let cache: [Vec<f64>; 2] = [seed, !seed].map(|seed| {
            let bytes = elements(dtype, &reals(heads * len * dims, seed).map(f64::from).collect::<Vec<_>>());
            numbers(dtype, &bytes)
        });
        for layer in 0..weights.layers.len() {
            let results = run(&file, layer, &plan, dtype, heads, [&cache[0], &cache[1]]);
            for (kv, result) in results.iter().enumerate() {
                let model = |arithmetic| -> Vec<f64> {
                    let heads = (0..heads).map(|head| &cache[kv][head * len * dims..(head + 1) * len * dims]);
                    let rows = heads.map(|head| compress(&weights, arithmetic, (layer, kv), image_len, min_groups, head));
                    rows.collect::<Vec<_>>().concat()
                };
                let defined = model(Arithmetic::Defined(dtype));
                prop_assert_eq!(plan.new_len() * heads * dims, defined.len());
                // To the bit, the sign of 0 included.
                let bits = |values: &[f64]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(bits(result), bits(&defined));
                let tolerance = match dtype {
                    Dtype::F16 => 0.03,
                    Dtype::Bf16 => 0.25,
                    _ => 1e-5,
                };
                for (ours, exact) in result.iter().zip(&model(Arithmetic::Exact)) {
                    prop_assert!((ours - exact).abs() <= tolerance * exact.abs().max(4.0), "{} {}", ours, exact);
                }
            }
        }
    }
}

#[test]
fn excluded_segments_stay_unchanged() {
    let file = read(&golden("std_fp32_12.bin"));
    let plan = |segments| {
        file.plan(14, &CompressorOptions { image_len: 7, segments, ..CompressorOptions::default() }).unwrap()
    };
    assert_eq!([Segments::All, Segments::Text, Segments::Image].map(|s| plan(s).new_len()), [6, 10, 10]);
    assert_eq!((plan(Segments::Text).image.groups, plan(Segments::Image).text.groups), (0, 0));
    let text_only = read(&golden("std_fp32_6.bin"));
    let image = CompressorOptions { image_len: 7, segments: Segments::Image, ..CompressorOptions::default() };
    assert_eq!(text_only.plan(14, &image).unwrap().new_len(), 14);
}

#[test]
fn only_the_factor_of_the_weights_will_do() {
    let file = read(&golden("std_fp32_12.bin"));
    let plan = |factor| file.plan(14, &CompressorOptions { factor, ..CompressorOptions::default() });
    for factor in [0, 1, 3] {
        assert_eq!(plan(factor).unwrap().new_len(), 6);
    }
    for factor in [2, 4, 6, u32::MAX] {
        let error = plan(factor).unwrap_err();
        assert!(error.status() == Status::InvalidArgument && error.message().contains(&format!("factor is {factor}")));
    }
}

/// The error of a run of `plan` over zeros.
fn failure(
    file: &Compressor,
    layer: usize,
    plan: &LengthPlan,
    tokens: Tokens,
    lens: [usize; 4],
) -> mnnkv::status::Error {
    let [k, v, mut key, mut value] = lens.map(|len| vec![0; len]);
    file.run(layer, plan, tokens, &k, &v, &mut key, &mut value, &mut Workspace::default()).unwrap_err()
}

#[test]
fn a_run_that_does_not_fit_the_file_is_refused_by_name() {
    let file = read(&golden("std_fp32_12.bin"));
    let text_only = read(&golden("std_fp32_6.bin"));
    let plan = file.plan(14, &CompressorOptions { image_len: 7, ..CompressorOptions::default() }).unwrap();
    let tokens = Tokens { dtype: Dtype::F32, heads: 2 };
    let (old, new) = (14 * 2 * 4 * 4, 6 * 2 * 4 * 4);
    let good = [old, old, new, new];
    let error = failure(&file, 2, &plan, tokens, good);
    assert!(error.message().contains("layer is 2; the weights file has 2 layers"), "{error}");
    let error = failure(&text_only, 0, &plan, tokens, good);
    assert!(error.message().contains("plan is of other weights"), "{error}");
    let toy = read(&golden("toy_fp32.bin"));
    assert!(failure(&toy, 0, &plan, tokens, good).message().contains("plan is of other weights"));
    for (i, name) in ["key has", "value has", "key_out has", "value_out has"].iter().enumerate() {
        for wrong in [0, good[i] - 1, good[i] + 1] {
            let mut lens = good;
            lens[i] = wrong;
            let error = failure(&file, 0, &plan, tokens, lens);
            assert!(error.status() == Status::InvalidArgument && error.message().contains(name), "{error}");
        }
    }
    let error = failure(&file, 0, &plan, Tokens { dtype: Dtype::Int8, heads: 2 }, good);
    assert_eq!(error.status(), Status::Unsupported);
    let huge = Tokens { dtype: Dtype::F32, heads: usize::MAX / 4 };
    assert!(failure(&file, 0, &plan, huge, good).message().contains("key has"));
}

/// The toy's weights with one number changed: of weight, or of the bias where that is `None`.
fn changed(dtype: Dtype, block: usize, weight: Option<usize>, value: f32) -> Weights<'static> {
    let mut weights = read(&golden("toy_fp32.bin")).weights().unwrap();
    weights.dtype = dtype;
    let block = &mut weights.layers[0][block];
    match weight {
        Some(at) => block.weight.to_mut()[at] = value,
        None => block.bias.as_mut().unwrap().to_mut()[1] = value,
    }
    weights
}

#[test]
fn weights_too_large_for_the_cache_are_named_and_not_made_infinite() {
    // 65519.99 is the last number that rounds to a finite F16, 3.4e38 is finite in F32 only.
    for (value, dtype, fits) in [
        (65519.0, Dtype::F16, true),
        (65520.0, Dtype::F16, false),
        (-7e4, Dtype::F16, false),
        (7e4, Dtype::Bf16, true),
        (3.4e38, Dtype::Bf16, false),
        (f32::MAX, Dtype::F32, true),
    ] {
        for (at, words) in [(Some(5), "block 3 (tv slot 0): weight[1][1]"), (None, "block 1 (tk slot 1): bias[1]")] {
            let weights = changed(Dtype::F32, if at.is_some() { 3 } else { 1 }, at, value);
            let file = read(&weights.to_bytes().unwrap());
            match file.check_dtype(0, dtype) {
                Ok(()) => assert!(fits, "{value} {dtype:?}"),
                Err(error) => assert!(!fits && error.message().contains(words), "{error}"),
            }
        }
    }
}

#[test]
fn a_result_that_is_not_finite_is_an_error_that_names_its_tokens() {
    let file = read(&changed(Dtype::F32, 5, Some(0), 6e4).to_bytes().unwrap());
    let plan = file.plan(4, &CompressorOptions::default()).unwrap();
    let ones = elements(Dtype::F16, &[1.0; 16]);
    let mut values = [0.0; 16];
    values[12..].fill(4.0);
    let (mut key, mut value) = (vec![0; 16], vec![0; 16]);
    let run = |dtype, k: &[u8], v: &[u8], key: &mut Vec<u8>, value: &mut Vec<u8>| {
        key.resize(8 * Dtype::bytes(dtype), 0);
        value.resize(8 * Dtype::bytes(dtype), 0);
        file.run(0, &plan, Tokens { dtype, heads: 2 }, k, v, key, value, &mut Workspace::default())
    };
    let error = run(Dtype::F16, &ones, &elements(Dtype::F16, &values), &mut key, &mut value).unwrap_err();
    assert!(error.message().contains("layer 0, block 3 (tv slot 0): head 1"), "{error}");
    assert!(error.message().contains("tokens from 2 on is not finite in F16"), "{error}");
    let wide = [elements(Dtype::F32, &[1.0; 16]), elements(Dtype::F32, &values)];
    run(Dtype::F32, &wide[0], &wide[1], &mut key, &mut value).unwrap();
}

#[test]
fn a_workspace_keeps_nothing_of_the_networks_before() {
    let files = ["std_fp16_12.bin", "toy_fp32.bin", "std_fp32_12.bin"].map(|name| read(&golden(name)));
    let mut shared = Workspace::default();
    for file in files.iter().chain(files.iter().rev()) {
        let plan = file.plan(30, &CompressorOptions { image_len: 9, ..CompressorOptions::default() }).unwrap();
        let dims = file.head_dim();
        let numbers: Vec<f64> = reals(2 * 30 * dims, 5).map(f64::from).collect();
        let input = elements(Dtype::F32, &numbers);
        let results = [&mut shared, &mut Workspace::default()].map(|work| {
            let (mut key, mut value) = (vec![0; plan.new_len() * dims * 8], vec![0; plan.new_len() * dims * 8]);
            let tokens = Tokens { dtype: Dtype::F32, heads: 2 };
            file.run(0, &plan, tokens, &input, &input, &mut key, &mut value, work).unwrap();
            (key, value)
        });
        assert!(results[0] == results[1]);
    }
}
