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

/// Adds up the lanes of a layer. `None` when no tile came or no row counts.
/// INVALID_ARGUMENT: if a head is incomplete, the tiles are not those of `heads` heads and `queries` rows, or a tile
/// reaches beyond `kv_len`.
pub(super) fn gather(
    lanes: &AllLanes<'_>,
    layer: u32,
    wanted: &Wanted,
    heads: u32,
    queries: u32,
    kv_len: u32,
) -> Result<Option<StepAttention>> {
    let prompt = wanted.is_prompt(queries as usize);
    let gathered = lanes.gather(layer, prompt)?;
    let rows = wanted.rows(queries as usize) as u32;
    if gathered.heads == 0 {
        return Ok(None);
    }
    let expected = u64::from(heads) * u64::from(rows);
    // Rows of a tile without a number of heads may be those of several heads, unless some rows do not count.
    let is_grouped = gathered.may_be_more && gathered.heads < u64::from(heads) && rows == queries;
    if !(gathered.heads == u64::from(heads) || is_grouped) || gathered.rows != expected {
        let hint = if prompt { "; in a prompt tile->heads must say how many heads the rows of a tile are" } else { "" };
        bail!(
            InvalidArgument,
            "{} heads and {} rows of layer {layer} came with tiles; {heads} heads of {rows} rows expected{hint}",
            gathered.heads,
            gathered.rows
        );
    }
    if gathered.token_end > kv_len as usize {
        bail!(InvalidArgument, "a tile of layer {layer} reached token {}; kv_len is {kv_len}", gathered.token_end - 1);
    }
    Ok((rows > 0).then_some(StepAttention { masses: gathered.masses, rows }))
}
