//! Packed memory by MNN's formulas (docs/format.md), one element at a time and without `mnnkv::layout`'s arithmetic: the
//! oracle of every test and benchmark.
#![allow(dead_code)]

use mnnkv::dtype::Dtype;
use mnnkv::layout::{Int8Unit, Kind, Spec};
use std::ops::Range;

/// Flash attention's f16 cache, without gaps.
pub fn flash(kv_heads: u32, head_dim: u32, h_pack: u32, max_tokens: u32) -> Spec {
    Spec {
        key: Kind::Float(Dtype::F16),
        value: Kind::Float(Dtype::F16),
        kv_heads,
        head_dim,
        l_pack: 1,
        h_pack,
        int8: Int8Unit::default(),
        flash_block: 64,
        max_tokens,
        key_head_stride: 0,
        value_head_stride: 0,
        key_token_stride: 0,
        value_token_stride: 0,
    }
}

/// K and V rows `[head][token][dim]`, or one number for each.
pub type Both<T> = (T, T);
/// Dense rows of some tokens.
pub type Dense = Both<Vec<u8>>;

/// The places of a cache's elements.
#[derive(Clone, Copy)]
pub struct Packing {
    pub spec: Spec,
}

impl Packing {
    fn heads(&self) -> usize {
        self.spec.kv_heads as usize
    }

    fn dims(&self) -> usize {
        self.spec.head_dim as usize
    }

    /// lP, hP and F.
    fn packs(&self) -> (usize, usize, usize) {
        (self.spec.l_pack as usize, self.spec.h_pack as usize, self.spec.flash_block as usize)
    }

    /// Bytes of an element.
    fn widths(&self) -> Both<usize> {
        (self.spec.key.words().bytes(), self.spec.value.words().bytes())
    }

    /// The index of an element of K within its head: `[max/hP][D/lP][hP][lP]`.
    #[inline(always)]
    pub fn key(&self, t: usize, d: usize) -> usize {
        let (lp, hp, _) = self.packs();
        let block = match self.spec.key_token_stride as usize {
            0 => self.dims().div_ceil(lp) * lp * hp,
            apart => apart / self.widths().0,
        };
        (t / hp) * block + (d / lp) * hp * lp + (t % hp) * lp + d % lp
    }

    /// The index of an element of V within its head: `[max/F][D/hP][F/lP][hP][lP]`.
    #[inline(always)]
    pub fn value(&self, t: usize, d: usize) -> usize {
        let (lp, hp, f) = self.packs();
        let row = f.div_ceil(lp) * hp * lp;
        let block = match self.spec.value_token_stride as usize {
            0 => row * self.dims().div_ceil(hp),
            apart => apart / self.widths().1,
        };
        let u = t % f;
        (t / f) * block + (d / hp) * row + (u / lp) * hp * lp + (d % hp) * lp + u % lp
    }

    /// Bytes of one head.
    pub fn head_bytes(&self) -> Both<usize> {
        let ((lp, hp, f), (kb, vb)) = (self.packs(), self.widths());
        let (max, d) = (self.spec.max_tokens as usize, self.dims());
        let head = |blocks: usize, block: usize, apart: u64| match apart as usize {
            0 => blocks * block,
            apart => (blocks - 1) * apart + block,
        };
        (
            head(max.div_ceil(hp), d.div_ceil(lp) * lp * hp * kb, self.spec.key_token_stride),
            head(max.div_ceil(f), d.div_ceil(hp) * hp * f.div_ceil(lp) * lp * vb, self.spec.value_token_stride),
        )
    }

    /// Bytes of one token within a head, where tokens are rows.
    pub fn row_bytes(&self) -> Both<usize> {
        let one = Spec { max_tokens: 1, key_token_stride: 0, value_token_stride: 0, ..self.spec };
        Packing { spec: one }.head_bytes()
    }

    /// Bytes of all heads.
    pub fn bytes(&self) -> Both<usize> {
        let ((k, v), (ks, vs)) = (self.head_bytes(), self.strides());
        ((self.heads() - 1) * ks + k, (self.heads() - 1) * vs + v)
    }

    /// Bytes from one head to the next.
    pub fn strides(&self) -> Both<usize> {
        let ((k, v), (row_k, row_v)) = (self.head_bytes(), self.row_bytes());
        // With a token stride the heads of a token lie between it and the next.
        let pick = |given: u64, head: usize, apart: u64, row: usize| match given as usize {
            0 if apart > 0 => row,
            0 => head,
            given => given,
        };
        let Spec { key_head_stride, value_head_stride, key_token_stride, value_token_stride, .. } = self.spec;
        (pick(key_head_stride, k, key_token_stride, row_k), pick(value_head_stride, v, value_token_stride, row_v))
    }

    /// Calls `each` with the first byte of every element of these tokens, in the order `[head][token][dim]`.
    pub fn for_each(&self, tokens: &[usize], mut each: impl FnMut(usize, usize)) {
        let ((ks, vs), (kb, vb)) = (self.strides(), self.widths());
        for h in 0..self.heads() {
            for &t in tokens {
                for d in 0..self.dims() {
                    each(h * ks + self.key(t, d) * kb, h * vs + self.value(t, d) * vb);
                }
            }
        }
    }

    /// Dense rows of these tokens.
    pub fn rows(&self, key: &[u8], value: &[u8], tokens: &[usize]) -> Dense {
        let (kb, vb) = self.widths();
        let elements = self.heads() * tokens.len() * self.dims();
        let mut rows = (Vec::with_capacity(elements * kb), Vec::with_capacity(elements * vb));
        self.for_each(tokens, |k, v| {
            rows.0.extend_from_slice(&key[k..k + kb]);
            rows.1.extend_from_slice(&value[v..v + vb]);
        });
        rows
    }

    /// Writes dense rows to these tokens.
    pub fn put(&self, key: &mut [u8], value: &mut [u8], tokens: &[usize], rows: &Dense) {
        let (kb, vb) = self.widths();
        let (mut keys, mut values) = (rows.0.chunks_exact(kb), rows.1.chunks_exact(vb));
        self.for_each(tokens, |k, v| {
            key[k..k + kb].copy_from_slice(keys.next().unwrap());
            value[v..v + vb].copy_from_slice(values.next().unwrap());
        });
        assert!(keys.next().is_none() && values.next().is_none());
    }

    /// Zeroes tokens and their padding: padding dims, and the padding lanes of whole value blocks.
    pub fn release(&self, key: &mut [u8], value: &mut [u8], tokens: Range<usize>) {
        let ((lp, hp, f), (kb, vb), (ks, vs)) = (self.packs(), self.widths(), self.strides());
        for h in 0..self.heads() {
            for t in tokens.clone() {
                for d in 0..self.dims().div_ceil(lp) * lp {
                    key[h * ks + self.key(t, d) * kb..][..kb].fill(0);
                }
                for d in 0..self.dims().div_ceil(hp) * hp {
                    value[h * vs + self.value(t, d) * vb..][..vb].fill(0);
                }
            }
            for block in tokens.start.div_ceil(f)..tokens.end / f {
                let len = self.dims().div_ceil(hp) * hp * f.div_ceil(lp) * lp * vb;
                value[h * vs + self.value(block * f, 0) * vb..][..len].fill(0);
            }
        }
    }
}
