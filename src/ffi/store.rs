//! Exports of the store room.

use super::cache::{self, mnnkv_layout};
use super::gear::{MNNKV_GEAR_FORMAT_V1, MNNKV_GEAR_FORMAT_V2};
use super::panic::{Handle, guard};
use super::pointer::{self, Out, Sized32, SizedOut};
use super::status::mnnkv_status;
use super::version;
use crate::gear::{Effort, Format, Predictors};
use crate::status::{Result, bail};
use crate::store::{self, Cache, Encoding, Purpose, Settings, Statistics, Store, Writes};
use crate::sys::memory;
use std::ffi::c_void;

/// Cold tokens of a model's KV cache, compressed: a handle from mnnkv_store_create.
///
/// Blocks (ranges of tokens of one layer) are resident while the cache holds their raw bytes too, and released once
/// mnnkv_store_commit gave those back. One step of a host, per layer:
///
///   mnnkv_store_restore     before attention reads the layer: every released token is back
///   ... attention ...
///   mnnkv_store_submit      tokens that have become cold: copied out and encoded
///   mnnkv_store_commit      raw bytes of everything submitted go back to the system
///
/// and, whenever it edits the layer's cache, mnnkv_store_compacted, mnnkv_store_truncated or mnnkv_store_rewritten.
/// Between commit and restore
/// the host must neither read nor write released tokens; it may move them together with others, and copy the whole
/// cache to a larger buffer. A store may serve any number of layers; numbers are the host's. One thread at a time,
/// except mnnkv_store_stats.
///
/// With workers, submit only copies the tokens and prefetch only asks: threads of the store encode and decode, and
/// sleep when there is nothing to do. They work on copies and blobs, never on the cache. Memory besides the blobs: the
/// copies that wait (max_queue, pending_bytes), the layer that was prefetched, decode_cache_bytes, and about four times
/// the raw bytes of the largest block for each thread and for the host's.
pub struct mnnkv_store(Handle<Store>);

/// How a store works. Zero every field, then set struct_size; a NULL pointer means the same as all zeros.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct mnnkv_store_config {
    /// sizeof(mnnkv_store_config)
    pub struct_size: u32,
    /// Threads of the store, at most 64; 0 = work inside the calls.
    pub workers: u32,
    /// V1: MNNKV_PREDICT_* to try on K, 0 = all. V2: must be 0.
    pub key_predictors: u32,
    /// V1: MNNKV_PREDICT_* to try on V, 0 = all. V2: must be 0.
    pub value_predictors: u32,
    /// As mnnkv_gear_options::effort.
    pub effort: i32,
    /// MNNKV_GEAR_FORMAT_* of the blobs; 0 = V1, which decodes fastest.
    pub format: u32,
    /// Blocks that may wait for a worker to encode them; 0 = 256.
    pub max_queue: u32,
    /// 1 = decode every block once after encoding it and compare; one that differs stays raw (failed_blocks). 0 = the
    /// digest that every restore checks is enough.
    pub strict_roundtrip: u32,
    /// Bytes of copies that wait and of blobs that have not replaced raw bytes yet; one block is let in where there are
    /// none. Without workers not used. 0 = as many as max_queue allows.
    pub pending_bytes: u64,
    /// Bytes of decoded rows that the store keeps beside the caches, so that restoring them again needs no decoding.
    /// Each layer with blocks has an equal share, and a block larger than that is not kept. 0 = none.
    pub decode_cache_bytes: u64,
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_store_config {
    const MIN: usize = 32;
}
const _: () = assert!(size_of::<mnnkv_store_config>() == 48);

impl mnnkv_store_config {
    fn check(&self) -> Result<Settings> {
        if self.workers > store::MOST_WORKERS {
            bail!(InvalidArgument, "config->workers is {}; 0 to {} expected", self.workers, store::MOST_WORKERS);
        }
        if self.strict_roundtrip > 1 {
            bail!(InvalidArgument, "config->strict_roundtrip is {}; 0 or 1 expected", self.strict_roundtrip);
        }
        let format = match self.format {
            0 | MNNKV_GEAR_FORMAT_V1 => Format::V1,
            MNNKV_GEAR_FORMAT_V2 => Format::V2,
            other => bail!(InvalidArgument, "config->format is {other}; 0 to 2 expected"),
        };
        let or = |value: u64, none: usize| if value == 0 { none } else { usize::try_from(value).unwrap_or(usize::MAX) };
        Ok(Settings {
            encoding: Encoding {
                format,
                key_predictors: Predictors::from_bits(self.key_predictors, format)?,
                value_predictors: Predictors::from_bits(self.value_predictors, format)?,
                effort: Effort::new(self.effort, "config->effort")?,
                strict_roundtrip: self.strict_roundtrip == 1,
            },
            workers: self.workers,
            max_queue: or(self.max_queue.into(), store::DEFAULT_QUEUE as usize),
            pending_bytes: or(self.pending_bytes, 0),
            decode_cache_bytes: or(self.decode_cache_bytes, 0),
        })
    }
}

/// What a store holds and has done. Set struct_size before the call; the fields it covers are written.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_store_statistics {
    /// sizeof(mnnkv_store_statistics)
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Now: blocks whose raw bytes are in the cache too.
    pub resident_blocks: u64,
    /// Now: blocks whose raw bytes are only in the store.
    pub released_blocks: u64,
    /// Now: raw bytes of all tokens that the blobs stand for.
    pub raw_bytes: u64,
    /// Now: bytes of all blobs. raw_bytes / compressed_bytes is the lossless ratio.
    pub compressed_bytes: u64,
    /// Now: raw bytes of tokens that are only in the store.
    pub released_raw_bytes: u64,
    /// Ever: blocks encoded.
    pub submitted_blocks: u64,
    /// Ever: blocks that would not have shrunk and were left raw.
    pub no_gain_blocks: u64,
    /// Ever: blocks dropped because the cache no longer matched them; their tokens stayed raw.
    pub stale_blocks: u64,
    /// Ever: blocks written back.
    pub restored_blocks: u64,
    /// Ever: bytes that went back to the system.
    pub released_bytes: u64,
    /// Ever: bytes written back to the cache.
    pub restored_bytes: u64,
    /// Ever: raw bytes encoded.
    pub encoded_bytes: u64,
    /// Ever: nanoseconds spent encoding them.
    pub encode_ns: u64,
    /// Ever: raw bytes decoded.
    pub decoded_bytes: u64,
    /// Ever: nanoseconds spent decoding them.
    pub decode_ns: u64,
    /// Ever: what encoded_bytes became; as they were where nothing was gained.
    pub encoded_to_bytes: u64,
    /// Now: blocks that wait for a worker or are with one, to be encoded.
    pub queued_blocks: u64,
    /// Ever: the most that were queued at once.
    pub queue_peak: u64,
    /// Ever: blocks that submit refused with BUSY.
    pub busy_blocks: u64,
    /// Ever: blocks that could not be encoded, or failed the strict check; their tokens stayed raw.
    pub failed_blocks: u64,
    /// Ever: of restored_blocks, those that a prefetch had decoded.
    pub prefetch_hits: u64,
    /// Ever: of restored_blocks, those whose decoded rows were kept.
    pub cache_hits: u64,
    /// Ever: of restored_blocks, those decoded inside mnnkv_store_restore.
    pub cache_misses: u64,
    /// Now: bytes of decoded rows beside the caches.
    pub decoded_cache_bytes: u64,
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_store_statistics {
    const MIN: usize = 128;
}
const _: () = assert!(size_of::<mnnkv_store_statistics>() == 200);

impl From<Statistics> for mnnkv_store_statistics {
    fn from(s: Statistics) -> Self {
        mnnkv_store_statistics {
            struct_size: size_of::<Self>() as u32,
            reserved: 0,
            resident_blocks: s.resident_blocks,
            released_blocks: s.released_blocks,
            raw_bytes: s.raw_bytes,
            compressed_bytes: s.compressed_bytes,
            released_raw_bytes: s.released_raw_bytes,
            submitted_blocks: s.submitted_blocks,
            no_gain_blocks: s.no_gain_blocks,
            stale_blocks: s.stale_blocks,
            restored_blocks: s.restored_blocks,
            released_bytes: s.released_bytes,
            restored_bytes: s.restored_bytes,
            encoded_bytes: s.encoded_bytes,
            encode_ns: s.encode_ns,
            decoded_bytes: s.decoded_bytes,
            decode_ns: s.decode_ns,
            encoded_to_bytes: s.encoded_to_bytes,
            queued_blocks: s.queued_blocks,
            queue_peak: s.queue_peak,
            busy_blocks: s.busy_blocks,
            failed_blocks: s.failed_blocks,
            prefetch_hits: s.prefetch_hits,
            cache_hits: s.cache_hits,
            cache_misses: s.cache_misses,
            decoded_cache_bytes: s.decoded_cache_bytes,
        }
    }
}

/// # Safety
/// `store` is NULL or live.
unsafe fn with(store: *const mnnkv_store, body: impl FnOnce(&mut Store) -> Result<()>) -> mnnkv_status {
    guard(|| {
        // SAFETY: passed on.
        let store = unsafe { pointer::reference(store, "store") }?;
        store.0.with("store", body)
    })
}

/// Makes an empty store and starts its workers. abi_version: MNNKV_ABI_VERSION. out: the handle, to be given to
/// mnnkv_store_destroy. UNSUPPORTED: the library has another ABI. OUT_OF_MEMORY: also when the system refuses a thread.
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_store_create(
    config: *const mnnkv_store_config,
    abi_version: u32,
    out: *mut *mut mnnkv_store,
) -> mnnkv_status {
    guard(|| {
        version::check_abi(abi_version)?;
        // SAFETY: the caller vouches for its pointers.
        let config = unsafe { pointer::options(config, "config") }?.unwrap_or_default().check()?;
        // SAFETY: as above.
        let out = unsafe { Out::new(out, "out") }?;
        out.set(Box::into_raw(memory::boxed(mnnkv_store(Handle::new(Store::new(config)?)))?));
        Ok(())
    })
}

/// Frees a store and every blob in it: tokens that are released at that moment are gone, so restore first what is
/// still needed. NULL is ignored. Works on a handle that answers INTERNAL. No other call may be under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_store_destroy(store: *mut mnnkv_store) {
    if store.is_null() {
        return;
    }
    guard(|| {
        // SAFETY: the caller says the handle is from create and not destroyed yet.
        drop(unsafe { Box::from_raw(store) });
        Ok(())
    });
}

/// Copies tokens begin .. begin + count of a layer out of the cache, to be encoded by a worker, or in the call when
/// there are none. The cache is only read, and not needed once the call returns; the tokens stay raw until
/// mnnkv_store_commit finds them encoded.
///
/// ticket: the block's number, as messages name it. 64 to 256 tokens a block are a good choice. A block that would not
/// shrink is not kept and counted (no_gain_blocks): its tokens stay raw, which is not an error. Submitting the same
/// range with the same content again costs no encoding and returns the ticket it has. A block whose tokens were
/// rewritten since makes way for one that overlaps it and counts as stale (stale_blocks).
/// INVALID_ARGUMENT: count is 0, the range is not inside max_tokens, or it overlaps released tokens or a block of another
/// range that still equals the cache. BUSY: max_queue or pending_bytes is reached; try again in a later step (the call
/// never blocks). OUT_OF_MEMORY: the tokens stay raw, and what the store holds is as before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_store_submit(
    store: *mut mnnkv_store,
    layer: u32,
    layout: *const mnnkv_layout,
    key: *const c_void,
    value: *const c_void,
    begin: u32,
    count: u32,
    ticket: *mut u64,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(store, |store| {
            let layout = cache::checked(layout)?;
            let (key, value) = cache::buffers(&layout, key, value)?;
            let ticket = Out::new(ticket, "ticket")?;
            let range = layout.range(begin, count)?;
            ticket.set(store.submit(layer, &layout, key, value, range, Purpose::Keep)?.ticket()?);
            Ok(())
        })
    }
}

/// Gives back the raw bytes of every block of the layer that still matches the cache. Safe to call every step.
///
/// The tokens of a released block read as zero until mnnkv_store_restore. A block whose tokens were rewritten since, or
/// that no longer fits the layout, is dropped and counted (stale_blocks): its tokens stay raw.
/// released_bytes: what went back to the system, as mnnkv_kv_release counts it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_store_commit(
    store: *mut mnnkv_store,
    layer: u32,
    layout: *const mnnkv_layout,
    key: *mut c_void,
    value: *mut c_void,
    released_bytes: *mut u64,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(store, |store| {
            let (layout, key, value) = cache::checked_cache(layout, key, value)?;
            let released_bytes = Out::new(released_bytes, "released_bytes")?;
            released_bytes
                .set(store.commit(layer, Cache { layout: &layout, key, value }, Writes::Possible)?.released_bytes);
            Ok(())
        })
    }
}

/// Asks the workers to decode the layer's released blocks, so that the next mnnkv_store_restore only copies them. Never
/// waits. Takes the memory of the layer's raw bytes until then. Without workers it does nothing; OK either way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_store_prefetch(store: *mut mnnkv_store, layer: u32) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(store, |store| {
            store.prefetch(layer);
            Ok(())
        })
    }
}

/// Writes every released token of the layer back, bit for bit, and keeps the blobs of blocks that are still whole:
/// releasing those again costs no encoding. The blob of a block that an edit has cut is dropped with the restore.
///
/// The layout may have other packing, strides or max_tokens than at submit (a cache that has grown), but the same
/// heads, head_dim and element types. restored_bytes: raw bytes written; 0 when nothing was released.
/// STALE: the layout does not fit a block. CORRUPT: a blob no longer decodes to what was submitted. In both cases the
/// message names the block, it stays in the store, and its tokens in the cache are as before; blocks before it may be
/// restored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_store_restore(
    store: *mut mnnkv_store,
    layer: u32,
    layout: *const mnnkv_layout,
    key: *mut c_void,
    value: *mut c_void,
    restored_bytes: *mut u64,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(store, |store| {
            let (layout, key, value) = cache::checked_cache(layout, key, value)?;
            let restored_bytes = Out::new(restored_bytes, "restored_bytes")?;
            restored_bytes.set(store.restore(layer, Cache { layout: &layout, key, value })?.bytes);
            Ok(())
        })
    }
}

/// Says that the layer's tokens were renumbered: only the reserve pairs are left, side by side. Call it right after
/// mnnkv_kv_compact or the host's own move.
///
/// reserve_pairs: n_pairs times (offset, length) in token numbers before the move, counted from 0: after a compact with
/// a base, put (0, base) first and add base to the other offsets. Blocks follow their tokens; released ones lose the
/// tokens that are gone and no others.
/// INVALID_ARGUMENT: pairs that are negative, overlap or do not ascend. OUT_OF_MEMORY: there is no room to cut blocks;
/// call again before any other call for this layer. In both cases the store is as before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_store_compacted(
    store: *mut mnnkv_store,
    layer: u32,
    reserve_pairs: *const i32,
    n_pairs: usize,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe { with(store, |store| store.compacted(layer, cache::pairs(reserve_pairs, n_pairs, "reserve_pairs")?)) }
}

/// Says that the layer's tokens from kv_len on are gone (rollback, history edit; 0 = the cache was cleared).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_store_truncated(store: *mut mnnkv_store, layer: u32, kv_len: u32) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(store, |store| {
            store.truncated(layer, kv_len);
            Ok(())
        })
    }
}

/// Says that the host wrote over tokens begin .. begin + count in place (a K-shift, an edit of keys): blobs of these
/// tokens are void and never restored over them. Comes after the writes and before the layer's next call.
///
/// A K-shift reads what it rewrites, so it comes after mnnkv_store_restore. Tokens that are written without being read
/// need no restore: released blocks keep their other tokens. Blocks that lost tokens count as stale (stale_blocks).
/// INVALID_ARGUMENT: begin + count overflows. OUT_OF_MEMORY: the store is as before; call again before any other call for
/// this layer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_store_rewritten(
    store: *mut mnnkv_store,
    layer: u32,
    begin: u32,
    count: u32,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(store, |store| {
            let Some(end) = begin.checked_add(count) else {
                bail!(InvalidArgument, "{count} tokens from {begin} on; fewer than 2^32 expected");
            };
            store.rewritten(layer, begin..end)
        })
    }
}

/// Reads the counters. Set statistics->struct_size first. May run beside any other call on the store; it waits for a
/// call under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_store_stats(
    store: *const mnnkv_store,
    statistics: *mut mnnkv_store_statistics,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(store, |store| {
            let statistics = SizedOut::new(statistics, "statistics")?;
            statistics.set(&store.statistics(None).into());
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::status::{MNNKV_INTERNAL, MNNKV_OK, MNNKV_UNSUPPORTED};
    use super::super::version::MNNKV_ABI_VERSION;
    use super::*;
    use std::ptr::{null, null_mut};

    #[test]
    fn after_a_caught_panic_every_call_answers_internal_and_destroy_works() {
        let mut store = null_mut();
        let mut number = 7u64;
        // SAFETY: the handle is live until destroy; other pointers are NULL or live.
        unsafe {
            assert_eq!(mnnkv_store_create(null(), MNNKV_ABI_VERSION, &mut store), MNNKV_OK);
            assert_eq!(mnnkv_store_prefetch(store, 0), MNNKV_OK);
            assert_eq!(with(store, |_| panic!("a bug")), MNNKV_INTERNAL);
            assert_eq!(mnnkv_store_prefetch(store, 0), MNNKV_INTERNAL);
            assert_eq!(mnnkv_store_truncated(store, 0, 0), MNNKV_INTERNAL);
            assert_eq!(mnnkv_store_compacted(store, 0, null(), 0), MNNKV_INTERNAL);
            assert_eq!(mnnkv_store_submit(store, 0, null(), null(), null(), 0, 1, &mut number), MNNKV_INTERNAL);
            assert_eq!(mnnkv_store_commit(store, 0, null(), null_mut(), null_mut(), &mut number), MNNKV_INTERNAL);
            assert_eq!(mnnkv_store_restore(store, 0, null(), null_mut(), null_mut(), &mut number), MNNKV_INTERNAL);
            let mut statistics = mnnkv_store_statistics::from(Statistics::default());
            assert_eq!(mnnkv_store_stats(store, &mut statistics), MNNKV_INTERNAL);
            mnnkv_store_destroy(store);
        }
        assert_eq!(number, 7);
    }

    #[test]
    fn another_abi_gets_no_store() {
        let mut store = null_mut();
        // SAFETY: pointers are NULL or live.
        unsafe { assert_eq!(mnnkv_store_create(null(), MNNKV_ABI_VERSION + 1, &mut store), MNNKV_UNSUPPORTED) };
        assert!(store.is_null());
    }
}
