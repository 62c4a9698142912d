//! What was measured of each item and method, kept in a file so that a later run goes on where an earlier one ended.

use super::{Item, Method};
use crate::error::{Error, Result};
use crate::llama::Shape;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use xxhash_rust::xxh3::Xxh3;
use zerocopy::IntoBytes;

/// One item with one method.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Sample {
    /// The mean loss of the scored tokens, in nats.
    pub(super) loss: f64,
    /// Every scored token is the model's first choice.
    pub(super) exact: bool,
    /// Tokens that the model goes on with before the first scored token, if they were decoded.
    pub(super) generated: Vec<u32>,
    /// Steps behind the prompt.
    pub(super) steps: u64,
    /// Seconds of all steps; items that ran side by side share them.
    pub(super) seconds: f64,
    /// Seconds inside the session, behind the prompt.
    pub(super) library_seconds: f64,
    /// Calls of the layers that tokens are evicted from.
    pub(super) calls: u64,
    /// Tokens in their caches, and the chat's, summed over calls.
    pub(super) resident: u64,
    pub(super) logical: u64,
    /// The largest excess over the budget, in tokens, of a method that evicts.
    pub(super) over: Option<i64>,
    /// Those of the session that were measured.
    pub(super) metrics: BTreeMap<String, f64>,
}

/// A line of the file.
#[derive(Serialize, Deserialize)]
struct Line {
    key: String,
    /// For people.
    item: String,
    method: String,
    sample: Sample,
}

/// All samples by key, and the file that gets them.
pub(super) struct Samples {
    known: Mutex<(HashMap<String, Sample>, Option<File>)>,
    /// Of the file, for errors.
    path: PathBuf,
    /// What all keys depend on: the program, the model, tokens to generate.
    salt: Vec<u8>,
    /// Of the model.
    shape: Shape,
}

impl Samples {
    /// Reads the file if one is given. Lines that are not whole are passed over: the last of a run that was ended.
    pub(super) fn open(path: Option<&Path>, salt: Vec<u8>, shape: Shape) -> Result<Samples> {
        let mut known = HashMap::new();
        let Some(path) = path else {
            return Ok(Samples { known: Mutex::new((known, None)), path: PathBuf::new(), salt, shape });
        };
        let fail = |e: std::io::Error| Error::new(path.display(), format!("cannot be read or written: {e}"));
        let mut file = OpenOptions::new().create(true).read(true).append(true).open(path).map_err(fail)?;
        let mut whole = true;
        for bytes in BufReader::new(&file).split(b'\n') {
            let line = serde_json::from_slice::<Line>(&bytes.map_err(fail)?).ok();
            whole = line.is_some();
            known.extend(line.map(|line| (line.key, line.sample)));
        }
        if !whole {
            file.write_all(b"\n").map_err(fail)?;
        }
        Ok(Samples { known: Mutex::new((known, Some(file))), path: path.into(), salt, shape })
    }

    /// All that a sample depends on.
    fn key(&self, item: &Item, method: &Method, ratio: f64) -> String {
        let mut sum = Xxh3::new();
        sum.update(&self.salt);
        sum.update(item.tokens.as_bytes());
        let places: Vec<u64> = [item.question_from].iter().chain(&item.scored).map(|at| *at as u64).collect();
        sum.update(places.as_bytes());
        // A method that evicts nothing is the same for every ratio.
        let config = method.config(ratio, item.question_from, &self.shape);
        sum.update(format!("{} {:?} {:?}", method.evicts(), method.keys, config).as_bytes());
        format!("{:032x}", sum.digest128())
    }

    pub(super) fn find(&self, item: &Item, method: &Method, ratio: f64) -> Option<Sample> {
        let known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        known.0.get(&self.key(item, method, ratio)).cloned()
    }

    pub(super) fn keep(&self, item: &Item, method: &Method, ratio: f64, sample: Sample) -> Result<()> {
        let key = self.key(item, method, ratio);
        let mut known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(file) = &mut known.1 {
            let line =
                Line { key: key.clone(), item: item.id.clone(), method: method.name.clone(), sample: sample.clone() };
            let text = serde_json::to_string(&line).map_err(|e| Error::new("a result", e))? + "\n";
            file.write_all(text.as_bytes())
                .map_err(|e| Error::new(self.path.display(), format!("cannot be written: {e}")))?;
        }
        known.0.insert(key, sample);
        Ok(())
    }
}
