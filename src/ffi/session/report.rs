//! Session: report
//!
//! Numbers of all layers together, and of each in "layers". Counts, bytes and us (microseconds) are totals since create, except
//! those marked "now". All layers together have the sums; peaks, maxima and percentiles are computed over all layers instead. A
//! number that was not measured is absent; a count of 0 is a measurement.
//!
//!   {metrics}
//!
//! "memory" of a session with a budget (memory.h): bytes as of now, counts since create. Not counted: lists of the session and
//! what threads and the allocator keep, some 2 MB in all. raw_tokens and quantised_tokens are those of a chat with steps of
//! one token, working memory of 512 KiB and layers like the first. The raw tokens of a step are of the same share: with long
//! chunks a small budget holds fewer.
//!
//!   state             name    the furthest of any layer now: raw, quantised, file or dropping, which it is until its reset
//!   {memory}

use super::handle::{mnnkv_session, with_text};
use crate::ffi::panic::body;
use crate::ffi::status::mnnkv_status;
use crate::session::Session;
use std::ffi::c_char;

/// Writes what a session does, warns of and has counted: one JSON object. Any thread.
///
///   {"does": "layers 2 to 29: one token in 3.5 stays, from 1,016 tokens on; ...", "warnings": ["...", ...],
///    "h2o_lossy_ratio": 3.4, ..., "memory": {"state": "quantised", ...}, "layers": [{"layer": 2, ...}, ...]}
///
/// does       what the config does, one line. From the first begin on it has lengths that a budget holds at least: "at most 64
///            MB: tokens are raw up to 1,361, then ..."
/// warnings   sentences about the config: unknown keys that begin as ours or are nearly one of ours (docs/config.md), keys
///            without effect. Steps add one if a layer stays raw or hardly shrinks, tokens were dropped, a file fails, or
///            kv_h2o_max_tokens is exceeded
/// memory     only with a budget
/// layers     those that were passed
///
/// The text may grow between two calls.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_report(
    session: *const mnnkv_session,
    text: *mut c_char,
    cap: usize,
    len: *mut usize,
) -> mnnkv_status {
    body!(with_text(session, (text, cap, len), Session::report))
}
