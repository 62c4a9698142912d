//! Session: metrics

use super::handle::{mnnkv_session, with, with_text};
use super::history::layer_or_all;
use crate::ffi::panic::body;
use crate::ffi::pointer::{Sized32, SizedOut};
use crate::ffi::status::mnnkv_status;
use crate::session::Session;
use crate::session::metrics::Metrics;
use std::ffi::c_char;

/// Measurements of a layer or a session. NaN = not measured; a count of 0 is a measurement. Counts, bytes and us
/// (microseconds) are totals since create, except those marked "now". MNNKV_ALL_LAYERS sums them over the layers. Peaks,
/// maxima and percentiles are computed over all layers instead.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_metrics {
    pub struct_size: u32,
    pub reserved: u32,
    pub values: Metrics,
}

// SAFETY: repr(C), begins with a u32, integers and floats only.
unsafe impl Sized32 for mnnkv_metrics {
    const MIN: usize = 328;
}
const _: () = assert!(size_of::<mnnkv_metrics>() == 8 + 8 * Metrics::FIELDS.len());

/// Reads the metrics of a layer, or of all together with MNNKV_ALL_LAYERS.
/// INVALID_ARGUMENT: if layer is out of range
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_metrics(
    session: *const mnnkv_session,
    layer: u32,
    metrics: *mut mnnkv_metrics,
) -> mnnkv_status {
    body!(with(session, |session| {
        let metrics = SizedOut::new(metrics, "metrics")?;
        let values = session.metrics(layer_or_all(layer))?;
        metrics.set(&mnnkv_metrics { struct_size: 0, reserved: 0, values });
        Ok(())
    }))
}

/// Writes the metrics as JSON: {"h2o_lossy_ratio": 3.4, ..., "layers": [{"layer": 2, ...}, ...]}, without members that
/// were not measured and layers that were never passed. With a budget also "memory": the fields of mnnkv_memory_stats, with "state"
/// as a name. The text may grow between two calls.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_metrics_json(
    session: *const mnnkv_session,
    text: *mut c_char,
    cap: usize,
    len: *mut usize,
) -> mnnkv_status {
    body!(with_text(session, (text, cap, len), Session::metrics_json))
}
