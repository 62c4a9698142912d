//! Parking: a layer's memory while no step is due
//!
//! mnnkv_session_park compresses all tokens of a layer, smaller and more slowly than the store does, and returns the
//! memory of its buffers to the system. The next mnnkv_session_begin of the layer writes them back bit for bit, on all
//! cores. Every config can be parked, {} included. Eviction, edits and positions work on parked layers as on others. A host
//! parks each layer after a turn:
//!
//!   for (layer = 0; layer < layers && status == MNNKV_OK; ++layer)
//!       status = mnnkv_session_park(session, layer, &options, &caches[layer], &parked);
//!
//! A message that arrives meanwhile must not wait: another thread calls mnnkv_session_interrupt, the loop ends with
//! MNNKV_BUSY, and begin, which ends the interruption, writes the parked layers back. After park the buffers of a
//! floating-point cache may be freed: the next mnnkv_session_begin or _keep must get buffers with room for the tokens. Those
//! of a quantised cache must stay, or be copied as a whole. A host with a snapshot may append before it parks, or after.

use crate::ffi::cache::mnnkv_cache;
use crate::ffi::panic::body;
use crate::ffi::pointer::{self, Sized32, SizedOut};
use crate::ffi::session::{mnnkv_session, with_cache_or_none};
use crate::ffi::status::mnnkv_status;
use crate::gear::Effort;
use crate::status::{Result, bail};
use crate::store::{Packing, Parked};
use crate::sys;

/// How tokens are encoded. NULL = all defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_park_options {
    /// sizeof(mnnkv_park_options)
    pub struct_size: u32,
    /// 1 = fastest .. 9 = smallest; 0 = 5, and 1 in mnnkv_snapshot_append. 2 and 3, 4 to 6, 7 and 8 are alike; 5 takes up
    /// to twice as long as 1, and 7 nearly four times as long as 5.
    pub effort: i32,
    /// Threads that compress, the calling one included; 0 = one for each core.
    pub threads: u32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_park_options {
    const MIN: usize = 16;
}

/// The outcome of mnnkv_session_park. All 0 if the layer was parked already; that call needs its layout and buffers, too.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_parked {
    /// sizeof(mnnkv_parked)
    pub struct_size: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Bytes of the tokens.
    pub raw_bytes: u64,
    /// Bytes of their blobs.
    pub encoded_bytes: u64,
    /// Bytes of the buffers that returned to the system.
    pub released_bytes: u64,
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_parked {
    const MIN: usize = size_of::<Self>();
}

/// Reads how pieces are encoded. `effort`: the default.
///
/// # Safety
/// `options` is NULL or as the header says.
pub(super) unsafe fn read_options(options: *const mnnkv_park_options, effort: Effort) -> Result<Packing> {
    let cores = sys::cores() as usize;
    // SAFETY: passed on.
    let Some(given) = (unsafe { pointer::options(options, "options") })? else {
        return Ok(Packing { effort, threads: cores });
    };
    pointer::reserved(&[given.reserved], "options")?;
    let threads = if given.threads == 0 { cores } else { (given.threads as usize).min(cores) };
    let effort = if given.effort == 0 { effort } else { Effort::new(given.effort, "options->effort")? };
    Ok(Packing { effort, threads })
}

/// Compresses all tokens of a layer between steps, however few are new, and releases the memory of its cache; a layer that
/// is parked stays so, but for tokens rewritten since. Blocks while it compresses. Working memory: 8,192 tokens of the
/// layer, and for each thread six times the K of one head of them.
/// cache: as of mnnkv_session_begin; without tokens it may have no layout and no buffers.
/// parked: may be NULL.
/// INVALID_ARGUMENT: if layer is out of range or open, kv_len or cache does not fit it, or an option is out of range
/// BUSY: if the session is interrupted
/// CORRUPT: if tokens in the store do not decode
///
/// After a failure the layer is not parked, and its tokens are unchanged.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_park(
    session: *mut mnnkv_session,
    layer: u32,
    options: *const mnnkv_park_options,
    cache: *mut mnnkv_cache,
    parked: *mut mnnkv_parked,
) -> mnnkv_status {
    body!({
        let out = if parked.is_null() { None } else { Some(SizedOut::new(parked, "parked")?) };
        let mut outcome = Parked::default();
        with_cache_or_none(session, cache, true, |session, cache, kv_len| {
            let packing = read_options(options, Effort::DEFAULT)?;
            outcome = session.park(layer, cache, kv_len, &packing)?;
            Ok(kv_len)
        })?;
        if let Some(out) = out {
            out.set(&mnnkv_parked {
                struct_size: 0,
                reserved: 0,
                raw_bytes: outcome.raw_bytes,
                encoded_bytes: outcome.bytes,
                released_bytes: outcome.released_bytes,
            });
        }
        Ok(())
    })
}

/// Interrupts a session (1), or ends its interruption (0), as the next begin of any layer does. While it is interrupted,
/// mnnkv_session_park and mnnkv_snapshot_append return BUSY; one that runs does so as soon as each of its threads has
/// encoded what it is at, at most 8,192 tokens of one head. Never blocks. May run at any time, beside any call but destroy.
/// INVALID_ARGUMENT: if interrupted is neither 0 nor 1
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_interrupt(session: *const mnnkv_session, interrupted: u32) -> mnnkv_status {
    body!({
        let session = &pointer::reference(session, "session")?.session;
        match interrupted {
            0 => session.interrupt(false),
            1 => session.interrupt(true),
            other => bail!(InvalidArgument, "interrupted is {other}; 0 or 1 expected"),
        }
        Ok(())
    })
}
