//! The inputs of `fuzz/corpus` through the targets of `make fuzz`, without libFuzzer. It is here because this crate has all
//! readers.

#[path = "../../fuzz/src/bodies/mod.rs"]
mod bodies;
#[path = "../../fuzz/src/failure.rs"]
mod failure;

use bodies::TARGETS;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")
}

/// The names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn no_input_of_the_corpus_makes_its_target_panic() {
    for (target, body) in TARGETS {
        let folder = fuzz().join("corpus").join(target);
        for name in names(&folder) {
            let bytes = fs::read(folder.join(&name)).unwrap();
            assert!(catch_unwind(|| body(&bytes)).is_ok(), "fuzz/corpus/{target}/{name}");
        }
    }
}

#[test]
fn every_target_has_a_program_and_a_corpus() {
    let targets: Vec<String> = TARGETS.iter().map(|(target, _)| target.to_string()).collect();
    assert_eq!(names(&fuzz().join("corpus")), targets);
    let programs = names(&fuzz().join("fuzz_targets"));
    assert_eq!(programs, targets.iter().map(|target| format!("{target}.rs")).collect::<Vec<_>>());
}
