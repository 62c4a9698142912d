//! Layouts through the C ABI, against the formulas of mnnkv.h.

use super::given::Given;
use super::packing::Packing;
use mnnkv::dtype::Dtype;
use mnnkv::ffi::cache::{mnnkv_layout, mnnkv_layout_check};
use mnnkv::ffi::layout::*;
use mnnkv::ffi::status::MNNKV_OK;
use mnnkv::layout::Spec;

/// The most bytes of a buffer that is made.
const MOST_BYTES: u64 = 1 << 14;

/// Mostly small.
fn number(given: &mut Given<'_>, most: usize) -> u32 {
    if given.byte() < 4 { given.any() } else { given.from(1, most) as u32 }
}

/// Any layout: refused, or a cache whose tokens are where the formulas say through any moves.
pub fn layout(data: &[u8]) {
    let mut given = Given::new(data);
    let stride = |given: &mut Given<'_>| match given.byte() % 8 {
        0 => given.any_long(),
        1 | 2 => 4 * given.below(600) as u64,
        _ => 0,
    };
    let dtype = |given: &mut Given<'_>| if given.byte() < 8 { given.any() } else { given.from(1, 6) as u32 };
    let (mut key_sums, mut value_sums) = (vec![0f32; 4096], vec![0f32; 4096]);
    let int8 = mnnkv_int8 {
        struct_size: size_of::<mnnkv_int8>() as u32,
        l_pack: number(&mut given, 16),
        h_pack: number(&mut given, 16),
        reserved: 0,
        key_sum: key_sums.as_mut_ptr(),
        key_sum_bytes: 4 * key_sums.len() as u64,
        value_sum: value_sums.as_mut_ptr(),
        value_sum_bytes: 4 * value_sums.len() as u64,
    };
    let given_layout = mnnkv_layout {
        struct_size: if given.byte() < 8 { given.below(size_of::<mnnkv_layout>()) } else { size_of::<mnnkv_layout>() }
            as u32,
        key_dtype: dtype(&mut given),
        value_dtype: dtype(&mut given),
        kv_heads: number(&mut given, 4),
        head_dim: number(&mut given, 64),
        e_pack: given.any(),
        l_pack: number(&mut given, 8),
        h_pack: number(&mut given, 16),
        flash_block: number(&mut given, 64),
        max_tokens: number(&mut given, 150),
        key_head_stride: stride(&mut given),
        value_head_stride: stride(&mut given),
        key_token_stride: stride(&mut given),
        value_token_stride: stride(&mut given),
        int8: if given.flag() { &int8 } else { std::ptr::null() },
    };
    let (mut key_bytes, mut value_bytes) = (0, 0);
    // SAFETY: readable and writable as their types say.
    if unsafe { mnnkv_layout_check(&given_layout, &mut key_bytes, &mut value_bytes) } != MNNKV_OK
        || key_bytes > MOST_BYTES
        || value_bytes > MOST_BYTES
    {
        return;
    }
    let mut cache =
        Cache { layout: given_layout, key: vec![0xA5; key_bytes as usize], value: vec![0xA5; value_bytes as usize] };
    let oracle = cache.oracle();
    if let Some(oracle) = &oracle {
        assert_eq!(oracle.bytes(), (cache.key.len(), cache.value.len()));
    }
    for _ in 0..20 {
        if given.is_empty() {
            break;
        }
        cache.change(oracle.as_ref(), &mut given);
    }
}

struct Cache {
    layout: mnnkv_layout,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Cache {
    /// The formulas, of floating-point layouts.
    fn oracle(&self) -> Option<Packing> {
        let kind = |code: u32| Dtype::ALL.into_iter().find(|dtype| *dtype as u32 == code && *dtype != Dtype::Int8);
        let l = &self.layout;
        let spec = Spec {
            key: kind(l.key_dtype)?.into(),
            value: kind(l.value_dtype)?.into(),
            kv_heads: l.kv_heads,
            head_dim: l.head_dim,
            l_pack: l.l_pack,
            h_pack: l.h_pack,
            int8: Default::default(),
            flash_block: l.flash_block,
            max_tokens: l.max_tokens,
            key_head_stride: l.key_head_stride,
            value_head_stride: l.value_head_stride,
            key_token_stride: l.key_token_stride,
            value_token_stride: l.value_token_stride,
        };
        Some(Packing { spec })
    }

    /// The rows of tokens by gather.
    fn rows(&self, begin: u32, count: u32) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut rows = (vec![0; 1 << 15], vec![0; 1 << 15]);
        let (k, v) = (self.key.as_ptr().cast(), self.value.as_ptr().cast());
        let (to_k, to_v) = (rows.0.as_mut_ptr().cast(), rows.1.as_mut_ptr().cast());
        // SAFETY: the buffers are as large as the layout needs, and the outputs as is said.
        let status = unsafe { mnnkv_kv_gather(&self.layout, k, v, begin, count, to_k, to_v, 1 << 15) };
        (status == MNNKV_OK).then_some(rows)
    }

    /// One call, and what it should have led to.
    fn change(&mut self, oracle: Option<&Packing>, given: &mut Given<'_>) {
        let max = self.layout.max_tokens;
        let choice = given.byte();
        let (begin, count) = match choice & 128 {
            0 => {
                let begin = given.below(max as usize) as u32;
                (begin, given.below((max - begin) as usize + 1) as u32)
            }
            _ => (given.any(), given.any()),
        };
        let fits = begin.checked_add(count).is_some_and(|end| end <= max);
        let Some(before) = self.rows(0, max) else { return };
        let (k, v) = (self.key.as_mut_ptr().cast(), self.value.as_mut_ptr().cast());
        let mut number = 0;
        // SAFETY: the buffers are as large as the layout needs, and others as is said.
        let status = unsafe {
            match choice % 4 {
                0 => mnnkv_kv_zero(&self.layout, k, v, begin, count),
                1 => mnnkv_kv_release(&self.layout, k, v, begin, count, &mut number),
                2 => mnnkv_kv_move(&self.layout, k, v, begin, given.below(max as usize) as u32, count),
                _ => {
                    let pairs = [begin as i32, count as i32];
                    mnnkv_kv_compact(&self.layout, k, v, 0, pairs.as_ptr(), 1, max, &mut 0)
                }
            }
        };
        // A move may not fit by its target.
        assert!(fits || status != MNNKV_OK);
        assert!(status == MNNKV_OK || !fits || choice % 4 == 2, "status {status}");
        let after = self.rows(0, max).expect("gathered before");
        if status != MNNKV_OK {
            return assert!(before == after, "a refused call has changed tokens");
        }
        let Some(oracle) = oracle else { return };
        let all: Vec<usize> = (0..max as usize).collect();
        let rows = oracle.rows(&self.key, &self.value, &all);
        assert!(after.0.starts_with(&rows.0) && after.1.starts_with(&rows.1), "gather differs from the formulas");
        let moved: Vec<usize> = (begin as usize..(begin + count) as usize).collect();
        let now = oracle.rows(&self.key, &self.value, &moved);
        match choice % 4 {
            0 | 1 => assert!(now.0.iter().chain(&now.1).all(|byte| *byte == 0)),
            3 => {
                let first: Vec<usize> = (0..moved.len()).collect();
                let tokens = |rows: &[u8], of: &[usize]| -> Vec<u8> {
                    let row = rows.len() / (max as usize * self.layout.kv_heads as usize);
                    let heads = 0..self.layout.kv_heads as usize;
                    heads
                        .flat_map(|h| of.iter().flat_map(move |t| rows[(h * max as usize + t) * row..][..row].to_vec()))
                        .collect()
                };
                let (key_len, value_len) = (rows.0.len(), rows.1.len());
                assert_eq!(tokens(&after.0[..key_len], &first), tokens(&before.0[..key_len], &moved));
                assert_eq!(tokens(&after.1[..value_len], &first), tokens(&before.1[..value_len], &moved));
            }
            _ => {}
        }
        // Gathered tokens can be scattered again, byte for byte.
        if rows.0.len() == rows.1.len() {
            let (len, key, value) = (rows.0.len(), self.key.clone(), self.value.clone());
            let (k, v) = (self.key.as_mut_ptr().cast(), self.value.as_mut_ptr().cast());
            let (from_k, from_v) = (rows.0.as_ptr().cast(), rows.1.as_ptr().cast());
            // SAFETY: as above.
            let status = unsafe { mnnkv_kv_scatter(&self.layout, from_k, from_v, len, 0, max, k, v) };
            assert_eq!(status, MNNKV_OK);
            assert!(self.key == key && self.value == value);
        }
    }
}
