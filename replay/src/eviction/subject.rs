//! One session under replay, and its attention beside that of the whole cache.

use super::Values;
use crate::head_sums::HeadSums;
use mnnkv::dtype::Dtype;
use mnnkv::layout::{self, Cache, Int8Unit, Layout, Pair, Spec};
use mnnkv::session::{ScoredRows, Session};
use mnnkv::status::Result;
use serde_json::{Map, Value};

/// A step: tokens `first` to `first + tokens` are appended.
pub(super) struct Step<'a> {
    pub(super) first: usize,
    pub(super) tokens: usize,
    pub(super) heads: usize,
    /// Rows of the last tokens of the step: `[token][head][0..=token]`.
    pub(super) rows: &'a [Vec<f32>],
    /// The attention of this step is compared; a step that counts has one token.
    pub(super) counted: bool,
}

/// The sums over steps.
#[derive(Default)]
struct Sums {
    rows: u64,
    mass: f64,
    cosine: f64,
    /// Squared L2 norms of the difference and of the whole cache's output.
    difference: f64,
    whole: f64,
    /// Steps behind the prompt, and those of them that were compared.
    steps: u64,
    compared: u64,
    share: f64,
    evictions: u64,
    moved: u64,
}

/// A session with a cache of one head and one dim, whose words are zeros.
pub(super) struct Subject {
    session: Session,
    layout: Layout,
    key: Vec<u8>,
    value: Vec<u8>,
    len: u32,
    /// Logical positions of the cache's tokens.
    positions: Vec<u32>,
    sums: Sums,
    /// The values of the row under work that belong to kept tokens.
    row: Vec<f32>,
    outputs: [Vec<f64>; 2],
}

/// The result of a replay.
pub(super) struct Outcome {
    pub(super) kept_tokens: usize,
    pub(super) steps: u64,
    pub(super) kept_share: f64,
    pub(super) kept_mass: f64,
    pub(super) relative_l2: f64,
    pub(super) cosine: f64,
    pub(super) evictions: u64,
    pub(super) moved_tokens: f64,
    pub(super) restored_tokens_per_step: Option<f64>,
}

/// The word of a cached token: one dim of f32.
const WORD: usize = 4;

/// Keys that every replay has: the one layer evicts, and stores its cold tokens, so that restored tokens are counted.
pub fn fixed_keys() -> Map<String, Value> {
    let keys: [(&str, Value); 12] = [
        ("kv_h2o_enable", true.into()),
        // A replay gives a session attention, and not keys.
        ("kv_h2o_policy", "mass".into()),
        ("kv_h2o_layer_start", 0.into()),
        ("kv_h2o_layer_end", (-1).into()),
        ("kv_h2o_target_mode", "adaptive".into()),
        ("kv_lossless_enable", true.into()),
        ("kv_lossless_runtime_enable", true.into()),
        ("kv_lossless_runtime_mode", "store".into()),
        ("kv_lossless_scope", "h2o_kept".into()),
        ("kv_lossless_async_threads", 0.into()),
        ("kv_lossless_codec_runtime", "gear_v1".into()),
        ("kv_lossless_codec", "gear_delta".into()),
    ];
    keys.into_iter().map(|(key, value)| (key.to_string(), value)).collect()
}

impl Subject {
    pub(super) fn new(config: &Map<String, Value>, tokens: usize) -> Result<Self> {
        let config = Value::Object(config.clone()).to_string();
        let layout = Layout::new(&Spec {
            key: Dtype::F32.into(),
            value: Dtype::F32.into(),
            kv_heads: 1,
            head_dim: 1,
            l_pack: 1,
            h_pack: 1,
            int8: Int8Unit::default(),
            flash_block: 1,
            max_tokens: u32::try_from(tokens).unwrap_or(u32::MAX),
            key_head_stride: 0,
            value_head_stride: 0,
            key_token_stride: 0,
            value_token_stride: 0,
        })?;
        Ok(Subject {
            session: Session::new(config.as_bytes(), b"", 1, 1)?,
            key: vec![0; layout.key_bytes()],
            value: vec![0; layout.value_bytes()],
            layout,
            len: 0,
            positions: Vec::new(),
            sums: Sums::default(),
            row: Vec::new(),
            outputs: Default::default(),
        })
    }

    /// Runs one step of the session, and compares its attention with the whole cache's if the step counts and tokens were
    /// evicted before: earlier steps have no error, and their number says nothing of the policy.
    pub(super) fn step(&mut self, step: &Step<'_>, value: &Values) -> Result<()> {
        self.begin(step)?;
        let scored = self.session.scored_rows(0, step.tokens as u32)?;
        let scores = scored.rows > 0 && !step.rows.is_empty();
        if scores {
            for head in 0..step.heads {
                self.score(step, head, scored)?;
            }
        }
        if step.counted && self.sums.evictions > 0 {
            self.sums.compared += 1;
            self.sums.share += self.positions.len() as f64 / (step.first + step.tokens) as f64;
            (0..step.heads).for_each(|head| self.compare(step, head, value));
        }
        let heads = if scores { step.heads as u32 } else { 0 };
        let len = self.len;
        let queries = step.tokens as u32;
        let Subject { session, layout, key, value, .. } = self;
        session.end(0, heads, queries, Cache::new(layout, key, value)?, len)
    }

    /// Opens a step and appends its tokens.
    fn begin(&mut self, step: &Step<'_>) -> Result<()> {
        let before = self.len;
        let Subject { session, layout, key, value, .. } = &mut *self;
        self.len = session.begin(0, Some(Cache::new(layout, key, value)?), before)?;
        if self.len < before {
            let kept = expand(&self.session.positions(0)?);
            let unmoved = kept.iter().zip(&self.positions).take_while(|(now, then)| now == then).count();
            self.sums.evictions += 1;
            self.sums.moved += (kept.len() - unmoved) as u64;
            self.positions = kept;
        }
        if step.counted {
            self.sums.steps += 1;
        }
        self.positions.extend(step.first as u32..(step.first + step.tokens) as u32);
        let appended = self.layout.range(self.len, step.tokens as u32)?;
        self.len += step.tokens as u32;
        let zeros = vec![0; step.tokens * WORD];
        let mut cache = Cache::new(&self.layout, &mut self.key, &mut self.value)?;
        layout::scatter(&mut cache, appended, &zeros, &zeros)
    }

    /// Tokens that the session has restored. The first step, which does not count, has none to restore.
    fn restored(&self) -> Result<f64> {
        let bytes = self.session.metrics(Some(0))?.h2o_lossless_restored_bytes;
        Ok(if bytes.is_finite() { bytes / (2 * WORD) as f64 } else { 0.0 })
    }

    /// Hands one head's block sums to the session: softmax over the kept tokens.
    fn score(&mut self, step: &Step<'_>, head: usize, scored: ScoredRows) -> Result<()> {
        let mut sums = HeadSums::new(scored, self.len);
        // Rows that the dump does not have stay zero; the config scores none of them.
        for (at, row) in (0..scored.rows as usize).rev().zip(step.rows.iter().rev()) {
            let mass = self.gather(row, step.heads, head);
            sums.set(at, &self.row, share_to_whole(mass));
        }
        sums.give(&self.session, 0)
    }

    /// Leaves in `row` the values of kept tokens, of a row of all tokens. Returns their sum.
    fn gather(&mut self, row: &[f32], heads: usize, head: usize) -> f64 {
        let len = row.len() / heads;
        let row = &row[head * len..][..len];
        self.row.clear();
        self.row.extend(self.positions.iter().take_while(|at| (**at as usize) < len).map(|at| row[*at as usize]));
        self.row.iter().map(|value| f64::from(*value)).sum()
    }

    /// Compares the output of one head.
    fn compare(&mut self, step: &Step<'_>, head: usize, value: &Values) {
        let [row] = step.rows else { unreachable!("a step that counts has one token") };
        let mass = self.gather(row, step.heads, head);
        let len = row.len() / step.heads;
        let whole = &row[head * len..][..len];
        let rows = value.head(head, step.heads);
        let [whole_output, kept_output] = &mut self.outputs;
        // Rows of a dump are rounded: their sum is near 1.
        let total: f64 = whole.iter().map(|value| f64::from(*value)).sum();
        sum(whole_output, whole.iter().zip(rows.chunks_exact(value.dims)), value.dims, share_to_whole(total));
        let kept_rows = self.positions.iter().map(|at| &rows[*at as usize * value.dims..][..value.dims]);
        sum(kept_output, self.row.iter().zip(kept_rows), value.dims, share_to_whole(mass));

        let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let (ww, kk, wk) = (
            product(whole_output, whole_output),
            product(kept_output, kept_output),
            product(whole_output, kept_output),
        );
        let sums = &mut self.sums;
        sums.rows += 1;
        sums.mass += mass / total;
        // Two outputs of zero point the same way.
        sums.cosine += if ww == 0.0 && kk == 0.0 { 1.0 } else { wk / (ww * kk).sqrt().max(f64::MIN_POSITIVE) };
        sums.difference += whole_output.iter().zip(&*kept_output).map(|(w, k)| (w - k) * (w - k)).sum::<f64>();
        sums.whole += ww;
    }

    pub(super) fn outcome(&self) -> Result<Outcome> {
        let restored = self.restored()?;
        let Sums { rows, mass, cosine, difference, whole, steps, compared, share, evictions, moved } = self.sums;
        // A cache that was never smaller than the chat has its attention.
        let mean = |sum: f64, count: u64| if count > 0 { sum / count as f64 } else { 1.0 };
        Ok(Outcome {
            kept_tokens: self.positions.len(),
            steps: compared,
            kept_share: mean(share, compared),
            kept_mass: mean(mass, rows),
            relative_l2: if whole > 0.0 { (difference / whole).sqrt() } else { 0.0 },
            cosine: mean(cosine, rows),
            evictions,
            moved_tokens: if evictions > 0 { moved as f64 / evictions as f64 } else { 0.0 },
            restored_tokens_per_step: (steps > 0).then(|| restored / steps as f64),
        })
    }
}

/// The factor that makes softmax over the kept tokens of their share of the row. Without any share there is no output.
fn share_to_whole(mass: f64) -> f64 {
    if mass > 0.0 { 1.0 / mass } else { 0.0 }
}

/// The weighted sum of rows, times `factor`.
fn sum<'a>(out: &mut Vec<f64>, rows: impl Iterator<Item = (&'a f32, &'a [f32])>, dims: usize, factor: f64) {
    out.clear();
    out.resize(dims, 0.0);
    for (weight, row) in rows {
        let weight = f64::from(*weight);
        out.iter_mut().zip(row).for_each(|(out, value)| *out += weight * f64::from(*value));
    }
    out.iter_mut().for_each(|value| *value *= factor);
}

fn expand(pairs: &[Pair]) -> Vec<u32> {
    pairs.iter().flat_map(|[offset, len]| *offset as u32..(*offset + *len) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dumps::{Layer, LayerInfo};

    /// The oracle: softmax of scores over some tokens, times their values, as it is defined.
    fn attention(scores: &[f64], values: &[[f64; 2]], kept: &[usize]) -> [f64; 2] {
        let sum: f64 = kept.iter().map(|t| scores[*t].exp()).sum();
        let mut out = [0.0; 2];
        for t in kept {
            (0..2).for_each(|d| out[d] += scores[*t].exp() / sum * values[*t][d]);
        }
        out
    }

    #[test]
    fn mass_error_and_cosine_are_those_of_softmax_over_the_kept_tokens() {
        let scores: [[f64; 6]; 2] = [[0.3, -1.0, 2.0, 0.5, 1.1, -0.2], [1.0, 1.5, -2.0, 0.0, 0.7, 0.1]];
        let values = [[1.0, -0.5], [0.25, 2.0], [-1.5, 0.75], [0.5, 0.5], [2.0, -1.0], [-0.25, 1.25]];
        let kept = [0, 2, 5];
        let all = [0, 1, 2, 3, 4, 5];

        let row: Vec<f32> = scores
            .iter()
            .flat_map(|scores| {
                let sum: f64 = scores.iter().map(|s| s.exp()).sum();
                scores.iter().map(move |s| (s.exp() / sum) as f32)
            })
            .collect();
        let info = LayerInfo {
            run: "r".into(),
            layer: 0,
            begin: 0,
            tokens: 6,
            prompt_tokens: 0,
            kv_heads: 1,
            head_dim: 2,
            dtype: Dtype::F32,
            query_heads: 2,
            attention_scale: None,
        };
        let value = values.iter().flatten().flat_map(|v| (*v as f32).to_le_bytes()).collect();
        let layer = Layer { info, key: Vec::new(), value, query: None, attention: None };
        let value = Values::of(&layer).unwrap();
        let mut subject = Subject::new(&fixed_keys(), 6).unwrap();
        subject.positions = kept.iter().map(|t| *t as u32).collect();
        let step = Step { first: 5, tokens: 1, heads: 2, rows: &[row], counted: true };
        (0..2).for_each(|head| subject.compare(&step, head, &value));

        let (mut mass, mut cosine, mut difference, mut norm) = (0.0, 0.0, 0.0, 0.0);
        for scores in &scores {
            let [whole, part] = [attention(scores, &values, &all), attention(scores, &values, &kept)];
            let sum = |tokens: &[usize]| tokens.iter().map(|t| scores[*t].exp()).sum::<f64>();
            mass += sum(&kept) / sum(&all) / 2.0;
            let length = |v: [f64; 2]| v[0].hypot(v[1]);
            cosine += (whole[0] * part[0] + whole[1] * part[1]) / length(whole) / length(part) / 2.0;
            difference += length([whole[0] - part[0], whole[1] - part[1]]).powi(2);
            norm += length(whole).powi(2);
        }
        let seen = subject.outcome().unwrap();
        assert!((seen.kept_mass - mass).abs() < 1e-6 && (seen.cosine - cosine).abs() < 1e-6);
        assert!((seen.relative_l2 - (difference / norm).sqrt()).abs() < 1e-6, "{}", seen.relative_l2);
    }
}
