//! Scores: block sums
//!
//! A session with kv_h2o_enable evicts by the attention that the host sums in its own attention loop, where the softmax tiles are
//! near. With a mnnkv_block_sums per thread it calls, where mnnkv_step::scored_rows of begin is above 0,
//!
//!   mnnkv_sum_tile             per softmax tile, on the attention threads: inline, without a call of the library
//!   mnnkv_session_block_sums   per head, after its last tile
//!
//! Heads may come from any lane and thread. Before end all heads and rows that are scored must have come, or none: then scores do
//! not change. Of a prompt, that is a step on an empty layer or of more than 64 rows, at most the last kv_h2o_prefill_queries rows
//! are scored; of other steps all. A host that has sums by block already needs no mnnkv_sum_tile.
//!
//! Split rows. With flash decoding, threads attend to parts of a head's tokens, each with a maximum m and a sum l per
//! row, and a reduction gives the maximum M and the sum L of whole rows. Each part has a mnnkv_block_sums of its own,
//! whose flags say whether it has the first and the last tokens of the rows. Tiles are flagged as if the part were a
//! head, without row_sum. After the reduction, multiply factors of the part by exp(m - M) / L and hand it over. Parts
//! may come in any order and from any lane. Together they must have each token of the rows once.

use crate::ffi::panic::body;
use crate::ffi::pointer::{self, Sized32};
use crate::ffi::session::mnnkv_session;
use crate::ffi::status::mnnkv_status;
use crate::h2o::{self, BlockSums, SumFields};
use crate::status::{Result, bail};
use std::ffi::c_void;

/// mnnkv_score_tile::flags: the first and the last tile of a query head; both for its only tile.
pub const MNNKV_TILE_FIRST: u32 = 1;
pub const MNNKV_TILE_LAST: u32 = 2;

/// mnnkv_block_sums::state: what the last tile led to. Complete: the host may hand over; the others are errors of tiles,
/// except open.
pub const MNNKV_SUMS_COMPLETE: u32 = 0;
pub const MNNKV_SUMS_OPEN: u32 = 1;
pub const MNNKV_SUMS_NO_FIRST: u32 = 2;
pub const MNNKV_SUMS_BAD_TILE: u32 = 3;
pub const MNNKV_SUMS_GAP: u32 = 4;
pub const MNNKV_SUMS_NO_ROOM: u32 = 5;
pub const MNNKV_SUMS_BAD_SCALE: u32 = 6;

/// No tile reaches past this token.
pub const MNNKV_SUMS_MAX_TOKENS: u32 = 16777216;

/// Softmax values of one or more query heads for consecutive tokens, before the product with V.
/// data holds exp(x - m), with m the maximum of the row so far (flash attention), or finished probabilities. The
/// attention is computed exactly: value * product of the later update_scale of its row / row_sum.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_score_tile {
    /// sizeof(mnnkv_score_tile)
    pub struct_size: u32,
    /// MNNKV_DTYPE_F16, BF16 or F32.
    pub dtype: u32,
    /// 0 = rows [queries][tokens]. Else [UP(tokens, pack)][queries][pack], where elements past the last token are not
    /// read; 4, 8 or 16 in MNN.
    pub pack: u32,
    /// Rows, at least 1: all rows of the step, the same number in every tile of a head. Rows of several heads may be
    /// one tile, which saves calls. With pack >= tokens, pack is the row stride.
    pub queries: u32,
    /// Tokens, at least 1.
    pub tokens: u32,
    /// The physical position of the first token.
    pub token_begin: u32,
    /// MNNKV_TILE_*.
    pub flags: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The values, all >= 0 (0 for masked tokens), at any alignment.
    pub data: *const c_void,
    /// [queries], or NULL for all 1: scales what the head has gathered in earlier tiles, exp(old m - new m). Not read
    /// in first tiles.
    pub update_scale: *const f32,
    /// [queries], or NULL for all 1: sum of each row over all tokens, in last tiles only.
    pub row_sum: *const f32,
}

/// Softmax values of one or more query heads, summed per block, in memory of the host.
///
/// A block has block_tokens tokens by physical position. The attention of row r to block i is sums[i][r] * factors[r].
/// Set struct_size, flags, heads, rows, block_tokens, blocks, sums and factors before the first tile; the struct may be
/// used again for the next head. A host that sums otherwise also sets token_begin and token_end, and no later field.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_block_sums {
    /// sizeof(mnnkv_block_sums)
    pub struct_size: u32,
    /// MNNKV_TILE_FIRST and MNNKV_TILE_LAST: the sums have the first and the last token of the rows. Both, except for
    /// parts of split rows.
    pub flags: u32,
    /// Query heads, at least 1.
    pub heads: u32,
    /// Rows that count, [heads][rows / heads]; the last of each head, as mnnkv_step::scored_rows says.
    pub rows: u32,
    /// Tokens of a block, as mnnkv_step::block_tokens says.
    pub block_tokens: u32,
    /// Blocks that sums has room for. The memory may be moved and grow between tiles.
    pub blocks: u32,
    /// [blocks][rows]; the first block is that of token_begin.
    pub sums: *mut f64,
    /// [rows]; NULL = all 1, for hosts that sum otherwise.
    pub factors: *mut f64,
    /// The first token. Written by mnnkv_sum_tile, as are all further fields.
    pub token_begin: u32,
    /// The token after the last one.
    pub token_end: u32,
    /// MNNKV_SUMS_*.
    pub state: u32,
    /// Rows of a tile.
    pub queries: u32,
    /// Blocks with sums.
    pub used: u32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: repr(C), begins with a u32, integers and raw pointers only.
unsafe impl Sized32 for mnnkv_block_sums {
    const MIN: usize = size_of::<mnnkv_block_sums>();
}

const _: () = assert!(MNNKV_SUMS_MAX_TOKENS == h2o::MAX_TOKENS);
const _: () = assert!(MNNKV_TILE_FIRST == SumFields::FIRST && MNNKV_TILE_LAST == SumFields::LAST);

/// Adds block sums to an open layer. Never blocks. The memory may be reused after the call.
/// lane: below the `lanes` of create; one thread at a time. Results do not depend on which lane has which head. Threads with a
/// lane each may call at once, but not while another call with a non-const session runs.
///
/// Heads and rows are counted by end. Layers that are not scored only check the fields.
/// INVALID_ARGUMENT: if layer or lane is out of range, the layer is not open, or the lane is in use
/// INVALID_ARGUMENT: if state is not MNNKV_SUMS_COMPLETE: a tile did not fit, which the text names, or is missing
/// INVALID_ARGUMENT: if a field is out of range, or block_tokens is not that of mnnkv_step
/// INVALID_ARGUMENT: if the attention of all rows to a block is NaN, infinite, negative or above 2^32
///
/// After a failure nothing is added. end returns INVALID_ARGUMENT if split rows lack a part or have one twice.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_block_sums(
    session: *mut mnnkv_session,
    layer: u32,
    lane: u32,
    sums: *const mnnkv_block_sums,
) -> mnnkv_status {
    body!({
        let session = &pointer::reference(session, "session")?.session;
        let mut room = None;
        let given = pointer::in_place(sums, "sums", &mut room)?;
        session.block_sums(layer, lane, &checked(given)?)
    })
}

/// # Safety
/// The arrays are readable as the fields say, and do not change, for `'a`.
unsafe fn checked(given: &mnnkv_block_sums) -> Result<BlockSums<'_>> {
    let mnnkv_block_sums { flags, heads, rows, block_tokens, blocks, token_begin, token_end, .. } = *given;
    pointer::reserved(&[given.reserved], "sums")?;
    check_state(given)?;
    let fields = SumFields { flags, heads, rows, block_tokens, blocks, token_begin, token_end };
    let len = fields.check()?;
    // SAFETY: passed on.
    let sums = unsafe { pointer::input(given.sums.cast_const(), len, "sums->sums") }?;
    let factors = match given.factors.is_null() {
        true => None,
        // SAFETY: passed on.
        false => Some(unsafe { pointer::input(given.factors.cast_const(), rows as usize, "sums->factors") }?),
    };
    Ok(BlockSums::new(fields, sums, factors))
}

/// INVALID_ARGUMENT: if a tile did not fit, or the last one is missing.
fn check_state(given: &mnnkv_block_sums) -> Result<()> {
    let mnnkv_block_sums { token_end, queries, rows, heads, blocks, block_tokens, .. } = *given;
    match given.state {
        MNNKV_SUMS_COMPLETE => Ok(()),
        MNNKV_SUMS_OPEN => bail!(
            InvalidArgument,
            "sums->state is OPEN: a tile with LAST (2) in its flags expected after token {token_end}"
        ),
        MNNKV_SUMS_NO_FIRST => bail!(
            InvalidArgument,
            "sums->state is NO_FIRST: a tile without FIRST (1) in its flags came, and no head had begun"
        ),
        MNNKV_SUMS_BAD_TILE => bail!(
            InvalidArgument,
            "sums->state is BAD_TILE: after token {token_end}, a tile of {queries} rows expected, F16, BF16 or F32, with \
             data, tokens, and a row_sum only in the last one; sums has {rows} rows, {heads} heads and {block_tokens} \
             block_tokens"
        ),
        MNNKV_SUMS_GAP => bail!(
            InvalidArgument,
            "sums->state is GAP: a tile that begins at token {token_end} and ends by {MNNKV_SUMS_MAX_TOKENS} expected"
        ),
        MNNKV_SUMS_NO_ROOM => bail!(
            InvalidArgument,
            "sums->state is NO_ROOM: token {token_end} is in a block after the last; blocks is {blocks}"
        ),
        MNNKV_SUMS_BAD_SCALE => bail!(
            InvalidArgument,
            "sums->state is BAD_SCALE: a tile up to token {token_end} has an update_scale below 0, or a row_sum that is \
             not above 0 and finite"
        ),
        state => bail!(InvalidArgument, "sums->state is {state}; MNNKV_SUMS_COMPLETE (0) expected"),
    }
}
