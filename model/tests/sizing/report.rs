//! A report in one piece, and as JSON.

use super::{model, notes_say};
use mnnkv::status::Status;
use mnnkv_model::sizing::*;
use serde_json::{Value, json};

fn request() -> Request {
    Request {
        setup: Setup { ranks: 2, ..Setup::new(CacheElement::F16) },
        savings: Savings { h2o: Some(H2o::new(3.5)), lossless: Some(Lossless::new(1.25)) },
        contexts: vec![1000, 35_000],
        budget: Some(8 << 30),
    }
}

#[test]
fn a_report_has_what_was_asked() {
    let report = SizeReport::new(&model("llama-3-8b"), &request()).unwrap();
    assert_eq!((report.layers, report.max_context), (32, Some(8192)));
    // On each of two ranks 4 of 8 KV heads.
    let token = 2 * 4 * 128 * 2;
    assert_eq!((report.bytes_per_token, report.bytes_per_late_token), (32 * token, 32 * token));
    assert_eq!(report.groups.len(), 1);
    assert_eq!(report.groups[0].numbers, (0..32).collect::<Vec<_>>());
    assert_eq!(report.groups[0].layer_bytes_per_token, token);

    let [short, long] = report.totals[..] else { panic!("two contexts expected") };
    assert_eq!((short.context, short.rank.raw, short.rank.after_h2o), (1000, 32_000 * token, 32_000 * token));
    let evicted = (2 * 35_000 + 30 * 10_000) * token;
    // In each of two layers 34,728 cold tokens of 2,048 bytes, four fifths of which are 56,898,355.2.
    assert_eq!(long.rank.after_h2o, evicted);
    assert_eq!(long.rank.after_lossless, evicted - 2 * 34_728 * 2048 + 2 * 56_898_356);
    assert_eq!(long.all_ranks.raw, 2 * long.rank.raw);
    assert_eq!(long.all_ranks.peak, 2 * long.rank.peak);

    let (without, with) = (report.longest_without_savings.unwrap(), report.longest.unwrap());
    assert_eq!(without.tokens, (8 << 30) / (32 * token));
    assert!(with.tokens > 2 * without.tokens, "{with:?}");
    notes_say(&report.notes, &["more than the 8192 tokens", "budget"]);
}

#[test]
fn layers_that_are_alike_are_one_group() {
    let report = SizeReport::new(
        &model("gemma-3n-e4b"),
        &Request { setup: Setup::new(CacheElement::F16), savings: Savings::default(), contexts: vec![], budget: None },
    )
    .unwrap();
    let groups: Vec<_> =
        report.groups.iter().map(|g| (g.numbers[0], g.numbers.len(), g.layer_bytes_per_token)).collect();
    assert_eq!(groups, [(0, 16, 2048), (4, 4, 2048), (20, 15, 0)]);
    assert_eq!(report.groups[2].layer, LayerShape::Shared);
}

#[test]
fn json_has_the_fields_by_their_names() {
    let json = SizeReport::new(&model("qwen3-next-80b"), &Request { budget: None, ..request() });
    let json: Value = serde_json::from_str(&json.unwrap().json().unwrap()).unwrap();
    assert_eq!(json["model_type"], "qwen3_next");
    assert_eq!(json["element"], "f16");
    assert_eq!(json["ranks"], 2);
    assert_eq!(json["layers"], 48);
    assert_eq!(json["bytes_per_token"], 12 * 2 * 256 * 2);
    let attending = &json["groups"][1];
    assert_eq!(attending["kind"], "full");
    assert_eq!(attending["kv_heads"], 2);
    assert_eq!(attending["head_dim"], 256);
    assert_eq!(attending["numbers"][1], 7);
    assert_eq!(json["groups"][0]["kind"], "recurrent");
    assert_eq!(json["groups"][0]["state_elements"], 524_288 + 8192 * 3);
    assert_eq!(json["savings"]["h2o"]["ratio"], 3.5);
    assert_eq!(json["savings"]["lossless"]["hot_tokens"], 272);
    assert_eq!(json["totals"][1]["context"], 35_000);
    assert_eq!(json["totals"][1]["rank"]["raw"], 35_000 * 12 * 1024);
    assert!(json["notes"].as_array().unwrap().len() > 2);
    assert_eq!(json.get("longest"), None);

    let sliding = Request { savings: Savings::default(), budget: Some(0), contexts: vec![], ..request() };
    let json = SizeReport::new(&model("mistral-7b-v0.1"), &sliding).unwrap().json().unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["groups"][0]["kind"], "sliding");
    assert_eq!(json["groups"][0]["most_tokens"], 4096);
    assert_eq!(json["longest"], json!({ "tokens": 0, "bytes": 0, "bounded": true }));
    assert_eq!(json["savings"], json!({}));
}

#[test]
fn more_copies_than_a_model_has_heads_are_told() {
    let notes = |name, ranks| {
        let setup = Setup { ranks, ..Setup::new(CacheElement::F16) };
        let request = Request { setup, savings: Savings::default(), ..request() };
        SizeReport::new(&model(name), &request).unwrap().notes
    };
    notes_say(&notes("qwen2.5-1.5b-instruct", 4), &["4 ranks share 2 KV heads"]);
    notes_say(&notes("qwen2.5-1.5b-instruct", 3), &["no multiple", "refuse"]);
    notes_say(&notes("deepseek-v2", 8), &["each of the 8 ranks"]);
}

#[test]
fn a_report_is_whole_or_an_error() {
    let llama = model("llama-3-8b");
    let status = |request: &Request| SizeReport::new(&llama, request).unwrap_err().status();
    assert_eq!(status(&Request { contexts: vec![1, MAX_TOKENS + 1], ..request() }), Status::InvalidArgument);
    assert_eq!(status(&Request { contexts: vec![1; 1025], ..request() }), Status::InvalidArgument);
    // On one rank it fits 64 bits, on all of them it does not.
    let setup = Setup { ranks: u32::MAX, ..Setup::new(CacheElement::F32) };
    let savings = Savings::default();
    assert_eq!(status(&Request { setup, savings, contexts: vec![1 << 30], budget: None }), Status::InvalidArgument);
}
