//! Times rivals in turn: each round runs each of them once, so that a change in the speed of the machine affects all.
//! Results are medians.
#![allow(dead_code)]

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

/// Prints one line per rival: time, bytes per second, and its time over that of the first.
pub fn print(title: &str, bytes: usize, medians: &[(&'static str, f64)]) {
    println!("{title}");
    let first = medians[0].1;
    for (name, time) in medians {
        let rate = bytes as f64 / time / 1e6;
        println!("    {name:<28} {:>10.1} us {rate:>10.0} MB/s   {:>6.2} x", time * 1e6, time / first);
    }
}
