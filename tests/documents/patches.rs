//! The claims of the READMEs in integrations about the patches, check.sh and the example. Needs no MNN.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("integrations/mnn")
}

fn patches() -> Vec<(String, String)> {
    patches_in(&folder())
}

fn patches_in(folder: &Path) -> Vec<(String, String)> {
    let mut patches: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "patch"))
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read_to_string(path).unwrap()))
        .collect();
    patches.sort();
    patches
}

const BENCH: &str = "transformers/llm/engine/tools/llm_bench.cpp";

fn is_bench(name: &str) -> bool {
    name.ends_with("-bench.patch")
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
    let expected = ["mnn-3.6.1-bench.patch", "mnn-3.6.1.patch", "mnn-master-bench.patch", "mnn-master.patch"];
    assert_eq!(names, expected);
    let readme = fs::read_to_string(folder().join("README.md")).unwrap();
    assert!(names.iter().all(|name| readme.contains(&format!("`{name}`"))));
}

/// The bench patch may be applied in either order because it has files of its own.
#[test]
fn a_bench_patch_changes_only_the_benchmark() {
    for (name, patch) in patches() {
        let bench = inserted(&patch).into_iter().filter(|(file, _)| *file == BENCH).count();
        let expected = if is_bench(&name) { inserted(&patch).len() } else { 0 };
        assert_eq!(bench, expected, "{name}");
    }
}

/// Fails for a line that is of another's text.
fn only_inserts(name: &str, patch: &str) {
    for line in patch.lines() {
        let hunk = line.starts_with("@@ ") && line.ends_with(" @@") && line.contains(",0 +");
        let header = ["diff --git a/", "index ", "--- a/", "+++ b/"].iter().any(|start| line.starts_with(start));
        assert!(hunk || header || line.starts_with('+'), "{name}: {line}");
    }
}

#[test]
fn patches_for_upstream_insert_after_a_description_that_names_them() {
    for (name, patch) in patches_in(&folder().join("upstream")) {
        let (description, lines) = patch.split_once("---\n").unwrap();
        assert!(description.contains(&name), "{name}");
        only_inserts(&name, lines);
    }
}

#[test]
fn the_patch_for_llama_server_inserts_as_many_lines_as_its_readme_says() {
    let folder = folder().join("../llama.cpp");
    let [(name, patch)] = patches_in(&folder).try_into().unwrap();
    only_inserts(&name, &patch);
    let claim = format!("a patch of {} inserted lines", inserted(&patch).len());
    assert!(fs::read_to_string(folder.join("README.md")).unwrap().contains(&claim), "{claim}");
}

#[test]
fn patches_insert_as_many_lines_as_the_readmes_say() {
    for (name, patch) in patches() {
        only_inserts(&name, &patch);
        let count = inserted(&patch).len();
        assert!((1..=150).contains(&count), "{name} inserts {count} lines");
        let claims: &[(PathBuf, String)] = if is_bench(&name) {
            &[(folder().join("README.md"), format!("optional, {count} lines each"))]
        } else {
            &[
                (folder().join("README.md"), format!("A patch of {count} inserted lines")),
                (folder().join("README.md"), format!("a library and {count} lines")),
                (folder().join("../../README.md"), format!("a patch of {count} lines")),
            ]
        };
        for (file, claim) in claims {
            let text = fs::read_to_string(file).unwrap();
            assert!(text.contains(claim), "{name} inserts {count} lines, {} differs", file.display());
        }
    }
}

#[test]
fn without_mnn_kv_a_patched_mnn_is_unchanged() {
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
        if is_bench(&name) {
            continue;
        }
        let cmake: Vec<_> = inserted(&patch).into_iter().filter(|(file, _)| *file == "CMakeLists.txt").collect();
        assert!(cmake[0].1.starts_with("set(MNN_KV \"\" CACHE"), "{name}: off by default");
        assert_eq!((cmake[1].1, cmake.last().unwrap().1), ("if(MNN_KV)", "endif()"), "{name}");
    }
}

#[test]
fn the_example_of_a_second_host_is_the_one_that_is_compiled() {
    let readme = include_str!("../../integrations/common/README.md");
    let source = include_str!("../../cpp-tests/quoted/second_host.cpp");
    let example = readme.split("```cpp\n").nth(1).unwrap().split("```").next().unwrap();
    assert_eq!(example, source.split("// [readme]\n").nth(1).unwrap());
}

const BEFORE: &str = "one\nthree\n";
const AFTER: &str = "one\ntwo\nthree\n";

/// A copy of check.sh beside a patch and its bench patch, and a checkout with one file for each.
struct Checkout {
    root: PathBuf,
}

impl Checkout {
    /// Below cargo's target folder, so inside this repository: like an MNN without its own in a larger project.
    fn new(name: &str) -> Self {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("check-{name}"));
        let _ = fs::remove_dir_all(&root);
        let (ours, theirs) = (root.join("kv/integrations/mnn"), root.join("MNN"));
        fs::create_dir_all(&ours).unwrap();
        let common = ours.with_file_name("common");
        fs::create_dir_all(&common).unwrap();
        fs::create_dir_all(theirs.join("include/MNN")).unwrap();
        fs::copy(folder().join("check.sh"), ours.join("check.sh")).unwrap();
        fs::copy(folder().join("../common/patches.sh"), common.join("patches.sh")).unwrap();
        let define = "#define MNN_VERSION_MAJOR 9\n#define MNN_VERSION_MINOR 8\n#define MNN_VERSION_PATCH 7\n";
        fs::write(theirs.join("include/MNN/MNNDefine.h"), define).unwrap();
        let checkout = Checkout { root };
        for (file, name) in [("code.cpp", "one.patch"), ("bench.cpp", "one-bench.patch")] {
            fs::write(theirs.join(file), BEFORE).unwrap();
            let (before, after) = (checkout.hash(BEFORE), checkout.hash(AFTER));
            let patch = format!(
                "diff --git a/{file} b/{file}\nindex {before}..{after} 100644\n\
                 --- a/{file}\n+++ b/{file}\n@@ -1,0 +2,1 @@\n+two\n"
            );
            fs::write(ours.join(name), patch).unwrap();
        }
        checkout
    }

    fn hash(&self, text: &str) -> String {
        let file = self.root.join("text");
        fs::write(&file, text).unwrap();
        let output = Command::new("git").arg("hash-object").arg("--no-filters").arg(file).output().expect("git");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.root.join("MNN").join(name)
    }

    fn run(command: &str) {
        assert!(Command::new("sh").args(["-c", command]).status().unwrap().success(), "{command}");
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
fn check_applies_the_patches_that_fit() {
    let checkout = Checkout::new("fits");
    let (status, said, _) = checkout.check(&["MNN"]);
    assert_eq!(status, 0, "{said}");
    assert!(said.starts_with("MNN 9.8.7 in "), "{said}");
    let commands: Vec<_> = said.lines().filter(|line| line.contains("check.sh --apply ")).collect();
    assert!(commands.len() == 2 && commands[1].contains(" --apply --bench "), "{said}");
    assert!(!said.contains("git "), "git alone would patch any version: {said}");

    Checkout::run(commands[0]);
    let read = |file| fs::read_to_string(checkout.file(file)).unwrap();
    assert_eq!((read("code.cpp").as_str(), read("bench.cpp").as_str()), (AFTER, BEFORE));
    let (status, said, _) = checkout.check(&["MNN"]);
    assert_eq!(status, 0, "{said}");
    let next = said.lines().find_map(|line| line.strip_prefix("one.patch is applied. Configure with -DMNN_KV="));
    assert!(next.is_some_and(|path| path.ends_with("/kv")) && said.contains("one-bench.patch fits."), "{said}");

    Checkout::run(commands[1]);
    assert_eq!(read("bench.cpp"), AFTER);
    for arguments in [&["MNN"][..], &["--apply", "--bench", "MNN"]] {
        let (status, said, _) = checkout.check(arguments);
        assert_eq!(status, 0, "{said}");
        assert!(said.contains("one.patch is applied.") && said.contains("one-bench.patch is applied."), "{said}");
        assert!(!said.contains("--apply"), "{said}");
    }
}

#[test]
fn check_calls_a_commit_after_a_release_by_its_hash() {
    let checkout = Checkout::new("versions");
    let git = |command: &str| {
        let who = "-c user.name=a -c user.email=a@b";
        Checkout::run(&format!("cd {} && git {who} {command} >/dev/null", checkout.root.join("MNN").display()));
    };
    for command in ["init -q", "add -A", "commit -qm one", "tag 9.8.7"] {
        git(command);
    }
    assert!(checkout.check(&["MNN"]).1.starts_with("MNN 9.8.7 in "));
    git("commit --allow-empty -qm two");
    let said = checkout.check(&["MNN"]).1;
    assert!(said.starts_with("MNN master (commit "), "{said}");
}

#[test]
fn check_reports_a_bench_patch_that_does_not_fit() {
    let checkout = Checkout::new("bench-differs");
    fs::write(checkout.file("bench.cpp"), "zero\n").unwrap();
    let (status, said, _) = checkout.check(&["MNN"]);
    assert_eq!(status, 0, "the patch itself fits: {said}");
    assert!(said.contains("one.patch fits.") && !said.contains("one-bench.patch fits"), "{said}");
    assert!(said.contains("one-bench.patch does not fit:\n    bench.cpp is another version\n"), "{said}");
}

#[test]
fn check_refuses_a_version_that_git_would_patch_blindly() {
    let checkout = Checkout::new("differs");
    fs::write(checkout.file("code.cpp"), "zero\none\nthree\n").unwrap();
    for arguments in [&["MNN"][..], &["--apply", "MNN"], &["--apply", "--bench", "MNN"]] {
        let (status, said, _) = checkout.check(arguments);
        assert_eq!(status, 1, "{said}");
        assert!(said.contains("one.patch does not fit:\n    code.cpp is another version\n"), "{said}");
        assert!(said.contains("Other versions of MNN"), "{said}");
    }
    assert_eq!(fs::read_to_string(checkout.file("code.cpp")).unwrap(), "zero\none\nthree\n");
    assert_eq!(fs::read_to_string(checkout.file("bench.cpp")).unwrap(), BEFORE);

    fs::remove_file(checkout.file("code.cpp")).unwrap();
    let (status, said, _) = checkout.check(&["MNN"]);
    assert_eq!(status, 1, "{said}");
    assert!(said.contains("code.cpp is missing"), "{said}");
}

#[test]
fn check_prints_its_usage() {
    let checkout = Checkout::new("usage");
    for arguments in [&[][..], &["nowhere"], &["MNN", "more"], &["kv"], &["--bench", "MNN"]] {
        let (status, _, said) = checkout.check(arguments);
        assert_eq!(status, 2, "{arguments:?}: {said}");
        assert!(said.starts_with("usage: check.sh [--apply [--bench]] MNN_CHECKOUT"), "{said}");
    }
}
