//! The table: losses and factors of perplexity with their errors, exact matches and tokens.

use super::{Item, Method, Request, WHOLE};
use serde::Serialize;

/// One item with one method.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// The mean loss of the scored tokens, in nats.
    pub(super) loss: f64,
    /// The mean Kullback-Leibler divergence of their predictions from those over the whole cache, in nats.
    pub(super) divergence: f64,
    /// Every scored token is the model's first choice.
    pub(super) exact: bool,
    /// Tokens in the caches that tokens are evicted from, and the chat's, summed over their steps.
    pub(super) resident: u64,
    pub(super) logical: u64,
}

/// All rows, in the order of kinds, ratios and methods.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// One row per kind, ratio and method.
    pub rows: Vec<Row>,
    /// Each item with each method, in the order of the rows.
    pub items: Vec<ItemRow>,
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

/// One item with one method.
#[derive(Clone, Debug, Serialize)]
pub struct ItemRow {
    /// The item's id.
    pub id: String,
    /// Its kind.
    pub kind: String,
    /// Tokens of the chat per token of the budget.
    pub ratio: f64,
    /// The method.
    pub method: String,
    /// The mean loss of the scored tokens, in nats.
    pub loss: f64,
    /// The mean Kullback-Leibler divergence of their predictions from those over the whole cache, in nats.
    pub divergence: f64,
    /// Whether every scored token is the model's first choice.
    pub exact: bool,
}

/// One kind, ratio and method.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The kind of the items.
    pub kind: String,
    /// Tokens of the chat per token of the budget.
    pub ratio: f64,
    /// The method.
    pub method: String,
    /// Items.
    pub items: usize,
    /// The mean loss of the items, in nats.
    pub loss: f64,
    /// The mean divergence of the items from the whole cache, in nats.
    pub divergence: f64,
    /// Perplexity over that of the whole cache.
    pub factor: f64,
    /// Standard error of the factor over items, paired; none of one item.
    pub error: Option<f64>,
    /// The share of items whose every scored token is the model's first choice.
    pub exact_share: f64,
    /// Tokens in the caches, over those of the whole caches; layers that tokens are evicted from.
    pub resident_share: f64,
}

impl Results {
    /// The rows of all kinds that have a sample of every item with the whole cache; methods that miss one have none.
    pub(super) fn new(
        request: &Request,
        methods: &[&Method],
        left: Vec<Left>,
        find: impl Fn(&Item, &Method, f64) -> Option<Sample>,
    ) -> Self {
        let mut results = Results { rows: Vec::new(), items: Vec::new(), left };
        for (items, ratio) in request
            .items
            .chunk_by(|a, b| a.kind == b.kind)
            .flat_map(|items| request.ratios.iter().map(move |ratio| (items, *ratio)))
        {
            let of = |method: &Method| items.iter().map(|item| find(item, method, ratio)).collect::<Option<Vec<_>>>();
            let Some(whole) = methods.iter().find(|method| method.name == WHOLE).and_then(|method| of(method)) else {
                continue;
            };
            for method in methods {
                if let Some(samples) = of(method) {
                    results.add(items, ratio, method, &samples, &whole);
                }
            }
        }
        results
    }

    fn add(&mut self, items: &[Item], ratio: f64, method: &Method, samples: &[Sample], whole: &[Sample]) {
        let kind = &items[0].kind;
        if method.evicts() && samples.iter().all(|sample| sample.resident == sample.logical) {
            if self.left.iter().all(|left| left.method != method.name) {
                let reason = format!("no token was evicted in {kind}, 1 of {ratio}");
                self.left.push(Left { method: method.name.clone(), reason });
            }
            return;
        }
        let row = |(item, sample): (&Item, &Sample)| ItemRow {
            id: item.id.clone(),
            kind: kind.clone(),
            ratio,
            method: method.name.clone(),
            loss: sample.loss,
            divergence: sample.divergence,
            exact: sample.exact,
        };
        self.items.extend(items.iter().zip(samples).map(row));
        let (kind, method) = (kind.clone(), method.name.clone());
        self.rows.push(Row { kind, ratio, method, ..row_of(samples, whole) });
    }
}

fn share(numbers: impl ExactSizeIterator<Item = bool>) -> f64 {
    let count = numbers.len() as f64;
    numbers.filter(|is| *is).count() as f64 / count
}

/// A row without names.
fn row_of(samples: &[Sample], whole: &[Sample]) -> Row {
    let differences: Vec<f64> = samples.iter().zip(whole).map(|(sample, whole)| sample.loss - whole.loss).collect();
    let (difference, error) = mean_and_error(&differences);
    let total = |of: fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>();
    let count = samples.len() as f64;
    Row {
        kind: String::new(),
        ratio: 0.0,
        method: String::new(),
        items: samples.len(),
        loss: total(|sample| sample.loss) / count,
        divergence: total(|sample| sample.divergence) / count,
        factor: difference.exp(),
        error: (samples.len() > 1).then_some(difference.exp() * error),
        exact_share: share(samples.iter().map(|sample| sample.exact)),
        resident_share: total(|sample| sample.resident as f64) / total(|sample| sample.logical as f64).max(1.0),
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
    fn a_row_compares_item_by_item_with_the_whole_cache() {
        let sample = |loss: f64, exact| Sample { loss, exact, ..Sample::default() };
        let item =
            |id: &str| Item { kind: "kv".into(), id: id.into(), tokens: vec![1, 2], question_from: 1, scored: vec![1] };
        let request = Request { methods: Vec::new(), items: vec![item("a"), item("b")], ratios: vec![3.5], batch: 1 };
        let method = |name: &str| Method {
            name: name.into(),
            keys: [("kv_quant".to_string(), "k8v4".into())].into_iter().collect(),
            rounding: None,
        };
        let (whole, other) = (method(WHOLE), method("other"));
        let results = Results::new(&request, &[&whole, &other], Vec::new(), |item, method, _| {
            Some(match (item.id.as_str(), method.name.as_str()) {
                ("a", WHOLE) => sample(1.0, true),
                ("b", WHOLE) => sample(2.0, true),
                ("a", _) => sample(1.5, true),
                _ => sample(2.7, false),
            })
        });
        let row = &results.rows[1];
        assert_eq!((results.rows.len(), row.items, row.method.as_str()), (2, 2, "other"));
        // The differences are 0.5 and 0.7: mean 0.6, error 0.1.
        assert!((row.loss - 2.1).abs() < 1e-12 && (row.factor - 0.6f64.exp()).abs() < 1e-12);
        assert!((row.error.unwrap() - 0.1 * 0.6f64.exp()).abs() < 1e-12);
        assert_eq!(row.exact_share, 0.5);
    }
}
