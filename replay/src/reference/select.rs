//! Metas to units of work.

use super::Refused;
use super::options::{Options, Stage};
use crate::dumps::folder::{self, Entry, Rules, RunKey, Verdict, gaps};
use crate::error::Finding;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Entries that are compressed as one, by their numbers in [`Selection::entries`]. Never empty.
pub struct Unit {
    pub entries: Vec<usize>,
}

/// The entries of the options, and what became of the others.
#[derive(Default)]
pub struct Selection {
    pub scanned: u64,
    /// The selected entries, those that cannot be compressed among them.
    pub entries: Vec<Entry>,
    pub units: Vec<Unit>,
    pub groups: u64,
    /// Distinct layers, runs, and entries of f32 among the selected entries.
    pub layers: BTreeSet<i64>,
    pub dumps: u64,
    pub converted: u64,
    /// Skips by reason, in the order in which the reasons came.
    pub skips: Vec<(String, u64)>,
    pub skipped: Vec<Finding>,
    pub mended: Vec<Finding>,
}

impl Selection {
    fn skip(&mut self, reason: &str, findings: impl IntoIterator<Item = Finding>) {
        match self.skips.iter_mut().find(|(known, _)| known == reason) {
            Some((_, count)) => *count += 1,
            None => self.skips.push((reason.into(), 1)),
        }
        self.skipped.extend(findings);
    }

    /// The failure of a selection without any result, with the reasons of the skips.
    pub fn nothing(&self, text: &str) -> Refused {
        let reasons: Vec<String> = self.skips.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        match self.skipped.first() {
            None => Refused(text.into()),
            Some(first) => {
                Refused(format!("{text}; skipped: {}; the first: {}: {}", reasons.join(", "), first.place, first.text))
            }
        }
    }
}

/// Findings of kinds that the reference system accepts or crashes on.
const MENDED: [&str; 3] = ["meta_is_no_object", "not_an_integer", "k_or_v_outside_dump"];

/// Reads the metas below `root`.
pub fn select(root: &Path, options: &Options) -> Result<Selection, Refused> {
    let none = format!("No meta_*.json found under {}", root.display());
    let (metas, unreadable) = match folder::find(root) {
        Ok(found) => found,
        Err(_) if options.faithful => return Err(Refused(none)),
        Err(e) => return Err(Refused(format!("{none}; {e}"))),
    };
    if metas.is_empty() {
        return Err(Refused(none));
    }
    let layers = |layer| options.keeps_layer(layer);
    let rules = Rules {
        stage: (options.stage != Stage::Both).then(|| options.stage.name()),
        layers: Some(&layers),
        min_tokens: options.min_seq_len.into(),
        max_tokens: options.max_seq_len.into(),
        only_f16: options.strict_fp16,
        faithful: options.faithful,
    };
    let mut selection = Selection { scanned: metas.len() as u64, ..Selection::default() };
    for verdict in folder::examine(root, &metas, &rules) {
        match verdict.map_err(Refused)? {
            Verdict::Kept(entry) => selection.entries.push(*entry),
            Verdict::Filtered => {}
            Verdict::Skipped(reason, finding) => {
                if MENDED.contains(&finding.reason.as_str()) {
                    selection.mended.push(finding.clone());
                }
                selection.skip(&reason, [finding]);
            }
        }
    }
    if selection.entries.is_empty() {
        let text = "No entries selected after filtering. Check --dump-dir/--stage/--scope options.";
        return Err(if options.faithful { Refused(text.into()) } else { selection.nothing(text) });
    }
    let entries = std::mem::take(&mut selection.entries);
    sort_out(&entries, options, &mut selection);
    if !options.faithful {
        selection.mended.extend(unreadable);
        tell(root, &entries, options, &mut selection);
    }
    selection.entries = entries;
    Ok(selection)
}

/// Makes units of the entries and counts them.
fn sort_out(entries: &[Entry], options: &Options, selection: &mut Selection) {
    // The reference system crashes on f32 files of other sizes than whole words. Without the crash they stay outside
    // of every count but those of selected and of skipped entries.
    let broken = |entry: &Entry| {
        entry.bytes_per_elem == 4 && [&entry.key, &entry.value].iter().any(|file| !file.bytes.is_multiple_of(4))
    };
    let whole = || entries.iter().filter(|entry| !broken(entry));
    selection.layers = whole().map(|entry| entry.layer_id).collect();
    selection.converted = whole().filter(|entry| entry.bytes_per_elem == 4).count() as u64;
    let dump = |entry: &Entry| match &entry.run_id {
        Some(id) => Path::new(id).to_owned(),
        None => entry.meta.parent().unwrap_or(Path::new("")).to_owned(),
    };
    selection.dumps = whole().map(dump).collect::<BTreeSet<_>>().len() as u64;

    let one_run = options.faithful || is_nameless(entries);
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut numbers = BTreeMap::new();
    for (i, entry) in entries.iter().enumerate() {
        if broken(entry) {
            let finding = entry.wrong_size();
            selection.mended.extend(finding.clone());
            selection.skip("compression_failed", finding);
            continue;
        }
        let key = group(entry, i, one_run, options);
        let number = *numbers.entry(key).or_insert(groups.len());
        if number == groups.len() {
            groups.push(Vec::new());
        }
        groups[number].push(i);
    }
    if options.entry_mode.is_grouped() {
        selection.groups = groups.len() as u64;
    }
    for mut group in groups {
        group.sort_by_key(|i| entries[*i].seq_start);
        let findings: Vec<Finding> = group.iter().filter_map(|i| entries[*i].wrong_size()).collect();
        if options.faithful {
            if !findings.is_empty() {
                selection.skip("compression_failed", findings);
                continue;
            }
        } else {
            group.retain(|i| entries[*i].wrong_size().is_none());
            selection.mended.extend(findings.iter().cloned());
            findings.into_iter().for_each(|finding| selection.skip("compression_failed", [finding]));
        }
        if !group.is_empty() {
            selection.units.push(Unit { entries: group });
        }
    }
}

/// The entries of equal groups form a unit.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Group<'a> {
    Entry(usize),
    Run(RunKey<'a>, i64, usize, usize, Option<&'a str>),
}

/// No entry has a run_id that is a string. Such a dump is one run, as the reference reads it; beside named runs each folder
/// without a name is a run.
fn is_nameless(entries: &[Entry]) -> bool {
    entries.iter().all(|entry| entry.run_id.is_none())
}

fn group<'a>(entry: &'a Entry, number: usize, one_run: bool, options: &Options) -> Group<'a> {
    if !options.entry_mode.is_grouped() {
        return Group::Entry(number);
    }
    let run = match entry.run() {
        RunKey::Folder(_) if one_run => RunKey::Id("__no_run_id__"),
        run => run,
    };
    let stage = options.aggregate_by_stage.then_some(entry.stage.as_str());
    Group::Run(run, entry.layer_id, entry.kv_heads, entry.head_dim, stage)
}

/// Lists what the reference system passes over.
fn tell(root: &Path, entries: &[Entry], options: &Options, selection: &mut Selection) {
    let nameless: Vec<&Entry> = entries.iter().filter(|entry| entry.run_id.is_none()).collect();
    let folders: BTreeSet<&Path> = nameless.iter().map(|entry| entry.folder.as_path()).collect();
    if folders.len() > 1 {
        let names: Vec<String> = folders.iter().take(3).map(|folder| folder.display().to_string()).collect();
        let text = format!(
            "{} entries have no run_id that is a string; {} {} folders {}: {}{}",
            nameless.len(),
            if is_nameless(entries) { "their" } else { "each of their" },
            folders.len(),
            if is_nameless(entries) { "are one run, and can be evaluated one by one" } else { "is a run" },
            names.join(", "),
            if folders.len() > 3 { ", ..." } else { "" },
        );
        selection.mended.push(Finding::new("no_run_id", root.display(), text));
    }
    // Filters by stage or length make gaps of their own.
    if options.stage == Stage::Both && options.min_seq_len == 0 && options.max_seq_len == 0 {
        selection.mended.extend(gaps(&entries.iter().collect::<Vec<_>>()));
    }
}
