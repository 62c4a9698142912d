//! Values of a config by key: each has one type, and an error says which key had what.

use crate::status::{Result, bail};
use serde_json::{Map, Value};

/// An object of the config and the keys that lead to it.
#[derive(Clone)]
pub(super) struct Keys<'a> {
    object: &'a Map<String, Value>,
    prefix: String,
}

impl<'a> Keys<'a> {
    pub fn top(object: &'a Map<String, Value>) -> Self {
        Keys { object, prefix: String::new() }
    }

    pub fn is_nested(&self) -> bool {
        !self.prefix.is_empty()
    }

    /// The key as it is found from the top of the config.
    pub fn path(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Whether the key is there, null included.
    pub fn has(&self, key: &str) -> bool {
        self.object.contains_key(key)
    }

    /// The value, where it says something: null is as good as absent.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    fn wrong<T>(&self, key: &str, found: &Value, expected: &str) -> Result<T> {
        bail!(InvalidArgument, "{} is {}; {expected} expected", self.path(key), describe(found))
    }

    /// The object behind a key.
    pub fn inner(&self, key: &str) -> Result<Option<Keys<'a>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(Keys { object, prefix: format!("{}{key}.", self.prefix) })),
            Some(other) => self.wrong(key, other, "an object"),
        }
    }

    fn whole(&self, key: &str, least: u32, most: u32) -> Result<Option<u32>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_u64().and_then(|number| u32::try_from(number).ok()).filter(|n| (least..=most).contains(n)) {
            Some(number) => Ok(Some(number)),
            None => self.wrong(key, value, &format!("a whole number from {least} to {most}")),
        }
    }

    /// A whole number from 1 to `most` that goes by several names; those that are there must agree.
    pub fn number(&self, names: &[&str], most: u32) -> Result<Option<u32>> {
        let mut found: Option<(&str, u32)> = None;
        for name in names {
            match (self.whole(name, 1, most)?, found) {
                (Some(number), None) => found = Some((name, number)),
                (Some(number), Some((first, other))) if number != other => bail!(
                    InvalidArgument,
                    "{} is {other} and {} is {number}; the same number expected, they mean one thing",
                    self.path(first),
                    self.path(name)
                ),
                _ => {}
            }
        }
        Ok(found.map(|(_, number)| number))
    }

    /// A whole number from 0 on.
    pub fn count(&self, key: &str) -> Result<Option<u32>> {
        self.whole(key, 0, u32::MAX)
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => self.wrong(key, other, "true or false"),
        }
    }

    pub fn name(&self, key: &str) -> Result<Option<&'a str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(name)) => Ok(Some(name)),
            Some(other) => self.wrong(key, other, "a string"),
        }
    }

    /// A list; one that is empty says nothing.
    pub fn list(&self, key: &str) -> Result<Option<&'a [Value]>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(values)) => Ok(Some(values.as_slice()).filter(|values| !values.is_empty())),
            Some(other) => self.wrong(key, other, "a list"),
        }
    }

    /// A list with an entry for each layer.
    pub fn list_per_layer(&self, key: &str, layers: u32) -> Result<Option<&'a [Value]>> {
        let list = self.list(key)?;
        if let Some(list) = list.filter(|list| list.len() != layers as usize) {
            bail!(
                InvalidArgument,
                "{} has {} entries and the model {layers} layers; one entry per layer expected",
                self.path(key),
                list.len()
            );
        }
        Ok(list)
    }

    /// The layers that a list names.
    pub fn layer_numbers(&self, key: &str, layers: u32) -> Result<Option<Vec<bool>>> {
        let Some(list) = self.list(key)? else { return Ok(None) };
        let mut named = vec![false; layers as usize];
        for (at, value) in list.iter().enumerate() {
            match value.as_u64().and_then(|number| named.get_mut(usize::try_from(number).ok()?)) {
                Some(name) => *name = true,
                None => {
                    return self.wrong(&format!("{key}[{at}]"), value, &format!("a layer from 0 to {}", layers - 1));
                }
            }
        }
        Ok(Some(named))
    }
}

/// A value in an error: short ones as they are, others by what they are.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(values) => format!("a list of {}", values.len()),
        Value::Object(values) => format!("an object of {}", values.len()),
    }
}

pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", shorten(text))
}

/// The beginning of a config's text for a message, without control characters.
pub(super) fn shorten(text: &str) -> String {
    const CHARS: usize = 60;
    let end = text.char_indices().nth(CHARS).map_or(text.len(), |(at, _)| at);
    let more = if end < text.len() { "..." } else { "" };
    format!("{}{more}", text[..end].escape_debug())
}
