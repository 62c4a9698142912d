//! A test that runs another one of its program in a process of its own.

use std::process::Command;

/// The program of this test, with the ignored test `name` alone. Programs of another architecture need an emulator, which
/// MNNKV_TEST_RUNNER names.
pub fn again(name: &str) -> Command {
    let runner = std::env::var("MNNKV_TEST_RUNNER").unwrap_or_default();
    let test = std::env::current_exe().unwrap();
    let mut words = runner.split_whitespace().map(Into::into).chain([test.into_os_string()]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words).args(["--exact", name, "--ignored", "--nocapture"]);
    command
}
