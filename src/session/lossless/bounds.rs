//! The bounds of the store's memory beside the caches.

use crate::session::config::LosslessRules;

/// Automatic bounds: one 256th of all raw bytes for bytes under way, one 512th for decoded rows. With the working memory
/// of the codecs the sum must stay below 2 % of the raw bytes while little is compressed.
const PENDING_SHARE: usize = 256;
const DECODE_CACHE_SHARE: usize = 512;
/// The least automatic bound for bytes under way: for small caches, and so that one block waits while one is encoded.
const LEAST_PENDING: usize = 1 << 20;
const LEAST_PENDING_BLOCKS: usize = 2;

/// Bytes that may be under way, and bytes of decoded rows that may be kept. `raw_bytes` are those of all caches.
pub(super) fn bounds(rules: &LosslessRules, raw_bytes: usize, token_bytes: usize) -> (usize, usize) {
    let block = token_bytes * rules.block_tokens as usize;
    let pending = (raw_bytes / PENDING_SHARE).max(LEAST_PENDING).max(LEAST_PENDING_BLOCKS * block);
    let decoded = match rules.decode_cache_bytes {
        0 => raw_bytes / DECODE_CACHE_SHARE,
        bytes => usize::try_from(bytes).unwrap_or(usize::MAX),
    };
    (pending, decoded.min(block.saturating_mul(rules.decode_cache_blocks as usize)))
}
