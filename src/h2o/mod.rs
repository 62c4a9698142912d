//! Eviction: attention scores of blocks, and plans of which blocks stay.
//!
//! | file | job |
//! |---|---|
//! | [`BlockSums`], [`Accumulator`] (`attention/`) | block sums of hosts to exact mass per block |
//! | [`BlockScores`] | the scores of one layer, from masses |
//! | [`plan()`], [`PlanConfig`] | scores to the tokens that stay |
//!
//! The rule of masses is that of H2O (Zhang et al. 2023, "Heavy-Hitter Oracle"), with whole blocks as the unit and tokens really
//! dropped.

mod attention;
mod block_scores;
mod plan;
mod plan_config;
mod update;

pub use attention::{Accumulator, BlockSums, Joints, MAX_TOKENS, SumFields, Sums, mass_to_f64};
pub use block_scores::{BlockScores, SavedScores, ScoredStep};
pub use plan::{Amounts, Plan, plan, plan_pinned};
pub use plan_config::{PlanConfig, Target};
pub use update::update_scores;
