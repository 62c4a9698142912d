//! h2o: which tokens of a cache stay, judged by the attention they gathered.
//!
//! Stateless: the host (or the session) keeps one score per block of tokens. [`update_scores`] folds a step's
//! attention into them, [`plan`] turns them into a list of tokens to keep. The rule is that of the H2O paper
//! (Zhang et al. 2023, "Heavy-Hitter Oracle") with whole blocks as the unit and tokens really dropped.

mod attention;
mod config;
mod plan;
mod scores;

#[cfg(test)]
pub(crate) use attention::OwnedTile;
pub use attention::{Accumulator, Tile, mass_to_f64};
pub use config::{Config, Target};
pub use plan::{Amounts, Plan, plan};
pub use scores::update_scores;
