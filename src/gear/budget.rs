//! Working memory that is counted, so that no blob makes a decoder hold more than it may.

use crate::status::{Result, bail};
use crate::sys::memory;

/// What a decoder may hold beside three times what it is given: a ZSTD context, and what small blobs need.
const FIXED_BYTES: usize = 256 << 10;

/// What one call may hold, and what it holds. Every allocation of a decoder goes through it.
pub(super) struct Budget {
    max: Option<usize>,
    limit: usize,
    held: usize,
    was_exceeded: bool,
}

impl Budget {
    /// A budget of `max` bytes, or of what [`Budget::allow`] says, of which `held` are in use.
    pub(super) fn new(max: Option<usize>, held: usize) -> Self {
        Budget { max, limit: max.unwrap_or(0), held, was_exceeded: false }
    }

    /// Says how long the blob and its words are.
    pub(super) fn allow(&mut self, blob_len: usize, decoded_len: usize) {
        let given = blob_len.saturating_add(decoded_len);
        self.limit = self.max.unwrap_or(given.saturating_mul(3).saturating_add(FIXED_BYTES));
    }

    /// Counts `bytes` more; fails when they are too many.
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

    /// How many bytes may still be taken.
    pub(super) fn left(&self) -> usize {
        self.limit.saturating_sub(self.held)
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

/// The bytes that `buffer` holds.
pub(super) fn held<T>(buffer: &Vec<T>) -> usize {
    buffer.capacity() * size_of::<T>()
}
