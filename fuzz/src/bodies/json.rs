//! JSON texts: documents, configs of sessions, and configs of models.

use super::counting_allocator::peak;
use super::given::Given;
use mnnkv::json::{Json, Number, Reader, without_mark};
use mnnkv::session::Session;
use mnnkv_model::sizing::{
    CacheElement, H2o, Lossless, MnnCache, MnnConfig, MnnCpu, MnnFile, MnnNumbers, ModelConfig, Request, Savings,
    Setup, SizeReport, Sizer,
};
use serde_json::Value;

/// The value as the other reader has it.
fn theirs(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => (*value).into(),
        Json::Number(Number::Unsigned(value)) => (*value).into(),
        Json::Number(Number::Negative(value)) => (*value).into(),
        Json::Number(Number::Float(value)) => (*value).into(),
        Json::Text(text) => text.as_ref().into(),
        Json::List(values) => values.iter().map(theirs).collect(),
        Json::Object(fields) => fields.iter().map(|(key, value)| (key.to_string(), theirs(value))).collect(),
    }
}

/// Any bytes as JSON: the value that another reader reads, or refused by both.
pub fn json(text: &[u8]) {
    let mut reader = Reader::new(text);
    let skipped = reader.skip().and_then(|()| reader.end());
    let mut ours = Ok(Json::Null);
    let held = peak(|| ours = Json::parse(text));
    assert!(held <= 256 * text.len() + 4096, "{held} bytes for {}", text.len());
    let expected = serde_json::from_slice::<Value>(without_mark(text));
    assert_eq!((ours.is_ok(), skipped.is_ok()), (expected.is_ok(), expected.is_ok()), "{ours:?}; {expected:?}");
    if let (Ok(ours), Ok(expected)) = (ours, expected) {
        assert_eq!(theirs(&ours), expected);
    }
}

/// Any texts as the config of a session and its defaults: refused, or a session that tells its warnings.
pub fn config(data: &[u8]) {
    let mut given = Given::new(data);
    let (layers, lanes) = (given.from(1, 4) as u32, given.from(1, 4) as u32);
    let defaults = given.block();
    let config = given.rest();
    let Ok(session) = Session::new(config, defaults, layers, lanes) else { return };
    for layer in 0..layers {
        let begun = session.begin(layer, None, 0).unwrap();
        assert!(begun.kv_len == 0 && begun.scored_rows(1).rows <= 1);
        session.abort(layer, None, 0).unwrap();
    }
    let report: Value = serde_json::from_str(&session.report().unwrap()).expect("a report is JSON");
    let said = report["warnings"].as_array().unwrap().iter().map(|line| line.as_str().unwrap());
    assert!(said.eq(session.warnings().unwrap().lines()));
}

/// Any text as the config of a model: refused, or a report of its cache, which is larger for more tokens.
pub fn sizing(data: &[u8]) {
    let mut given = Given::new(data);
    let elements = [CacheElement::F16, CacheElement::F32, CacheElement::Int8, CacheElement::Int4];
    let plain = Setup::new(given.pick(&elements));
    let setup = Setup { ranks: given.any(), batch: given.any(), ..plain };
    let ratio = |given: &mut Given<'_>| f64::from(given.float());
    let savings = Savings {
        h2o: given.flag().then(|| H2o { first_layer: given.any(), ..H2o::new(ratio(&mut given)) }),
        lossless: given.flag().then(|| Lossless { front_layers: given.any(), ..Lossless::new(ratio(&mut given)) }),
    };
    let contexts: Vec<u64> = (0..given.below(4)).map(|_| given.any_long()).collect();
    let budget = given.flag().then(|| given.any_long());
    let text = given.rest();
    let mut model = None;
    let held = peak(|| model = ModelConfig::from_config(text).ok());
    assert!(held <= (4 << 20) + 256 * text.len(), "{held} bytes for {}", text.len());
    let file = MnnFile { name: "x", json: text };
    let given = MnnNumbers { layers: None, heads: None };
    if let Ok(mnn) = MnnConfig::read(file, Some(file), given, None) {
        let cache = MnnCache::new(mnn.mode, MnnCpu::ALL[1], CacheElement::F32).expect("x86 has f32");
        if let Ok(sizer) = Sizer::new(&mnn.model.layers, Setup { mnn: Some(cache), ..plain }, &Savings::default()) {
            let _ = sizer.bytes(100);
        }
    }
    let Some(model) = model else { return };
    let plain =
        Request { setup: Setup::new(setup.element), savings: Savings::default(), contexts: vec![1, 100], budget };
    if let Ok(report) = SizeReport::new(&model, &plain) {
        assert!(report.totals[0].rank.raw <= report.totals[1].rank.raw);
    }
    if let Ok(report) = SizeReport::new(&model, &Request { setup, savings, contexts, budget }) {
        serde_json::from_str::<Value>(&report.json().unwrap()).expect("reports are JSON");
        for total in &report.totals {
            assert!(total.rank.after_h2o <= total.rank.raw);
        }
    }
}
