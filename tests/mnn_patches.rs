//! What the README of integrations/mnn says of the patches and of check.sh. MNN itself is not needed.
#![cfg(unix)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("integrations/mnn")
}

fn patches() -> Vec<(String, String)> {
    let mut patches: Vec<_> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "patch"))
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read_to_string(path).unwrap()))
        .collect();
    patches.sort();
    patches
}

/// Lines that a patch inserts, as (file, line).
fn inserted(patch: &str) -> Vec<(&str, &str)> {
    let mut file = "";
    let mut lines = Vec::new();
    for line in patch.lines() {
        match line.strip_prefix("+++ b/") {
            Some(path) => file = path,
            None => lines.extend(line.strip_prefix('+').map(|text| (file, text))),
        }
    }
    lines
}

#[test]
fn there_is_a_patch_for_each_version_that_the_readme_names() {
    let names: Vec<_> = patches().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["mnn-3.6.1.patch", "mnn-master.patch"]);
    let readme = fs::read_to_string(folder().join("README.md")).unwrap();
    assert!(names.iter().all(|name| readme.contains(&format!("`{name}`"))));
}

#[test]
fn patches_hold_only_our_lines_and_at_most_150() {
    for (name, patch) in patches() {
        for line in patch.lines() {
            let hunk = line.starts_with("@@ ") && line.ends_with(" @@") && line.contains(",0 +");
            let header = ["diff --git a/", "index ", "--- a/", "+++ b/"].iter().any(|start| line.starts_with(start));
            assert!(hunk || header || line.starts_with('+'), "{name}: {line}");
        }
        let count = inserted(&patch).len();
        assert!((1..=150).contains(&count), "{name} inserts {count} lines");
        let readme = fs::read_to_string(folder().join("README.md")).unwrap();
        assert!(readme.contains(&format!("A patch of {count} inserted lines")), "{name} inserts {count} lines");
    }
}

#[test]
fn without_mnn_kv_a_patched_mnn_is_what_it_was() {
    for (name, patch) in patches() {
        let mut inside = false;
        for (file, line) in inserted(&patch) {
            match (file, line) {
                ("CMakeLists.txt", _) => {}
                (_, "#ifdef MNN_KV") => assert!(!std::mem::replace(&mut inside, true), "{name}: {file}"),
                (_, "#endif") => assert!(std::mem::replace(&mut inside, false), "{name}: {file}"),
                _ => assert!(inside, "{name}: {file}: {line} is compiled without MNN_KV"),
            }
        }
        assert!(!inside, "{name}");
        let cmake: Vec<_> = inserted(&patch).into_iter().filter(|(file, _)| *file == "CMakeLists.txt").collect();
        assert!(cmake[0].1.starts_with("set(MNN_KV \"\" CACHE"), "{name}: off unless asked for");
        assert_eq!((cmake[1].1, cmake.last().unwrap().1), ("if(MNN_KV)", "endif()"), "{name}");
    }
}

/// A copy of check.sh beside one patch, and a checkout that the patch changes one file of.
struct Checkout {
    root: PathBuf,
}

impl Checkout {
    /// Below cargo's target folder, so inside our repository: as an MNN without one of its own in a larger project.
    fn new(name: &str) -> Self {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("check-{name}"));
        let _ = fs::remove_dir_all(&root);
        let (ours, theirs) = (root.join("kv/integrations/mnn"), root.join("MNN"));
        fs::create_dir_all(&ours).unwrap();
        fs::create_dir_all(theirs.join("include/MNN")).unwrap();
        fs::copy(folder().join("check.sh"), ours.join("check.sh")).unwrap();
        let define = "#define MNN_VERSION_MAJOR 9\n#define MNN_VERSION_MINOR 8\n#define MNN_VERSION_PATCH 7\n";
        fs::write(theirs.join("include/MNN/MNNDefine.h"), define).unwrap();
        fs::write(theirs.join("code.cpp"), "one\nthree\n").unwrap();
        let checkout = Checkout { root };
        let (before, after) = (checkout.hash("one\nthree\n"), checkout.hash("one\ntwo\nthree\n"));
        let patch = format!(
            "diff --git a/code.cpp b/code.cpp\nindex {before}..{after} 100644\n\
             --- a/code.cpp\n+++ b/code.cpp\n@@ -1,0 +2,1 @@\n+two\n"
        );
        fs::write(ours.join("one.patch"), patch).unwrap();
        checkout
    }

    fn hash(&self, text: &str) -> String {
        let file = self.root.join("text");
        fs::write(&file, text).unwrap();
        let output = Command::new("git").arg("hash-object").arg("--no-filters").arg(file).output().expect("git");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn code(&self) -> PathBuf {
        self.root.join("MNN/code.cpp")
    }

    /// Exit status, standard output, standard error.
    fn check(&self, arguments: &[&str]) -> (i32, String, String) {
        let script = self.root.join("kv/integrations/mnn/check.sh");
        let Output { status, stdout, stderr } =
            Command::new("sh").arg(script).args(arguments).current_dir(&self.root).output().unwrap();
        (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
    }
}

#[test]
fn check_prints_a_command_that_applies_the_patch() {
    let checkout = Checkout::new("fits");
    let (status, said, _) = checkout.check(&["MNN"]);
    assert_eq!(status, 0, "{said}");
    assert!(said.starts_with("MNN 9.8.7 in "), "{said}");
    let command = said.lines().find(|line| line.trim_start().starts_with("git ")).expect("a command");
    assert!(Command::new("sh").args(["-c", command]).status().unwrap().success(), "{command}");
    assert_eq!(fs::read_to_string(checkout.code()).unwrap(), "one\ntwo\nthree\n");

    let (status, said, _) = checkout.check(&["MNN"]);
    assert_eq!(status, 0, "{said}");
    assert!(
        said.contains("one.patch is applied. Configure with -DMNN_KV=") && said.trim_end().ends_with("/kv"),
        "{said}"
    );
}

#[test]
fn check_refuses_a_version_that_git_would_patch_blindly() {
    let checkout = Checkout::new("differs");
    fs::write(checkout.code(), "zero\none\nthree\n").unwrap();
    let (status, said, _) = checkout.check(&["MNN"]);
    assert_eq!(status, 1, "{said}");
    assert!(said.contains("one.patch does not fit:\n    code.cpp is another version\n"), "{said}");
    assert!(said.contains("Other versions of MNN"), "says what to do: {said}");

    fs::remove_file(checkout.code()).unwrap();
    let (status, said, _) = checkout.check(&["MNN"]);
    assert_eq!(status, 1, "{said}");
    assert!(said.contains("code.cpp is missing"), "{said}");
}

#[test]
fn check_says_how_it_is_used() {
    let checkout = Checkout::new("usage");
    for arguments in [&[][..], &["nowhere"], &["MNN", "more"], &["kv"]] {
        let (status, _, said) = checkout.check(arguments);
        assert_eq!(status, 2, "{arguments:?}: {said}");
        assert!(said.starts_with("usage: check.sh MNN_CHECKOUT"), "{said}");
    }
}
