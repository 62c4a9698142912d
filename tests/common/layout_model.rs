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
        let dims = up(self.dims(), lp) * lp;
        (t / hp) * dims * hp + (d / lp) * hp * lp + (t % hp) * lp + d % lp
    }

    pub fn value(&self, t: usize, d: usize) -> usize {
        let (lp, hp, f) = (self.spec.l_pack as usize, self.spec.h_pack as usize, self.spec.flash_block as usize);
        let s1 = up(f, lp) * hp * lp;
        let s0 = s1 * up(self.dims(), hp);
        let u = t % f;
        (t / f) * s0 + (d / hp) * s1 + (u / lp) * hp * lp + (d % hp) * lp + u % lp
    }

    /// Bytes of one head of K and of V.
    pub fn head_bytes(&self) -> (usize, usize) {
        let (lp, hp, f) = (self.spec.l_pack as usize, self.spec.h_pack as usize, self.spec.flash_block as usize);
        let (max, d) = (self.spec.max_tokens as usize, self.dims());
        (
            up(max, hp) * hp * up(d, lp) * lp * self.spec.key_dtype.bytes(),
            up(max, f) * up(d, hp) * hp * up(f, lp) * lp * self.spec.value_dtype.bytes(),
        )
    }

    /// Bytes of K and of V over all heads.
    pub fn bytes(&self) -> (usize, usize) {
        let (k, v) = self.head_bytes();
        let (ks, vs) = self.strides();
        ((self.heads() - 1) * ks + k, (self.heads() - 1) * vs + v)
    }

    fn strides(&self) -> (usize, usize) {
        let (k, v) = self.head_bytes();
        let pick = |given: u64, computed: usize| if given == 0 { computed } else { given as usize };
        (pick(self.spec.key_head_stride, k), pick(self.spec.value_head_stride, v))
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
