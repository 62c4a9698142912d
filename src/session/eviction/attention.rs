//! The attention of one step: the sums of all lanes, checked against the host's numbers.

use crate::session::lanes::{AllLanes, Wanted};
use crate::status::{Result, bail};

/// The scored rows of a step.
pub(super) struct StepAttention {
    /// Mass per block, summed over heads and rows.
    pub(super) masses: Vec<f64>,
    /// Rows that count, the last of the step.
    pub(super) rows: u32,
}

/// Adds up the lanes of a layer. `None` when no block sums came.
/// INVALID_ARGUMENT: if the sums are not those of `heads` heads and `queries` rows, or one reaches beyond `kv_len`.
pub(super) fn gather(
    lanes: &AllLanes<'_>,
    layer: u32,
    wanted: &Wanted,
    heads: u32,
    queries: u32,
    kv_len: u32,
) -> Result<Option<StepAttention>> {
    let gathered = lanes.gather(layer)?;
    if gathered.heads == 0 {
        return Ok(None);
    }
    let rows = wanted.rows(queries as usize) as u32;
    if gathered.heads != u64::from(heads) || gathered.rows != u64::from(heads) * u64::from(rows) {
        bail!(
            InvalidArgument,
            "{} heads and {} rows of layer {layer} came with block sums; {heads} heads of {rows} rows expected",
            gathered.heads,
            gathered.rows
        );
    }
    if gathered.token_end > kv_len as usize {
        bail!(InvalidArgument, "sums of layer {layer} reached token {}; kv_len is {kv_len}", gathered.token_end - 1);
    }
    Ok(Some(StepAttention { masses: gathered.masses, rows }))
}
