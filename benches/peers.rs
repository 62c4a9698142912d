//! The codec beside its peers, dump by dump, on every KV dump below the folder in MNNKV_KV_DUMPS (of any format that
//! `mnnkv dump` reads), or on the bundled sample.
//!
//! Ratio is raw size over encoded size; speeds are raw bytes, from words to a blob and back to words. One thread.
//! Every round trip is checked before it is timed.

mod common;
#[path = "peers/dump.rs"]
mod dump;
#[path = "peers/peer.rs"]
mod peer;
#[path = "peers/rans.rs"]
mod rans;
#[path = "peers/report.rs"]
mod report;
#[path = "peers/shuffle.rs"]
mod shuffle;
#[path = "peers/stock.rs"]
mod stock;

use dump::Dump;
use mnnkv::dtype::Dtype;
use mnnkv::gear::{Encoder, Format};
use peer::Named;
use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The result of a candidate for one dump.
struct Lap {
    name: &'static str,
    len: usize,
    /// Seconds.
    encode: f64,
    decode: f64,
}

struct Measured {
    dump: Dump,
    laps: Vec<Lap>,
    /// The high byte plane of f16 words: bytes, the order-0 bound, and the candidates.
    plane: Option<(usize, f64, Vec<Lap>)>,
    steps: report::Steps,
}

/// The median time of each of `count` bodies. Each round runs each of them once, so that a change in the speed of the
/// machine affects all.
fn medians(count: usize, mut body: impl FnMut(usize)) -> Vec<f64> {
    let mut times = vec![Vec::new(); count];
    let start = Instant::now();
    while times[0].len() < 7 || times[0].len() < 15 && start.elapsed() < Duration::from_millis(1500) {
        // Each round starts with another body, so that a periodic disturbance does not hit the same one.
        let first = times[0].len();
        for i in (first..first + count).map(|i| i % count) {
            let lap = Instant::now();
            body(i);
            times[i].push(lap.elapsed().as_secs_f64());
        }
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    times.iter_mut().map(median).collect()
}

fn race(words: &[u8], mut peers: Vec<Named>) -> Vec<Lap> {
    let mut back = words.to_vec();
    for (name, peer) in &mut peers {
        peer.prepare(words);
        peer.encode(words);
        back.fill(0xA5);
        peer.decode(&mut back);
        peer.finish(&mut back);
        assert!(back == words, "round trip of {name}");
    }
    let encode = medians(peers.len(), |i| peers[i].1.encode(black_box(words)));
    let decode = medians(peers.len(), |i| peers[i].1.decode(black_box(&mut back)));
    let lap = |((name, peer), (encode, decode)): (&Named, (&f64, &f64))| Lap {
        name,
        len: peer.encoded_len(),
        encode: *encode,
        decode: *decode,
    };
    peers.iter().zip(encode.iter().zip(&decode)).map(lap).collect()
}

/// Sizes on the way to v2.
fn steps(dump: &Dump) -> report::Steps {
    let mut encoder = Encoder::new();
    let mut len = |words: &[u8], options| encoder.encode(words, dump.dtype, &options).unwrap().len();
    let unique = dump.unique_rows();
    let huffman = peer::options(Format::V1, 1, 0);
    report::Steps {
        repeats: 1.0 - unique.len() as f64 / dump.words.len() as f64,
        huffman: len(&dump.words, huffman),
        unique: len(&unique, huffman),
    }
}

fn measure(dump: Dump) -> Measured {
    let laps = race(&dump.words, peer::all(&dump));
    let plane = (dump.dtype == Dtype::F16).then(|| {
        // An even number of bytes: words of v1 have two.
        let (words, _) = dump.words.as_chunks::<4>();
        let plane: Vec<u8> = words.iter().flat_map(|word| [word[1], word[3]]).collect();
        (plane.len(), report::order_0(&plane), race(&plane, peer::for_plane()))
    });
    let steps = steps(&dump);
    Measured { dump, laps, plane, steps }
}

fn main() {
    let given = std::env::var_os("MNNKV_KV_DUMPS").map(PathBuf::from);
    let bundled = given.is_none();
    let dumps = dump::find(&given.unwrap_or_else(|| common::testdata("kv")), bundled);
    assert!(!dumps.is_empty(), "no KV dumps below MNNKV_KV_DUMPS");
    let mut all = Vec::new();
    for dump in dumps {
        let measured = measure(dump);
        report::print(&measured);
        all.push(measured);
    }
    report::summary(&all);
}
