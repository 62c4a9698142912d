//! Times rivals in turn: each round runs each of them once, so that a change in the speed of the machine affects all.
//! Results are medians.
#![allow(dead_code, unused_imports)]

#[path = "../../tests/common/mod.rs"]
mod data;

pub use data::*;
use std::time::Instant;

type Entry<'a> = (&'static str, Box<dyn FnMut() + 'a>);

/// Named candidates of one comparison.
pub struct Rivals<'a> {
    entries: Vec<Entry<'a>>,
}

impl<'a> Rivals<'a> {
    pub fn new() -> Self {
        Rivals { entries: Vec::new() }
    }

    pub fn add(mut self, name: &'static str, body: impl FnMut() + 'a) -> Self {
        self.entries.push((name, Box::new(body)));
        self
    }

    /// Runs all rivals for about `budget_ms` and returns each one's median in seconds.
    pub fn run(mut self, budget_ms: u64) -> Vec<(&'static str, f64)> {
        for (_, body) in &mut self.entries {
            body();
        }
        let mut times = vec![Vec::new(); self.entries.len()];
        let start = Instant::now();
        while times[0].len() < 5 || (start.elapsed().as_millis() as u64) < budget_ms && times[0].len() < 1001 {
            for ((_, body), times) in self.entries.iter_mut().zip(&mut times) {
                let lap = Instant::now();
                body();
                times.push(lap.elapsed().as_secs_f64());
            }
        }
        self.entries
            .iter()
            .zip(&mut times)
            .map(|((name, _), times)| {
                times.sort_by(f64::total_cmp);
                (*name, times[times.len() / 2])
            })
            .collect()
    }
}

/// A table of Markdown under the heading `## NAME: CONDITIONS`, which `make benchmarks` copies into documents.
pub struct Table {
    name: String,
    conditions: String,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// `conditions`: those that figures depend on, beside the kernels.
    pub fn new(name: &str, conditions: &str, headers: &[&str]) -> Self {
        let level = mnnkv::arch::level_name().to_string_lossy();
        let conditions = format!("{level} kernels, {conditions}");
        Table { name: name.into(), conditions, rows: vec![headers.iter().map(|cell| cell.to_string()).collect()] }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Columns are as wide as their longest cell.
    pub fn print(&self) {
        let len = |cell: &String| cell.chars().count();
        let width = |c: usize| self.rows.iter().map(|row| row.get(c).map_or(0, len)).max().unwrap_or(0).max(3);
        let widths: Vec<usize> = (0..self.rows[0].len()).map(width).collect();
        println!("\n## {}: {}\n", self.name, self.conditions);
        for (i, row) in self.rows.iter().enumerate() {
            for (c, width) in widths.iter().enumerate() {
                let cell = row.get(c).map_or("", String::as_str);
                if c == 0 { print!("| {cell:<width$} ") } else { print!("| {cell:>width$} ") }
            }
            println!("|");
            if i == 0 {
                print!("|{}", "-".repeat(widths[0] + 2));
                widths[1..].iter().for_each(|width| print!("|{}:", "-".repeat(width + 1)));
                println!("|");
            }
        }
    }
}

/// Bytes per second in MB/s, with commas.
pub fn speed(bytes: f64, seconds: f64) -> String {
    let rate = (bytes / seconds / 1e6).round() as u64;
    if rate < 1000 { rate.to_string() } else { format!("{},{:03}", rate / 1000, rate % 1000) }
}

/// The speed of the first, and how many times as long each of the others takes.
pub fn cells(bytes: usize, medians: &[(&'static str, f64)]) -> Vec<String> {
    let first = medians[0].1;
    let times = medians[1..].iter().map(|(_, time)| times(time / first));
    std::iter::once(speed(bytes as f64, first)).chain(times).collect()
}

/// A factor, with two digits or more.
pub fn times(factor: f64) -> String {
    if factor < 10.0 { format!("{factor:.2}") } else { format!("{factor:.1}") }
}
