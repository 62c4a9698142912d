//! Working memory of a session's recall: rows on their way between caches and blobs.

use crate::gear::{Decoder, Encoder};
use crate::layout::{self, Cache, CacheRef, Pair, Rows};
use crate::recall::Scratch;
use crate::status::Result;
use crate::sys::memory;

/// Rows `[head][token][row]`, and codecs.
#[derive(Default)]
pub(in crate::session) struct Workshop {
    pub(super) encoder: Encoder,
    pub(super) decoder: Decoder,
    pub(super) blob: Vec<u8>,
    /// The ends of the parts of a blob.
    pub(super) ends: Vec<usize>,
    pub(super) floats: Vec<f32>,
    scratch: Scratch,
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    /// Rows of one of several places.
    part_key: Vec<u8>,
    part_value: Vec<u8>,
    part_floats: Vec<f32>,
}

impl Workshop {
    /// Makes the rows those of `count` tokens, with any content.
    pub(super) fn fit(&mut self, rows: &Rows, count: usize) -> Result<()> {
        memory::resize(&mut self.key, rows.key_bytes(count))?;
        memory::resize(&mut self.value, rows.value_bytes(count))
    }

    /// Makes room for rows of one of several places.
    pub(super) fn fit_places(&mut self, rows: &Rows, places: &[Pair]) -> Result<()> {
        let longest =
            if places.len() < 2 { 0 } else { places.iter().map(|place| place[1] as usize).max().unwrap_or(0) };
        memory::at_least(&mut self.part_key, rows.key_bytes(longest))?;
        memory::at_least(&mut self.part_value, rows.value_bytes(longest))?;
        Ok(())
    }

    /// Copies the tokens at physical places to the rows.
    pub(super) fn gather(&mut self, cache: &CacheRef<'_>, places: &[Pair]) -> Result<()> {
        let rows = cache.layout.rows();
        let count = tokens(places);
        self.fit(&rows, count)?;
        self.fit_places(&rows, places)?;
        let mut at = 0;
        for &[begin, len] in places {
            let range = cache.layout.range(begin as u32, len as u32)?;
            if range.count() == count {
                return layout::gather(cache, range, &mut self.key, &mut self.value);
            }
            let key = &mut self.part_key[..rows.key_bytes(range.count())];
            let value = &mut self.part_value[..rows.value_bytes(range.count())];
            layout::gather(cache, range, key, value)?;
            let tokens = range.count();
            for (part, all) in [(key, &mut self.key[..]), (value, &mut self.value)] {
                layout::copy_dense(rows.heads, tokens, (part, (0, tokens)), (all, (at, count)));
            }
            at += tokens;
        }
        Ok(())
    }

    /// Writes the rows to physical places of a cache of `len` tokens. Cannot fail after [`Workshop::fit_places`] if the
    /// cache has these places.
    pub(super) fn scatter(&mut self, cache: &mut Cache<'_>, places: &[Pair], len: u32) -> Result<()> {
        let rows = cache.layout.rows();
        let count = tokens(places);
        let mut at = 0;
        for &[begin, tokens] in places {
            let range = cache.layout.range(begin as u32, tokens as u32)?;
            if range.count() == count {
                layout::scatter(cache, range, &self.key, &self.value)?;
            } else {
                let key = &mut self.part_key[..rows.key_bytes(range.count())];
                let value = &mut self.part_value[..rows.value_bytes(range.count())];
                let tokens = range.count();
                for (all, part) in [(&self.key[..], &mut *key), (&self.value, &mut *value)] {
                    layout::copy_dense(rows.heads, tokens, (all, (at, count)), (part, (0, tokens)));
                }
                layout::scatter(cache, range, key, value)?;
            }
            layout::changed(cache, range, len)?;
            at += range.count();
        }
        Ok(())
    }

    /// The keys at physical places as f32 `[head][token][dim]`, and their number.
    pub(super) fn keys(&mut self, cache: &CacheRef<'_>, places: &[Pair]) -> Result<(&[f32], usize)> {
        let rows = cache.layout.rows();
        let count = tokens(places);
        let numbers = rows.heads * count * rows.dims;
        memory::at_least(&mut self.floats, numbers)?;
        if let [[begin, len]] = *places {
            let range = cache.layout.range(begin as u32, len as u32)?;
            layout::keys(cache, range, &mut self.key, &mut self.floats[..numbers])?;
            return Ok((&self.floats[..numbers], count));
        }
        let mut at = 0;
        for &[begin, len] in places {
            let range = cache.layout.range(begin as u32, len as u32)?;
            let tokens = range.count();
            let part = memory::at_least(&mut self.part_floats, rows.heads * tokens * rows.dims)?;
            layout::keys(cache, range, &mut self.key, part)?;
            let all = &mut self.floats[..numbers];
            layout::copy_dense(rows.heads, tokens, (part, (0, tokens)), (all, (at, count)));
            at += tokens;
        }
        Ok((&self.floats[..numbers], count))
    }

    /// The first `len` numbers of the last keys, and memory for estimates.
    pub(super) fn keys_and_scratch(&mut self, len: usize) -> (&[f32], &mut Scratch) {
        (&self.floats[..len], &mut self.scratch)
    }

    /// The keys of the rows, of `count` tokens.
    pub(super) fn keys_of_rows(&mut self, rows: &Rows, count: usize) -> Result<&[f32]> {
        let floats = memory::at_least(&mut self.floats, rows.heads * count * rows.dims)?;
        layout::keys_of_rows(rows, &self.key, floats);
        Ok(floats)
    }
}

fn tokens(places: &[Pair]) -> usize {
    places.iter().map(|place| place[1] as usize).sum()
}
