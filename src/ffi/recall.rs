//! Recall
//!
//! With kv_recall_enable the tokens that a session evicts are not lost. Each is part of a block of kv_recall_block_tokens
//! tokens, which is parked in memory or in the chat's file, and comes back when the newest queries want it:
//!
//!   cache.step_tokens = 1;                                 // tokens that the step appends: budgets hold for that many
//!   mnnkv_session_begin(session, layer, &cache);           // blocks come back, in the place of others or behind all tokens;
//!                                                          // others leave. kv_len may be larger than before
//!   mnnkv_session_queries(session, layer, &queries);       // any time before end
//!   mnnkv_session_end(session, layer, 0, rows, &cache);    // judges all blocks by the queries, and chooses
//!
//! Tokens of a cache then are in any order. Attention does not depend on it; mnnkv_session_positions tells it. A mask may
//! refer to the tokens of the step alone. Tiles are not used: mnnkv_session_wants_scores is 0.
//!
//! A block comes back only if the buffers have room for it beside step_tokens (layout->max_tokens), and stays away otherwise.
//! A step that appends more than step_tokens may exceed kv_h2o_max_tokens until the next begin.
//!
//! mnnkv_session_keep edits tokens wherever they are. Pinned tokens that are away come back. mnnkv_session_rewritten
//! concerns tokens of the cache: those that are away keep their rotation. A snapshot has all tokens of a layer. A session
//! without recall that loads it has them all in its cache: the host must have room for mnnkv_session_lengths. docs/config.md,
//! "Recall", has the rules and the keys.

use crate::ffi::given;
use crate::ffi::panic::body;
use crate::ffi::pointer::{self, Sized32, SizedOut};
use crate::ffi::session::{MNNKV_ALL_LAYERS, mnnkv_session};
use crate::ffi::snapshot::mnnkv_snapshot;
use crate::ffi::status::mnnkv_status;
use crate::session::Queries;
use crate::status::Result;
use std::ffi::c_void;

/// The query rows of a step of a layer, after their rotation, as its attention gets them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_queries {
    pub struct_size: u32,
    /// MNNKV_DTYPE_F16, BF16 or F32.
    pub dtype: u32,
    /// Query heads, a multiple of the KV heads: head h reads KV head h / (heads / kv_heads).
    pub heads: u32,
    /// Rows of each head, at least 1, in the order of their tokens: all of the step, or the last ones, of which a session
    /// uses kv_recall_query_window.
    pub rows: u32,
    /// Elements of a row, as the layout's.
    pub head_dim: u32,
    /// The factor of a logit; 0 = 1 / sqrt(head_dim).
    pub scale: f32,
    /// Bytes from a head to the next, and from a row to the next. Both 0: [rows][heads][head_dim], as MNN has them.
    pub head_stride: u64,
    pub row_stride: u64,
    /// The elements, at any alignment.
    pub data: *const c_void,
}

// SAFETY: repr(C), begins with a u32, integers and raw pointers only.
unsafe impl Sized32 for mnnkv_queries {
    const MIN: usize = size_of::<mnnkv_queries>();
}

/// The queries as slices.
///
/// # Safety
/// `data` is NULL or readable as the fields say, for `'a`.
unsafe fn checked<'a>(given: &mnnkv_queries) -> Result<Queries<'a>> {
    let (shape, strides) = ((given.heads, given.rows, given.head_dim), (given.head_stride, given.row_stride));
    let queries = given::query_rows((given.dtype, "queries->dtype"), shape, strides, given.scale)?;
    let bytes = queries.bytes().map_err(|error| error.within("queries"))?;
    // SAFETY: passed on.
    let data = unsafe { pointer::input_bytes(given.data, bytes, "queries->data") }?;
    Ok(Queries { data, ..queries })
}

/// Gives the queries of a step of an open layer, before end; a second call replaces the first. Copies the last rows, at most
/// kv_recall_query_window. Layers without recall ignore them. Without queries blocks leave by age, and none comes back for
/// its worth.
/// INVALID_ARGUMENT: if layer is out of range or not open, heads is no multiple of the KV heads, head_dim is not
/// the layout's, an element of the last rows is not finite, scale is below 0 or not finite, or a stride is below the
/// bytes of a row
/// UNSUPPORTED: if dtype is none of these three
///
/// After a failure nothing has changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_queries(
    session: *mut mnnkv_session,
    layer: u32,
    queries: *const mnnkv_queries,
) -> mnnkv_status {
    body!({
        let session = &pointer::reference(session, "session")?.session;
        let given = pointer::required(queries, "queries")?;
        session.queries(layer, &checked(&given)?)
    })
}

/// Parks blocks in the file of a snapshot from now on, where kv_recall_tier is "file"; other sessions ignore it. Without a
/// call, or with NULL, blocks are parked in memory. Waits for a call that has the snapshot; begin and end never do: a block
/// that cannot be written at once waits in memory. Recall writes each token once; mnnkv_snapshot_append, which has no use for
/// the copies of tokens that came back, writes those again. The call may come before or after mnnkv_snapshot_load, between
/// steps, on any thread.
/// snapshot: with access APPEND, or NULL. The session retains it, and the file stays open and locked: until all layers are
/// reset (MNNKV_ALL_LAYERS), the session is destroyed, or it was given another snapshot (or NULL) and has no block in this
/// one any more. mnnkv_snapshot_destroy may come before; functions of mnnkv_snapshot_io and their user must stay valid as
/// long, and are called in begin and in end, too.
/// INVALID_ARGUMENT: if the access is not APPEND
///
/// mnnkv_snapshot_commit makes parked blocks durable with all else; mnnkv_snapshot_discard keeps them. mnnkv_snapshot_copy and
/// mnnkv_snapshot_compact leave out those that no saved layer has.
///
/// Tokens are never replaced by others: what is read is compared with a checksum. Where the file cannot be written, blocks
/// wait in memory (8, or 4 MiB), then stay in the cache; so they do beyond kv_recall_max_write_bytes. A block that cannot be
/// read stays away. mnnkv_session_recall_stats counts all of this, and mnnkv_session_warnings has the first reason.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_recall_file(
    session: *mut mnnkv_session,
    snapshot: *mut mnnkv_snapshot,
) -> mnnkv_status {
    body!({
        let session = &pointer::reference(session, "session")?.session;
        let file = match snapshot.is_null() {
            true => None,
            false => Some(pointer::reference(snapshot, "snapshot")?.0.clone()),
        };
        session.park_to(file)
    })
}

/// Recall of a layer or of all. Counts are sums since create, the others as of now.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_recall_stats {
    pub struct_size: u32,
    pub reserved: u32,
    /// Tokens of the chat that are parked and not in the cache.
    pub away_tokens: u64,
    /// Those of them that the file has no more: they cannot come back.
    pub lost_tokens: u64,
    /// Tokens of the chat, in the cache or not, that a file has.
    pub file_tokens: u64,
    /// Bytes of memory that parked copies take, with 256 KiB a layer from the first on, and summaries.
    pub parked_bytes: u64,
    pub summary_bytes: u64,
    /// Blocks that left the cache, that came back (also within one begin), and that were encoded.
    pub left_blocks: u64,
    pub returned_blocks: u64,
    pub parked_blocks: u64,
    /// Writes that were put off, since a call had the snapshot.
    pub late_writes: u64,
    /// Attempts to park, read or judge a block that failed: it stayed where it was. mnnkv_session_warnings has the first
    /// reason of each layer.
    pub failures: u64,
    /// Query rows that blocks were judged by.
    pub query_rows: u64,
    /// Bytes written to files, and read from them.
    pub written_bytes: u64,
    pub read_bytes: u64,
    /// Writes that failed, and reads that failed or were other bytes.
    pub failed_writes: u64,
    pub failed_reads: u64,
    /// Nanoseconds in begin and in end.
    pub begin_ns: u64,
    pub end_ns: u64,
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_recall_stats {
    const MIN: usize = size_of::<Self>();
}

/// Reads the recall of a layer, or of all with MNNKV_ALL_LAYERS; zeros without recall.
/// INVALID_ARGUMENT: if layer is out of range
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_recall_stats(
    session: *const mnnkv_session,
    layer: u32,
    stats: *mut mnnkv_recall_stats,
) -> mnnkv_status {
    body!({
        let session = &pointer::reference(session, "session")?.session;
        let out = SizedOut::new(stats, "stats")?;
        let found = session.recall_stats((layer != MNNKV_ALL_LAYERS).then_some(layer))?;
        out.set(&mnnkv_recall_stats {
            struct_size: 0,
            reserved: 0,
            away_tokens: found.away_tokens,
            lost_tokens: found.lost_tokens,
            file_tokens: found.file_tokens,
            parked_bytes: found.parked_bytes,
            summary_bytes: found.summary_bytes,
            left_blocks: found.counts.left,
            returned_blocks: found.counts.returned,
            parked_blocks: found.counts.parked,
            late_writes: found.counts.file.late_writes,
            failures: found.counts.failed,
            query_rows: found.counts.rows,
            written_bytes: found.counts.file.written_bytes,
            read_bytes: found.counts.file.read_bytes,
            failed_writes: found.counts.file.failed_writes,
            failed_reads: found.counts.file.failed_reads,
            begin_ns: found.counts.begin_ns,
            end_ns: found.counts.end_ns,
        });
        Ok(())
    })
}
