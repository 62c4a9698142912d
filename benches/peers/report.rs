//! Tables: one per dump as it is measured, and those of the documents at the end.

use super::common::{Table, speed};
use super::peer::{HINT, LANES, PLANE_RANS, PLANE_V1, PLANE_ZSTD, SPLIT_3, V1_5, V2_5, V2_9};
use super::rans::{BLOCK, histogram};
use super::{Lap, Measured};
use mnnkv::dtype::Dtype;

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

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn geometric_mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value.ln(), count + 1));
    (sum / count as f64).exp()
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
pub fn summary(all: &[Measured]) {
    let of = |dtype| all.iter().filter(|m| m.dump.dtype == dtype).collect::<Vec<_>>();
    let (halves, singles) = (of(Dtype::F16), of(Dtype::F32));
    for (name, dumps) in [("peers", &halves), ("peers-f32", &singles)] {
        if !dumps.is_empty() {
            by_folder(name, dumps).print();
        }
    }
    let mut rotary = folders(&halves);
    rotary.iter_mut().for_each(|dumps| dumps.retain(|m| m.dump.rotary && m.dump.layer < 2));
    rotary.retain(|dumps| !dumps.is_empty());
    if !rotary.is_empty() {
        codec(&rotary).print();
        savings(&rotary).print();
    }
    if !halves.is_empty() {
        planes(&halves).print();
    }
}

fn folders<'a>(dumps: &[&'a Measured]) -> Vec<Vec<&'a Measured>> {
    dumps.chunk_by(|a, b| a.dump.folder == b.dump.folder).map(<[_]>::to_vec).collect()
}

fn new_table<S: AsRef<str>>(name: &str, headers: impl IntoIterator<Item = S>) -> Table {
    let headers: Vec<S> = headers.into_iter().collect();
    Table::new(name, "one thread", &headers.iter().map(AsRef::as_ref).collect::<Vec<_>>())
}

fn push(table: &mut Table, first: impl Into<String>, rest: impl IntoIterator<Item = String>) {
    table.row(std::iter::once(first.into()).chain(rest));
}

fn by_folder(name: &str, dumps: &[&Measured]) -> Table {
    let folders = folders(dumps);
    let headers = folders.iter().flat_map(|dumps| {
        let folder = &dumps[0].dump.folder;
        [format!("{folder} ratio"), "encode MB/s".into(), "decode MB/s".into()]
    });
    let mut table = new_table(name, std::iter::once("candidate".into()).chain(headers));
    let mut names: Vec<&str> = Vec::new();
    for lap in dumps.iter().flat_map(|m| &m.laps) {
        if !names.contains(&lap.name) {
            names.push(lap.name);
        }
    }
    for name in names {
        let none = || ["", "", ""].map(String::from);
        let cells = |dumps: &Vec<&Measured>| Total::of(dumps, name).map_or_else(none, |total| total.cells());
        push(&mut table, name, folders.iter().flat_map(cells));
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

/// A column for each folder, its first two layers together.
fn codec(folders: &[Vec<&Measured>]) -> Table {
    let names = folders.iter().map(|dumps| dumps[0].dump.folder.clone());
    let mut table = new_table("codec", std::iter::once("raw over encoded, f16".into()).chain(names));
    for name in [SPLIT_3, LANES, V1_5, V2_5, V2_9, HINT] {
        let together = |dumps: &Vec<&Measured>| cells(dumps, |m| m.len(name), |raw, len| ratio(raw / len)).pop();
        push(&mut table, name, folders.iter().filter_map(together));
    }
    table
}

fn savings(folders: &[Vec<&Measured>]) -> Table {
    type Len = fn(&Measured) -> usize;
    let stages: [(&str, Len); 5] = [
        ("", |m| m.dump.words.len()),
        ("byte planes, Huffman codes", |m| m.steps.huffman),
        ("equal rows, distances not counted", |m| m.steps.unique),
        ("channel groups, similar rows, matches", |m| m.len(V2_5)),
        ("rotation hint on K", |m| m.len(HINT)),
    ];
    let names = folders[0].iter().map(|m| m.dump.short_name());
    let mut table = new_table("mechanisms", ["saved by".into()].into_iter().chain(names).chain(["together".into()]));
    for dumps in folders {
        let folder = &dumps[0].dump.folder;
        let raw: usize = dumps.iter().map(|m| m.dump.words.len()).sum();
        for pair in stages.windows(2) {
            let ((_, before), (title, after)) = (pair[0], pair[1]);
            let saved = |m: &Measured| before(m) as f64 - after(m) as f64;
            let mut row: Vec<String> = dumps.iter().map(|m| percent(saved(m) / m.dump.words.len() as f64)).collect();
            row.push(percent(dumps.iter().map(|m| saved(m)).sum::<f64>() / raw as f64));
            push(&mut table, format!("{folder}, {title}"), row);
        }
        let saved = |raw: f64, len: f64| percent(1.0 - len / raw);
        push(&mut table, format!("{folder}, all"), cells(dumps, |m| m.len(HINT), saved));
        let repeated = |m: &Measured| (m.steps.repeats * m.dump.words.len() as f64) as usize;
        let row = cells(dumps, repeated, |raw, len| percent(len / raw));
        push(&mut table, format!("{folder}, rows that equal earlier ones"), row);
    }
    table
}

fn planes<'a>(dumps: &[&'a Measured]) -> Table {
    let names = [PLANE_ZSTD, PLANE_RANS, PLANE_V1];
    let headers = names.iter().flat_map(|name| [format!("{name} ratio"), "encode MB/s".into(), "decode MB/s".into()]);
    let mut table = new_table("entropy", ["folder".into(), "order-0 bound".to_string()].into_iter().chain(headers));
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
        push(&mut table, dumps[0].dump.folder.clone(), row);
    }
    table
}
