//! Shell completions and manual pages, from the same definitions as `--help`.

use crate::failure::Failure;
use crate::output::Output;
use clap::Args;
use clap_complete::Shell;
use serde_json::json;
use std::path::PathBuf;

/// Print a completion script for a shell.
///
/// For bash: mnnkv completions bash > ~/.local/share/bash-completion/completions/mnnkv
#[derive(Args)]
pub struct Completions {
    /// The shell to write the script for
    shell: Shell,
}

/// Write manual pages, one for mnnkv and one for each command.
#[derive(Args)]
pub struct Man {
    /// The folder of the pages, such as ~/.local/share/man/man1; created if missing
    folder: PathBuf,
}

pub fn completions(arguments: &Completions, mut command: clap::Command) -> Result<Output, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "mnnkv", &mut script);
    let script = String::from_utf8(script).map_err(|e| Failure(format!("a bug in mnnkv: {e}")))?;
    let object = json!({ "shell": arguments.shell.to_string(), "script": script });
    Ok(Output::new(script, object))
}

pub fn man(arguments: &Man, command: clap::Command) -> Result<Output, Failure> {
    let folder = &arguments.folder;
    let failed = |e: std::io::Error| Failure(format!("cannot write to {}: {e}", folder.display()));
    std::fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(command, folder).map_err(failed)?;
    let text = format!("manual pages are in {}\n", folder.display());
    Ok(Output::new(text, json!({ "folder": folder.display().to_string() })))
}
