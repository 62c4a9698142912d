//! Descriptions and buffers that no cache of MNN has.

use crate::model::shape;
use crate::quantised::{Kind as Form, MnnCache, Shape, Unit};
use crate::spec;
use mnnkv::dtype::Dtype;
use mnnkv::layout::{Cache, CacheRef, Int8Unit, Kind, Layout, Spec};
use mnnkv::status::Status;

const UNIT: Unit = Unit { l: 4, h: 8 };

fn of_mode(mode: usize) -> Spec {
    spec(&shape(mode, 64, UNIT))
}

fn unit(l_pack: u32, h_pack: u32) -> Int8Unit {
    Int8Unit { l_pack, h_pack }
}

#[test]
fn each_mode_with_each_unit_is_a_layout() {
    for mode in 9..15 {
        for (l, h) in [(16, 4), (4, 8), (4, 64), (8, 8), (4, 32)] {
            assert!(Layout::new(&spec(&shape(mode, 64, Unit { l, h }))).is_ok(), "{mode} {l} {h}");
        }
    }
}

#[test]
fn descriptions_that_no_cache_of_mnn_has_are_refused_by_field_value_and_reason() {
    let float = Kind::Float(Dtype::F16);
    let cases: [(Spec, &[&str]); 20] = [
        // Without flash attention: a block of all tokens.
        (Spec { flash_block: 128, ..of_mode(12) }, &["flash_block is 128", "TQ3", "64 expected", "modes 4 and 6"]),
        (Spec { flash_block: 128, ..of_mode(14) }, &["flash_block is 128", "TQ4", "64 expected", "modes 4 and 6"]),
        (Spec { flash_block: 32, ..of_mode(10) }, &["flash_block is 32", "INT8", "64 expected"]),
        (Spec { flash_block: 0, ..of_mode(10) }, &["flash_block is 0"]),
        (Spec { key: float, ..of_mode(10) }, &["key_dtype is F16", "value_dtype INT8"]),
        (Spec { key: float, ..of_mode(12) }, &["key_dtype is F16", "value_dtype TQ3"]),
        (Spec { key: Kind::Int8, ..of_mode(14) }, &["key_dtype is INT8", "value_dtype TQ4"]),
        (Spec { key: Kind::Tq3, ..of_mode(10) }, &["key_dtype is TQ3", "value_dtype INT8"]),
        (Spec { key: Kind::Tq3, ..of_mode(14) }, &["key_dtype is TQ3", "value_dtype TQ4"]),
        (Spec { head_dim: 80, ..of_mode(11) }, &["head_dim is 80", "key_dtype is TQ3", "multiple of 32"]),
        (Spec { head_dim: 1, ..of_mode(14) }, &["head_dim is 1", "TQ4", "multiple of 32"]),
        (Spec { int8: unit(0, 0), ..of_mode(9) }, &["int8->l_pack is 0", "h_pack 0"]),
        (Spec { int8: unit(4, 4), ..of_mode(9) }, &["int8->l_pack is 4", "h_pack 4"]),
        (Spec { int8: unit(8, 4), ..of_mode(10) }, &["int8->l_pack is 8", "h_pack 4"]),
        (Spec { int8: unit(u32::MAX, u32::MAX), ..of_mode(10) }, &["int8->l_pack is 4294967295"]),
        (Spec { key_head_stride: 8, ..of_mode(10) }, &["key_head_stride is 8", "at least 9216"]),
        (Spec { value_head_stride: 9218, ..of_mode(10) }, &["value_head_stride is 9218", "multiple of 4"]),
        (Spec { key_token_stride: 80, ..of_mode(9) }, &["key_token_stride is 80", "0 expected"]),
        (Spec { value_token_stride: 64, ..of_mode(10) }, &["value_token_stride is 64", "0 expected"]),
        (Spec { max_tokens: u32::MAX, head_dim: u32::MAX, kv_heads: u32::MAX, ..of_mode(10) }, &["overflows"]),
    ];
    for (mut refused, words) in cases {
        // Strides are 0 where they are not the subject.
        if !words[0].contains("head_stride") {
            (refused.key_head_stride, refused.value_head_stride) = (0, 0);
        }
        let error = Layout::new(&refused).map(|_| ()).expect_err(words[0]);
        assert!(matches!(error.status(), Status::InvalidArgument | Status::Unsupported), "{error}");
        for word in words {
            assert!(error.message().contains(word), "{word}: {error}");
        }
    }
}

#[test]
fn side_arrays_that_are_missing_short_or_too_many_are_refused_by_name_and_size() {
    let sums = |mode| {
        let shape: Shape = shape(mode, 64, UNIT);
        let bytes = shape.sum_bytes();
        (if shape.key == Form::Int8 { bytes.0 } else { 0 }, if shape.value == Form::Int8 { bytes.1 } else { 0 })
    };
    for mode in 9..15 {
        let mut cache = MnnCache::new(shape(mode, 64, UNIT));
        let layout = Layout::new(&of_mode(mode)).unwrap();
        let (key, value) = sums(mode);
        assert_eq!((layout.key_sum_bytes(), layout.value_sum_bytes()), (key, value), "{mode}");
        for (given, name) in [
            ((0, value), "key_sum"),
            ((key + 4, value), "key_sum"),
            ((key, 0), "value_sum"),
            ((key, value + 4), "value_sum"),
        ] {
            if given == (key, value) {
                continue;
            }
            let (mut key_sum, mut value_sum) = (vec![0; given.0], vec![0; given.1]);
            let made = Cache::with_sums(&layout, &mut cache.key, &mut cache.value, &mut key_sum, &mut value_sum);
            let error = made.err().expect(name);
            assert_eq!(error.status(), Status::InvalidArgument);
            let (short, full) = if name == "key_sum" { (given.0, key) } else { (given.1, value) };
            for word in [&format!("{name}_bytes is {short}"), &format!("{full} expected")] {
                assert!(error.message().contains(word.as_str()), "{mode} {given:?}: {error}");
            }
        }
        if key > 0 {
            assert!(CacheRef::new(&layout, &cache.key, &cache.value).err().unwrap().message().contains("key_sum"));
        }
    }
}
