//! A packed cache as MNN's own formulas describe it (docs/format.md), one element at a time. Slow and obvious: the
//! oracle of every layout test.

use mnnkv::layout::Spec;

#[derive(Clone, Copy)]
pub struct Model {
    pub spec: Spec,
}

pub fn up(a: usize, b: usize) -> usize {
    a.div_ceil(b)
}

impl Model {
    pub fn heads(&self) -> usize {
        self.spec.kv_heads as usize
    }

    pub fn dims(&self) -> usize {
        self.spec.head_dim as usize
    }

    pub fn key(&self, t: usize, d: usize) -> usize {
        let (lp, hp) = (self.spec.l_pack as usize, self.spec.h_pack as usize);
        let block = match self.spec.key_token_stride as usize {
            0 => up(self.dims(), lp) * lp * hp,
            apart => apart / self.spec.key_dtype.bytes(),
        };
        (t / hp) * block + (d / lp) * hp * lp + (t % hp) * lp + d % lp
    }

    pub fn value(&self, t: usize, d: usize) -> usize {
        let (lp, hp, f) = (self.spec.l_pack as usize, self.spec.h_pack as usize, self.spec.flash_block as usize);
        let s1 = up(f, lp) * hp * lp;
        let s0 = match self.spec.value_token_stride as usize {
            0 => s1 * up(self.dims(), hp),
            apart => apart / self.spec.value_dtype.bytes(),
        };
        let u = t % f;
        (t / f) * s0 + (d / hp) * s1 + (u / lp) * hp * lp + (d % hp) * lp + u % lp
    }

    /// Bytes of one head of K and of V.
    pub fn head_bytes(&self) -> (usize, usize) {
        let (lp, hp, f) = (self.spec.l_pack as usize, self.spec.h_pack as usize, self.spec.flash_block as usize);
        let (max, d) = (self.spec.max_tokens as usize, self.dims());
        let key_block = up(d, lp) * lp * hp * self.spec.key_dtype.bytes();
        let value_block = up(d, hp) * hp * up(f, lp) * lp * self.spec.value_dtype.bytes();
        let head = |blocks: usize, block: usize, apart: u64| match apart as usize {
            0 => blocks * block,
            apart => (blocks - 1) * apart + block,
        };
        (
            head(up(max, hp), key_block, self.spec.key_token_stride),
            head(up(max, f), value_block, self.spec.value_token_stride),
        )
    }

    /// Bytes of one token of K and of V within a head, where tokens are rows.
    pub fn row_bytes(&self) -> (usize, usize) {
        let one = Spec { max_tokens: 1, key_token_stride: 0, value_token_stride: 0, ..self.spec };
        Model { spec: one }.head_bytes()
    }

    /// Bytes of K and of V over all heads.
    pub fn bytes(&self) -> (usize, usize) {
        let (k, v) = self.head_bytes();
        let (ks, vs) = self.strides();
        ((self.heads() - 1) * ks + k, (self.heads() - 1) * vs + v)
    }

    fn strides(&self) -> (usize, usize) {
        let (k, v) = self.head_bytes();
        let (row_k, row_v) = self.row_bytes();
        // With a token stride the heads of a token lie between it and the next.
        let pick = |given: u64, head: usize, apart: u64, row: usize| match given as usize {
            0 if apart > 0 => row,
            0 => head,
            given => given,
        };
        let Spec { key_head_stride, value_head_stride, key_token_stride, value_token_stride, .. } = self.spec;
        (pick(key_head_stride, k, key_token_stride, row_k), pick(value_head_stride, v, value_token_stride, row_v))
    }

    /// Byte positions of one element of K and of V.
    pub fn at(&self, head: usize, t: usize, d: usize) -> (usize, usize) {
        let (ks, vs) = self.strides();
        (
            head * ks + self.key(t, d) * self.spec.key_dtype.bytes(),
            head * vs + self.value(t, d) * self.spec.value_dtype.bytes(),
        )
    }

    /// K and V of tokens as dense rows `[head][token][dim]`.
    pub fn rows(&self, key: &[u8], value: &[u8], tokens: &[usize]) -> (Vec<u8>, Vec<u8>) {
        let (kb, vb) = (self.spec.key_dtype.bytes(), self.spec.value_dtype.bytes());
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for h in 0..self.heads() {
            for &t in tokens {
                for d in 0..self.dims() {
                    let (k, v) = self.at(h, t, d);
                    keys.extend_from_slice(&key[k..k + kb]);
                    values.extend_from_slice(&value[v..v + vb]);
                }
            }
        }
        (keys, values)
    }

    /// Sets tokens and their padding to zero: padding dims, and the padding lanes of whole value blocks.
    pub fn release(&self, key: &mut [u8], value: &mut [u8], tokens: std::ops::Range<usize>) {
        let (kb, vb) = (self.spec.key_dtype.bytes(), self.spec.value_dtype.bytes());
        let (lp, hp, f) = (self.spec.l_pack as usize, self.spec.h_pack as usize, self.spec.flash_block as usize);
        for h in 0..self.heads() {
            let (k0, v0) = (h * self.strides().0, h * self.strides().1);
            for t in tokens.clone() {
                for d in 0..up(self.dims(), lp) * lp {
                    key[k0 + self.key(t, d) * kb..][..kb].fill(0);
                }
                for d in 0..up(self.dims(), hp) * hp {
                    value[v0 + self.value(t, d) * vb..][..vb].fill(0);
                }
            }
            for block in tokens.start.div_ceil(f)..tokens.end / f {
                let len = up(self.dims(), hp) * hp * up(f, lp) * lp * vb;
                value[v0 + self.value(block * f, 0) * vb..][..len].fill(0);
            }
        }
    }

    /// Writes dense rows to the named tokens.
    pub fn put(&self, key: &mut [u8], value: &mut [u8], tokens: &[usize], keys: &[u8], values: &[u8]) {
        let (kb, vb) = (self.spec.key_dtype.bytes(), self.spec.value_dtype.bytes());
        let mut i = 0;
        for h in 0..self.heads() {
            for &t in tokens {
                for d in 0..self.dims() {
                    let (k, v) = self.at(h, t, d);
                    key[k..k + kb].copy_from_slice(&keys[i * kb..(i + 1) * kb]);
                    value[v..v + vb].copy_from_slice(&values[i * vb..(i + 1) * vb]);
                    i += 1;
                }
            }
        }
    }
}
