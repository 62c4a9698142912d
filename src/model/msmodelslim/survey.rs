//! Finding the files of a directory and reading what they say about themselves.

use super::config::Config;
use super::description::{Description, report_repeated};
use super::files::{Files, WeightFile};
use super::finding::{Findings, Kind};
use super::folder::{Folder, is_plain};
use crate::model::json::Json;
use crate::model::safetensors::{self, Fault};
use crate::status::{Error, Status};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes that a JSON document of a directory may have. A description has about 100 bytes for each tensor.
const MAX_JSON: u64 = 64 << 20;

const DESCRIPTION: &str = "quant_model_description.json";
const LEGACY_DESCRIPTION: &str = "quant_model_description_";
const INDEX: &str = ".safetensors.index.json";
const WEIGHTS: &str = ".safetensors";

/// A directory as it was found, with everything that is wrong with its files.
#[derive(Default)]
pub(super) struct Survey {
    pub(super) description: Option<Description>,
    pub(super) config: Config,
    pub(super) files: Files,
    /// Tensors of files that are not there or cannot be read: already reported.
    pub(super) lost: BTreeSet<String>,
    /// Whether a file was lost whose tensors nobody knows: then nothing can be said about missing ones.
    pub(super) blind: bool,
    /// Tensors that are in several files.
    repeated: BTreeSet<String>,
    pub(super) findings: Findings,
}

/// Looks at every file. Never fails: what cannot be read is a finding.
pub(super) fn survey(folder: &dyn Folder) -> Survey {
    let mut survey = Survey::default();
    let mut names = match folder.names() {
        Ok(names) => names,
        Err(e) => {
            survey.lost_file("", &e);
            return survey;
        }
    };
    names.retain(|name| !name.starts_with('.'));
    if names.iter().any(|name| name == "config.json")
        && let Some(json) = survey.json(folder, "config.json", Damage::Warn)
    {
        survey.config = Config::read(&json);
    }
    survey.find_description(folder, &names);
    survey.find_weights(folder, &names);
    survey
}

/// What a document that cannot be read means.
#[derive(Clone, Copy, PartialEq)]
enum Damage {
    Error,
    /// The directory can be used without it.
    Warn,
}

impl Survey {
    fn lost_file(&mut self, file: &str, e: &Error) {
        let finding = self.findings.error(Kind::Unreadable, "", e.message().to_owned());
        finding.status = e.status();
        file.clone_into(&mut finding.file);
    }

    fn json(&mut self, folder: &dyn Folder, file: &str, damage: Damage) -> Option<Json> {
        let (kind, status, text) = match read_json(folder, file) {
            Ok(json) => return Some(json),
            Err(failure) => failure,
        };
        let finding = match damage {
            Damage::Error => self.findings.error(kind, "", text),
            Damage::Warn => self.findings.warn(kind, "", text),
        };
        file.clone_into(&mut finding.file);
        finding.status = status;
        None
    }

    fn find_description(&mut self, folder: &dyn Folder, names: &[String]) {
        let legacy: Vec<&str> = names
            .iter()
            .map(String::as_str)
            .filter(|name| name.starts_with(LEGACY_DESCRIPTION) && name.ends_with(".json"))
            .collect();
        let has = |name: &str| names.iter().any(|other| other == name);
        let named = || {
            let quantize = self.config.quantize.as_deref()?;
            let file = format!("{LEGACY_DESCRIPTION}{quantize}.json");
            let general = format!("{LEGACY_DESCRIPTION}w8a8.json");
            let falls_back = matches!(quantize, "w8a8_dynamic" | "w8a8_pdmix") && has(&general);
            if has(&file) { Some(file) } else { falls_back.then_some(general) }
        };
        let file = if has(DESCRIPTION) {
            if !legacy.is_empty() {
                let text = format!("{DESCRIPTION} is read; {} too could be the description", legacy.join(", "));
                self.findings.warn(Kind::Ambiguous, "", text);
            }
            DESCRIPTION.to_owned()
        } else if let Some(file) = named() {
            file
        } else if let [file] = *legacy.as_slice() {
            file.to_owned()
        } else if !legacy.is_empty() {
            let text = format!("{} could each be the description; one expected", legacy.join(", "));
            self.findings.error(Kind::Ambiguous, "", text);
            return;
        } else if let Some(json) = self.config.description.take() {
            self.take_description(&json, "config.json");
            return;
        } else {
            let text = format!("there is neither {DESCRIPTION} nor {LEGACY_DESCRIPTION}<type>.json");
            self.findings.error(Kind::MissingDescription, "", text);
            return;
        };
        if let Some(json) = self.json(folder, &file, Damage::Error) {
            self.take_description(&json, &file);
        }
    }

    fn take_description(&mut self, json: &Json, file: &str) {
        let before = self.findings.0.len();
        self.description = Description::read(json, file, &mut self.findings);
        for finding in &mut self.findings.0[before..] {
            file.clone_into(&mut finding.file);
        }
    }

    fn find_weights(&mut self, folder: &dyn Folder, names: &[String]) {
        let weights: BTreeSet<&str> = names.iter().map(String::as_str).filter(|n| n.ends_with(WEIGHTS)).collect();
        let indices: Vec<&String> = names.iter().filter(|name| name.ends_with(INDEX)).collect();
        match *indices.as_slice() {
            [] => {
                if weights.is_empty() {
                    let text = format!("there is no file whose name ends in {WEIGHTS}");
                    self.findings.error(Kind::MissingWeights, "", text);
                }
                for name in weights {
                    self.open_weights(folder, name);
                }
                self.report_absent_parts(names);
            }
            [index] => self.read_index(folder, index, &weights),
            _ => {
                let names: Vec<_> = indices.iter().map(|name| name.as_str()).collect();
                let text = format!("{} could each be the index; one expected", names.join(", "));
                self.findings.error(Kind::Ambiguous, "", text);
                self.blind = true;
            }
        }
    }

    /// Without an index only the names of the parts say how many there are.
    fn report_absent_parts(&mut self, names: &[String]) {
        let mut parts = BTreeMap::<_, BTreeSet<u64>>::new();
        for (stem, number, of) in names.iter().filter_map(|name| part_name(name)) {
            parts.entry((stem, of)).or_default().insert(number);
        }
        for ((stem, of), present) in parts {
            let text = format!("there is no index {stem}{INDEX} for the {of} parts {stem}-*{WEIGHTS}");
            if present.len() as u64 == of {
                self.findings.warn(Kind::IndexIncomplete, "", text);
            } else {
                let text = format!("{text}, and only {} of them are there", present.len());
                self.findings.error(Kind::MissingShard, "", text);
                self.blind = true;
            }
        }
    }

    fn open_weights(&mut self, folder: &dyn Folder, name: &str) {
        let source = match folder.open(name) {
            Ok(source) => source,
            Err(e) => {
                self.lost_file(name, &e);
                self.blind = true;
                return;
            }
        };
        let (tensors, problems) = safetensors::survey(&*source);
        self.blind |= tensors.is_empty() && !problems.is_empty();
        for problem in problems {
            let kind = match problem.fault {
                Fault::Truncated => Kind::SafetensorsTruncated,
                Fault::Malformed => Kind::SafetensorsHeader,
                Fault::Duplicate => Kind::DuplicateTensor,
                Fault::Unreadable => Kind::Unreadable,
            };
            if !problem.tensor.is_empty() && problem.fault == Fault::Malformed {
                self.lost.insert(problem.tensor.clone());
            }
            name.clone_into(&mut self.findings.error(kind, &problem.tensor, problem.text).file);
        }
        let file = self.files.files.len();
        for (number, tensor) in tensors.iter().enumerate() {
            if let Some((first, _)) = self.files.places.get(&tensor.name) {
                let first = &self.files.files[*first].name;
                let text = format!("tensor {} is in {first} and in {name}", tensor.name);
                name.clone_into(&mut self.findings.error(Kind::DuplicateTensor, &tensor.name, text).file);
                self.repeated.insert(tensor.name.clone());
                continue;
            }
            self.files.places.insert(tensor.name.clone(), (file, number));
        }
        self.files.files.push(WeightFile { name: name.to_owned(), tensors, source });
    }

    fn read_index(&mut self, folder: &dyn Folder, index: &str, weights: &BTreeSet<&str>) {
        let before = self.findings.0.len();
        let map = self.json(folder, index, Damage::Error).map(|json| self.weight_map(&json));
        let Some(map) = map.flatten() else {
            // The parts can be looked at all the same.
            for name in weights {
                self.open_weights(folder, name);
            }
            self.in_file(before, index);
            return;
        };
        let parts: BTreeSet<&str> = map.values().map(String::as_str).collect();
        let mut absent = BTreeSet::new();
        for &part in &parts {
            if !is_plain(part) {
                let text = format!("the index names the file {part:?}; a plain file name of this directory expected");
                self.findings.error(Kind::HostilePath, "", text);
                absent.insert(part);
            } else if part.starts_with('.') || !weights.contains(part) {
                absent.insert(part);
                if !part.ends_with(WEIGHTS) {
                    let text = format!("the index names the file {part:?}; a name that ends in {WEIGHTS} expected");
                    self.findings.error(Kind::MissingShard, "", text);
                }
            } else {
                self.open_weights(folder, part);
            }
        }
        for name in weights.difference(&parts) {
            self.findings.warn(Kind::IndexIncomplete, "", format!("the index does not name the file {name}"));
        }
        self.compare_with_index(&map, &absent);
        self.in_file(before, index);
    }

    /// Findings without a file are the index's.
    fn in_file(&mut self, before: usize, file: &str) {
        for finding in self.findings.0[before..].iter_mut().filter(|finding| finding.file.is_empty()) {
            file.clone_into(&mut finding.file);
        }
    }

    fn compare_with_index(&mut self, map: &BTreeMap<String, String>, absent: &BTreeSet<&str>) {
        for (tensor, part) in map {
            let place = self.files.places.get(tensor).map(|(file, _)| self.files.files[*file].name.as_str());
            let lost = self.lost.contains(tensor) || self.blind;
            match place {
                Some(file) if file == part => {}
                // One of several; that it is not the only one has been said.
                Some(_) if self.repeated.contains(tensor) => {}
                Some(file) => {
                    let text = format!("the index has tensor {tensor} in {part}; it is in {file}");
                    self.findings.error(Kind::IndexIncomplete, tensor, text);
                }
                None if absent.contains(part.as_str()) => {
                    let text = format!("tensor {tensor} is in {part}, which is not there");
                    self.findings.error(Kind::MissingShard, tensor, text);
                    self.lost.insert(tensor.clone());
                }
                None if lost => {}
                None => {
                    let text = format!("the index has tensor {tensor} in {part}, which has no such tensor");
                    self.findings.error(Kind::MissingTensor, tensor, text);
                    self.lost.insert(tensor.clone());
                }
            }
        }
        for (tensor, (file, _)) in &self.files.places {
            if !map.contains_key(tensor) {
                let text =
                    format!("tensor {tensor} is in {}; the index does not name it", self.files.files[*file].name);
                self.findings.error(Kind::IndexIncomplete, tensor, text);
            }
        }
    }

    fn weight_map(&mut self, json: &Json) -> Option<BTreeMap<String, String>> {
        let Some(Json::Object(fields)) = json.get("weight_map") else {
            let text = "the index has no object weight_map".to_owned();
            self.findings.error(Kind::JsonShape, "weight_map", text);
            return None;
        };
        report_repeated(fields, &mut self.findings);
        let mut map = BTreeMap::new();
        for (tensor, part) in fields {
            match part {
                Json::Text(part) => {
                    map.insert(tensor.clone(), part.clone());
                }
                other => {
                    let text = format!("weight_map: {tensor} is {}; a file name expected", other.kind());
                    self.findings.error(Kind::JsonShape, tensor, text);
                    self.lost.insert(tensor.clone());
                }
            }
        }
        Some(map)
    }
}

fn read_json(folder: &dyn Folder, file: &str) -> Result<Json, (Kind, Status, String)> {
    let unreadable = |e: Error| (Kind::Unreadable, e.status(), e.message().to_owned());
    let source = folder.open(file).map_err(unreadable)?;
    if source.len() > MAX_JSON {
        let text = format!("the document has {} bytes; at most {MAX_JSON} allowed", source.len());
        return Err((Kind::JsonShape, Status::Corrupt, text));
    }
    let bytes = source.read_vec(0, source.len()).map_err(unreadable)?;
    Json::parse(&bytes).map_err(|text| (Kind::JsonSyntax, Status::Corrupt, text))
}

/// Stem, number and count of `<stem>-00001-of-00003.safetensors`.
fn part_name(name: &str) -> Option<(&str, u64, u64)> {
    let (front, of) = name.strip_suffix(WEIGHTS)?.rsplit_once("-of-")?;
    let (stem, number) = front.rsplit_once('-')?;
    let digits = |text: &str| text.len() >= 5 && text.bytes().all(|b| b.is_ascii_digit());
    (digits(of) && digits(number)).then_some(())?;
    Some((stem, number.parse().ok()?, of.parse().ok()?))
}
