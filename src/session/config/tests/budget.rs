//! A budget.

use super::*;

#[test]
fn a_budget_is_in_mb_or_in_bytes_and_goes_without_other_rules() {
    let config = clean(json!({"kv_memory_mb": 64.5, "kv_memory_file": "blocks.kv", "kv_memory_file_mb": 2}));
    let file = FileRules { path: "blocks.kv".into(), most: Some(2_000_000) };
    assert_eq!((config.memory.as_ref().unwrap().bytes, config.file.clone()), (64_500_000, Some(file)));
    assert!(clean(json!({"kv_memory_file": "x"})).file.is_some(), "a chat without a budget is saved, too");
    let rules = QuantRules { sink_tokens: 16, always: None, fewest: Format::K4V4, is_bounded: true };
    assert_eq!((config.quant_of(0), config.lossless), (Some(rules), None));
    assert_eq!(clean(json!({"kv_memory_bytes": 1000})).memory.unwrap().bytes, 1000);
    assert_eq!(clean(json!({"kv_memory_mb": 1e-9})).memory.unwrap().bytes, 1, "0 would be no budget");

    let config = clean(json!({"kv_quant": "k4v4", "kv_quant_k8v4_layers": [18, 7, 7.0], "kv_quant_layer_start": 7}));
    let formats = [6, 7, 8, 18].map(|layer| config.quant_of(layer).and_then(|rules| rules.always));
    assert_eq!(formats, [None, Some(Format::K8V4), Some(Format::K4V4), Some(Format::K8V4)]);

    for (config, warning) in [
        (json!({"kv_memory": 64}), "kv_memory is not a key of this version; did you mean kv_memory_mb?"),
        (
            json!({"kv_memory_mb": 64, "kv_quant_layer_start": 2}),
            "kv_quant_layer_start has no effect: kv_quant must be",
        ),
        (json!({"kv_quant_layer_start": 2}), "kv_quant_layer_start has no effect: kv_quant must be"),
        (
            json!({"kv_quant": "k8v4", "kv_quant_k8v4_layers": [1]}),
            "kv_quant_k8v4_layers has no effect: kv_quant must be \"k4v4\", or kv_memory_mb",
        ),
        (json!({"kv_quant_k8v4_layers": [1]}), "kv_quant_k8v4_layers has no effect: kv_memory_mb or"),
        (
            json!({"kv_memory_mb": 64, "kv_quant_k8v4_layers": [1, LAYERS]}),
            "kv_quant_k8v4_layers has 32 and the model has 32 layers, from 0 on",
        ),
    ] {
        let (_, warnings) = Config::parse(config.to_string().as_bytes(), b"", LAYERS).unwrap();
        assert!(warnings.len() == 1 && warnings[0].starts_with(warning), "{config}: {warnings:?}");
    }

    for (config, message) in [
        (
            r#"{"kv_memory_mb": 1, "kv_memory_bytes": 2}"#,
            "kv_memory_mb is 1 and kv_memory_bytes 2; one of them expected",
        ),
        (r#"{"kv_memory_mb": -1}"#, "kv_memory_mb is -1; a number from 0 to 1000000 expected"),
        (
            r#"{"kv_quant_k8v4_layers": 7}"#,
            "kv_quant_k8v4_layers is 7; an array of whole numbers from 0 to 65535 expected",
        ),
        (
            r#"{"kv_quant_k8v4_layers": [7, "18"]}"#,
            "kv_quant_k8v4_layers: item 1 is \"18\"; a whole number from 0 to 65535 expected",
        ),
        (
            r#"{"kv_quant_k8v4_layers": [-1]}"#,
            "kv_quant_k8v4_layers: item 0 is -1; a whole number from 0 to 65535 expected",
        ),
        (
            r#"{"kv_memory_mb": 1, "kv_memory_file": "a\u0000b"}"#,
            "kv_memory_file is \"a\\0b\"; a string without control characters expected",
        ),
    ] {
        assert_eq!(refused(config.as_bytes()).message(), message);
    }
    let (own, _) = Config::parse(br#"{"kv_memory_bytes": 5}"#, br#"{"kv_memory_mb": 64}"#, LAYERS).unwrap();
    assert_eq!(own.memory.unwrap().bytes, 5, "two names of one number");
    let both = json!({"kv_memory_mb": 1, "kv_h2o_enable": true}).to_string();
    assert!(refused(both.as_bytes()).message().starts_with("kv_memory_mb is given and kv_h2o_enable true"));
    for (idle, why) in [
        (
            json!({"kv_memory_file": "x", "kv_memory_wait_us": 1}),
            "kv_memory_wait_us has no effect: kv_memory_mb or kv_memory_bytes must be above 0",
        ),
        (
            json!({"kv_memory_mb": 1, "kv_lossless_block_tokens": 64}),
            "kv_lossless_block_tokens has no effect: kv_lossless_enable must be true",
        ),
        (
            json!({"kv_memory_mb": 1, "kv_memory_file_mb": 1}),
            "kv_memory_file_mb has no effect: kv_memory_file must name a file",
        ),
    ] {
        assert_eq!(warned(idle).1, why);
    }
    let opened = Config::parse(br#"{"kv_memory_mb": 1, "kv_memory_wait_us": 1}"#, b"", LAYERS).unwrap();
    assert_eq!(opened.1, [""; 0], "a chat that is opened has a file");
}
