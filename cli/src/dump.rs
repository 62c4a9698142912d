//! `mnnkv dump`.

use crate::failure::Failure;
use crate::output::Output;
use clap::Args;

/// Copies a dump into the folder format that other tools read.
#[derive(Args)]
pub struct Arguments {}

pub fn run(_arguments: &Arguments) -> Result<Output, Failure> {
    Err(Failure("not written yet".into()))
}
