//! JSON of model files, read strictly and without losing what a checker must see: repeated keys, and where it broke.

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// A JSON value. Objects keep every key in the order of the text, also those that come twice; lists are only checked,
/// because no document here needs one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Int(i64),
    /// Any number that is no `i64`.
    Number(f64),
    Text(String),
    List,
    Object(Vec<(String, Json)>),
}

impl Json {
    /// The whole document, or a sentence with line and column.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Json, String> {
        serde_json::from_slice(bytes).map_err(|e| e.to_string())
    }

    /// The value of a key of an object; the last one where there are several, as JSON parsers in use have it.
    pub(crate) fn get(&self, key: &str) -> Option<&Json> {
        match self {
            Json::Object(fields) => fields.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Json::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A number that counts something.
    pub(crate) fn count(&self) -> Option<u64> {
        match self {
            Json::Int(value) => u64::try_from(*value).ok(),
            _ => None,
        }
    }

    /// What it is, for error texts.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Json::Null => "null",
            Json::Bool(_) => "a truth value",
            Json::Int(_) | Json::Number(_) => "a number",
            Json::Text(_) => "a string",
            Json::List => "a list",
            Json::Object(_) => "an object",
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Values)
    }
}

struct Values;

impl<'de> Visitor<'de> for Values {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(i64::try_from(value).map_or(Json::Number(value as f64), Json::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Number(value))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Json::List)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.try_reserve(1).map_err(|_| A::Error::custom("no memory for the object"))?;
            fields.push(field);
        }
        Ok(Json::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_keys_are_kept_and_the_last_one_counts() {
        let json = Json::parse(br#"{"a": 1, "b": {"c": [1, {"d": 2}]}, "a": "two"}"#).unwrap();
        let Json::Object(fields) = &json else { panic!("{json:?}") };
        assert_eq!(fields.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "b", "a"]);
        assert_eq!(json.get("a").and_then(Json::text), Some("two"));
        assert_eq!(json.get("b").and_then(|b| b.get("c")), Some(&Json::List));
    }

    #[test]
    fn what_is_no_json_is_refused_with_line_and_column() {
        for (text, place) in [
            ("{\"a\": 1,\n}", "line 2 column 1"),
            ("{\"a\": 1, # one\n\"b\": 2}", "line 1 column 10"),
            ("{\"a\"", "line 1 column 4"),
            ("{} x", "line 1 column 4"),
        ] {
            let error = Json::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(place), "{text}: {error}");
        }
        assert!(Json::parse("[".repeat(100_000).as_bytes()).is_err());
    }
}
