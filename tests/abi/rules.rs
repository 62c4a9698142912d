//! Which changes break programs that were built with an earlier header (docs/abi.md).

use crate::headers::{EXPERIMENTAL, Field, Item, What};

/// A sentence for each change that breaks such programs.
pub fn breaks(old: &[Item], new: &[Item]) -> Vec<String> {
    let stable = old.iter().filter(|item| item.since != EXPERIMENTAL);
    stable.flat_map(|item| breaks_of(item, new.iter().find(|now| now.name == item.name))).collect()
}

fn breaks_of(old: &Item, new: Option<&Item>) -> Vec<String> {
    let name = &old.name;
    let effect = match &old.what {
        What::Constant(_) => "programs have the old value compiled in",
        What::Type(_) => "programs pass it as the old type",
        What::Function(_) => "programs pass and read the old arguments",
        What::Handle | What::Struct { .. } => "programs use it as it was",
    };
    let Some(new) = new else {
        let effect = if let What::Function(_) = old.what { "programs that call it do not start" } else { effect };
        return vec![format!("{name} is no longer declared: {effect}")];
    };
    if new.since == EXPERIMENTAL {
        return vec![format!("{name} needs MNNKV_EXPERIMENTAL now: programs use it without")];
    }
    match (&old.what, &new.what) {
        (What::Struct { bytes: old_bytes, fields: old }, What::Struct { bytes, fields }) => {
            breaks_of_struct(name, (*old_bytes, old), (*bytes, fields))
        }
        (was, is) if was == is => vec![],
        (was, is) => vec![format!("{name} was {}, is {}: {effect}", text(was), text(is))],
    }
}

fn text(what: &What) -> &str {
    match what {
        What::Constant(text) | What::Type(text) | What::Function(text) => text,
        What::Handle => "a handle",
        What::Struct { .. } => "a struct",
    }
}

fn breaks_of_struct(name: &str, (old_bytes, old): (usize, &[Field]), (bytes, new): (usize, &[Field])) -> Vec<String> {
    let is_reserved = |field: &&Field| field.name == "reserved" || field.name.ends_with("_reserved");
    let mut found = Vec::new();
    for field in old.iter().filter(|field| !is_reserved(field)) {
        let place = |field: &Field| format!("{} at byte {}", field.kind, field.at);
        match new.iter().find(|now| now.name == field.name) {
            None => found.push(format!("{name}::{} is gone: programs write and read it", field.name)),
            Some(now) if (now.at, &now.kind) != (field.at, &field.kind) => found.push(format!(
                "{name}::{} was {}, is {}: programs write and read it where it was",
                field.name,
                place(field),
                place(now)
            )),
            Some(_) => {}
        }
    }
    let fits = |field: &&Field| {
        let is_old = old.iter().any(|was| was.name == field.name && !is_reserved(&was));
        let takes = |was: &Field| was.at <= field.at && field.at + field.bytes <= was.at + was.bytes;
        is_old || field.at >= old_bytes || old.iter().filter(is_reserved).any(takes)
    };
    found.extend(new.iter().filter(|field| !fits(field)).map(|field| {
        let there = "programs have other bytes or padding there, which need not be 0";
        format!("{name}::{} is new at byte {}, in front of byte {old_bytes}: {there}", field.name, field.at)
    }));
    let grows = old.first().is_some_and(|field| field.name == "struct_size");
    if found.is_empty() && (bytes < old_bytes || bytes > old_bytes && !grows) {
        let reason =
            if grows { "a struct may only grow" } else { "it has no struct_size, and arrays of it have that distance" };
        found.push(format!("{name} was {old_bytes} bytes, is {bytes}: {reason}"));
    }
    found
}
