//! A progress bar on standard error, if that is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// A bar of `total` bytes; hidden unless standard error is a terminal.
pub fn bytes(what: &'static str, total: u64) -> ProgressBar {
    bar(what, total, "{msg} [{bar:32}] {bytes}/{total_bytes}, {eta} left")
}

/// A bar of `total` parts of work, likewise.
pub fn parts(what: &'static str, total: u64) -> ProgressBar {
    bar(what, total, "{msg} [{bar:32}] {pos}/{len}, {eta} left")
}

fn bar(what: &'static str, total: u64, template: &str) -> ProgressBar {
    let target =
        if std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template(template).expect("the template is ours").progress_chars("=> ");
    ProgressBar::with_draw_target(Some(total), target).with_style(style).with_message(what)
}
