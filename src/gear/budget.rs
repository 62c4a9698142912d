//! A limit on the working memory of a decoder, for any blob.

use crate::status::{Result, bail};
use crate::sys::memory;

/// Bytes that a decoder may hold beside three times its input and output: a ZSTD context, and the needs of small blobs. Of 256 KiB
/// a part is left for the text of an error, which is not counted.
const FIXED_BYTES: usize = 255 << 10;

/// The limit of one call, and the bytes that are held. Every allocation of a decoder goes through it.
pub(super) struct Budget {
    max: Option<usize>,
    limit: usize,
    held: usize,
    was_exceeded: bool,
}

impl Budget {
    /// A budget of `max` bytes, or of the default of [`Budget::allow`], of which `held` are in use.
    pub(super) fn new(max: Option<usize>, held: usize) -> Self {
        Budget { max, limit: max.unwrap_or(0), held, was_exceeded: false }
    }

    /// Sets the default for a blob and words of these lengths.
    pub(super) fn allow(&mut self, blob_len: usize, decoded_len: usize) {
        let given = blob_len.saturating_add(decoded_len);
        self.limit = self.max.unwrap_or(given.saturating_mul(3).saturating_add(FIXED_BYTES));
    }

    /// Counts `bytes` more. OUT_OF_MEMORY: if they exceed the limit.
    pub(super) fn take(&mut self, bytes: usize) -> Result<()> {
        let needed = self.held.saturating_add(bytes);
        if needed > self.limit {
            self.was_exceeded = true;
            bail!(
                OutOfMemory,
                "decoding takes at least {needed} bytes of working memory; the limit is {} (max_working_bytes)",
                self.limit
            );
        }
        self.held = needed;
        Ok(())
    }

    /// Whether an allocation was refused.
    pub(super) fn was_exceeded(&self) -> bool {
        self.was_exceeded
    }

    /// As [`memory::at_least`].
    pub(super) fn at_least<'a, T: Copy + Default>(
        &mut self,
        buffer: &'a mut Vec<T>,
        len: usize,
    ) -> Result<&'a mut [T]> {
        if len > buffer.capacity() {
            self.release(buffer);
            self.take(len.saturating_mul(size_of::<T>()))?;
        }
        memory::at_least(buffer, len)
    }

    /// Frees `buffer`.
    pub(super) fn release<T>(&mut self, buffer: &mut Vec<T>) {
        self.held -= held(buffer).min(self.held);
        *buffer = Vec::new();
    }
}

/// The allocated bytes of `buffer`.
pub(super) fn held<T>(buffer: &Vec<T>) -> usize {
    buffer.capacity() * size_of::<T>()
}
