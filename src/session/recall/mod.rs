//! Recall of one layer: evicted tokens are parked in blocks, and come back when the newest queries want them.

#[allow(dead_code, reason = "read by the judge of blocks")]
mod queries;

pub use queries::Queries;

use super::config::{Config, RecallRules};
use crate::status::Result;
use queries::LastRows;

/// The recall of one layer.
pub(super) struct Recall {
    rules: RecallRules,
    /// Of the open step.
    queries: LastRows,
}

impl Recall {
    /// `None` where evicted tokens are lost, or none is evicted.
    pub(super) fn new(number: u32, config: &Config) -> Option<Self> {
        let eviction = config.eviction.filter(|rules| (rules.first_layer..rules.end_layer).contains(&number))?;
        Some(Recall { rules: eviction.recall?, queries: LastRows::default() })
    }

    /// Takes the last query rows of the open step. On an error nothing has changed.
    pub(super) fn queries(&mut self, queries: &Queries<'_>) -> Result<()> {
        self.queries.take(queries, self.rules.query_window as usize)
    }
}
