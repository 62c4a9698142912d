//! Quantised caches through the C functions: the arrays beside them, and what is refused.

use crate::model::shape;
use crate::quantised::{Kind as Form, MnnCache, Shape, Unit, goldens, live_bytes_equal};
use mnnkv::ffi::cache::*;
use mnnkv::ffi::layout::*;
use mnnkv::ffi::status::*;
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};

/// A cache as a host passes it.
struct Host {
    layout: mnnkv_layout,
    int8: Box<mnnkv_int8>,
    key: *mut c_void,
    value: *mut c_void,
}

impl Host {
    /// Valid while `cache` is neither moved nor touched. Sums are aligned to f32, as those of MNN.
    fn new(cache: &mut MnnCache, sums: &mut [Vec<f32>; 2]) -> Self {
        let s = cache.shape;
        let dtype = |form| match form {
            Form::Float if s.elem == 2 => MNNKV_DTYPE_F16,
            Form::Float => MNNKV_DTYPE_F32,
            Form::Int8 => MNNKV_DTYPE_INT8,
            Form::Tq3 => MNNKV_DTYPE_TQ3,
            Form::Tq4 => MNNKV_DTYPE_TQ4,
        };
        let floats = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
        *sums = [floats(&cache.key_sum), floats(&cache.value_sum)];
        let [key_sum, value_sum] = sums;
        let int8 = Box::new(mnnkv_int8 {
            struct_size: size_of::<mnnkv_int8>() as u32,
            l_pack: s.unit.l as u32,
            h_pack: s.unit.h as u32,
            reserved: 0,
            key_sum: key_sum.as_mut_ptr(),
            key_sum_bytes: 4 * key_sum.len() as u64,
            value_sum: value_sum.as_mut_ptr(),
            value_sum_bytes: 4 * value_sum.len() as u64,
        });
        let strides = s.strides();
        let layout = mnnkv_layout {
            struct_size: size_of::<mnnkv_layout>() as u32,
            key_dtype: dtype(s.key),
            value_dtype: dtype(s.value),
            kv_heads: s.heads as u32,
            head_dim: s.dims as u32,
            e_pack: 4,
            l_pack: s.pack.0 as u32,
            h_pack: s.pack.1 as u32,
            flash_block: s.block as u32,
            max_tokens: s.max as u32,
            key_head_stride: strides.0 as u64,
            value_head_stride: strides.1 as u64,
            key_token_stride: 0,
            value_token_stride: 0,
            int8: if s.key == Form::Int8 { &*int8 } else { null() },
        };
        Host { layout, int8, key: cache.key.as_mut_ptr().cast(), value: cache.value.as_mut_ptr().cast() }
    }
}

/// Runs calls on a cache, and returns what they return.
fn with_host<T>(cache: &mut MnnCache, calls: impl FnOnce(&mut Host) -> T) -> T {
    let mut sums = [Vec::new(), Vec::new()];
    let result = calls(&mut Host::new(cache, &mut sums));
    let [key_sum, value_sum] = sums.map(|sums| sums.iter().flat_map(|x| x.to_le_bytes()).collect());
    (cache.key_sum, cache.value_sum) = (key_sum, value_sum);
    result
}

fn last_error() -> String {
    // SAFETY: a string of this thread.
    unsafe { CStr::from_ptr(mnnkv_last_error()) }.to_str().unwrap().into()
}

fn accepted(status: mnnkv_status) {
    assert_eq!(status, 0, "{}", last_error());
}

#[test]
fn the_c_functions_evict_a_golden_and_carry_it_to_another_unit() {
    for golden in goldens() {
        let mut cache = golden.before.clone();
        let pairs: Vec<i32> = golden.pairs.iter().flat_map(|&(offset, len)| [offset as i32, len as i32]).collect();
        let (s, n) = (cache.shape, cache.n as u32);
        let cap = s.heads * (cache.n * s.dims * 4 + 8 * s.dims);
        let (mut key_rows, mut value_rows) = (vec![0u8; cap], vec![0u8; cap]);
        let mut kept = 0;
        // SAFETY: all buffers are live and as long as stated.
        with_host(&mut cache, |Host { layout, key, value, .. }| unsafe {
            let (keys, values) = (key_rows.as_mut_ptr().cast(), value_rows.as_mut_ptr().cast());
            accepted(mnnkv_kv_gather(layout, *key, *value, 0, n, keys, values, cap));
            accepted(mnnkv_kv_compact(layout, *key, *value, 0, pairs.as_ptr(), pairs.len() / 2, n, &mut kept));
        });
        cache.n = kept as usize;
        live_bytes_equal(&cache, &golden.after, golden.tolerance()).unwrap_or_else(|e| panic!("{}: {e}", golden.name));

        let mut other = MnnCache::new(Shape { unit: Unit { l: 4, h: 32 }, pack: (1, 16), ..s });
        let row = |kind, extra| match kind {
            Form::Float => s.dims * s.elem,
            Form::Int8 => s.dims + extra,
            tq => s.record(tq),
        };
        let scales = if s.value == Form::Int8 { 8 * s.dims * s.heads } else { 0 };
        let len = s.heads * golden.before.n * row(s.key, 12);
        let len = len.max(s.heads * golden.before.n * row(s.value, 0) + scales);
        // SAFETY: as above.
        with_host(&mut other, |Host { layout, key, value, .. }| unsafe {
            let (keys, values) = (key_rows.as_ptr().cast(), value_rows.as_ptr().cast());
            accepted(mnnkv_kv_scatter(layout, keys, values, len, 0, n, *key, *value));
            accepted(mnnkv_kv_changed(layout, *key, *value, 0, n, n));
            accepted(mnnkv_kv_appended(layout, *key, *value, 0, n));
        });
        other.n = golden.before.n;
        let mut model = MnnCache::new(other.shape);
        model.take(&golden.before);
        live_bytes_equal(&other, &model, 0.0).unwrap_or_else(|e| panic!("{}: {e}", golden.name));
    }
}

#[test]
fn pairs_and_outputs_inside_the_cache_are_refused_by_name() {
    let mut cache = MnnCache::new(shape(10, 64, Unit { l: 4, h: 8 }));
    cache.append(&[0.5; 3 * 64], &[0.25; 3 * 64]);
    let before = cache.clone();
    let refused = |status: mnnkv_status, words: &str| {
        assert_eq!(status, 1, "{words}");
        assert!(last_error().starts_with(words), "{}", last_error());
    };
    with_host(&mut cache, |Host { layout, int8, key, value }| {
        let (pairs, mut len, mut bytes) = ([0, 1], 7, 7);
        // SAFETY: all buffers are live and as long as stated.
        unsafe {
            let compact =
                |pairs: *const i32, len: *mut u32| mnnkv_kv_compact(&*layout, *key, *value, 0, pairs, 1, 3, len);
            refused(compact(key.cast(), &mut len), "reserve_pairs and key overlap");
            refused(compact(int8.key_sum.cast(), &mut len), "reserve_pairs and layout->int8->key_sum overlap");
            refused(compact(pairs.as_ptr(), int8.value_sum.cast()), "new_len and layout->int8->value_sum overlap");
            let release = mnnkv_kv_release(&*layout, *key, *value, 0, 3, value.cast());
            refused(release, "bytes and value overlap");
            layout.struct_size = 76;
            // Half of the pointer.
            assert_eq!(mnnkv_kv_release(&*layout, *key, *value, 0, 3, &mut bytes), 4);
        }
        assert_eq!((len, bytes), (7, 7));
    });
    assert!(cache.key == before.key && cache.value == before.value && cache.value_sum == before.value_sum);
}

#[test]
fn arrays_that_are_missing_short_unaligned_or_shared_are_refused_by_name() {
    type Change = fn(&mut Host);
    let changes: [(Change, &str); 11] = [
        (|host| host.layout.int8 = null(), "layout->int8 is NULL"),
        (|host| host.layout.struct_size = 72, "layout->int8 is NULL"),
        (|host| host.int8.struct_size = 8, "struct_size is 8"),
        (|host| host.int8.key_sum = null_mut(), "layout->int8->key_sum is NULL; 512 bytes expected"),
        (|host| host.int8.value_sum = null_mut(), "layout->int8->value_sum is NULL; 512 bytes expected"),
        (|host| host.int8.key_sum_bytes = 508, "layout->int8->key_sum_bytes is 508; 512 expected"),
        (
            |host| host.int8.value_sum_bytes = u64::MAX,
            "layout->int8->value_sum_bytes is 18446744073709551615; 512 expected",
        ),
        (|host| host.int8.key_sum = host.int8.key_sum.cast::<u8>().wrapping_add(1).cast(), "aligned to 4"),
        (|host| host.int8.key_sum = host.int8.value_sum, "layout->int8->key_sum"),
        (|host| host.int8.value_sum = host.value.cast(), "layout->int8->value_sum"),
        (|host| host.layout.value_dtype = 7, "layout->value_dtype is 7"),
    ];
    for (change, words) in changes {
        let mut cache = MnnCache::new(shape(10, 64, Unit { l: 4, h: 8 }));
        cache.append(&[0.5; 3 * 64], &[0.25; 3 * 64]);
        let before = cache.clone();
        with_host(&mut cache, |host| {
            change(host);
            // SAFETY: every change is refused before memory is read.
            let status = unsafe { mnnkv_kv_changed(&host.layout, host.key, host.value, 1, 2, 1) };
            assert_ne!(status, 0, "{words}");
        });
        assert!(last_error().contains(words), "{words}: {}", last_error());
        assert!(cache.key == before.key && cache.value == before.value && cache.value_sum == before.value_sum);
    }
}
