//! The buffers of a cache, with the sizes that its layout has.

use super::Layout;
use crate::status::{Result, bail};

/// A cache to read.
#[derive(Clone, Copy)]
pub struct CacheRef<'a> {
    /// The checked layout.
    pub layout: &'a Layout,
    /// K of all heads.
    pub key: &'a [u8],
    /// V of all heads.
    pub value: &'a [u8],
    pub(super) key_sums: &'a [u8],
}

/// A cache to edit.
pub struct Cache<'a> {
    /// The checked layout.
    pub layout: &'a Layout,
    /// K of all heads.
    pub key: &'a mut [u8],
    /// V of all heads.
    pub value: &'a mut [u8],
    pub(super) key_sums: &'a mut [u8],
    pub(super) value_sums: &'a mut [u8],
}

impl<'a> CacheRef<'a> {
    /// A cache without side arrays. INVALID_ARGUMENT: if a buffer has another size than the layout says.
    pub fn new(layout: &'a Layout, key: &'a [u8], value: &'a [u8]) -> Result<Self> {
        CacheRef::with_sums(layout, key, value, &[])
    }

    /// A cache with key sums, which INT8 K has.
    pub fn with_sums(layout: &'a Layout, key: &'a [u8], value: &'a [u8], key_sums: &'a [u8]) -> Result<Self> {
        check(layout, key, value)?;
        check_sums("key_sum", key_sums.len(), layout.key_sum_bytes())?;
        Ok(CacheRef { layout, key, value, key_sums })
    }
}

impl<'a> Cache<'a> {
    /// A cache without side arrays. INVALID_ARGUMENT: if a buffer has another size than the layout says.
    pub fn new(layout: &'a Layout, key: &'a mut [u8], value: &'a mut [u8]) -> Result<Self> {
        Cache::with_sums(layout, key, value, &mut [], &mut [])
    }

    /// A cache with the side arrays of an INT8 one: [`Layout::key_sum_bytes`] and [`Layout::value_sum_bytes`].
    pub fn with_sums(
        layout: &'a Layout,
        key: &'a mut [u8],
        value: &'a mut [u8],
        key_sums: &'a mut [u8],
        value_sums: &'a mut [u8],
    ) -> Result<Self> {
        check(layout, key, value)?;
        check_sums("key_sum", key_sums.len(), layout.key_sum_bytes())?;
        check_sums("value_sum", value_sums.len(), layout.value_sum_bytes())?;
        Ok(Cache { layout, key, value, key_sums, value_sums })
    }

    /// The same cache for a shorter time.
    pub fn reborrow(&mut self) -> Cache<'_> {
        Cache {
            layout: self.layout,
            key: self.key,
            value: self.value,
            key_sums: self.key_sums,
            value_sums: self.value_sums,
        }
    }

    /// Every buffer of the cache, and its name.
    pub fn regions(&self) -> [(&[u8], &'static str); 4] {
        [
            (self.key, "key"),
            (self.value, "value"),
            (self.key_sums, "layout->int8->key_sum"),
            (self.value_sums, "layout->int8->value_sum"),
        ]
    }

    /// The same cache, to read.
    pub fn as_ref(&self) -> CacheRef<'_> {
        CacheRef { layout: self.layout, key: self.key, value: self.value, key_sums: self.key_sums }
    }
}

fn check(layout: &Layout, key: &[u8], value: &[u8]) -> Result<()> {
    for (name, given, expected) in
        [("key", key.len(), layout.key_bytes()), ("value", value.len(), layout.value_bytes())]
    {
        if given != expected {
            bail!(InvalidArgument, "the {name} buffer has {given} bytes; {expected} expected");
        }
    }
    Ok(())
}

fn check_sums(name: &str, given: usize, expected: usize) -> Result<()> {
    if given != expected {
        bail!(
            InvalidArgument,
            "layout->int8->{name}_bytes is {given}; {expected} expected, as the layout's INT8 tokens need"
        );
    }
    Ok(())
}
