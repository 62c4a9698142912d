//! Words to planes and back: plane i has byte i of every word.
//!
//! bf16 and f32 words are first turned left by one bit, so that the exponent fills the last byte and the sign begins the
//! first.

use crate::arch;
use crate::dtype::Dtype;

/// Splits `words` to `planes`, which is as long. `turned` is working memory of the same length.
pub(super) fn split(dtype: Dtype, words: &[u8], turned: &mut [u8], planes: &mut [u8]) {
    let k = arch::kernels();
    match dtype {
        Dtype::Int8 => planes.copy_from_slice(words),
        Dtype::F16 => (k.split2)(words, planes),
        Dtype::Bf16 => {
            turned.copy_from_slice(words);
            (k.turn2)(turned);
            (k.split2)(turned, planes);
        }
        Dtype::F32 => {
            turned.copy_from_slice(words);
            (k.turn4)(turned);
            (k.split4)(turned, planes);
        }
    }
}

/// The inverse of [`split`], from planes that lie apart.
pub(super) fn join(dtype: Dtype, planes: &[&[u8]; 4], words: &mut [u8]) {
    let k = arch::kernels();
    match dtype {
        Dtype::Int8 => words.copy_from_slice(planes[0]),
        Dtype::F16 | Dtype::Bf16 => (k.join2)(&[planes[0], planes[1]], words),
        Dtype::F32 => (k.join4)(planes, words),
    }
    match dtype {
        Dtype::Int8 | Dtype::F16 => {}
        Dtype::Bf16 => (k.unturn2)(words),
        Dtype::F32 => (k.unturn4)(words),
    }
}
