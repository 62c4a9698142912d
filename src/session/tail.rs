//! The buffers after the last token of INT8 V, which MNN writes and reads: the scales of every block come with some
//! appends, and kernels read the codes and the value sum of the last block up to its end. Other caches have nothing there.

use crate::layout::{self, Cache};
use crate::status::Result;
use crate::sys::pages;

/// Releases the tail again where the host's append of tokens from `began` to `len` has written to it. Only for layers whose
/// tail was released before: others have their memory for the tokens to come.
pub(super) fn release_again(cache: &mut Cache<'_>, began: u32, len: u32) {
    if let Ok(tail) = cache.layout.tail(len)
        && began < len
        && cache.layout.append_writes_tail(began)
    {
        layout::release_apart(cache, layout::TokenRange::default(), tail, &mut pages::give_back);
    }
}

/// Clears what is behind the first `len` tokens of INT8 V, such as those of a failed step: codes, and their share of
/// the value sums. Their number is unknown. The release, in place of writes, takes no private memory for what was never
/// written. K is not read behind the tokens.
pub(super) fn discard(cache: &mut Cache<'_>, len: u32) -> Result<()> {
    if cache.layout.value_sum_bytes() == 0 {
        return Ok(());
    }
    let tail = cache.layout.tail(len)?;
    layout::release_apart(cache, layout::TokenRange::default(), tail, &mut pages::give_back);
    layout::mended(cache, tail, len)
}
