//! Memory
//!
//! {"kv_memory_mb": 64} is all the config that a bounded chat needs. 64 MB (10^6 bytes) is then all memory that the session's
//! caches take: raw tokens in the host's buffers, blocks, and working memory. It holds after every step, with two exceptions. A
//! step in which working memory grows, such as the first that attends, may exceed it; the next one makes room. A step of more
//! than 16 tokens, a chunk of a prompt, may exceed it by its raw tokens until the next begin of the layer: a host that pauses
//! after a prompt calls begin and end without tokens. Working memory of attention is freed after a step where it takes more than
//! an eighth of the budget. While memory is refused, tokens stay raw and nothing is dropped for them. The host calls
//! mnnkv_session_attend where mnnkv_step::attends is 1 (attend.h).
//! Sessions share no budget, and no file.
//! States of a layer, the mildest first:
//!
//!   raw         all tokens are in the host's cache, and the host attends. They take at most half of the budget: a host that
//!               grows its buffers has the old ones beside the new
//!   quantised   K has 8 bits and V 4; the first and the newest tokens stay raw
//!   file        blocks that got the least attention lately are in kv_memory_file; a step reads those that by a sketch of their
//!               keys count most: so many that it attends to 32 blocks of a head, or half if that is more (docs/config.md). A
//!               sketch is an estimate: of keys without main directions a step may miss the block that counts
//!   dropping    without a file, or once it or the room for sketches is full, they are dropped, head by head: their tokens can be
//!               attended to no more
//!
//! The first tokens, the newest 25 to 95 and pinned ones are never dropped, nor does a block with a pinned token go to the file:
//! pins that take more than the budget exceed it (over_steps). Each layer has its share, which no other takes.
//! Blocks and layers whose numbers 8 and 4 bits cannot hold stay raw, and may take more: over_steps counts it, and a warning
//! says why.
//! A budget that is too small for the model is refused by the first begin of a layer that shows it, or by a load; the
//! message has the least that would do for the layers that have begun and others like the first.
//!
//! kv_memory_file is scratch of one session: made by mnnkv_session_create, locked, and removed by
//! mnnkv_session_destroy. An empty file, or one that a killed process has left, is replaced. Any other file that exists, and a
//! symbolic link, is left alone: blocks are then dropped, which mnnkv_session_warnings reports at once, as it later does a full
//! disk. A host with a limit of file sizes (RLIMIT_FSIZE) must ignore SIGXFSZ, which else ends its process. A relative path is that
//! of the working folder at that moment. Blocks are verified by a checksum when they are read. Each layer's
//! attention waits at most kv_memory_wait_us for each token of the step; a block that comes later counts in a later step. Begin,
//! end and trim write blocks on the thread that calls. On that thread the raw tokens that fill the budget are
//! quantised, in eight steps of single tokens, in about 0.06 ms a step for each MB of the budget, or in one step of a prompt; and
//! the step in which the first blocks go to the file chooses the directions of sketches, in about 2 ms for each KV head of 128 dims. A prompt usually contains both steps. The file is
//! not encrypted and has default permissions: give it a private folder that is not backed up.

use crate::ffi::panic::body;
use crate::ffi::pointer::{self, Out, Sized32, SizedOut};
use crate::ffi::session::mnnkv_session;
use crate::ffi::status::mnnkv_status;
use crate::session::Rung;

/// mnnkv_memory_stats::state: all tokens are raw.
pub const MNNKV_MEMORY_RAW: u32 = 0;
/// Some are in 8 and 4 bits.
pub const MNNKV_MEMORY_QUANTISED: u32 = 1;
/// Some are only in the file.
pub const MNNKV_MEMORY_FILE: u32 = 2;
/// Some were dropped.
pub const MNNKV_MEMORY_DROPPING: u32 = 3;

/// The memory of a session's caches: bytes as of now, counts since create. Not counted: lists of the session and what threads and
/// the allocator keep, some 2 MB in all.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_memory_stats {
    pub struct_size: u32,
    /// MNNKV_MEMORY_*: the furthest of any layer now; DROPPING until its reset.
    pub state: u32,
    /// The budget; 0 = none.
    pub budget_bytes: u64,
    /// Tokens of a chat that the budget holds at least, raw, in half of it, and in 8 and 4 bits, with steps of one token,
    /// working memory of 512 KiB and layers like the first; 0 before the first begin. The raw tokens of a step are of the same
    /// share: with long chunks a small budget holds fewer.
    pub raw_tokens: u64,
    pub quantised_tokens: u64,
    /// raw_bytes + block_bytes + working_bytes.
    pub bytes: u64,
    /// Raw tokens in the host's buffers, with the padding of their layout; of a layer that was loaded, those that its
    /// next begin writes there, without padding.
    pub raw_bytes: u64,
    /// Blocks, and what is known of those in the file.
    pub block_bytes: u64,
    /// Working memory of begin and attend.
    pub working_bytes: u64,
    /// Length of the file.
    pub file_bytes: u64,
    /// Tokens that are only in the file, and that were dropped since the resets, over all layers. A token of one of n KV heads
    /// counts 1 / n.
    pub file_tokens: u64,
    pub dropped_tokens: u64,
    /// Heads of blocks that steps have read from the file, that came too late for a step, and that came back to stay.
    pub reads: u64,
    pub late_reads: u64,
    pub returned: u64,
    /// Bytes written to the file; writes that failed, or had no room in kv_memory_file_mb, and reads that failed; heads of blocks
    /// that the file had no more.
    pub written_bytes: u64,
    pub failed_writes: u64,
    pub failed_reads: u64,
    pub lost: u64,
    /// Steps of up to 16 tokens that ended above the share of their layer; a chunk of more may exceed it.
    pub over_steps: u64,
    /// Nanoseconds that attending threads waited for the file.
    pub wait_ns: u64,
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_memory_stats {
    const MIN: usize = size_of::<Self>();
}

/// Reads the memory of a session's caches. Any thread.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_memory(
    session: *const mnnkv_session,
    stats: *mut mnnkv_memory_stats,
) -> mnnkv_status {
    body!({
        let session = &pointer::reference(session, "session")?.session;
        let out = SizedOut::new(stats, "stats")?;
        let found = session.memory_stats()?;
        out.set(&mnnkv_memory_stats {
            struct_size: 0,
            state: match found.rung {
                Rung::Raw => MNNKV_MEMORY_RAW,
                Rung::Quantised => MNNKV_MEMORY_QUANTISED,
                Rung::File => MNNKV_MEMORY_FILE,
                Rung::Dropping => MNNKV_MEMORY_DROPPING,
            },
            budget_bytes: found.budget_bytes,
            raw_tokens: found.raw_tokens,
            quantised_tokens: found.quantised_tokens,
            bytes: found.bytes,
            raw_bytes: found.raw_bytes,
            block_bytes: found.block_bytes,
            working_bytes: found.working_bytes,
            file_bytes: found.file_bytes,
            file_tokens: found.file_tokens,
            dropped_tokens: found.dropped_tokens,
            reads: found.reads.read,
            late_reads: found.reads.late,
            returned: found.returned,
            written_bytes: found.written_bytes,
            failed_writes: found.failed_writes,
            failed_reads: found.reads.failed,
            lost: found.lost,
            over_steps: found.over_steps,
            wait_ns: found.reads.wait_ns,
        });
        Ok(())
    })
}

/// Sets the budget to `bytes`, or the least that the model may have if that is more, from now on, for a system that is short
/// of memory (onTrimMemory and its like), and lets blocks go to the file, or be dropped, until it holds. Layers with an open step, and
/// raw tokens that take more, follow in their next begin. A later call with more bytes lets blocks come back as they are
/// used; those that were dropped do not. Any thread. Waits for calls with the session that run, also for a park or a save, but
/// never for attention; and writes blocks to the file before it returns, so do not call it on a thread that must not wait.
/// *in_use: bytes in use afterwards; may be NULL.
/// INVALID_ARGUMENT: if the config sets no budget
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_trim(session: *mut mnnkv_session, bytes: u64, in_use: *mut u64) -> mnnkv_status {
    body!({
        let session = &pointer::reference(session, "session")?.session;
        let in_use = Out::optional(in_use, "in_use")?;
        let left = session.trim(bytes)?;
        in_use.into_iter().for_each(|out| out.set(left));
        Ok(())
    })
}
