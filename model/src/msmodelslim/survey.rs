//! Finds the files of a directory and reads their documents and headers.

use super::config::{self, AttentionConfig};
use super::description::{Description, last_of_each, report_repeated};
use super::files::{Files, WeightFile};
use super::finding::{FindingKind, Findings, Severity};
use super::folder::{Folder, is_plain};
use crate::names::{Joined, Name, NameSet, is_strange};
use crate::safetensors::{self, Fault};
use mnnkv::json::Json;
use mnnkv::status::{Result, Status};
use mnnkv::sys::memory;

/// The largest JSON document in bytes. A description has about 100 bytes per tensor.
const MAX_JSON: u64 = 64 << 20;

const DESCRIPTION: &str = "quant_model_description.json";
const LEGACY_DESCRIPTION: &str = "quant_model_description_";
const INDEX: &str = ".safetensors.index.json";
const WEIGHTS: &str = ".safetensors";

/// The files of a directory, and all findings about them.
#[derive(Default)]
pub(super) struct Survey {
    pub(super) description: Option<Description>,
    pub(super) config: AttentionConfig,
    pub(super) files: Files,
    /// Tensors of missing or unreadable files: reported already.
    pub(super) lost: NameSet,
    /// Whether a lost file had unknown tensors: missing tensors are then not reported.
    pub(super) blind: bool,
    /// Tensors in several files.
    repeated: NameSet,
    pub(super) findings: Findings,
}

/// Reads every file. An unreadable file is a finding; the only error is OUT_OF_MEMORY.
pub(super) fn survey(folder: &dyn Folder) -> Result<Survey> {
    let mut survey = Survey::default();
    let mut names = match folder.names() {
        Ok(names) => names,
        Err(e) => {
            survey.findings.unreadable("", "", e)?;
            return Ok(survey);
        }
    };
    names.retain(|name| !name.starts_with('.'));
    let text = match names.iter().any(|name| name == "config.json") {
        true => survey.document(folder, "config.json", Severity::Warning)?,
        false => None,
    };
    let json = survey.json(text.as_deref(), "config.json", Severity::Warning)?;
    if let Some(json) = &json {
        survey.config = AttentionConfig::read(json)?;
    }
    survey.find_description(folder, &names, json.as_ref().and_then(config::description))?;
    survey.find_weights(folder, &names)?;
    survey.lost.sort();
    Ok(survey)
}

impl Survey {
    /// The text of a document; `None` with a finding of this severity if it cannot be read.
    fn document(&mut self, folder: &dyn Folder, file: &str, severity: Severity) -> Result<Option<Vec<u8>>> {
        let read = folder.open(file).and_then(|source| match source.len() {
            len @ 0..=MAX_JSON => source.read_vec(0, len).map(Ok),
            len => Ok(Err(len)),
        });
        match read {
            Ok(Ok(text)) => Ok(Some(text)),
            Ok(Err(len)) => {
                let text = format_args!("the document has {len} bytes; at most {MAX_JSON} allowed");
                self.findings.add(severity, FindingKind::JsonShape, "", file, text)?.status = Status::Corrupt;
                Ok(None)
            }
            Err(e) => {
                let e = e.unless_out_of_memory()?;
                let message = e.message();
                let text = format_args!("{message}");
                self.findings.add(severity, FindingKind::Unreadable, "", file, text)?.status = e.status();
                Ok(None)
            }
        }
    }

    /// A document as a tree; `None` with a finding of this severity if it is no JSON.
    fn json<'a>(&mut self, text: Option<&'a [u8]>, file: &str, severity: Severity) -> Result<Option<Json<'a>>> {
        match text.map(Json::without_lists).transpose() {
            Ok(json) => Ok(json),
            Err(e) => {
                let e = e.unless_out_of_memory()?;
                self.findings.add(severity, FindingKind::JsonSyntax, "", file, format_args!("{}", e.message()))?;
                Ok(None)
            }
        }
    }

    /// `embedded` is a description inside config.json.
    fn find_description(&mut self, folder: &dyn Folder, names: &[String], embedded: Option<&Json>) -> Result<()> {
        let is_legacy = |name: &&str| name.starts_with(LEGACY_DESCRIPTION) && name.ends_with(".json");
        let legacy = memory::collect(names.iter().map(String::as_str).filter(is_legacy))?;
        let has = |name: &str| names.iter().any(|other| other == name);
        let named = match self.config.quantize.as_deref() {
            Some(quantize) => {
                let file = memory::format(format_args!("{LEGACY_DESCRIPTION}{quantize}.json"))?;
                let general = memory::format(format_args!("{LEGACY_DESCRIPTION}w8a8.json"))?;
                let falls_back = matches!(quantize, "w8a8_dynamic" | "w8a8_pdmix") && has(&general);
                if has(&file) { Some(file) } else { falls_back.then_some(general) }
            }
            None => None,
        };
        let file = if has(DESCRIPTION) {
            if !legacy.is_empty() {
                let others = Joined(&legacy, ", ");
                let text = format_args!("{DESCRIPTION} is read; {others} too could be the description");
                self.findings.warn(FindingKind::Ambiguous, "", "", text)?;
            }
            DESCRIPTION
        } else if let Some(file) = &named {
            file
        } else if let [file] = *legacy.as_slice() {
            file
        } else if !legacy.is_empty() {
            let all = Joined(&legacy, ", ");
            let text = format_args!("{all} could each be the description; one expected");
            self.findings.error(FindingKind::Ambiguous, "", "", text)?;
            return Ok(());
        } else if let Some(json) = embedded {
            self.description = Description::read(json, "config.json", &mut self.findings)?;
            return Ok(());
        } else {
            let text = format_args!("there is neither {DESCRIPTION} nor {LEGACY_DESCRIPTION}<type>.json");
            self.findings.error(FindingKind::MissingDescription, "", "", text)?;
            return Ok(());
        };
        let text = self.document(folder, file, Severity::Error)?;
        if let Some(json) = self.json(text.as_deref(), file, Severity::Error)? {
            self.description = Description::read(&json, file, &mut self.findings)?;
        }
        Ok(())
    }

    fn find_weights(&mut self, folder: &dyn Folder, names: &[String]) -> Result<()> {
        let with_end = |end: &'static str| names.iter().map(String::as_str).filter(move |name| name.ends_with(end));
        let mut weights = memory::collect(with_end(WEIGHTS))?;
        weights.sort_unstable();
        weights.dedup();
        let indices = memory::collect(with_end(INDEX))?;
        match *indices.as_slice() {
            [] => {
                if weights.is_empty() {
                    let text = format_args!("there is no file whose name ends in {WEIGHTS}");
                    self.findings.error(FindingKind::MissingWeights, "", "", text)?;
                }
                self.open_all(folder, &weights)?;
                self.report_absent_parts(names)
            }
            [index] => self.read_index(folder, index, &weights),
            _ => {
                let all = Joined(&indices, ", ");
                let text = format_args!("{all} could each be the index; one expected");
                self.findings.error(FindingKind::Ambiguous, "", "", text)?;
                self.blind = true;
                Ok(())
            }
        }
    }

    /// Without an index the names of the parts state their number.
    fn report_absent_parts(&mut self, names: &[String]) -> Result<()> {
        let mut parts = memory::collect(names.iter().filter_map(|name| part_name(name)))?;
        parts.sort_unstable();
        parts.dedup();
        for present in parts.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            let (stem, of, _) = present[0];
            let text = format_args!("there is no index {stem}{INDEX} for the {of} parts {stem}-*{WEIGHTS}");
            let count = present.len();
            if count as u64 == of {
                self.findings.warn(FindingKind::IndexIncomplete, "", "", text)?;
            } else {
                let text = format_args!("{text}, and only {count} of them are there");
                self.findings.error(FindingKind::MissingShard, "", "", text)?;
                self.blind = true;
            }
        }
        Ok(())
    }

    /// Opens the weight files and locates each tensor.
    fn open_all(&mut self, folder: &dyn Folder, names: &[&str]) -> Result<()> {
        for name in names {
            self.open_weights(folder, name)?;
        }
        let (files, findings, repeated) = (&mut self.files, &mut self.findings, &mut self.repeated);
        files.find_places(|again, first| {
            let (tensor, file) = (&again.tensor.name, &again.file.name);
            let text = format_args!("tensor {tensor} is in {} and in {file}", first.file.name);
            findings.error(FindingKind::DuplicateTensor, tensor, file, text)?;
            repeated.add(tensor)
        })?;
        self.repeated.sort();
        self.lost.sort();
        Ok(())
    }

    fn open_weights(&mut self, folder: &dyn Folder, name: &str) -> Result<()> {
        let source = match folder.open(name) {
            Ok(source) => source,
            Err(e) => {
                self.blind = true;
                return self.findings.unreadable("", name, e);
            }
        };
        let (tensors, problems) = safetensors::survey(&*source)?;
        self.blind |= tensors.is_empty() && !problems.is_empty();
        for problem in &problems {
            let kind = match problem.fault {
                Fault::Truncated => FindingKind::SafetensorsTruncated,
                Fault::Malformed => FindingKind::SafetensorsHeader,
                Fault::Duplicate => FindingKind::DuplicateTensor,
                Fault::Unreadable => FindingKind::Unreadable,
            };
            if !problem.tensor.is_empty() && problem.fault == Fault::Malformed {
                self.lost.add(&problem.tensor)?;
            }
            self.findings.error(kind, &problem.tensor, name, format_args!("{}", problem.text))?;
        }
        for tensor in tensors.iter().filter(|tensor| is_strange(&tensor.name)) {
            let text = format_args!("tensor {:?}: the name of a layer, a dot and a part expected", tensor.name);
            self.findings.warn(FindingKind::TensorName, &tensor.name, name, text)?;
        }
        memory::push(&mut self.files.files, WeightFile { name: memory::text(name)?, tensors, source })
    }

    /// `weights` is sorted.
    fn read_index(&mut self, folder: &dyn Folder, index: &str, weights: &[&str]) -> Result<()> {
        let text = self.document(folder, index, Severity::Error)?;
        let json = self.json(text.as_deref(), index, Severity::Error)?;
        let map = match &json {
            Some(json) => self.weight_map(json, index)?,
            None => None,
        };
        let Some(map) = map else {
            // The parts are read regardless.
            return self.open_all(folder, weights);
        };
        let mut parts = memory::collect(map.iter().map(|(_, part)| *part))?;
        parts.sort_unstable();
        parts.dedup();
        let (mut present, mut absent) = (Vec::new(), Vec::new());
        for &part in &parts {
            if !is_plain(part) {
                let text =
                    format_args!("the index names the file {part:?}; a plain file name of this directory expected");
                self.findings.error(FindingKind::HostilePath, "", index, text)?;
                memory::push(&mut absent, part)?;
            } else if part.starts_with('.') || weights.binary_search(&part).is_err() {
                memory::push(&mut absent, part)?;
                if !part.ends_with(WEIGHTS) {
                    let text =
                        format_args!("the index names the file {part:?}; a name that ends in {WEIGHTS} expected");
                    self.findings.error(FindingKind::MissingShard, "", index, text)?;
                }
            } else {
                memory::push(&mut present, part)?;
            }
        }
        self.open_all(folder, &present)?;
        for name in weights.iter().filter(|name| parts.binary_search(name).is_err()) {
            let text = format_args!("the index does not name the file {name}");
            self.findings.warn(FindingKind::IndexIncomplete, "", index, text)?;
        }
        self.compare_with_index(&map, &absent, index)
    }

    /// `map` is the part of each tensor, sorted by tensor; `absent` is sorted.
    fn compare_with_index(&mut self, map: &[(&str, &str)], absent: &[&str], index: &str) -> Result<()> {
        let mut lost = NameSet::default();
        for &(tensor, part) in map {
            let place = self.files.get(tensor).map(|located| located.file.name.as_str());
            match place {
                Some(file) if file == part => {}
                // One of several; the duplicate is reported already.
                Some(_) if self.repeated.contains(tensor) => {}
                Some(file) => {
                    let text = format_args!("the index has tensor {tensor} in {part}; it is in {file}");
                    self.findings.error(FindingKind::IndexIncomplete, tensor, index, text)?;
                }
                None if absent.binary_search(&part).is_ok() => {
                    let text = format_args!("tensor {tensor} is in {part}, which is not there");
                    self.findings.error(FindingKind::MissingShard, tensor, index, text)?;
                    lost.add(tensor)?;
                }
                None if self.lost.contains(tensor) || self.blind => {}
                None => {
                    let text = format_args!("the index has tensor {tensor} in {part}, which has no such tensor");
                    self.findings.error(FindingKind::MissingTensor, tensor, index, text)?;
                    lost.add(tensor)?;
                }
            }
        }
        for located in self.files.all() {
            let tensor = &located.tensor.name;
            if Name::from(tensor).find(map, |(name, _)| name).is_none() {
                let text = format_args!("tensor {tensor} is in {}; the index does not name it", located.file.name);
                self.findings.error(FindingKind::IndexIncomplete, tensor, index, text)?;
            }
        }
        self.lost.extend(lost)
    }

    /// The part of each tensor, sorted by tensor.
    fn weight_map<'a>(&mut self, json: &'a Json, index: &str) -> Result<Option<Vec<(&'a str, &'a str)>>> {
        let Some(Json::Object(fields)) = json.get("weight_map") else {
            let text = format_args!("the index has no object weight_map");
            self.findings.error(FindingKind::JsonShape, "weight_map", index, text)?;
            return Ok(None);
        };
        report_repeated(fields, index, &mut self.findings)?;
        let mut map = Vec::new();
        for number in last_of_each(fields)? {
            let (tensor, part) = &fields[number];
            match part {
                Json::Text(part) => memory::push(&mut map, (tensor.as_ref(), part.as_ref()))?,
                other => {
                    let text = format_args!("weight_map: {tensor} is {}; a file name expected", other.kind());
                    self.findings.error(FindingKind::JsonShape, tensor, index, text)?;
                    self.lost.add(tensor)?;
                }
            }
        }
        Ok(Some(map))
    }
}

/// Stem, count and number of `<stem>-00001-of-00003.safetensors`.
fn part_name(name: &str) -> Option<(&str, u64, u64)> {
    let (front, of) = name.strip_suffix(WEIGHTS)?.rsplit_once("-of-")?;
    let (stem, number) = front.rsplit_once('-')?;
    let digits = |text: &str| text.len() >= 5 && text.bytes().all(|b| b.is_ascii_digit());
    (digits(of) && digits(number)).then_some(())?;
    Some((stem, of.parse().ok()?, number.parse().ok()?))
}
