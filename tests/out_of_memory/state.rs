//! State buffers of other engines.

use crate::common::read;
use crate::failing_allocator::each_allocation;
use mnnkv::dtype::Dtype;
use mnnkv::gear::Effort;
use mnnkv::state::{self, Form, Options, Tensor};

#[test]
fn a_state_is_encoded_and_decoded_or_refused() {
    let src = read("kv/l1_k_h2_t1088_d64.f16");
    let form = Form::Channels(Dtype::F16);
    let tensors = [Tensor { offset: 100, rows: 300, row_bytes: 640, stride: 700, form }];
    let mut blob = vec![0; state::bound(src.len(), &tensors).unwrap()];
    let options = Options { effort: Effort::DEFAULT, threads: 1 };
    let encoded = each_allocation("state::encode", || state::encode(&src, &tensors, options, &mut blob));
    let len = state::encode(&src, &tensors, options, &mut blob).unwrap();
    let mut out = vec![0; src.len()];
    let decoded = each_allocation("state::decode", || state::decode(&blob[..len], 1, &mut out));
    assert!(encoded > 10 && decoded > 5 && out == src);
}
