//! `mnnkv check`: findings about a quantised directory or a chat file.

use crate::bytes;
use crate::failure::Failure;
use crate::output::{Output, visible};
use clap::Args;
use mnnkv::file::{Access, ChatFile, Storage};
use mnnkv::status::{Error, Status};
use mnnkv_model::msmodelslim::{DiskFolder, Finding, Severity, check_folder};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Findings of a kind that are printed without `--all`; the others are counted.
const SHOWN: usize = 8;

/// Check a directory quantised by msmodelslim, or a chat file, and list all findings.
///
/// All that a chat file has is compared with their checksums. In a directory the description is compared with the tensors,
/// tensors with each other, and every number of scales, offsets and biases is checked. Errors make a directory unusable or its results wrong. Warnings are deviations that some runtimes reject or
/// ignore. Reads the directory once and changes nothing. Memory does not grow with the size of the weights.
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub struct Arguments {
    /// The directory with quant_model_description.json and the weights, or the chat file
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Print every finding, not only the first of each kind
    #[arg(long)]
    all: bool,
}

pub fn run(arguments: &Arguments) -> Result<Output, Failure> {
    if !arguments.path.is_dir() {
        return chat(&arguments.path);
    }
    let directory = arguments.path.display();
    let report = check_folder(&DiskFolder::new(&arguments.path)?)?;
    let (errors, warnings) = (report.count(Severity::Error), report.count(Severity::Warning));
    let mut text = String::new();
    for severity in [Severity::Error, Severity::Warning] {
        text += &list(report.findings.iter().filter(|f| f.severity == severity), arguments.all);
    }
    let count = |n: usize, what: &str| match n {
        0 => format!("no {what}s"),
        n => bytes::plural(n as u64, what),
    };
    text += &format!("{directory}: {}, {}\n", count(errors, "error"), count(warnings, "warning"));
    let mut object: Value = serde_json::from_str(&report.json()?)?;
    object["directory"] = json!(arguments.path.display().to_string());
    Ok(Output { text, json: object, clean: errors == 0 })
}

/// Compares all that a chat file has with its checksums.
fn chat(path: &Path) -> Result<Output, Failure> {
    let mut findings = Vec::new();
    let mut see = |damage: Error| {
        findings.push(damage.message().to_owned());
        Ok(())
    };
    let read = match ChatFile::open(Storage::open(path)?, None, Access::Read) {
        Ok(chat) => chat.verify(see)?,
        Err(damage) if damage.status() == Status::Corrupt => see(damage).map(|()| 0)?,
        Err(error) => return Err(error.into()),
    };
    let text: String = findings.iter().map(|line| format!("error: {}\n", visible(line))).collect();
    let (file, compared, errors) = (path.display(), bytes::format(read), findings.len());
    let text = format!("{text}{file}: {compared} compared, {} damaged\n", bytes::plural(errors as u64, "part"));
    let json = json!({ "file": file.to_string(), "bytes": read, "errors": errors, "findings": findings });
    Ok(Output { text, json, clean: errors == 0 })
}

/// Findings by kind; kinds in the order of their first finding.
fn list<'a>(findings: impl Iterator<Item = &'a Finding>, all: bool) -> String {
    let mut kinds: Vec<(&str, Vec<&Finding>)> = Vec::new();
    for finding in findings {
        match kinds.iter_mut().find(|(word, _)| *word == finding.kind.word()) {
            Some((_, list)) => list.push(finding),
            None => kinds.push((finding.kind.word(), vec![finding])),
        }
    }
    let mut text = String::new();
    for (word, findings) in kinds {
        let shown = if all { findings.len() } else { findings.len().min(SHOWN) };
        for finding in &findings[..shown] {
            let file = if finding.file.is_empty() { String::new() } else { format!("{}: ", finding.file) };
            let line = format!("{}: {file}{} [{word}]", finding.severity.word(), finding.text);
            text += &format!("{}\n", visible(&line));
        }
        if shown < findings.len() {
            text += &format!("... and {} more [{word}]; --all prints them\n", findings.len() - shown);
        }
    }
    text
}
