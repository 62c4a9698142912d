//! Blobs of gear.

use super::counting_allocator::peak;
use super::given::Given;
use mnnkv::dtype::Dtype;
use mnnkv::gear::{
    self, Decoder, Effort, Encoder, Format, Frequencies, Options, Pairing, Positions, Predictors, Rotation,
};
use mnnkv::status::Result;
use xxhash_rust::xxh3::xxh3_64;

/// Decodes with a new decoder. Panics above three times the blob and its words plus 256 KiB of memory.
fn bounded(blob: &[u8], dtype: Dtype, words: &mut [u8]) -> Result<usize> {
    let given = blob.len() + gear::decoded_len(blob, dtype).unwrap_or(0).min(words.len());
    let mut result = Ok(0);
    let held = peak(|| result = Decoder::new().decode(blob, dtype, words));
    assert!(held <= 3 * given + (256 << 10), "{held} bytes for {given}");
    result
}

/// A late failure leaves as many words undefined as the header announces.
fn check_untouched(words: &[u8], announced: usize) {
    assert!(words.get(announced..).unwrap_or(words).iter().all(|byte| *byte == 0xA5));
}

/// Whether bytes begin as a blob of another format than `version`, which has a target of its own.
fn is_of_another(blob: &[u8], version: u8) -> bool {
    blob.starts_with(b"\0\0\0\0MNKV") && blob.get(8) != Some(&version)
}

/// Any bytes as a blob of format v1: refused, or decoded to the announced number of words.
pub fn decode_v1(blob: &[u8]) {
    if is_of_another(blob, 1) {
        return;
    }
    for dtype in [Dtype::F16, Dtype::F32] {
        let mut words = vec![0xA5; 1 << 13];
        match bounded(blob, dtype, &mut words) {
            Ok(len) => assert_eq!(gear::decoded_len(blob, dtype).unwrap(), len),
            Err(_) => check_untouched(&words, 0),
        }
    }
}

/// Any bytes as a blob of format v2, under a matching trailer: refused, or decoded to words with the checksum of the
/// header. If the last byte, which the trailer replaces, is not 0, the start is made that of a blob.
pub fn decode_v2(data: &[u8]) {
    if data.len() < 36 {
        return;
    }
    let mut blob = data.to_vec();
    if !data.ends_with(&[0]) {
        blob[..10].copy_from_slice(b"\0\0\0\0MNKV\x02\0");
        blob[10] = (blob[10].wrapping_sub(1) & 3) + 1;
        blob[11] = 1;
        // No more words than the capacity.
        blob[17] &= 31;
        blob[18..24].fill(0);
    }
    if is_of_another(&blob, 2) {
        return;
    }
    let end = blob.len() - 4;
    let checksum = xxh3_64(&blob[..end]) as u32;
    blob[end..].copy_from_slice(&checksum.to_le_bytes());
    for dtype in Dtype::ALL {
        let mut words = vec![0xA5; 1 << 13];
        match bounded(&blob, dtype, &mut words) {
            Ok(len) if blob.starts_with(&[0; 4]) => {
                assert_eq!(gear::decoded_len(&blob, dtype).unwrap(), len);
                assert_eq!(xxh3_64(&words[..len]).to_le_bytes(), blob[24..32]);
            }
            Ok(_) => {}
            Err(_) => {
                let announced = blob.get(16..24).map_or(0, |len| u64::from_le_bytes(len.try_into().unwrap()) as usize);
                check_untouched(&words, announced);
            }
        }
    }
}

/// Any bytes as a blob of format lanes: refused, or decoded to words with the checksum of the header. Unless the last byte
/// is 0, the start is made that of a blob, with a length within the capacity.
pub fn decode_lanes(data: &[u8]) {
    const START: &[u8] = b"\0\0\0\0MNKV\x03";
    if data.len() < 24 {
        return;
    }
    let mut blob = data.to_vec();
    if !data.ends_with(&[0]) {
        blob[..9].copy_from_slice(START);
        blob[9] = (blob[9].wrapping_sub(1) & 3) + 1;
        blob[11] = (blob[11] & 1) + 1;
        // Two bytes: fewer than 2^14.
        (blob[20], blob[21]) = (blob[20] | 128, blob[21] & 127);
    }
    if is_of_another(&blob, 3) {
        return;
    }
    for dtype in Dtype::ALL {
        let mut words = vec![0xA5; 1 << 15];
        let announced = gear::decoded_len(&blob, dtype);
        match bounded(&blob, dtype, &mut words) {
            Ok(len) if blob.starts_with(START) => {
                assert_eq!(announced.unwrap(), len);
                assert_eq!(xxh3_64(&words[..len]).to_le_bytes(), blob[12..20]);
            }
            Ok(_) => {}
            Err(_) => check_untouched(&words, announced.unwrap_or(0)),
        }
    }
}

/// Any words with any options: decoding restores them, and the blob is within the bound.
pub fn roundtrip(data: &[u8]) {
    let mut given = Given::new(data);
    let format = given.pick(&[Format::V1, Format::V2, Format::Lanes]);
    let dtype = match format {
        Format::V1 => given.pick(&[Dtype::F16, Dtype::F32]),
        _ => given.pick(&Dtype::ALL),
    };
    let known = if format == Format::V1 { Predictors::ALL.bits() } else { 0 };
    let mut options = Options {
        predictors: Predictors::from_bits(u32::from(given.byte()) & known, format).unwrap(),
        effort: Effort::new(given.below(10) as i32, "effort").unwrap(),
        head_dim: given.below(1 << 16),
        ..Options::new(format)
    };
    let floats = |given: &mut Given<'_>| (0..given.below(20)).map(|_| given.float()).collect::<Vec<f32>>();
    let (frequencies, positions) =
        (floats(&mut given), (0..given.below(20)).map(|_| given.any()).collect::<Vec<u32>>());
    options.rotation = given.flag().then(|| Rotation {
        pairing: if given.flag() { Pairing::Half } else { Pairing::Adjacent },
        dims: given.below(1 << 16),
        frequencies: if given.flag() { Frequencies::Given(&frequencies) } else { Frequencies::Theta(given.float()) },
        tokens: given.below(1 << 16),
        positions: if given.flag() { Positions::Given(&positions) } else { Positions::Counting { first: given.any() } },
    });
    // Words, or a row that is repeated, with some bytes changed.
    let (copies, changes) = (given.below(64), given.below(20));
    let changes: Vec<(usize, u8)> = (0..changes).map(|_| (given.below(1 << 16), given.byte())).collect();
    let mut words = if copies > 0 { given.block().repeat(copies) } else { given.rest().to_vec() };
    words.truncate(1 << 16);
    for (at, add) in changes {
        let len = words.len().max(1);
        if let Some(byte) = words.get_mut(at % len) {
            *byte = byte.wrapping_add(add);
        }
    }
    let mut encoder = Encoder::new();
    let refused = |error| assert!(gear::bound(words.len(), dtype).is_none(), "{error}");
    if options.rotation.is_some() && encoder.encode(&words, dtype, &options).is_err() {
        // Without the hint, only partial words are refused.
        options.rotation = None;
    }
    let blob = match encoder.encode(&words, dtype, &options) {
        Ok(blob) => blob,
        Err(error) => return refused(error),
    };
    assert!(blob.len() <= gear::bound(words.len(), dtype).unwrap());
    assert_eq!(gear::decoded_len(blob, dtype).unwrap(), words.len());
    let mut back = vec![0; words.len()];
    assert_eq!(Decoder::new().decode(blob, dtype, &mut back).unwrap(), words.len());
    assert!(back == words);
}
