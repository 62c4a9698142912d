//! A progress bar on standard error, if that is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// A bar of `bytes` bytes; hidden unless standard error is a terminal.
pub fn bytes(what: &'static str, total: u64) -> ProgressBar {
    let target =
        if std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template("{msg} [{bar:32}] {bytes}/{total_bytes}, {eta} left")
        .expect("the template is ours")
        .progress_chars("=> ");
    ProgressBar::with_draw_target(Some(total), target).with_style(style).with_message(what)
}
