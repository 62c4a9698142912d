//! The table: factors of perplexity with their errors, tokens, speed and bytes.

use super::chat::Measured;
use super::tasks::STEPS;
use super::{Bound, FIRST_EVICTED, Method, Request, Task, WHOLE};
use crate::llama::Shape;
use mnnkv::session::RecallStats;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// One text with one method.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// The loss of the scored tokens, in nats.
    pub(super) losses: Vec<f64>,
    pub(super) measured: Measured,
    /// The time of all steps; texts that ran side by side share it.
    pub(super) elapsed: Duration,
    /// At the end; blocks that returned are those behind the prompt.
    pub(super) recall: RecallStats,
    /// Those of the session that were measured.
    pub(super) metrics: BTreeMap<&'static str, f64>,
}

impl Sample {
    fn loss(&self) -> f64 {
        self.losses.iter().sum::<f64>() / self.losses.len() as f64
    }
}

/// All rows, in the order of tasks and methods.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Texts of each task.
    pub texts: usize,
    /// The seed of the texts.
    pub seed: u64,
    /// One row per task, ratio and method.
    pub rows: Vec<Row>,
    /// Methods without rows.
    pub left: Vec<Left>,
}

/// A method that was left out.
#[derive(Clone, Debug, Serialize)]
pub struct Left {
    /// Its name.
    pub method: String,
    /// The reason, as a sentence.
    pub reason: String,
}

/// A bound, and whether it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// The greatest allowed factor.
    pub most: f64,
    /// Whether the factor is no greater.
    pub kept: bool,
}

/// One task, ratio and method.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The task.
    pub task: Task,
    /// Tokens of the chat per token of the budget.
    pub ratio: f64,
    /// The method.
    pub method: String,
    /// Perplexity of the scored tokens.
    pub perplexity: f64,
    /// Perplexity over that of the whole cache.
    pub factor: f64,
    /// Standard error of the factor over texts, paired.
    pub error: f64,
    /// The greatest factor that is allowed.
    pub goal: Option<Goal>,
    /// Mean tokens in a cache that tokens are evicted from.
    pub resident_tokens: f64,
    /// The largest excess over the budget in any step, in tokens; at most 0 is none.
    pub most_over_budget: i64,
    /// Tokens per second of one thread, of a batch of texts, prompt aside.
    pub tokens_per_second: f64,
    /// Microseconds inside the session per layer and step.
    pub library_us: f64,
    /// Bytes of K and V in the caches, over those of the whole caches; layers that tokens are evicted from.
    pub resident_share: f64,
    /// Bytes of parked tokens and summaries at the end, over those of the whole caches.
    pub parked_share: f64,
    /// Blocks that came back, per step and layer that tokens are evicted from.
    pub returned_blocks: f64,
    /// Blocks that were late, or could not be parked, read or judged, over all texts.
    pub failed_blocks: u64,
    /// Means over texts of the session's metrics.
    pub metrics: BTreeMap<&'static str, f64>,
}

impl Results {
    pub(super) fn new(request: &Request) -> Self {
        Results { texts: request.texts, seed: request.seed, rows: Vec::new(), left: Vec::new() }
    }

    /// Adds the rows of a task and a ratio. The whole cache is among the methods.
    pub(super) fn add(&mut self, task: Task, ratio: f64, samples: &[(&Method, Vec<Sample>)], shape: &Shape) {
        let Some((_, whole)) = samples.iter().find(|(method, _)| method.name == WHOLE) else { return };
        let first = self.rows.len();
        for (method, samples) in samples {
            if method.name != WHOLE && samples.iter().all(|sample| !sample.measured.has_evicted()) {
                if self.left.iter().all(|left| left.method != method.name) {
                    let reason = format!("no token was evicted in {}, 1 of {ratio}", task.name());
                    self.left.push(Left { method: method.name.clone(), reason });
                }
                continue;
            }
            let mut row = row(task, ratio, samples, whole, shape);
            row.method = method.name.clone();
            let most = method.goal(task, ratio).and_then(|goal| match goal {
                Bound::Most(most) => Some(*most),
                Bound::Above(name, more) => {
                    self.rows[first..].iter().find(|row| row.method == *name).map(|row| row.factor + more)
                }
            });
            row.goal = most.map(|most| Goal { most, kept: row.factor <= most });
            self.rows.push(row);
        }
    }
}

fn row(task: Task, ratio: f64, samples: &[Sample], whole: &[Sample], shape: &Shape) -> Row {
    let differences: Vec<f64> = samples.iter().zip(whole).map(|(sample, whole)| sample.loss() - whole.loss()).collect();
    let (difference, error) = mean_and_error(&differences);
    let total = |of: fn(&Measured) -> u64| samples.iter().map(|sample| of(&sample.measured)).sum::<u64>() as f64;
    let elapsed: f64 = samples.iter().map(|sample| sample.elapsed.as_secs_f64()).sum();
    let library: f64 = samples.iter().map(|sample| sample.measured.library.as_secs_f64()).sum();
    let recall = |of: fn(&RecallStats) -> u64| samples.iter().map(|sample| of(&sample.recall)).sum::<u64>();
    // At the end, of all texts.
    let evicted_layers = (shape.layers - FIRST_EVICTED.min(shape.layers)) as f64;
    let raw_tokens = (samples.len() * (task.prompt_tokens() + STEPS - 1)) as f64 * evicted_layers;
    let raw_bytes = raw_tokens * (2 * shape.kv_heads * shape.dims * size_of::<f32>()) as f64;
    let calls = total(|measured| measured.calls).max(1.0);
    let steps = (samples.len() * (STEPS - 1)) as f64;
    let mut metrics = BTreeMap::new();
    for (name, value) in samples.iter().flat_map(|sample| &sample.metrics) {
        *metrics.entry(*name).or_insert(0.0) += value / samples.len() as f64;
    }
    Row {
        task,
        ratio,
        method: String::new(),
        perplexity: mean_and_error(&samples.iter().map(Sample::loss).collect::<Vec<_>>()).0.exp(),
        factor: difference.exp(),
        error: difference.exp() * error,
        goal: None,
        resident_tokens: total(|measured| measured.resident) / calls,
        most_over_budget: samples.iter().map(|sample| sample.measured.over).max().unwrap_or(0),
        tokens_per_second: steps / elapsed,
        library_us: library * 1e6 / steps / shape.layers as f64,
        resident_share: total(|measured| measured.resident) / total(|measured| measured.logical).max(1.0),
        parked_share: recall(|recall| recall.parked_bytes + recall.summary_bytes) as f64 / raw_bytes.max(1.0),
        returned_blocks: recall(|recall| recall.counts.returned) as f64 / calls,
        failed_blocks: recall(|recall| recall.counts.failed),
        metrics,
    }
}

/// The mean of numbers, and its standard error.
fn mean_and_error(numbers: &[f64]) -> (f64, f64) {
    let count = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    let squares: f64 = numbers.iter().map(|x| (x - mean) * (x - mean)).sum();
    (mean, (squares / (count - 1.0).max(1.0) / count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_that_of_a_mean() {
        // Variance 5/3 with 3 degrees of freedom, over 4.
        let (mean, error) = mean_and_error(&[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(mean, 2.5);
        assert!((error - (5.0f64 / 12.0).sqrt()).abs() < 1e-15);
    }
}
