//! Tables: as aligned lines for terminals, as Markdown, and as HTML.

use crate::output::visible;

/// Most rows of a table of HTML.
const MOST_ROWS: usize = 160;

/// Whether a cell is a number, or nothing.
pub fn is_number(cell: &str) -> bool {
    cell.is_empty() || cell.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '<' | '—'))
}

/// Columns as wide as their longest entry, two spaces apart. Columns of numbers are right-aligned. Nothing without rows.
pub fn text<T: AsRef<str>>(head: &[T], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let head: Vec<String> = head.iter().map(|cell| visible(cell.as_ref())).collect();
    let rows = rows.into_iter().map(|row| row.iter().map(|cell| visible(cell)).collect::<Vec<_>>());
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    let lines = || std::iter::once(&head).filter(|head| !head.is_empty()).chain(&rows);
    let width = |c: usize| lines().filter_map(|row| row.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let is_numbers = |c: usize| rows.iter().filter_map(|row| row.get(c)).all(|cell| is_number(cell));
    let columns = lines().map(Vec::len).max().unwrap_or(0);
    let columns: Vec<(usize, bool)> = (0..columns).map(|c| (width(c), is_numbers(c))).collect();
    let mut text = String::new();
    for row in lines() {
        let mut line = String::from("  ");
        for (cell, (width, is_number)) in row.iter().zip(&columns) {
            let fill = " ".repeat(width - cell.chars().count());
            line += &if *is_number { format!("{fill}{cell}  ") } else { format!("{cell}{fill}  ") };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// The same without a heading.
pub fn lines(rows: impl IntoIterator<Item = Vec<String>>) -> String {
    text(&[""; 0], rows)
}

/// A table of Markdown, whose cells are Markdown already.
pub fn markdown<T: AsRef<str>>(
    head: &[T],
    is_numbers: impl Fn(usize) -> bool,
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let rule = (0..head.len()).map(|column| if is_numbers(column) { "---:|" } else { "---|" }).collect::<String>();
    let head = line(head.iter().map(|cell| cell.as_ref().to_owned()).collect());
    format!("{head}|{rule}\n{}", rows.into_iter().map(line).collect::<String>())
}

/// A table with a title, for terminals and for pages.
pub struct Table {
    pub title: String,
    pub head: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(title: impl Into<String>, head: &[&'static str], rows: impl IntoIterator<Item = Vec<String>>) -> Self {
        Table { title: title.into(), head: head.to_vec(), rows: rows.into_iter().collect() }
    }

    /// The title, and aligned lines; nothing without rows.
    pub fn text(&self) -> String {
        let rows = text(&self.head, self.rows.iter().cloned());
        if rows.is_empty() { rows } else { format!("{}\n{rows}", visible(&self.title)) }
    }

    /// The same as HTML. Columns of numbers are set to the right.
    pub fn html(&self) -> String {
        let shown = &self.rows[..self.rows.len().min(MOST_ROWS)];
        let is_number = |column: usize| shown.iter().filter_map(|row| row.get(column)).all(|cell| is_number(cell));
        let class = |column: usize| if is_number(column) { " class=\"n\"" } else { "" };
        let classes: Vec<&str> = (0..self.head.len()).map(class).collect();
        let line = |element: &str, cells: &mut dyn Iterator<Item = &str>| {
            let cell = |(cell, class): (&str, &&str)| format!("<{element}{class}>{}</{element}>", escaped(cell));
            format!("<tr>{}</tr>\n", cells.zip(&classes).map(cell).collect::<String>())
        };
        let body = shown.iter().map(|row| line("td", &mut row.iter().map(String::as_str))).collect::<String>();
        let (title, head) = (escaped(&self.title), line("th", &mut self.head.iter().copied()));
        let more = match self.rows.len() - shown.len() {
            0 => String::new(),
            more => format!("<p>{more} more rows are in the results.</p>\n"),
        };
        // A box that scrolls must be reached by keyboard.
        format!(
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{title}\">\n<table>\n\
             <caption>{title}</caption>\n<thead>{head}</thead>\n<tbody>\n{body}</tbody>\n</table>\n</div>\n{more}"
        )
    }
}

/// Text for the inside of an element or of an attribute, as one line without controls.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in visible(text).chars() {
        match c {
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '&' => escaped += "&amp;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            '\t' => escaped.push(' '),
            // XML has no such characters.
            '\u{fffe}'..='\u{ffff}' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|cell| cell.to_string()).collect()).collect()
    }

    #[test]
    fn columns_of_numbers_are_set_to_the_right() {
        let sizes = rows(&[&["4,096", "512 MiB", "a"], &["131,072", "16 GiB", "b"]]);
        let text = text(&["context", "raw", "how"], sizes);
        assert_eq!(text, "  context      raw  how\n    4,096  512 MiB  a\n  131,072   16 GiB  b\n");
        let facts = rows(&[&["layers", "2"], &["weights", "F16"]]);
        assert_eq!(lines(facts), "  layers   2\n  weights  F16\n");
        assert_eq!(lines([]), "");
    }
}
