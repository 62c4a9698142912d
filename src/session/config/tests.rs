//! Worked examples of every rule.

mod budget;
mod declared;
mod junk;

pub(super) use declared::Declared;

use super::*;
use crate::status::{Error, Status};
use serde_json::{Value, json};

const LAYERS: u32 = 32;

fn parse(config: Value) -> Result<(Config, Vec<String>)> {
    Config::parse(config.to_string().as_bytes(), b"", LAYERS)
}

/// Drops the warnings about every config without trigger and mode.
fn without_outlook(mut warnings: Vec<String>) -> Vec<String> {
    warnings.retain(|w| !w.contains("the first eviction can come") && !w.contains("\"probe\" only measures"));
    warnings
}

/// A config without other warnings.
fn clean(config: Value) -> Config {
    let (parsed, warnings) = parse(config.clone()).unwrap();
    let warnings = without_outlook(warnings);
    assert_eq!(warnings, [""; 0], "{config}");
    parsed
}

/// The only warning of a config.
fn warned(config: Value) -> (Config, String) {
    let (parsed, warnings) = parse(config.clone()).unwrap();
    let mut warnings = without_outlook(warnings);
    assert_eq!(warnings.len(), 1, "{config}: {warnings:?}");
    (parsed, warnings.remove(0))
}

fn refused(json: &[u8]) -> Error {
    let error = Config::parse(json, b"", LAYERS).unwrap_err();
    assert_eq!(error.status(), Status::InvalidArgument);
    assert!(error.message().len() < 400, "{error}");
    error
}

/// `config` with both features on.
fn on(mut config: Value) -> Value {
    for key in ["kv_h2o_enable", "kv_lossless_enable", "kv_lossless_runtime_enable"] {
        config.as_object_mut().unwrap().entry(key).or_insert(json!(true));
    }
    config
}

fn h2o(config: Value) -> EvictionRules {
    clean(on(config)).eviction.unwrap()
}

/// Ignores warnings.
fn warned_h2o(config: Value) -> EvictionRules {
    parse(on(config)).unwrap().0.eviction.unwrap()
}

fn lossless(config: Value) -> LosslessRules {
    clean(on(config)).lossless.unwrap()
}

/// Eviction and the store alone.
fn with_both(h2o: EvictionRules, lossless: LosslessRules) -> Config {
    Config { eviction: Some(h2o), lossless: Some(lossless), sink_tokens: 16, ..Config::default() }
}

#[test]
fn errors_have_the_value_and_the_range() {
    let long = json!({ "kv_h2o_target_mode": "é".repeat(100_000) }).to_string();
    let shortened = format!("kv_h2o_target_mode is \"{}...\"; \"adaptive\" or \"static\" expected", "é".repeat(60));
    for (config, message) in [
        (r#"{"kv_h2o_block_tokens": -1}"#, "kv_h2o_block_tokens is -1; a whole number from 1 to 65536 expected"),
        (r#"{"kv_h2o_block_tokens": 16.5}"#, "kv_h2o_block_tokens is 16.5; a whole number from 1 to 65536 expected"),
        (r#"{"kv_h2o_ema_alpha": "0.9"}"#, r#"kv_h2o_ema_alpha is "0.9"; a number from 0 to 1 expected"#),
        (r#"{"kv_h2o_enable": [1,2]}"#, "kv_h2o_enable is a list of 2; true or false expected"),
        (
            r#"{"kv_h2o_target_mode": "dyn\namic"}"#,
            r#"kv_h2o_target_mode is "dyn\namic"; "adaptive" or "static" expected"#,
        ),
        (
            r#"{"kv_lossless_scope": 1}"#,
            "kv_lossless_scope is 1; \"front_n\" or \"h2o_kept\" or \"front_n_and_h2o_kept\" or \"none\" expected",
        ),
        (&long, &shortened),
        ("[1]", "config_json is a list of 1; a JSON object expected"),
        ("null", "config_json is null; a JSON object expected"),
    ] {
        assert_eq!(refused(config.as_bytes()).message(), message);
    }
}

#[test]
fn text_that_is_no_json_is_refused_with_its_place() {
    for (text, place) in [
        (&b"{\n  \"kv_h2o_enable\" true}"[..], "config_json is not JSON: line 2 column 19"),
        (b" ", "line 1 column 1"),
        (b"{} x", "line 1 column 4"),
        (b"{\"a\":\"\xff\"}", "config_json is not UTF-8: byte 6 begins no character"),
        (b"{\"kv_h2o_ema_alpha\": NaN}", "config_json is not JSON"),
        ("\u{feff}\u{feff}{}".as_bytes(), ""),
        ("{}\u{feff}".as_bytes(), ""),
        ("\u{feff}".as_bytes(), ""),
    ] {
        let error = refused(text);
        assert!(place.split(": ").all(|part| error.message().contains(part)), "{error}");
    }
}

#[test]
fn defaults_hold_where_the_config_has_no_key() {
    let given = |config: &str, defaults: &str| Config::parse(config.as_bytes(), defaults.as_bytes(), LAYERS).unwrap();
    let (config, warnings) = given(
        r#"{"kv_h2o_sink_tokens": 5, "kv_h2o_unknown": 1}"#,
        r#"{"kv_h2o_enable": true, "kv_h2o_sink_tokens": 7, "kv_h2o_recent_tokens": 9, "kv_h2o_unknown": 2,
            "kv_h2o_other": 3, "kv_lossless_front_n": 3}"#,
    );
    let rules = config.eviction.unwrap();
    assert_eq!((rules.sink_tokens, rules.recent_tokens, rules.block_tokens), (5, 9, 64));
    assert_eq!(
        without_outlook(warnings),
        ["kv_h2o_unknown is not a key of this version", "defaults_json: kv_h2o_other is not a key of this version"],
        "each unknown key once, and no word about defaults without effect"
    );
    assert_eq!(given(r#"{"kv_h2o_enable": false}"#, r#"{"kv_h2o_enable": true}"#), given("{}", ""));
    // The config may be valid with defaults alone, and invalid with them.
    let refused =
        |config: &str, defaults: &str| Config::parse(config.as_bytes(), defaults.as_bytes(), LAYERS).unwrap_err();
    for (config, defaults, message) in [
        ("{}", "[1]", "defaults_json is a list of 1; a JSON object expected"),
        ("{}", "{", "defaults_json is not JSON"),
        (
            r#"{"kv_h2o_ema_alpha": 0.5}"#,
            r#"{"kv_h2o_ema_alpha": 2}"#,
            "defaults_json: kv_h2o_ema_alpha is 2; a number",
        ),
        ("{}", r#"{"kv_h2o_max_tokens": 9}"#, "defaults_json: kv_h2o_max_tokens is 9; "),
        (
            r#"{"kv_h2o_layer_end": 3}"#,
            r#"{"kv_h2o_layer_start": 5}"#,
            "kv_h2o_layer_start is 5 and kv_h2o_layer_end is 3",
        ),
        (r#"{"kv_h2o_ema_alpha": 2}"#, r#"{"kv_h2o_ema_alpha": 0.5}"#, "kv_h2o_ema_alpha is 2; "),
    ] {
        let error = refused(config, defaults);
        assert!(error.status() == Status::InvalidArgument && error.message().starts_with(message), "{error}");
    }
}

#[test]
fn a_byte_order_mark_before_the_text_is_skipped() {
    let (marked, warnings) = Config::parse("\u{feff}{\"kv_h2o_enable\": true}".as_bytes(), b"", LAYERS).unwrap();
    assert_eq!((marked, without_outlook(warnings)), (clean(json!({"kv_h2o_enable": true})), Vec::new()));
}

#[test]
fn nothing_given_is_everything_off() {
    let off = Config { sink_tokens: 16, ..Config::default() };
    assert_eq!(Config::parse(b"", b"", LAYERS).unwrap(), (off.clone(), Vec::new()));
    assert_eq!(Config::parse(b"", b"", 0).unwrap(), (off.clone(), Vec::new()));
    assert_eq!(clean(json!({})), off);
    assert_eq!(clean(json!({"kv_h2o_enable": false, "kv_h2o_sink_tokens": 4})), off);
}

#[test]
fn the_defaults_when_switched_on() {
    let config = clean(on(json!({})));
    let h2o = EvictionRules {
        first_layer: 2,
        end_layer: LAYERS,
        block_tokens: 64,
        sink_tokens: 32,
        recent_tokens: 256,
        ratio: Ratio::Lossy(3.5),
        max_tokens: None,
        trigger_min_tokens: 512,
        update_interval: 16,
        ema_alpha: 0.9,
        prefill_queries: 0,
        evict_unscored: false,
        log_stats: false,
    };
    let lossless = LosslessRules {
        front_layers: 2,
        kept_layers: false,
        mode: RuntimeMode::Probe,
        block_tokens: 128,
        hot_sink_tokens: 16,
        hot_recent_tokens: 256,
        bootstrap_tokens: 32,
        grouped_step_tokens: 256,
        workers: None,
        max_queue: 256,
        decode_cache_blocks: 64,
        decode_cache_bytes: 0,
        strict_roundtrip: false,
    };
    assert_eq!(config, with_both(h2o, lossless));
}

#[test]
fn every_key_reaches_its_field() {
    let (config, warnings) = parse(on(json!({
        "kv_h2o_layer_start": 3, "kv_h2o_layer_end": 30, "kv_h2o_policy": "mass", "kv_h2o_block_tokens": 32,
        "kv_h2o_sink_tokens": 5, "kv_h2o_recent_tokens": 100, "kv_h2o_target_mode": "static", "kv_h2o_target_keep_ratio": 0.25,
        "kv_h2o_target_lossy_ratio": 9, "kv_h2o_max_tokens": 2000,
        "kv_h2o_trigger_min_tokens": 700, "kv_h2o_update_interval": 8,
        "kv_h2o_ema_alpha": 0.5, "kv_h2o_prefill_queries": 64, "kv_h2o_evict_unscored": true,
        "kv_h2o_log_stats": true,
        "kv_lossless_scope": "front_n_and_h2o_kept", "kv_lossless_front_n": 3, "kv_lossless_codec": "gear_delta",
        "kv_lossless_codec_runtime": "gear_delta", "kv_lossless_runtime_mode": "store",
        "kv_lossless_block_tokens": 256, "kv_lossless_hot_sink_tokens": 17, "kv_lossless_hot_recent_tokens": 300,
        "kv_lossless_store_bootstrap_tokens": 33, "kv_lossless_store_grouped_step_tokens": 512,
        "kv_lossless_async_threads": 2, "kv_lossless_max_queue": 128, "kv_lossless_decode_cache_blocks": 7,
        "kv_lossless_decode_cache_bytes": 1_u64 << 33,
        "kv_lossless_strict_roundtrip_check": true,
    })))
    .unwrap();
    assert_eq!(warnings.len(), 1, "a ratio is not used: {warnings:?}");
    let h2o = EvictionRules {
        first_layer: 3,
        end_layer: 31,
        block_tokens: 32,
        sink_tokens: 5,
        recent_tokens: 100,
        ratio: Ratio::Keep(0.25),
        max_tokens: Some(2000),
        trigger_min_tokens: 700,
        update_interval: 8,
        ema_alpha: 0.5,
        prefill_queries: 64,
        evict_unscored: true,
        log_stats: true,
    };
    let lossless = LosslessRules {
        front_layers: 3,
        kept_layers: true,
        mode: RuntimeMode::Store,
        block_tokens: 256,
        hot_sink_tokens: 17,
        hot_recent_tokens: 300,
        bootstrap_tokens: 33,
        grouped_step_tokens: 512,
        workers: Some(2),
        max_queue: 128,
        decode_cache_blocks: 7,
        decode_cache_bytes: 1 << 33,
        strict_roundtrip: true,
    };
    assert_eq!(config, with_both(h2o, lossless));
}

#[test]
fn whole_numbers_may_have_an_empty_fraction() {
    let parsed = |number: &str| {
        let text = format!("{{\"kv_h2o_enable\": true, \"kv_h2o_sink_tokens\": {number}}}");
        Config::parse(text.as_bytes(), b"", LAYERS).unwrap().0.eviction.unwrap().sink_tokens
    };
    for (text, number) in [("16.0", 16), ("1.6e1", 16), ("-0", 0), ("-0.0", 0), ("2147483647.0", i32::MAX as u32)] {
        assert_eq!(parsed(text), number, "{text}");
    }
}

#[test]
fn numbers_with_a_meaning_of_their_own() {
    assert_eq!(h2o(json!({"kv_h2o_policy": "mass", "kv_h2o_prefill_queries": -1})).prefill_queries, usize::MAX);
    assert_eq!(h2o(json!({"kv_h2o_max_tokens": 0})).max_tokens, None);
    assert_eq!(h2o(json!({"kv_h2o_layer_end": -1})).end_layer, LAYERS);
    assert_eq!(h2o(json!({"kv_h2o_layer_end": 2})).end_layer, 3);
}

#[test]
fn names_and_what_they_stand_for() {
    for (name, ratio) in [("adaptive", Ratio::Lossy(4.0)), ("static", Ratio::Keep(0.75))] {
        let keys =
            json!({"kv_h2o_target_mode": name, "kv_h2o_target_keep_ratio": 0.75, "kv_h2o_target_lossy_ratio": 4});
        assert_eq!(warned_h2o(keys).ratio, ratio);
    }
    for name in ["auto", "fp16_gear_predictive_v3", "gear_delta"] {
        assert_eq!(lossless(json!({ "kv_lossless_codec_runtime": name })), lossless(json!({})));
    }
    for (name, mode) in [("probe", RuntimeMode::Probe), ("full", RuntimeMode::Full), ("store", RuntimeMode::Store)] {
        assert_eq!(lossless(json!({"kv_lossless_runtime_mode": name})).mode, mode);
    }
}

#[test]
fn scopes() {
    for (scope, front, kept) in [("front_n", 5, false), ("h2o_kept", 0, true), ("front_n_and_h2o_kept", 5, true)] {
        let lossless = lossless(json!({"kv_lossless_scope": scope, "kv_lossless_front_n": 5}));
        assert_eq!((lossless.front_layers, lossless.kept_layers), (front, kept), "{scope}");
    }
    assert_eq!(clean(on(json!({"kv_lossless_scope": "none"}))).lossless, None);
    assert_eq!(clean(on(json!({"kv_lossless_codec": "none"}))).lossless, None);
    assert_eq!(lossless(json!({"kv_lossless_front_n": 99})).front_layers, LAYERS);

    for (scope, front) in [("h2o_kept", 0), ("front_n_and_h2o_kept", 2)] {
        let (config, warning) = warned(on(json!({"kv_h2o_enable": false, "kv_lossless_scope": scope})));
        let lossless = config.lossless.unwrap();
        assert_eq!((lossless.front_layers, lossless.kept_layers), (front, false));
        assert!(warning.contains("kv_lossless_scope") && warning.contains("kv_h2o_enable"), "{warning}");
    }
    let (config, warning) = warned(on(json!({"kv_lossless_front_n": 0})));
    assert_eq!(config.lossless.unwrap().front_layers, 0);
    assert!(warning.contains("kv_lossless_scope") && warning.contains("kv_lossless_front_n"), "{warning}");
    clean(on(json!({"kv_lossless_front_n": 0, "kv_lossless_scope": "h2o_kept"})));
}

#[test]
fn compression_needs_both_switches() {
    let (config, warning) = warned(json!({"kv_lossless_enable": true}));
    assert_eq!(config.lossless, None);
    assert!(warning.contains("kv_lossless_runtime_enable") && warning.contains("nothing"), "{warning}");
    assert_eq!(warned(json!({"kv_lossless_runtime_enable": true})).0.lossless, None);
    assert!(clean(json!({"kv_lossless_enable": true, "kv_lossless_runtime_enable": true})).lossless.is_some());
}

#[test]
fn layers_that_the_model_does_not_have() {
    let (config, warning) = warned(json!({"kv_h2o_enable": true, "kv_h2o_layer_start": LAYERS}));
    let h2o = config.eviction.unwrap();
    assert_eq!((h2o.first_layer, h2o.end_layer), (LAYERS, LAYERS));
    assert!(warning.contains("kv_h2o_layer_start is 32") && warning.contains("32 layers"), "{warning}");

    let (config, warning) = warned(json!({"kv_h2o_enable": true, "kv_h2o_layer_end": LAYERS}));
    let h2o = config.eviction.unwrap();
    assert_eq!((h2o.first_layer, h2o.end_layer), (2, LAYERS));
    assert!(warning.contains("kv_h2o_layer_end is 32"), "{warning}");

    clean(json!({"kv_h2o_enable": false, "kv_h2o_layer_start": 40}));
    let (config, warnings) = Config::parse(br#"{"kv_h2o_enable": true, "kv_h2o_layer_end": 65535}"#, b"", 0).unwrap();
    let h2o = config.eviction.unwrap();
    assert_eq!((h2o.first_layer, h2o.end_layer, warnings.len()), (0, 0, 2));
}

#[test]
fn an_end_below_the_start_is_refused_even_while_off() {
    for enable in [true, false] {
        let config = json!({"kv_h2o_enable": enable, "kv_h2o_layer_start": 5, "kv_h2o_layer_end": 4});
        let error = refused(config.to_string().as_bytes());
        assert!(error.message().starts_with("kv_h2o_layer_start is 5 and kv_h2o_layer_end is 4;"), "{error}");
    }
    assert_eq!(h2o(json!({"kv_h2o_layer_start": 5, "kv_h2o_layer_end": 5})).end_layer, 6);
}

#[test]
fn a_limit_has_room_for_what_is_protected() {
    // 32 + 256 + 3 * 64 + 16
    assert_eq!(h2o(json!({"kv_h2o_max_tokens": 496})).max_tokens, Some(496));
    for enable in [true, false] {
        let error = refused(json!({"kv_h2o_enable": enable, "kv_h2o_max_tokens": 495}).to_string().as_bytes());
        assert!(
            error.message().starts_with("kv_h2o_max_tokens is 495; ") && error.message().contains("496"),
            "{error}"
        );
    }
    let most = i32::MAX;
    let huge = json!({"kv_h2o_max_tokens": most, "kv_h2o_sink_tokens": most, "kv_h2o_recent_tokens": most,
        "kv_h2o_update_interval": most, "kv_h2o_block_tokens": 65536});
    assert!(refused(huge.to_string().as_bytes()).message().contains("4294967295"), "saturates");
}

#[test]
fn keys_that_have_no_effect_are_named_with_what_would_make_them_count() {
    for (config, key, needs) in [
        (json!({"kv_h2o_sink_tokens": 4}), "kv_h2o_sink_tokens has", "kv_h2o_enable must be true"),
        (
            json!({"kv_h2o_sink_tokens": 4, "kv_h2o_ema_alpha": 0.5, "kv_h2o_max_tokens": 0}),
            "kv_h2o_sink_tokens and 2 more",
            "kv_h2o_enable must be true",
        ),
        (json!({"kv_lossless_front_n": 4}), "kv_lossless_front_n has", "kv_lossless_enable must be true"),
        (
            json!({"kv_lossless_runtime_enable": true, "kv_lossless_front_n": 4}),
            "kv_lossless_runtime_enable and 1 more",
            "have no effect: kv_lossless_enable must be true",
        ),
        (
            json!({"kv_h2o_enable": true, "kv_h2o_target_keep_ratio": 0.5}),
            "kv_h2o_target_keep_ratio has",
            "kv_h2o_target_mode must be \"static\"",
        ),
        (
            json!({"kv_h2o_enable": true, "kv_h2o_target_mode": "static", "kv_h2o_target_lossy_ratio": 2}),
            "kv_h2o_target_lossy_ratio has",
            "kv_h2o_target_mode must be \"adaptive\"",
        ),
        (
            on(json!({"kv_lossless_predictors_k": "raw", "kv_lossless_store_disable_front": true})),
            "kv_lossless_predictors_k and 1 more",
            "have no effect in this version",
        ),
        (
            on(json!({"kv_lossless_async_threads": 0, "kv_lossless_max_queue": 5})),
            "kv_lossless_max_queue has",
            "kv_lossless_async_threads must not be 0",
        ),
        (
            on(json!({"kv_lossless_decode_cache_blocks": 0, "kv_lossless_decode_cache_bytes": 9})),
            "kv_lossless_decode_cache_bytes has",
            "kv_lossless_decode_cache_blocks must be above 0",
        ),
    ] {
        let (_, warning) = warned(config);
        assert!(warning.starts_with(key) && warning.ends_with(needs), "{warning}");
    }
    for off in ["kv_h2o_enable", "kv_lossless_enable"] {
        clean(json!({ off: false, "kv_h2o_enable": false, "kv_h2o_sink_tokens": 4, "host": 1 }));
    }
    clean(json!({"kv_lossless_enable": false, "kv_lossless_front_n": 4}));
}

#[test]
fn compression_with_the_default_mode_warns_that_it_saves_nothing() {
    let both = json!({"kv_lossless_enable": true, "kv_lossless_runtime_enable": true});
    let (_, warnings) = parse(both.clone()).unwrap();
    assert!(warnings.len() == 1 && warnings[0].contains("must be \"store\""), "{warnings:?}");
    for mode in ["probe", "full", "store"] {
        let mut config = both.clone();
        config["kv_lossless_runtime_mode"] = json!(mode);
        assert_eq!(parse(config).unwrap().1, [""; 0], "{mode} is given");
    }
}

#[test]
fn the_length_of_the_first_eviction_is_said_where_a_given_trigger_is_another() {
    for (keys, said) in [
        (json!({}), None),
        (
            json!({"kv_h2o_trigger_min_tokens": 512}),
            Some("kv_h2o_trigger_min_tokens is 512 and the first eviction can come at 1152 tokens"),
        ),
        (json!({"kv_h2o_trigger_min_tokens": 1152}), None),
        (json!({"kv_h2o_trigger_min_tokens": 1151}), None),
        (json!({"kv_h2o_trigger_min_tokens": 4000}), None),
        (
            json!({"kv_h2o_target_lossy_ratio": 1}),
            Some("no token is ever evicted: kv_h2o_target_lossy_ratio must be above 1"),
        ),
        (json!({"kv_h2o_target_lossy_ratio": 1, "kv_h2o_max_tokens": 600}), None),
        (
            json!({"kv_h2o_target_lossy_ratio": 1, "kv_h2o_max_tokens": 600, "kv_h2o_trigger_min_tokens": 512}),
            Some("can come at 584 tokens"),
        ),
        (
            json!({"kv_h2o_target_mode": "static", "kv_h2o_target_keep_ratio": 1}),
            Some("no token is ever evicted: kv_h2o_target_keep_ratio must be below 1"),
        ),
        (
            json!({"kv_h2o_trigger_min_tokens": 100, "kv_h2o_target_lossy_ratio": 1000}),
            Some("kv_h2o_trigger_min_tokens is 100"),
        ),
    ] {
        let (_, warnings) = parse({
            let mut keys = keys.clone();
            keys["kv_h2o_enable"] = json!(true);
            keys
        })
        .unwrap();
        let found = warnings.iter().any(|warning| said.is_some_and(|said| warning.contains(said)));
        assert_eq!(
            (warnings.len(), found),
            if said.is_some() { (1, true) } else { (0, false) },
            "{keys}: {warnings:?}"
        );
    }
}

#[test]
fn keys_of_the_host_are_not_looked_at() {
    let config =
        clean(on(json!({"kv_cache": true, "kv_h2o": 3, "KV_H2O_ENABLE": [], "memory": {"kv_h2o_x": 1}, "": 1e99})));
    assert_eq!(config, clean(on(json!({}))));
}

#[test]
fn keys_of_adapters_are_no_misspelled_keys_of_ours() {
    for key in [
        "kv_",
        "kv_chat_enable",
        "kv_dump_folder",
        "kv_library",
        "kv_metrics",
        "kv_required",
        "kv_park",
        "kv_save",
        "kv_load",
        "kv_overwrite",
        "kv_trim_mb",
        "kv_cache",
        "kv_heads",
        "kv_count",
        "kv_unit",
        "kv_memo",
        "kv_size_mb",
    ] {
        clean(json!({ key: 1 }));
    }
}

#[test]
fn unknown_keys_of_ours_are_warned_about() {
    for (key, warning) in [
        ("kv_h2o_recnt_tokens", "kv_h2o_recnt_tokens is not a key of this version; did you mean kv_h2o_recent_tokens?"),
        ("kv_lossless_frontn", "kv_lossless_frontn is not a key of this version; did you mean kv_lossless_front_n?"),
        ("kv_lossless_scopes", "kv_lossless_scopes is not a key of this version; did you mean kv_lossless_scope?"),
        ("kv_lossless_zstd_level", "kv_lossless_zstd_level is not a key of this version"),
        ("kv_memroy_mb", "kv_memroy_mb is not a key of this version; did you mean kv_memory_mb?"),
        ("kv_qaunt", "kv_qaunt is not a key of this version; did you mean kv_quant?"),
        ("kv_h20_enabel", "kv_h20_enabel is not a key of this version; did you mean kv_h2o_enable?"),
        ("kv_h2o_", "kv_h2o_ is not a key of this version"),
        ("kv_h2o_\u{1b}[2J", r"kv_h2o_\u{1b}[2J is not a key of this version"),
    ] {
        assert_eq!(warned(json!({ key: null })).1, warning);
    }
}

#[test]
fn of_equal_keys_the_last_counts() {
    let text = br#"{"kv_h2o_enable": true, "kv_h2o_sink_tokens": 1, "kv_h2o_sink_tokens": 7}"#;
    assert_eq!(Config::parse(text, b"", LAYERS).unwrap().0.eviction.unwrap().sink_tokens, 7);
}
