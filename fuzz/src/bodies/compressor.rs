//! Any bytes as weights of the learned compressor: refused with an offset, or read. Weights that were read run, and are
//! written with the same contents. If the last byte is odd, the target writes the
//! magic, the version and a valid type.

use mnnkv::dtype::Dtype;
use mnnkv_model::compressor::{Compressor, CompressorOptions, MAGIC, Tokens, VERSION, Workspace};

pub fn compressor(data: &[u8]) {
    let mut bytes = data.to_vec();
    if bytes.len() >= 44 && data.last().is_some_and(|last| last % 2 == 1) {
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8] %= 3;
        bytes[9] = 0;
    }
    let file = match Compressor::read(&bytes[..]) {
        Ok(file) => file,
        Err(error) => {
            assert!(error.message().contains("offset "), "{error}");
            return;
        }
    };
    let written = file.weights().unwrap().to_bytes().unwrap();
    assert_eq!(Compressor::read(&written[..]).unwrap().weights().unwrap(), file.weights().unwrap());
    let options = CompressorOptions { image_len: 5, ..CompressorOptions::default() };
    let plan = file.plan(file.header().factor.min(40) as usize + 7, &options).unwrap();
    for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32] {
        let tokens = Tokens { dtype, heads: 1 };
        let bytes = |count: usize| vec![0u8; count * file.head_dim() * dtype.bytes()];
        let (input, mut key, mut value) = (bytes(plan.len()), bytes(plan.new_len()), bytes(plan.new_len()));
        // Weights or results may be too large.
        let _ = file.run(0, &plan, tokens, &input, &input, &mut key, &mut value, &mut Workspace::default());
    }
}
