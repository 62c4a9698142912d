//! Directories of quantised weights as msmodelslim writes them.
//!
//! A directory has weights (safetensors, one file or parts with an index), a description (a JSON object that tags every
//! tensor), and mostly the model's config.json. Two generations are read: the older one names files after the type of
//! quantisation and has no `version`; the newer one (`"version": "1.0.0"`) has fixed names. [`check_path`] reports all
//! faults, [`Model`] reads.
//!
//! Headers and documents are read at once, tensors in pieces on demand.
//!
//! # Faults, where the format's documents and tools disagree
//!
//! - Every tensor must have an entry in the description, and every entry a tensor: errors. Rotations (`heads_rotation`,
//!   `kronecker_rotation_m`, `_n`), which the format's own tool does not describe, are exempt.
//! - The tag of its weight determines a linear. Other tags on its scales are a warning.
//! - A `weight_offset` in neither description nor files is a warning, and zeros. All other tensors of a quantised
//!   linear are required.
//! - Offsets are integers from -128 to 127. A fraction is a warning, and is used unchanged; a number outside is an
//!   error. A KV offset other than 0 is a warning, since runtimes disagree about it.
//! - KV tensors under names from old documents or with a misspelling of an example (`kv_offset`, `kv_scale_offset`,
//!   `kv_cacahe_scale`) are read, with a warning. A missing KV offset is a warning, and zeros; a missing scale is an
//!   error. Tags of KV tensors are ignored.
//! - KV scales have KV heads times head_dim elements according to config.json, or else the rows of the K or V
//!   projection; or there is one scale for all.
//! - `group_size` may be a number in a string (warning). The shapes of scales determine the groups; another
//!   `group_size` is an error, and one without any groups a warning.
//! - A `weight_offset` other than 0 of a W8A8 or W8A8S weight is a warning: it is ignored.
//! - JSON is read strictly: comments and trailing commas are errors. A repeated key is a warning if both values are
//!   equal, else an error.
//! - `deq_scale` in the NPU's own form is read, with a warning; other bits above the number are an error.
//! - Unsupported types of quantisation (4 bits, MX formats, compressed ones) are listed, with a warning; a word that
//!   the format does not have is an error. A `kv_cache_type` other than C8 is an error.
//! - File names from the index must be plain names of files in the directory. Hidden files are ignored.

mod check;
mod config;
mod dequantize;
mod description;
mod files;
mod finding;
mod float_model;
mod folder;
mod int8_linear;
mod layers;
mod model;
mod packed_scale;
pub mod quantize;
mod smooth_norm;
mod survey;
mod tags;

pub use description::Description;
pub use finding::{CheckReport, Finding, FindingKind, Severity};
pub use float_model::FloatTensor;
pub use folder::{DiskFolder, Folder, MemoryFolder, OpenFile};
pub use int8_linear::{accumulate, quantize_input};
pub use layers::{Granularity, KvLayer, KvSide, Norm, QuantizedLinear};
pub use model::{Model, check_folder, check_path};
pub use packed_scale::{PackedScale, pack};
pub use smooth_norm::{NormParameters, NormUse};
pub use tags::Tag;
