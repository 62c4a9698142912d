//! Plans: the reference's 300 results, a brute-force restatement of the rule, and the guarantees of the header.

mod common;

use mnnkv::h2o::{Plan, PlanConfig, Target, plan, plan_pinned, update_scores};
use mnnkv::status::Status;
use proptest::prelude::*;
use std::io::BufRead;

fn close(a: f32, b: &serde_json::Value) -> bool {
    (a as f64 - b.as_f64().unwrap()).abs() <= 1e-6
}

#[test]
fn all_golden_plans_agree() {
    let file = std::io::Cursor::new(common::read("h2o_plan/cases.jsonl"));
    let mut count = 0;
    for (i, line) in file.lines().enumerate() {
        let case: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        let number = |key: &str| case[key].as_u64().unwrap() as u32;
        let ratio = |key: &str| case[key].as_f64().unwrap() as f32;
        let config = PlanConfig {
            block_tokens: number("block_tokens"),
            sink_tokens: number("sink"),
            recent_tokens: number("recent"),
            target: match case["mode"].as_str().unwrap() {
                "static" => Target::KeepRatio(ratio("keep_ratio")),
                _ => Target::LossyRatio(ratio("lossy_ratio")),
            },
        };
        let scores: Vec<f32> = case["scores"].as_array().unwrap().iter().map(|s| s.as_f64().unwrap() as f32).collect();
        let p = plan(&scores, number("kv_len"), &config).unwrap();
        assert_eq!(p.evicted_tokens, number("evicted"), "case {i}");
        assert_eq!(p.kept_tokens, number("final_keep"), "case {i}");
        assert_eq!(p.floor_dominates, case["floor_dominates"].as_bool().unwrap(), "case {i}");
        assert!(close(p.floor_keep, &case["floor_keep"]), "case {i}");
        assert!(close(p.target_keep_effective, &case["target_effective"]), "case {i}");
        assert!(close(p.block_quantized_keep, &case["quantized_keep"]), "case {i}");
        if p.floor_dominates {
            assert_eq!(p.pairs, [[0, number("kv_len") as i32]], "case {i}");
        } else {
            let reserve: Vec<i32> =
                case["reserve"].as_array().unwrap().iter().map(|n| n.as_i64().unwrap() as i32).collect();
            assert_eq!(p.pairs.concat(), reserve, "case {i}");
        }
        count += 1;
    }
    assert_eq!(count, 300);
}

/// The rule, token by token.
fn brute_force(scores: &[f32], kv_len: usize, c: &PlanConfig, pinned: &[[i32; 2]]) -> Vec<bool> {
    let size = c.block_tokens as usize;
    let blocks = kv_len.div_ceil(size);
    let tokens = |b: usize| b * size..kv_len.min((b + 1) * size);
    let mut keep = vec![false; blocks];
    for t in 0..kv_len.min(c.sink_tokens as usize) {
        keep[t / size] = true;
    }
    for kept in keep.iter_mut().skip(kv_len.saturating_sub(c.recent_tokens as usize) / size) {
        *kept = true;
    }
    for t in pinned.iter().flat_map(|[at, len]| *at..at + len) {
        keep[t as usize / size] = true;
    }
    let held = |keep: &[bool]| (0..blocks).filter(|b| keep[*b]).map(|b| tokens(b).len()).sum::<usize>();
    let ratio = match c.target {
        Target::KeepRatio(r) => r.clamp(0.0, 1.0),
        Target::LossyRatio(r) => 1.0 / r.max(1.0),
        Target::Tokens(_) => f32::NAN,
    };
    let target = match c.target {
        Target::Tokens(n) => n as usize,
        _ => (ratio * kv_len as f32).ceil() as usize,
    };
    let target = target.clamp(1, kv_len);
    let floor = held(&keep);
    if floor >= target {
        return vec![true; kv_len];
    }
    let quantized = kv_len.min(floor + (target - floor).div_ceil(size) * size);
    let score = |b: usize| scores.get(b).copied().unwrap_or(0.0);
    let worth = |b: usize| if score(b).is_nan() { (false, 0.0) } else { (true, score(b)) };
    while held(&keep) < quantized {
        let best = (0..blocks)
            .filter(|b| !keep[*b])
            .reduce(|a, b| if worth(b).partial_cmp(&worth(a)).unwrap().is_gt() { b } else { a });
        keep[best.unwrap()] = true;
    }
    (0..kv_len).map(|t| keep[t / size]).collect()
}

fn kept(p: &Plan, kv_len: usize) -> Vec<bool> {
    let mut keep = vec![false; kv_len];
    for [offset, len] in &p.pairs {
        for kept in &mut keep[*offset as usize..(*offset + *len) as usize] {
            assert!(!*kept);
            *kept = true;
        }
    }
    keep
}

fn score() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => 0f32..1.0,
        2 => (0u8..4).prop_map(f32::from),
        1 => prop::sample::select(vec![f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 0.0]),
    ]
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        (-0.5f32..1.5).prop_map(Target::KeepRatio),
        prop_oneof![0.5f32..9.0, Just(f32::INFINITY)].prop_map(Target::LossyRatio),
        (1u32..900).prop_map(Target::Tokens),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn plans_follow_the_rule_token_by_token(
        kv_len in 1u32..800,
        block_tokens in 1u32..130,
        sink_tokens in 0u32..200,
        recent_tokens in prop_oneof![Just(0u32), 0u32..300, Just(u32::MAX)],
        target in target(),
        scores in prop::collection::vec(score(), 0..100),
        pins in prop_oneof![Just(vec![]), prop::collection::vec((0i32..300, 0i32..40), 0..6)],
    ) {
        let config = PlanConfig { block_tokens, sink_tokens, recent_tokens, target };
        let ranges = pins.iter().scan(0, |end, (gap, len)| {
            let at = *end + gap;
            *end = at + len;
            Some([at, *len])
        });
        let pinned: Vec<_> = ranges.take_while(|[at, len]| at + len <= kv_len as i32).collect();
        let p = plan_pinned(&scores, kv_len, &config, &pinned).unwrap();
        let keep = kept(&p, kv_len as usize);
        prop_assert_eq!(&keep, &brute_force(&scores, kv_len as usize, &config, &pinned));
        prop_assert!(pinned.iter().all(|[at, len]| keep[*at as usize..(at + len) as usize].iter().all(|kept| *kept)));
        prop_assert_eq!(p.kept_tokens as usize, keep.iter().filter(|k| **k).count());
        prop_assert_eq!(p.kept_tokens + p.evicted_tokens, kv_len);
        prop_assert_eq!(p.lossy_ratio, kv_len as f32 / p.kept_tokens as f32);
        prop_assert!(p.pairs.windows(2).all(|w| w[0][0] + w[0][1] < w[1][0]), "ascending, never touching");
        prop_assert!(!p.floor_dominates || p.evicted_tokens == 0);
        prop_assert!(p.kept_tokens > 0, "MNN's INT8 quantiser cannot begin with one token");
    }

    #[test]
    fn scores_stay_within_what_they_average(
        start in prop::collection::vec(0f32..1.0, 1..40),
        acc in 0f32..64.0,
        alpha in 0f32..=1.0,
    ) {
        let mut scores = start.clone();
        update_scores(&mut scores, &vec![acc; start.len()], alpha, 64.0).unwrap();
        for (new, old) in scores.iter().zip(&start) {
            let current = acc / 64.0;
            prop_assert!(*new >= old.min(current) - 1e-6 && *new <= old.max(current) + 1e-6);
        }
    }
}

#[test]
fn an_empty_cache_has_an_empty_plan() {
    let p = plan(&[1.0], 0, &PlanConfig::default()).unwrap();
    assert_eq!((p.pairs.len(), p.kept_tokens, p.evicted_tokens, p.floor_dominates), (0, 0, 0, true));
}

#[test]
fn impossible_arguments_are_refused() {
    for (kv_len, config) in [
        (1 << 31, PlanConfig::default()),
        (u32::MAX, PlanConfig::default()),
        (9, PlanConfig { block_tokens: 0, ..PlanConfig::default() }),
        (9, PlanConfig { target: Target::KeepRatio(f32::NAN), ..PlanConfig::default() }),
        (9, PlanConfig { target: Target::LossyRatio(f32::NAN), ..PlanConfig::default() }),
    ] {
        assert_eq!(plan(&[], kv_len, &config).unwrap_err().status(), Status::InvalidArgument);
    }
}
