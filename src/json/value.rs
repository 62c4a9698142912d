//! A document as a tree.

use super::Reader;
use crate::status::Result;
use crate::sys::memory;
use std::borrow::Cow;
use std::fmt;

/// A JSON value. Objects keep every key in the order of the text, also those that come twice.
#[derive(Debug, PartialEq)]
pub enum Json<'a> {
    Null,
    Bool(bool),
    Number(Number),
    Text(Cow<'a, str>),
    List(Vec<Json<'a>>),
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
}

/// A number of a document.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Unsigned(u64),
    /// Below 0.
    Negative(i64),
    /// Any number that is neither, rounded to nearest; finite except in [`Json::python`].
    Float(f64),
}

impl<'a> Json<'a> {
    /// Reads a whole document. CORRUPT: a sentence with line and column.
    pub fn parse(text: &'a [u8]) -> Result<Json<'a>> {
        Json::document(Reader::new(text), true)
    }

    /// As [`Json::parse`]; numbers may be NaN, Infinity and -Infinity, as Python writes them.
    pub fn python(text: &'a [u8]) -> Result<Json<'a>> {
        Json::document(Reader::python(text), true)
    }

    /// As [`Json::parse`]; lists are checked, and empty.
    pub fn without_lists(text: &'a [u8]) -> Result<Json<'a>> {
        Json::document(Reader::new(text), false)
    }

    fn document(mut reader: Reader<'a>, lists: bool) -> Result<Json<'a>> {
        let value = Json::read(&mut reader, lists)?;
        reader.end()?;
        Ok(value)
    }

    fn read(reader: &mut Reader<'a>, lists: bool) -> Result<Json<'a>> {
        Ok(match reader.peek()? {
            b'{' => {
                let mut fields = Vec::new();
                reader.object(|reader, key| memory::push(&mut fields, (key, Json::read(reader, lists)?)))?;
                Json::Object(fields)
            }
            b'[' => {
                let mut values = Vec::new();
                reader.list(|reader| match lists {
                    true => memory::push(&mut values, Json::read(reader, lists)?),
                    false => reader.skip(),
                })?;
                Json::List(values)
            }
            b'"' => Json::Text(reader.text()?),
            b't' | b'f' => Json::Bool(reader.flag()?),
            mark if reader.begins_number(mark) => Json::Number(reader.number()?),
            b'n' => {
                reader.null()?;
                Json::Null
            }
            _ => return Err(reader.no_value()),
        })
    }

    /// The value of a key of an object; the last of several, as common JSON parsers return.
    pub fn get(&self, key: &str) -> Option<&Json<'a>> {
        match self {
            Json::Object(fields) => fields.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    /// Whether an object has a key.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// The keys of an object, sorted, each once.
    pub fn keys(&self) -> Result<Vec<&str>> {
        let Json::Object(fields) = self else { return Ok(Vec::new()) };
        let mut keys = memory::collect(fields.iter().map(|(key, _)| key.as_ref()))?;
        keys.sort_unstable();
        keys.dedup();
        Ok(keys)
    }

    pub fn flag(&self) -> Option<bool> {
        match self {
            Json::Bool(value) => Some(*value),
            _ => None,
        }
    }

    pub fn number(&self) -> Option<Number> {
        match self {
            Json::Number(number) => Some(*number),
            _ => None,
        }
    }

    pub fn text(&self) -> Option<&str> {
        match self {
            Json::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A number of 0 or more that fits 64 bits.
    pub fn count(&self) -> Option<u64> {
        match self {
            Json::Number(Number::Unsigned(value)) => Some(*value),
            _ => None,
        }
    }

    pub fn is_null(&self) -> bool {
        matches!(self, Json::Null)
    }

    /// The type, for error texts.
    pub fn kind(&self) -> &'static str {
        match self {
            Json::Null => "null",
            Json::Bool(_) => "a truth value",
            Json::Number(_) => "a number",
            Json::Text(_) => "a string",
            Json::List(_) => "a list",
            Json::Object(_) => "an object",
        }
    }
}

impl Number {
    /// The number to the nearest f64.
    pub fn float(self) -> f64 {
        match self {
            Number::Unsigned(value) => value as f64,
            Number::Negative(value) => value as f64,
            Number::Float(value) => value,
        }
    }

    /// The number, where it is whole; beyond 127 bits the nearest that fits.
    pub fn whole(self) -> Option<i128> {
        match self {
            Number::Unsigned(value) => Some(value.into()),
            Number::Negative(value) => Some(value.into()),
            Number::Float(value) => (value.fract() == 0.0).then_some(value as i128),
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Unsigned(value) => value.fmt(f),
            Number::Negative(value) => value.fmt(f),
            Number::Float(value) if value.is_infinite() => {
                f.write_str(if *value < 0.0 { "-Infinity" } else { "Infinity" })
            }
            Number::Float(value) => fmt::Debug::fmt(value, f),
        }
    }
}

/// A number with a fraction in few digits: as it is, or with an exponent where `Display` has up to 300 digits.
pub struct Brief<T>(pub T);

impl<T: Copy + Into<f64> + fmt::Display + fmt::LowerExp> fmt::Display for Brief<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size: f64 = self.0.into().abs();
        match size.is_finite() && size != 0.0 && !(1e-5..1e16).contains(&size) {
            true => fmt::LowerExp::fmt(&self.0, f),
            false => fmt::Display::fmt(&self.0, f),
        }
    }
}

/// A value in a message: short ones as they are, the beginning of text without control characters, others by their type.
impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Json::Null => f.write_str("null"),
            Json::Bool(value) => value.fmt(f),
            Json::Number(value) => value.fmt(f),
            Json::Text(text) => Quoted(text).fmt(f),
            Json::List(values) => write!(f, "a list of {}", values.len()),
            Json::Object(values) => write!(f, "an object of {}", values.len()),
        }
    }
}

/// Text as a string of a document.
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        let mut rest = self.0;
        while let Some(at) = rest.find(|c| matches!(c, '"' | '\\' | '\0'..' ')) {
            write!(f, "{}\\u{:04x}", &rest[..at], rest.as_bytes()[at])?;
            rest = &rest[at + 1..];
        }
        write!(f, "{rest}\"")
    }
}

/// Text of a document in quotes, as [`Short`].
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", Short(self.0))
    }
}

/// The beginning of a document's text for a message, without control characters.
pub struct Short<'a>(pub &'a str);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const CHARS: usize = 60;
        let end = self.0.char_indices().nth(CHARS).map_or(self.0.len(), |(at, _)| at);
        let more = if end < self.0.len() { "..." } else { "" };
        write!(f, "{}{more}", self.0[..end].escape_debug())
    }
}
