//! Tables: one per dump as it is measured, and Markdown at the end.

use super::peer::{ALONE_3, HINT, PLANE_RANS, PLANE_V1, PLANE_ZSTD, SPLIT_3, V1_5, V2_5, V2_9};
use super::rans::{BLOCK, histogram};
use super::{Lap, Measured};
use mnnkv::dtype::Dtype;
use std::fmt::Write;

/// Sizes of one dump on the way to v2 at effort 5.
pub struct Steps {
    /// Share of rows that equal an earlier one of their head.
    pub repeats: f64,
    /// v1 at effort 1: Huffman codes of byte planes.
    pub huffman: usize,
    /// The same of the rows that equal no earlier one.
    pub unique: usize,
}

impl Measured {
    fn lap(&self, name: &str) -> Option<&Lap> {
        // V has no hint.
        let name = if name == HINT && self.dump.rotary && self.dump.kind == "v" { V2_5 } else { name };
        self.laps.iter().find(|lap| lap.name == name)
    }

    fn len(&self, name: &str) -> usize {
        self.lap(name).map_or(0, |lap| lap.len)
    }
}

/// Bytes of ideal order-0 codes, with the histogram of each block given.
pub fn order_0(bytes: &[u8]) -> f64 {
    let bits = |block: &[u8]| {
        let len = block.len() as f64;
        let counts = histogram(block).map(f64::from);
        counts.iter().filter(|n| **n > 0.0).map(|n| n * (len / n).log2()).sum::<f64>()
    };
    bytes.chunks(BLOCK).map(bits).sum::<f64>() / 8.0
}

/// Sums over dumps.
struct Total {
    raw: f64,
    len: f64,
    encode: f64,
    decode: f64,
}

impl Total {
    /// `None` if a dump lacks the candidate.
    fn of(dumps: &[&Measured], name: &str) -> Option<Total> {
        let laps: Vec<&Lap> = dumps.iter().map(|m| m.lap(name)).collect::<Option<_>>()?;
        Some(Total {
            raw: dumps.iter().map(|m| m.dump.words.len() as f64).sum(),
            len: laps.iter().map(|lap| lap.len as f64).sum(),
            encode: laps.iter().map(|lap| lap.encode).sum(),
            decode: laps.iter().map(|lap| lap.decode).sum(),
        })
    }

    fn cells(&self) -> [String; 3] {
        [ratio(self.raw / self.len), speed(self.raw, self.encode), speed(self.raw, self.decode)]
    }
}

fn ratio(ratio: f64) -> String {
    format!("{ratio:.3}")
}

fn times(factor: f64) -> String {
    format!("{factor:.2}")
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// MB/s, with commas.
fn speed(bytes: f64, seconds: f64) -> String {
    let rate = (bytes / seconds / 1e6).round() as u64;
    if rate < 1000 { rate.to_string() } else { format!("{},{:03}", rate / 1000, rate % 1000) }
}

fn geometric_mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value.ln(), count + 1));
    (sum / count as f64).exp()
}

struct Table(Vec<Vec<String>>);

impl Table {
    fn new<S: Into<String>>(header: impl IntoIterator<Item = S>) -> Self {
        Table(vec![header.into_iter().map(Into::into).collect()])
    }

    fn push(&mut self, first: impl Into<String>, rest: impl IntoIterator<Item = String>) {
        self.0.push(std::iter::once(first.into()).chain(rest).collect());
    }

    fn markdown(&self) -> String {
        let mut out = String::new();
        for (i, row) in self.0.iter().enumerate() {
            out += &format!("| {} |\n", row.join(" | "));
            if i == 0 {
                out += &format!("|---|{}\n", "--:|".repeat(row.len() - 1));
            }
        }
        out
    }
}

/// Prints the results of one dump.
pub fn print(measured: &Measured) {
    let print = |title: &str, raw: usize, laps: &[Lap]| {
        println!("{title:<30} {:>7} {:>12} {:>12}", "ratio", "encode MB/s", "decode MB/s");
        for lap in laps {
            let (raw, len) = (raw as f64, lap.len as f64);
            let (encode, decode) = (speed(raw, lap.encode), speed(raw, lap.decode));
            println!("  {:<28} {:>7} {encode:>12} {decode:>12}", lap.name, ratio(raw / len));
        }
    };
    let raw = measured.dump.words.len();
    print(&measured.dump.name(), raw, &measured.laps);
    if let Some((len, _, laps)) = &measured.plane {
        print("  its high bytes", *len, laps);
    }
    println!();
}

/// All tables. Totals count words of f16, unless they say otherwise.
pub fn summary(all: &[Measured]) -> String {
    let level = mnnkv::arch::level_name().to_str().unwrap_or("");
    let mut out =
        format!("One thread, {level} kernels. MB/s: raw bytes; medians of interleaved rounds, summed up.\n\n");
    let of = |dtype| all.iter().filter(|m| m.dump.dtype == dtype).collect::<Vec<_>>();
    let (halves, singles) = (of(Dtype::F16), of(Dtype::F32));
    for (title, dumps) in [("By folder", &halves), ("By folder, f32", &singles)] {
        if !dumps.is_empty() {
            section(&mut out, title, by_folder(dumps));
        }
    }
    section(&mut out, "Dump by dump", by_dump(all));
    for dumps in folders(&halves).iter().filter(|dumps| dumps[0].dump.rotary) {
        let first: Vec<&Measured> = dumps.iter().filter(|m| m.dump.layer < 2).copied().collect();
        if !first.is_empty() {
            let folder = &first[0].dump.folder;
            section(&mut out, &format!("{folder}: first two layers, K and V together"), ratios(&first));
            section(&mut out, &format!("{folder}: savings of each mechanism, of raw size"), savings(&first));
        }
    }
    if !halves.is_empty() {
        section(&mut out, "Entropy stages alone, high bytes of f16, geometric means", planes(&halves));
    }
    out
}

fn section(out: &mut String, title: &str, table: Table) {
    writeln!(out, "### {title}\n\n{}", table.markdown()).unwrap();
}

fn folders<'a>(dumps: &[&'a Measured]) -> Vec<Vec<&'a Measured>> {
    dumps.chunk_by(|a, b| a.dump.folder == b.dump.folder).map(<[_]>::to_vec).collect()
}

fn by_folder(dumps: &[&Measured]) -> Table {
    let folders = folders(dumps);
    let headers = folders.iter().flat_map(|dumps| {
        let folder = &dumps[0].dump.folder;
        [format!("{folder} ratio"), "encode MB/s".into(), "decode MB/s".into()]
    });
    let mut table = Table::new(std::iter::once("candidate".into()).chain(headers));
    let mut names: Vec<&str> = Vec::new();
    for lap in dumps.iter().flat_map(|m| &m.laps) {
        if !names.contains(&lap.name) {
            names.push(lap.name);
        }
    }
    for name in names {
        let none = || ["", "", ""].map(String::from);
        let cells = |dumps: &Vec<&Measured>| Total::of(dumps, name).map_or_else(none, |total| total.cells());
        table.push(name, folders.iter().flat_map(cells));
    }
    table
}

fn by_dump(all: &[Measured]) -> Table {
    let mut headers: Vec<String> = ["dump", "split zstd-3", "v1@5", "v2@5", "+ hint", "v2@9"].map(String::from).into();
    for ours in ["v1@5", "v2@5"] {
        for what in ["encode / split zstd-3", "/ zstd-3 alone", "decode / split zstd-3", "/ zstd-3 alone"] {
            headers.push(format!("{ours} {what}"));
        }
    }
    let mut table = Table::new(headers);
    for measured in all {
        let raw = measured.dump.words.len() as f64;
        let of = |name: &&str| measured.lap(name).map_or(String::new(), |lap| ratio(raw / lap.len as f64));
        // V has no hint; its column would repeat the one before.
        let hint = if measured.dump.kind == "k" { HINT } else { "" };
        let mut cells: Vec<String> = [SPLIT_3, V1_5, V2_5, hint, V2_9].iter().map(of).collect();
        let lap = |name| measured.lap(name).unwrap();
        for ours in [V1_5, V2_5] {
            for time in [|lap: &Lap| lap.encode, |lap: &Lap| lap.decode] {
                cells.extend([SPLIT_3, ALONE_3].map(|theirs| times(time(lap(theirs)) / time(lap(ours)))));
            }
        }
        table.push(measured.dump.name(), cells);
    }
    table
}

/// A cell for each dump and one for all, from the encoded lengths.
fn cells(dumps: &[&Measured], len: impl Fn(&Measured) -> usize, cell: impl Fn(f64, f64) -> String) -> Vec<String> {
    let raw = |m: &Measured| m.dump.words.len() as f64;
    let mut cells: Vec<String> = dumps.iter().map(|m| cell(raw(m), len(m) as f64)).collect();
    cells.push(cell(dumps.iter().map(|m| raw(m)).sum(), dumps.iter().map(|m| len(m) as f64).sum()));
    cells
}

fn dump_headers(first: &str, dumps: &[&Measured]) -> Table {
    let names = dumps.iter().map(|m| m.dump.short_name());
    Table::new(std::iter::once(first.to_string()).chain(names).chain(["together".into()]))
}

fn ratios(dumps: &[&Measured]) -> Table {
    let mut table = dump_headers("ratio", dumps);
    for name in [SPLIT_3, V1_5, V2_5, HINT, V2_9] {
        table.push(name, cells(dumps, |m| m.len(name), |raw, len| ratio(raw / len)));
    }
    table
}

fn savings(dumps: &[&Measured]) -> Table {
    type Len = fn(&Measured) -> usize;
    let stages: [(&str, Len); 5] = [
        ("", |m| m.dump.words.len()),
        ("byte planes, Huffman codes", |m| m.steps.huffman),
        ("rows equal to earlier ones (distances not counted)", |m| m.steps.unique),
        ("channel groups, nearly equal rows, matches (less distances)", |m| m.len(V2_5)),
        ("rotation hint on K", |m| m.len(HINT)),
    ];
    let mut table = dump_headers("saved by", dumps);
    for pair in stages.windows(2) {
        let ((_, before), (title, after)) = (pair[0], pair[1]);
        let raw: usize = dumps.iter().map(|m| m.dump.words.len()).sum();
        let saved = |m: &Measured| before(m) as f64 - after(m) as f64;
        let mut row: Vec<String> = dumps.iter().map(|m| percent(saved(m) / m.dump.words.len() as f64)).collect();
        row.push(percent(dumps.iter().map(|m| saved(m)).sum::<f64>() / raw as f64));
        table.push(title, row);
    }
    let saved = |raw: f64, len: f64| percent(1.0 - len / raw);
    table.push("all", cells(dumps, |m| m.len(HINT), saved));
    table.push("v1 effort 5, all", cells(dumps, |m| m.len(V1_5), saved));
    let repeated = |m: &Measured| (m.steps.repeats * m.dump.words.len() as f64) as usize;
    table.push("rows equal to earlier ones, of all", cells(dumps, repeated, |raw, len| percent(len / raw)));
    table
}

fn planes<'a>(dumps: &[&'a Measured]) -> Table {
    let names = [PLANE_ZSTD, PLANE_RANS, PLANE_V1];
    let headers = names.iter().flat_map(|name| [format!("{name} ratio"), "encode MB/s".into(), "decode MB/s".into()]);
    let mut table = Table::new(["folder".into(), "order-0 bound".to_string()].into_iter().chain(headers));
    for dumps in folders(dumps) {
        let planes = || dumps.iter().filter_map(|m| m.plane.as_ref());
        let mut row = vec![ratio(geometric_mean(planes().map(|(raw, bound, _)| *raw as f64 / bound)))];
        for name in names {
            let of = |laps: &'a [Lap]| laps.iter().find(|lap| lap.name == name).unwrap();
            let mean = |value: fn(f64, &Lap) -> f64| {
                geometric_mean(planes().map(|(raw, _, laps)| value(*raw as f64, of(laps))))
            };
            row.push(ratio(mean(|raw, lap| raw / lap.len as f64)));
            row.push(speed(mean(|raw, lap| raw / lap.encode), 1.0));
            row.push(speed(mean(|raw, lap| raw / lap.decode), 1.0));
        }
        table.push(&dumps[0].dump.folder, row);
    }
    table
}
