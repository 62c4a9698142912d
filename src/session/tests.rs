//! A session against a host that keeps the contents of every token: random schedules, and worked examples.
//!
//! `MNNKV_SCHEDULES` is the number of schedules of all tests of this file together. A schedule that fails prints its
//! number. With that in `MNNKV_SCHEDULE` it runs alone and prints its steps. Workers are not deterministic.

mod attention;
mod chat;
mod compression;
mod examples;
mod groups;
mod layers;
mod model;
mod policy;
mod quant;
mod quantised;
mod sample;
pub(super) mod saved;
mod schedule;
mod settings;
mod shared;

use super::{ScoredRows, Session, find};
use crate::status::Result;
use schedule::Run;
use settings::Kind;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

const SCHEDULES: u64 = 1_500;
/// Tests that share them.
const TESTS: u64 = 5;

/// What begin tells a host, at any time: of the open step or of the next.
impl Session {
    fn attends(&self, layer: u32) -> Result<bool> {
        Ok(find(&mut self.state()?.layers, layer)?.attends())
    }

    fn scored_rows(&self, layer: u32, queries: u32) -> Result<ScoredRows> {
        let wanted = find(&mut self.state()?.layers, layer)?.wanted();
        Ok(super::Begun { kv_len: 0, attends: false, warnings: 0, wanted }.scored_rows(queries))
    }
}

/// Prints a step of a schedule that runs alone.
macro_rules! trace {
    ($($text:tt)+) => {
        if $crate::session::tests::alone().is_some() {
            eprintln!($($text)+);
        }
    };
}
use trace;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

fn alone() -> Option<u64> {
    static NUMBER: std::sync::OnceLock<Option<u64>> = std::sync::OnceLock::new();
    *NUMBER.get_or_init(|| number("MNNKV_SCHEDULE"))
}

/// Events of schedules and their numbers: a test proves nothing about a corner that it never reaches.
#[derive(Debug, Default)]
struct Coverage(BTreeMap<String, u64>);

impl Coverage {
    fn count(&mut self, what: impl Into<String>, times: u64) {
        *self.0.entry(what.into()).or_default() += times;
    }

    fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }
}

/// Runs one schedule.
fn chat(kind: &Kind, number: u64) -> Coverage {
    reported(number, || Run::new(kind, number).chat())
}

/// Runs a schedule, and prints its number if it fails.
fn reported<T>(number: u64, schedule: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(schedule)).unwrap_or_else(|panic| {
        crate::sys::memory::shortage::set(0, 0);
        eprintln!("schedule {number} failed: MNNKV_SCHEDULE={number} runs it alone");
        resume_unwind(panic);
    })
}

/// Kinds of schedules by part. Parts count from 1, and are the high half of a schedule's number.
const KINDS: [Kind; TESTS as usize] = [
    Kind { workers: &[0], shortage: false },
    Kind { workers: &[1], shortage: false },
    Kind { workers: &[3], shortage: false },
    Kind { workers: &[0], shortage: true },
    Kind { workers: &[1, 3], shortage: true },
];

/// Runs the schedules of one part.
fn run(part: u64) {
    let kind = &KINDS[part as usize - 1];
    let count = number("MNNKV_SCHEDULES").unwrap_or(SCHEDULES).div_ceil(TESTS);
    let numbers = match alone() {
        Some(number) if number >> 32 == part => number..number + 1,
        Some(_) => return,
        None => part << 32..(part << 32) + count,
    };
    let mut coverage = Coverage::default();
    for number in numbers {
        let Coverage(of_one) = chat(kind, number);
        of_one.into_iter().for_each(|(what, times)| coverage.count(what, times));
    }
    println!("{coverage:#?}");
    if alone().is_some() || count < 500 {
        return;
    }
    // The progress of workers depends on the machine.
    let workers = kind.workers.iter().any(|workers| *workers > 0);
    let always: &[(&str, u64)] = &[
        ("prompts", count),
        ("prompts behind others", count / 10),
        ("decode steps", 20 * count),
        ("failed steps", count),
        ("aborted steps", count / 2),
        ("tokens rewritten", 10 * count),
        ("begins without a cache", count),
        ("drafts rolled back", count),
        ("edits", count),
        ("pins", count / 4),
        ("resets", count / 10),
        ("resets of open steps", count / 500),
        ("larger or smaller buffers", 5 * count),
        ("refused calls", 10 * count),
        ("scored steps", 20 * count),
        ("plans", 10 * count),
        ("stale plans", count / 2),
        ("plans without scores", count / 20),
        ("steps above a cap", count / 20),
        ("evictions", 3 * count),
        ("encoded blocks", if workers { count / 10 } else { 2 * count }),
        ("restored blocks", if workers { count / 10 } else { count }),
        ("blocks found decoded", 1),
        ("chats opened again", count / 20),
    ];
    let with = |wanted: bool, of: &'static [(&str, u64)]| if wanted { of } else { &[] };
    // In a thousand schedules.
    let busy = with(
        workers,
        &[("blocks refused by a full queue", 1000), ("blocks decoded ahead", 1), ("queues of two or more", 1)],
    );
    let inside = with(!workers, &[("released blocks cut", 10)]);
    let threads = with(!kind.shortage, &[("steps scored by several threads", 1000)]);
    // Without workers submit fails.
    let encoding = with(kind.shortage && workers, &[("no memory to encode", 1)]);
    let short = with(
        kind.shortage,
        &[
            ("no memory to submit", 10),
            ("no memory to begin", 10),
            ("no memory to append", 10),
            ("no memory to edit", 10),
            ("no memory to score", 10),
            ("no memory to plan", 10),
            ("no memory to save", 10),
            ("no memory to open", 1),
        ],
    );
    let scale = |of: &[(&'static str, u64)]| of.iter().map(|(w, n)| (*w, n * count / 1000)).collect::<Vec<_>>();
    let others = [busy, inside, threads, encoding, short].into_iter().flat_map(scale);
    for (what, least) in always.iter().copied().chain(others) {
        assert!(coverage.of(what) > least, "{what}: {} times, more than {least} expected", coverage.of(what));
    }
    assert!(coverage.of("ties") < coverage.of("evictions") / 500);
    for cap in ["", " below a cap"] {
        let what = format!("evictions{cap}, by chat");
        assert!(coverage.of(&what) > count / 10, "{what}: {}", coverage.of(&what));
    }
    for scope in ["front_n", "h2o_kept", "front_n_and_h2o_kept"] {
        for mode in ["probe", "full", "store"] {
            let what = format!("encoded blocks of {scope}, {mode}");
            assert!(coverage.of(&what) > if workers { 0 } else { count / 50 }, "{what}: {}", coverage.of(&what));
        }
    }
    for what in ["restored blocks of interleaved tokens", "restored blocks with padding dims"] {
        assert!(coverage.of(what) > if workers { 0 } else { count / 4 }, "{what}: {}", coverage.of(what));
    }
}

/// Runs schedules of every kind for MNNKV_SOAK_SECONDS: `make soak`.
#[test]
#[ignore = "takes MNNKV_SOAK_SECONDS"]
fn hours_of_schedules_lose_no_token_and_leak_no_memory() {
    let seconds = number("MNNKV_SOAK_SECONDS").unwrap_or(10);
    let start = Instant::now();
    let (mut schedules, mut most) = (0u64, [0u64; 4]);
    while start.elapsed().as_secs() < seconds {
        for (part, kind) in (1..).zip(&KINDS) {
            // A failure prints the schedule's number.
            chat(kind, part << 32 | schedules);
            schedules += 1;
        }
        let quarter = (start.elapsed().as_secs() * 4 / seconds.max(1)).min(3) as usize;
        most[quarter] = most[quarter].max(resident_bytes());
    }
    println!("{schedules} schedules in {seconds} s; most resident bytes in each quarter: {most:?}");
    // The first quarter warms up: codecs retain their memory.
    assert!(most[3] <= most[1] + (most[1] / 20).max(1 << 20), "{most:?}");
}

/// Anonymous memory of this process, or 0 where the system does not report it.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}

#[test]
fn no_schedule_without_workers_loses_a_token_or_keeps_a_wrong_one() {
    run(1);
}

#[test]
fn no_schedule_with_a_worker_loses_a_token_or_keeps_a_wrong_one() {
    run(2);
}

#[test]
fn no_schedule_with_three_workers_loses_a_token_or_keeps_a_wrong_one() {
    run(3);
}

#[test]
fn no_schedule_short_of_memory_loses_a_token_or_keeps_a_wrong_one() {
    run(4);
}

#[test]
fn no_schedule_short_of_memory_with_workers_loses_a_token_or_keeps_a_wrong_one() {
    run(5);
}
