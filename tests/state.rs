//! State buffers of other engines: bit-exact round trips, a second reader, refusal of damaged blobs and bad descriptions.

mod common;
#[path = "common/counting_allocator.rs"]
mod counting_allocator;
#[path = "common/lanes_reader.rs"]
mod lanes_reader;
#[path = "common/state_reader.rs"]
mod state_reader;
#[path = "common/v2_reader.rs"]
mod v2_reader;

use common::Random;
use mnnkv::dtype::Dtype;
use mnnkv::gear::Effort;
use mnnkv::state::{self, Form, Options, Tensor};
use mnnkv::status::{Result, Status};
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

fn encode(src: &[u8], tensors: &[Tensor], effort: i32, threads: usize) -> Vec<u8> {
    let bound = state::bound(src.len(), tensors).unwrap();
    let mut blob = vec![0xA5; bound + 7];
    let options = Options { effort: Effort::new(effort, "effort").unwrap(), threads };
    let len = state::encode(src, tensors, options, &mut blob).unwrap();
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

/// The first `rows` tokens of a head of the sample: 64 f16 words each.
fn tokens(name: &str, rows: usize) -> Vec<u8> {
    let mut words = common::read(&format!("kv/{name}_h2_t1088_d64.f16"));
    words.truncate(rows * 128);
    words
}

const Q8: Form = Form::Blocks { dtype: Dtype::F16, block: 34, scale: 2 };

/// A buffer and tensors in it, some of them between the rows of others.
fn any_state(seed: u64) -> (Vec<u8>, Vec<Tensor>) {
    let random = &mut Random::new(seed);
    let mut tensors = Vec::new();
    let mut at = random.below(3) * random.below(50);
    for _ in 0..random.below(5) {
        let rows = random.from(1, 40) * if random.once_in(5) { 50 } else { 1 };
        let (mut stride, count) = (0, if random.once_in(3) { random.from(1, 3) } else { 1 });
        let first = tensors.len();
        for _ in 0..count {
            let dtype = random.pick(&Dtype::ALL);
            let form = match random.below(4) {
                0 => Q8,
                1 => Form::Blocks { dtype, block: 20, scale: 4 },
                2 => Form::Channels(dtype),
                _ => Form::Words(dtype),
            };
            let unit = if let Form::Blocks { block, .. } = form { block as usize } else { 4 };
            let row_bytes = unit * random.from(1, 20);
            tensors.push(Tensor { offset: at + stride, rows, row_bytes, stride: 0, form });
            stride += row_bytes + random.below(3) * random.below(9) * (count - 1);
        }
        tensors[first..].iter_mut().for_each(|tensor| tensor.stride = stride);
        at += (rows - 1) * stride + tensors.last().map_or(0, |last| last.offset + last.row_bytes - at);
        at += random.below(2) * random.below(50);
    }
    let mut src: Vec<u8> = tokens("l1_k", 1088).into_iter().cycle().take(at + random.below(40)).collect();
    for _ in 0..src.len() / 100 {
        let place = random.below(src.len());
        src[place] = random.next() as u8;
    }
    // In any order.
    for i in 1..tensors.len() {
        tensors.swap(i, random.below(i + 1));
    }
    (src, tensors)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_buffer_round_trips_and_the_page_reads_it(seed: u64, effort in 1..=5) {
        let (src, tensors) = any_state(seed);
        let blob = encode(&src, &tensors, effort, 1);
        prop_assert_eq!(state::decoded_len(&blob).unwrap(), src.len());
        prop_assert!(decode(&blob, 2, src.len() + 5).unwrap() == src);
        prop_assert!(state_reader::read(&blob) == src);
        prop_assert!(encode(&src, &tensors, effort, 3) == blob, "threads change the blob");
    }
}

/// A buffer as an engine has it: numbers, K as rows, V as channels, quantised rows, numbers.
fn engine_state(rows: usize) -> (Vec<u8>, Vec<Tensor>) {
    let (key, value) = (tokens("l1_k", rows), tokens("l1_v", rows));
    let mut src: Vec<u8> = (0..40).collect();
    let mut tensors = vec![Tensor { offset: 40, rows, row_bytes: 128, stride: 128, form: Form::Words(Dtype::F16) }];
    src.extend(&key);
    src.extend(1u64.to_le_bytes());
    let form = Form::Channels(Dtype::F16);
    tensors.push(Tensor { offset: src.len(), rows: 64, row_bytes: rows * 2, stride: rows * 2, form });
    src.extend(
        (0..64).flat_map(|d| (0..rows).flat_map(move |t| [0, 1].map(|b| t * 128 + d * 2 + b))).map(|at| value[at]),
    );
    src.extend(2u64.to_le_bytes());
    tensors.push(Tensor { offset: src.len(), rows, row_bytes: 68, stride: 68, form: Q8 });
    src.extend(key.chunks(64).flat_map(|row| [&row[..2], &row[..32]].concat()));
    src.extend(b"end");
    (src, tensors)
}

#[test]
fn a_description_makes_a_blob_smaller() {
    let (src, tensors) = engine_state(1088);
    let opaque = encode(&src, &[], 3, 1).len();
    let described = |names: &[usize]| {
        let tensors: Vec<_> = names.iter().map(|at| tensors[*at]).collect();
        let saved = opaque as isize - encode(&src, &tensors, 3, 1).len() as isize;
        saved as f64 / tensors.iter().map(|tensor| tensor.rows * tensor.row_bytes).sum::<usize>() as f64
    };
    for at in 0..3 {
        assert!(described(&[at]) > 0.05, "tensor {at} saves {:.3} of its bytes", described(&[at]));
    }
    // Words that no tensor has are still words.
    assert!(opaque < src.len() * 93 / 100, "{opaque} of {}", src.len());
    // [token][channel] and [channel][token] are one to the codec.
    let value = tokens("l1_v", 1088);
    let form = Form::Words(Dtype::F16);
    let rows = encode(&value, &[Tensor { offset: 0, rows: 1088, row_bytes: 128, stride: 128, form }], 3, 1);
    let channels = encode(&src[tensors[1].offset..][..value.len()], &[Tensor { offset: 0, ..tensors[1] }], 3, 1);
    assert_eq!(rows.len(), channels.len());
}

/// Rows of f16 as llama.cpp quantises them: for 32 numbers a scale in f16, then `bits` (8 or 4) for each.
fn quantised(words: &[u8], bits: u32) -> Vec<u8> {
    let numbers: Vec<f32> = words.as_chunks().0.iter().map(|word| half::f16::from_le_bytes(*word).to_f32()).collect();
    let mut out = Vec::new();
    for block in numbers.chunks(32) {
        let largest = block.iter().fold(0f32, |most, x| if x.abs() > most.abs() { *x } else { most });
        let scale = if bits == 8 { largest.abs() / 127.0 } else { largest / -8.0 };
        out.extend(half::f16::from_f32(scale).to_le_bytes());
        let part = |x: f32| if scale == 0.0 { 0.0 } else { x / scale };
        match bits {
            8 => out.extend(block.iter().map(|x| part(*x).round() as i8 as u8)),
            _ => {
                let code = |x: f32| (part(x) + 8.5).clamp(0.0, 15.0) as u8;
                out.extend((0..16).map(|i| code(block[i]) | code(block[i + 16]) << 4));
            }
        }
    }
    out
}

#[test]
fn quantised_caches_are_no_larger_at_the_least_effort_than_by_zstd() {
    for (bits, block) in [(8, 34), (4, 18)] {
        let [key, value] = ["l1_k", "l1_v"].map(|name| quantised(&tokens(name, 1088), bits));
        let form = Form::Blocks { dtype: Dtype::F16, block, scale: 2 };
        let row_bytes = 2 * block as usize;
        let tensor = |offset| Tensor { offset, rows: 1088, row_bytes, stride: row_bytes, form };
        let src = [&key[..], &value].concat();
        let ours = encode(&src, &[tensor(0), tensor(key.len())], 1, 1).len();
        let mut stock = vec![0; src.len() + 1000];
        let stock = zstd_safe::compress(&mut stock[..], &src, 3).unwrap();
        assert!(ours < stock, "{bits} bits: {ours} bytes, ZSTD {stock}, raw {}", src.len());
    }
}

/// The efforts of the frozen blobs of `testdata/state/engine.bin`; the last one is without a description.
const FROZEN: [(&str, i32); 3] = [("state/lanes.mnkv", 1), ("state/v2.mnkv", 3), ("state/opaque.mnkv", 4)];

#[test]
fn frozen_blobs_decode() {
    let src = common::read("state/engine.bin");
    for (name, _) in FROZEN {
        let blob = common::read(name);
        assert!(decode(&blob, 1, src.len()).unwrap() == src && state_reader::read(&blob) == src, "{name}");
    }
}

#[test]
#[ignore = "writes goldens; run it for a new one"]
fn write_missing_goldens() {
    let (src, tensors) = engine_state(300);
    let write = |name, bytes: &[u8]| {
        let path = common::testdata(name);
        if !path.exists() {
            std::fs::write(path, bytes).unwrap();
        }
    };
    write("state/engine.bin", &src);
    for (name, effort) in FROZEN {
        write(name, &encode(&src, if effort == 4 { &[] } else { &tensors }, effort, 1));
    }
}

#[test]
fn every_truncation_and_every_changed_bit_is_refused() {
    let (src, tensors) = engine_state(12);
    for effort in [1, 3] {
        let blob = encode(&src, &tensors, effort, 1);
        let head = blob.len() - decode_places(&blob);
        for len in 0..blob.len() {
            let error = decode(&blob[..len], 1, src.len()).unwrap_err();
            assert_eq!(error.status(), Status::Corrupt, "{len}: {error}");
        }
        for bit in 0..blob.len() * 8 {
            let mut blob = blob.clone();
            blob[bit / 8] ^= 1 << (bit % 8);
            let error = decode(&blob, 1, src.len()).expect_err(&format!("bit {bit}"));
            let version = (8..12).contains(&(bit / 8));
            assert_eq!(
                error.status(),
                if version { Status::Unsupported } else { Status::Corrupt },
                "bit {bit}: {error}"
            );
            assert!(bit / 8 < head || error.message().starts_with("section "), "bit {bit}: {error}");
        }
        let mut longer = blob.clone();
        longer.push(0);
        assert_eq!(decode(&longer, 1, src.len()).unwrap_err().status(), Status::Corrupt);
    }
}

/// The bytes of all payloads.
fn decode_places(blob: &[u8]) -> usize {
    (0..sections(blob)).map(|at| u64_at(blob, head_end(blob) - 24 * (sections(blob) - at)) as usize).sum()
}

fn u64_at(blob: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(blob[at..at + 8].try_into().unwrap())
}

fn sections(blob: &[u8]) -> usize {
    u64_at(blob, 40) as usize
}

/// Where the checksum of the head is.
fn head_end(blob: &[u8]) -> usize {
    let mut at = 48;
    for _ in 0..u64_at(blob, 32) {
        at += 32 + 24 * u64_at(blob, at + 24) as usize;
    }
    at + 24 * sections(blob)
}

#[test]
fn a_forged_blob_is_refused_and_its_claims_take_no_memory() {
    let (src, tensors) = engine_state(40);
    let blob = encode(&src, &tensors, 3, 1);
    let end = head_end(&blob);
    let mut random = Random::new(5);
    for _ in 0..20_000 {
        let mut forged = blob.clone();
        let at = random.below(forged.len() - 8);
        let number = random.pick(&[0, 1, 2, 7, 1 << 31, 1 << 40, u64::MAX, u64::MAX - 7, u64_at(&forged, at) + 1]);
        forged[at..at + 8].copy_from_slice(&number.to_le_bytes());
        if forged == blob {
            continue;
        }
        // Checksums that match, as far as the tables still say where they are.
        let mut from = end + 8;
        for section in 0..sections(&blob) {
            let entry = end - 24 * (sections(&blob) - section);
            let len = u64_at(&blob, entry) as usize;
            if at >= end + 8 {
                let sum = xxh3_64(&forged[from..from + len]);
                forged[entry + 16..entry + 24].copy_from_slice(&sum.to_le_bytes());
            }
            from += len;
        }
        let sum = xxh3_64(&forged[..end]);
        forged[end..end + 8].copy_from_slice(&sum.to_le_bytes());
        if forged == blob {
            continue;
        }
        let mut result = None;
        let peak = counting_allocator::peak(|| result = Some(decode(&forged, 1, src.len())));
        let error = result.unwrap().expect_err(&format!("{number:#x} at byte {at}"));
        assert!(peak < 1 << 20, "{peak} bytes for {number:#x} at byte {at}");
        let known = [Status::Corrupt, Status::Unsupported, Status::BufferTooSmall, Status::OutOfMemory];
        assert!(known.contains(&error.status()), "{number:#x} at byte {at}: {error}");
    }
}

#[test]
fn capacities_that_are_too_small_are_told_what_is_needed() {
    let (src, tensors) = engine_state(40);
    let bound = state::bound(src.len(), &tensors).unwrap();
    let options = Options { effort: Effort::DEFAULT, threads: 1 };
    let error = state::encode(&src, &tensors, options, &mut vec![0; bound - 1]).unwrap_err();
    assert_eq!((error.status(), error.needed()), (Status::BufferTooSmall, Some(bound)));
    let error = decode(&encode(&src, &tensors, 3, 1), 1, src.len() - 1).unwrap_err();
    assert_eq!((error.status(), error.needed()), (Status::BufferTooSmall, Some(src.len())));
}

#[test]
fn bad_descriptions_are_refused_with_the_index_of_the_tensor() {
    let good = Tensor { offset: 100, rows: 10, row_bytes: 20, stride: 40, form: Form::Words(Dtype::F16) };
    let after = Tensor { offset: 600, ..good };
    let blocks = |block, scale| Form::Blocks { dtype: Dtype::F16, block, scale };
    for (text, tensor) in [
        ("tensors[1].rows is 0; at least 1 expected", Tensor { rows: 0, ..after }),
        ("tensors[1].row_bytes is 0; a multiple of 2 expected", Tensor { row_bytes: 0, ..after }),
        ("tensors[1].row_bytes is 19; a multiple of 2 expected", Tensor { row_bytes: 19, ..after }),
        ("tensors[1].row_bytes is 20; a multiple of 34 expected", Tensor { form: Q8, ..after }),
        (
            "tensors[1].scale_bytes is 3 in blocks of 20; a multiple of 2 below 20 expected",
            Tensor { form: blocks(20, 3), ..after },
        ),
        (
            "tensors[1].scale_bytes is 0 in blocks of 20; a multiple of 2 below 20 expected",
            Tensor { form: blocks(20, 0), ..after },
        ),
        (
            "tensors[1].scale_bytes is 20 in blocks of 20; a multiple of 2 below 20 expected",
            Tensor { form: blocks(20, 20), ..after },
        ),
        ("tensors[1].stride is 19; at least 20 expected", Tensor { stride: 19, ..after }),
        (
            "tensors[1] has 10 rows of 20 bytes at a stride of 40 from byte 621 on; src_len is 1000",
            Tensor { offset: 621, ..after },
        ),
        (
            "tensors[1] has 10 rows of 20 bytes at a stride of 40 from byte 18446744073709551615 on; src_len is 1000",
            Tensor { offset: usize::MAX, ..after },
        ),
        (
            "tensors[1] has 18446744073709551615 rows of 20 bytes at a stride of 40 from byte 600 on; src_len is 1000",
            Tensor { rows: usize::MAX, ..after },
        ),
        ("tensors[1] begins at byte 119, inside of another one", Tensor { offset: 119, ..good }),
        ("tensors[1] begins at byte 100, inside of another one", good),
        ("tensors[1] begins at byte 479, inside of another one", Tensor { offset: 479, ..good }),
        ("tensors[1] begins at byte 200, inside of another one", Tensor { offset: 200, stride: 20, ..good }),
        ("a row of tensors[1] goes on into the next row of tensors[0]", Tensor { offset: 122, ..good }),
        ("tensors[1].rows is 9; it lies between the 10 rows of tensors[0]", Tensor { offset: 120, rows: 9, ..good }),
    ] {
        let error = state::bound(1000, &[good, tensor]).expect_err(text);
        assert_eq!((error.status(), error.message()), (Status::InvalidArgument, text));
    }
    for other in [after, Tensor { offset: 120, ..good }, Tensor { offset: 480, ..good }, Tensor { offset: 600, ..good }]
    {
        state::bound(1000, &[good, other]).unwrap();
    }
}
