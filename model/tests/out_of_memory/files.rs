//! Files of models: compressors, safetensors, directories of quantised weights, configs.

use crate::directory::{Directory, folder};
use crate::failing_allocator::{Refused, each_allocation, refusing};
use mnnkv::dtype::Dtype;
use mnnkv::status::Status;
use mnnkv_model::compressor::{Compressor, CompressorOptions, Tokens, Workspace};
use mnnkv_model::file::{ModelFile, NewFile};
use mnnkv_model::msmodelslim::{Model, NormUse, check_folder, check_path};
use mnnkv_model::safetensors;
use mnnkv_model::sizing::{self, CacheElement, H2o, Lossless, Request, Savings, Setup, SizeReport};
use std::fs;
use std::path::{Path, PathBuf};

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

/// The files or folders in a folder of the test data.
fn entries(name: &str) -> Vec<PathBuf> {
    let mut entries: Vec<_> = fs::read_dir(testdata(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    assert!(!entries.is_empty());
    entries
}

/// A folder of its own for a test, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mnnkv-oom-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn is_empty(&self) -> bool {
        fs::read_dir(&self.0).unwrap().next().is_none()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn compressors_are_read_and_written() {
    for path in entries("compressor").iter().filter(|path| path.extension().is_some_and(|end| end == "bin")) {
        let name = format!("read {}", path.file_name().unwrap().display());
        let bytes = fs::read(path).unwrap();
        each_allocation(&name, || Compressor::read(&ModelFile::open(path)?).map(|file| file.layers()));
        each_allocation(&name, || Compressor::read(&bytes[..]).map(|file| file.file_bytes()));
    }
    let file = Compressor::read(&fs::read(testdata("compressor/toy_fp16.bin")).unwrap()[..]).unwrap();
    let weights = file.weights().unwrap();
    assert!(each_allocation("weights", || file.weights()) > 0);
    each_allocation("to_bytes", || weights.to_bytes());
    let scratch = Scratch::new("compressor");
    let path = scratch.0.join("toy.bin");
    each_allocation("to_file", || weights.to_file(&path));
    assert_eq!(fs::read(&path).unwrap(), weights.to_bytes().unwrap());
    fs::remove_file(&path).unwrap();
    assert!(scratch.is_empty());
}

#[test]
fn compressors_run() {
    let file = Compressor::read(&fs::read(testdata("compressor/std_fp16_12.bin")).unwrap()[..]).unwrap();
    let plan = file.plan(64, &CompressorOptions { image_len: 24, ..CompressorOptions::default() }).unwrap();
    let tokens = Tokens { dtype: Dtype::F16, heads: 2 };
    let row = 2 * file.head_dim() * 2;
    let rows = vec![0; plan.len() * row];
    let (mut key, mut value) = (vec![0; plan.new_len() * row], vec![0; plan.new_len() * row]);
    assert!(
        each_allocation("run", || {
            let mut work = Workspace::default();
            file.run(0, &plan, tokens, &rows, &rows, &mut key, &mut value, &mut work)
        }) > 0
    );
}

/// One workspace for all runs: memory that is refused leaves it fit for the next run.
#[test]
fn a_workspace_survives_refused_memory() {
    let bytes = fs::read(testdata("compressor/std_fp32_12.bin")).unwrap();
    let file = Compressor::read(&bytes[..]).unwrap();
    let plan = file.plan(14, &CompressorOptions { image_len: 7, ..CompressorOptions::default() }).unwrap();
    let tokens = Tokens { dtype: Dtype::F32, heads: 8 };
    let row = 4 * 4 * 8;
    let input = vec![0x3E; plan.len() * row];
    let run = |work: &mut Workspace, out: &mut [Vec<u8>; 2]| {
        let [key, value] = out;
        file.run(1, &plan, tokens, &input, &input, key, value, work)
    };
    let empty = || [(); 2].map(|()| vec![0; plan.new_len() * row]);
    let mut expected = empty();
    run(&mut Workspace::default(), &mut expected).unwrap();
    for kind in [Refused::Nth, Refused::From] {
        for n in 0.. {
            let (mut work, mut out) = (Workspace::default(), empty());
            let (result, refusals) = refusing(kind(n), || run(&mut work, &mut out));
            if refusals == 0 {
                assert!(n > 1, "{n} allocations");
                break;
            }
            assert_eq!(result.unwrap_err().status(), Status::OutOfMemory);
            let mut out = empty();
            run(&mut work, &mut out).unwrap();
            assert_eq!(out, expected, "after {:?}", kind(n));
        }
    }
}

#[test]
fn safetensors_are_read() {
    let healthy = Directory::healthy().weights();
    assert!(each_allocation("read", || safetensors::read(&healthy[..])) > 30);
    each_allocation("survey of a cut file", || safetensors::survey(&healthy[..healthy.len() - 3]));
    let broken = String::from_utf8_lossy(&healthy).replacen("\"I8\"", "\"I9\"", 1).into_bytes();
    each_allocation("survey of an unknown type", || safetensors::survey(&broken[..]));
    let tensors = safetensors::read(&healthy[..]).unwrap();
    fn new(tensor: &safetensors::Tensor) -> safetensors::NewTensor<'_> {
        let safetensors::Tensor { name, dtype, shape, bytes, .. } = tensor;
        safetensors::NewTensor { name, dtype: *dtype, shape, bytes: *bytes }
    }
    each_allocation("header", || safetensors::header(tensors.iter().map(new)));
}

/// Checks and opens directories, with each allocation refused.
fn check(directories: impl Iterator<Item = PathBuf>) {
    for path in directories.filter(|path| path.is_dir()) {
        let name = path.file_name().unwrap().display().to_string();
        each_allocation(&format!("check {name}"), || check_path(&path)?.json());
        each_allocation(&format!("open {name}"), || Model::open(&path).map(|model| model.bytes()));
    }
}

#[test]
fn directories_are_checked() {
    check(entries("msmodelslim").into_iter().filter(|path| !path.ends_with("corrupt") && !path.ends_with("vectors")));
    each_allocation("check what is not there", || check_path("/no/such/folder".as_ref())?.json());
}

#[test]
fn corrupt_directories_are_checked() {
    check(entries("msmodelslim/corrupt").into_iter());
}

/// Directories with what the ones on disk do not have: an index, names from old documents, keys that come twice.
#[test]
fn odd_directories_are_checked() {
    let mut odd = Directory::healthy();
    odd.rename("m.3.k_proj.kv_cache_scale", "m.3.k_proj.kv_cacahe_scale");
    odd.rename("m.3.v_proj.kv_cache_offset", "m.3.v_proj.kv_offset");
    odd.rename("m.norm.weight", "m.norm.module.weight");
    let weights = odd.weights();
    let mut description = serde_json::Value::Object(odd.description.clone()).to_string();
    description.insert_str(1, "\"m.a.weight\":\"W8A8\",\"group_size\":\"4\",\"caf\\u00e9\":1,\"m.x.weight\":\"W1\",");
    let index = r#"{"weight_map":{"m.a.weight":"quant_model_weights.safetensors","m.b.weight":"b.safetensors",
        "m.c.weight":"../c.safetensors","m.d.weight":7,"m.a.weight":"quant_model_weights.safetensors"}}"#;
    let files = folder(&[
        ("quant_model_weights.safetensors", &weights),
        ("other.safetensors", &weights),
        ("quant_model_weights.safetensors.index.json", index.as_bytes()),
        ("quant_model_description.json", description.as_bytes()),
        ("quant_model_description_w8a8.json", b"{}"),
        ("config.json", br#"{"quantize": "w8a8", "num_attention_heads": "two"}"#),
    ]);
    assert!(each_allocation("check", || check_folder(&files)?.json()) > 100);
    let mut parts = files.clone();
    parts.0.remove("quant_model_weights.safetensors.index.json");
    parts.0.insert("p-00001-of-00003.safetensors".to_owned(), weights.as_slice().into());
    each_allocation("check parts", || check_folder(&parts)?.json());
}

#[test]
fn weights_are_dequantized() {
    for name in ["w8a8_c8_fp16", "w8a16_sharded", "w8a8_fp16_seed_smooth", "w8a16_c8_merged_qkv_seed"] {
        let model = Model::open(&testdata("msmodelslim").join(name)).unwrap();
        for linear in model.linears() {
            let mut out = vec![0; linear.n * linear.k * 2];
            each_allocation(&linear.name, || model.dequantize(linear, 0..linear.n, Dtype::F16, &mut out));
            let (x, mut y) = (vec![0.5; linear.k], vec![0.0; linear.n]);
            each_allocation(&linear.name, || model.linear_w8a8(linear, 0..linear.n, &x, 1, &mut y));
        }
        for norm in model.norms() {
            each_allocation("norm", || model.norm_parameters(norm, NormUse::Quantized));
            each_allocation("plain norm", || model.norm_parameters(norm, NormUse::Float));
        }
        for layer in model.kv_layers() {
            each_allocation("kv_scales", || model.kv_scales(layer, &layer.key));
        }
        each_allocation("float_tensors", || model.float_tensors(Dtype::F16));
        for tensor in &model.float_tensors(Dtype::Bf16).unwrap() {
            let mut out = vec![0; tensor.bytes() as usize];
            each_allocation(&tensor.name, || model.read_float(tensor, 0..tensor.rows, &mut out));
        }
    }
}

#[test]
fn configs_are_sized() {
    let savings = Savings { h2o: Some(H2o::new(3.5)), lossless: Some(Lossless::new(1.5)) };
    let request = Request {
        setup: Setup { ranks: 64, ..Setup::new(CacheElement::F16) },
        savings,
        contexts: vec![1000, 1_000_000],
        budget: Some(1 << 40),
    };
    for path in entries("configs") {
        let name = path.file_name().unwrap().display().to_string();
        let json = fs::read(&path).unwrap();
        each_allocation(&name, || SizeReport::new(&sizing::ModelConfig::from_config(&json)?, &request)?.json());
    }
    let llm =
        br#"{"layer_nums": 2, "key_value_shape": [2, 1, 0, 2, 64], "model_type": "qwen2", "attention_type": "mix"}"#;
    let host = br#"{"attention_mode": 10, "reuse_kv": true, "backend_type": "opencl"}"#;
    let mode = sizing::AttentionMode::new(9, "mode").unwrap();
    let cache = sizing::MnnCache::new(mode, sizing::MnnCpu::ALL[1], CacheElement::F32).unwrap();
    let setup = Setup { mnn: Some(cache), ..Setup::new(CacheElement::F32) };
    let of_mnn = Request { setup, ..request.clone() };
    each_allocation("llm_config.json", || {
        let file = |json| sizing::MnnFile { name: "config.json", json };
        let mut read = sizing::MnnConfig::read(file(llm), Some(file(host)), Default::default(), None)?;
        read.model.keep_all_tokens()?;
        SizeReport::new(&read.model, &of_mnn)?.json()
    });
    for config in [
        r#"{"num_hidden_layers": "tw\u006f"}"#,
        r#"{"text_config": {"num_hidden_layers": 2}}"#,
        r#"{"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"]}"#,
        r#"{"num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 8, "sliding_window": 5,
            "sliding_window_pattern": "LG", "torch_dtype": "int3", "index_head_dim": 3}"#,
        r#"{"num_hidden_layers": 2, "layer_types": [{"a": [1, 2, {"b": null}]}, ]}"#,
    ] {
        each_allocation(config, || sizing::ModelConfig::from_config(config.as_bytes()));
    }
}

#[test]
fn new_files_are_created() {
    let scratch = Scratch::new("file");
    let path = scratch.0.join("out.bin");
    each_allocation("create", || {
        let mut file = NewFile::create(&path)?;
        file.write(&[1; 100])?;
        file.write(&[2; 100_000])
    });
    assert!(scratch.is_empty());
}
