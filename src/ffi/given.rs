//! A layout as a caller gave it, and the buffers of its cache.

use super::cache::{MNNKV_DTYPE_BF16, MNNKV_DTYPE_F16, MNNKV_DTYPE_F32, MNNKV_DTYPE_INT8, mnnkv_layout};
use super::layout::mnnkv_int8;
use super::pointer;
use crate::attend::Queries;
use crate::dtype::Dtype;
use crate::layout::{Cache, CacheRef, Int8Unit, Kind, Layout, Spec};
use crate::status::{Error, Result, bail};
use std::ffi::c_void;

/// Rows of query heads without their elements: heads, rows and elements of a row, and the strides of heads and of rows, both 0
/// where heads lie side by side in a row. UNSUPPORTED: if the type is no floating-point one.
pub fn query_rows<'a>(
    (dtype, name): (u32, &str),
    (heads, rows, dims): (u32, u32, u32),
    strides: (u64, u64),
    scale: f32,
) -> Result<Queries<'a>> {
    let dtype = match dtype {
        MNNKV_DTYPE_F16 => Dtype::F16,
        MNNKV_DTYPE_BF16 => Dtype::Bf16,
        MNNKV_DTYPE_F32 => Dtype::F32,
        other => bail!(Unsupported, "{name} is {other}; F16 (1), BF16 (2) or F32 (3) expected"),
    };
    let (heads, rows, dims) = (heads as usize, rows as usize, dims as usize);
    let stride = |given: u64| usize::try_from(given).unwrap_or(usize::MAX);
    let row = dims.saturating_mul(dtype.bytes());
    let (head_stride, row_stride) = match strides {
        (0, 0) => (row, row.saturating_mul(heads)),
        (head, row) => (stride(head), stride(row)),
    };
    Ok(Queries { dtype, heads, rows, dims, head_stride, row_stride, scale, data: &[] })
}

/// Fails where rows that are written may share bytes: the heads of a row must end before the next row begins, or the rows of a
/// head before the next head. `rows` has passed [`Queries::bytes`]; `name` with `_head_stride` and `_row_stride` are the fields.
pub(super) fn apart_rows(rows: &Queries<'_>, name: &str) -> Result<()> {
    let Queries { dtype, heads, rows, dims, head_stride, row_stride, .. } = *rows;
    let end = |stride: usize, count: usize| stride.saturating_mul(count - 1).saturating_add(dims * dtype.bytes());
    let (of_heads, of_rows) = (end(head_stride, heads), end(row_stride, rows));
    if heads > 1 && rows > 1 && row_stride < of_heads && head_stride < of_rows {
        bail!(
            InvalidArgument,
            "{name}_head_stride is {head_stride} and {name}_row_stride {row_stride}, with which rows overlap; a row stride of \
             {of_heads} or more, or a head stride of {of_rows} or more expected"
        );
    }
    Ok(())
}

/// A checked layout, and the arrays beside its cache.
pub struct Given {
    /// The checked layout.
    pub layout: Layout,
    int8: Option<mnnkv_int8>,
}

impl Given {
    fn new(given: &mnnkv_layout, int8: Option<mnnkv_int8>) -> Result<Self> {
        let unit = int8.map_or(Int8Unit::default(), |int8| Int8Unit { l_pack: int8.l_pack, h_pack: int8.h_pack });
        let layout = Layout::new(&Spec {
            key: Kind::from_code(given.key_dtype, "layout->key_dtype")?,
            value: Kind::from_code(given.value_dtype, "layout->value_dtype")?,
            kv_heads: given.kv_heads,
            head_dim: given.head_dim,
            l_pack: given.l_pack,
            h_pack: given.h_pack,
            int8: unit,
            flash_block: given.flash_block,
            max_tokens: given.max_tokens,
            key_head_stride: given.key_head_stride,
            value_head_stride: given.value_head_stride,
            key_token_stride: given.key_token_stride,
            value_token_stride: given.value_token_stride,
        })?;
        Ok(Given { layout, int8 })
    }
}

/// The checked form of a layout.
///
/// # Safety
/// As [`pointer::options`]; a non-NULL `int8` is such a struct, too.
pub unsafe fn checked(ptr: *const mnnkv_layout) -> Result<Given> {
    // SAFETY: passed on.
    unsafe {
        let given = pointer::required(ptr, "layout")?;
        // V alone is never INT8, which Layout::new says.
        let is_int8 = given.key_dtype == MNNKV_DTYPE_INT8;
        let int8 = if is_int8 { Some(pointer::required(given.int8, "layout->int8")?) } else { None };
        Given::new(&given, int8)
    }
}

/// [`checked`], of a layout whose cache has floating-point elements.
///
/// # Safety
/// As [`checked`].
pub unsafe fn checked_float(ptr: *const mnnkv_layout) -> Result<Given> {
    // SAFETY: passed on.
    let given = unsafe { checked(ptr) }?;
    let rows = given.layout.rows();
    rows.key.float("layout->key_dtype")?;
    rows.value.float("layout->value_dtype")?;
    Ok(given)
}

/// Runs the body of an export that writes a cache.
///
/// # Safety
/// As the exports.
pub(super) unsafe fn edit(
    layout: *const mnnkv_layout,
    key: *mut c_void,
    value: *mut c_void,
    body: impl FnOnce(&mut Cache<'_>) -> Result<()>,
) -> Result<()> {
    // SAFETY: passed on.
    unsafe {
        let given = checked(layout)?;
        body(&mut given.cache(key, value)?)
    }
}

impl Given {
    /// One array, of `expected` bytes; none where the layout has none.
    fn array(&self, name: &str, expected: usize, pick: impl Fn(&mnnkv_int8) -> (*mut f32, u64)) -> Result<Array> {
        if expected == 0 {
            return Ok(Array { ptr: std::ptr::null_mut(), len: 0 });
        }
        let (ptr, bytes) = self.int8.as_ref().map_or((std::ptr::null_mut(), 0), pick);
        if ptr.is_null() {
            bail!(InvalidArgument, "layout->int8->{name} is NULL; {expected} bytes expected");
        }
        if bytes != expected as u64 {
            bail!(InvalidArgument, "layout->int8->{name}_bytes is {bytes}; {expected} expected");
        }
        if !ptr.is_aligned() {
            bail!(InvalidArgument, "layout->int8->{name} is {ptr:p}; an address aligned to 4 expected");
        }
        Ok(Array { ptr: ptr.cast(), len: expected })
    }

    fn key_sums(&self) -> Result<Array> {
        self.array("key_sum", self.layout.key_sum_bytes(), |int8| (int8.key_sum, int8.key_sum_bytes))
    }

    fn value_sums(&self) -> Result<Array> {
        self.array("value_sum", self.layout.value_sum_bytes(), |int8| (int8.value_sum, int8.value_sum_bytes))
    }

    /// Every memory region of a cache: its address, bytes and name.
    fn regions(&self, key: *const c_void, value: *const c_void) -> Result<[(*const c_void, usize, &'static str); 4]> {
        let (key_sums, value_sums) = (self.key_sums()?, self.value_sums()?);
        Ok([
            (key, self.layout.key_bytes(), "key"),
            (value, self.layout.value_bytes(), "value"),
            (key_sums.ptr, key_sums.len, "layout->int8->key_sum"),
            (value_sums.ptr, value_sums.len, "layout->int8->value_sum"),
        ])
    }

    /// Fails if a buffer of the caller shares a byte with the cache.
    pub fn apart(&self, key: *const c_void, value: *const c_void, other: (*const c_void, usize, &str)) -> Result<()> {
        self.regions(key, value)?.into_iter().try_for_each(|region| pointer::disjoint(other, region))
    }

    /// The outputs of a call that reads a cache: rows of K and of V, with their lengths. Fails if the capacity of each is
    /// too small, or if one overlaps another buffer.
    ///
    /// # Safety
    /// Both outputs are writable for their lengths, and nothing else touches them during the call.
    pub unsafe fn outputs<'a>(
        &self,
        key: *const c_void,
        value: *const c_void,
        (key_out, key_len): (*mut c_void, usize),
        (value_out, value_len): (*mut c_void, usize),
        cap_each: usize,
    ) -> Result<(&'a mut [u8], &'a mut [u8])> {
        let needed = key_len.max(value_len);
        if cap_each < needed {
            return Err(Error::too_small("cap_each (bytes)", cap_each, needed));
        }
        pointer::disjoint((key_out, key_len, "key_out"), (value_out, value_len, "value_out"))?;
        self.apart(key, value, (key_out, key_len, "key_out"))?;
        self.apart(key, value, (value_out, value_len, "value_out"))?;
        // SAFETY: passed on; the two do not overlap.
        unsafe {
            Ok((
                pointer::output_bytes(key_out, key_len, "key_out")?,
                pointer::output_bytes(value_out, value_len, "value_out")?,
            ))
        }
    }

    /// The cache to read.
    ///
    /// # Safety
    /// All buffers are as long as the layout says.
    pub unsafe fn cache_ref<'a>(&'a self, key: *const c_void, value: *const c_void) -> Result<CacheRef<'a>> {
        // Value sums are not read, but a cache without them is no cache.
        let [_, _, (key_sums, key_sum_bytes, name), _] = self.regions(key, value)?;
        // SAFETY: passed on.
        unsafe {
            CacheRef::with_sums(
                &self.layout,
                pointer::input_bytes(key, self.layout.key_bytes(), "key")?,
                pointer::input_bytes(value, self.layout.value_bytes(), "value")?,
                pointer::input_bytes(key_sums, key_sum_bytes, name)?,
            )
        }
    }

    /// The cache to edit.
    ///
    /// # Safety
    /// All buffers are as long as the layout says, and are not touched by others during the call.
    pub unsafe fn cache<'a>(&'a self, key: *mut c_void, value: *mut c_void) -> Result<Cache<'a>> {
        let regions = self.regions(key, value)?;
        for (i, region) in regions.iter().enumerate() {
            regions[..i].iter().try_for_each(|other| pointer::disjoint(*other, *region))?;
        }
        let [_, _, key_sums, value_sums] = regions;
        // SAFETY: passed on; no two overlap.
        unsafe {
            Cache::with_sums(
                &self.layout,
                pointer::output_bytes(key, self.layout.key_bytes(), "key")?,
                pointer::output_bytes(value, self.layout.value_bytes(), "value")?,
                pointer::output_bytes(key_sums.0.cast_mut(), key_sums.1, key_sums.2)?,
                pointer::output_bytes(value_sums.0.cast_mut(), value_sums.1, value_sums.2)?,
            )
        }
    }
}

/// Fails if memory of the caller, which is not a slice yet, shares a byte with a cache that a call edits.
pub(super) fn apart<T>(cache: &Cache<'_>, ptr: *const T, count: usize, name: &str) -> Result<()> {
    let other = (ptr.cast(), count.saturating_mul(size_of::<T>()), name);
    cache.regions().into_iter().try_for_each(|(region, region_name)| {
        pointer::disjoint(other, (region.as_ptr().cast(), region.len(), region_name))
    })
}

/// An array beside a cache.
struct Array {
    ptr: *mut c_void,
    len: usize,
}

/// Elements from a row of a mask to the next, 0 = `tokens`, and of the whole mask; `name` is the field.
/// INVALID_ARGUMENT: if rows overlap, or exceed the address space.
pub fn mask_rows(stride: u64, tokens: usize, rows: usize, name: &str) -> Result<(usize, usize)> {
    let stride = match usize::try_from(stride).unwrap_or(usize::MAX) {
        0 => tokens,
        stride => stride,
    };
    if rows > 1 && stride < tokens {
        bail!(InvalidArgument, "{name} is {stride}; {tokens} or more expected, the tokens of a row, or 0");
    }
    let Some(len) = stride.checked_mul(rows - 1).and_then(|len| len.checked_add(tokens)) else {
        bail!(InvalidArgument, "{name} is {stride}, which is too much")
    };
    Ok((stride, len))
}
