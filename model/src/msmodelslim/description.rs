//! The description: a JSON object with keys about the model and a tag for every tensor.

use super::finding::{FindingKind, Findings};
use super::tags::Tag;
use crate::names::Name;
use mnnkv::json::Json;
use mnnkv::status::Result;
use mnnkv::sys::memory;
use std::borrow::Cow;

/// A description.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Description {
    /// Its file; empty if there is none.
    pub file: String,
    /// group_size; 0 = no groups.
    pub group_size: Option<u64>,
    /// kv_cache_type, else kv_quant_type.
    pub kv_cache_type: Option<String>,
    /// Every tensor, sorted by name, and its tag; `None` if the format has no such word.
    pub tags: Vec<(String, Option<Tag>)>,
}

/// Keys about the model that this library ignores.
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

/// The fields of a JSON object.
pub(super) type Fields<'a> = [(Cow<'a, str>, Json<'a>)];

impl Description {
    /// Reads a description and adds its faults to `findings`. `None` if it is not an object.
    pub(super) fn read(json: &Json, file: &str, findings: &mut Findings) -> Result<Option<Description>> {
        let Json::Object(fields) = json else {
            let kind = json.kind();
            let text = format_args!("the description is {kind}; an object expected");
            findings.error(FindingKind::JsonShape, "", file, text)?;
            return Ok(None);
        };
        let mut description = Description { file: memory::text(file)?, ..Description::default() };
        report_repeated(fields, file, findings)?;
        for (key, value) in fields {
            description.take(key, value, findings)?;
        }
        for number in last_of_each(fields)? {
            if let (key, Json::Text(word)) = &fields[number]
                && is_tensor(key)
            {
                memory::push(&mut description.tags, (memory::text(key)?, Tag::from_word(word)))?;
            }
        }
        if json.get("model_quant_type").is_none() {
            let text = format_args!("the description has no model_quant_type; some readers refuse that");
            findings.warn(FindingKind::MissingKey, "model_quant_type", file, text)?;
        }
        if description.kv_cache_type.is_none() {
            let word = json.get("kv_quant_type").and_then(Json::text);
            description.kv_cache_type = word.map(memory::text).transpose()?;
        }
        Ok(Some(description))
    }

    fn take(&mut self, key: &str, value: &Json, findings: &mut Findings) -> Result<()> {
        let file = self.file.as_str();
        match key {
            "model_quant_type" => {
                let label = word(key, value, file, findings)?;
                if let Some(label) = label.filter(|label| Tag::from_word(label).is_none()) {
                    let text = format_args!("model_quant_type is {label:?}, which is no type of the format");
                    findings.warn(FindingKind::UnknownQuantType, key, file, text)?;
                }
            }
            "version" => {
                let version = word(key, value, file, findings)?;
                if let Some(version) = version.filter(|version| !is_version(version)) {
                    let text = format_args!("version is {version:?}; three numbers such as 1.0.0 expected");
                    findings.warn(FindingKind::UnknownVersion, key, file, text)?;
                }
            }
            "kv_cache_type" => self.kv_cache_type = word(key, value, file, findings)?,
            "group_size" => self.group_size = group_size(value, file, findings)?,
            _ if OTHER_KEYS.contains(&key) => {}
            // Words and numbers about a module, not a tensor.
            _ if key.ends_with(".quant_type") && value.text().is_some() => {}
            _ if key.ends_with(".outdim") && value.count().is_some() => {}
            // Names of tensors contain a dot.
            _ if !key.contains('.') => {
                findings.warn(FindingKind::UnknownKey, key, file, format_args!("{key} is no key of a description"))?;
            }
            _ => match value {
                Json::Text(word) if Tag::from_word(word).is_some() => {}
                Json::Text(word) => {
                    let text = format_args!("{key} has the type {word:?}, which the format does not have");
                    findings.error(FindingKind::UnknownQuantType, key, file, text)?;
                }
                _ => {
                    let text = format_args!("{key} is {}; the name of a type expected", value.kind());
                    findings.error(FindingKind::JsonShape, key, file, text)?;
                }
            },
        }
        Ok(())
    }

    /// The tag of a tensor, if the format has it.
    pub(super) fn tag<'a>(&self, tensor: impl Into<Name<'a>>) -> Option<Tag> {
        self.entry(tensor).flatten()
    }

    /// Whether a tensor has an entry.
    pub(super) fn has<'a>(&self, tensor: impl Into<Name<'a>>) -> bool {
        self.entry(tensor).is_some()
    }

    fn entry<'a>(&self, tensor: impl Into<Name<'a>>) -> Option<Option<Tag>> {
        Some(self.tags[tensor.into().find(&self.tags, |(name, _)| name)?].1)
    }
}

/// Field numbers sorted by key, then by their order in the text.
fn by_key(fields: &Fields) -> Result<Vec<usize>> {
    let mut order = memory::collect(0..fields.len())?;
    order.sort_unstable_by_key(|number| (&fields[*number].0, *number));
    Ok(order)
}

/// The effective field numbers, sorted by key: parsers keep the last of equal keys.
pub(super) fn last_of_each(fields: &Fields) -> Result<Vec<usize>> {
    let mut order = by_key(fields)?;
    order.reverse();
    order.dedup_by_key(|number| &fields[*number].0);
    order.reverse();
    Ok(order)
}

/// Reports repeated keys: parsers keep the last one, so only different values matter.
pub(super) fn report_repeated(fields: &Fields, file: &str, findings: &mut Findings) -> Result<()> {
    for pair in by_key(fields)?.windows(2) {
        let [(before, old), (key, new)] = [&fields[pair[0]], &fields[pair[1]]];
        if before != key {
            continue;
        }
        if old == new {
            findings.warn(FindingKind::DuplicateKey, key, file, format_args!("{key} comes twice, with one value"))?;
        } else {
            findings.error(
                FindingKind::DuplicateKey,
                key,
                file,
                format_args!("{key} comes twice, with different values"),
            )?;
        }
    }
    Ok(())
}

/// Whether a key with a word names a tensor.
fn is_tensor(key: &str) -> bool {
    key.contains('.') && !key.ends_with(".quant_type") && !OTHER_KEYS.contains(&key)
}

fn word(key: &str, value: &Json, file: &str, findings: &mut Findings) -> Result<Option<String>> {
    match value {
        Json::Text(text) => memory::text(text).map(Some),
        _ => {
            let text = format_args!("{key} is {}; a string expected", value.kind());
            findings.error(FindingKind::JsonShape, key, file, text).map(|_| None)
        }
    }
}

/// Three numbers, the first without leading zeros and not 0.
fn is_version(text: &str) -> bool {
    let mut parts = text.split('.');
    let number = |part: Option<&str>| part.is_some_and(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()));
    !text.starts_with('0') && (0..3).all(|_| number(parts.next())) && parts.next().is_none()
}

fn group_size(value: &Json, file: &str, findings: &mut Findings) -> Result<Option<u64>> {
    if let Some(size) = value.count() {
        return Ok(Some(size));
    }
    if let Some(size) = value.text().and_then(|text| text.trim().parse().ok()) {
        let text = format_args!("group_size is the string \"{size}\"; a number expected");
        findings.warn(FindingKind::LenientType, "group_size", file, text)?;
        return Ok(Some(size));
    }
    let text = match value {
        Json::Number(_) | Json::Text(_) => memory::format(format_args!("{value}"))?,
        other => memory::text(other.kind())?,
    };
    let text = format_args!("group_size is {text}; a whole number from 0 to {} expected", u64::MAX);
    findings.error(FindingKind::JsonShape, "group_size", file, text)?;
    Ok(None)
}
