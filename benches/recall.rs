//! Recall: memory by the system beside h2o at equal residents, time by step, and a chat far beyond its budget.
//!
//! `cargo bench --bench recall` runs each config in a process of its own. `MNNKV_RECALL_MB` (default 512) is the size of the
//! whole cache, 16 layers of 8 heads of 128 in f16. Keys and values are a bell curve, the worst case of the codec.

mod common;

use common::{Noise, Table};
use mnnkv::dtype::Dtype;
use mnnkv::layout::{self, Cache, Layout, Spec};
use mnnkv::session::{Queries, Session};
use mnnkv::snapshot::{SharedSnapshot, Snapshot, Storage};
use std::process::Command;
use std::time::Instant;

const HEADS: usize = 8;
const QUERY_HEADS: usize = 32;
const DIMS: usize = 128;
const LAYERS: usize = 16;
const CHUNK: u32 = 512;
const TOKEN: usize = HEADS * DIMS * 2;

fn halves(noise: &mut Noise, count: usize) -> Vec<u8> {
    (0..count).flat_map(|_| half::f16::from_f32(noise.next()).to_le_bytes()).collect()
}

struct Layer {
    layout: Layout,
    key: Vec<u8>,
    value: Vec<u8>,
    tokens: u32,
}

impl Layer {
    fn new(max_tokens: u32) -> Self {
        let layout = Layout::new(&Spec {
            key: Dtype::F16.into(),
            value: Dtype::F16.into(),
            kv_heads: HEADS as u32,
            head_dim: DIMS as u32,
            l_pack: 1,
            h_pack: 8,
            int8: Default::default(),
            flash_block: 64,
            max_tokens,
            key_head_stride: 0,
            value_head_stride: 0,
            key_token_stride: 0,
            value_token_stride: 0,
        });
        let layout = layout.unwrap();
        let (key, value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
        Layer { layout, key, value, tokens: 0 }
    }

    fn cache(&mut self) -> Cache<'_> {
        Cache::new(&self.layout, &mut self.key, &mut self.value).unwrap()
    }
}

/// A host of several layers.
struct Chat {
    session: Session,
    layers: Vec<Layer>,
    noise: Noise,
    /// Contents of tokens, `[head][token][dim]`.
    rows: Vec<u8>,
}

impl Chat {
    fn new(config: &str, layers: usize, max_tokens: u32) -> Self {
        let mut noise = Noise(1);
        let rows = halves(&mut noise, CHUNK as usize * HEADS * DIMS);
        let session = Session::new(config.as_bytes(), b"", layers as u32, 1).unwrap();
        Chat { session, layers: (0..layers).map(|_| Layer::new(max_tokens)).collect(), noise, rows }
    }

    /// A step of `count` tokens; returns its seconds inside the session. `key`: the key of all heads of all tokens.
    fn step(&mut self, count: u32, key: Option<&[u8]>, query: Option<&[f32]>) -> f64 {
        let mut seconds = 0.0;
        for number in 0..self.layers.len() {
            let layer = &mut self.layers[number];
            let start = Instant::now();
            let len = layer.tokens;
            layer.tokens = self.session.begin_step(number as u32, Some(layer.cache()), len, count).unwrap();
            seconds += start.elapsed().as_secs_f64();
            let range = layer.layout.range(layer.tokens, count).unwrap();
            let bytes = count as usize * TOKEN;
            let first = self.noise.0 as usize % (self.rows.len() - bytes + 1) / 2 * 2;
            let value = self.rows[first..first + bytes].to_vec();
            let key = key.map_or_else(|| value.clone(), |key| key.repeat(count as usize * HEADS));
            layout::scatter(&mut layer.cache(), range, &key, &value).unwrap();
            layer.tokens += count;
            let rows: Vec<f32> = match query {
                Some(query) => query.repeat(QUERY_HEADS),
                None => (0..QUERY_HEADS * DIMS).map(|_| self.noise.next()).collect(),
            };
            let bytes: Vec<u8> = rows.iter().flat_map(|x| x.to_ne_bytes()).collect();
            let start = Instant::now();
            let queries = Queries {
                dtype: Dtype::F32,
                heads: QUERY_HEADS,
                rows: 1,
                dims: DIMS,
                head_stride: DIMS * 4,
                row_stride: QUERY_HEADS * DIMS * 4,
                scale: 0.0,
                data: &bytes,
            };
            self.session.queries(number as u32, &queries).unwrap();
            let len = layer.tokens;
            self.session.end(number as u32, 0, count, layer.cache(), len).unwrap();
            seconds += start.elapsed().as_secs_f64();
        }
        seconds
    }
}

/// Private memory of this process, in bytes.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0) * 1024.0
}

fn config(tier: &str, budget: &str) -> String {
    let recall = match tier {
        "none" => return "{}".to_owned(),
        "h2o" => r#""kv_h2o_sink_tokens": 16, "kv_h2o_recent_tokens": 32, "kv_h2o_block_tokens": 16"#.to_owned(),
        tier => format!(r#""kv_recall_enable": true, "kv_recall_tier": "{tier}""#),
    };
    format!(r#"{{"kv_h2o_enable": true, "kv_h2o_layer_start": 0, {budget}, {recall}}}"#)
}

/// The size of the whole cache.
fn megabytes() -> u32 {
    std::env::var("MNNKV_RECALL_MB").ok().and_then(|text| text.parse().ok()).unwrap_or(512)
}

/// The file of a session that parks in one.
fn park_in_file(chat: &Chat) -> Option<std::path::PathBuf> {
    let path = std::env::temp_dir().join(format!("mnnkv-recall-{}.kv", std::process::id()));
    let file = SharedSnapshot::new(|| Snapshot::create(Storage::create(&path)?, b"")).unwrap();
    chat.session.park_to(Some(file)).unwrap();
    Some(path)
}

/// One config: its memory beside that of all tokens, and the time of its steps. Prints cells of a row.
fn memory(tier: &str) {
    let tokens = megabytes() * (1 << 20) / (LAYERS * 2 * TOKEN) as u32;
    let whole = (tokens as usize * LAYERS * 2 * TOKEN) as f64;
    let mut chat = Chat::new(&config(tier, r#""kv_h2o_target_lossy_ratio": 3.5"#), LAYERS, tokens + 256);
    let file = if tier == "file" { park_in_file(&chat) } else { None };
    let before = resident();
    let start = Instant::now();
    for _ in 0..tokens / CHUNK {
        chat.step(CHUNK, None, None);
    }
    let prompt = start.elapsed().as_secs_f64();
    let first = chat.step(1, None, None);
    let mut steps: Vec<f64> = (0..128).map(|_| chat.step(1, None, None)).collect();
    let after = resident() - before;
    steps.sort_by(f64::total_cmp);
    let stats = chat.session.recall_stats(None).unwrap();
    let (us, layers) = (1e6, LAYERS as f64);
    println!(
        "{}|{:.3}|{:.3}|{:.3}|{:.2}|{:.0}|{:.0}|{:.0}|{:.2}|{}|{}",
        tier,
        after / whole,
        stats.parked_bytes as f64 / whole,
        stats.summary_bytes as f64 / whole,
        prompt,
        first * us / layers,
        steps[64] * us / layers,
        steps[127] * us / layers,
        stats.counts.returned as f64 / (129.0 * layers),
        stats.counts.file.late_writes,
        stats.counts.failed,
    );
    if let Some(path) = file {
        std::fs::remove_file(path).ok();
    }
}

/// A chat of 32,768 tokens on a budget of 2,048. A passage of its start is wanted at its end. Prints cells of rows.
fn cold(tier: &str) {
    let budget = r#""kv_h2o_max_tokens": 2048, "kv_h2o_target_lossy_ratio": 1"#;
    let mut chat = Chat::new(&config(tier, budget), 2, 4096);
    let file = if tier == "file" { park_in_file(&chat) } else { None };
    // As long as other keys: only a query of its direction wants it.
    let told: Vec<f32> = (0..DIMS).map(|d| if d % 2 == 0 { 0.5 } else { -0.5 }).collect();
    let key: Vec<u8> = told.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect();
    chat.step(32, None, None);
    chat.step(32, Some(&key), None);
    let (mut logical, mut next, mut most) = (64, 2048, 0);
    while logical < 32_768 {
        let decoding = (0..32).map(|_| chat.step(1, None, None)).sum::<f64>() / 32.0;
        most = most.max(chat.layers[0].tokens);
        if logical + CHUNK >= next {
            println!("{tier}|{next}|{:.1}|{:.0}||", resident() / 1e6, decoding * 1e6 / 2.0);
            next *= 4;
        }
        chat.step(CHUNK - 32, None, None);
        most = most.max(chat.layers[0].tokens);
        logical += CHUNK;
    }
    let has = |chat: &Chat| {
        let positions = chat.session.positions(0).unwrap();
        (32..64).filter(|at| positions.iter().any(|run| (run[0]..run[0] + run[1]).contains(at))).count()
    };
    let before = has(&chat);
    let query: Vec<f32> = told.iter().map(|x| x * 6.0).collect();
    let steps = (1..=8).find(|_| {
        chat.step(1, None, Some(&query));
        has(&chat) == 32
    });
    let steps = steps.map_or("never".into(), |steps| steps.to_string());
    println!("{tier}, the end|{logical}|{:.1}||{before} of 32|{steps}", resident() / 1e6);
    assert!(most <= 2048 + CHUNK, "{most} tokens after a step");
    if let Some(path) = file {
        std::fs::remove_file(path).ok();
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().filter(|argument| argument != "--bench").collect();
    match &arguments[1..] {
        [what, tier] if what == "cold" => return cold(tier),
        [tier] => return memory(tier),
        _ => {}
    }
    let run = |table: &mut Table, arguments: &[&str]| {
        let child = Command::new(std::env::current_exe().unwrap()).args(arguments).output().unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        String::from_utf8(child.stdout).unwrap().lines().for_each(|line| table.row(line.split('|')));
    };
    let headers = [
        "tier",
        "memory",
        "parked",
        "summaries",
        "prompt s",
        "first us",
        "median us",
        "slowest us",
        "blocks back",
        "late",
        "failed",
    ];
    let mut table = Table::new("recall", &format!("one thread, {} MB of KV", megabytes()), &headers);
    for tier in ["none", "h2o", "ram", "ram4", "file"] {
        run(&mut table, &[tier]);
    }
    table.print();
    let mut long = Table::new("cold", "one thread", &["tier", "tokens", "MB", "us", "told there", "steps until back"]);
    run(&mut long, &["cold", "ram4"]);
    run(&mut long, &["cold", "file"]);
    long.print();
}
