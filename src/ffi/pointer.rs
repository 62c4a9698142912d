//! Pointers from C, turned into slices and values after every check that is possible.
//!
//! All functions here are unsafe for one reason: no check shows that a non-NULL pointer is valid for its stated length. The
//! header requires that of the caller, and nothing else.

use crate::status::{Error, Result, bail, error};
use std::ffi::{CStr, c_char, c_void};
use std::path::Path;

/// No object is larger, so a greater length is an error of the caller's arithmetic.
const MAX_LEN: usize = isize::MAX as usize;

/// A greater `struct_size` was not set.
const MAX_STRUCT_SIZE: usize = 4096;

#[inline]
fn check<T>(ptr: *const T, bytes: Option<usize>, name: &str) -> Result<()> {
    if bytes.is_none_or(|len| len > MAX_LEN) || ptr.is_null() || !ptr.is_aligned() {
        return Err(refusal(ptr.cast(), align_of::<T>(), bytes, name));
    }
    Ok(())
}

/// The error that [`check`] found, out of line: hot calls must stay short.
#[cold]
#[inline(never)]
fn refusal(ptr: *const c_void, align: usize, bytes: Option<usize>, name: &str) -> Error {
    if bytes.is_none_or(|len| len > MAX_LEN) {
        error!(InvalidArgument, "the length given for {name} is larger than any object can be")
    } else if ptr.is_null() {
        error!(InvalidArgument, "{name} is NULL")
    } else {
        error!(InvalidArgument, "{name} is {ptr:p}; an address aligned to {align} expected")
    }
}

/// `len` elements to read. NULL with length 0 is an empty slice.
///
/// # Safety
/// A non-NULL `ptr` is readable for `len` elements, which do not change during the call.
#[inline]
pub unsafe fn input<'a, T>(ptr: *const T, len: usize, name: &str) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    check(ptr, len.checked_mul(size_of::<T>()), name)?;
    // SAFETY: not NULL, aligned, a possible length; the rest is passed on.
    Ok(unsafe { std::slice::from_raw_parts(ptr, len) })
}

/// `len` bytes to read.
///
/// # Safety
/// As [`input`].
#[inline]
pub unsafe fn input_bytes<'a>(ptr: *const c_void, len: usize, name: &str) -> Result<&'a [u8]> {
    // SAFETY: passed on.
    unsafe { input(ptr.cast(), len, name) }
}

/// Text that ends with a zero byte.
///
/// # Safety
/// A non-NULL `ptr` is readable up to a zero byte, and the text does not change during the call.
pub unsafe fn text<'a>(ptr: *const c_char, name: &str) -> Result<&'a str> {
    check(ptr, Some(1), name)?;
    // SAFETY: not NULL; the rest is passed on.
    match unsafe { CStr::from_ptr(ptr) }.to_str() {
        Ok(text) => Ok(text),
        Err(e) => bail!(InvalidArgument, "{name} is no UTF-8: {e}"),
    }
}

/// The path of a file or directory, UTF-8 that ends with a zero byte.
///
/// # Safety
/// As [`text`].
pub unsafe fn path<'a>(ptr: *const c_char, name: &str) -> Result<&'a Path> {
    // SAFETY: passed on.
    match unsafe { text(ptr, name) }? {
        "" => bail!(InvalidArgument, "{name} is empty"),
        path => Ok(Path::new(path)),
    }
}

/// `len` elements to read and write. NULL with length 0 is an empty slice.
///
/// # Safety
/// A non-NULL `ptr` is writable for `len` elements, which nothing else touches during the call.
pub unsafe fn output<'a, T>(ptr: *mut T, len: usize, name: &str) -> Result<&'a mut [T]> {
    if len == 0 {
        return Ok(&mut []);
    }
    check(ptr, len.checked_mul(size_of::<T>()), name)?;
    // SAFETY: not NULL, aligned, a possible length; the rest is passed on.
    Ok(unsafe { std::slice::from_raw_parts_mut(ptr, len) })
}

/// `len` bytes to read and write.
///
/// # Safety
/// As [`output`].
pub unsafe fn output_bytes<'a>(ptr: *mut c_void, len: usize, name: &str) -> Result<&'a mut [u8]> {
    // SAFETY: passed on.
    unsafe { output(ptr.cast(), len, name) }
}

/// One value to write, which the caller need not have initialised.
pub struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// Checks the pointer before any work is done.
    ///
    /// # Safety
    /// A non-NULL `ptr` is writable until the last [`Out::set`].
    pub unsafe fn new(ptr: *mut T, name: &str) -> Result<Self> {
        check(ptr, Some(size_of::<T>()), name)?;
        Ok(Out(ptr))
    }

    /// The same, or `None` for NULL: the caller does not want the value.
    ///
    /// # Safety
    /// As [`Out::new`].
    pub unsafe fn optional(ptr: *mut T, name: &str) -> Result<Option<Self>> {
        // SAFETY: passed on.
        (!ptr.is_null()).then(|| unsafe { Out::new(ptr, name) }).transpose()
    }

    pub fn set(&self, value: T) {
        // SAFETY: checked in `new`; the rest is its contract.
        unsafe { self.0.write(value) };
    }
}

impl Out<usize> {
    /// Writes the length of a success, or the one that BUFFER_TOO_SMALL needs, the only output of a failure.
    pub fn set_len(&self, result: Result<usize>) -> Result<()> {
        let len = result.as_ref().map_or_else(Error::needed, |len| Some(*len));
        len.into_iter().for_each(|len| self.set(len));
        result.map(drop)
    }
}

/// The buffers of encode and decode: bytes to read, bytes to write, and their number.
///
/// # Safety
/// As of [`input_bytes`], [`output_bytes`] and [`Out::new`].
pub unsafe fn buffers<'a>(
    src: (*const c_void, usize),
    dst: (*mut c_void, usize),
    dst_len: *mut usize,
) -> Result<(&'a [u8], &'a mut [u8], Out<usize>)> {
    disjoint((src.0, src.1, "src"), (dst.0, dst.1, "dst"))?;
    // SAFETY: passed on; the two do not overlap.
    unsafe {
        Ok((input_bytes(src.0, src.1, "src")?, output_bytes(dst.0, dst.1, "dst")?, Out::new(dst_len, "dst_len")?))
    }
}

/// Copies bytes to a buffer of C, whose capacity is called `cap`. Returns their number.
pub fn copied(bytes: &[u8], out: &mut [u8], cap: &str) -> Result<usize> {
    let given = out.len();
    let Some(target) = out.get_mut(..bytes.len()) else {
        return Err(Error::too_small(cap, given, bytes.len()));
    };
    target.copy_from_slice(bytes);
    Ok(bytes.len())
}

/// Copies text to a buffer of C, and appends a zero.
pub fn put_text(text: &str, out: &mut [u8], len: &Out<usize>) -> Result<()> {
    let Some(target) = out.get_mut(..text.len() + 1) else {
        len.set(text.len() + 1);
        return Err(Error::too_small("cap", out.len(), text.len() + 1));
    };
    target[..text.len()].copy_from_slice(text.as_bytes());
    target[text.len()] = 0;
    len.set(text.len() + 1);
    Ok(())
}

/// Room for pairs (offset, length), and for their number.
pub struct PairsOut<'a> {
    pairs: &'a mut [[i32; 2]],
    count: Out<usize>,
}

impl<'a> PairsOut<'a> {
    /// # Safety
    /// A non-NULL `pairs` is writable for `cap` pairs, and a non-NULL `n_pairs` for a number, for `'a`.
    pub unsafe fn new(pairs: *mut i32, cap: usize, n_pairs: *mut usize) -> Result<Self> {
        // SAFETY: passed on; a pair is two neighbouring numbers.
        let (pairs, count) = unsafe { (output(pairs.cast(), cap, "pairs")?, Out::new(n_pairs, "n_pairs")?) };
        Ok(PairsOut { pairs, count })
    }

    /// Writes the pairs, or only their number where there is no room.
    pub fn set(self, pairs: &[[i32; 2]]) -> Result<()> {
        self.count.set(pairs.len());
        let Some(target) = self.pairs.get_mut(..pairs.len()) else {
            return Err(Error::too_small("pairs_cap (pairs)", self.pairs.len(), pairs.len()));
        };
        target.copy_from_slice(pairs);
        Ok(())
    }
}

/// An object that the library made.
///
/// # Safety
/// A non-NULL `ptr` is live for `'a`.
pub unsafe fn reference<'a, T>(ptr: *const T, name: &str) -> Result<&'a T> {
    check(ptr, Some(size_of::<T>()), name)?;
    // SAFETY: not NULL, aligned; the rest is passed on.
    Ok(unsafe { &*ptr })
}

/// Fails when two buffers share a byte. Called before any slice of them exists; where they seem to overlap because one is
/// NULL or longer than any object, the error says that.
pub fn disjoint(a: (*const c_void, usize, &str), b: (*const c_void, usize, &str)) -> Result<()> {
    let (x, y) = (a.0 as usize, b.0 as usize);
    if a.1 > 0 && b.1 > 0 && x < y.saturating_add(b.1) && y < x.saturating_add(a.1) {
        for (ptr, len, name) in [a, b] {
            check(ptr.cast::<u8>(), Some(len), name)?;
        }
        bail!(InvalidArgument, "{} and {} overlap, with {} and {} bytes", a.2, b.2, a.1, b.1);
    }
    Ok(())
}

/// A struct that begins with `uint32_t struct_size` and may grow in later versions.
///
/// # Safety
/// `repr(C)`, begins with a u32, and every bit pattern is a value (integers, floats, raw pointers, and pointers to
/// functions that may be NULL).
pub unsafe trait Sized32: Copy {
    /// The size in the first version that had this struct.
    const MIN: usize;
}

/// The struct that `ptr` points to, or `None` for NULL. A shorter struct of an older header is completed with zeros; a
/// longer one of a newer header must be zero past the known fields.
///
/// # Safety
/// A non-NULL `ptr` is readable for as many bytes as its `struct_size` says.
#[inline]
pub unsafe fn options<T: Sized32>(ptr: *const T, name: &str) -> Result<Option<T>> {
    if ptr.is_null() {
        return Ok(None);
    }
    // SAFETY: passed on.
    let given = unsafe { struct_size(ptr, name) }?;
    // SAFETY: readable for struct_size bytes, by this function's contract.
    let bytes = unsafe { std::slice::from_raw_parts(ptr.cast::<u8>(), given) };
    // Versions end at a multiple of the alignment. A part of a field is none.
    let known = given.min(size_of::<T>()) / align_of::<T>() * align_of::<T>();
    if bytes[known..].iter().any(|b| *b != 0) {
        bail!(Unsupported, "{name} sets fields past byte {known} that this version of the library does not have");
    }
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: `known` bytes fit both, and with zeros behind them every bit pattern of T is a value (Sized32).
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.as_mut_ptr().cast::<u8>(), known);
        Ok(Some(value.assume_init()))
    }
}

/// As [`options`], for a struct without defaults.
///
/// # Safety
/// As [`options`].
#[inline]
pub unsafe fn required<T: Sized32>(ptr: *const T, name: &str) -> Result<T> {
    // SAFETY: passed on.
    match unsafe { options(ptr, name) }? {
        Some(value) => Ok(value),
        None => bail!(InvalidArgument, "{name} is NULL"),
    }
}

/// As [`required`], but borrowed where it has this version's size. Copying a struct that the caller has just filled in
/// stalls on its stores.
///
/// # Safety
/// As [`options`], and the struct does not change for `'a`.
#[inline]
pub unsafe fn in_place<'a, T: Sized32>(ptr: *const T, name: &str, room: &'a mut Option<T>) -> Result<&'a T> {
    // SAFETY: aligned, and at least the first field is readable, by this function's contract.
    if !ptr.is_null() && ptr.is_aligned() && unsafe { ptr.cast::<u32>().read() } as usize == size_of::<T>() {
        // SAFETY: aligned, and readable for struct_size bytes, by this function's contract.
        return Ok(unsafe { &*ptr });
    }
    // SAFETY: passed on.
    Ok(room.insert(unsafe { other_size(ptr, name) }?))
}

/// As [`required`], out of line.
///
/// # Safety
/// As [`options`].
#[cold]
#[inline(never)]
unsafe fn other_size<T: Sized32>(ptr: *const T, name: &str) -> Result<T> {
    // SAFETY: passed on.
    unsafe { required(ptr, name) }
}

/// A struct to write, as far as the caller's `struct_size` reaches.
pub struct SizedOut<T> {
    ptr: *mut T,
    len: usize,
}

impl<T: Sized32> SizedOut<T> {
    /// Checks the pointer and its `struct_size` before any work is done.
    ///
    /// # Safety
    /// A non-NULL `ptr` is writable for as many bytes as its `struct_size` says until the last [`SizedOut::set`].
    pub unsafe fn new(ptr: *mut T, name: &str) -> Result<Self> {
        // SAFETY: passed on.
        let given = unsafe { struct_size(ptr, name) }?;
        Ok(SizedOut { ptr, len: given.min(size_of::<T>()) })
    }

    /// Writes as far as `struct_size` reaches; that field keeps its value.
    pub fn set(&self, value: &T) {
        let field = size_of::<u32>();
        // SAFETY: both sides have `len` bytes, checked in `new`; the first field is left out.
        unsafe {
            let from = (&raw const *value).cast::<u8>().add(field);
            std::ptr::copy_nonoverlapping(from, self.ptr.cast::<u8>().add(field), self.len - field);
        }
    }
}

/// The `struct_size` of a struct from C, if possible.
///
/// # Safety
/// A non-NULL `ptr` is readable for its first field.
#[inline]
unsafe fn struct_size<T: Sized32>(ptr: *const T, name: &str) -> Result<usize> {
    // Aligned as in its first version: later ones may have wider fields.
    check(ptr.cast::<u32>(), Some(T::MIN), name)?;
    // SAFETY: every such struct begins with a u32, which is readable by this function's contract.
    let given = unsafe { ptr.cast::<u32>().read() } as usize;
    if given < T::MIN || given > MAX_STRUCT_SIZE {
        bail!(InvalidArgument, "{name}->struct_size is {given}; {} (sizeof) expected", size_of::<T>());
    }
    Ok(given)
}

/// Fails when a reserved field is not 0: a later version may give it a meaning.
pub fn reserved(fields: &[u32], name: &str) -> Result<()> {
    match fields.iter().position(|f| *f != 0) {
        None => Ok(()),
        Some(i) if fields.len() == 1 => bail!(InvalidArgument, "{name}->reserved is {}; 0 expected", fields[i]),
        Some(i) => bail!(InvalidArgument, "{name}->reserved[{i}] is {}; 0 expected", fields[i]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null;

    #[test]
    fn buffers_that_are_null_or_longer_than_any_object_do_not_overlap_but_are_named() {
        let memory = [0u8; 64];
        let at = |offset: usize| memory[offset..].as_ptr().cast::<c_void>();
        let said = |a, b| disjoint(a, b).map_err(|error| error.message().to_string());
        let error = |text: &str| Err(text.to_string());
        let too_long = "the length given for dst is larger than any object can be";
        assert_eq!(said((null(), 8, "key"), (null(), 8, "value")), error("key is NULL"));
        assert_eq!(said((at(0), 8, "src"), (at(8), usize::MAX, "dst")), Ok(()), "its slice is refused");
        assert_eq!(said((at(8), 8, "src"), (at(0), usize::MAX, "dst")), error(too_long));
        assert_eq!(said((at(0), usize::MAX, "dst"), (at(8), 8, "src")), error(too_long));
        assert_eq!(said((at(0), 9, "src"), (at(8), 8, "dst")), error("src and dst overlap, with 9 and 8 bytes"));
        assert_eq!(said((at(0), 8, "src"), (at(8), 8, "dst")), Ok(()));
        assert_eq!(said((null(), 0, "src"), (null(), 0, "dst")), Ok(()));
    }
}
