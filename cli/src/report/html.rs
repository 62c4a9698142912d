//! A document as one page of HTML. The page is well-formed XML too, and refers to nothing outside.

use super::chart::{self, Panel, Shape};
use super::document::{Block, Document, Figure, Line, Span, Table};
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");

/// The page.
pub fn page(document: &Document) -> String {
    let mut page = Page::default();
    page.write(format_args!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n<title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n",
        escaped(&document.title)
    ));
    page.write(format_args!("<header>\n<h1>{}</h1>\n<p class=\"lead\">", escaped(&document.title)));
    page.line(&document.subtitle);
    page.text("</p>\n</header>\n<main>\n");
    page.blocks(&document.blocks);
    page.text("</main>\n<footer><p>");
    page.line(&document.footer);
    page.text("</p></footer>\n</body>\n</html>\n");
    page.html
}

/// Text for the inside of an element or of an attribute. Characters that XML forbids become U+FFFD.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '&' => escaped += "&amp;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() || ('\u{fffe}'..='\u{ffff}').contains(&c) => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[derive(Default)]
struct Page {
    html: String,
    /// Numbers the charts, for their ids.
    charts: usize,
}

impl Page {
    fn text(&mut self, html: &str) {
        self.html += html;
    }

    fn write(&mut self, html: std::fmt::Arguments<'_>) {
        // A string takes every text.
        let _ = self.html.write_fmt(html);
    }

    fn line(&mut self, line: &Line) {
        for span in &line.0 {
            match span {
                Span::Text(text) => self.html += &escaped(text),
                Span::Strong(text) => self.write(format_args!("<strong>{}</strong>", escaped(text))),
                Span::Code(text) => self.write(format_args!("<code>{}</code>", escaped(text))),
            }
        }
    }

    fn element(&mut self, open: &str, line: &Line, close: &str) {
        self.text(open);
        self.line(line);
        self.text(close);
    }

    fn blocks(&mut self, blocks: &[Block]) {
        let mut in_section = false;
        for block in blocks {
            if matches!(block, Block::Heading(2, _)) {
                self.text(if in_section { "</section>\n<section>\n" } else { "<section>\n" });
                in_section = true;
            }
            self.block(block);
        }
        if in_section {
            self.text("</section>\n");
        }
    }

    fn block(&mut self, block: &Block) {
        match block {
            Block::Heading(level, text) => self.write(format_args!("<h{level}>{}</h{level}>\n", escaped(text))),
            Block::Paragraph(line) => self.element("<p>", line, "</p>\n"),
            Block::Note(line) => self.element("<p class=\"note\">", line, "</p>\n"),
            Block::List(items) => {
                self.text("<ul>\n");
                items.iter().for_each(|item| self.element("<li>", item, "</li>\n"));
                self.text("</ul>\n");
            }
            Block::Steps(steps) => {
                self.text("<ol>\n");
                for (line, blocks) in steps {
                    self.element("<li>", line, "\n");
                    blocks.iter().for_each(|block| self.block(block));
                    self.text("</li>\n");
                }
                self.text("</ol>\n");
            }
            Block::Tiles(tiles) => {
                self.text("<dl class=\"tiles\">\n");
                for tile in tiles {
                    let (label, value, note) = (escaped(&tile.label), escaped(&tile.value), escaped(&tile.note));
                    self.write(format_args!(
                        "<div><dt>{label}</dt><dd class=\"value\">{value}</dd><dd>{note}</dd></div>\n"
                    ));
                }
                self.text("</dl>\n");
            }
            Block::Table(table) => self.table(table),
            Block::Figure(figure) => self.figure(figure),
            Block::Code(code) => self.write(format_args!("<pre><code>{}</code></pre>\n", escaped(code))),
            Block::Details(summary, blocks) => {
                self.write(format_args!("<details>\n<summary>{}</summary>\n", escaped(summary)));
                blocks.iter().for_each(|block| self.block(block));
                self.text("</details>\n");
            }
        }
    }

    fn table(&mut self, table: &Table) {
        let classes: Vec<&str> = (0..table.head.len())
            .map(|column| match (table.is_number(column), table.is_short(column)) {
                (true, _) => " class=\"n\"",
                (_, true) => " class=\"s\"",
                _ => "",
            })
            .collect();
        let class = |column: usize| classes.get(column).copied().unwrap_or("");
        // A box that scrolls must be reached by keyboard.
        self.text("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"");
        self.text(&escaped(&table.caption));
        self.write(format_args!("\">\n<table>\n<caption>{}</caption>\n<thead><tr>", escaped(&table.caption)));
        for (column, cell) in table.head.iter().enumerate() {
            self.write(format_args!("<th scope=\"col\"{}>{}</th>", class(column), escaped(cell)));
        }
        self.text("</tr></thead>\n<tbody>\n");
        for row in &table.rows {
            self.text("<tr>");
            for (column, cell) in row.iter().enumerate() {
                let (cell, class) = (escaped(cell), class(column));
                if column == 0 {
                    self.write(format_args!("<th scope=\"row\"{class}>{cell}</th>"));
                } else {
                    self.write(format_args!("<td{class}>{cell}</td>"));
                }
            }
            self.text("</tr>\n");
        }
        self.text("</tbody>\n</table>\n</div>\n");
        if table.dropped > 0 {
            self.write(format_args!("<p class=\"small\">{} more rows are in the results.</p>\n", table.dropped));
        }
    }

    fn figure(&mut self, figure: &Figure) {
        self.text("<figure>\n");
        if !figure.legend.is_empty() {
            self.text("<ul class=\"legend\">\n");
            for (series, shape, label) in &figure.legend {
                self.sample(*series, shape, label);
            }
            self.text("</ul>\n");
        }
        self.text("<div class=\"panels\">\n");
        figure.panels.iter().for_each(|panel| self.panel(panel));
        self.text("</div>\n<details>\n<summary>The same figures as a table</summary>\n");
        self.table(&figure.table);
        self.text("</details>\n</figure>\n");
    }

    fn sample(&mut self, series: usize, shape: &Shape, label: &str) {
        let (svg, view_box) = chart::sample(series, shape);
        self.write(format_args!(
            "<li><svg viewBox=\"{view_box}\" width=\"30\" height=\"14\" aria-hidden=\"true\">{svg}</svg>{}</li>\n",
            escaped(label)
        ));
    }

    fn panel(&mut self, panel: &Panel) {
        self.charts += 1;
        let id = self.charts;
        self.write(format_args!(
            "<div class=\"panel\"><h4>{title}</h4>\n<svg viewBox=\"{}\" role=\"img\" aria-labelledby=\"t{id} d{id}\">\n\
             <title id=\"t{id}\">{title}</title>\n<desc id=\"d{id}\">{}</desc>\n{}</svg></div>\n",
            chart::view_box(),
            escaped(&panel.description),
            panel.svg(),
            title = escaped(&panel.title),
        ));
    }
}
