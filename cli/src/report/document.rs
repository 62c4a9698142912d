//! A report as blocks, whatever they are written as.

use super::chart::{Panel, Shape};
use crate::table::is_number;

/// Most rows of a table that are written.
pub const MOST_ROWS: usize = 160;
/// Most characters of a name from a file.
const MOST_CHARS: usize = 120;

/// A part of a line.
pub enum Span {
    Text(String),
    Strong(String),
    Code(String),
}

/// Text with emphasis.
#[derive(Default)]
pub struct Line(pub Vec<Span>);

impl Line {
    pub fn new(text: impl Into<String>) -> Self {
        Line::default().text(text)
    }

    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.0.push(Span::Text(text.into()));
        self
    }

    pub fn strong(mut self, text: impl Into<String>) -> Self {
        self.0.push(Span::Strong(text.into()));
        self
    }

    pub fn code(mut self, text: impl Into<String>) -> Self {
        self.0.push(Span::Code(text.into()));
        self
    }
}

impl From<String> for Line {
    fn from(text: String) -> Self {
        Line::new(text)
    }
}

impl From<&str> for Line {
    fn from(text: &str) -> Self {
        Line::new(text)
    }
}

/// A figure that is read first.
pub struct Tile {
    pub value: String,
    pub label: String,
    pub note: String,
}

/// Rows of text. Columns of numbers are right-aligned.
pub struct Table {
    pub caption: String,
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// Rows that were left out.
    pub dropped: usize,
}

impl Table {
    /// Keeps the first rows.
    pub fn new(caption: impl Into<String>, head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Self {
        let mut rows = rows.into_iter();
        let kept = rows.by_ref().take(MOST_ROWS).collect();
        let head = head.iter().map(|cell| (*cell).to_owned()).collect();
        Table { caption: caption.into(), head, rows: kept, dropped: rows.count() }
    }

    /// Whether a column has numbers only.
    pub fn is_number(&self, column: usize) -> bool {
        self.is_short(column) && self.rows.iter().filter_map(|row| row.get(column)).all(|cell| is_number(cell))
    }

    /// Whether the cells of a column are short enough to stay on one line.
    pub fn is_short(&self, column: usize) -> bool {
        self.rows.iter().filter_map(|row| row.get(column)).all(|cell| cell.chars().count() <= 28)
    }
}

/// Charts of one subject, with a legend, and their figures as a table.
pub struct Figure {
    pub legend: Vec<(usize, Shape, String)>,
    pub panels: Vec<Panel>,
    pub table: Table,
}

/// A part of a report.
pub enum Block {
    /// Level 2 or 3.
    Heading(u8, String),
    Paragraph(Line),
    /// Set apart: what to keep in mind.
    Note(Line),
    List(Vec<Line>),
    Steps(Vec<(Line, Vec<Block>)>),
    Tiles(Vec<Tile>),
    Table(Table),
    Figure(Box<Figure>),
    Code(String),
    Details(String, Vec<Block>),
}

/// A report.
pub struct Document {
    pub title: String,
    pub subtitle: Line,
    pub blocks: Vec<Block>,
    /// At the end: the program and its version.
    pub footer: Line,
}

/// A name from a file: one line, no controls, not too long.
pub fn name(text: &str) -> String {
    bounded(text, MOST_CHARS)
}

/// A sentence from a file as one line of bounded length.
pub fn sentence(text: &str) -> String {
    bounded(text, 6 * MOST_CHARS)
}

fn bounded(text: &str, most: usize) -> String {
    let line = crate::output::visible(text);
    match line.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// A ratio: 2.24.
pub fn ratio(ratio: f64) -> String {
    match ratio {
        r if r >= 1e4 => format!("{r:.1e}"),
        r if r >= 100.0 => format!("{r:.0}"),
        r if r >= 0.01 => format!("{r:.2}"),
        r => format!("{r:.1e}"),
    }
}

/// A share with two digits: 4.1%, 13%, 0.012%.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent.abs() {
        p if p >= 1e6 => format!("{percent:.1e}%"),
        p if p >= 9.95 => format!("{percent:.0}%"),
        p if p >= 0.995 => format!("{percent:.1}%"),
        p if p >= 0.0995 => format!("{percent:.2}%"),
        p if p >= 0.001 => format!("{percent:.3}%"),
        0.0 => "0%".into(),
        _ => "<0.001%".into(),
    }
}

/// The change from one number to another: +2.1%.
pub fn change(from: f64, to: f64) -> String {
    if from == to {
        return "+0%".into();
    }
    let change = to / from - 1.0;
    if !change.is_finite() {
        return "—".into();
    }
    format!("{}{}", if change < 0.0 { "-" } else { "+" }, percent(change.abs()))
}

/// Bytes per second: 2.4 GB/s.
pub fn speed(bytes: f64) -> String {
    let mut amount = bytes;
    for unit in ["B/s", "kB/s", "MB/s", "GB/s"] {
        if amount < 999.5 {
            let digits = usize::from(amount < 9.95);
            return format!("{amount:.digits$} {unit}");
        }
        amount /= 1000.0;
    }
    format!("{amount:.0} TB/s")
}

/// A tick of an axis: a number without zeros at its end.
pub fn tick(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Three digits of a number of any size.
pub fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 1e9 || (v > 0.0 && v < 1e-3) => format!("{value:.2e}"),
        v if v >= 1000.0 && value >= 0.0 => crate::bytes::count(value.round() as u64),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => tick(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_as_many_digits_as_help() {
        let shares = [0.0, 3e-6, 1.18e-4, 0.0409, 0.0996, 0.128, 1.0, 1e9].map(percent);
        assert_eq!(shares, ["0%", "<0.001%", "0.012%", "4.1%", "10%", "13%", "100%", "1.0e11%"]);
        assert_eq!([1.0, 2.2448, 1088.0 / 9.0, 1e8, 1e-5].map(ratio), ["1.00", "2.24", "121", "1.0e8", "1.0e-5"]);
        let speeds = [1.0, 999.6, 240e6, 2.43e9, 9.96e9, 1e14].map(speed);
        assert_eq!(speeds, ["1.0 B/s", "1.0 kB/s", "240 MB/s", "2.4 GB/s", "10 GB/s", "100 TB/s"]);
        assert_eq!([(2.0, 2.0), (2.0, 2.2), (2.0, 1.5)].map(|(a, b)| change(a, b)), ["+0%", "+10%", "-25%"]);
        assert_eq!(
            [0.0, 3.5, 1e-5, 1088.0, 4e10, 0.05, 12.345].map(number),
            ["0", "3.5", "1.00e-5", "1,088", "4.00e10", "0.05", "12.3"]
        );
    }

    #[test]
    fn names_are_one_line_of_bounded_length() {
        assert_eq!(name("a\nb\u{202e}"), "a\\nb\\u{202e}");
        assert_eq!(name(&"é".repeat(1000)).chars().count(), MOST_CHARS + 1);
    }
}
