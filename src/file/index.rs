//! The index of a commit: where the tables of its layers and its sections are.

use super::Extent;
use crate::bytes::{Reader, push_number};
use crate::status::{Result, bail};
use crate::sys::memory;

/// What a commit has.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// The number of the commit, from 0 on.
    pub(super) sequence: u64,
    /// Bytes that the session has kept for working memory.
    pub(super) working: u64,
    /// The tables of layers, ascending.
    pub(super) layers: Vec<(u32, Extent)>,
    /// The bytes of sections by their names, ascending.
    pub(super) sections: Vec<(String, Extent)>,
}

impl Index {
    pub(super) fn write(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        push_number(&mut out, self.sequence)?;
        push_number(&mut out, self.working)?;
        push_number(&mut out, self.layers.len() as u64)?;
        for (layer, at) in &self.layers {
            push_number(&mut out, (*layer).into())?;
            at.put(&mut out)?;
        }
        push_number(&mut out, self.sections.len() as u64)?;
        for (name, at) in &self.sections {
            push_number(&mut out, name.len() as u64)?;
            memory::extend(&mut out, name.as_bytes())?;
            at.put(&mut out)?;
        }
        Ok(out)
    }

    pub(super) fn read(bytes: &[u8], sequence: u64) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        let mut index = Index { sequence: reader.number("the commit")?, ..Index::default() };
        if index.sequence != sequence {
            bail!(Corrupt, "it is of commit {}; {sequence} expected", index.sequence);
        }
        index.working = reader.number("working memory")?;
        for _ in 0..reader.small("the layers")? {
            let layer = reader.small("a layer")?;
            if index.layers.last().is_some_and(|(last, _)| *last >= layer) {
                bail!(Corrupt, "layers do not ascend");
            }
            memory::push(&mut index.layers, (layer, Extent::get(&mut reader, "a layer")?))?;
        }
        for _ in 0..reader.small("the sections")? {
            let len = reader.number("the name of a section")?;
            let name = std::str::from_utf8(reader.take(len, "the name of a section")?);
            let Some(name) = name.ok().filter(|name| check_name(name).is_ok()) else {
                bail!(Corrupt, "the name of a section is not 1 to 255 bytes of UTF-8");
            };
            if index.sections.last().is_some_and(|(last, _)| last.as_str() >= name) {
                bail!(Corrupt, "sections do not ascend");
            }
            memory::push(&mut index.sections, (memory::text(name)?, Extent::get(&mut reader, "a section")?))?;
        }
        reader.end("the index")?;
        Ok(index)
    }

    /// Where the table of a layer is.
    pub(super) fn layer(&self, number: u32) -> Option<&Extent> {
        let found = self.layers.binary_search_by_key(&number, |(layer, _)| *layer).ok()?;
        Some(&self.layers[found].1)
    }

    /// Where a section is.
    pub(super) fn section(&self, name: &str) -> Option<&Extent> {
        let found = self.sections.binary_search_by(|(found, _)| found.as_str().cmp(name)).ok()?;
        Some(&self.sections[found].1)
    }

    pub(super) fn places(&self) -> impl Iterator<Item = &Extent> {
        self.layers.iter().map(|(_, at)| at).chain(self.sections.iter().map(|(_, at)| at))
    }
}

/// INVALID_ARGUMENT: if no section can have this name.
pub fn check_name(name: &str) -> Result<()> {
    if !(1..=255).contains(&name.len()) {
        bail!(InvalidArgument, "the name of a section has {} bytes; 1 to 255 allowed", name.len());
    }
    Ok(())
}
