//! Sums and means over the lists of results, for the commands that show or judge them.

use mnnkv::gear::Effort;
use mnnkv::h2o::PlanConfig;
use mnnkv_replay::results::{self, EvictionResult, LosslessResult, Results, WholeCacheResult};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};

/// Encodings, and policies, at most; further ones are left out.
const MOST_GROUPS: usize = 64;

/// Everything that is shown of one evaluation.
pub struct Figures {
    /// The name of the file, which tells rounds apart.
    pub name: String,
    /// As read.
    pub results: Results,
    /// Encodings, each in one cut; the cut of a session first.
    pub codings: Vec<Coding>,
    /// Policies, each with one length of blocks.
    pub curves: Vec<Curve>,
    /// Ratios over all layers and chats.
    pub wholes: Vec<WholeCacheResult>,
    /// First layers, which keep all tokens.
    pub front: u32,
    /// The length of blocks that charts show.
    pub block_tokens: u32,
}

/// Bytes of K or V.
#[derive(Clone, Copy, Default)]
pub struct Sum {
    pub raw: f64,
    pub kept: f64,
    pub hot: f64,
    encode: f64,
    decode: f64,
    /// Raw bytes whose speed is known.
    timed: f64,
}

impl Sum {
    fn add(&mut self, r: &LosslessResult) {
        let (raw, hot) = (r.raw_bytes as f64, r.hot_bytes as f64);
        self.raw += raw;
        self.kept += r.kept_bytes as f64;
        self.hot += hot;
        if let (Some(encode), Some(decode)) = (r.encode_bytes_per_second, r.decode_bytes_per_second) {
            self.timed += raw - hot;
            self.encode += (raw - hot) / encode;
            self.decode += (raw - hot) / decode;
        }
    }

    pub fn join(sums: impl IntoIterator<Item = Sum>) -> Sum {
        sums.into_iter().fold(Sum::default(), |a, b| Sum {
            raw: a.raw + b.raw,
            kept: a.kept + b.kept,
            hot: a.hot + b.hot,
            encode: a.encode + b.encode,
            decode: a.decode + b.decode,
            timed: a.timed + b.timed,
        })
    }

    /// Raw over kept.
    pub fn ratio(&self) -> f64 {
        self.raw / self.kept.max(1.0)
    }

    /// Raw over encoded, without hot words; 1 where nothing was encoded.
    pub fn cold_ratio(&self) -> f64 {
        if self.raw > self.hot { (self.raw - self.hot) / (self.kept - self.hot).max(1.0) } else { 1.0 }
    }

    /// Raw bytes per second of encoding, of all bytes over all time.
    pub fn encode(&self) -> Option<f64> {
        (self.encode > 0.0).then(|| self.timed / self.encode)
    }

    /// Raw bytes per second of decoding.
    pub fn decode(&self) -> Option<f64> {
        (self.decode > 0.0).then(|| self.timed / self.decode)
    }
}

/// An encoding in one cut. V has no rotation, so a rotated encoding has the V of the same effort without one.
pub struct Coding {
    pub cut: String,
    pub format: String,
    pub effort: u8,
    pub rotation: Option<String>,
    /// By layer: K, V.
    pub layers: BTreeMap<u32, [Option<Sum>; 2]>,
}

impl Coding {
    /// The name in `whole_cache`.
    pub fn label(&self) -> String {
        results::encoding(&self.format, self.effort, self.rotation.as_deref())
    }

    /// Format and rotation.
    pub fn family(&self) -> String {
        match &self.rotation {
            Some(hint) => format!("{} with rotation {hint}", self.format),
            None => self.format.clone(),
        }
    }

    /// K (0) or V (1) of all layers.
    pub fn tensor(&self, tensor: usize) -> Sum {
        Sum::join(self.layers.values().filter_map(|layer| layer[tensor]))
    }

    pub fn total(&self) -> Sum {
        Sum::join([self.tensor(0), self.tensor(1)])
    }
}

/// A policy with one length of blocks, by ratio.
pub struct Curve {
    pub policy: String,
    pub block_tokens: u32,
    pub points: Vec<Point>,
}

/// A policy at one ratio: means over layers that tokens are evicted from.
pub struct Point {
    pub ratio: f64,
    pub kept_share: f64,
    pub kept_mass: f64,
    /// Relative L2.
    pub error: f64,
    pub cosine: f64,
    pub moved: f64,
    pub restored: Option<f64>,
    /// False where the ratio asks for fewer tokens than are protected.
    pub evicts: bool,
    /// By layer: kept share and error, means over chats.
    pub layers: Vec<(u32, f64, f64)>,
}

impl Point {
    /// The layer with the largest error.
    pub fn worst(&self) -> (u32, f64) {
        let first = (0, f64::NEG_INFINITY);
        self.layers.iter().fold(first, |worst, &(layer, _, error)| if error > worst.1 { (layer, error) } else { worst })
    }

    /// The smallest error of a layer.
    pub fn least(&self) -> f64 {
        self.layers.iter().map(|&(.., error)| error).fold(f64::INFINITY, f64::min)
    }
}

impl Figures {
    /// Sums and means of results.
    pub fn new(name: String, results: Results) -> Self {
        let setting = |key: &str| results.settings.get(key).and_then(Value::as_u64);
        let front = setting("front_layers").map_or(0, |front| front.min(u32::MAX.into()) as u32);
        let wholes = wholes(&results, front);
        let curves = curves(&results.eviction, front);
        let mut figures = Figures { name, codings: codings(&results), curves, wholes, front, block_tokens: 0, results };
        let measured = |block: u64| {
            figures.curves.iter().any(|c| u64::from(c.block_tokens) == block)
                || figures.wholes.iter().any(|w| u64::from(w.block_tokens) == block)
        };
        let wanted = figures.key("kv_h2o_block_tokens", PlanConfig::default().block_tokens.into());
        let first = figures.curves.first().map(|c| c.block_tokens).or(figures.wholes.first().map(|w| w.block_tokens));
        figures.block_tokens = if measured(wanted) { wanted as u32 } else { first.unwrap_or(0) };
        figures
    }

    /// A whole number of the config that was evaluated, or its default.
    pub fn key(&self, key: &str, default: u64) -> u64 {
        let config = self.results.settings.get("config");
        config.and_then(|config| config.get(key)).and_then(Value::as_u64).unwrap_or(default)
    }

    /// The encoding of the store's first format, v1, with the library's effort, or the nearest to it.
    pub fn base(&self) -> Option<&Coding> {
        let effort = Effort::DEFAULT.get();
        self.codings
            .iter()
            .min_by_key(|c| (c.cut != "blocks", c.format != "v1", c.effort.abs_diff(effort), c.rotation.is_some()))
    }

    /// The encoding with this label in one cut.
    pub fn coding(&self, label: &str, cut: &str) -> Option<&Coding> {
        self.codings.iter().find(|coding| coding.cut == cut && coding.label() == label)
    }

    /// The policies with the shown length of blocks.
    pub fn shown_curves(&self) -> impl Iterator<Item = &Curve> {
        self.curves.iter().filter(|curve| curve.block_tokens == self.block_tokens)
    }

    /// The policy that ratios of the whole cache are of.
    pub fn curve(&self) -> Option<&Curve> {
        let named = self.wholes.iter().find_map(|whole| whole.policy.as_ref());
        let same = |curve: &&Curve| named.is_none_or(|policy| *policy == curve.policy);
        self.shown_curves().find(same).or_else(|| self.shown_curves().next())
    }

    /// Ratios of the whole cache with the shown length of blocks, by ratio.
    pub fn wholes_of(&self, coding: &Coding) -> impl Iterator<Item = &WholeCacheResult> {
        let label = coding.label();
        let cut = coding.cut.clone();
        let block = self.block_tokens;
        self.wholes.iter().filter(move |w| w.lossless == label && w.cut == cut && w.block_tokens == block)
    }

    /// The same at one ratio.
    pub fn whole_at(&self, coding: &Coding, ratio: f64) -> Option<&WholeCacheResult> {
        self.wholes_of(coding).find(|whole| whole.target_ratio == ratio)
    }

    /// The highest ratio up to which the mean error of the default policy stays at or below `limit`.
    pub fn stands(&self, limit: f64) -> Option<&Point> {
        let evicting = self.curve()?.points.iter().filter(|point| point.evicts);
        evicting.take_while(|point| point.error <= limit).last()
    }
}

fn codings(results: &Results) -> Vec<Coding> {
    type Key<'a> = (&'a str, &'a str, u8, Option<&'a str>);
    // "blocks" sorts before "whole".
    let mut found: BTreeMap<Key, BTreeMap<u32, [Option<Sum>; 2]>> = BTreeMap::new();
    for r in results.lossless.iter().filter(|r| r.head.is_none()) {
        let layer = found.entry((&r.cut, &r.format, r.effort, r.rotation.as_deref())).or_default();
        layer.entry(r.layer).or_default()[usize::from(r.tensor == "v")].get_or_insert_default().add(r);
    }
    let value = |key: &Key, layer: u32| found.get(&(key.0, key.1, key.2, None))?.get(&layer)?[1];
    let coding = |(key, layers): (&Key, &BTreeMap<u32, [Option<Sum>; 2]>)| Coding {
        cut: key.0.to_owned(),
        format: key.1.to_owned(),
        effort: key.2,
        rotation: key.3.map(str::to_owned),
        layers: layers.iter().map(|(&layer, &[k, v])| (layer, [k, v.or_else(|| value(key, layer))])).collect(),
    };
    found.iter().take(MOST_GROUPS).map(coding).collect()
}

/// Each item once, in the order of their first appearance.
pub fn distinct<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for item in items {
        if !found.contains(&item) {
            found.push(item);
        }
    }
    found
}

/// Groups in the order of their first item.
fn grouped<K: std::hash::Hash + Eq, T>(items: impl IntoIterator<Item = T>, key: impl Fn(&T) -> K) -> Vec<Vec<T>> {
    let mut places = HashMap::new();
    let mut groups: Vec<Vec<T>> = Vec::new();
    for item in items {
        let place = *places.entry(key(&item)).or_insert(groups.len());
        if place == groups.len() {
            groups.push(Vec::new());
        }
        groups[place].push(item);
    }
    groups
}

pub fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0u64, 0.0), |(count, sum), value| (count + 1, sum + value));
    if count > 0 { sum / count as f64 } else { 0.0 }
}

fn curves(eviction: &[EvictionResult], front: u32) -> Vec<Curve> {
    // The first layers keep all tokens in a session. Where no other was replayed they are better than nothing.
    let deep = eviction.iter().any(|r| r.layer >= front);
    let shown = eviction.iter().filter(|r| !deep || r.layer >= front);
    grouped(shown, |r| (&r.policy, r.block_tokens))
        .into_iter()
        .take(MOST_GROUPS)
        .map(|group| {
            let (policy, block_tokens) = (group[0].policy.clone(), group[0].block_tokens);
            let ratios = grouped(group, |r| r.target_ratio.to_bits());
            let mut points: Vec<Point> = ratios.into_iter().map(|results| point(&results)).collect();
            points.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
            Curve { policy, block_tokens, points }
        })
        .collect()
}

fn point(results: &[&EvictionResult]) -> Point {
    let mean_of = |of: fn(&EvictionResult) -> f64| mean(results.iter().map(|r| of(r)));
    let restored: Vec<f64> = results.iter().filter_map(|r| r.restored_bytes_per_step).collect();
    let mut layers: BTreeMap<u32, Vec<&EvictionResult>> = BTreeMap::new();
    results.iter().for_each(|r| layers.entry(r.layer).or_default().push(r));
    let of_layer = |(&layer, chats): (&u32, &Vec<&EvictionResult>)| {
        (layer, mean(chats.iter().map(|r| r.kept_share)), mean(chats.iter().map(|r| r.relative_l2)))
    };
    Point {
        ratio: results[0].target_ratio,
        kept_share: mean_of(|r| r.kept_share),
        kept_mass: mean_of(|r| r.kept_mass),
        error: mean_of(|r| r.relative_l2),
        cosine: mean_of(|r| r.cosine),
        moved: mean_of(|r| r.moved_tokens),
        restored: (!restored.is_empty()).then(|| mean(restored.iter().copied())),
        evicts: results.iter().any(|r| r.evictions > 0),
        layers: layers.iter().map(of_layer).collect(),
    }
}

fn wholes(results: &Results, front: u32) -> Vec<WholeCacheResult> {
    let mut bytes: HashMap<&str, [f64; 2]> = HashMap::new();
    for layer in &results.layers {
        bytes.entry(&layer.run).or_default()[usize::from(layer.layer >= front)] += layer.raw_bytes as f64;
    }
    let groups = grouped(&results.whole_cache, |w| (&w.lossless, &w.cut, w.target_ratio.to_bits(), w.block_tokens));
    let mut wholes: Vec<WholeCacheResult> = groups.iter().map(|group| whole(group, &bytes)).collect();
    wholes.sort_by(|a, b| a.target_ratio.total_cmp(&b.target_ratio));
    wholes
}

/// All chats of one choice: all raw bytes over all kept bytes.
fn whole(group: &[&WholeCacheResult], bytes: &HashMap<&str, [f64; 2]>) -> WholeCacheResult {
    let raw = |w: &WholeCacheResult| bytes.get(w.run.as_str()).copied().unwrap_or([1.0, 1.0]);
    let over = |part: fn([f64; 2]) -> f64, of: fn(&WholeCacheResult) -> f64| {
        if let [only] = group {
            return of(only);
        }
        let kept: f64 = group.iter().map(|w| part(raw(w)) / of(w)).sum();
        if kept > 0.0 { group.iter().map(|w| part(raw(w))).sum::<f64>() / kept } else { 1.0 }
    };
    let all = |of| over(|[front, deep]| front + deep, of);
    let product = match group {
        [only] => only.reference_product,
        _ => over(|[front, _]| front, |w| w.front_lossless) * over(|[_, deep]| deep, |w| w.deep_lossy),
    };
    WholeCacheResult {
        lossless_only: all(|w| w.lossless_only),
        lossy_only: all(|w| w.lossy_only),
        joint: all(|w| w.joint),
        reference_product: product,
        ..group[0].clone()
    }
}
