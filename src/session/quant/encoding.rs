//! Blocks of the tokens of a cache, made in memory that stays.

use crate::attend::{BLOCK, Block, EncodeWork, Shape, Unfit, Widths};
use crate::dtype::convert::{Endian, widen};
use crate::layout::{self, CacheRef, Kind};
use crate::status::{Result, bail};
use crate::sys::memory;

/// Working memory that the layers of a session share.
#[derive(Default)]
pub struct Encoding {
    work: EncodeWork,
    block: Block,
    /// Rows of K and V of a head of a block, `[token][dim]` as they are in the cache.
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Encoding {
    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.work.bytes() + self.block.bytes() + self.key.capacity() + self.value.capacity()
    }

    /// Encodes the block of tokens from `first` on, in k4v4 by `widths` where it fits.
    pub(super) fn encode(
        &mut self,
        shape: Shape,
        widths: Option<&mut Widths>,
        cache: &CacheRef<'_>,
        first: u32,
    ) -> Result<std::result::Result<&Block, Unfit>> {
        let (layout, rows, Encoding { work, block, key, value }) = (cache.layout, cache.layout.rows(), self);
        let (Kind::Float(key_type), Kind::Float(value_type)) = (rows.key, rows.value) else {
            bail!(Internal, "blocks of {rows}");
        };
        let range = layout.range(first, BLOCK as u32)?;
        memory::resize(key, rows.key_bytes(BLOCK) / rows.heads)?;
        memory::resize(value, rows.value_bytes(BLOCK) / rows.heads)?;
        let fit = block.encode(shape, rows.heads, widths, work, |head, keys, values| {
            if !layout::gather_head(cache, head as u32, range, key, value) {
                bail!(Internal, "head {head} of {}", rows.heads);
            }
            widen(key_type, Endian::Native, key, keys);
            widen(value_type, Endian::Native, value, values);
            Ok(())
        })?;
        // With many channels in 16 bits.
        let is_less = block.code_bytes() < rows.key_bytes(BLOCK) + rows.value_bytes(BLOCK);
        Ok(fit.and(if is_less { Ok(&*block) } else { Err(Unfit::Error) }))
    }
}
