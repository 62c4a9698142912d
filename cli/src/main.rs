//! `mnnkv`, the command line of mnn-kv.

mod bytes;
mod chart;
mod check;
#[cfg(feature = "convert")]
mod convert;
mod dequantize;
mod dtype;
mod evaluate;
mod failure;
mod gate;
mod input;
mod output;
mod pages;
mod progress;
mod quality;
mod report;
mod results;
mod size;
mod table;

use clap::{CommandFactory, Parser, Subcommand};
use failure::Failure;
use output::Output;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

/// Evaluates dumps of a KV cache, judges runs, and reads and converts model files.
///
/// mnnkv evaluates what mnn-kv would save on dumps of a KV cache, judges results and shows them as a page. It also reads learned KV-cache compressors (.bin, the format of InfiniLM and FastCache) and model directories
/// quantised by msmodelslim. Input files are never changed. An output appears under its name when it is complete.
#[derive(Parser)]
#[command(name = "mnnkv", version, max_term_width = 100, arg_required_else_help = true, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Print one JSON object instead of text, also for a failure
    #[arg(long, global = true, display_order = 99)]
    json: bool,
}

const EXIT_CODES: &str = "\
Exit codes:
  0  done; for check: no errors were found; for gate: all gates passed
  1  check found errors, a gate failed, or evaluate was stopped
  2  the command line is wrong
  3  failed: the reason is on standard error; no file was written\n";

#[derive(Subcommand)]
enum Command {
    #[cfg(feature = "convert")]
    ConvertCompressor(convert::Arguments),
    Check(check::Arguments),
    Dequantize(dequantize::Arguments),
    Size(size::Arguments),
    Evaluate(Box<evaluate::Arguments>),
    Quality(quality::Arguments),
    Gate(gate::Arguments),
    Report(report::Arguments),
    Completions(pages::Completions),
    Man(pages::Man),
}

/// Prints the error of the command line, or the help, as text or as JSON.
fn misused(e: &clap::Error) -> ExitCode {
    if !e.use_stderr() {
        return match e.print().and_then(|()| io::stdout().flush()) {
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Failure::of_output(&e).print(false),
            _ => ExitCode::SUCCESS,
        };
    }
    let text = e.to_string();
    if std::env::args_os().any(|word| word == "--json") {
        let _ = output::print(&output::object(&serde_json::json!({ "error": text.trim_end() })));
    } else {
        // The message repeats the wrong word.
        let lines: String = text.lines().map(|line| output::visible(line) + "\n").collect();
        let _ = io::stderr().write_all(lines.as_bytes());
    }
    ExitCode::from(2)
}

fn run(command: &Command) -> Result<Output, Failure> {
    match command {
        #[cfg(feature = "convert")]
        Command::ConvertCompressor(arguments) => convert::run(arguments),
        Command::Check(arguments) => check::run(arguments),
        Command::Dequantize(arguments) => dequantize::run(arguments),
        Command::Size(arguments) => size::run(arguments),
        Command::Evaluate(arguments) => evaluate::run(arguments),
        Command::Quality(arguments) => quality::run(arguments),
        Command::Gate(arguments) => gate::run(arguments),
        Command::Report(arguments) => report::run(arguments),
        Command::Completions(arguments) => pages::completions(arguments, Cli::command()),
        Command::Man(arguments) => pages::man(arguments, Cli::command()),
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => return misused(&e),
    };
    // A panic is printed as a failure. The default hook would write its message to standard error unescaped.
    std::panic::set_hook(Box::new(|_| ()));
    let outcome = catch_unwind(AssertUnwindSafe(|| run(&cli.command)));
    match outcome.unwrap_or_else(|panic| Err(Failure::bug(&*panic))) {
        Ok(output) => output.print(cli.json),
        Err(failure) => failure.print(cli.json),
    }
}
