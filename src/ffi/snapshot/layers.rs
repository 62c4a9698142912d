//! Snapshot: the layers of a session
//!
//! A host saves between steps: mnnkv_snapshot_append for each layer, its own sections, and a commit. To go on, also in
//! another process and with another packing of its caches, it opens the file, makes a session, and loads:
//!
//!   mnnkv_snapshot_load(snapshot, session, MNNKV_ALL_LAYERS);
//!   mnnkv_session_lengths(session, layer, &logical, &cache.kv_len);   // then mnnkv_session_begin as always
//!
//! Loading compares the tokens with their checksums, as fast as memory is read, and decodes none: raw ones stay in the
//! file until begin writes them to the cache; with io they are kept in memory as encoded. Quantised ones come to
//! memory, and where the budget has no room for them go to its file, or are dropped. Several sessions may load one
//! snapshot, such as that of a system prompt, and share its pages. Tokens that a session has loaded from a snapshot or
//! saved to it are not written again by a later append to the same one, unless another snapshot came between. Small
//! steps encode badly: a chat that is saved after every few tokens is larger than one that is saved after every turn.
//!
//! A turn that was not saved as a whole, after BUSY for example, should be dropped: destroy the snapshot and open it again.
//! After a commit, loading the snapshot into the same session parks all layers in the file; then the host frees its buffers.

use super::handle::{mnnkv_snapshot, with};
use super::park::{mnnkv_park_options, read_options};
use crate::ffi::cache::mnnkv_cache;
use crate::ffi::given;
use crate::ffi::panic::body;
use crate::ffi::pointer::{self, Out};
use crate::ffi::session::{layer_or_all, mnnkv_session};
use crate::ffi::status::mnnkv_status;
use crate::gear::Effort;

/// Writes the tokens of a closed layer that the snapshot lacks, and records which of its tokens the layer still has. They are
/// written at once, and part of the state from the next commit on. The layer stays as it is, parked or not. Blocks while it
/// encodes; mnnkv_session_interrupt ends it.
/// options: as of mnnkv_session_park. Tokens that are parked are written as they were encoded then.
/// cache: as of mnnkv_session_park. Where all tokens are loaded and not begun since, layout, key and value may all three be
/// NULL; where they are parked too, unless V is INT8. kv_len is always read.
/// written: tokens of the layer written; may be NULL. A layer that was given no cache since create or
/// its reset has no tokens, and is not recorded unless the snapshot has it already.
/// INVALID_ARGUMENT: if layer is out of range or open, kv_len or cache does not fit it, or the access is not APPEND
/// BUSY: if the session is interrupted
/// CORRUPT: if tokens in the store do not decode, or tokens that only a file has are damaged there. Those of kv_memory_file are
/// dropped and counted ("lost", docs/report.md), and a repeated call writes the others
/// IO: if the system or the host cannot write
///
/// After a failure the session is unchanged, and what was given before is still there.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_snapshot_append(
    snapshot: *mut mnnkv_snapshot,
    session: *mut mnnkv_session,
    layer: u32,
    options: *const mnnkv_park_options,
    cache: *mut mnnkv_cache,
    written: *mut u32,
) -> mnnkv_status {
    body!({
        let written = if written.is_null() { None } else { Some(Out::new(written, "written")?) };
        let session = &pointer::reference(session, "session")?.session;
        let given = pointer::required(cache, "cache")?;
        let has_cache = !given.layout.is_null() || !given.key.is_null() || !given.value.is_null();
        let layout = if has_cache { Some(given::checked(given.layout)?) } else { None };
        with(snapshot, |snapshot| {
            let packing = read_options(options, Effort::FASTEST)?;
            let cache = match &layout {
                Some(layout) => Some(layout.cache(given.key, given.value)?),
                None => None,
            };
            let saved = session.save(layer, cache, given.kv_len, &packing, snapshot)?;
            if let Some(written) = &written {
                written.set(saved.tokens);
            }
            Ok(())
        })
    })
}

/// Replaces a layer of a session, or all with MNNKV_ALL_LAYERS, by the committed one of a snapshot: its tokens, logical
/// positions, scores, clock and planned eviction. Layers that the snapshot has not are reset where all are loaded. The
/// snapshot may be destroyed afterwards; its file must stay. Scores are unknown if the session's config adds them up in
/// another way (aggregation, alpha, block_tokens). With the same config the chat goes on as if it had never stopped,
/// with one exception. With a budget the scores by which blocks leave memory begin anew; the last step's length, for which room
/// is kept, is unknown, so that tokens may stay raw for a step longer; and heads of dropped blocks that the file has from an
/// earlier commit come back, so that "dropped_tokens" (docs/report.md) may be less.
/// INVALID_ARGUMENT: if layer is out of range or open, the snapshot has more layers than the session, or the budget is too
/// small for them
/// NOT_FOUND: if the snapshot has not the layer, such as one that append did not record
/// UNSUPPORTED: if the layer has quantised tokens, and the session keeps that layer raw: by its config (neither kv_quant nor a
///     budget, or a later kv_quant_layer_start), or since its host does not attend
/// CORRUPT: if the layer or one of its tokens is damaged; other layers can still be loaded
/// IO: if the system or the host cannot read
///
/// After a failure no layer has changed.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_snapshot_load(
    snapshot: *const mnnkv_snapshot,
    session: *mut mnnkv_session,
    layer: u32,
) -> mnnkv_status {
    body!({
        let session = &pointer::reference(session, "session")?.session;
        with(snapshot, |snapshot| session.load(layer_or_all(layer), snapshot))
    })
}
