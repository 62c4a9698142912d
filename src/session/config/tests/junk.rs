//! Random bytes, text and objects.

use super::{LAYERS, on};
use crate::session::config::keys::NAMES;
use crate::session::config::{Config, Warnings};
use crate::status::Status;
use proptest::prelude::*;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Any JSON, three levels deep.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-2..70i64).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        prop::sample::select(vec!["static", "store", "h2o_kept", "none", "sum", "gear_delta", "raw"])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(".{0,8}", inner, 0..6).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// An object with known keys, similar keys and others.
fn any_config() -> impl Strategy<Value = Value> {
    let key =
        prop_oneof![8 => prop::sample::select(NAMES).prop_map(String::from), 1 => "kv_h2o_.{0,20}", 1 => ".{0,8}"];
    prop::collection::btree_map(key, any_json(), 0..4).prop_map(|map| Value::Object(map.into_iter().collect()))
}

/// Checks every result.
fn check(json: &[u8], layers: u32) -> std::result::Result<(), TestCaseError> {
    match Config::parse(json, b"", layers) {
        Ok((config, warnings)) => {
            prop_assert!(warnings.len() <= Warnings::MOST + 1);
            if let Some(h2o) = config.eviction {
                prop_assert!(h2o.first_layer <= h2o.end_layer && h2o.end_layer <= layers);
            }
            if let Some(lossless) = config.lossless {
                prop_assert!(lossless.front_layers <= layers);
            }
        }
        Err(error) => {
            prop_assert_eq!(error.status(), Status::InvalidArgument);
            let named = NAMES.iter().any(|name| error.message().contains(name));
            prop_assert!(named || error.message().starts_with("config_json is "), "{}", error);
            let error = Config::parse(b"", json, layers).unwrap_err();
            prop_assert!(error.message().starts_with("defaults_json"), "{}", error);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), layers: u32) {
        check(&bytes, layers)?;
    }

    #[test]
    fn random_text_never_panics(text in "[{}\\[\\]\":,a-z0-9_.eE \\\\-]{0,200}", layers: u32) {
        check(text.as_bytes(), layers)?;
    }

    #[test]
    fn random_configs_never_panic(config in any_config(), layers in 0..80u32) {
        check(on(config).to_string().as_bytes(), layers)?;
    }

    #[test]
    fn damaged_configs_never_panic(config in any_config(), at: prop::sample::Index, byte: u8) {
        let mut text = config.to_string().into_bytes();
        let at = at.index(text.len());
        text[at] = byte;
        check(&text, LAYERS)?;
        check(&text[..at], LAYERS)?;
    }
}

#[test]
fn a_config_of_a_megabyte_is_read_in_linear_time() {
    let strange: Vec<String> = (0..20_000).map(|i| format!("\"kv_h2o_{i:06}_{}\": 1", "x".repeat(30))).collect();
    let near: Vec<String> = (0..20_000).map(|i| format!("\"kv_lossless_hot_recent_{i:06}\": 1")).collect();
    let configs = [
        (format!("{{\"host\": [{}0]}}", "0,".repeat(500_000)), 0),
        (format!("{{{}}}", strange.join(",")), 33),
        (format!("{{{}}}", near.join(",")), 33),
        (format!("{{\"kv_h2o_{}\": 1}}", "x".repeat(1_000_000)), 1),
    ];
    for (text, warnings) in configs {
        let start = Instant::now();
        let (_, given) = Config::parse(text.as_bytes(), b"", LAYERS).unwrap();
        // Far above what a linear reader takes, also under a sanitizer on a loaded machine.
        assert!(start.elapsed() < Duration::from_secs(20), "{:?} for {}", start.elapsed(), &text[..60]);
        assert_eq!(given.len(), warnings, "{}", &text[..60]);
        assert!(given.iter().all(|warning| warning.len() < 200), "{given:?}");
    }
    let (_, warnings) = Config::parse(format!("{{{}}}", strange.join(",")).as_bytes(), b"", LAYERS).unwrap();
    assert_eq!(warnings.last().unwrap(), "and 19968 more");
}
