//! Tables of llm_bench in Markdown, with log lines around them.

use super::cells::{Cell, Column, Place, Row, measured, number};

/// Lines of a log that tell of a damaged cache; case does not matter.
const BAD_LINES: [&str; 8] = [
    "invalid kv realloc",
    "invalid kv reserve range",
    "kv length/meta previous mismatch",
    "drop stale per-layer pending plan",
    "corrupted size",
    "double free",
    "segmentation fault",
    "munmap_chunk",
];

/// A line of a log.
#[derive(Clone, Debug)]
pub struct BadLine {
    pub place: Place,
    pub text: String,
}

/// The lines of a log that tell of a damaged cache.
pub fn bad_lines(file: &str, text: &str) -> Vec<BadLine> {
    let bad = |line: &str| {
        let line = line.to_ascii_lowercase();
        BAD_LINES.iter().any(|bad| line.contains(bad))
    };
    let lines = text.lines().enumerate().filter(|(_, line)| bad(line));
    lines.map(|(n, line)| BadLine { place: place(file, n), text: line.trim().to_owned() }).collect()
}

fn place(file: &str, line: usize) -> Place {
    Place { file: file.to_owned(), at: (line + 1).to_string() }
}

/// The cells of a line `| a | b |`.
fn split(line: &str) -> Option<Vec<&str>> {
    let inner = line.trim().strip_prefix('|')?;
    Some(inner.strip_suffix('|').unwrap_or(inner).split('|').map(str::trim).collect())
}

fn is_heading(cells: &[&str]) -> bool {
    cells.contains(&"model")
        && cells.iter().any(|cell| ["speed(tok/s)", "t/s"].contains(cell) || cell.starts_with("h2o_"))
}

fn is_rule(cells: &[&str]) -> bool {
    cells.iter().all(|cell| cell.contains('-') && cell.chars().all(|c| matches!(c, '-' | ':')))
}

/// The rows of all tables of a file.
///
/// A heading begins a table. In a faithful reading only the first heading of a file does, and later ones are rows.
pub fn rows(file: &str, text: &str, faithful: bool) -> Result<Vec<Row>, String> {
    let mut heading: Option<Vec<&str>> = None;
    let mut rows = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let Some(cells) = split(line) else { continue };
        let begins = is_heading(&cells) && (heading.is_none() || !faithful);
        match &heading {
            _ if begins => {
                let twice = cells.iter().enumerate().find(|(i, name)| !name.is_empty() && cells[..*i].contains(name));
                if let Some((_, name)) = twice.filter(|_| !faithful) {
                    return Err(format!("{}: the heading has {name} twice", place(file, n)));
                }
                heading = Some(cells);
            }
            None => {}
            Some(_) if is_rule(&cells) => {}
            Some(names) if names.len() != cells.len() && !faithful => {
                let at = place(file, n);
                return Err(format!("{at}: the row has {} cells, its heading {}", cells.len(), names.len()));
            }
            Some(names) => rows.push(row(place(file, n), names, &cells, faithful)),
        }
    }
    Ok(rows)
}

fn row(place: Place, names: &[&str], cells: &[&str], faithful: bool) -> Row {
    let find = |name: &str| names.iter().position(|n| *n == name).and_then(|i| cells.get(i)).copied();
    let key = ["model", "backend", "threads"].map(|name| find(name).unwrap_or_default()).join("|");
    let mut row = Row::new(place, key);
    for (name, text) in names.iter().zip(cells) {
        if let Some((column, scale)) = Column::find(name) {
            // Memory may grow; all else is counted or measured from 0 on.
            let read = if column == Column::SavedBytes { number } else { measured };
            row.set(column, scaled(read(text, faithful), scale));
        }
    }
    row.decode = decode(find("speed(tok/s)"), find("t/s"), find("test").unwrap_or_default(), faithful);
    row
}

pub fn scaled(cell: Cell, scale: f64) -> Cell {
    match cell {
        Cell::Number(number) => Cell::Number(number * scale),
        other => other,
    }
}

/// `prefill<br>decode`, or one speed in a row of a test that only decodes.
fn decode(speed: Option<&str>, single: Option<&str>, test: &str, faithful: bool) -> Cell {
    if let Some((_, decode)) = speed.and_then(|speed| speed.split_once("<br>")) {
        return measured(decode, faithful);
    }
    match (speed, speed.or(single)) {
        _ if faithful => Cell::Number(0.0),
        (_, Some(speed)) if test.starts_with("tg") => measured(speed, false),
        (Some(speed), _) if test.is_empty() => Cell::Bad(format!("{speed:?} has no <br> before the decode speed")),
        _ => Cell::Absent,
    }
}
