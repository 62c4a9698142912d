//! A document, piece by piece.

use super::Number;
use crate::status::{Result, Status};
use crate::sys::memory;
use std::borrow::Cow;
use std::fmt;

/// The lists and objects that may lie within each other.
pub(super) const MAX_DEPTH: u32 = 127;

/// Reads the values of a document in their order.
///
/// Errors are CORRUPT with line and column, or OUT_OF_MEMORY; after one the reader is of no further use. Columns count
/// bytes, from 1.
pub struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    depth: u32,
    /// Whether NaN and Infinity are numbers.
    python: bool,
}

/// The text behind a byte order mark, which editors on Windows write.
pub fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

impl<'a> Reader<'a> {
    /// Reads a text, with a byte order mark before it or none.
    pub fn new(text: &'a [u8]) -> Self {
        Reader { text: without_mark(text), at: 0, depth: 0, python: false }
    }

    /// As [`Reader::new`]; NaN, Infinity and -Infinity are numbers, as Python writes them.
    pub fn python(text: &'a [u8]) -> Self {
        Reader { python: true, ..Reader::new(text) }
    }

    /// The first byte of the next value, which tells its type.
    pub fn peek(&mut self) -> Result<u8> {
        match self.next_mark() {
            Some(byte) => Ok(byte),
            None => Err(self.fault_ahead("the text ends where a value is expected")),
        }
    }

    /// Fails unless blanks alone are left.
    pub fn end(&mut self) -> Result<()> {
        match self.next_mark() {
            None => Ok(()),
            Some(_) => Err(self.fault_ahead("something follows the value")),
        }
    }

    /// Reads an object: `each` reads the value of every key.
    pub fn object(&mut self, mut each: impl FnMut(&mut Self, Cow<'a, str>) -> Result<()>) -> Result<()> {
        const END: &str = "the text ends within an object";
        self.open(b'{', "an object is expected")?;
        let mut first = true;
        loop {
            match self.next_mark() {
                Some(b'}') => break,
                Some(b',') if !first => {
                    self.at += 1;
                    match self.next_mark() {
                        Some(b'}') => return Err(self.fault_ahead("a comma follows the last field")),
                        None => return Err(self.fault_ahead(END)),
                        Some(_) => {}
                    }
                }
                Some(_) if first => {}
                Some(_) => return Err(self.fault_ahead("`,` or `}` is expected")),
                None => return Err(self.fault_ahead(END)),
            }
            first = false;
            if self.next_mark() != Some(b'"') {
                return Err(self.fault_ahead("a key is expected, which is a string"));
            }
            let key = self.text()?;
            match self.next_mark() {
                Some(b':') => self.at += 1,
                Some(_) => return Err(self.fault_ahead("`:` is expected")),
                None => return Err(self.fault_ahead(END)),
            }
            each(self, key)?;
        }
        self.close();
        Ok(())
    }

    /// Reads a list: `each` reads every entry.
    pub fn list(&mut self, mut each: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        const END: &str = "the text ends within a list";
        self.open(b'[', "a list is expected")?;
        let mut first = true;
        loop {
            match self.next_mark() {
                Some(b']') => break,
                Some(b',') if !first => {
                    self.at += 1;
                    if self.next_mark() == Some(b']') {
                        return Err(self.fault_ahead("a comma follows the last entry"));
                    }
                }
                Some(_) if first => {}
                Some(_) => return Err(self.fault_ahead("`,` or `]` is expected")),
                None => return Err(self.fault_ahead(END)),
            }
            first = false;
            each(self)?;
        }
        self.close();
        Ok(())
    }

    /// Reads a string, which is borrowed from the document where it has no escapes.
    pub fn text(&mut self) -> Result<Cow<'a, str>> {
        self.string(true)
    }

    /// Reads a number: integers as such where 64 bits hold them, others to the nearest f64.
    pub fn number(&mut self) -> Result<Number> {
        self.next_mark();
        let begin = self.at;
        let negative = self.eat(b'-');
        if self.python {
            let words = [(&b"NaN"[..], f64::NAN), (b"Infinity", f64::INFINITY)];
            if let Some((word, value)) = words.into_iter().find(|(word, _)| self.text[self.at..].starts_with(word)) {
                self.at += word.len();
                return Ok(Number::Float(if negative { -value } else { value }));
            }
        }
        match self.text.get(self.at) {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits(),
            // Skips the byte after the sign, as other readers count columns.
            Some(_) => {
                self.at += 1;
                return Err(self.fault("a digit is expected"));
            }
            None => return Err(self.fault("the text ends within a number")),
        }
        if self.text.get(self.at).is_some_and(u8::is_ascii_digit) {
            return Err(self.fault_ahead("a number begins with 0 and has more digits"));
        }
        let mut whole = true;
        if self.eat(b'.') {
            whole = false;
            match self.text.get(self.at) {
                Some(b'0'..=b'9') => self.digits(),
                Some(_) => return Err(self.fault_ahead("a digit is expected")),
                None => return Err(self.fault_ahead("the text ends within a number")),
            }
        }
        if self.eat(b'e') || self.eat(b'E') {
            whole = false;
            let _ = self.eat(b'+') || self.eat(b'-');
            match self.text.get(self.at) {
                Some(b'0'..=b'9') => self.digits(),
                Some(_) => {
                    self.at += 1;
                    return Err(self.fault("a digit is expected"));
                }
                None => return Err(self.fault("the text ends within a number")),
            }
        }
        let digits = std::str::from_utf8(&self.text[begin..self.at]).unwrap_or_default();
        if whole && negative {
            // Integers have no -0.
            if let Some(number) = digits.parse().ok().filter(|number| *number != 0) {
                return Ok(Number::Negative(number));
            }
        } else if whole && let Ok(number) = digits.parse() {
            return Ok(Number::Unsigned(number));
        }
        match digits.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Number::Float(number)),
            _ => Err(self.fault("a number is beyond the range of 64-bit floats")),
        }
    }

    /// Whether a value that begins so is a number.
    pub(super) fn begins_number(&self, mark: u8) -> bool {
        matches!(mark, b'-' | b'0'..=b'9') || self.python && matches!(mark, b'N' | b'I')
    }

    /// Reads `true` or `false`.
    pub fn flag(&mut self) -> Result<bool> {
        let flag = self.peek()? == b't';
        self.word(if flag { b"true" } else { b"false" })?;
        Ok(flag)
    }

    /// Reads `null`.
    pub fn null(&mut self) -> Result<()> {
        self.next_mark();
        self.word(b"null")
    }

    /// Reads any value and drops it.
    pub fn skip(&mut self) -> Result<()> {
        match self.peek()? {
            b'{' => self.object(|reader, _| reader.skip()),
            b'[' => self.list(Self::skip),
            b'"' => self.string(false).map(drop),
            b't' | b'f' => self.flag().map(drop),
            b'n' => self.null(),
            mark if self.begins_number(mark) => self.number().map(drop),
            _ => Err(self.no_value()),
        }
    }

    /// The error of a byte that begins no value.
    pub fn no_value(&self) -> crate::status::Error {
        if self.at == 0 && matches!(self.text, [0xff, 0xfe, ..] | [0xfe, 0xff, ..]) {
            return self.fault_ahead("the text is UTF-16, and UTF-8 is expected,");
        }
        self.fault_ahead("a value is expected")
    }

    /// An error at the byte before.
    pub fn fault(&self, what: impl fmt::Display) -> crate::status::Error {
        self.fault_at(self.at, &what)
    }

    /// An error at the next byte.
    fn fault_ahead(&self, what: &str) -> crate::status::Error {
        self.fault_at(self.text.len().min(self.at + 1), &what)
    }

    #[cold]
    fn fault_at(&self, at: usize, what: &dyn fmt::Display) -> crate::status::Error {
        let before = &self.text[..at];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        let column = before.iter().rev().take_while(|byte| **byte != b'\n').count();
        crate::status::Error::formatted(Status::Corrupt, format_args!("{what} at line {line} column {column}"))
    }

    /// Skips blanks. Returns the next byte.
    fn next_mark(&mut self) -> Option<u8> {
        let blanks = self.text[self.at..].iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
        self.at += blanks.count();
        self.text.get(self.at).copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.text.get(self.at) == Some(&byte);
        self.at += usize::from(found);
        found
    }

    fn digits(&mut self) {
        self.at += self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    }

    fn word(&mut self, word: &[u8]) -> Result<()> {
        for byte in word {
            match self.text.get(self.at) {
                Some(found) => {
                    self.at += 1;
                    if found != byte {
                        return Err(self.fault("true, false or null is expected"));
                    }
                }
                None => return Err(self.fault("the text ends within a word")),
            }
        }
        Ok(())
    }

    fn open(&mut self, mark: u8, expected: &str) -> Result<()> {
        if self.peek()? != mark {
            return Err(self.fault_ahead(expected));
        }
        if self.depth == MAX_DEPTH {
            return Err(self.fault_ahead("lists and objects lie too deep within each other"));
        }
        self.at += 1;
        self.depth += 1;
        Ok(())
    }

    fn close(&mut self) {
        self.at += 1;
        self.depth -= 1;
    }

    /// Reads a string; without `keep` it is checked, and empty.
    fn string(&mut self, keep: bool) -> Result<Cow<'a, str>> {
        if self.peek()? != b'"' {
            return Err(self.fault_ahead("a string is expected"));
        }
        self.at += 1;
        let mut text = Cow::Borrowed("");
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.iter().take_while(|byte| !matches!(byte, b'"' | b'\\' | 0..0x20)).count();
            self.at += plain;
            let mark = self.text.get(self.at).copied();
            self.at += usize::from(mark.is_some());
            // An escape is ASCII: it splits no character of the text around it.
            let Ok(piece) = std::str::from_utf8(&rest[..plain]) else {
                return Err(self.fault("a string is not UTF-8"));
            };
            match &mut text {
                _ if !keep => {}
                Cow::Borrowed("") => text = Cow::Borrowed(piece),
                _ => append(&mut text, piece)?,
            }
            match mark {
                Some(b'"') => return Ok(text),
                Some(b'\\') => {
                    let character = self.escape()?;
                    if keep {
                        append(&mut text, character.encode_utf8(&mut [0; 4]))?;
                    }
                }
                Some(_) => return Err(self.fault("a string has a control character, which must be escaped")),
                None => return Err(self.fault("the text ends within a string")),
            }
        }
    }

    /// The character of an escape whose backslash has been read.
    fn escape(&mut self) -> Result<char> {
        let Some(mark) = self.text.get(self.at) else {
            return Err(self.fault("the text ends within a string"));
        };
        self.at += 1;
        Ok(match mark {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.hex()?;
                let mut code = first;
                if matches!(first, 0xd800..0xdc00) && self.eat(b'\\') && self.eat(b'u') {
                    // A second half out of range makes a number that is no character.
                    let second = self.hex()?;
                    code = if matches!(second, 0xdc00..0xe000) {
                        0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00)
                    } else {
                        first
                    };
                }
                match char::from_u32(code) {
                    Some(character) => character,
                    None => return Err(self.fault("an escape is half of a surrogate pair")),
                }
            }
            _ => return Err(self.fault("a string has an unknown escape")),
        })
    }

    fn hex(&mut self) -> Result<u32> {
        let Some(digits) = self.text.get(self.at..).and_then(|rest| rest.first_chunk::<4>()) else {
            self.at = self.text.len();
            return Err(self.fault("the text ends within a string"));
        };
        self.at += digits.len();
        let mut code = 0;
        for digit in digits {
            match char::from(*digit).to_digit(16) {
                Some(digit) => code = code << 4 | digit,
                None => return Err(self.fault("an escape has no four hexadecimal digits")),
            }
        }
        Ok(code)
    }
}

/// Appends to text, which becomes one of its own.
fn append(text: &mut Cow<'_, str>, piece: &str) -> Result<()> {
    if let Cow::Borrowed(begin) = text {
        *text = Cow::Owned(memory::text(begin)?);
    }
    match text {
        Cow::Owned(text) => memory::append(text, format_args!("{piece}")),
        Cow::Borrowed(_) => Ok(()),
    }
}
