//! Values of the flags of `mnnkv evaluate`.

use crate::failure::Failure;
use crate::input;
use mnnkv::session::config::{Config, EvictionRules, LosslessRules};
use serde_json::{Map, Value};
use std::path::Path;

/// Keys of a host's config: `kv_h2o_` and `kv_lossless_`.
pub type Keys = Map<String, Value>;

/// More than any model has.
const MOST_LAYERS: u32 = u16::MAX as u32;
/// Limit of a config file.
const MAX_CONFIG: u64 = 4 << 20;

/// Parses a ratio of eviction.
pub fn ratio(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ratio) if (1.0..=1e6).contains(&ratio) => Ok(ratio),
        _ => Err("a number from 1 to 1000000 expected".into()),
    }
}

/// Parses `KEY=VALUE`; the value is JSON, or else a string.
pub fn assignment(text: &str) -> Result<(String, Value), String> {
    let (key, value) = text.split_once('=').ok_or("KEY=VALUE expected")?;
    if !is_ours(key) {
        return Err(format!("{key:?} begins with neither kv_h2o_ nor kv_lossless_"));
    }
    Ok((key.into(), serde_json::from_str(value).unwrap_or_else(|_| value.into())))
}

fn is_ours(key: &str) -> bool {
    key.starts_with("kv_h2o_") || key.starts_with("kv_lossless_")
}

/// The keys of a session for a dump.
pub struct SessionKeys {
    /// As given, and smaller zones for a short dump.
    pub keys: Keys,
    /// The rules of an evicting layer with these keys.
    pub eviction: EvictionRules,
    /// The rules of a stored layer with these keys.
    pub lossless: LosslessRules,
    /// Unknown keys.
    pub warnings: Vec<String>,
    /// Keys that are smaller than the session's defaults since the dump is short, and their values.
    pub shrunk: Vec<(&'static str, usize)>,
}

impl SessionKeys {
    /// Reads a host's config; `given` wins over it. `tokens` is the length of the longest layer.
    pub fn read(config: Option<&Path>, given: &[(String, Value)], tokens: usize) -> Result<Self, Failure> {
        let mut keys = match config {
            Some(path) => read_config(path)?,
            None => Keys::new(),
        };
        keys.extend(given.iter().cloned());
        // The errors of the keys as given name them.
        let (_, warnings) = parse(&keys).map_err(|Failure(text)| Failure(format!("--config, --set: {text}")))?;
        // A short dump has smaller hot zones, since otherwise nothing could be evicted from it.
        let mut shrunk = Vec::new();
        for (key, default, most) in [
            ("kv_h2o_sink_tokens", 32, tokens / 16),
            ("kv_h2o_recent_tokens", 256, tokens / 8),
            ("kv_lossless_hot_recent_tokens", 256, tokens / 8),
        ] {
            if most < default && !keys.contains_key(key) {
                keys.insert(key.into(), most.into());
                shrunk.push((key, most));
            }
        }
        let mut on = keys.clone();
        on.entry("kv_h2o_policy").or_insert("mass".into());
        for key in ["kv_h2o_enable", "kv_lossless_enable", "kv_lossless_runtime_enable"] {
            on.insert(key.into(), true.into());
        }
        on.insert("kv_lossless_codec".into(), "gear_delta".into());
        on.insert("kv_lossless_scope".into(), "front_n".into());
        let (config, _) = parse(&on)?;
        let (Some(eviction), Some(lossless)) = (config.eviction, config.lossless) else {
            return Err(Failure("a bug in mnnkv, please report it: the config is off".into()));
        };
        let warnings = warnings.into_iter().filter(|warning| warning.contains("is not a key")).collect();
        Ok(SessionKeys { keys, eviction, lossless, warnings, shrunk })
    }
}

fn parse(keys: &Keys) -> Result<(Config, Vec<String>), Failure> {
    let text = Value::Object(keys.clone()).to_string();
    Config::parse(text.as_bytes(), b"", MOST_LAYERS).map_err(|e| Failure(e.to_string()))
}

fn read_config(path: &Path) -> Result<Keys, Failure> {
    let text = input::bytes(path, MAX_CONFIG)?;
    let keys: Keys = serde_json::from_slice(&text).map_err(|e| Failure(format!("{}: {e}", path.display())))?;
    Ok(keys.into_iter().filter(|(key, _)| is_ours(key)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_say_what_is_wrong() {
        assert_eq!(assignment("kv_h2o_sink_tokens=4").unwrap().1, 4);
        assert_eq!(assignment("kv_h2o_policy=mass").unwrap().1, "mass");
        assert!(assignment("layers=4").is_err() && assignment("kv_h2o_enable").is_err());
    }

    #[test]
    fn a_short_dump_gets_smaller_zones_unless_they_are_given() {
        let keys = |given: &[(String, Value)], tokens| SessionKeys::read(None, given, tokens).unwrap();
        let short = keys(&[], 1088);
        assert_eq!((short.eviction.sink_tokens, short.eviction.recent_tokens, short.shrunk.len()), (32, 136, 2));
        let long = keys(&[], 4096);
        assert_eq!((long.eviction.sink_tokens, long.eviction.recent_tokens, long.shrunk.len()), (32, 256, 0));
        let given = keys(&[("kv_h2o_recent_tokens".into(), 300.into())], 1088);
        assert_eq!((given.eviction.recent_tokens, given.shrunk.len()), (300, 1));
        let wrong = SessionKeys::read(None, &[("kv_h2o_sink_tokens".into(), "many".into())], 1088);
        assert!(wrong.is_err_and(|e| e.0.contains("kv_h2o_sink_tokens")));
    }
}
