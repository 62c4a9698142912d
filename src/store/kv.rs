//! K and V of one block in one memory region: raw rows, or the two blobs of them.

use crate::status::Result;
use crate::sys::pages::Region;
use xxhash_rust::xxh3::Xxh3;

/// Two byte strings, K's and V's. Dropping them returns their memory to the system.
#[derive(Debug)]
pub(super) struct KvBytes {
    memory: Region,
    key_len: usize,
    len: usize,
}

impl KvBytes {
    /// Zero bytes of these lengths.
    pub(super) fn new(key_len: usize, value_len: usize) -> Result<Self> {
        let len = key_len + value_len;
        Ok(KvBytes { memory: Region::new(len)?, key_len, len })
    }

    /// Takes other lengths; contents are unspecified afterwards.
    pub(super) fn fit(&mut self, key_len: usize, value_len: usize) -> Result<()> {
        let len = key_len + value_len;
        if len > self.memory.len() {
            self.memory = Region::new(len)?;
        }
        (self.key_len, self.len) = (key_len, len);
        Ok(())
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.memory[..self.key_len]
    }

    pub(super) fn value(&self) -> &[u8] {
        &self.memory[self.key_len..self.len]
    }

    pub(super) fn parts_mut(&mut self) -> (&mut [u8], &mut [u8]) {
        self.memory[..self.len].split_at_mut(self.key_len)
    }

    /// Bytes of K and V.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// 128 bits over K, then V. Detects a changed cache and a damaged blob; a block is identified by its ticket, never by
    /// its digest.
    pub(super) fn digest(&self) -> u128 {
        let mut hasher = Xxh3::new();
        hasher.update(self.key());
        hasher.update(self.value());
        hasher.digest128()
    }
}
