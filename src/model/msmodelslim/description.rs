//! The description: a JSON object with keys about the model and a tag for every tensor.

use super::finding::{Finding, Findings, Kind, Severity};
use super::tags::Tag;
use crate::model::json::Json;
use std::collections::BTreeMap;

/// What a description says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Description {
    /// The file it is from; empty where there is none.
    pub file: String,
    /// model_quant_type: a label of the model. Each tensor has its own tag.
    pub model_quant_type: Option<String>,
    /// version; files of the older generation have none.
    pub version: Option<String>,
    /// group_size; 0 is "no groups".
    pub group_size: Option<u64>,
    /// kv_cache_type, or kv_quant_type where only that is there.
    pub kv_cache_type: Option<String>,
    /// The tag of every tensor; `None` where it is no word of the format.
    pub tags: BTreeMap<String, Option<Tag>>,
}

/// Keys about the model that are read by others or by nobody.
const OTHER_KEYS: &[&str] = &[
    "kv_quant_type",
    "fa_quant_type",
    "reduce_quant_type",
    "metadata",
    "optional",
    "indexer_quant_type",
    "model_quant_type_second",
    "kv_cache_type_second",
];

impl Description {
    /// Reads a description; what is wrong with it goes to `findings`. `None` where it is no object.
    pub(super) fn read(json: &Json, file: &str, findings: &mut Findings) -> Option<Description> {
        let Json::Object(fields) = json else {
            let text = format!("the description is {}; an object expected", json.kind());
            findings.error(Kind::JsonShape, "", text);
            return None;
        };
        let mut description = Description { file: file.to_owned(), ..Description::default() };
        report_repeated(fields, findings);
        for (key, value) in fields {
            description.take(key, value, findings);
        }
        if description.model_quant_type.is_none() && json.get("model_quant_type").is_none() {
            let text = "the description has no model_quant_type; some readers refuse that".to_owned();
            findings.warn(Kind::MissingKey, "model_quant_type", text);
        }
        if description.kv_cache_type.is_none() {
            description.kv_cache_type = json.get("kv_quant_type").and_then(Json::text).map(str::to_owned);
        }
        Some(description)
    }

    fn take(&mut self, key: &str, value: &Json, findings: &mut Findings) {
        match key {
            "model_quant_type" => {
                self.model_quant_type = word(key, value, findings);
                if let Some(label) = self.model_quant_type.as_deref().filter(|label| Tag::from_word(label).is_none()) {
                    let text = format!("model_quant_type is {label:?}, which is no type of the format");
                    findings.warn(Kind::UnknownQuantType, key, text);
                }
            }
            "version" => {
                self.version = word(key, value, findings);
                if let Some(version) = self.version.as_deref().filter(|version| !is_version(version)) {
                    let text = format!("version is {version:?}; three numbers such as 1.0.0 expected");
                    findings.warn(Kind::UnknownVersion, key, text);
                }
            }
            "kv_cache_type" => self.kv_cache_type = word(key, value, findings),
            "group_size" => self.group_size = group_size(value, findings),
            _ if OTHER_KEYS.contains(&key) => {}
            // Words and numbers about a module: no tensor of that name exists.
            _ if key.ends_with(".quant_type") && value.text().is_some() => {}
            _ if key.ends_with(".outdim") && value.count().is_some() => {}
            // Tensors have a dot in their names.
            _ if !key.contains('.') => {
                findings.warn(Kind::UnknownKey, key, format!("{key} is no key of a description"));
            }
            _ => match value {
                Json::Text(word) => {
                    let tag = Tag::from_word(word);
                    if tag.is_none() {
                        let text = format!("{key} has the type {word:?}, which the format does not have");
                        findings.error(Kind::UnknownQuantType, key, text);
                    }
                    self.tags.insert(key.to_owned(), tag);
                }
                _ => {
                    let text = format!("{key} is {}; the name of a type expected", value.kind());
                    findings.error(Kind::JsonShape, key, text);
                }
            },
        }
    }

    /// The tag of a tensor, where it has one that the format knows.
    pub(super) fn tag(&self, tensor: &str) -> Option<Tag> {
        self.tags.get(tensor).copied().flatten()
    }
}

/// Names each key that comes more than once: parsers keep the last one, so it matters only where they differ.
pub(super) fn report_repeated(fields: &[(String, Json)], findings: &mut Findings) {
    let mut first = BTreeMap::new();
    for (key, value) in fields {
        match first.insert(key, value) {
            Some(before) if before == value => {
                findings.warn(Kind::DuplicateKey, key, format!("{key} comes twice, with one value"));
            }
            Some(_) => {
                findings.error(Kind::DuplicateKey, key, format!("{key} comes twice, with different values"));
            }
            None => {}
        }
    }
}

fn word(key: &str, value: &Json, findings: &mut Findings) -> Option<String> {
    match value {
        Json::Text(text) => Some(text.clone()),
        _ => {
            findings.error(Kind::JsonShape, key, format!("{key} is {}; a string expected", value.kind()));
            None
        }
    }
}

/// Three numbers, the first without leading zeros and not 0.
fn is_version(text: &str) -> bool {
    let parts: Vec<_> = text.split('.').collect();
    let digits = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    parts.len() == 3 && parts.iter().all(digits) && !parts[0].starts_with('0')
}

fn group_size(value: &Json, findings: &mut Findings) -> Option<u64> {
    if let Some(size) = value.count() {
        return Some(size);
    }
    if let Some(size) = value.text().and_then(|text| text.trim().parse().ok()) {
        let text = format!("group_size is the string \"{size}\"; a number expected");
        findings.push(Finding::new(Severity::Warning, Kind::LenientType, "group_size", text));
        return Some(size);
    }
    let text = format!("group_size is {}; a number from 0 on expected", describe(value));
    findings.error(Kind::JsonShape, "group_size", text);
    None
}

fn describe(value: &Json) -> String {
    match value {
        Json::Int(number) => number.to_string(),
        Json::Number(number) => number.to_string(),
        Json::Text(text) => format!("{text:?}"),
        other => other.kind().to_owned(),
    }
}
