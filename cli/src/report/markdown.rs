//! A document as Markdown: tables instead of charts.

use super::document::{Block, Document, Line, Span, Table};
use crate::table;
use std::fmt::Write;

/// The text.
pub fn page(document: &Document) -> String {
    let mut text = format!("# {}\n\n{}\n\n", escaped(&document.title), line(&document.subtitle));
    blocks(&document.blocks, &mut text);
    text += &format!("---\n\n{}\n", line(&document.footer));
    text
}

/// Text without the meaning that Markdown or HTML would give it.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '&' => escaped += "&amp;",
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '~' | '$' => escaped.extend(['\\', c]),
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    // A bare address would become a link.
    escaped.replace("://", "&#58;//")
}

fn code(text: &str) -> String {
    // A code span has no escapes, but it may be quoted by more backticks than it has.
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    let space = if longest > 0 { " " } else { "" };
    format!("{fence}{space}{text}{space}{fence}")
}

fn line(line: &Line) -> String {
    let span = |span: &Span| match span {
        Span::Text(text) => escaped(text),
        Span::Strong(text) => format!("**{}**", escaped(text)),
        Span::Code(text) => code(text),
    };
    line.0.iter().map(span).collect()
}

fn blocks(blocks: &[Block], text: &mut String) {
    blocks.iter().for_each(|each| block(each, text));
}

fn block(block: &Block, text: &mut String) {
    // A string takes every text.
    let _ = match block {
        Block::Heading(level, title) => writeln!(text, "{} {}\n", "#".repeat((*level).into()), escaped(title)),
        Block::Paragraph(paragraph) => writeln!(text, "{}\n", line(paragraph)),
        Block::Note(note) => writeln!(text, "> {}\n", line(note)),
        Block::List(items) => {
            items.iter().for_each(|item| *text += &format!("- {}\n", line(item)));
            writeln!(text)
        }
        Block::Steps(steps) => {
            for (i, (step, inside)) in steps.iter().enumerate() {
                *text += &format!("{}. {}\n\n", i + 1, line(step));
                blocks(inside, text);
            }
            Ok(())
        }
        Block::Tiles(tiles) => {
            for tile in tiles {
                let (value, label, note) = (escaped(&tile.value), escaped(&tile.label), escaped(&tile.note));
                *text += &format!("- **{value}** {label}: {note}\n");
            }
            writeln!(text)
        }
        Block::Table(rows) => {
            write_table(rows, text);
            Ok(())
        }
        Block::Figure(figure) => {
            write_table(&figure.table, text);
            Ok(())
        }
        Block::Code(json) => writeln!(text, "```json\n{json}\n```\n"),
        Block::Details(summary, inside) => {
            *text += &format!("**{}**\n\n", escaped(summary));
            blocks(inside, text);
            Ok(())
        }
    };
}

fn write_table(table: &Table, text: &mut String) {
    *text += &format!("{}\n\n", escaped(&table.caption));
    let cells = |cells: &Vec<String>| cells.iter().map(|cell| escaped(cell)).collect::<Vec<_>>();
    let rows = table.rows.iter().map(cells);
    *text += &table::markdown(&cells(&table.head), |column| table.is_number(column), rows);
    text.push('\n');
    if table.dropped > 0 {
        *text += &format!("{} more rows are in the results.\n\n", table.dropped);
    }
}
