//! Exports of the store room.

use super::layout::{self, mnnkv_layout};
use super::panic::{Handle, guard};
use super::pointer::{self, Out, Sized32, SizedOut};
use super::status::mnnkv_status;
use super::version;
use crate::gear::{Effort, Format, Predictors};
use crate::status::{Result, bail};
use crate::store::{Cache, Config, Statistics, Store};
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
/// and, whenever it edits the layer's cache, mnnkv_store_compacted or mnnkv_store_truncated. Between commit and restore
/// the host must neither read nor write released tokens; it may move them together with others, and copy the whole
/// cache to a larger buffer. A store may serve any number of layers; numbers are the host's. One thread at a time,
/// except mnnkv_store_stats. This version starts no threads and works inside the calls; it keeps working memory of
/// about four times the raw bytes of its largest block.
pub struct mnnkv_store(Handle<Store>);

/// How a store works. Zero every field, then set struct_size; a NULL pointer means the same as all zeros.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct mnnkv_store_config {
    /// sizeof(mnnkv_store_config)
    pub struct_size: u32,
    /// Threads of the store; 0 = work inside the calls. This version has no others: UNSUPPORTED.
    pub workers: u32,
    /// MNNKV_PREDICT_* of format V1, which the store's blobs are of, to try on K; 0 = all.
    pub key_predictors: u32,
    /// MNNKV_PREDICT_* of format V1 to try on V; 0 = all.
    pub value_predictors: u32,
    /// As mnnkv_gear_options::effort.
    pub effort: i32,
    /// Must be 0.
    pub reserved: [u32; 3],
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_store_config {
    const MIN: usize = 32;
}
const _: () = assert!(size_of::<mnnkv_store_config>() == 32);

impl mnnkv_store_config {
    fn check(&self) -> Result<Config> {
        if self.workers > 0 {
            bail!(Unsupported, "config->workers is {}; this version works inside the calls (0)", self.workers);
        }
        pointer::reserved(&self.reserved, "config")?;
        Ok(Config {
            key_predictors: Predictors::from_bits(self.key_predictors, Format::V1)?,
            value_predictors: Predictors::from_bits(self.value_predictors, Format::V1)?,
            effort: Effort::new(self.effort, "config->effort")?,
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
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_store_statistics {
    const MIN: usize = 128;
}
const _: () = assert!(size_of::<mnnkv_store_statistics>() == 128);

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

/// Makes an empty store. abi_version: MNNKV_ABI_VERSION. out: the handle, to be given to mnnkv_store_destroy.
/// UNSUPPORTED: the library has another ABI, or the config asks for what this version cannot do. Any thread.
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
        out.set(Box::into_raw(Box::new(mnnkv_store(Handle::new(Store::new(config))))));
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

/// Copies tokens begin .. begin + count of a layer out of the cache and encodes them. The cache is only read, and
/// not needed once the call returns; the tokens stay raw until mnnkv_store_commit.
///
/// ticket: the block's number. 64 to 256 tokens a block are a good choice. A block that would not shrink is not kept
/// and counted (no_gain_blocks): its tokens stay raw, which is not an error. Submitting the same tokens with the same
/// content again costs no encoding; other content replaces the block.
/// INVALID_ARGUMENT: count is 0, the range is not inside max_tokens, or it overlaps released tokens. OUT_OF_MEMORY: the
/// tokens stay raw.
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
            let layout = layout::checked(layout)?;
            let (key, value) = layout::buffers(&layout, key, value)?;
            let ticket = Out::new(ticket, "ticket")?;
            let range = layout.range(begin, count)?;
            ticket.set(store.submit(layer, &layout, key, value, range)?);
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
            let (layout, key, value) = layout::checked_cache(layout, key, value)?;
            let released_bytes = Out::new(released_bytes, "released_bytes")?;
            released_bytes.set(store.commit(layer, Cache { layout: &layout, key, value })?);
            Ok(())
        })
    }
}

/// Starts decoding the layer's released blocks in the background. This version has no background: it does nothing and
/// answers OK.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_store_prefetch(store: *mut mnnkv_store, layer: u32) -> mnnkv_status {
    let _ = layer;
    // SAFETY: the caller vouches for its pointers.
    unsafe { with(store, |_| Ok(())) }
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
            let (layout, key, value) = layout::checked_cache(layout, key, value)?;
            let restored_bytes = Out::new(restored_bytes, "restored_bytes")?;
            restored_bytes.set(store.restore(layer, Cache { layout: &layout, key, value })?);
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
/// INVALID_ARGUMENT: pairs that are negative, overlap or do not ascend; nothing has changed then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_store_compacted(
    store: *mut mnnkv_store,
    layer: u32,
    reserve_pairs: *const i32,
    n_pairs: usize,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe { with(store, |store| store.compacted(layer, layout::reserve_pairs(reserve_pairs, n_pairs)?)) }
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
            statistics.set(&store.statistics().into());
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
