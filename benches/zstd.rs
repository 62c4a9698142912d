//! Match parameters of ZSTD on the highest byte plane of KV dumps, which holds signs and exponents, relative to level
//! 3. `MNNKV_KV_DUMPS` names a folder of dumps, as in the peers benchmark.

mod common;
#[path = "peers/dump.rs"]
#[allow(dead_code)]
mod dump;

use common::{Rivals, Table};
use std::hint::black_box;
use zstd_safe::{CCtx, CParameter, Strategy, compress_bound};

/// Strategy, hash log, chain log (the short-match table of dfast), shortest match.
const SETS: [(Strategy, u32, u32, u32); 9] = [
    (Strategy::ZSTD_fast, 12, 12, 4),
    (Strategy::ZSTD_fast, 14, 12, 5),
    (Strategy::ZSTD_dfast, 11, 11, 4),
    (Strategy::ZSTD_dfast, 12, 12, 4),
    (Strategy::ZSTD_dfast, 14, 12, 4),
    (Strategy::ZSTD_dfast, 14, 14, 4),
    (Strategy::ZSTD_dfast, 12, 12, 5),
    (Strategy::ZSTD_dfast, 16, 15, 5),
    (Strategy::ZSTD_dfast, 12, 12, 7),
];

fn main() {
    let planes: Vec<Vec<u8>> = dumps().iter().map(|d| highest_plane(&d.words, d.dtype.bytes())).collect();
    let encode = |cctx: &mut CCtx<'_>, out: &mut [u8], plane: &[u8]| cctx.compress2(out, black_box(plane)).unwrap();
    let mut out = vec![0; compress_bound(planes.iter().map(Vec::len).max().unwrap_or(0))];
    let mut level3 = CCtx::create();
    let sizes: Vec<usize> = planes.iter().map(|plane| encode(&mut level3, &mut out, plane)).collect();
    // The codec searches no matches where they save nothing.
    let literals = |plane: &[u8]| order0(plane) as usize;
    let with_matches: Vec<&Vec<u8>> =
        planes.iter().zip(&sizes).filter(|(p, size)| **size * 100 < literals(p) * 98).map(|(p, _)| p).collect();
    let conditions = format!("one thread, {} of {} planes have matches", with_matches.len(), planes.len());
    let mut table = Table::new("zstd", &conditions, &["strategy, hash log, chain log, shortest match", "time", "size"]);
    for (strategy, hash, chain, min_match) in SETS {
        let mut cctx = CCtx::create();
        for parameter in [
            CParameter::CompressionLevel(3),
            CParameter::Strategy(strategy),
            CParameter::HashLog(hash),
            CParameter::ChainLog(chain),
            CParameter::MinMatch(min_match),
        ] {
            cctx.set_parameter(parameter).unwrap();
        }
        let total =
            |cctx: &mut CCtx<'_>, out: &mut [u8]| with_matches.iter().map(|p| encode(cctx, out, p)).sum::<usize>();
        let (ours, theirs) = (total(&mut cctx, &mut out), total(&mut level3, &mut out));
        let (mut a, mut b) = (out.clone(), out.clone());
        let times = Rivals::new()
            .add("set", || {
                black_box(total(&mut cctx, &mut a));
            })
            .add("level 3", || {
                black_box(total(&mut level3, &mut b));
            })
            .run(800);
        let strategy = format!("{strategy:?}").replace("ZSTD_", "");
        let size = 100.0 * (ours as f64 / theirs as f64 - 1.0);
        let cells = [format!("{:.2}", times[0].1 / times[1].1), format!("{size:+.1} %")];
        table.row([format!("{strategy} {hash}, {chain}, {min_match}")].into_iter().chain(cells));
    }
    table.print();
}

fn dumps() -> Vec<dump::Dump> {
    match std::env::var_os("MNNKV_KV_DUMPS") {
        Some(root) => dump::find(root.as_ref(), false),
        None => dump::find(&common::testdata("kv"), true),
    }
}

fn highest_plane(words: &[u8], width: usize) -> Vec<u8> {
    words.iter().skip(width - 1).step_by(width).copied().collect()
}

/// Bytes by the order-0 entropy.
fn order0(bytes: &[u8]) -> f64 {
    let mut counts = [0u32; 256];
    bytes.iter().for_each(|b| counts[*b as usize] += 1);
    let n = bytes.len() as f64;
    counts.iter().filter(|c| **c > 0).map(|c| *c as f64 * (n / *c as f64).log2()).sum::<f64>() / 8.0
}
