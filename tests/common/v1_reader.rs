//! A second reader of gear format v1, written from `docs/format.md`, without code of the library. ZSTD frames are
//! decoded by ruzstd.

use std::io::Read;

pub struct Plane {
    pub mode: u8,
    pub codec: u8,
    pub payload: Vec<u8>,
    pub bytes: Vec<u8>,
}

fn u32_at(blob: &[u8], at: usize) -> usize {
    u32::from_le_bytes(blob[at..at + 4].try_into().unwrap()) as usize
}

pub fn planes(blob: &[u8], width: usize) -> Vec<Plane> {
    let words = u32_at(blob, 0);
    let mut at = 4;
    let planes = (0..width)
        .map(|_| {
            let (mode, codec) = (blob[at], blob[at + 1]);
            assert_eq!(u32_at(blob, at + 2), words, "raw_len");
            let payload = blob[at + 10..at + 10 + u32_at(blob, at + 6)].to_vec();
            at += 10 + payload.len();
            let mut bytes = match codec {
                0 => unrle(&payload),
                1 => unzstd(&payload),
                c => panic!("codec {c}"),
            };
            assert_eq!(bytes.len(), words, "plane length");
            for i in 1..bytes.len() {
                bytes[i] = match mode {
                    0 => bytes[i],
                    1 => bytes[i].wrapping_add(bytes[i - 1]),
                    2 => bytes[i] ^ bytes[i - 1],
                    m => panic!("mode {m}"),
                };
            }
            Plane { mode, codec, payload, bytes }
        })
        .collect();
    assert_eq!(at, blob.len(), "bytes after the last frame");
    planes
}

pub fn words(blob: &[u8], width: usize) -> Vec<u8> {
    let planes = planes(blob, width);
    let count = planes[0].bytes.len();
    (0..count * width).map(|i| planes[i % width].bytes[i / width]).collect()
}

fn unrle(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < payload.len() {
        let control = payload[at] as usize;
        if control < 128 {
            out.extend_from_slice(&payload[at + 1..at + 2 + control]);
            at += 2 + control;
        } else {
            out.extend(std::iter::repeat_n(payload[at + 1], control - 128 + 4));
            at += 2;
        }
    }
    out
}

fn unzstd(payload: &[u8]) -> Vec<u8> {
    let mut source = payload;
    let mut out = Vec::new();
    ruzstd::decoding::StreamingDecoder::new(&mut source).unwrap().read_to_end(&mut out).unwrap();
    assert!(source.is_empty(), "one frame");
    out
}
