//! Shell completions and manual pages, from the same definitions as `--help`.

use crate::failure::Failure;
use crate::output::Answer;
use clap::Args;
use clap_complete::Shell;
use serde_json::json;
use std::path::PathBuf;

/// Print a completion script for a shell.
///
/// For bash: mnnkv completions bash > ~/.local/share/bash-completion/completions/mnnkv
#[derive(Args)]
pub struct Completions {
    /// The shell that is to complete commands
    shell: Shell,
}

/// Write manual pages, one for mnnkv and one for each command.
#[derive(Args)]
pub struct Man {
    /// A folder for them, such as ~/.local/share/man/man1; made when it is not there
    folder: PathBuf,
}

pub fn completions(arguments: &Completions, mut command: clap::Command) -> Result<Answer, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "mnnkv", &mut script);
    let script = String::from_utf8(script).map_err(|e| Failure(format!("a bug in mnnkv: {e}")))?;
    let object = json!({ "shell": arguments.shell.to_string(), "script": script });
    Ok(Answer::new(script, object))
}

pub fn man(arguments: &Man, command: clap::Command) -> Result<Answer, Failure> {
    let folder = &arguments.folder;
    let failed = |e: std::io::Error| Failure(format!("cannot write to {}: {e}", folder.display()));
    std::fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(command, folder).map_err(failed)?;
    let text = format!("manual pages are in {}\n", folder.display());
    Ok(Answer::new(text, json!({ "folder": folder.display().to_string() })))
}
