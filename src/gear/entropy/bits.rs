//! Bit streams that a decoder reads backwards: the first bit written is the last one read.

/// Writes bits to the start of a slice, lowest first.
pub(super) struct BitWriter<'a> {
    /// The part that is not written yet; whole bytes leave it.
    rest: &'a mut [u8],
    room: usize,
    /// The latest bits, the last one on top. `held` of them are not written, or only as part of a byte.
    bits: u64,
    held: u32,
}

impl<'a> BitWriter<'a> {
    /// `out` has eight bytes more than will be written.
    pub(super) fn new(out: &'a mut [u8]) -> Self {
        BitWriter { room: out.len(), rest: out, bits: 0, held: 0 }
    }

    /// Appends the low `count` bits of `value`, which has no others.
    pub(super) fn push(&mut self, value: u64, count: u32) {
        if count > 0 {
            self.push_top(value << (64 - count), count);
        }
    }

    /// Appends the high `count` bits of `value`, 1 to 51. Its low six bits may be anything, others are zero.
    #[inline(always)]
    pub(super) fn push_top(&mut self, value: u64, count: u32) {
        self.bits = self.bits.wrapping_shr(count) | value;
        self.held += count;
        let rest = std::mem::take(&mut self.rest);
        let target = rest.first_chunk_mut().expect("the caller left eight bytes of room");
        *target = self.bits.wrapping_shr(self.held.wrapping_neg()).to_le_bytes();
        self.rest = &mut rest[(self.held >> 3 & 7) as usize..];
        self.held &= 7;
    }

    /// Fills the last byte with zeros; returns the length.
    pub(super) fn finish(self) -> usize {
        self.room - self.rest.len() + (self.held > 0) as usize
    }

    /// Marks the end, where a reader begins; returns the length.
    pub(super) fn finish_backward(mut self) -> usize {
        self.push(1, 1);
        self.finish()
    }
}
