//! `mnnkv evaluate`.

use crate::failure::Failure;
use crate::output::Output;
use clap::Args;

/// Computes what mnn-kv would save on dumps of a KV cache, and at what price.
#[derive(Args)]
pub struct Arguments {}

pub fn run(_arguments: &Arguments) -> Result<Output, Failure> {
    Err(Failure("not written yet".into()))
}
