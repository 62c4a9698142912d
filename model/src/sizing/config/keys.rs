//! Typed values of a config by key. Errors name the key and its value.

use super::super::Notes;
use mnnkv::json::{Json, Number, Short};
use mnnkv::status::{Result, bail};
use mnnkv::sys::memory;
use std::fmt;

/// An object of the config and the path of keys to it.
pub(in super::super) struct Keys<'a> {
    object: &'a Json<'a>,
    prefix: String,
}

/// A key with its path from the top of the config.
#[derive(Clone, Copy)]
pub(in super::super) struct Path<'a> {
    prefix: &'a str,
    key: &'a str,
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Some keys are the config's own.
        write!(f, "{}{}", self.prefix, Short(self.key))
    }
}

impl<'a> Keys<'a> {
    pub fn top(object: &'a Json<'a>) -> Self {
        Keys { object, prefix: String::new() }
    }

    /// Keys whose paths begin with the name of their file.
    pub fn of_file(object: &'a Json<'a>, name: &str) -> Result<Self> {
        Ok(Keys { object, prefix: memory::format(format_args!("{name}: "))? })
    }

    pub fn is_nested(&self) -> bool {
        !self.prefix.is_empty()
    }

    /// The path of the key from the top of the config.
    pub fn path<'b>(&'b self, key: &'b str) -> Path<'b> {
        Path { prefix: &self.prefix, key }
    }

    /// Whether the key exists, null included.
    pub fn has(&self, key: &str) -> bool {
        self.object.contains_key(key)
    }

    /// All keys and values in their order, also those that come twice.
    pub fn fields(&self) -> impl Iterator<Item = (&'a str, &'a Json<'a>)> + use<'a> {
        let fields: &'a [_] = match self.object {
            Json::Object(fields) => fields,
            _ => &[],
        };
        fields.iter().map(|(key, value)| (key.as_ref(), value))
    }

    /// The value; null counts as absent.
    pub fn get(&self, key: &str) -> Option<&'a Json<'a>> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    fn wrong<T>(&self, key: &str, found: &Json, expected: impl fmt::Display) -> Result<T> {
        bail!(InvalidArgument, "{} is {found}; {expected} expected", self.path(key))
    }

    /// The object of a key.
    pub fn inner(&self, key: &str) -> Result<Option<Keys<'a>>> {
        self.get(key).map(|value| self.within(key, value)).transpose()
    }

    /// The object that is the value of a key.
    pub fn within(&self, key: &str, value: &'a Json<'a>) -> Result<Keys<'a>> {
        match value {
            object @ Json::Object(_) => {
                Ok(Keys { object, prefix: memory::format(format_args!("{}.", self.path(key)))? })
            }
            other => self.wrong(key, other, "an object"),
        }
    }

    fn whole(&self, key: &str, least: u32, most: u32) -> Result<Option<u32>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.number().and_then(Number::whole).and_then(|number| u32::try_from(number).ok());
        match number.filter(|number| (least..=most).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => self.wrong(key, value, format_args!("a whole number from {least} to {most}")),
        }
    }

    /// An integer from 1 to `most` with several names; the present ones must agree.
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

    /// An integer from 0 on.
    pub fn count(&self, key: &str) -> Result<Option<u32>> {
        self.whole(key, 0, u32::MAX)
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(Json::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => self.wrong(key, other, "true or false"),
        }
    }

    pub fn name(&self, key: &str) -> Result<Option<&'a str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Json::Text(name)) => Ok(Some(name)),
            Some(other) => self.wrong(key, other, "a string"),
        }
    }

    /// A list; an empty one counts as absent.
    pub fn list(&self, key: &str) -> Result<Option<&'a [Json<'a>]>> {
        match self.get(key) {
            None => Ok(None),
            Some(Json::List(values)) => Ok(Some(values.as_slice()).filter(|values| !values.is_empty())),
            Some(other) => self.wrong(key, other, "a list"),
        }
    }

    /// A list with one entry per layer. Entries beyond them are of layers for multi-token prediction.
    pub fn list_per_layer(&self, key: &str, layers: u32, notes: &mut Notes) -> Result<Option<&'a [Json<'a>]>> {
        let Some(list) = self.list(key)? else { return Ok(None) };
        let (key, entries) = (self.path(key), list.len());
        match list.get(..layers as usize) {
            Some(list) if list.len() < entries => notes.add(format_args!(
                "{key} has {entries} entries and the model {layers} layers: the first {layers} are taken"
            ))?,
            Some(_) => {}
            None => bail!(
                InvalidArgument,
                "{key} has {entries} entries and the model {layers} layers; one entry per layer expected"
            ),
        }
        Ok(list.get(..layers as usize))
    }

    /// The layers in a list.
    pub fn layer_numbers(&self, key: &str, layers: u32) -> Result<Option<Vec<bool>>> {
        let Some(list) = self.list(key)? else { return Ok(None) };
        let mut named = memory::filled(false, layers as usize)?;
        for (at, value) in list.iter().enumerate() {
            match value.count().and_then(|number| named.get_mut(usize::try_from(number).ok()?)) {
                Some(name) => *name = true,
                None => bail!(
                    InvalidArgument,
                    "{}[{at}] is {value}; a layer from 0 to {} expected",
                    self.path(key),
                    layers - 1
                ),
            }
        }
        Ok(Some(named))
    }
}
