//! Eviction plans at 4k, 32k and 128k tokens, beside a full sort of the scores and memcpy of them.

mod common;

use common::{Random, Rivals, Table, times};
use mnnkv::h2o::{PlanConfig, plan};
use std::hint::black_box;

/// The plan of the reference: sorts all candidates and keeps the first.
fn sorted_plan(scores: &[f32], kv_len: u32, config: &PlanConfig) -> Vec<u32> {
    let first = config.sink_tokens.div_ceil(config.block_tokens);
    let last = (kv_len - config.recent_tokens) / config.block_tokens;
    let mut candidates: Vec<(f32, u32)> = (first..last).map(|b| (scores[b as usize], b)).collect();
    candidates.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let floor = first * config.block_tokens + kv_len - last * config.block_tokens;
    let target = (kv_len as f32 / 3.5).ceil() as u32;
    let count = (target - floor).div_ceil(config.block_tokens) as usize;
    let mut kept: Vec<u32> = candidates[..count].iter().map(|c| c.1).chain(0..first).collect();
    kept.extend(last..kv_len.div_ceil(config.block_tokens));
    kept.sort_unstable();
    kept
}

fn main() {
    let headers = ["tokens", "blocks", "us", "x full sort", "x memcpy of the scores"];
    let mut table = Table::new("plans", "one thread", &headers);
    let block_tokens = 64;
    for kv_len in [4096u32, 32_768, 131_072] {
        let config = PlanConfig { block_tokens, ..PlanConfig::default() };
        let mut random = Random(5);
        let blocks = kv_len.div_ceil(block_tokens) as usize;
        let scores: Vec<f32> = (0..blocks).map(|_| random.below(1 << 24) as f32).collect();
        let ours = plan(&scores, kv_len, &config).unwrap();
        let kept: Vec<u32> = ours
            .pairs
            .iter()
            .flat_map(|p| (p[0] as u32..(p[0] + p[1]) as u32).step_by(block_tokens as usize))
            .map(|t| t / block_tokens)
            .collect();
        assert_eq!(kept, sorted_plan(&scores, kv_len, &config), "the same blocks");

        let mut copy = scores.clone();
        let medians = Rivals::new()
            .add("plan", || {
                black_box(plan(black_box(&scores), kv_len, &config).unwrap());
            })
            .add("sort all scores", || {
                black_box(sorted_plan(black_box(&scores), kv_len, &config));
            })
            .add("memcpy of the scores", || black_box(&mut copy).copy_from_slice(black_box(&scores)))
            .run(300);
        let factor = |rival: usize| times(medians[rival].1 / medians[0].1);
        let us = format!("{:.1}", medians[0].1 * 1e6);
        table.row([kv_len.to_string(), blocks.to_string(), us, factor(1), factor(2)]);
    }
    table.print();
}
