//! Exports of the session room.

use super::lanes::Lanes;
use super::layout::{self, mnnkv_layout};
use super::metrics::mnnkv_metrics;
use super::panic::guard;
use super::pointer::{self, Out, Sized32, SizedOut};
use super::status::mnnkv_status;
use super::version;
use crate::dtype::Dtype;
use crate::h2o::Tile;
use crate::session::{Lane, Session};
use crate::status::{Error, Result, bail};
use crate::store::Cache;
use crate::sys::memory;
use std::ffi::{c_char, c_void};

/// Names every layer at once in mnnkv_session_reset.
pub const MNNKV_ALL_LAYERS: u32 = u32::MAX;

/// mnnkv_score_tile::flags: the first tile of a query head.
pub const MNNKV_TILE_FIRST: u32 = 1;
/// mnnkv_score_tile::flags: the last tile of a query head. A head of one tile has both.
pub const MNNKV_TILE_LAST: u32 = 2;

/// The compression of one model's KV caches, run as a JSON config says: a handle from mnnkv_session_create.
///
/// A host calls, per layer and step:
///
///   mnnkv_session_begin     before it appends: the eviction planned last step is applied, compressed tokens are back
///   ... append K and V of the new tokens at the physical end, attention; its threads call
///   mnnkv_session_scores    for each softmax tile (only needed with kv_h2o_enable)
///   mnnkv_session_end       after attention: scores are folded in, the next eviction is planned, cold tokens are
///                           handed to the workers, and those that are compressed leave memory again
///
/// mnnkv_session_abort in place of end when a step failed, mnnkv_session_keep when it edits the chat's history,
/// mnnkv_session_reset when it clears a cache, and mnnkv_session_rewritten when it has written to tokens in place.
///
/// Logical positions are the chat's: a token's number since the layer was reset, which positional encodings need.
/// Physical positions are the cache's: where the token lies now. They part when tokens are evicted, per layer. The
/// session knows both; the host keeps its own count of logical tokens as ever, and takes physical lengths from
/// mnnkv_cache::kv_len.
///
/// Between begin and end the host may read every token below kv_len and append behind it; when it writes older ones, it
/// says so by mnnkv_session_rewritten before end.
/// From end to the next begin (keep, reset) it leaves the cache as it is: tokens that are compressed read as zero. It
/// may copy the whole cache to a larger buffer at any time and hand that in from then on (between end and begin such a
/// copy takes memory for compressed tokens, too, until the next end). Layers without a cache, and layers that read
/// another layer's, are never named.
///
/// Several layers may be open at once. One thread at a time, except: mnnkv_session_scores may run on several threads at
/// once, each with its own lane, but not beside begin, end, keep, reset or destroy, of whatever layer; functions with a
/// const session may run at any time (they wait for a call under way). Workers
/// (kv_lossless_async_threads, with kv_lossless_runtime_enable) sleep when idle; the host never waits for one except in
/// begin, for tokens that it would have to decode itself otherwise.
pub struct mnnkv_session {
    session: Session,
    lanes: Lanes,
}

/// A layer's cache as it is now.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_cache {
    /// sizeof(mnnkv_cache)
    pub struct_size: u32,
    /// What the buffers look like. Packing and max_tokens may change from call to call (a cache that has grown); heads,
    /// head_dim and element types may not.
    pub layout: *const mnnkv_layout,
    /// K of all heads.
    pub key: *mut c_void,
    /// V of all heads.
    pub value: *mut c_void,
    /// In: physical tokens in the cache. Out, on success of begin and keep: how many there are now.
    pub kv_len: u32,
}

// SAFETY: repr(C), begins with a u32, integers and raw pointers only.
unsafe impl Sized32 for mnnkv_cache {
    const MIN: usize = size_of::<mnnkv_cache>();
}

/// The softmax values of one query head for some tokens, as attention has them before it multiplies by V.
///
/// data holds exp(x - m) with m the largest x of the row so far (flash attention), or finished probabilities. What the
/// session makes of it is exact: a value times every later update_scale of its row, divided by row_sum.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_score_tile {
    /// sizeof(mnnkv_score_tile)
    pub struct_size: u32,
    /// MNNKV_DTYPE_F16, BF16 or F32: of data.
    pub dtype: u32,
    /// Order of data: [UP(tokens, pack)][queries][pack], with anything in the lanes past the last token; 0 = rows
    /// [queries][tokens]. MNN's tiles have 4, 8 or 16.
    pub pack: u32,
    /// Query rows, at least 1: all rows of the step, the same in every tile of a head. A host that computes several query
    /// heads together may give them as rows of one tile, which saves calls; see heads. pack then says how far rows are
    /// apart, when it is not less than tokens.
    pub queries: u32,
    /// Tokens, at least 1.
    pub tokens: u32,
    /// Physical position of the first token.
    pub token_begin: u32,
    /// MNNKV_TILE_FIRST, MNNKV_TILE_LAST, both or 0.
    pub flags: u32,
    /// Query heads that the rows belong to: [heads][queries / heads]. Read in the first tile of a head. queries is a multiple
    /// of it. 0 = not said: one head, or outside prompts any number. A step's rows say what a prompt is, so tiles of more
    /// than 64 rows that do not say are added up either way, which takes longer; and in a prompt of which only some rows
    /// count such a tile is one head.
    pub heads: u32,
    /// The values, 0 or more; no alignment needed. NaN, infinity and negative sums are found with the last tile.
    pub data: *const c_void,
    /// [queries] or NULL (all 1): multiplies what this head gathered so far, before this tile (exp(old maximum - new
    /// maximum)). Not read in the first tile of a head.
    pub update_scale: *const f32,
    /// [queries] or NULL (all 1): the sum of each row over all tokens. With the last tile only.
    pub row_sum: *const f32,
}

// SAFETY: repr(C), begins with a u32, integers and raw pointers only.
unsafe impl Sized32 for mnnkv_score_tile {
    const MIN: usize = size_of::<mnnkv_score_tile>();
}

impl mnnkv_score_tile {
    /// Whether the fields say what a tile can be, and the pointers point somewhere.
    ///
    /// # Safety
    /// Non-NULL pointers are readable as the fields say.
    #[inline(always)]
    unsafe fn check(&self) -> Result<()> {
        if self.flags & !(MNNKV_TILE_FIRST | MNNKV_TILE_LAST) != 0 {
            bail!(InvalidArgument, "tile->flags is {:#x}; FIRST (1) and LAST (2) are known", self.flags);
        }
        let dtype = Dtype::float_from_code(self.dtype, "tile->dtype")?;
        let (pack, queries, tokens) = (self.pack as usize, self.queries as usize, self.tokens as usize);
        let Some(bytes) = Tile::data_bytes(dtype, pack, queries, tokens) else {
            bail!(InvalidArgument, "a tile of {queries} queries and {tokens} tokens overflows memory");
        };
        // SAFETY: the caller vouches for the pointers.
        unsafe {
            pointer::input_bytes(self.data, bytes, "tile->data")?;
            if !self.update_scale.is_null() {
                pointer::input(self.update_scale, queries, "tile->update_scale")?;
            }
            if !self.row_sum.is_null() {
                pointer::input(self.row_sum, queries, "tile->row_sum")?;
            }
        }
        Ok(())
    }

    /// The tile. Not the answer of [`mnnkv_score_tile::check`]: an answer in a result may be copied once more, by loads that
    /// are wider than the stores that just made it, and each of these waits until the stores are through.
    ///
    /// # Safety
    /// The check was passed, and the pointers are readable for `'a`.
    #[inline(always)]
    unsafe fn tile<'a>(&self) -> Tile<'a> {
        // INT8 is refused by whoever takes the tile; other codes do not come here.
        let dtype = Dtype::named(self.dtype).unwrap_or(Dtype::Int8);
        let (pack, queries, tokens) = (self.pack as usize, self.queries as usize, self.tokens as usize);
        let bytes = Tile::data_bytes(dtype, pack, queries, tokens).unwrap_or(0);
        let row = |ptr: *const f32| match queries {
            0 => None,
            _ if ptr.is_null() => None,
            // SAFETY: the check was passed, and the caller vouches for the pointers.
            _ => Some(unsafe { std::slice::from_raw_parts(ptr, queries) }),
        };
        Tile {
            dtype,
            pack,
            queries,
            heads: self.heads as usize,
            tokens,
            token_begin: self.token_begin as usize,
            first: self.flags & MNNKV_TILE_FIRST != 0,
            last: self.flags & MNNKV_TILE_LAST != 0,
            data: match bytes {
                0 => &[],
                // SAFETY: as above.
                _ => unsafe { std::slice::from_raw_parts(self.data.cast(), bytes) },
            },
            update_scale: row(self.update_scale),
            row_sum: row(self.row_sum),
        }
    }
}

/// Runs the body of an export that edits a layer's cache, and writes the length that it answers.
///
/// # Safety
/// Pointers are NULL or as the header says.
unsafe fn with_cache(
    session: *const mnnkv_session,
    cache: *mut mnnkv_cache,
    body: impl FnOnce(&Session, &mut [&mut Lane], Cache<'_>, u32) -> Result<u32>,
) -> mnnkv_status {
    let body = |session: &Session, lanes: &mut [&mut Lane], cache: Option<Cache<'_>>, kv_len| match cache {
        Some(cache) => body(session, lanes, cache, kv_len),
        None => bail!(Internal, "no cache is given"),
    };
    // SAFETY: passed on.
    unsafe { with_cache_or_none(session, cache, false, body) }
}

/// As [`with_cache`]. `lazily`: a cache without tokens may have no layout and no buffers.
///
/// # Safety
/// As [`with_cache`].
unsafe fn with_cache_or_none(
    session: *const mnnkv_session,
    cache: *mut mnnkv_cache,
    lazily: bool,
    body: impl FnOnce(&Session, &mut [&mut Lane], Option<Cache<'_>>, u32) -> Result<u32>,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller vouches for its pointers.
        unsafe {
            let mnnkv_session { session, lanes } = pointer::reference(session, "session")?;
            let given = pointer::required(cache, "cache")?;
            let is_missing = given.layout.is_null() || given.key.is_null() || given.value.is_null();
            let kv_len = if lazily && given.kv_len == 0 && is_missing {
                lanes.all(|lanes| body(session, lanes, None, 0))?
            } else {
                let (layout, key, value) = layout::checked_cache(given.layout, given.key, given.value)?;
                lanes.all(|lanes| body(session, lanes, Some(Cache { layout: &layout, key, value }), given.kv_len))?
            };
            // Read above through the same pointer, which is not const.
            (&raw mut (*cache).kv_len).write(kv_len);
        }
        Ok(())
    })
}

/// # Safety
/// `session` is NULL or live.
unsafe fn with(session: *const mnnkv_session, body: impl FnOnce(&Session) -> Result<()>) -> mnnkv_status {
    guard(|| {
        // SAFETY: passed on.
        body(unsafe { &pointer::reference(session, "session")?.session })
    })
}

/// Makes a session for a model of layers (1 to 4,096) layers, whose attention runs on up to lanes (1 to 1,024) threads.
///
/// config_json: a JSON object of len bytes (no terminating zero needed), such as the host's own config: keys that begin
/// with kv_h2o_ or kv_lossless_ are read, others ignored; len 0 means no keys. docs/config.md lists them with types,
/// defaults and ranges. Unless kv_h2o_enable is true nothing is ever evicted; unless kv_lossless_enable and
/// kv_lossless_runtime_enable are true nothing is compressed. abi_version: MNNKV_ABI_VERSION. out: the handle, to be
/// given to mnnkv_session_destroy.
/// INVALID_ARGUMENT: not a JSON object; or a key with a wrong type or range, which the message names. Unknown keys with
/// our prefixes are no error: mnnkv_session_warnings. UNSUPPORTED: another ABI. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_create(
    config_json: *const c_char,
    len: usize,
    layers: u32,
    lanes: u32,
    abi_version: u32,
    out: *mut *mut mnnkv_session,
) -> mnnkv_status {
    guard(|| {
        version::check_abi(abi_version)?;
        // SAFETY: the caller vouches for its pointers.
        let config = unsafe { pointer::input_bytes(config_json.cast(), len, "config_json") }?;
        // SAFETY: as above.
        let out = unsafe { Out::new(out, "out") }?;
        let made = mnnkv_session { session: Session::new(config, layers)?, lanes: Lanes::new(Session::lanes(lanes)?)? };
        out.set(Box::into_raw(memory::boxed(made)?));
        Ok(())
    })
}

/// Frees a session, its blobs and its threads, after the job that each is at. Tokens that are compressed at that moment
/// are gone: destroy it with the caches, or right after a begin of each layer. NULL is ignored. Works on a handle that
/// answers INTERNAL. No other call may be under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_destroy(session: *mut mnnkv_session) {
    if session.is_null() {
        return;
    }
    guard(|| {
        // SAFETY: the caller says the handle is from create and not destroyed yet.
        drop(unsafe { Box::from_raw(session) });
        Ok(())
    });
}

/// What was odd about the config but no error, one sentence per line: unknown keys, settings without effect, the length
/// from which on tokens are evicted. A line is added when tokens that were due for eviction stay for want of scores.
///
/// text: room for cap bytes; the text is zero-terminated. len: its length with the zero; 1 when nothing was odd.
/// BUFFER_TOO_SMALL: *len is what is needed now. Threads as mnnkv_session_metrics.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_warnings(
    session: *const mnnkv_session,
    text: *mut c_char,
    cap: usize,
    len: *mut usize,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(session, |session| {
            let (out, len) = (pointer::output(text.cast::<u8>(), cap, "text")?, Out::new(len, "len")?);
            pointer::put_text(&session.warnings()?, out, &len)
        })
    }
}

/// A layer's cache was cleared (MNNKV_ALL_LAYERS: all of them, for a new chat): its tokens, blobs, scores, plan and
/// step clock are forgotten, whatever was under way. Metrics go on.
/// INVALID_ARGUMENT: no such layer; a thread is in mnnkv_session_scores (so, too, begin and end).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_reset(session: *mut mnnkv_session, layer: u32) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller vouches for its pointers.
        unsafe {
            let mnnkv_session { session, lanes } = pointer::reference(session, "session")?;
            lanes.all(|lanes| session.reset(lanes, (layer != MNNKV_ALL_LAYERS).then_some(layer)))
        }
    })
}

/// Opens a layer's step, before the host appends. cache->kv_len: the physical tokens that the cache has, as the last
/// end or keep left it; 0 at first and after a reset. With kv_len 0 the cache need not exist yet: layout, key and value may
/// be NULL, and end is the first call that needs them. Tokens that a cache has from elsewhere (a prefix from a file) are
/// told as a step: begin with kv_len 0, which touches no byte then, and end with their number.
///
/// Compressed tokens are back afterwards, bit for bit; the eviction planned at the last end is applied, which moves
/// tokens and gives the pages behind them back; cache->kv_len is the new length, and the host appends there.
/// Decoding of the next layer starts in the background.
/// INVALID_ARGUMENT: no such layer; it is open already; kv_len is another; heads, head_dim or an element type differ
/// from before. CORRUPT, OUT_OF_MEMORY: a token could not be restored; its blob is kept, the cache is not to be read,
/// and the call may be tried again. On any error the layer is not open and no token has moved.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_begin(
    session: *mut mnnkv_session,
    layer: u32,
    cache: *mut mnnkv_cache,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with_cache_or_none(session, cache, true, |session, lanes, cache, kv_len| {
            session.begin(lanes, layer, cache, kv_len)
        })
    }
}

/// Takes one softmax tile of an open layer. Layers and rows that are not scored cost next to nothing. Never blocks.
///
/// lane: a number below the session's lanes; one thread per lane at a time, and none while begin, end or reset runs. Tiles
/// of one head come in order in one lane: the first begins at any token, each later one where the one before ends. Which
/// lane has which heads makes no difference to any result. No pointer is retained.
/// A prompt is a step whose layer was empty at begin, or of more than 64 queries per head (the queries of end). In a
/// prompt only the last kv_h2o_prefill_queries rows of each head count; any other step counts all its rows. Memory: two
/// numbers per row and tile in each lane, never rows times tokens.
/// INVALID_ARGUMENT: no such layer or lane; the layer is not open; the tile is out of order, leaves a gap or overlaps the
/// one before, reaches past token 16,777,215 (whether it fits the cache is for end to say), or has a row_sum or
/// update_scale that cannot be; another thread is in this lane. The tile is not taken then, and the right one may follow.
/// Of a layer that is not scored only the struct is checked. A head whose last tile shows that its attention is no number
/// is dropped, and end will miss it. UNSUPPORTED: INT8 tiles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_scores(
    session: *mut mnnkv_session,
    layer: u32,
    lane: u32,
    tile: *const mnnkv_score_tile,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller vouches for its pointers.
        unsafe {
            let session = pointer::reference(session, "session")?;
            let mut room = None;
            let given = pointer::in_place(tile, "tile", &mut room)?;
            given.check()?;
            let tile = given.tile();
            session.lanes.one(lane, |lane| lane.scores(layer, &tile))
        }
    })
}

/// Whether mnnkv_session_scores has any use for the tiles of a layer's step of so many queries (the queries of end): in the
/// open step, or in the next while the layer is closed. *wanted is 1, or 0 where they may be left out: of layers that
/// tokens are not evicted from, and of prompts while kv_h2o_prefill_queries is 0. Any thread; blocks while another call is
/// under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_wants_scores(
    session: *const mnnkv_session,
    layer: u32,
    queries: u32,
    wanted: *mut u32,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(session, |session| {
            let wanted = Out::new(wanted, "wanted")?;
            wanted.set(session.wants_scores(layer, queries)?.into());
            Ok(())
        })
    }
}

/// Closes a layer's step, after attention. cache->kv_len: physical tokens now; those past the length at begin are new.
///
/// heads: query heads (not KV heads) that scored, queries: rows of the step, as the model has them, however they came in
/// tiles. Either every head came in whole or none did, which leaves the scores as they were, whatever heads says. queries
/// 0 closes a step without attention: scores that came in are dropped, the layer's clock stands still, and the new tokens
/// up to kv_len stay. For a step that failed as a whole there is mnnkv_session_abort.
/// Cold tokens are copied and handed to the workers; tokens that are compressed leave memory. Trouble there is never an
/// error: the tokens stay raw and a metric counts it.
/// INVALID_ARGUMENT: no such layer; it is not open; kv_len is less than at begin or more than max_tokens; a head is
/// missing, incomplete, or scored tokens past kv_len. The layer is then still open, and nothing has changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_end(
    session: *mut mnnkv_session,
    layer: u32,
    heads: u32,
    queries: u32,
    cache: *mut mnnkv_cache,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with_cache(session, cache, |session, lanes, cache, kv_len| {
            session.end(lanes, layer, heads, queries, cache, kv_len)?;
            Ok(kv_len)
        })
    }
}

/// Closes a layer's step that failed. cache->kv_len must be what begin left; what the host appended since is no part of the
/// cache, and may be overwritten by the next step. What begin did stays: evicted tokens are gone. Scores that came in are
/// dropped, and the step is not counted, neither by the layer's clock nor by its intervals. Tokens that are compressed
/// leave memory again, as at end. With kv_len 0 the cache need not exist, as for begin.
/// INVALID_ARGUMENT: no such layer; it is not open; kv_len is another; heads, head_dim or an element type differ from
/// before. The layer is then still open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_abort(
    session: *mut mnnkv_session,
    layer: u32,
    cache: *mut mnnkv_cache,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with_cache_or_none(session, cache, true, |session, lanes, cache, kv_len| {
            session.abort(lanes, layer, cache, kv_len)?;
            Ok(kv_len)
        })
    }
}

/// The host has written other contents to count tokens from begin on, by physical position, such as keys that it rotated
/// in place to shift positions (K-shift). Blobs of these tokens are void: what the cache has of them counts from now on,
/// and they may be compressed again. Tokens that share a blob with them stay as they are. Scores stay, too.
///
/// Call it right after writing, in an open step for preference: between begin and end every token is there. Between end
/// and the next begin tokens that are compressed read as zero, in K and in V, so a host must have written both in whole.
/// INVALID_ARGUMENT: no such layer; a token past the length that begin, end or keep left. OUT_OF_MEMORY: nothing has
/// changed; call again before anything else of the layer. Threads as begin.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_rewritten(
    session: *mut mnnkv_session,
    layer: u32,
    begin: u32,
    count: u32,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe { with(session, |session| session.rewritten(layer, begin, count)) }
}

/// Edits a layer's history: only the tokens at these logical positions stay (rollback, erase). Those that were evicted
/// before are gone already; the others move together, and cache->kv_len is the new physical length.
///
/// logical_pairs: n_pairs times (offset, length), ascending, disjoint, inside the logical length; none leaves nothing.
/// Logical positions are renumbered: the first of the first pair becomes 0, whether or not its token is still there,
/// and the logical length becomes the sum of all lengths (tokens keep the rotation they were cached with). Compressed
/// tokens stay compressed until the next begin. Scores go with their tokens; a plan that was waiting is made anew. Call
/// it between steps, for each layer that has a cache.
/// INVALID_ARGUMENT: no such layer; it is open; pairs or kv_len are wrong. Nothing has changed then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_keep(
    session: *mut mnnkv_session,
    layer: u32,
    logical_pairs: *const i32,
    n_pairs: usize,
    cache: *mut mnnkv_cache,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with_cache(session, cache, |session, _, cache, kv_len| {
            session.keep(layer, layout::pairs(logical_pairs, n_pairs, "logical_pairs")?, cache, kv_len)
        })
    }
}

/// How many tokens a layer has had since its reset, less those that keep removed (logical), and how many are in its
/// cache (physical); while it is open, as begin left them. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_lengths(
    session: *const mnnkv_session,
    layer: u32,
    logical: *mut u32,
    physical: *mut u32,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(session, |session| {
            let (logical, physical) = (Out::new(logical, "logical")?, Out::new(physical, "physical")?);
            let lengths = session.lengths(layer)?;
            logical.set(lengths.logical);
            physical.set(lengths.physical);
            Ok(())
        })
    }
}

/// Which logical positions a layer's cache holds, in physical order: n_pairs times (offset, length), ascending, never
/// touching; while it is open, as begin left them. pairs: room for pairs_cap pairs. BUFFER_TOO_SMALL: *n_pairs is what
/// is needed. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_positions(
    session: *const mnnkv_session,
    layer: u32,
    pairs: *mut i32,
    pairs_cap: usize,
    n_pairs: *mut usize,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers; a pair is two neighbouring numbers.
    unsafe {
        with(session, |session| {
            let out = pointer::output(pairs.cast::<[i32; 2]>(), pairs_cap, "pairs")?;
            let n_pairs = Out::new(n_pairs, "n_pairs")?;
            let positions = session.positions(layer)?;
            n_pairs.set(positions.len());
            let Some(target) = out.get_mut(..positions.len()) else {
                return Err(Error::too_small("pairs_cap (pairs)", pairs_cap, positions.len()));
            };
            target.copy_from_slice(&positions);
            Ok(())
        })
    }
}

/// Reads the metrics of all layers together. Set metrics->struct_size first. May run beside any other call; it waits
/// for one under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_metrics(
    session: *const mnnkv_session,
    metrics: *mut mnnkv_metrics,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(session, |session| {
            let metrics = SizedOut::new(metrics, "metrics")?;
            metrics.set(&session.metrics(None)?.into());
            Ok(())
        })
    }
}

/// As mnnkv_session_metrics, of one layer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_layer_metrics(
    session: *const mnnkv_session,
    layer: u32,
    metrics: *mut mnnkv_metrics,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(session, |session| {
            let metrics = SizedOut::new(metrics, "metrics")?;
            metrics.set(&session.metrics(Some(layer))?.into());
            Ok(())
        })
    }
}

/// The metrics as JSON: {"h2o_lossy_ratio": 3.4, ..., "layers": [{"layer": 2, ...}, ...]}, with the names of
/// mnnkv_metrics. What was not measured is absent; layers that were never named are too ("layers" is [] at first).
///
/// text: room for cap bytes; the text is zero-terminated. len: its length with the zero. BUFFER_TOO_SMALL: *len is what
/// is needed now; it may have grown at the next call. Threads as mnnkv_session_metrics.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_metrics_json(
    session: *const mnnkv_session,
    text: *mut c_char,
    cap: usize,
    len: *mut usize,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(session, |session| {
            let (out, len) = (pointer::output(text.cast::<u8>(), cap, "text")?, Out::new(len, "len")?);
            pointer::put_text(&session.metrics_json()?, out, &len)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::status::{MNNKV_INTERNAL, MNNKV_INVALID_ARGUMENT, MNNKV_OK, MNNKV_UNSUPPORTED};
    use super::super::version::MNNKV_ABI_VERSION;
    use super::*;
    use std::ptr::{null, null_mut};

    #[test]
    fn after_a_caught_panic_every_call_answers_internal_and_destroy_works() {
        let mut session = null_mut();
        let (mut logical, mut physical) = (7, 7);
        // SAFETY: the handle is live until destroy; other pointers are NULL or live.
        unsafe {
            assert_eq!(mnnkv_session_create(null(), 0, 2, 1, MNNKV_ABI_VERSION, &mut session), MNNKV_OK);
            assert_eq!(mnnkv_session_lengths(session, 1, &mut logical, &mut physical), MNNKV_OK);
            assert_eq!(with(session, |session| session.panic_inside()), MNNKV_INTERNAL);
            assert_eq!(mnnkv_session_lengths(session, 1, &mut logical, &mut physical), MNNKV_INTERNAL);
            assert_eq!(mnnkv_session_reset(session, 0), MNNKV_INTERNAL);
            assert_eq!(mnnkv_session_metrics_json(session, null_mut(), 0, &mut 0), MNNKV_INTERNAL);
            mnnkv_session_destroy(session);
        }
        assert_eq!((logical, physical), (0, 0));
    }

    #[test]
    fn another_abi_or_no_layers_get_no_session() {
        let mut session = null_mut();
        // SAFETY: pointers are NULL or live.
        unsafe {
            let create = |layers, lanes, abi, out| mnnkv_session_create(null(), 0, layers, lanes, abi, out);
            assert_eq!(create(2, 1, MNNKV_ABI_VERSION + 1, &mut session), MNNKV_UNSUPPORTED);
            assert_eq!(create(0, 1, MNNKV_ABI_VERSION, &mut session), MNNKV_INVALID_ARGUMENT);
            assert_eq!(create(1, 0, MNNKV_ABI_VERSION, &mut session), MNNKV_INVALID_ARGUMENT);
            assert_eq!(create(u32::MAX, 1, MNNKV_ABI_VERSION, &mut session), MNNKV_INVALID_ARGUMENT);
        }
        assert!(session.is_null());
    }
}
