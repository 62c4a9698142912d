//! Blobs of gear.

use super::counting_allocator::peak;
use super::given::Given;
use mnnkv::dtype::Dtype;
use mnnkv::gear::{self, Decoder, Effort, Encoder, Format, Options, Predictors};
use mnnkv::status::Result;
use xxhash_rust::xxh3::xxh3_64;

/// How a checked blob of this version begins.
const START: &[u8] = b"\0\0\0\0MNKV\x04";

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

/// Any bytes as a v1 frame: refused, or decoded to the announced number of words.
pub fn decode_v1(blob: &[u8]) {
    if blob.starts_with(b"\0\0\0\0MNKV") {
        return;
    }
    for dtype in Dtype::ALL {
        let mut words = vec![0xA5; 1 << 13];
        match bounded(blob, dtype, &mut words) {
            Ok(len) => assert_eq!(gear::decoded_len(blob, dtype).unwrap(), len),
            Err(_) => check_untouched(&words, 0),
        }
    }
}

/// Any bytes as a frame behind a header with its number of words: refused, or decoded to words with the checksum of the
/// header.
pub fn decode_checked(data: &[u8]) {
    for dtype in Dtype::ALL {
        let count = data.first_chunk().map_or(0, |count| u64::from(u32::from_le_bytes(*count)));
        let mut words = vec![0xA5; 1 << 13];
        // The checksum of the words that the frame has, where it is sound.
        let sound = bounded(data, dtype, &mut words).ok().filter(|_| !data.starts_with(&START[..4]));
        let sum = sound.map_or(0, |len| xxh3_64(&words[..len]));
        let blob = [START, &[dtype as u32 as u8], &count.to_le_bytes(), &sum.to_le_bytes(), data].concat();
        words.fill(0xA5);
        match bounded(&blob, dtype, &mut words) {
            Ok(len) => assert_eq!((Some(len), xxh3_64(&words[..len])), (sound, sum)),
            Err(_) => {
                assert!(sound.is_none());
                check_untouched(&words, gear::decoded_len(&blob, dtype).unwrap_or(0));
            }
        }
    }
}

/// Any words with any options: decoding restores them, and the blob is within the bound.
pub fn roundtrip(data: &[u8]) {
    let mut given = Given::new(data);
    let (format, dtype) = (given.pick(&[Format::V1, Format::Checked]), given.pick(&Dtype::ALL));
    let options = Options {
        format,
        predictors: Predictors::from_bits(u32::from(given.byte()) & Predictors::ALL.bits()).unwrap(),
        effort: Effort::new(given.below(10) as i32, "effort").unwrap(),
    };
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
    let blob = match encoder.encode(&words, dtype, &options) {
        Ok(blob) => blob,
        Err(error) => return assert!(gear::bound(words.len(), dtype).is_none(), "{error}"),
    };
    assert!(blob.len() <= gear::bound(words.len(), dtype).unwrap());
    assert_eq!(gear::decoded_len(blob, dtype).unwrap(), words.len());
    let mut back = vec![0; words.len()];
    assert_eq!(Decoder::new().decode(blob, dtype, &mut back).unwrap(), words.len());
    assert!(back == words);
}
