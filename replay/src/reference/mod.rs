//! The offline evaluator of the reference system, to the byte: dump folders in, its result (`schema_version` 3) out.
//!
//! By default its mistakes are mended, and the result lists under `mended` where its answer would have been another.
//! [`Options::faithful`] makes them again.
//!
//! | part | job |
//! |---|---|
//! | `options` | the flags, by name |
//! | `select` | metas to units of work: entries, or groups of them |
//! | `planes` | words to byte planes, predictors, bit shuffle: slices to slices |
//! | `stream` | a plane to compressed bytes |
//! | `result` | sums to JSON |
//! | `layers` | entropies and ratios of each layer and head |

mod layers;
mod options;
mod planes;
mod result;
mod select;
mod stream;

pub use layers::{Profile, Row, profile};
pub use options::{CodecMode, EntryMode, Options, Predictor, Scope, Stage};
pub use result::python_json;

use crate::dumps::folder::{Binary, Entry, f32_to_f16};
use crate::error::{Error, Finding};
use options::Lists;
use planes::Planes;
use rayon::prelude::*;
use result::{Sums, TensorSums};
use select::{Selection, Unit};
use serde_json::{Map, Value};
use std::fmt;
use std::path::Path;
use stream::Shape;

/// An evaluation that gives no result. The reference system exits with 1 and this text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Refused(error.to_string())
    }
}

/// A result, and the metas that it leaves out.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// The keys of the reference system in its order, and `mended` where there is something to list.
    pub result: Map<String, Value>,
    /// One for each skipped meta.
    pub skipped: Vec<Finding>,
    /// `mended` of the result.
    pub mended: Vec<Finding>,
}

/// K or V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tensor {
    Key,
    Value,
}

impl Tensor {
    fn file(self, entry: &Entry) -> &Binary {
        match self {
            Tensor::Key => &entry.key,
            Tensor::Value => &entry.value,
        }
    }
}

/// Evaluates the dumps below `root`.
pub fn evaluate(root: &Path, options: &Options) -> Result<Evaluation, Refused> {
    let predictors = options.check()?;
    let [of_key, of_value] = &predictors;
    let mut selection = select::select(root, options)?;
    let both = |unit| [(unit, Tensor::Key, of_key), (unit, Tensor::Value, of_value)];
    let tasks: Vec<(&Unit, Tensor, &Lists)> = selection.units.iter().flat_map(both).collect();
    let sizes = tasks.par_iter().map(|(unit, tensor, lists)| measure(unit, *tensor, &selection, lists, options));
    let mut sums = Sums::default();
    let mut overflows = Vec::new();
    for ((_, tensor, _), measured) in tasks.iter().zip(sizes.collect::<Vec<_>>()) {
        let (size, found) = measured?;
        overflows.extend(found);
        match tensor {
            Tensor::Key => sums.key.add(&size),
            Tensor::Value => sums.value.add(&size),
        }
    }
    if sums.key.raw == 0 && !options.faithful {
        return Err(selection.nothing("nothing could be compressed"));
    }
    if !options.faithful {
        selection.mended.extend(overflows);
    }
    let result = result::build(root, options, &predictors, &selection, &sums);
    Ok(Evaluation { result, skipped: selection.skipped, mended: selection.mended })
}

/// Measures K or V of a unit. The findings are words that became infinite.
fn measure(
    unit: &Unit,
    tensor: Tensor,
    selection: &Selection,
    predictors: &Lists,
    options: &Options,
) -> Result<(TensorSums, Vec<Finding>), Refused> {
    let entries = || unit.entries.iter().map(|i| &selection.entries[*i]);
    let first = &selection.entries[unit.entries[0]];
    let shape = Shape { row: first.kv_heads * first.head_dim, dim: first.head_dim };
    let mut planes = Planes::default();
    planes.reserve(entries().map(|entry| entry.seq_len).sum::<usize>() * shape.row).map_err(Refused)?;
    let mut findings = Vec::new();
    for entry in entries() {
        let file = tensor.file(entry);
        let mut words = entry.load(file)?;
        if entry.bytes_per_elem == 4 {
            let (rounded, overflows) = f32_to_f16(&words);
            words = rounded;
            if overflows > 0 {
                let text = format!("{overflows} words became infinite; the ratio is of words rounded to f16");
                findings.push(Finding::new("f16_overflow", file.path.display(), text));
            }
        }
        planes.append(&words);
    }
    Ok((stream::tensor(&planes, shape, unit.entries.len(), predictors, options), findings))
}
