//! States: bit-exact round trips, a second reader of the head, refusal of damaged blobs and bad descriptions, and of memory.

use crate::common::Random;
use crate::failing_allocator::each_allocation;
use mnnkv::dtype::Dtype;
use mnnkv::status::{Result, Status};
use mnnkv_llama::state::{self, Form, Tensor};
use mnnkv_llama::words::Coder;
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

fn encode(src: &[u8], tensors: &[Tensor], threads: usize) -> Vec<u8> {
    let bound = state::bound(src.len(), tensors).unwrap();
    let mut blob = vec![0xA5; bound + 7];
    let len = state::encode(src, tensors, threads, &mut blob).unwrap();
    assert!(len <= bound && blob[bound..] == [0xA5; 7], "{len} of {bound} bytes");
    blob.truncate(len);
    blob
}

fn decode(blob: &[u8], threads: usize, capacity: usize) -> Result<Vec<u8>> {
    let mut out = vec![0xA5; capacity];
    let len = state::decode(blob, threads, &mut out)?;
    assert!(out[len..].iter().all(|byte| *byte == 0xA5), "bytes after the buffer");
    out.truncate(len);
    Ok(out)
}

/// Tokens of 64 f16 words of a head of the sample.
fn sample() -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/kv/l1_k_h2_t1088_d64.f16");
    std::fs::read(path).unwrap()
}

const F16: Form = Form { dtype: Dtype::F16, block: 0, scale: 0 };
const Q8: Form = Form { dtype: Dtype::F16, block: 34, scale: 2 };

/// A buffer and tensors in it, some of them longer than a section.
fn any_state(seed: u64) -> (Vec<u8>, Vec<Tensor>) {
    let random = &mut Random::new(seed);
    let (mut tensors, mut at) = (Vec::new(), 0);
    for _ in 0..random.below(6) {
        let dtype = random.pick(&Dtype::ALL);
        let form = random.pick(&[Q8, Form { dtype, block: 20, scale: 4 }, Form { dtype, block: 0, scale: 0 }]);
        let unit = if form.block > 0 { form.block.into() } else { dtype.bytes() };
        let offset = at + random.below(2) * random.below(300);
        let bytes = unit * random.from(1, 400) * if random.once_in(8) { 200 } else { 1 };
        tensors.push(Tensor { offset, bytes, form });
        at = offset + bytes;
    }
    let len = at + random.below(2) * random.below(5000);
    let mut src: Vec<u8> = sample().into_iter().cycle().take(len).collect();
    for _ in 0..src.len() / 100 {
        let place = random.below(src.len());
        src[place] = random.next() as u8;
    }
    (src, tensors)
}

fn number(blob: &[u8], at: usize) -> usize {
    u64::from_le_bytes(blob[at..at + 8].try_into().unwrap()) as usize
}

/// Where the checksum of the head is.
fn head_end(blob: &[u8]) -> usize {
    40 + 32 * number(blob, 32)
}

/// The buffer that a blob has, read as the README of integrations/llama.cpp says.
fn read(blob: &[u8]) -> Vec<u8> {
    assert_eq!(blob[..16], *b"MNKVSTAT\x01\0\0\0\0\0\0\0");
    let end = head_end(blob);
    assert_eq!((number(blob, 16), number(blob, end) as u64), (blob.len(), xxh3_64(&blob[..end])));
    let (mut raw, mut payload) = (Vec::new(), &blob[end + 8..]);
    for entry in blob[40..end].chunks_exact(32) {
        let [len, stored] = [0, 8].map(|at| number(entry, at));
        let [dtype, block, scale, zero] =
            [24, 26, 28, 30].map(|at| u16::from_le_bytes([entry[at], entry[at + 1]]) as usize);
        let (mut section, behind) = payload.split_at(stored);
        assert_eq!((number(entry, 16) as u64, zero), (xxh3_64(section), 0));
        payload = behind;
        let words = len.checked_div(block).map_or(len, |blocks| blocks * scale);
        let mut streams = Vec::new();
        for (dtype, len) in [(dtype, words), (4, len - words)] {
            if len == 0 {
                continue;
            }
            let stored = number(section, 0);
            let mut stream = section[8..8 + stored].to_vec();
            if stored != len {
                stream = vec![0; len];
                let dtype = [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::Int8][dtype - 1];
                Coder::default().decode(&section[8..8 + stored], dtype, &mut stream).unwrap();
            }
            streams.push(stream);
            section = &section[8 + stored..];
        }
        assert!(section.is_empty());
        match &streams[..] {
            [words] => raw.extend(words),
            [words, codes] => {
                let blocks = words.chunks(scale).zip(codes.chunks(block - scale));
                blocks.for_each(|(words, codes)| raw.extend([words, codes].concat()));
            }
            _ => panic!("{} streams", streams.len()),
        }
    }
    assert!(payload.is_empty() && raw.len() == number(blob, 24));
    raw
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    #[test]
    fn any_buffer_round_trips_and_the_page_reads_it(seed: u64) {
        let (src, tensors) = any_state(seed);
        let blob = encode(&src, &tensors, 1);
        prop_assert_eq!(state::decoded_len(&blob).unwrap(), src.len());
        prop_assert!(decode(&blob, 2, src.len() + 5).unwrap() == src);
        prop_assert!(read(&blob) == src);
        prop_assert!(encode(&src, &tensors, 3) == blob, "threads change the blob");
    }
}

/// Numbers, K in f16, quantised K, numbers.
fn engine_state(rows: usize) -> (Vec<u8>, [Tensor; 2]) {
    let key = &sample()[..rows * 128];
    let mut src: Vec<u8> = (0..40).collect();
    src.extend(key);
    src.extend([1; 9]);
    let tensors =
        [Tensor { offset: 40, bytes: key.len(), form: F16 }, Tensor { offset: src.len(), bytes: rows * 68, form: Q8 }];
    for block in key.chunks(64) {
        let numbers: Vec<f32> = block.as_chunks().0.iter().map(|x| half::f16::from_le_bytes(*x).to_f32()).collect();
        let scale = numbers.iter().fold(0f32, |most, x| most.max(x.abs())) / 127.0;
        src.extend(half::f16::from_f32(scale).to_le_bytes());
        src.extend(numbers.iter().map(|x| (x / scale).round() as i8 as u8));
    }
    src.extend(b"end");
    (src, tensors)
}

#[test]
fn a_description_makes_the_blob_of_a_quantised_cache_smaller() {
    let (src, tensors) = engine_state(1088);
    let (all, one, none) = (encode(&src, &tensors, 1), encode(&src, &tensors[..1], 1), encode(&src, &[], 1));
    assert!(all.len() < one.len() && one.len() <= none.len() + 200, "{} {} {}", all.len(), one.len(), none.len());
    assert!(none.len() < src.len() * 97 / 100, "{} of {}", none.len(), src.len());
}

#[test]
fn every_truncation_and_every_changed_bit_is_refused() {
    let (src, tensors) = engine_state(12);
    let blob = encode(&src, &tensors, 1);
    let head = head_end(&blob) + 8;
    for len in 0..blob.len() {
        let error = decode(&blob[..len], 1, src.len()).unwrap_err();
        assert_eq!(error.status(), Status::Corrupt, "{len}: {error}");
    }
    for bit in 0..blob.len() * 8 {
        let mut blob = blob.clone();
        blob[bit / 8] ^= 1 << (bit % 8);
        let error = decode(&blob, 1, src.len()).expect_err(&format!("bit {bit}"));
        let expected = if (8..12).contains(&(bit / 8)) { Status::Unsupported } else { Status::Corrupt };
        assert_eq!(error.status(), expected, "bit {bit}: {error}");
        assert!(bit / 8 < head || error.message().starts_with("section "), "bit {bit}: {error}");
    }
    let longer = [&blob[..], &[0]].concat();
    assert_eq!(decode(&longer, 1, src.len()).unwrap_err().status(), Status::Corrupt);
}

/// A changed number with checksums that match.
#[test]
fn a_forged_blob_is_refused() {
    let (src, tensors) = engine_state(40);
    let blob = encode(&src, &tensors, 1);
    let end = head_end(&blob);
    let mut random = Random::new(5);
    for _ in 0..20_000 {
        let mut forged = blob.clone();
        let at = random.below(forged.len() - 8);
        let value =
            random.pick(&[0, 1, 2, 7, 1 << 31, 1 << 40, u64::MAX, u64::MAX - 7, number(&forged, at) as u64 + 1]);
        forged[at..at + 8].copy_from_slice(&value.to_le_bytes());
        let mut payload = end + 8;
        for entry in (40..end).step_by(32) {
            let len = number(&blob, entry + 8);
            let sum = xxh3_64(&forged[payload..payload + len]);
            if at >= end + 8 {
                forged[entry + 16..entry + 24].copy_from_slice(&sum.to_le_bytes());
            }
            payload += len;
        }
        let sum = xxh3_64(&forged[..end]);
        forged[end..end + 8].copy_from_slice(&sum.to_le_bytes());
        // Bytes of a stream that is stored as it is may be any.
        match decode(&forged, 1, src.len()) {
            Ok(out) => assert!(out == src || at + 8 > end + 8 && out.len() == src.len(), "{value:#x} at byte {at}"),
            Err(error) => assert!(
                [Status::Corrupt, Status::Unsupported, Status::BufferTooSmall, Status::OutOfMemory]
                    .contains(&error.status()),
                "{value:#x} at byte {at}: {error}"
            ),
        }
    }
}

#[test]
fn bad_descriptions_are_refused_with_the_index_of_the_tensor() {
    let good = Tensor { offset: 100, bytes: 200, form: F16 };
    let after = Tensor { offset: 600, ..good };
    let blocks = |block, scale| Form { dtype: Dtype::F16, block, scale };
    let blocks_of = |block, scale| {
        let text = format!("scale_bytes is {scale} in blocks of {block}; a multiple of 2 below {block} expected");
        (text, Tensor { form: blocks(block, scale), ..after })
    };
    let beyond = |offset: usize, bytes: usize| {
        let text = format!(" has {bytes} bytes from byte {offset} on; src_len is 1000");
        (text, Tensor { offset, bytes, ..after })
    };
    let small = |text: &str, tensor| (format!("{text} expected"), tensor);
    for (text, tensor) in [
        small("bytes is 0; a multiple of 2", Tensor { bytes: 0, ..after }),
        small("bytes is 19; a multiple of 2", Tensor { bytes: 19, ..after }),
        small("bytes is 200; a multiple of 34", Tensor { form: Q8, ..after }),
        blocks_of(20, 3),
        blocks_of(20, 0),
        blocks_of(20, 20),
        blocks_of(0, 2),
        beyond(801, 200),
        beyond(usize::MAX, 200),
        beyond(600, usize::MAX - 1),
        small("offset is 299; 300 or more", Tensor { offset: 299, ..good }),
    ] {
        let error = state::bound(1000, &[good, tensor]).expect_err(&text);
        assert_eq!(error.status(), Status::InvalidArgument);
        assert!(error.message().starts_with("tensors[1]") && error.message().contains(&text), "{error}: {text}");
    }
    for other in [after, Tensor { offset: 300, ..good }, Tensor { offset: 800, ..good }] {
        state::bound(1000, &[good, other]).unwrap();
    }
}

#[test]
fn a_state_is_encoded_and_decoded_or_memory_is_refused() {
    let (src, tensors) = engine_state(300);
    let mut blob = vec![0; state::bound(src.len(), &tensors).unwrap()];
    let encoded = each_allocation("encode", || state::encode(&src, &tensors, 1, &mut blob));
    let len = state::encode(&src, &tensors, 1, &mut blob).unwrap();
    let mut out = vec![0; src.len()];
    let decoded = each_allocation("decode", || state::decode(&blob[..len], 1, &mut out));
    assert!(encoded > 5 && decoded > 3 && out == src);
}
