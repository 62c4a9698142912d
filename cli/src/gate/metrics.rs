//! The metrics of a session as JSON: `mnnkv_session_report`, alone or as `kv_metrics` of a host's config.

use super::cells::{Cell, Column, Place, Row};
use super::tables::scaled;
use crate::input;
use mnnkv::json::Brief;
use serde::Deserialize;
use serde_json::{Map, Value};

type Object = Map<String, Value>;

/// The metrics inside an object, with their path; `None` if it has none.
pub fn find(object: &Object) -> Option<(&'static str, &Value)> {
    if let Some(metrics) = object.get("kv_metrics") {
        return Some(("kv_metrics", metrics));
    }
    object
        .get("metrics")
        .filter(|metrics| metrics.as_object().is_some_and(has_metrics))
        .map(|metrics| ("metrics", metrics))
}

/// Whether an object has metrics as its own members.
pub fn has_metrics(object: &Object) -> bool {
    let layers = object.get("layers").and_then(Value::as_array);
    let layer = |v: &Value| v.get("layer").is_some();
    object.keys().any(|key| key.starts_with("h2o_")) || layers.is_some_and(|l| l.iter().all(layer))
}

/// The number of a member; `None` if it is absent or null.
pub fn number(object: &Object, key: &str, place: &Place) -> Result<Option<f64>, String> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64() {
            Some(number) if number.is_finite() => Ok(Some(number)),
            _ => Err(format!("{place}.{key} is {}; a number expected", shown(value))),
        },
    }
}

/// The beginning of a value.
pub fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() > 40 { text.chars().take(40).chain("...".chars()).collect() } else { text }
}

/// The row of one run. `host` is the object around the metrics.
pub fn row(host: &Object, metrics: &Object, place: Place) -> Result<Row, String> {
    let mut row = Row::new(place.clone(), String::new());
    Column::all().for_each(|column| row.set(column, Cell::Unmeasured));
    for (name, _) in metrics {
        let Some((column, scale)) = Column::find(name) else { continue };
        if let Some(number) = number(metrics, name, &place)? {
            if number < 0.0 && column != Column::SavedBytes {
                return Err(format!("{place}.{name} is {}; at least 0 expected", Brief(number)));
            }
            row.set(column, scaled(Cell::Number(number), scale));
        }
    }
    row.decode = match (number(host, "decode_tps", &place)?, decode_speed(metrics, &place)?) {
        (Some(speed), _) | (None, Some(speed)) => Cell::Number(speed),
        (None, None) => Cell::Absent,
    };
    row.joint = joint(metrics, &place)?;
    Ok(row)
}

/// Tokens per second of decoding, of metrics that have tokens and time.
pub fn decode_speed(metrics: &Object, place: &Place) -> Result<Option<f64>, String> {
    let (tokens, time) = (number(metrics, "decode_tokens", place)?, number(metrics, "decode_us", place)?);
    Ok(tokens.zip(time).map(|(tokens, us)| if us > 0.0 { tokens / (us / 1e6) } else { 0.0 }))
}

/// A layer of the metrics.
#[derive(Deserialize)]
struct Layer {
    h2o_logical_tokens: Option<f64>,
    h2o_physical_tokens: Option<f64>,
    h2o_lossless_ratio: Option<f64>,
}

/// Raw over kept bytes of all layers. Layers have rows of equal length.
fn joint(metrics: &Object, place: &Place) -> Result<Option<f64>, String> {
    let Some(layers) = metrics.get("layers") else { return Ok(None) };
    let layers: Vec<Layer> = input::typed(layers).map_err(|e| format!("{place}.layers: {e}"))?;
    let (mut raw, mut kept) = (0.0, 0.0);
    for (i, layer) in layers.iter().enumerate() {
        let Some(logical) = layer.h2o_logical_tokens else { return Ok(None) };
        let (physical, lossless) =
            (layer.h2o_physical_tokens.unwrap_or(logical), layer.h2o_lossless_ratio.unwrap_or(1.0));
        if logical < 0.0 || physical < 0.0 {
            return Err(format!(
                "{place}.layers[{i}] has {logical} logical and {physical} physical tokens; 0 or more expected"
            ));
        }
        if lossless <= 0.0 {
            return Err(format!("{place}.layers[{i}].h2o_lossless_ratio is {lossless}; above 0 expected"));
        }
        raw += logical;
        kept += physical / lossless;
    }
    Ok((kept > 0.0).then(|| raw / kept))
}
