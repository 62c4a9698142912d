//! A session against a host that knows every token: random schedules, and worked examples.
//!
//! `MNNKV_SCHEDULES` says how many schedules run, all tests of this file together. A schedule that fails says its number;
//! with that in `MNNKV_SCHEDULE` it runs alone and tells what it does (workers keep their own time).

mod attention;
mod compression;
mod examples;
mod groups;
mod host;
mod model;
mod random;
mod sample;
mod schedule;
mod settings;
mod shared;

use schedule::Run;
use settings::Kind;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

const SCHEDULES: u64 = 10_000;
/// Tests that share them.
const TESTS: u64 = 5;

/// Tells what a schedule does, when it runs alone.
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

/// What happened in schedules: a test that never reaches a corner proves nothing about it.
#[derive(Debug, Default)]
struct Coverage {
    plans: u64,
    stale_plans: u64,
    evictions: u64,
    /// Evictions that a tie left open and the session decided the other way.
    ties: u64,
    scored_steps: u64,
    edits: u64,
    /// Steps that were scored by several threads at once.
    threads: u64,
    /// Wrong calls.
    refused: u64,
    out_of_memory: u64,
    restored: u64,
    prefetched: u64,
    kept_decoded: u64,
    failed_blocks: u64,
    /// Blocks that were skipped because the queue was full.
    busy: u64,
}

impl Coverage {
    fn add(&mut self, other: Coverage) {
        for (mine, theirs) in [
            (&mut self.plans, other.plans),
            (&mut self.stale_plans, other.stale_plans),
            (&mut self.evictions, other.evictions),
            (&mut self.ties, other.ties),
            (&mut self.scored_steps, other.scored_steps),
            (&mut self.edits, other.edits),
            (&mut self.threads, other.threads),
            (&mut self.refused, other.refused),
            (&mut self.out_of_memory, other.out_of_memory),
            (&mut self.restored, other.restored),
            (&mut self.prefetched, other.prefetched),
            (&mut self.kept_decoded, other.kept_decoded),
            (&mut self.failed_blocks, other.failed_blocks),
            (&mut self.busy, other.busy),
        ] {
            *mine += theirs;
        }
    }
}

/// Runs this test's share of the schedules; `part` sets their numbers apart from those of other tests.
fn run(part: u64, kind: &Kind) {
    let count = number("MNNKV_SCHEDULES").unwrap_or(SCHEDULES).div_ceil(TESTS);
    let numbers = match alone() {
        Some(number) if number >> 32 == part => number..number + 1,
        Some(_) => return,
        None => part << 32..(part << 32) + count,
    };
    let mut coverage = Coverage::default();
    for number in numbers {
        match catch_unwind(AssertUnwindSafe(|| Run::new(kind, number).chat())) {
            Ok(of_one) => coverage.add(of_one),
            Err(panic) => {
                crate::status::shortage::set(0, 0);
                eprintln!("schedule {number} failed: MNNKV_SCHEDULE={number} runs it alone");
                resume_unwind(panic);
            }
        }
    }
    println!("{coverage:#?}");
    if alone().is_some() || count < 500 {
        return;
    }
    let c = &coverage;
    assert!(c.plans > 10 * count && c.evictions > 3 * count && c.stale_plans > count / 2 && c.ties < c.evictions / 500);
    assert!(c.scored_steps > 20 * count && c.edits > 5 * count && c.refused > 10 * count);
    assert_eq!((c.threads > 0, c.out_of_memory > count, c.failed_blocks > 0), {
        (!kind.shortage, kind.shortage, kind.shortage)
    });
    // How far workers get meanwhile is for the machine to say.
    let workers = kind.workers.iter().any(|workers| *workers > 0);
    assert!(if workers { c.restored > count / 10 } else { c.restored > 2 * count } && c.kept_decoded > 0);
    assert_eq!((c.busy > count, c.prefetched > 0), (workers, workers));
}

#[test]
fn no_schedule_without_workers_loses_a_token_or_keeps_a_wrong_one() {
    run(1, &Kind { workers: &[0], shortage: false });
}

#[test]
fn no_schedule_with_a_worker_loses_a_token_or_keeps_a_wrong_one() {
    run(2, &Kind { workers: &[1], shortage: false });
}

#[test]
fn no_schedule_with_three_workers_loses_a_token_or_keeps_a_wrong_one() {
    run(3, &Kind { workers: &[3], shortage: false });
}

#[test]
fn no_schedule_short_of_memory_loses_a_token_or_keeps_a_wrong_one() {
    run(4, &Kind { workers: &[0], shortage: true });
}

#[test]
fn no_schedule_short_of_memory_with_workers_loses_a_token_or_keeps_a_wrong_one() {
    run(5, &Kind { workers: &[1, 3], shortage: true });
}
