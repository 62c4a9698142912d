//! A cold chat on a budget: its tokens go to a file, and what was told at its start is asked for. Time and memory of a step
//! by the length of the chat. 4 layers with 2 KV heads x 3 and 64 elements, f32. And the times of all steps of a chat in memory
//! alone, of the shape of a model: no step may take much longer than the others. A chat that is saved and opened; chats over a
//! prefix; and the memory of a model whose layers have windows.
//!
//! `cargo bench --bench budget`; `-- quick` ends at 16,384 tokens, `-- windows` has the last table alone.

mod common;

use common::{Noise, Table};
use mnnkv::attend::{Queries, Step};
use mnnkv::dtype::Dtype;
use mnnkv::layout::{Cache, Layout, Spec, scatter};
use mnnkv::session::{Host, Session};
use std::sync::Mutex;
use std::time::{Duration, Instant};

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
    kv_heads: usize,
    session: Session,
    layout: Layout,
    caches: Vec<(Vec<u8>, Vec<u8>, u32)>,
    base: Vec<f32>,
    noise: Noise,
    tokens: usize,
    /// The last step of the last layer attended by the session.
    attends: bool,
    /// Times of begin, attention and end, of layers that attend.
    calls: [Vec<Duration>; 3],
    /// Parts of a step run at once.
    threads: bool,
}

impl Chat {
    fn new(config: &str, layers: usize, kv_heads: usize) -> Self {
        let host = Host { attends: true };
        let session = Session::with_host(config.as_bytes(), b"", layers as u32, THREADS, host).unwrap();
        let layout = Layout::new(&Spec {
            key: Dtype::F32.into(),
            value: Dtype::F32.into(),
            kv_heads: kv_heads as u32,
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
        let caches = (0..layers).map(|_| cache()).collect();
        let mut noise = Noise(1);
        let base = (0..RANK * DIMS).map(|_| noise.wide()).collect();
        Chat {
            kv_heads,
            session,
            layout,
            caches,
            base,
            noise,
            tokens: 0,
            attends: false,
            calls: Default::default(),
            threads: true,
        }
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

    /// Appends tokens to all layers, of which the last attends with `query`. Returns its output of the first head, and the
    /// time of the session's calls.
    fn step(&mut self, count: usize, query: Option<&[f32]>) -> (Vec<f32>, Duration) {
        let (mut output, mut time) = (Vec::new(), Duration::ZERO);
        for layer in 0..self.caches.len() {
            let keys: Vec<Vec<f32>> = (0..self.kv_heads * count).map(|at| self.key(self.tokens + at % count)).collect();
            let bytes = |rows: &[f32]| -> Vec<u8> { rows.iter().flat_map(|x| x.to_ne_bytes()).collect() };
            let value = |at: usize, noise: &mut Noise| match self.tokens + at % count {
                NEEDLE => vec![5.0; DIMS],
                _ => (0..DIMS).map(|_| noise.wide()).collect(),
            };
            let values: Vec<Vec<f32>> = (0..self.kv_heads * count).map(|at| value(at, &mut self.noise)).collect();
            let (key, value, len) = &mut self.caches[layer];
            let number = layer as u32;
            let start = Instant::now();
            let begun = self.session.begin(number, Some(Cache::new(&self.layout, key, value).unwrap()), *len).unwrap();
            let begin = start.elapsed();
            let mut cache = Cache::new(&self.layout, key, value).unwrap();
            let range = self.layout.range(begun.kv_len, count as u32).unwrap();
            scatter(&mut cache, range, &bytes(&keys.concat()), &bytes(&values.concat())).unwrap();
            *len = begun.kv_len + count as u32;
            self.attends = begun.attends;
            let start = Instant::now();
            let rows = u32::from(query.is_some() && begun.attends);
            if let Some(query) = query.filter(|_| rows > 0) {
                output = self.attend(number, query);
            }
            let (key, value, len) = &mut self.caches[layer];
            let cache = Cache::new(&self.layout, key, value).unwrap();
            let attended = start.elapsed();
            self.session.end(number, 0, rows, cache, *len).unwrap();
            let rest = start.elapsed();
            time += begin + rest;
            if begun.attends {
                let times = [begin, attended, rest - attended];
                self.calls.iter_mut().zip(times).for_each(|(calls, time)| calls.push(time));
            }
        }
        self.tokens += count;
        (output, time)
    }

    /// Saves the chat. Returns the bytes written.
    fn save(&mut self) -> u64 {
        self.save_to(None)
    }

    fn save_to(&mut self, path: Option<&str>) -> u64 {
        let layout = &self.layout;
        let caches = self.caches.iter_mut();
        let mut caches: Vec<_> =
            caches.map(|(key, value, len)| (Some(Cache::new(layout, key, value).unwrap()), *len)).collect();
        self.session.save(path, &mut caches).unwrap()
    }

    fn attend(&mut self, layer: u32, query: &[f32]) -> Vec<f32> {
        let heads = self.kv_heads * GROUP;
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
        if self.threads {
            std::thread::scope(|scope| {
                (1..THREADS).for_each(|at| drop(scope.spawn(move || part(at))));
                part(0);
            });
        } else {
            (0..THREADS).for_each(part);
        }
        output.into_inner().unwrap()
    }
}

/// A chat of single steps in 128 MB, of the shape of SmolLM2-135M.
fn steps(last: usize) -> Table {
    let mut chat = Chat::new(r#"{"kv_memory_mb": 128}"#, 30, 3);
    let mut times = Vec::new();
    while chat.tokens < last {
        let query: Vec<f32> = chat.key(0).iter().map(|x| 0.5 * x).collect();
        let time = chat.step(1, Some(&query)).1.as_secs_f64() * 1e3;
        // From the step on in which the last layer quantises, after two eighths of the layers.
        if chat.attends {
            times.push((time, chat.tokens));
        }
    }
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    let head = ["", "ms", "of the median", "at token"];
    let mut table = Table::new("budget.steps", "30 layers with 3 KV heads, 128 MB, 2 threads, no file", &head);
    let (median, count) = (times[times.len() / 2].0, times.len());
    for (name, at) in
        [("median", count / 2), ("99 %", count * 99 / 100), ("99.9 %", count * 999 / 1000), ("slowest", count - 1)]
    {
        let (time, token) = times[at];
        table.row([name.into(), format!("{time:.2}"), format!("{:.2}", time / median), token.to_string()]);
    }
    let mut short = Chat::new(r#"{"kv_quant": "k8v4"}"#, 30, 3);
    short.threads = false;
    let query = vec![0.5; DIMS];
    (0..32).for_each(|_| drop(short.step(1, Some(&query))));
    let [begin, _, end] = chat.calls;
    let [_, attention, _] = short.calls;
    let rows =
        [("begin of a layer", begin), ("end of a layer", end), ("attention over 1 to 32 tokens, 2 parts", attention)];
    for (name, mut times) in rows {
        // Of the last eighth of the chat; all of the short one.
        let first = if times.len() > 1000 { times.len() / 8 * 7 } else { 0 };
        times[first..].sort_unstable();
        let time = times[first + (times.len() - first) / 2].as_secs_f64() * 1e3;
        table.row([format!("{name}, median"), format!("{time:.4}"), format!("{:.4}", time / median), "-".into()]);
    }
    table
}

/// A chat of the shape of SmolLM2-135M in a file: it is saved, saved again after a turn, and opened in another session, whose first
/// step asks for its start. And the times of its steps while blocks go to the file.
fn saved(last: usize) -> Table {
    let path = std::env::temp_dir().join(format!("mnnkv-bench-chat-{}", std::process::id()));
    let config = format!(r#"{{"kv_memory_mb": {BUDGET_MB}, "kv_memory_file": "{}"}}"#, path.display());
    let mut chat = Chat::new(&config, 30, 3);
    while chat.tokens < last {
        chat.step(CHUNK, None);
    }
    let mut times = Vec::new();
    for _ in 0..512 {
        let query: Vec<f32> = chat.key(0).iter().map(|x| 0.5 * x).collect();
        times.push(chat.step(1, Some(&query)).1.as_secs_f64() * 1e3);
    }
    let slowest = times.iter().copied().fold(0.0, f64::max);
    times.sort_by(f64::total_cmp);
    let [median, late] = [times.len() / 2, times.len() * 99 / 100].map(|at| times[at]);
    let mut table = Table::new(
        "budget.file",
        &format!("30 layers with 3 KV heads, {BUDGET_MB} MB and a file, {THREADS} threads"),
        &["", "", "is"],
    );
    let mut row = |what: &str, figure: String, is: &str| table.row([what.into(), figure, is.into()]);
    row("step of 1 token, median", format!("{median:.2}"), "ms");
    row("99 % of the steps", format!("{:.2}", late / median), "of the median");
    row("slowest step", format!("{:.2}", slowest / median), "of the median");
    let start = Instant::now();
    let written = chat.save();
    row("save", format!("{:.0}", start.elapsed().as_secs_f64() * 1e3), "ms");
    row("written by it", format!("{:.1}", written as f64 / 1e6), "MB");
    let blocks = (chat.tokens / 64) as f64 * 30.0 * 3.0 * 6912.0;
    let file = std::fs::metadata(&path).unwrap().len() as f64;
    row("the file", format!("{:.3}", file / blocks), "of the codes of all blocks");
    for _ in 0..128 {
        chat.step(1, None);
    }
    let start = Instant::now();
    let turn = chat.save() as f64;
    row("save after a turn of 128 tokens", format!("{:.0}", start.elapsed().as_secs_f64() * 1e3), "ms");
    row("written by it", format!("{:.3}", turn / 1e6), "MB");
    let needle = chat.needle();
    chat.session =
        Session::with_host(config.replace("chat", "other").as_bytes(), b"", 30, THREADS, Host { attends: true })
            .unwrap();
    let start = Instant::now();
    chat.session.open(Some(path.to_str().unwrap())).unwrap();
    let opened = start.elapsed();
    let (output, _) = chat.step(1, Some(&needle));
    row("open, to the end of the first step", format!("{:.0}", start.elapsed().as_secs_f64() * 1e3), "ms");
    row("of these open", format!("{:.0}", opened.as_secs_f64() * 1e3), "ms");
    let is_back = output.iter().all(|x| (x - 5.0).abs() < 0.5);
    row("what was said at the start", if is_back { "is back" } else { "is missing" }.into(), "in the first step");
    drop(chat);
    let _ = std::fs::remove_file(&path);
    table
}

/// Bytes of the process in memory, in MB.
fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("Rss:")).unwrap_or("");
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<f64>().ok()).unwrap_or(0.0) / 1e3
}

/// 16 chats over one prefix of 2,048 tokens, each with 100 tokens of its own.
fn over_a_base() -> Table {
    const LAYERS: usize = 30;
    let path = std::env::temp_dir().join(format!("mnnkv-bench-base-{}", std::process::id()));
    let mut prefix = Chat::new(r#"{"kv_quant": "k8v4"}"#, LAYERS, 3);
    while prefix.tokens < 2048 {
        prefix.step(CHUNK, None);
    }
    // Tokens of the last chunk are quantised, too.
    prefix.step(0, None);
    prefix.save_to(path.to_str());
    prefix.session = Session::new(b"", b"", 1, 1).unwrap();
    // Large buffers that are freed would come back in memory with the next ones.
    std::mem::forget(prefix.caches);
    let begin = |prefix: Option<bool>| -> [f64; 2] {
        let base = prefix == Some(true);
        let config = match base {
            true => format!(r#"{{"kv_quant": "k8v4", "kv_memory_base": "{}"}}"#, path.display()),
            false => r#"{"kv_quant": "k8v4"}"#.to_string(),
        };
        let before = resident();
        let mut chats = Vec::new();
        let mut after = [0.0; 2];
        for count in 1..=16 {
            let mut chat = Chat::new(&config, LAYERS, 3);
            if prefix == Some(false) {
                chat.session.open(path.to_str()).unwrap();
            }
            for (layer, (.., len)) in (0..).zip(&mut chat.caches) {
                *len = chat.session.lengths(layer).unwrap().physical;
            }
            chat.tokens = 2048;
            if prefix.is_none() {
                chat.step(111, None);
            }
            (0..100).for_each(|_| drop(chat.step(1, None)));
            if prefix == Some(false) {
                // One chat has the file open: the next ones would be refused.
                chat.save_to(Some(&format!("{}.{count}", path.display())));
            }
            chats.push(chat);
            after[usize::from(count > 1)] = resident() - before;
        }
        for chat in chats {
            std::mem::forget(chat.caches);
        }
        after
    };
    let head = ["", "1 chat, MB", "16 chats, MB"];
    let mut table =
        Table::new("budget.base", "a prefix of 2,048 tokens, 30 layers with 3 KV heads, f32, 100 tokens a chat", &head);
    for (name, prefix) in
        [("without the prefix's blocks", None), ("kv_memory_base", Some(true)), ("a copy each", Some(false))]
    {
        let [one, all] = begin(prefix);
        table.row([name.into(), format!("{one:.1}"), format!("{all:.1}")]);
    }
    (1..=16).for_each(|count| drop(std::fs::remove_file(format!("{}.{count}", path.display()))));
    let _ = std::fs::remove_file(&path);
    table
}

/// The memory of a chat of the shape of Gemma 3 270M: 18 layers of one KV head of 256, of which 15 have a window.
fn windows(tokens: usize) -> Table {
    const LAYERS: u32 = 18;
    const DIMS: usize = 256;
    const WINDOW: u32 = 512;
    let layout = Layout::new(&Spec {
        key: Dtype::F32.into(),
        value: Dtype::F32.into(),
        kv_heads: 1,
        head_dim: DIMS as u32,
        l_pack: 1,
        h_pack: 16,
        int8: Default::default(),
        flash_block: 64,
        max_tokens: 1024,
        key_head_stride: 0,
        value_head_stride: 0,
        key_token_stride: 0,
        value_token_stride: 0,
    })
    .unwrap();
    let mut noise = Noise(7);
    let rows: Vec<u8> = (0..CHUNK * DIMS).flat_map(|_| noise.wide().to_ne_bytes()).collect();
    let used = |format: &str, with_windows: bool| {
        let before = resident();
        let config = format!(r#"{{"kv_quant": "{format}"}}"#);
        let session = Session::with_host(config.as_bytes(), b"", LAYERS, 1, Host { attends: true }).unwrap();
        for layer in (0..LAYERS).filter(|layer| with_windows && layer % 6 != 5) {
            session.set_window(Some(layer), WINDOW, 0).unwrap();
        }
        let buffers = || (vec![0u8; layout.key_bytes()], vec![0u8; layout.value_bytes()], 0);
        let mut caches: Vec<_> = (0..LAYERS).map(|_| buffers()).collect();
        let mut length = 0;
        while length < tokens {
            let count = CHUNK.min(tokens - length).min(if tokens - length > 1 { tokens - length - 1 } else { 1 });
            for (layer, (key, value, len)) in (0..).zip(&mut caches) {
                let begun = session.begin(layer, Some(Cache::new(&layout, key, value).unwrap()), *len).unwrap();
                let mut cache = Cache::new(&layout, key, value).unwrap();
                let some = &rows[..count * DIMS * 4];
                scatter(&mut cache, layout.range(begun.kv_len, count as u32).unwrap(), some, some).unwrap();
                *len = begun.kv_len + count as u32;
                let data = &some[(count - 1) * DIMS * 4..];
                let data: Vec<u8> = (0..4).flat_map(|_| data).copied().collect();
                let row = DIMS * 4;
                let queries = Queries {
                    dtype: Dtype::F32,
                    heads: 4,
                    rows: 1,
                    dims: DIMS,
                    head_stride: row,
                    row_stride: 4 * row,
                    scale: 0.0,
                    data: &data,
                };
                let step = Step { queries, is_causal: true, window: None, soft_cap: None, sinks: None, mask: None };
                let rows = u32::from(count == 1);
                if rows > 0 {
                    session.attend(layer, (&cache.as_ref(), *len), &step, (0, 1), &mut |_, _, _| {}).unwrap();
                }
                session.end(layer, 0, rows, cache, *len).unwrap();
            }
            length += count;
        }
        // Else the row is of another format.
        assert_eq!(session.metrics(None).unwrap().quant_k8v4_count, 0.0);
        let used = resident() - before;
        std::mem::forget(caches);
        format!("{:.1}", used)
    };
    let conditions = format!("{tokens} tokens, {LAYERS} layers of 1 KV head of {DIMS}, 15 with a window of {WINDOW}");
    let mut table =
        Table::new("budget.windows", &conditions, &["MB, by the system", "k8v4", "k4v4", "f32, by arithmetic"]);
    let whole = (tokens * LAYERS as usize * DIMS * 2 * 4) as f64 / 1e6;
    table.row(["windows known".into(), used("k8v4", true), used("k4v4", true), String::new()]);
    table.row(["all layers whole".into(), used("k8v4", false), used("k4v4", false), format!("{whole:.1}")]);
    table
}

fn main() {
    if std::env::args().any(|arg| arg == "windows") {
        return windows(1 << 15).print();
    }
    let is_quick = std::env::args().any(|arg| arg == "quick");
    let last = if is_quick { 1 << 14 } else { 1 << 17 };
    let path = std::env::temp_dir().join(format!("mnnkv-bench-{}", std::process::id()));
    let config = format!(r#"{{"kv_memory_mb": {BUDGET_MB}, "kv_memory_file": "{}"}}"#, path.display());
    let mut chat = Chat::new(&config, 4, 2);
    let head = ["tokens", "ms a step", "MB in use", "MB of the file", "reads a step", "steps until it is back"];
    let conditions = format!("4 layers, {BUDGET_MB} MB, {THREADS} threads, the file in the system's memory");
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
        let reads = (chat.session.memory_stats().unwrap().reads - before.reads) as f64 / 31.0;
        let is_back = |output: &[f32]| output.iter().all(|x| (x - 5.0).abs() < 0.5);
        let steps = (1..=30).find(|_| is_back(&chat.step(1, Some(&needle)).0));
        let stats = chat.session.memory_stats().unwrap();
        let cells = [
            length.to_string(),
            if chat.attends { format!("{:.2}", times[times.len() / 2]) } else { "raw".into() },
            format!("{:.1}", stats.bytes as f64 / 1e6),
            format!("{:.1}", stats.file_bytes as f64 / 1e6),
            format!("{reads:.0}"),
            steps.filter(|_| chat.attends).map_or("-".into(), |steps| steps.to_string()),
        ];
        table.row(cells);
        assert_eq!(stats.dropped_tokens, 0, "{stats:?}");
    }
    table.print();
    drop(chat);
    steps(if is_quick { 1 << 11 } else { 1 << 13 }).print();
    saved(if is_quick { 1 << 13 } else { 1 << 15 }).print();
    if !is_quick {
        over_a_base().print();
        windows(1 << 15).print();
    }
}
