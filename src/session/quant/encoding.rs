//! Blocks of the tokens of a cache, made in memory that stays.

use crate::attend::{BLOCK, Block, EncodeWork, Shape, Unfit};
use crate::dtype::convert::{Endian, widen};
use crate::layout::{self, CacheRef, Kind};
use crate::status::{Result, bail};
use crate::sys::memory;

/// Working memory that the layers of a session share.
#[derive(Default)]
pub struct Encoding {
    work: EncodeWork,
    block: Block,
    /// Rows of K and V of a block, `[head][token][dim]` as they are in the cache.
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Encoding {
    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.work.bytes() + self.block.bytes() + self.key.capacity() + self.value.capacity()
    }

    /// Encodes the block of tokens from `first` on.
    pub(super) fn encode(
        &mut self,
        shape: Shape,
        cache: &CacheRef<'_>,
        first: u32,
    ) -> Result<std::result::Result<&Block, Unfit>> {
        let (layout, rows, Encoding { work, block, key, value }) = (cache.layout, cache.layout.rows(), self);
        let (Kind::Float(key_type), Kind::Float(value_type)) = (rows.key, rows.value) else {
            bail!(Internal, "blocks of {rows}");
        };
        memory::resize(key, rows.key_bytes(BLOCK))?;
        memory::resize(value, rows.value_bytes(BLOCK))?;
        layout::gather(cache, layout.range(first, BLOCK as u32)?, key, value)?;
        let (key_head, value_head) = (key.len() / rows.heads, value.len() / rows.heads);
        let fit = block.encode(shape, rows.heads, work, |head, keys, values| {
            widen(key_type, Endian::Native, &key[head * key_head..][..key_head], keys);
            widen(value_type, Endian::Native, &value[head * value_head..][..value_head], values);
            Ok(())
        })?;
        Ok(fit.map(|()| &*block))
    }
}
