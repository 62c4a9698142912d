//! Containers whose growth returns [`Status::OutOfMemory`] instead of aborting the process.
//!
//! `clippy.toml` forbids the growing methods of the standard library outside tests; the forms here replace them.
//! A container that has been given its room by [`reserve`] may be filled by methods that never grow it further; such a
//! line carries `#[expect(clippy::disallowed_methods, reason = "...")]`.

use crate::status::{Error, Result, Status};
use std::collections::{HashMap, VecDeque};
use std::fmt::{self, Write};
use std::hash::Hash;

/// Reserves room for exactly `additional` more elements.
pub fn reserve<T>(buffer: &mut Vec<T>, additional: usize) -> Result<()> {
    #[cfg(test)]
    shortage::check(additional.saturating_mul(size_of::<T>()))?;
    buffer.try_reserve_exact(additional).map_err(|_| out_of_memory(additional.saturating_mul(size_of::<T>())))
}

/// Reserves room for `additional` more elements and doubles the capacity when it must grow.
pub fn reserve_amortized<T>(buffer: &mut Vec<T>, additional: usize) -> Result<()> {
    if buffer.capacity() - buffer.len() < additional {
        reserve(buffer, additional.max(buffer.len()))?;
    }
    Ok(())
}

/// As [`reserve_amortized`], for a queue.
pub fn reserve_deque<T>(queue: &mut VecDeque<T>, additional: usize) -> Result<()> {
    if queue.capacity() - queue.len() < additional {
        #[cfg(test)]
        shortage::check(additional.saturating_mul(size_of::<T>()))?;
        queue.try_reserve(additional).map_err(|_| out_of_memory(additional.saturating_mul(size_of::<T>())))?;
    }
    Ok(())
}

/// As [`reserve_amortized`], for a map.
pub fn reserve_map<K: Eq + Hash, V>(map: &mut HashMap<K, V>, additional: usize) -> Result<()> {
    #[cfg(test)]
    shortage::check(additional.saturating_mul(size_of::<(K, V)>()))?;
    map.try_reserve(additional).map_err(|_| out_of_memory(additional.saturating_mul(size_of::<(K, V)>())))
}

/// Makes `buffer` exactly `len` long. New elements are the default; old ones are kept up to `len`.
pub fn resize<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) -> Result<()> {
    if len > buffer.len() {
        reserve(buffer, len - buffer.len())?;
    }
    #[expect(clippy::disallowed_methods, reason = "room is reserved above")]
    buffer.resize(len, T::default());
    Ok(())
}

/// As [`resize`], doubling the capacity when it must grow.
pub fn resize_amortized<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) -> Result<()> {
    reserve_amortized(buffer, len.saturating_sub(buffer.len()))?;
    resize(buffer, len)
}

/// Returns the first `len` elements of `buffer`, which grows when it is shorter. Callers must overwrite them.
pub fn at_least<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) -> Result<&mut [T]> {
    if len > buffer.capacity() {
        cleared(buffer, len)?;
    }
    if len > buffer.len() {
        resize(buffer, len)?;
    }
    Ok(&mut buffer[..len])
}

/// Empties `buffer` and makes room for `room` elements. Never holds the old room and the new one at once.
pub fn cleared<T>(buffer: &mut Vec<T>, room: usize) -> Result<()> {
    buffer.clear();
    if room > buffer.capacity() {
        *buffer = Vec::new();
        reserve(buffer, room)?;
    }
    Ok(())
}

/// Returns `len` copies of `value`: `vec![value; len]`.
pub fn filled<T: Copy>(value: T, len: usize) -> Result<Vec<T>> {
    let mut buffer = Vec::new();
    reserve(&mut buffer, len)?;
    #[expect(clippy::disallowed_methods, reason = "room is reserved above")]
    buffer.resize(len, value);
    Ok(buffer)
}

/// Returns a copy of a slice: `slice.to_vec()`.
pub fn copied<T: Copy>(slice: &[T]) -> Result<Vec<T>> {
    let mut buffer = Vec::new();
    extend(&mut buffer, slice)?;
    Ok(buffer)
}

/// Appends a slice: `buffer.extend_from_slice(slice)`.
pub fn extend<T: Copy>(buffer: &mut Vec<T>, slice: &[T]) -> Result<()> {
    reserve_amortized(buffer, slice.len())?;
    #[expect(clippy::disallowed_methods, reason = "room is reserved above")]
    buffer.extend_from_slice(slice);
    Ok(())
}

/// Appends one element: `buffer.push(value)`.
#[inline]
pub fn push<T>(buffer: &mut Vec<T>, value: T) -> Result<()> {
    if buffer.len() == buffer.capacity() {
        reserve_amortized(buffer, 1.max(32 / size_of::<T>().max(1)))?;
    }
    #[expect(clippy::disallowed_methods, reason = "room is reserved above")]
    buffer.push(value);
    Ok(())
}

/// Collects an iterator: `iter.collect::<Vec<_>>()`.
pub fn collect<T>(iter: impl IntoIterator<Item = T>) -> Result<Vec<T>> {
    let iter = iter.into_iter();
    let mut buffer = Vec::new();
    reserve(&mut buffer, iter.size_hint().0)?;
    for value in iter {
        push(&mut buffer, value)?;
    }
    Ok(buffer)
}

/// Collects an iterator of results up to its first error.
pub fn try_collect<T>(iter: impl IntoIterator<Item = Result<T>>) -> Result<Vec<T>> {
    let mut buffer = Vec::new();
    for value in iter {
        push(&mut buffer, value?)?;
    }
    Ok(buffer)
}

/// Allocates a box: `Box::new(value)`.
pub fn boxed<T>(value: T) -> Result<Box<T>> {
    #[cfg(test)]
    shortage::check(size_of::<T>())?;
    try_boxed(value).ok_or_else(|| out_of_memory(size_of::<T>()))
}

/// As [`boxed`], with a value that is made once its memory is there.
pub fn boxed_with<T>(make: impl FnOnce() -> Result<T>) -> Result<Box<T>> {
    let mut one = Vec::new();
    reserve(&mut one, 1)?;
    Ok(only(one, make()?))
}

/// As [`boxed`], for errors, which cannot report an error.
pub fn try_boxed<T>(value: T) -> Option<Box<T>> {
    let mut one = Vec::new();
    one.try_reserve_exact(1).ok()?;
    Some(only(one, value))
}

/// The box of a value, in the room of `one`, which is empty.
fn only<T>(mut one: Vec<T>, value: T) -> Box<T> {
    #[expect(clippy::disallowed_methods, reason = "room is reserved above")]
    one.push(value);
    let slice = Box::into_raw(one.into_boxed_slice());
    // SAFETY: the slice has one element, whose layout its allocation has.
    unsafe { Box::from_raw(slice.cast::<T>()) }
}

/// Copies text: `text.to_owned()`.
pub fn text(text: &str) -> Result<String> {
    format(format_args!("{text}"))
}

/// Formats text: `format!`. The arguments must not allocate by themselves.
pub fn format(arguments: fmt::Arguments<'_>) -> Result<String> {
    try_format(arguments).ok_or_else(|| out_of_memory(1))
}

/// As [`format()`], for errors, which cannot report an error.
pub fn try_format(arguments: fmt::Arguments<'_>) -> Option<String> {
    let mut text = Text::default();
    text.write_fmt(arguments).ok()?;
    Some(text.0)
}

/// Appends formatted text: `write!(string, ...)`.
pub fn append(string: &mut String, arguments: fmt::Arguments<'_>) -> Result<()> {
    let mut text = Text(std::mem::take(string));
    let done = text.write_fmt(arguments);
    *string = text.0;
    done.map_err(|_| out_of_memory(string.len()))
}

/// Text whose growth can fail. A failed write keeps what was written before.
#[derive(Default)]
struct Text(String);

impl Write for Text {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.0.try_reserve(part.len()).map_err(|_| fmt::Error)?;
        #[expect(clippy::disallowed_methods, reason = "room is reserved above")]
        self.0.push_str(part);
        Ok(())
    }
}

/// The error of an allocation of `bytes` that was refused.
#[cold]
#[inline(never)]
pub fn out_of_memory(bytes: usize) -> Error {
    Error::formatted(Status::OutOfMemory, format_args!("no memory for {bytes} more bytes"))
}

/// Allocations that fail on purpose, for tests.
#[cfg(test)]
pub(crate) mod shortage {
    use crate::status::{Result, bail};
    use std::cell::Cell;

    thread_local! {
        static ODDS: Cell<(u32, u64)> = const { Cell::new((0, 0x9E37_79B9_7F4A_7C15)) };
        static LEAST: Cell<usize> = const { Cell::new(1024) };
    }

    /// From now on this thread's allocations of 1,024 bytes and more fail, one in `odds` by chance; 0 = none.
    pub fn set(odds: u32, seed: u64) {
        ODDS.set((odds, seed | 1));
    }

    /// From now on only allocations of at least `bytes` bytes fail.
    pub fn set_least(bytes: usize) {
        LEAST.set(bytes);
    }

    /// The odds, and the bytes that an allocation must have to fail.
    pub fn get() -> (u32, usize) {
        (ODDS.get().0, LEAST.get())
    }

    /// Sets what [`get`] returns, and keeps the sequence of chances. Returns the setting before.
    pub fn inherit(setting: (u32, usize)) -> (u32, usize) {
        let before = get();
        ODDS.set((setting.0, ODDS.get().1));
        LEAST.set(setting.1);
        before
    }

    pub fn check(bytes: usize) -> Result<()> {
        let (odds, mut state) = ODDS.get();
        if odds == 0 || bytes < LEAST.get() {
            return Ok(());
        }
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ODDS.set((odds, state));
        if (state >> 32) % u64::from(odds) == 0 {
            bail!(OutOfMemory, "no memory for {bytes} bytes, as injected by the test");
        }
        Ok(())
    }
}
