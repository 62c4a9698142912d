//! The definition of every kernel, in plain Rust.

/// Byte `i` of every `N`-byte word of `src` goes to lane `i` of `dst`.
pub fn split<const N: usize>(src: &[u8], dst: &mut [u8]) {
    let (words, rest) = src.as_chunks::<N>();
    assert!(rest.is_empty() && dst.len() == src.len(), "whole words and equal lengths");
    if words.is_empty() {
        return;
    }
    for (i, lane) in dst.chunks_exact_mut(words.len()).enumerate() {
        for (byte, word) in lane.iter_mut().zip(words) {
            *byte = word[i];
        }
    }
}

/// The inverse of [`split`].
pub fn merge<const N: usize>(src: &[u8], dst: &mut [u8]) {
    let (words, rest) = dst.as_chunks_mut::<N>();
    assert!(rest.is_empty() && words.len() * N == src.len(), "whole words and equal lengths");
    if words.is_empty() {
        return;
    }
    for (i, lane) in src.chunks_exact(words.len()).enumerate() {
        for (word, byte) in words.iter_mut().zip(lane) {
            word[i] = *byte;
        }
    }
}
