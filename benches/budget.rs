//! A cold chat on a budget: its tokens go to a file, and what was told at its start is asked for. Time and memory of a step
//! by the length of the chat. 4 layers with 2 KV heads x 3 and 64 elements, f32.
//!
//! `cargo bench --bench budget`; `-- quick` ends at 16,384 tokens.

mod common;

use common::{Noise, Table};
use mnnkv::attend::{Queries, Step};
use mnnkv::dtype::Dtype;
use mnnkv::layout::{Cache, Layout, Spec, scatter};
use mnnkv::session::{Host, Session};
use std::sync::Mutex;
use std::time::Instant;

const LAYERS: usize = 4;
const KV_HEADS: usize = 2;
const GROUP: usize = 3;
const DIMS: usize = 64;
const CHUNK: usize = 256;
const THREADS: u32 = 2;
const BUDGET_MB: usize = 64;
/// Keys have so many directions, beside some noise, as those of models do.
const RANK: usize = 12;
/// The token that is asked for.
const NEEDLE: usize = 1000;

struct Chat {
    session: Session,
    layout: Layout,
    caches: Vec<(Vec<u8>, Vec<u8>, u32)>,
    base: Vec<f32>,
    noise: Noise,
    tokens: usize,
}

impl Chat {
    fn new(file: &str) -> Self {
        let config = format!(r#"{{"kv_memory_mb": {BUDGET_MB}, "kv_memory_file": "{file}"}}"#);
        let host = Host { attends: true };
        let session = Session::with_host(config.as_bytes(), b"", LAYERS as u32, THREADS, host).unwrap();
        let layout = Layout::new(&Spec {
            key: Dtype::F32.into(),
            value: Dtype::F32.into(),
            kv_heads: KV_HEADS as u32,
            head_dim: DIMS as u32,
            l_pack: 1,
            h_pack: 16,
            int8: Default::default(),
            flash_block: 64,
            max_tokens: 1 << 14,
            key_head_stride: 0,
            value_head_stride: 0,
            key_token_stride: 0,
            value_token_stride: 0,
        });
        let layout = layout.unwrap();
        let cache = || (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()], 0);
        let caches = (0..LAYERS).map(|_| cache()).collect();
        let mut noise = Noise(1);
        let base = (0..RANK * DIMS).map(|_| noise.wide()).collect();
        Chat { session, layout, caches, base, noise, tokens: 0 }
    }

    /// A key of the model's directions.
    fn key(&mut self, at: usize) -> Vec<f32> {
        let parts: Vec<f32> = (0..RANK).map(|_| self.noise.wide()).collect();
        if at == NEEDLE {
            return self.needle();
        }
        (0..DIMS)
            .map(|d| (0..RANK).map(|r| parts[r] * self.base[r * DIMS + d]).sum::<f32>() + 0.3 * self.noise.wide())
            .collect()
    }

    fn needle(&self) -> Vec<f32> {
        self.base[..DIMS].iter().map(|x| 6.0 * x).collect()
    }

    /// Appends tokens to all layers, of which the last attends with `query`. Returns its output of the first head.
    fn step(&mut self, count: usize, query: Option<&[f32]>) -> Vec<f32> {
        let mut output = Vec::new();
        for layer in 0..LAYERS {
            let keys: Vec<Vec<f32>> = (0..KV_HEADS * count).map(|at| self.key(self.tokens + at % count)).collect();
            let bytes = |rows: &[f32]| -> Vec<u8> { rows.iter().flat_map(|x| x.to_ne_bytes()).collect() };
            let value = |at: usize, noise: &mut Noise| match self.tokens + at % count {
                NEEDLE => vec![5.0; DIMS],
                _ => (0..DIMS).map(|_| noise.wide()).collect(),
            };
            let values: Vec<Vec<f32>> = (0..KV_HEADS * count).map(|at| value(at, &mut self.noise)).collect();
            let (key, value, len) = &mut self.caches[layer];
            let number = layer as u32;
            let begin = self.session.begin(number, Some(Cache::new(&self.layout, key, value).unwrap()), *len).unwrap();
            let mut cache = Cache::new(&self.layout, key, value).unwrap();
            let range = self.layout.range(begin, count as u32).unwrap();
            scatter(&mut cache, range, &bytes(&keys.concat()), &bytes(&values.concat())).unwrap();
            *len = begin + count as u32;
            let rows = u32::from(query.is_some() && self.session.attends(number).unwrap());
            if let Some(query) = query.filter(|_| rows > 0) {
                output = self.attend(number, query);
            }
            let (key, value, len) = &mut self.caches[layer];
            let cache = Cache::new(&self.layout, key, value).unwrap();
            self.session.end(number, 0, rows, cache, *len).unwrap();
        }
        self.tokens += count;
        output
    }

    fn attend(&mut self, layer: u32, query: &[f32]) -> Vec<f32> {
        let heads = KV_HEADS * GROUP;
        let data: Vec<u8> = (0..heads).flat_map(|_| query).flat_map(|x| x.to_ne_bytes()).collect();
        let row = DIMS * 4;
        let queries = Queries {
            dtype: Dtype::F32,
            heads,
            rows: 1,
            dims: DIMS,
            head_stride: row,
            row_stride: heads * row,
            scale: 0.0,
            data: &data,
        };
        let step = Step { queries, is_causal: true, window: None, soft_cap: None, sinks: None, mask: None };
        let (key, value, len) = &mut self.caches[layer as usize];
        let (cache, len) = (Cache::new(&self.layout, key, value).unwrap(), *len);
        let (cache, output, session) = (cache.as_ref(), Mutex::new(vec![0.0; DIMS]), &self.session);
        let part = |part: u32| {
            let mut write = |_: usize, head: usize, x: &[f32]| {
                if head == 0 {
                    output.lock().unwrap().copy_from_slice(x);
                }
            };
            session.attend(layer, (&cache, len), &step, (part, THREADS), &mut write).unwrap();
        };
        std::thread::scope(|scope| {
            (1..THREADS).for_each(|at| drop(scope.spawn(move || part(at))));
            part(0);
        });
        output.into_inner().unwrap()
    }
}

fn main() {
    let last = if std::env::args().any(|arg| arg == "quick") { 1 << 14 } else { 1 << 17 };
    let path = std::env::temp_dir().join(format!("mnnkv-bench-{}", std::process::id()));
    let mut chat = Chat::new(&path.display().to_string());
    let head = ["tokens", "ms a step", "MB in use", "MB of the file", "reads a step", "steps until it is back"];
    let conditions = format!("{LAYERS} layers, {BUDGET_MB} MB, {THREADS} threads, the file in the system's memory");
    let mut table = Table::new("budget", &conditions, &head);
    let needle: Vec<f32> = chat.needle();
    for length in (12..).map(|power| 1usize << power).take_while(|length| *length <= last) {
        while chat.tokens < length - 64 {
            chat.step(CHUNK.min(length - 64 - chat.tokens), None);
        }
        let before = chat.session.memory_stats().unwrap();
        let mut times = Vec::new();
        for _ in 0..31 {
            let query: Vec<f32> = chat.key(0).iter().map(|x| 0.5 * x).collect();
            let start = Instant::now();
            chat.step(1, Some(&query));
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        let reads = (chat.session.memory_stats().unwrap().reads.read - before.reads.read) as f64 / 31.0;
        let is_back = |output: &[f32]| output.iter().all(|x| (x - 5.0).abs() < 0.5);
        let steps = (1..=30).find(|_| is_back(&chat.step(1, Some(&needle))));
        let stats = chat.session.memory_stats().unwrap();
        let cells = [
            length.to_string(),
            if chat.session.attends(0).unwrap() { format!("{:.2}", times[times.len() / 2]) } else { "raw".into() },
            format!("{:.1}", stats.bytes as f64 / 1e6),
            format!("{:.1}", stats.file_bytes as f64 / 1e6),
            format!("{reads:.0}"),
            steps.filter(|_| chat.session.attends(0).unwrap()).map_or("-".into(), |steps| steps.to_string()),
        ];
        table.row(cells);
        assert_eq!(stats.dropped_tokens, 0, "{stats:?}");
    }
    table.print();
}
