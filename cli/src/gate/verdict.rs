//! The outcome of gates.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// One gate, also as JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Gate {
    #[serde(rename = "gate", alias = "key", alias = "name")]
    pub key: Cow<'static, str>,
    /// The flag of its limit; empty if it has none.
    #[serde(default)]
    pub flag: Cow<'static, str>,
    #[serde(default = "on")]
    pub enabled: bool,
    pub pass: bool,
    pub value: Option<f64>,
    pub target: Option<f64>,
    /// Cause and place of a failure; a remark on a pass, or nothing.
    #[serde(default)]
    pub reason: String,
}

fn on() -> bool {
    true
}

/// A figure as the reference prints it.
#[derive(Clone, Debug)]
pub enum Fact {
    /// With so many decimals.
    Number(Option<f64>, usize),
    Flag(bool),
    Text(String),
}

impl Fact {
    pub fn text(&self) -> String {
        match self {
            Fact::Number(number, decimals) => fixed(*number, *decimals),
            Fact::Flag(flag) => flag.to_string(),
            Fact::Text(text) => text.clone(),
        }
    }

    /// The value; in a faithful summary as printed.
    pub fn json(&self, faithful: bool) -> Value {
        match self {
            Fact::Number(Some(number), decimals) if faithful => {
                json!(format!("{number:.decimals$}").parse::<f64>().ok())
            }
            Fact::Number(number, _) => json!(number),
            Fact::Flag(flag) => json!(flag),
            Fact::Text(text) => json!(text),
        }
    }
}

/// A number with so many decimals; NaN and infinity in small letters.
pub fn fixed(number: Option<f64>, decimals: usize) -> String {
    match number {
        None => "not measured".into(),
        Some(number) if number.is_finite() => format!("{number:.decimals$}"),
        Some(number) => number.to_string().to_lowercase(),
    }
}

/// All gates of one case.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// `runtime`, `llm_demo`, `evaluate` or `perplexity`.
    pub suite: &'static str,
    pub gates: Vec<Gate>,
    pub warnings: Vec<String>,
    /// The figures and verdicts of the reference, in its order.
    pub facts: Vec<(String, Fact)>,
    /// Figures that the reference does not have.
    pub figures: Map<String, Value>,
}

impl Verdict {
    pub fn passed(&self) -> bool {
        self.gates.iter().all(|gate| gate.pass || !gate.enabled)
    }

    pub fn fact(&self, key: &str) -> Option<&Fact> {
        self.facts.iter().find(|(name, _)| *name == key).map(|(_, fact)| fact)
    }

    pub fn json(&self) -> Value {
        json!({
            "suite": self.suite, "overall_pass": self.passed(), "gates": self.gates,
            "warnings": self.warnings, "figures": self.figures,
        })
    }
}

/// The sum over the number, added in order.
pub fn mean(numbers: &[f64]) -> Option<f64> {
    (!numbers.is_empty()).then(|| numbers.iter().fold(0.0, |sum, n| sum + n) / numbers.len() as f64)
}

/// The greatest number. A NaN in front stays, others never replace a number.
pub fn best(numbers: impl IntoIterator<Item = f64>) -> Option<f64> {
    numbers.into_iter().reduce(|best, n| if n > best { n } else { best })
}

/// The element at `ceil(q n)` of sorted numbers, counted from 1.
pub fn percentile(sorted: &[f64], q: f64) -> Option<f64> {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}
