//! Findings of a check besides the faults of the goldens.

use crate::directory::{Directory, f32s, folder, i32s};
use mnnkv::status::Status;
use mnnkv_model::msmodelslim::{CheckReport, FindingKind, MemoryFolder, Model, Severity, check_folder, check_path};
use safetensors::Dtype;
use serde_json::json;

/// Findings as "error missing_tensor m.a.weight".
fn lines(report: &CheckReport) -> Vec<String> {
    let line = |f: &mnnkv_model::msmodelslim::Finding| {
        assert!(!f.text.is_empty());
        format!("{} {} {}", f.severity.word(), f.kind.word(), f.tensor).trim_end().to_owned()
    };
    report.findings.iter().map(line).collect()
}

#[test]
fn a_healthy_directory_has_no_findings() {
    assert_eq!(lines(&check_folder(&Directory::healthy().folder()).unwrap()), [] as [&str; 0]);
}

/// Changes a healthy directory, and expects exactly these findings.
#[track_caller]
fn finds(change: impl FnOnce(&mut Directory), expected: &[&str]) {
    let mut directory = Directory::healthy();
    change(&mut directory);
    assert_eq!(lines(&check_folder(&directory.folder()).unwrap()), expected);
}

#[test]
fn numbers_are_looked_at() {
    let nan = f32::NAN;
    finds(|d| d.set("m.b.weight_scale", f32s(&[0.5, nan, 1.0])), &["error bad_scale_value m.b.weight_scale"]);
    finds(|d| d.set("m.a.input_scale", f32s(&[-0.5])), &["error bad_scale_value m.a.input_scale"]);
    finds(|d| d.set("m.a.deq_scale", f32s(&[0.25, f32::INFINITY, 0.5])), &["error bad_scale_value m.a.deq_scale"]);
    finds(|d| d.set("m.b.weight_offset", f32s(&[128.0, 0.0, 0.0])), &["error offset_out_of_range m.b.weight_offset"]);
    finds(|d| d.set("m.b.weight_offset", f32s(&[nan, 0.0, 0.0])), &["error offset_out_of_range m.b.weight_offset"]);
    finds(
        |d| d.set("m.3.k_proj.kv_cache_scale", f32s(&[0.0, 1.0])),
        &["error bad_scale_value m.3.k_proj.kv_cache_scale"],
    );
    finds(
        |d| d.set("m.3.k_proj.kv_cache_scale", f32s(&[1e-31, 1.0])),
        &["error bad_scale_value m.3.k_proj.kv_cache_scale"],
    );
    finds(
        |d| d.set("m.3.v_proj.kv_cache_offset", f32s(&[0.0, 7.0])),
        &["warning kv_offset_nonzero m.3.v_proj.kv_cache_offset"],
    );
    finds(
        |d| d.set("m.3.v_proj.kv_cache_offset", f32s(&[0.0, 0.5])),
        &[
            "error non_integral_offset m.3.v_proj.kv_cache_offset",
            "warning kv_offset_nonzero m.3.v_proj.kv_cache_offset",
        ],
    );
}

#[test]
fn names_that_c_cannot_pass_on_or_that_have_no_layer_are_noticed() {
    for name in [".scale", "m.\0scale"] {
        let warning = format!("warning tensor_name {name}");
        finds(|d| d.put(name, "FLOAT", Dtype::F32, &[1], f32s(&[1.0])), &[warning.as_str()]);
    }
}

#[test]
fn every_kind_is_documented() {
    let document = include_str!("../../../docs/tools.md");
    for kind in FindingKind::ALL {
        assert!(document.contains(&format!("\n| `{}` | ", kind.word())), "{}", kind.word());
    }
}

#[test]
fn a_lost_correction_for_the_inputs_offset_is_noticed() {
    finds(|d| d.set("m.a.quant_bias", i32s(&[0, 0, 0])), &["warning quant_bias_mismatch m.a.quant_bias"]);
    finds(|d| d.set("m.a.quant_bias", i32s(&[-30, -60, -93])), &["warning quant_bias_mismatch m.a.quant_bias"]);
    finds(|d| d.set("m.a.quant_bias", i32s(&[-30, -60, -94])), &[]);
    // A bias is in quant_bias, in units of deq_scale.
    let biased = |bias: [f32; 3]| {
        move |d: &mut Directory| {
            d.put("m.a.bias", "FLOAT", Dtype::F32, &[3], f32s(&bias));
            d.set("m.a.quant_bias", i32s(&[-26, -60, -95]));
        }
    };
    finds(biased([1.0, 0.0, 0.0]), &[]);
    finds(biased([2.0, 0.0, 0.0]), &["warning quant_bias_mismatch m.a.quant_bias"]);
    // quant_bias includes the bias of a norm, which the check cannot compute.
    finds(
        |d| {
            d.put("m.norm.bias", "FLOAT", Dtype::F32, &[4], f32s(&[0.0; 4]));
            d.set("m.a.quant_bias", i32s(&[0, 0, 0]));
        },
        &[],
    );
}

#[test]
fn large_weights_are_looked_at_to_their_end() {
    // Rows that no power of two divides, and more codes than are read at a time.
    let k = 100_003;
    let large = |quant_bias: i32, last: i8| {
        move |d: &mut Directory| {
            let mut codes = vec![1u8; 3 * k];
            codes[3 * k - 1] = last as u8;
            d.put("m.a.weight", "W8A8", Dtype::I8, &[3, k], codes);
            d.set("m.a.quant_bias", i32s(&[-5 * k as i32, -5 * k as i32, quant_bias]));
        }
    };
    finds(large(-5 * k as i32, 1), &[]);
    finds(large(-5 * k as i32 + 10, -1), &[]);
    finds(large(-5 * k as i32 + 10, 1), &["warning quant_bias_mismatch m.a.quant_bias"]);
    let mut directory = Directory::healthy();
    large(-5 * k as i32 + 5 * 129, i8::MIN)(&mut directory);
    let report = check_folder(&directory.folder()).unwrap();
    assert_eq!(lines(&report), ["warning suspicious_code m.a.weight"]);
    assert!(report.findings[0].text.contains("row 2, column 100002"), "{}", report.findings[0].text);
}

#[test]
fn scales_must_multiply_to_the_packed_scale() {
    let with = |scales: [f32; 3]| {
        move |d: &mut Directory| {
            d.put("m.a.weight_scale", "W8A8", Dtype::F32, &[3, 1], f32s(&scales));
        }
    };
    finds(with([0.5, 1.0, 0.25]), &[]);
    finds(with([0.5, 1.004, 0.25]), &[]);
    finds(with([0.5, 1.01, 0.25]), &["error scale_product_mismatch m.a.deq_scale"]);
}

#[test]
fn codes_that_symmetric_scales_do_not_give_are_suspicious() {
    let mut codes = vec![1u8; 12];
    codes[7] = 0x80;
    let asymmetric = codes.clone();
    finds(|d| d.set("m.b.weight", asymmetric), &[]);
    finds(
        |d| {
            d.set("m.b.weight", codes);
            d.set("m.b.weight_offset", f32s(&[0.0; 3]));
        },
        &["warning suspicious_code m.b.weight"],
    );
}

#[test]
fn linears_that_are_loaded_as_one_must_be_alike() {
    let qkv = |d: &mut Directory, scale: f32| {
        for part in ["weight", "input_scale", "input_offset", "deq_scale", "quant_bias"] {
            d.rename(&format!("m.a.{part}"), &format!("m.q_proj.{part}"));
        }
        for (name, (dtype, shape, bytes)) in d.tensors.clone() {
            if let Some(part) = name.strip_prefix("m.q_proj.") {
                d.put(&format!("m.k_proj.{part}"), "W8A8", dtype, &shape, bytes);
            }
        }
        d.set("m.k_proj.input_scale", f32s(&[scale]));
    };
    finds(|d| qkv(d, 0.5), &[]);
    finds(|d| qkv(d, 0.51), &["warning fusion_mismatch m.q_proj.input_scale"]);
    finds(
        |d| {
            for part in ["weight", "weight_scale", "weight_offset"] {
                d.rename(&format!("m.b.{part}"), &format!("m.up_proj.{part}"));
            }
            d.put("m.gate_proj.weight", "FLOAT", Dtype::F16, &[3, 4], vec![0; 24]);
        },
        &["warning inconsistent_tags m.up_proj.weight"],
    );
}

#[test]
fn shapes_and_types_are_looked_at() {
    let reshape = |name: &'static str, dtype, shape: &'static [usize], bytes: usize| {
        move |d: &mut Directory| {
            d.tensors.insert(name.to_owned(), (dtype, shape.to_vec(), vec![0x3f; bytes]));
        }
    };
    finds(reshape("m.a.weight", Dtype::I8, &[2, 2, 3], 12), &["error shape_mismatch m.a.weight"]);
    finds(reshape("m.a.deq_scale", Dtype::F32, &[4], 16), &["error shape_mismatch m.a.deq_scale"]);
    finds(reshape("m.a.deq_scale", Dtype::F32, &[3, 2], 24), &["error shape_mismatch m.a.deq_scale"]);
    finds(reshape("m.a.deq_scale", Dtype::U64, &[3], 24), &["error dtype_mismatch m.a.deq_scale"]);
    finds(reshape("m.a.quant_bias", Dtype::I32, &[4], 16), &["error shape_mismatch m.a.quant_bias"]);
    finds(reshape("m.b.weight_offset", Dtype::I8, &[3, 1], 3), &["error dtype_mismatch m.b.weight_offset"]);
    finds(
        |d| {
            d.put("m.b.bias", "FLOAT", Dtype::F32, &[4], f32s(&[0.0; 4]));
            d.put("m.norm.bias", "FLOAT", Dtype::I32, &[4], i32s(&[0; 4]));
        },
        &["error shape_mismatch m.b.bias", "error dtype_mismatch m.norm.bias"],
    );
    finds(
        |d| {
            d.put("m.norm.module.weight", "W8A8", Dtype::F32, &[5], f32s(&[1.0; 5]));
        },
        &["error shape_mismatch m.norm.weight"],
    );
}

#[test]
fn kv_scales_fit_the_models_config() {
    finds(
        |d| d.config = json!({"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 2}),
        &[
            "error shape_mismatch m.3.k_proj.kv_cache_scale",
            "error shape_mismatch m.3.k_proj.kv_cache_offset",
            "error shape_mismatch m.3.v_proj.kv_cache_scale",
            "error shape_mismatch m.3.v_proj.kv_cache_offset",
        ],
    );
    // Without numbers there is nothing to compare with.
    finds(|d| d.config = json!({}), &[]);
    finds(|d| d.config = json!({"hidden_size": 4, "num_attention_heads": 4, "multi_query_group_num": 2}), &[]);
    for name in ["m.3.v_proj.kv_cache_scale", "m.3.v_proj.kv_cache_offset"] {
        let severity = if name.ends_with("scale") { "error" } else { "warning" };
        finds(|d| d.remove(name), &[&format!("{severity} kv_incomplete {name}")]);
    }
    finds(
        |d| d.rename("m.3.v_proj.kv_cache_scale", "m.3.kv_cacahe_scale"),
        &["error kv_alias m.3.kv_cacahe_scale", "error kv_incomplete m.3.v_proj.kv_cache_scale"],
    );
    finds(
        |d| {
            d.description.insert("kv_cache_type".to_owned(), "C8_MXFP8".into());
        },
        &["error unsupported_quant_type kv_cache_type"],
    );
    // Two words mean the same, and one reader reads them from the model's config.
    finds(
        |d| {
            d.description.remove("kv_cache_type");
            d.description.insert("kv_quant_type".to_owned(), "KV8".into());
        },
        &[],
    );
    finds(
        |d| {
            d.description.remove("kv_cache_type");
            d.description.remove("kv_quant_type");
            d.config["quantization_config"] = json!({"kv_quant_type": "C8"});
        },
        &[],
    );
}

#[test]
fn keys_of_the_description_are_understood() {
    let key = |name: &'static str, value: serde_json::Value| {
        move |d: &mut Directory| {
            d.description.insert(name.to_owned(), value);
        }
    };
    for (name, value) in [
        ("fa_quant_type", json!("FAQuant")),
        ("optional", json!({"quarot": {"rotation_map": {"global_rotation": "optional/quarot.safetensors"}}})),
        ("m.attn.quant_type", json!("FP8_DYNAMIC")),
        ("m.b.outdim", json!(64)),
        ("version", json!("12.0.7")),
    ] {
        finds(key(name, value), &[]);
    }
    finds(key("version", json!("1.0")), &["warning unknown_version version"]);
    finds(key("version", json!(1)), &["error json_shape version"]);
    finds(key("group_size", json!(-1)), &["error json_shape group_size"]);
    finds(key("group_size", json!("many")), &["error json_shape group_size"]);
    let mut wide = Directory::healthy();
    key("group_size", json!(1e30))(&mut wide);
    let text = &check_folder(&wide.folder()).unwrap().findings[0].text;
    assert_eq!(text, "group_size is 1e30; a whole number from 0 to 18446744073709551615 expected");
    finds(key("model_quant_type", json!("W9")), &["warning unknown_quant_type model_quant_type"]);
    finds(key("kv_cache_typ", json!("C8")), &["warning unknown_key kv_cache_typ"]);
    finds(key("kv_cache_typ", json!("C9")), &["warning unknown_key kv_cache_typ"]);
    finds(
        key("m.b.weight_scale", json!(null)),
        &["error json_shape m.b.weight_scale", "error undescribed_tensor m.b.weight_scale"],
    );
}

#[test]
fn tensors_that_writers_do_not_describe_are_no_fault() {
    for (name, expected) in [
        ("m.heads_rotation", None),
        ("m.b.kronecker_rotation_m", None),
        ("m.b.rotation", Some("error undescribed_tensor m.b.rotation")),
    ] {
        let add = |d: &mut Directory| {
            d.tensors.insert(name.to_owned(), (Dtype::F32, vec![1], f32s(&[1.0])));
        };
        finds(add, expected.as_slice());
    }
}

#[test]
fn types_of_quantisation_that_are_not_read_are_listed_and_refused_by_name() {
    let mut directory = Directory::healthy();
    directory.put("m.c.weight", "W4A8_DYNAMIC", Dtype::I8, &[2, 4], vec![0; 8]);
    directory.put("m.c.scale_bias", "W4A8_DYNAMIC", Dtype::F32, &[4], f32s(&[0.0; 4]));
    let folder = directory.folder();
    assert_eq!(lines(&check_folder(&folder).unwrap()), ["warning unsupported_quant_type m.c.weight"]);
    let model = Model::open_folder(&folder).unwrap();
    let index = model.linear("m.c").unwrap();
    let error = model.dequantize(index, 0..1, mnnkv::dtype::Dtype::F32, &mut [0; 16]).unwrap_err();
    assert_eq!(error.status(), Status::Unsupported);
    assert!(error.message().contains("W4A8_DYNAMIC"), "{error}");
}

#[test]
fn keys_that_come_twice_are_found_where_parsers_keep_the_last() {
    let directory = Directory::healthy();
    for (value, expected) in [("W8A16", "warning duplicate_key m.b.weight"), ("W8A8", "error duplicate_key m.b.weight")]
    {
        let mut files = directory.folder();
        let text = String::from_utf8(files.0["quant_model_description.json"].to_vec()).unwrap();
        let text = format!("{{\"m.b.weight\": \"{value}\", {}", text.strip_prefix('{').unwrap());
        files.0.insert("quant_model_description.json".to_owned(), text.as_bytes().into());
        assert_eq!(lines(&check_folder(&files).unwrap()), [expected]);
    }
}

#[test]
fn broken_files_leave_the_others_checked() {
    let mut directory = Directory::healthy();
    directory.set("m.b.weight_scale", f32s(&[0.5, -1.0, 1.0]));
    let mut files = directory.folder();
    files.0.insert("config.json".to_owned(), b"{,}"[..].into());
    files.0.insert("x.safetensors".to_owned(), b"short"[..].into());
    let found = lines(&check_folder(&files).unwrap());
    let expected = ["warning json_syntax", "error safetensors_truncated", "error bad_scale_value m.b.weight_scale"];
    assert_eq!(found, expected);
    files.0.remove("quant_model_description.json");
    assert!(lines(&check_folder(&files).unwrap()).contains(&"error missing_description".to_owned()));
}

/// Expects these findings, and that opening fails with the first one's status and names the word.
#[track_caller]
fn cannot_be_opened(files: &MemoryFolder, expected: &[&str], status: Status, word: &str) {
    assert_eq!(lines(&check_folder(files).unwrap()), expected);
    let Err(error) = Model::open_folder(files) else { panic!("it opened") };
    assert_eq!(error.status(), status, "{error}");
    assert!(error.message().contains(word), "{error}");
}

#[test]
fn the_description_is_found_or_what_is_there_is_named() {
    let directory = Directory::healthy();
    let healthy = directory.folder();
    let weights = &healthy.0["quant_model_weights.safetensors"];
    let text = &healthy.0["quant_model_description.json"];
    let with = |names: &[&str], config: &str| {
        let mut files = folder(&[("m.safetensors", weights), ("config.json", config.as_bytes())]);
        for name in names {
            files.0.insert((*name).to_owned(), text.clone());
        }
        files
    };
    let (w8a8, w8a16) = ("quant_model_description_w8a8.json", "quant_model_description_w8a16.json");
    for (names, config) in [
        (&[w8a16][..], "{}"),
        (&[w8a8, w8a16], r#"{"quantize": "w8a16"}"#),
        (&[w8a8, w8a16], r#"{"quantize": "w8a8_dynamic"}"#),
    ] {
        assert_eq!(lines(&check_folder(&with(names, config)).unwrap()), [] as [&str; 0], "{names:?}");
    }
    let both = with(&[w8a8, w8a16], "{}");
    cannot_be_opened(&both, &["error ambiguous_files"], Status::InvalidArgument, w8a16);
    let none = with(&[], "{}");
    cannot_be_opened(&none, &["error missing_description"], Status::NotFound, "quant_model_description.json");
    let inside = format!(r#"{{"quantization_config": {}}}"#, std::str::from_utf8(text).unwrap());
    assert_eq!(lines(&check_folder(&with(&[], &inside)).unwrap()), [] as [&str; 0]);
    let beside = with(&["quant_model_description.json", w8a8], "{}");
    assert_eq!(lines(&check_folder(&beside).unwrap()), ["warning ambiguous_files"]);
}

#[test]
fn an_index_cannot_lead_out_of_its_directory() {
    let directory = Directory::healthy();
    let name = "quant_model_weights-00001-of-00001.safetensors";
    for hostile in ["../w.safetensors", "/etc/passwd", "a/w.safetensors", "..", ".", "", "a\\w.safetensors", "c:w"] {
        let mut files = directory.folder();
        let weights = files.0.remove("quant_model_weights.safetensors").unwrap();
        files.0.insert(name.to_owned(), weights);
        let mut map: serde_json::Map<_, _> =
            directory.tensors.keys().map(|tensor| (tensor.clone(), name.into())).collect();
        map.insert("m.a.weight".to_owned(), hostile.into());
        let index = json!({"metadata": {"total_size": 1}, "weight_map": map}).to_string();
        files.0.insert("quant_model_weights.safetensors.index.json".to_owned(), index.as_bytes().into());
        // The tensor is where it should be; only the index is wrong.
        let expected = ["error hostile_path", "error index_incomplete m.a.weight"];
        cannot_be_opened(&files, &expected, Status::Corrupt, &format!("{hostile:?}"));
    }
}

#[test]
fn parts_without_an_index_must_all_be_there() {
    let directory = Directory::healthy();
    let mut files = directory.folder();
    let weights = files.0.remove("quant_model_weights.safetensors").unwrap();
    files.0.insert("w-00001-of-00001.safetensors".to_owned(), weights.clone());
    assert_eq!(lines(&check_folder(&files).unwrap()), ["warning index_incomplete"]);
    files.0.remove("w-00001-of-00001.safetensors");
    files.0.insert("w-00002-of-00003.safetensors".to_owned(), weights);
    cannot_be_opened(&files, &["error missing_shard"], Status::NotFound, "3 parts");
}

#[test]
fn hidden_files_are_not_looked_at() {
    let mut files = Directory::healthy().folder();
    files.0.insert(".quant_model_weights.safetensors.12.0.part".to_owned(), b"unfinished"[..].into());
    files.0.insert("._quant_model_weights.safetensors".to_owned(), b"junk"[..].into());
    assert_eq!(lines(&check_folder(&files).unwrap()), [] as [&str; 0]);
}

#[test]
fn a_path_that_is_no_directory_gives_a_report_too() {
    for (path, status) in [
        ("no such directory", Status::NotFound),
        (concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"), Status::InvalidArgument),
    ] {
        let report = check_path(path.as_ref()).unwrap();
        assert_eq!(lines(&report), ["error unreadable"]);
        assert!(report.findings[0].text.contains(path));
        assert_eq!(Model::open(path.as_ref()).err().map(|e| e.status()), Some(status));
        assert_eq!(report.count(Severity::Error), 1);
    }
}

#[cfg(unix)]
#[test]
fn links_that_loop_and_pipes_end_in_an_error() {
    let path = std::env::temp_dir().join(format!("mnnkv-msmodelslim-links-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    for (name, bytes) in Directory::healthy().folder().0 {
        std::fs::write(path.join(name), bytes).unwrap();
    }
    let (link, pipe) = (path.join("x.safetensors"), path.join("y.safetensors"));
    std::os::unix::fs::symlink(&link, &link).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let found = lines(&check_path(&path).unwrap());
    assert!(Model::open(&path).is_err());
    std::fs::remove_dir_all(&path).unwrap();
    assert_eq!(found, ["error unreadable", "error unreadable"]);
}

#[test]
fn kv_scales_without_a_config_fit_the_linears() {
    let rows = |rows: usize| {
        move |d: &mut Directory| {
            d.config = json!({});
            d.put("m.3.k_proj.weight", "FLOAT", Dtype::F32, &[rows, 4], f32s(&vec![1.0; 4 * rows]));
        }
    };
    finds(rows(2), &[]);
    finds(
        rows(3),
        &["error shape_mismatch m.3.k_proj.kv_cache_scale", "error shape_mismatch m.3.k_proj.kv_cache_offset"],
    );
}

#[test]
fn kv_scales_of_a_type_that_is_not_read_are_refused() {
    let mut directory = Directory::healthy();
    let scales = |directory: &Directory| {
        let model = Model::open_folder(&directory.folder()).unwrap();
        model.kv_scales(&model.kv_layers()[0], &model.kv_layers()[0].key)
    };
    assert!(scales(&directory).is_ok());
    directory.description.insert("kv_cache_type".to_owned(), "C8_MXFP8".into());
    let error = scales(&directory).unwrap_err();
    assert_eq!(error.status(), Status::Unsupported);
    assert!(error.message().contains("quant_model_description.json: kv_cache_type is \"C8_MXFP8\""), "{error}");
}

#[test]
fn a_group_size_without_groups_is_noticed() {
    let size = |size: u64| move |d: &mut Directory| drop(d.description.insert("group_size".to_owned(), size.into()));
    finds(size(2), &["warning group_size_mismatch group_size"]);
    // A row of four columns is a group of four.
    finds(size(4), &[]);
}

#[test]
fn offsets_of_weights_that_are_read_without_are_noticed() {
    let offsets = |offsets: [f32; 3]| {
        move |d: &mut Directory| {
            d.put("m.a.weight_scale", "W8A8", Dtype::F32, &[3, 1], f32s(&[0.5, 1.0, 0.25]));
            d.put("m.a.weight_offset", "W8A8", Dtype::F32, &[3, 1], f32s(&offsets));
        }
    };
    finds(offsets([0.0, 0.0, 0.0]), &[]);
    finds(offsets([0.0, 0.0, 7.0]), &["warning offset_out_of_range m.a.weight_offset"]);
}

#[test]
fn findings_about_the_description_name_it_and_quote_it() {
    for part in ["m.a.quant_bias", "m.b.weight_offset", "m.3.k_proj.kv_cache_scale", "m.3.k_proj.kv_cache_offset"] {
        let mut directory = Directory::healthy();
        directory.remove(part);
        let report = check_folder(&directory.folder()).unwrap();
        let [finding] = report.findings.as_slice() else { panic!("{report:?}") };
        assert_eq!((finding.file.as_str(), finding.tensor.as_str()), ("quant_model_description.json", part));
    }
    for (key, value) in [("version", "2"), ("model_quant_type", "W9"), ("kv_cache_type", "C9")] {
        let mut directory = Directory::healthy();
        directory.description.insert(key.to_owned(), value.into());
        let report = check_folder(&directory.folder()).unwrap();
        let [finding] = report.findings.as_slice() else { panic!("{report:?}") };
        assert_eq!(finding.file, "quant_model_description.json");
        assert!(finding.text.starts_with(&format!("{key} is \"{value}\"")), "{}", finding.text);
    }
}
