//! Report

use super::handle::{mnnkv_session, with_text};
use crate::ffi::panic::body;
use crate::ffi::status::mnnkv_status;
use crate::session::Session;
use std::ffi::c_char;

/// Writes one JSON object that says what the session does (docs/report.md). Any thread. It may grow between two calls.
///
///   {"does": "layers 2 to 29: one token in 3.5 stays, ...",   // the effect of the config, one line for a log
///    "warnings": ["...", ...],                                // keys without effect, a failed file, tokens that were dropped
///    "h2o_lossy_ratio": 3.4, ...,                             // totals of all layers since create
///    "memory": {"state": "k8v4", ...},                        // with a budget or a file
///    "layers": [{"layer": 2, ...}, ...]}                      // the totals of each layer
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_report(
    session: *const mnnkv_session,
    text: *mut c_char,
    cap: usize,
    len: *mut usize,
) -> mnnkv_status {
    body!(with_text(session, (text, cap, len), Session::report))
}
