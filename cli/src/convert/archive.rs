//! The entries of a zip archive, which PyTorch writes without compression.

use rawzip::{CompressionMethod, FileReader, RECOMMENDED_BUFFER_SIZE, ZipArchive, ZipArchiveEntryWayfinder};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::io::Read;

/// An archive, and its entries by name. Memory is that of the names: counts that the archive announces are not believed.
pub struct Archive {
    zip: ZipArchive<FileReader>,
    entries: BTreeMap<String, Entry>,
}

/// Where an entry is.
struct Entry {
    place: ZipArchiveEntryWayfinder,
    method: CompressionMethod,
}

impl Archive {
    /// Reads the directory of an archive.
    pub fn open(file: File) -> Result<Self, String> {
        let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
        let damaged = |e: &dyn Display| format!("not a PyTorch checkpoint, but a damaged zip archive: {e}");
        let zip = ZipArchive::from_file(file, &mut buffer).map_err(|e| damaged(&e))?;
        let mut entries = BTreeMap::new();
        let mut found = zip.entries(&mut buffer);
        while let Some(entry) = found.next_entry().map_err(|e| damaged(&e))? {
            let name = String::from_utf8_lossy(entry.file_path().as_bytes()).into_owned();
            let place = Entry { place: entry.wayfinder(), method: entry.compression_method() };
            if entries.insert(name.clone(), place).is_some() {
                return Err(damaged(&format_args!("the entry {name} occurs twice")));
            }
        }
        Ok(Archive { zip, entries })
    }

    /// The names of the entries, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Whether there is an entry.
    pub fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// The bytes of an entry, at most `limit`, compared with their checksum.
    pub fn read(&self, name: &str, limit: u64) -> Result<Vec<u8>, String> {
        let failed = |e: &dyn Display| format!("cannot read {name}: {e}");
        let Some(Entry { place, method }) = self.entries.get(name) else {
            return Err(failed(&"the archive has no such entry"));
        };
        if *method != CompressionMethod::STORE {
            return Err(failed(&"it is compressed, which PyTorch never does"));
        }
        let entry = self.zip.get_entry(*place).map_err(|e| failed(&e))?;
        let mut bytes = Vec::new();
        let read = entry.verifying_reader(entry.reader()).take(limit.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|e| failed(&e))?;
        if bytes.len() as u64 > limit {
            return Err(failed(&format_args!("more than {limit} bytes; at most that many expected")));
        }
        Ok(bytes)
    }
}
