//! Store: the handle
//!
//! A store keeps cold tokens of any number of layers as blobs. A block is a range of tokens of one layer that is encoded
//! as one. It is resident while the cache still holds its raw bytes, and released once commit has returned them to the
//! system. Per layer and step a host calls
//!
//!   mnnkv_store_restore     before attention reads the layer
//!   mnnkv_store_submit      after attention, for each range that has become cold
//!   mnnkv_store_commit      releases the raw bytes of encoded blocks
//!
//! and reports its own edits of the cache by mnnkv_store_compacted. Between commit and
//! restore, released tokens must be neither read nor written; they may be moved with others, and the whole cache may be
//! copied to another buffer.
//!
//! Threads. Calls must not overlap, except mnnkv_store_stats. Workers encode and decode copies and blobs, and sleep when
//! idle. Memory besides the blobs: waiting copies, decode_cache_bytes, and per thread four times
//! the raw bytes of the largest block.
//!
//! A host that has a session needs no store: a session stores cold tokens itself.

use crate::ffi::handle;
use crate::ffi::panic::{Handle, body};
use crate::ffi::pointer::{self, Sized32};
use crate::ffi::status::mnnkv_status;
use crate::gear::{Effort, Predictors};
use crate::status::{Result, bail};
use crate::store::{self, Encoding, Settings, Store};

/// The blobs of one model, and the workers that make them.
pub struct mnnkv_store(Handle<Store>);

/// Settings of a store. NULL = all defaults.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct mnnkv_store_config {
    /// sizeof(mnnkv_store_config)
    pub struct_size: u32,
    /// Most workers that work for the store at once, at most 64. 0 = submit encodes and restore decodes.
    pub workers: u32,
    /// MNNKV_PREDICT_* (gear.h) to try on K; 0 = all.
    pub key_predictors: u32,
    /// MNNKV_PREDICT_* to try on V; 0 = all.
    pub value_predictors: u32,
    /// mnnkv_gear_options::effort
    pub effort: i32,
    /// Must be 0.
    pub reserved: u32,
    /// Blocks that may wait to be encoded; 0 = 256.
    pub max_queue: u32,
    /// 1 = decode and compare every block after encoding; a block that differs stays raw (failed_blocks). 0 = rely on
    /// the checksum that each restore verifies.
    pub strict_roundtrip: u32,
    /// Bytes of copies that wait, and of blobs whose raw bytes are not released yet; one block is always admitted. Only
    /// with workers. 0 = no limit but max_queue.
    pub pending_bytes: u64,
    /// Bytes of decoded rows to keep for later restores, in equal shares per layer with blocks. A larger block is not
    /// kept. 0 = none.
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
        pointer::reserved(&[self.reserved], "config")?;
        let or = |value: u64, none: usize| if value == 0 { none } else { usize::try_from(value).unwrap_or(usize::MAX) };
        Ok(Settings {
            encoding: Encoding {
                key_predictors: Predictors::from_bits(self.key_predictors)?,
                value_predictors: Predictors::from_bits(self.value_predictors)?,
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

/// # Safety
/// `store` is NULL or live.
pub(super) unsafe fn with(store: *const mnnkv_store, body: impl FnOnce(&mut Store) -> Result<()>) -> Result<()> {
    // SAFETY: passed on.
    unsafe { pointer::reference(store, "store") }?.0.with("store", body)
}

/// Makes an empty store. Its workers are shared with the other stores and sessions of the process.
/// INVALID_ARGUMENT: if a field of config is out of range
/// OUT_OF_MEMORY: if memory or a thread is refused
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_store_create(
    config: *const mnnkv_store_config,
    abi_version: u32,
    out: *mut *mut mnnkv_store,
) -> mnnkv_status {
    body!(handle::create(abi_version, out, || {
        let config = pointer::options(config, "config")?.unwrap_or_default().check()?;
        Ok(mnnkv_store(Handle::new(Store::new(config)?)))
    }))
}

/// Frees a store and its blobs. Blocks until its jobs that have begun are done. Released tokens are lost.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_store_destroy(store: *mut mnnkv_store) {
    // SAFETY: the header is the contract.
    unsafe { handle::destroy(store) }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;
    use crate::ffi::panic::guard;
    use crate::ffi::status::{MNNKV_INTERNAL, MNNKV_OK, MNNKV_UNSUPPORTED};
    use crate::ffi::version::MNNKV_ABI_VERSION;
    use crate::store::Statistics;
    use std::ptr::{null, null_mut};

    #[test]
    fn after_a_caught_panic_every_call_returns_internal_and_destroy_works() {
        let mut store = null_mut();
        let mut number = 7u64;
        // SAFETY: the handle is live until destroy; other pointers are NULL or live.
        unsafe {
            assert_eq!(mnnkv_store_create(null(), MNNKV_ABI_VERSION, &mut store), MNNKV_OK);
            assert_eq!(guard(|| with(store, |_| panic!("a bug"))), MNNKV_INTERNAL);
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
