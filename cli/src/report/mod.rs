//! `mnnkv report`.

use crate::failure::Failure;
use crate::output::Output;
use clap::Args;

/// Writes results as one HTML page.
#[derive(Args)]
pub struct Arguments {}

pub fn run(_arguments: &Arguments) -> Result<Output, Failure> {
    Err(Failure("not written yet".into()))
}
