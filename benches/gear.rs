//! Byte planes beside memcpy, and the codec in blocks of a store, at each level of kernels, on the bundled sample.
//!
//! Ratio is raw size over encoded size. Every round trip is checked before it is timed.

mod common;

use common::{Rivals, Table, read, speed};
use mnnkv::dtype::Dtype;
use mnnkv::gear::{Decoder, Encoder, Format, Options};
use std::hint::black_box;
use std::process::Command;

/// 128 tokens of 2 heads x 64 dims of f16.
const BLOCK: usize = 128 * 2 * 64 * 2;

/// A plain loop.
fn split(words: &[u8], planes: &mut [u8], width: usize) {
    let count = words.len() / width;
    for i in 0..count {
        for plane in 0..width {
            planes[plane * count + i] = words[i * width + plane];
        }
    }
}

fn merge(planes: &[u8], words: &mut [u8], width: usize) {
    let count = words.len() / width;
    for i in 0..count {
        for plane in 0..width {
            words[i * width + plane] = planes[plane * count + i];
        }
    }
}

/// All layers of the sample, K and V in turn: 68 blocks.
fn sample() -> Vec<u8> {
    let files = (0..4).flat_map(|l| ["k", "v"].map(|k| format!("kv/l{l}_{k}_h2_t1088_d64.f16")));
    files.flat_map(|file| read(&file)).collect()
}

/// Rows of the codec in blocks of a store, at the level of this process: name, ratio, MB/s of encode and decode.
fn codec(words: &[u8]) -> Vec<[String; 4]> {
    let row = |(name, format)| {
        let options = Options::new(format);
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        let mut encode = |block| encoder.encode(black_box(block), Dtype::F16, &options).unwrap().to_vec();
        let blobs: Vec<Vec<u8>> = words.chunks(BLOCK).map(&mut encode).collect();
        let mut back = vec![0; words.len()];
        let mut decode = |back: &mut Vec<u8>| {
            for (blob, out) in blobs.iter().zip(back.chunks_mut(BLOCK)) {
                decoder.decode(black_box(blob), Dtype::F16, out).unwrap();
            }
        };
        decode(&mut back);
        assert!(back == words, "round trip");
        let medians = Rivals::new()
            .add("encode", || words.chunks(BLOCK).for_each(|block| drop(black_box(encode(block)))))
            .add("decode", || decode(&mut back))
            .run(500);
        cells(name, words.len(), blobs.iter().map(Vec::len).sum(), &medians)
    };
    [("v1", Format::V1), ("checked", Format::Checked)].map(row).to_vec()
}

/// The row of plain loops and ZSTD.
fn stock(words: &[u8]) -> [String; 4] {
    let mut planes = vec![0; BLOCK];
    let (mut cctx, mut dctx) = (zstd_safe::CCtx::create(), zstd_safe::DCtx::create());
    let mut frame = vec![0; zstd_safe::compress_bound(BLOCK)];
    let mut encode = |block: &[u8]| {
        split(black_box(block), &mut planes, 2);
        let mut plane = |plane: &[u8]| {
            let len = cctx.compress(&mut frame[..], plane, 3).unwrap();
            frame[..len].to_vec()
        };
        let (low, high) = planes.split_at(BLOCK / 2);
        [plane(low), plane(high)]
    };
    let frames: Vec<[Vec<u8>; 2]> = words.chunks(BLOCK).map(&mut encode).collect();
    let (mut back, mut planes) = (vec![0; words.len()], vec![0; BLOCK]);
    let medians = Rivals::new()
        .add("encode", || words.chunks(BLOCK).for_each(|block| drop(black_box(encode(block)))))
        .add("decode", || {
            for (frames, out) in frames.iter().zip(back.chunks_mut(BLOCK)) {
                for (plane, frame) in planes.chunks_exact_mut(BLOCK / 2).zip(frames) {
                    dctx.decompress(plane, &frame[..]).unwrap();
                }
                merge(black_box(&planes), out, 2);
            }
        })
        .run(500);
    assert!(back == words, "round trip");
    cells("split loop + zstd-3", words.len(), frames.iter().flatten().map(Vec::len).sum(), &medians)
}

fn cells(name: &str, raw: usize, encoded: usize, medians: &[(&'static str, f64)]) -> [String; 4] {
    let rate = |lap: usize| speed(raw as f64, medians[lap].1);
    [name.into(), format!("{:.3}", raw as f64 / encoded as f64), rate(0), rate(1)]
}

/// Splits and merges `len` bytes at every level, as a multiple of memcpy.
fn byte_planes(len: usize) -> Vec<Vec<String>> {
    let src: Vec<u8> = (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let (mut out, mut copy) = (vec![0; len], vec![0; len]);
    let mut factor = |shuffle: fn(&[u8], &mut [u8])| {
        let medians = Rivals::new()
            .add("ours", || shuffle(black_box(&src), black_box(&mut out)))
            .add("memcpy", || black_box(&mut copy).copy_from_slice(black_box(&src)))
            .run(200);
        format!("{:.2}", medians[1].1 / medians[0].1)
    };
    let levels = mnnkv::arch::available();
    levels.map(|k| [k.split2, k.merge2, k.split4, k.merge4].map(&mut factor).to_vec()).collect()
}

fn main() {
    let words = sample();
    // A process decides its level once: each level has a process of its own.
    if std::env::args().any(|argument| argument == "codec") {
        codec(&words).iter().for_each(|cells| println!("{}", cells.join("|")));
        return;
    }
    let headers = ["level", "split2 64 KB", "merge2", "split4", "merge4", "split2 4 MB", "merge2", "split4", "merge4"];
    let mut planes = Table::new("planes", "one thread", &headers);
    let mut blocks = Table::new("blocks", "one thread", &["format, level", "ratio", "encode MB/s", "decode MB/s"]);
    blocks.row(stock(&words));
    let [small, large] = [64 << 10, 4 << 20].map(byte_planes);
    for ((kernels, small), large) in mnnkv::arch::available().zip(small).zip(large) {
        let level = format!("{:?}", kernels.level).to_lowercase();
        let own = std::env::current_exe().unwrap();
        let child = Command::new(own).arg("codec").env("MNNKV_CPU_LEVEL", &level).output().unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        for line in String::from_utf8(child.stdout).unwrap().lines() {
            let (format, rest) = line.split_once('|').unwrap();
            blocks.row([format!("{format}, {level}").as_str()].into_iter().chain(rest.split('|')));
        }
        planes.row([level].into_iter().chain(small).chain(large));
    }
    planes.print();
    blocks.print();
}
