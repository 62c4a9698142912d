//! The codec beside memcpy, stock ZSTD level 3 on split bytes with a plain loop for the split, and the plain loop
//! alone, on the bundled real KV sample.
//!
//! Ratio is raw size over encoded size. Every round trip is checked before it is timed.

mod common;

use common::{Rivals, print, read};
use mnnkv::dtype::Dtype;
use mnnkv::gear::{Decoder, Encoder, Format, Options};
use std::hint::black_box;

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

/// fp16 to fp32. The low mantissa bits are noise, derived from the next word.
fn widen(halves: &[u8]) -> Vec<u8> {
    let (words, _) = halves.as_chunks::<2>();
    let bits = |w: &[u8; 2]| u16::from_le_bytes(*w) as u32;
    let wide = |(i, w): (usize, &[u8; 2])| {
        let h = bits(w);
        let noise = bits(&words[(i + 1) % words.len()]).wrapping_mul(40_503) & 0x1FFF;
        let exponent = ((h >> 10) & 31) + 112;
        ((h >> 15) << 31 | exponent << 23 | (h & 1023) << 13 | noise).to_le_bytes()
    };
    words.iter().enumerate().flat_map(wide).collect()
}

/// Encodes `words` in blocks of `block` bytes, as a store does.
fn bench(name: &str, words: &[u8], dtype: Dtype, block: usize) {
    let bytes = dtype.bytes();
    let options = Options::new(Format::V1);
    let mut encoder = Encoder::new();
    let mut decoder = Decoder::new();
    let blobs: Vec<Vec<u8>> =
        words.chunks(block).map(|b| encoder.encode(b, dtype, &options).unwrap().to_vec()).collect();
    let mut back = vec![0; words.len()];
    for (blob, out) in blobs.iter().zip(back.chunks_mut(block)) {
        decoder.decode(blob, dtype, out).unwrap();
    }
    assert!(back == words, "round trip");

    let mut planes = vec![0; block.min(words.len())];
    let mut cctx = zstd_safe::CCtx::create();
    let mut dctx = zstd_safe::DCtx::create();
    let mut frame = vec![0; zstd_safe::compress_bound(block)];
    let mut stock: Vec<Vec<u8>> = Vec::new();
    for block in words.chunks(block) {
        split(block, &mut planes[..block.len()], bytes);
        for plane in planes[..block.len()].chunks_exact(block.len() / bytes) {
            let len = cctx.compress(&mut frame[..], plane, 3).unwrap();
            stock.push(frame[..len].to_vec());
        }
    }
    let ratio = |parts: &[Vec<u8>]| words.len() as f64 / parts.iter().map(Vec::len).sum::<usize>() as f64;

    println!("{name}: ratio gear {:.3}, zstd-3 on split bytes {:.3}", ratio(&blobs), ratio(&stock));
    let mut copy = vec![0; words.len()];
    let mut split_planes = planes.clone();
    let medians = Rivals::new()
        .add("gear encode", || {
            for block in words.chunks(block) {
                black_box(encoder.encode(black_box(block), dtype, &options).unwrap());
            }
        })
        .add("split loop + zstd-3", || {
            for block in words.chunks(block) {
                split(black_box(block), &mut split_planes[..block.len()], bytes);
                for plane in split_planes[..block.len()].chunks_exact(block.len() / bytes) {
                    cctx.compress(&mut frame[..], plane, 3).unwrap();
                }
            }
        })
        .add("memcpy", || black_box(&mut copy).copy_from_slice(black_box(words)))
        .run(1000);
    print("  encode", words.len(), &medians);

    let mut stock_words = vec![0; words.len()];
    let medians = Rivals::new()
        .add("gear decode", || {
            for (blob, out) in blobs.iter().zip(back.chunks_mut(block)) {
                decoder.decode(black_box(blob), dtype, out).unwrap();
            }
        })
        .add("zstd + merge loop", || {
            for (frames, out) in stock.chunks(bytes).zip(stock_words.chunks_mut(block)) {
                let planes = &mut planes[..out.len()];
                for (plane, frame) in planes.chunks_exact_mut(out.len() / bytes).zip(frames) {
                    dctx.decompress(plane, &frame[..]).unwrap();
                }
                merge(black_box(planes), out, bytes);
            }
        })
        .add("memcpy", || black_box(&mut copy).copy_from_slice(black_box(words)))
        .run(1000);
    assert!(stock_words == words && back == words);
    print("  decode", words.len(), &medians);
}

/// Splits and merges `len` bytes at every level, beside memcpy.
fn byte_planes(len: usize) {
    let src: Vec<u8> = (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let (mut out, mut copy) = (vec![0; len], vec![0; len]);
    println!("byte planes, {} KB, as a multiple of memcpy", len >> 10);
    for kernels in mnnkv::arch::available() {
        let shuffles = [
            ("split2", kernels.split2),
            ("merge2", kernels.merge2),
            ("split4", kernels.split4),
            ("merge4", kernels.merge4),
        ];
        print!("    {:<10}", format!("{:?}", kernels.level).to_lowercase());
        for (name, shuffle) in shuffles {
            let medians = Rivals::new()
                .add("ours", || shuffle(black_box(&src), black_box(&mut out)))
                .add("memcpy", || black_box(&mut copy).copy_from_slice(black_box(&src)))
                .run(200);
            print!("{name} {:.2}   ", medians[1].1 / medians[0].1);
        }
        println!();
    }
}

fn main() {
    println!("SIMD level: {}; last column: time of a rival / time of ours (the first row)\n", kernels_name());
    for len in [64 << 10, 4 << 20] {
        byte_planes(len);
    }
    for layer in [0, 3] {
        for kind in ["k", "v"] {
            let sample = read(&format!("kv/l{layer}_{kind}_h2_t1088_d64.f16"));
            bench(&format!("layer {layer} {kind}, f16, {} bytes", sample.len()), &sample, Dtype::F16, sample.len());
            if layer == 3 {
                let wide = widen(&sample);
                bench(&format!("layer {layer} {kind}, f32, {} bytes", wide.len()), &wide, Dtype::F32, wide.len());
            }
        }
    }
    // Longer caches, the concatenated layers of the sample: 2 heads x 64 dims of f16, in blocks of 128 tokens.
    let all: Vec<u8> = (0..4)
        .flat_map(|l| ["k", "v"].map(|k| format!("kv/l{l}_{k}_h2_t1088_d64.f16")))
        .flat_map(|file| read(&file))
        .collect();
    let token = 2 * 64 * 2;
    for tokens in [4096, 32_768, 131_072] {
        let words: Vec<u8> = all.iter().copied().cycle().take(tokens * token).collect();
        let name = format!("{tokens} tokens, f16, {} bytes in blocks of 128 tokens", words.len());
        bench(&name, &words, Dtype::F16, 128 * token);
    }
}

fn kernels_name() -> &'static str {
    mnnkv::arch::level_name().to_str().unwrap_or("")
}
