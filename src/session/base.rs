//! Prefixes that chats share (`kv_memory_base`): a saved chat whose blocks are in memory once for all sessions of the process. A
//! session begins with its tokens. Its own blocks are elsewhere, and a save has all of them.

use super::open::{FoundLayer, OpenedLayer, Source, read_blocks};
use super::{Session, find};
use crate::attend::Blocks;
use crate::file::{Access, ChatFile};
use crate::status::{Result, bail};
use crate::sys::storage::Storage;
use crate::sys::{Mutex, PerProcess, Shared, files, memory};
use std::path::Path;

/// The blocks of a layer, all of them in memory, and the checksums of their heads, `[block][head]`.
pub(super) struct BaseLayer {
    number: u32,
    pub(super) blocks: Shared<Blocks>,
    sums: Vec<u64>,
}

/// A prefix. Its file is open to be read, so that nobody changes it.
struct Base {
    file: ChatFile,
    layers: Vec<BaseLayer>,
}

/// A use of a prefix: the last one frees it.
pub(super) struct BaseUse(Shared<Base>);

/// Those that sessions of the process use.
static BASES: PerProcess<Mutex<Vec<Shared<Base>>>> = PerProcess::new();

impl BaseLayer {
    /// Whether a block is this one: its heads have these checksums.
    pub(super) fn is(&self, block: usize, sums: impl ExactSizeIterator<Item = u64>) -> bool {
        let heads = sums.len();
        self.sums.get(block * heads..(block + 1) * heads).is_some_and(|own| own.iter().copied().eq(sums))
    }
}

impl Drop for BaseUse {
    fn drop(&mut self) {
        if let Some(mut bases) = BASES.get(|| Ok(Mutex::default())).ok().and_then(|bases| bases.lock().ok()) {
            // The list has one, and this is the other.
            bases.retain(|base| !std::ptr::eq(&**base, &*self.0) || base.owners() > 2);
        }
    }
}

impl BaseUse {
    /// The prefix in a file, which is read where no session has it. NOT_FOUND, STALE, CORRUPT: as [`Session::open`].
    fn of(path: &str, fingerprint: &[u8]) -> Result<Self> {
        let bases = BASES.get(|| Ok(Mutex::default()))?;
        let Ok(mut bases) = bases.lock() else { bail!(Internal, "the list of prefixes is out of service") };
        let at = files::absolute(Path::new(path))?;
        let is = |base: &&Shared<Base>| {
            let file = &base.file;
            file.storage().path() == Some(&*at) && file.fingerprint() == fingerprint && file.is_at_path()
        };
        if let Some(base) = bases.iter().find(is) {
            return Ok(BaseUse(base.clone()));
        }
        let file = ChatFile::open(Storage::open(Path::new(path))?, Some(fingerprint), Access::Read)?;
        let mut layers = Vec::new();
        for number in file.layers() {
            let table = file.table(number)?;
            if table.blocks.is_empty() {
                continue;
            }
            let mut sums = Vec::new();
            let from = Source { file: &file, is_own: false, may_leave: false, most: usize::MAX, base: None };
            let blocks = read_blocks(&from, &table, &mut Vec::new(), &mut sums)
                .map_err(|error| error.within(format_args!("layer {number} of {path}")))?;
            memory::push(&mut layers, BaseLayer { number, blocks: Shared::new(blocks)?, sums })?;
        }
        let base = Shared::new(Base { file, layers })?;
        memory::push(&mut bases, base.clone())?;
        Ok(BaseUse(base))
    }

    pub(super) fn file(&self) -> &ChatFile {
        &self.0.file
    }

    pub(super) fn layer(&self, number: u32) -> Option<&BaseLayer> {
        self.0.layers.iter().find(|layer| layer.number == number)
    }

    /// Bytes of its codes.
    pub(super) fn bytes(&self) -> usize {
        self.0.layers.iter().map(|layer| layer.blocks.code_bytes()).sum()
    }
}

impl Session {
    /// Begins with the tokens of a prefix.
    pub(super) fn begin_with(&self, path: &str) -> Result<()> {
        let base = BaseUse::of(path, &self.fingerprint)?;
        let mut state = self.state()?;
        let mut opened: Vec<OpenedLayer> = Vec::new();
        for number in base.file().layers() {
            let layer = find(&mut state.layers, number)?;
            let found = FoundLayer::read(base.file(), number)?;
            let layer = layer.opened((base.file(), found), None, Some(&base), &mut Vec::new());
            memory::push(&mut opened, layer.map_err(|error| error.within(format_args!("layer {number} of {path}")))?)?;
        }
        for from in opened {
            find(&mut state.layers, from.number)?.take_opened(from)?;
        }
        state.base = Some(base);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
