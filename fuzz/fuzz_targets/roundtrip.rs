//! Any words with any options: decoding restores them, and the blob is within the bound.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use mnnkv::dtype::Dtype;
use mnnkv::gear::{
    self, Decoder, Effort, Encoder, Format, Frequencies, Options, Pairing, Positions, Predictors, Rotation,
};

#[derive(Arbitrary, Debug)]
struct Case {
    format: bool,
    dtype: u8,
    head_dim: u16,
    predictors: u8,
    effort: u8,
    hint: Option<Hint>,
    words: Vec<u8>,
    /// Bytes of a row that is repeated, with some bytes changed.
    row: u8,
    copies: u8,
    changes: Vec<(u16, u8)>,
}

#[derive(Arbitrary, Debug)]
struct Hint {
    is_half: bool,
    dims: u16,
    theta: f32,
    inv_freq: Option<Vec<f32>>,
    tokens: u16,
    first: u32,
    positions: Option<Vec<u32>>,
}

fuzz_target!(|case: Case| {
    let format = if case.format { Format::V1 } else { Format::V2 };
    let dtype = match format {
        Format::V1 => [Dtype::F16, Dtype::F32][case.dtype as usize % 2],
        Format::V2 => Dtype::ALL[case.dtype as usize % 4],
    };
    let known = if format == Format::V1 { Predictors::ALL.bits() } else { 0 };
    let mut words = case.words;
    if case.copies > 0 && case.row > 0 {
        words.truncate(case.row as usize);
        words = words.repeat(case.copies as usize);
        let len = words.len().max(1);
        for (at, add) in case.changes {
            if let Some(byte) = words.get_mut(at as usize % len) {
                *byte = byte.wrapping_add(add);
            }
        }
    }
    let mut options = Options {
        predictors: Predictors::from_bits(case.predictors as u32 & known, format).unwrap(),
        effort: Effort::new(case.effort as i32 % 10, "effort").unwrap(),
        head_dim: case.head_dim as usize,
        ..Options::new(format)
    };
    options.rotation = case.hint.as_ref().map(|hint| Rotation {
        pairing: if hint.is_half { Pairing::Half } else { Pairing::Adjacent },
        dims: hint.dims as usize,
        frequencies: match &hint.inv_freq {
            Some(list) => Frequencies::Given(list),
            None => Frequencies::Theta(hint.theta),
        },
        tokens: hint.tokens as usize,
        positions: match &hint.positions {
            Some(list) => Positions::Given(list),
            None => Positions::Counting { first: hint.first },
        },
    });
    let mut encoder = Encoder::new();
    let blob = match encoder.encode(&words, dtype, &options) {
        Ok(blob) => blob,
        // Without the hint, only partial words are refused.
        Err(_) if options.rotation.is_some() => {
            options.rotation = None;
            match encoder.encode(&words, dtype, &options) {
                Ok(blob) => blob,
                Err(error) => return assert!(gear::bound(words.len(), dtype).is_none(), "{error}"),
            }
        }
        Err(error) => return assert!(gear::bound(words.len(), dtype).is_none(), "{error}"),
    };
    assert!(blob.len() <= gear::bound(words.len(), dtype).unwrap());
    assert_eq!(gear::decoded_len(blob, dtype).unwrap(), words.len());
    let mut back = vec![0; words.len()];
    assert_eq!(Decoder::new().decode(blob, dtype, &mut back).unwrap(), words.len());
    assert!(back == words);
});
