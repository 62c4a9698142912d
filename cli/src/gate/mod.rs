//! `mnnkv gate`.

use crate::failure::Failure;
use crate::output::Output;
use clap::Args;

/// Checks results against thresholds.
#[derive(Args)]
pub struct Arguments {}

pub fn run(_arguments: &Arguments) -> Result<Output, Failure> {
    Err(Failure("not written yet".into()))
}
