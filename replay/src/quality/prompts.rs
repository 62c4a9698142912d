//! Prompts that were run, kept in files for later runs.

use super::chat::Chat;
use crate::error::{Error, Result};
use crate::llama::{Model, Shape};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::SystemTime;
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_128};
use zerocopy::IntoBytes;

/// Of the files; another one makes older files useless.
const VERSION: &[u8] = b"mnnkv prompt 2";
const ENDING: &str = "prompt";
/// Of a file that is being written, or that a killed run has left.
const UNFINISHED: &str = "unfinished";

/// The input of one layer's attention for a prompt.
pub(super) struct Rows {
    pub(super) query: Vec<f32>,
    pub(super) key: Vec<f32>,
    pub(super) value: Vec<f32>,
}

/// What a prompt leaves, the same for all methods.
pub(super) struct Prompt {
    /// One for each layer.
    pub(super) layers: Vec<Rows>,
    /// The last hidden state of the last token.
    pub(super) state: Vec<f32>,
}

impl Prompt {
    /// Runs a prompt over the whole cache.
    pub(super) fn run(model: &Model, tokens: &[u32]) -> mnnkv::status::Result<Prompt> {
        let shape = model.shape();
        let mut chat = Chat::new(shape, "{}", tokens.len(), shape.layers, 1.0)?;
        let mut layers = Vec::with_capacity(shape.layers);
        let positions: Vec<usize> = (0..tokens.len()).collect();
        let states = model.forward(tokens, &positions, |layer, rows, output| {
            layers.push(Rows { query: rows.query.to_vec(), key: rows.key.to_vec(), value: rows.value.to_vec() });
            chat.step(layer, rows, Some(output))
        })?;
        Ok(Prompt { layers, state: states[states.len() - shape.hidden..].to_vec() })
    }

    /// Zeros of the lengths that a prompt of so many tokens has.
    fn zeros(shape: &Shape, tokens: usize) -> Prompt {
        let kv = tokens * shape.kv_heads * shape.dims;
        let query = tokens * shape.heads * shape.dims;
        let layer = || Rows { query: vec![0.0; query], key: vec![0.0; kv], value: vec![0.0; kv] };
        Prompt { layers: (0..shape.layers).map(|_| layer()).collect(), state: vec![0.0; shape.hidden] }
    }

    fn parts(&self) -> impl Iterator<Item = &[f32]> {
        let layers = self.layers.iter().flat_map(|rows| [&rows.query, &rows.key, &rows.value]);
        layers.chain([&self.state]).map(Vec::as_slice)
    }

    fn parts_mut(&mut self) -> impl Iterator<Item = &mut [f32]> {
        let layers = self.layers.iter_mut().flat_map(|rows| [&mut rows.query, &mut rows.key, &mut rows.value]);
        layers.chain([&mut self.state]).map(Vec::as_mut_slice)
    }

    fn bytes(&self) -> u64 {
        self.parts().map(|part| size_of_val(part) as u64).sum()
    }
}

/// A folder of prompts, of bounded size.
pub(super) struct Prompts {
    folder: PathBuf,
    /// Bytes of all prompts.
    most: u64,
    /// The model's.
    fingerprint: u128,
    /// Files that this run found or wrote; it removes none of them. Locked while files are counted and removed.
    used: Mutex<HashSet<PathBuf>>,
}

impl Prompts {
    /// Makes the folder if it is not there.
    pub(super) fn new(folder: &Path, most: u64, fingerprint: u128) -> Result<Prompts> {
        fs::create_dir_all(folder).map_err(|e| Error::new(folder.display(), format!("cannot be made: {e}")))?;
        Ok(Prompts { folder: folder.into(), most, fingerprint, used: Mutex::default() })
    }

    fn path(&self, tokens: &[u32]) -> PathBuf {
        let mut sum = Xxh3::new();
        sum.update(VERSION);
        sum.update(self.fingerprint.as_bytes());
        sum.update(tokens.as_bytes());
        self.folder.join(format!("{:032x}.{ENDING}", sum.digest128()))
    }

    /// The prompt of earlier runs, or `None` if there is none that is whole.
    pub(super) fn find(&self, shape: &Shape, tokens: &[u32]) -> Option<Prompt> {
        let path = self.path(tokens);
        let mut file = File::open(&path).ok()?;
        let mut prompt = Prompt::zeros(shape, tokens.len());
        let mut sums = Vec::new();
        for part in prompt.parts_mut() {
            file.read_exact(part.as_mut_bytes()).ok()?;
            sums.push(xxh3_64(part.as_bytes()));
        }
        let mut sum = [0; 16];
        file.read_exact(&mut sum).ok()?;
        if sum != xxh3_128(sums.as_bytes()).to_le_bytes() {
            return None;
        }
        // Files that later runs use are the last to go.
        let _ = file.set_modified(SystemTime::now());
        self.used().insert(path);
        Some(prompt)
    }

    fn used(&self) -> MutexGuard<'_, HashSet<PathBuf>> {
        self.used.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Keeps a prompt if there is room. Files of earlier runs are removed for it, the oldest first.
    pub(super) fn keep(&self, tokens: &[u32], prompt: &Prompt) -> Result<()> {
        let fail = |e| Error::new(self.folder.display(), format!("a prompt cannot be kept: {e}"));
        let mut used = self.used();
        if !self.make_room(prompt.bytes() + 16, &used).map_err(fail)? {
            return Ok(());
        }
        let path = self.path(tokens);
        let unfinished = path.with_extension(format!("{}.{UNFINISHED}", std::process::id()));
        let written = write(&unfinished, prompt).and_then(|()| fs::rename(&unfinished, &path));
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        written.map_err(fail)?;
        used.insert(path);
        Ok(())
    }

    /// Whether so many bytes more are within the bound, after files of earlier runs were removed.
    fn make_room(&self, bytes: u64, used: &HashSet<PathBuf>) -> std::io::Result<bool> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let path = entry.path();
            if is_of_cache(&entry.file_name()) {
                // Another run may have removed it.
                let Ok(metadata) = entry.metadata() else { continue };
                files.push((metadata.modified()?, metadata.len(), path));
            }
        }
        files.sort();
        let mut total: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, len, path) in files.into_iter().filter(|(_, _, path)| !used.contains(path)) {
            if total + bytes <= self.most {
                break;
            }
            match fs::remove_file(path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
                _ => total -= len,
            }
        }
        Ok(total + bytes <= self.most)
    }
}

/// Whether a file has a name that `Prompts` gives: a checksum in hexadecimal digits, then the ending.
fn is_of_cache(name: &OsStr) -> bool {
    let parts = name.to_str().and_then(|name| name.split_once('.'));
    parts.is_some_and(|(sum, ending)| {
        let digits = sum.len() == 32 && sum.bytes().all(|digit| digit.is_ascii_hexdigit());
        digits && (ending == ENDING || ending.ends_with(UNFINISHED))
    })
}

fn write(path: &Path, prompt: &Prompt) -> std::io::Result<()> {
    let (mut file, mut sums) = (File::create(path)?, Vec::new());
    for part in prompt.parts() {
        file.write_all(part.as_bytes())?;
        sums.push(xxh3_64(part.as_bytes()));
    }
    file.write_all(&xxh3_128(sums.as_bytes()).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_folder_gives_up_prompts_of_earlier_runs_and_keeps_those_of_its_own() {
        let shape = Shape {
            layers: 2,
            hidden: 3,
            inner: 1,
            heads: 2,
            kv_heads: 1,
            dims: 2,
            vocabulary: 9,
            context: 9,
            epsilon: 0.0,
            theta: 1.0,
            tied: true,
        };
        let folder = std::env::temp_dir().join(format!("mnnkv-prompts-{}", std::process::id()));
        let mut prompt = Prompt::zeros(&shape, 5);
        prompt.parts_mut().flatten().enumerate().for_each(|(at, x)| *x = at as f32);
        let most = 2 * (prompt.bytes() + 16);
        let first = Prompts::new(&folder, most, 7).unwrap();
        for token in 0..3 {
            first.keep(&[token; 5], &prompt).unwrap();
        }
        let found =
            |prompts: &Prompts| (0..3).map(|token| prompts.find(&shape, &[token; 5]).is_some()).collect::<Vec<_>>();
        assert_eq!(found(&first), [true, true, false], "there is room for two");
        assert!(first.find(&shape, &[0; 5]).unwrap().parts().eq(prompt.parts()));
        assert_eq!(found(&Prompts::new(&folder, most, 8).unwrap()), [false; 3], "of another model");

        // The second of a later run is used, so the first gives way. A file of the user stays, and takes no room.
        let foreign = folder.join("system.prompt");
        fs::write(&foreign, vec![0; prompt.bytes() as usize]).unwrap();
        let later = Prompts::new(&folder, most, 7).unwrap();
        assert!(later.find(&shape, &[1; 5]).is_some());
        later.keep(&[2; 5], &prompt).unwrap();
        assert_eq!(found(&later), [false, true, true]);
        assert!(foreign.exists());

        let path = later.path(&[1; 5]);
        let mut bytes = fs::read(&path).unwrap();
        bytes[40] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_eq!(found(&later), [false, false, true], "damaged");
        fs::remove_dir_all(&folder).unwrap();
    }
}
