//! JSON text. The core reads JSON and writes none.

use mnnkv::status::Result;
use mnnkv::sys::memory;
use std::fmt;

/// Writes one value as text.
pub struct Writer {
    text: String,
    /// Two blanks a level, a line for each field and entry.
    indented: bool,
    depth: usize,
    /// Whether the open list or object has an entry.
    begun: bool,
}

/// A value that can be written.
pub trait ToJson {
    fn write(&self, to: &mut Writer) -> Result<()>;
}

impl Writer {
    /// The text that `body` writes, without blanks.
    pub fn compact(body: impl FnOnce(&mut Writer) -> Result<()>) -> Result<String> {
        Writer::text(false, body)
    }

    /// The text that `body` writes, in lines.
    pub fn indented(body: impl FnOnce(&mut Writer) -> Result<()>) -> Result<String> {
        Writer::text(true, body)
    }

    fn text(indented: bool, body: impl FnOnce(&mut Writer) -> Result<()>) -> Result<String> {
        let mut writer = Writer { text: String::new(), indented, depth: 0, begun: false };
        body(&mut writer)?;
        Ok(writer.text)
    }

    /// Writes an object, whose fields `body` writes.
    pub fn object(&mut self, body: impl FnOnce(&mut Writer) -> Result<()>) -> Result<()> {
        self.between('{', '}', body)
    }

    /// Writes a list with one entry of `each` for every item.
    pub fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut each: impl FnMut(&mut Writer, T) -> Result<()>,
    ) -> Result<()> {
        self.between('[', ']', |writer| {
            items.into_iter().try_for_each(|item| {
                writer.item()?;
                each(writer, item)
            })
        })
    }

    /// Writes the key of a field; its value comes next.
    pub fn key(&mut self, key: &str) -> Result<&mut Writer> {
        self.item()?;
        key.write(self)?;
        self.put(format_args!("{}", if self.indented { ": " } else { ":" }))?;
        Ok(self)
    }

    /// Writes a field.
    pub fn field(&mut self, key: &str, value: impl ToJson) -> Result<()> {
        value.write(self.key(key)?)
    }

    fn between(&mut self, open: char, close: char, body: impl FnOnce(&mut Writer) -> Result<()>) -> Result<()> {
        self.put(format_args!("{open}"))?;
        self.depth += 1;
        self.begun = false;
        body(self)?;
        self.depth -= 1;
        if self.begun {
            self.line()?;
        }
        self.begun = true;
        self.put(format_args!("{close}"))
    }

    fn item(&mut self) -> Result<()> {
        if self.begun {
            self.put(format_args!(","))?;
        }
        self.begun = true;
        self.line()
    }

    fn line(&mut self) -> Result<()> {
        match self.indented {
            true => self.put(format_args!("\n{:1$}", "", 2 * self.depth)),
            false => Ok(()),
        }
    }

    fn put(&mut self, text: fmt::Arguments<'_>) -> Result<()> {
        memory::append(&mut self.text, text)
    }
}

impl ToJson for str {
    fn write(&self, to: &mut Writer) -> Result<()> {
        to.put(format_args!("\""))?;
        let mut rest = self;
        while let Some(at) = rest.find(|c| matches!(c, '"' | '\\' | '\0'..' ')) {
            to.put(format_args!("{}", &rest[..at]))?;
            match rest.as_bytes()[at] {
                b'\n' => to.put(format_args!("\\n"))?,
                b'\r' => to.put(format_args!("\\r"))?,
                b'\t' => to.put(format_args!("\\t"))?,
                mark @ (b'"' | b'\\') => to.put(format_args!("\\{}", char::from(mark)))?,
                control => to.put(format_args!("\\u{control:04x}"))?,
            }
            rest = &rest[at + 1..];
        }
        to.put(format_args!("{rest}\""))
    }
}

impl ToJson for String {
    fn write(&self, to: &mut Writer) -> Result<()> {
        self.as_str().write(to)
    }
}

impl ToJson for bool {
    fn write(&self, to: &mut Writer) -> Result<()> {
        to.put(format_args!("{self}"))
    }
}

impl ToJson for u64 {
    fn write(&self, to: &mut Writer) -> Result<()> {
        to.put(format_args!("{self}"))
    }
}

impl ToJson for u32 {
    fn write(&self, to: &mut Writer) -> Result<()> {
        u64::from(*self).write(to)
    }
}

impl ToJson for usize {
    fn write(&self, to: &mut Writer) -> Result<()> {
        (*self as u64).write(to)
    }
}

/// JSON has no infinities and no NaN: they are null.
impl ToJson for f64 {
    fn write(&self, to: &mut Writer) -> Result<()> {
        match self.is_finite() {
            true => to.put(format_args!("{self:?}")),
            false => to.put(format_args!("null")),
        }
    }
}

impl<T: ToJson> ToJson for Option<T> {
    fn write(&self, to: &mut Writer) -> Result<()> {
        match self {
            Some(value) => value.write(to),
            None => to.put(format_args!("null")),
        }
    }
}

impl<T: ToJson> ToJson for [T] {
    fn write(&self, to: &mut Writer) -> Result<()> {
        to.list(self, |to, item| item.write(to))
    }
}

impl<T: ToJson + ?Sized> ToJson for &T {
    fn write(&self, to: &mut Writer) -> Result<()> {
        (**self).write(to)
    }
}

#[cfg(test)]
#[path = "../../tests/common/any_json.rs"]
mod any_json;

#[cfg(test)]
mod tests {
    use super::any_json::values;
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    /// Writes a value of the other library with ours.
    fn write(value: &Value, to: &mut Writer) -> Result<()> {
        match value {
            Value::Null => None::<u64>.write(to),
            Value::Bool(value) => value.write(to),
            Value::Number(number) => match (number.as_u64(), number.as_f64()) {
                (Some(value), _) => value.write(to),
                (_, value) => value.write(to),
            },
            Value::String(text) => text.write(to),
            Value::Array(values) => to.list(values, |to, value| write(value, to)),
            Value::Object(map) => to.object(|to| map.iter().try_for_each(|(key, value)| write(value, to.key(key)?))),
        }
    }

    /// The value with floats for integers below 0, which the library never writes.
    fn written(value: Value) -> Value {
        match value {
            Value::Number(number) if number.as_u64().is_none() => number.as_f64().into(),
            Value::Array(values) => values.into_iter().map(written).collect(),
            Value::Object(map) => map.into_iter().map(|(key, value)| (key, written(value))).collect(),
            other => other,
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_what_the_other_reader_reads(value in values().prop_map(written)) {
            let compact = Writer::compact(|to| write(&value, to)).unwrap();
            let indented = Writer::indented(|to| write(&value, to)).unwrap();
            for text in [&compact, &indented] {
                prop_assert_eq!(serde_json::from_str::<Value>(text).unwrap(), value.clone(), "{}", text);
            }
            prop_assert_eq!(indented.lines().count(), format!("{value:#}").lines().count());
        }
    }
}
