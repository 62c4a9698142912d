//! Results of evaluate, and of the reference's offline evaluator, without a run: could some setting reach the targets?

use super::read::Inputs;
use super::table::Thresholds;
use super::verdict::{Gate, Verdict};
use crate::results::Figures;
use mnnkv_replay::codec::BLOCKS;
use mnnkv_replay::results::WholeCacheResult;
use serde_json::json;

/// One codec and one ratio; of several chats the worst figures.
struct Setting {
    name: String,
    lossy: Option<f64>,
    lossless: Option<f64>,
    joint: Option<f64>,
    product: Option<f64>,
}

impl Setting {
    /// Without figures.
    fn named(name: String) -> Setting {
        Setting { name, lossy: None, lossless: None, joint: None, product: None }
    }
}

fn least(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.zip(b).map(|(a, b)| a.min(b))
}

fn settings(figures: &Figures) -> Vec<Setting> {
    let Figures { name: file, results, .. } = figures;
    let mut settings: Vec<Setting> = Vec::new();
    let mut add = |new: Setting| match settings.iter_mut().find(|old| old.name == new.name) {
        Some(old) => {
            (old.lossy, old.lossless) = (least(old.lossy, new.lossy), least(old.lossless, new.lossless));
            (old.joint, old.product) = (least(old.joint, new.joint), least(old.product, new.product));
        }
        None => settings.push(new),
    };
    // A session cuts blocks.
    for whole in results.whole_cache.iter().filter(|whole| whole.cut == BLOCKS) {
        let WholeCacheResult { cut, target_ratio, block_tokens, .. } = whole;
        add(Setting {
            name: format!("{file}: {cut}, target ratio {target_ratio}, eviction blocks of {block_tokens}"),
            lossy: Some(whole.deep_lossy),
            lossless: Some(whole.front_lossless),
            joint: Some(whole.joint),
            product: Some(whole.reference_product),
        });
    }
    if settings.is_empty() { codecs(figures) } else { settings }
}

/// The codec over all tensors, in each cut.
fn codecs(figures: &Figures) -> Vec<Setting> {
    let name = |cut: &str| format!("{}: {cut}", figures.name);
    let settings = figures.codings.iter();
    settings
        .map(|coding| Setting { lossless: Some(coding.total().ratio()), ..Setting::named(name(&coding.cut)) })
        .collect()
}

/// Judges the setting that passes most gates, of those the one with the greatest joint or lossless ratio.
pub fn judge(inputs: &Inputs, limits: &Thresholds) -> Verdict {
    let mut all: Vec<Setting> = inputs.evaluations.iter().flat_map(settings).collect();
    if let Some(offline) = inputs.online.as_ref().or(inputs.upper.as_ref()) {
        all.push(Setting { lossless: Some(offline.ratio), ..Setting::named(offline.file.clone()) });
    }
    if let (true, Some(figures)) = (all.is_empty(), inputs.evaluations.first()) {
        all.push(Setting::named(figures.name.clone()));
    }
    let gates = |setting: &Setting| {
        let judged = [
            ("lossy_pass", "lossy-target", setting.lossy),
            ("lossless_online_pass", "lossless-target", setting.lossless),
            ("joint_pass", "joint-target", setting.joint),
        ];
        judged.map(|(key, flag, value)| {
            let target = limits.number(flag);
            let enabled = target >= 0.0;
            let (pass, remark) = match value {
                Some(value) if value >= target => (true, ""),
                Some(_) => (!enabled, ": below the target in every setting that passes as many gates"),
                // Every setting keeps at most all tokens.
                None if target <= 1.0 => (true, ": not measured; at most 1 asks for nothing"),
                None => (false, ": not measured"),
            };
            let reason = if enabled { format!("{}{remark}", setting.name) } else { String::new() };
            Gate { key: key.into(), flag: flag.into(), value, target: enabled.then_some(target), enabled, pass, reason }
        })
    };
    let rank = |setting: &Setting| {
        let passed = gates(setting).iter().filter(|gate| gate.enabled && gate.pass).count();
        (passed, setting.joint.or(setting.lossless).or(setting.lossy).unwrap_or(0.0))
    };
    let mut verdict = Verdict { suite: "evaluate", ..Verdict::default() };
    for figures in &inputs.evaluations {
        if !figures.results.complete {
            let file = &figures.name;
            verdict.warnings.push(format!("{file}: evaluate was interrupted; its lists are not complete"));
        }
    }
    if let Some(setting) = all.iter().reduce(|best, s| if rank(s) > rank(best) { s } else { best }) {
        verdict.gates = gates(setting).into();
        verdict.figures.insert("setting".into(), json!(setting.name));
        verdict.figures.insert("joint_whole_cache".into(), json!(setting.joint));
        verdict.figures.insert("reference_product".into(), json!(setting.product));
    }
    verdict
}
