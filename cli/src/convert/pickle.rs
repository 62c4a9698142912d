//! Pickles of protocols 2 to 5, read without executing calls.
//!
//! A pickle is a program for a stack machine. This machine builds numbered values instead of objects. A value that is
//! used twice is one number in two places, so memory is linear in the operations. No function recurses, so nesting has
//! no limit. A call is stored as its callable and arguments.

use std::collections::HashMap;

/// Limit of operations; a checkpoint has about 30 for each tensor. Bounds the values, the stack and the memo.
const MAX_OPERATIONS: usize = 4 << 20;

/// Limit of a name.
const MAX_NAME: usize = 4096;

/// The number of a value.
pub type Id = u32;

/// A value. Texts are slices of the pickle.
#[derive(Debug)]
pub enum Value<'a> {
    /// A value without use for tensors: None, a set, or the result of an unknown operation.
    Other,
    Int(i64),
    Text(&'a str),
    List(Vec<Id>),
    Tuple(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// A module and a name in it.
    Global(&'a str, &'a str),
    /// A reference to an object outside of the pickle.
    Persistent(Id),
    /// A callable and its arguments.
    Call(Id, Id),
}

/// A pickle that was read.
pub struct Pickle<'a> {
    /// All values, in order of creation.
    values: Vec<Value<'a>>,
    /// The value of the whole.
    pub root: Id,
}

impl<'a> Pickle<'a> {
    /// Reads the pickle that `bytes` begins with.
    pub fn read(bytes: &'a [u8]) -> Result<Self, String> {
        let mut machine = Machine { bytes, ..Machine::default() };
        let root = machine.run().map_err(|problem| format!("byte {}: {problem}", machine.operation))?;
        Ok(Pickle { values: machine.values, root })
    }

    pub fn value(&self, id: Id) -> &Value<'a> {
        &self.values[id as usize]
    }

    /// A text within the limit of a name.
    pub fn name(&self, id: Id) -> Option<&'a str> {
        match self.value(id) {
            Value::Text(text) if text.len() <= MAX_NAME => Some(text),
            _ => None,
        }
    }

    pub fn tuple(&self, id: Id) -> Option<&[Id]> {
        match self.value(id) {
            Value::Tuple(items) => Some(items),
            _ => None,
        }
    }

    pub fn dict(&self, id: Id) -> Option<&[(Id, Id)]> {
        match self.value(id) {
            Value::Dict(entries) => Some(entries),
            _ => None,
        }
    }

    /// The value of a key in a dictionary. The last of equal keys counts, as in Python.
    pub fn entry(&self, dict: Id, key: &str) -> Option<Id> {
        let entries = self.dict(dict)?;
        entries.iter().rev().find(|(name, _)| self.name(*name) == Some(key)).map(|(_, value)| *value)
    }

    pub fn size(&self, id: Id) -> Option<usize> {
        match self.value(id) {
            Value::Int(n) => usize::try_from(*n).ok(),
            _ => None,
        }
    }
}

#[derive(Default)]
struct Machine<'a> {
    bytes: &'a [u8],
    /// The read position, and the start of the current operation.
    at: usize,
    operation: usize,
    spent: usize,
    values: Vec<Value<'a>>,
    stack: Vec<Id>,
    /// Heights of the stack at marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

impl<'a> Machine<'a> {
    fn run(&mut self) -> Result<Id, String> {
        loop {
            self.operation = self.at;
            self.spend(1)?;
            if let Some(root) = self.step()? {
                return Ok(root);
            }
        }
    }

    /// Executes one operation. The last one returns the root value.
    fn step(&mut self) -> Result<Option<Id>, String> {
        let code = self.take(1)?[0];
        match code {
            b'.' => return self.pop().map(Some),
            // Protocol and frame.
            0x80 => {
                let version = self.take(1)?[0];
                if version > 5 {
                    return Err(format!("the protocol is {version}; at most 5 expected"));
                }
            }
            0x95 => drop(self.take(8)?),

            b'(' => self.marks.push(self.stack.len()),
            b'0' if self.marks.last() == Some(&self.stack.len()) => drop(self.marks.pop()),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.since_mark()?),
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
            }

            // None, an empty set, true and false.
            b'N' | 0x8f | 0x88 | 0x89 => self.push(Value::Other),
            b'G' => {
                self.take(8)?;
                self.push(Value::Other);
            }
            b'J' => {
                let number = i32::from_le_bytes(self.array()?);
                self.push(Value::Int(number.into()));
            }
            b'K' | b'M' => {
                let number = self.length(if code == b'K' { 1 } else { 2 })?;
                self.push(Value::Int(number as i64));
            }
            0x8a | 0x8b => {
                let digits = self.counted(if code == 0x8a { 1 } else { 4 })?;
                self.push(integer(digits));
            }

            b'U' | 0x8c => self.text(1)?,
            b'T' | b'X' => self.text(4)?,
            0x8d => self.text(8)?,
            b'C' => self.skipped(1)?,
            b'B' => self.skipped(4)?,
            0x8e | 0x96 => self.skipped(8)?,

            b']' => self.push(Value::List(Vec::new())),
            b'}' => self.push(Value::Dict(Vec::new())),
            b')' => self.push(Value::Tuple(Vec::new())),
            0x91 => {
                self.since_mark()?;
                self.push(Value::Other);
            }
            b't' | 0x85..=0x87 => {
                let items = if code == b't' { self.since_mark()? } else { self.pop_many(usize::from(code - 0x84))? };
                self.push(Value::Tuple(items));
            }
            b'a' | b'e' | 0x90 => {
                let items = if code == b'a' { self.pop_many(1)? } else { self.since_mark()? };
                self.append(&items)?;
            }
            b's' | b'u' => {
                let items = if code == b's' { self.pop_many(2)? } else { self.since_mark()? };
                self.set(&items)?;
            }

            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.push(Value::Global(module, name));
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let global = match (&self.values[module as usize], &self.values[name as usize]) {
                    (Value::Text(module), Value::Text(name)) => Value::Global(module, name),
                    _ => return Err("the module or name of a global is not text".to_owned()),
                };
                self.push(global);
            }
            // REDUCE, NEWOBJ and, with arguments by name, NEWOBJ_EX.
            b'R' | 0x81 => self.call()?,
            0x92 => {
                self.pop()?;
                self.call()?;
            }
            // BUILD: attributes for the object below, which is unchanged.
            b'b' => {
                self.pop()?;
                self.top()?;
            }
            b'Q' => {
                let what = self.pop()?;
                self.push(Value::Persistent(what));
            }

            b'q' | b'r' => {
                let place = self.length(if code == b'q' { 1 } else { 4 })?;
                self.remember(place)?;
            }
            0x94 => self.remember(self.memo.len())?,
            b'h' | b'j' => {
                let place = self.length(if code == b'h' { 1 } else { 4 })?;
                self.recall(place)?;
            }
            other => return Err(format!("the operation {other:#04x}, which torch.save does not write")),
        }
        Ok(None)
    }

    /// Counts work that the number of bytes does not bound.
    fn spend(&mut self, operations: usize) -> Result<(), String> {
        self.spent = self.spent.saturating_add(operations);
        if self.spent > MAX_OPERATIONS {
            return Err(format!("more than {MAX_OPERATIONS} operations"));
        }
        Ok(())
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..len).ok_or_else(|| format!("{len} bytes expected, {} left", rest.len()))?;
        self.at += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        Ok(*self.take(N)?.first_chunk().expect("N bytes"))
    }

    /// A number of `size` bytes, at most 8.
    fn length(&mut self, size: usize) -> Result<usize, String> {
        let mut number = [0; 8];
        number[..size].copy_from_slice(self.take(size)?);
        usize::try_from(u64::from_le_bytes(number)).map_err(|e| e.to_string())
    }

    /// Bytes that follow their length.
    fn counted(&mut self, size: usize) -> Result<&'a [u8], String> {
        let len = self.length(size)?;
        self.take(len)
    }

    fn line(&mut self) -> Result<&'a str, String> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|b| *b == b'\n').ok_or("a line without an end")?;
        self.at += end + 1;
        std::str::from_utf8(&rest[..end]).map_err(|e| e.to_string())
    }

    fn text(&mut self, size: usize) -> Result<(), String> {
        let bytes = self.counted(size)?;
        self.push(std::str::from_utf8(bytes).map_or(Value::Other, Value::Text));
        Ok(())
    }

    fn skipped(&mut self, size: usize) -> Result<(), String> {
        self.counted(size)?;
        self.push(Value::Other);
        Ok(())
    }

    fn push(&mut self, value: Value<'a>) {
        // At most MAX_OPERATIONS, each with one value.
        self.stack.push(self.values.len() as Id);
        self.values.push(value);
    }

    /// The height of the stack at the last mark.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> Result<Id, String> {
        match self.stack.last() {
            Some(top) if self.stack.len() > self.floor() => Ok(*top),
            _ => Err("a value expected, none left".to_owned()),
        }
    }

    fn pop(&mut self) -> Result<Id, String> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn pop_many(&mut self, count: usize) -> Result<Vec<Id>, String> {
        if self.stack.len() - self.floor() < count {
            return Err(format!("{count} values expected, {} left", self.stack.len() - self.floor()));
        }
        Ok(self.stack.split_off(self.stack.len() - count))
    }

    fn since_mark(&mut self) -> Result<Vec<Id>, String> {
        let mark = self.marks.pop().ok_or("a mark expected, none left")?;
        Ok(self.stack.split_off(mark))
    }

    fn append(&mut self, items: &[Id]) -> Result<(), String> {
        let top = self.top()?;
        if let Value::List(list) = &mut self.values[top as usize] {
            list.extend(items);
        }
        Ok(())
    }

    fn set(&mut self, items: &[Id]) -> Result<(), String> {
        let (pairs, []) = items.as_chunks::<2>() else {
            return Err(format!("{} keys and values; an even number expected", items.len()));
        };
        let top = self.top()?;
        if let Value::Dict(entries) = &mut self.values[top as usize] {
            entries.extend(pairs.iter().map(|[key, value]| (*key, *value)));
        }
        Ok(())
    }

    fn call(&mut self) -> Result<(), String> {
        let (arguments, callable) = (self.pop()?, self.pop()?);
        let value = match self.values[callable as usize] {
            Value::Global("collections", "OrderedDict") => Value::Dict(Vec::new()),
            _ => Value::Call(callable, arguments),
        };
        self.push(value);
        Ok(())
    }

    fn remember(&mut self, place: usize) -> Result<(), String> {
        let top = self.top()?;
        // Four bytes at most.
        self.memo.insert(place as u32, top);
        Ok(())
    }

    fn recall(&mut self, place: usize) -> Result<(), String> {
        let id = self.memo.get(&(place as u32)).ok_or_else(|| format!("the memo has no entry {place}"))?;
        self.stack.push(*id);
        Ok(())
    }
}

/// A signed little-endian integer.
fn integer(digits: &[u8]) -> Value<'_> {
    if digits.len() > 8 {
        return Value::Other;
    }
    let fill = if digits.last().is_some_and(|top| top & 0x80 != 0) { 0xff } else { 0 };
    let mut number = [fill; 8];
    number[..digits.len()].copy_from_slice(digits);
    Value::Int(i64::from_le_bytes(number))
}
