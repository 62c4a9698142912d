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
    name == "mnn-bench.patch"
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

/// The bench patch may be applied in either order because it has files of its own.
#[test]
fn a_bench_patch_changes_only_the_benchmark() {
    for (name, patch) in patches() {
        let bench = inserted(&patch).into_iter().filter(|(file, _)| *file == BENCH).count();
        let expected = if is_bench(&name) { inserted(&patch).len() } else { 0 };
        assert_eq!(bench, expected, "{name}");
    }
}

/// Fails for a line that is of another's text. git applies patches for upstream, of which a hunk has a line number.
fn only_inserts(name: &str, patch: &str) {
    for line in patch.lines() {
        let place = |text: &str| text.split(' ').all(|hash| hash.len() == 8 && u32::from_str_radix(hash, 16).is_ok());
        let hunk = line.strip_prefix("@@ ").and_then(|line| line.strip_suffix(" @@"));
        let hunk = hunk.is_some_and(|hunk| place(hunk) || hunk.contains(",0 +"));
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
        assert!(fs::read_to_string(folder().join("README.md")).unwrap().contains(&format!("`{name}`")), "{name}");
        let claims: &[(PathBuf, String)] = if is_bench(&name) {
            &[(folder().join("README.md"), format!("optional, {count} lines"))]
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

/// A file of an engine, and the same with a patch of two hunks.
const BEFORE: &str = "one\n\ntwo\n{\nthree\n}\nfour\nfive\nsix\nseven\n";
const AFTER: &str = "one\n\ntwo\nfirst\n{\nthree\n}\nfour\nfive\nsecond\nsix\nseven\n";

/// A copy of check.sh beside a patch and its bench patch, and a checkout with one file for each.
struct Checkout {
    root: PathBuf,
}

impl Checkout {
    /// Below cargo's target folder, so inside this repository: like an MNN without its own in a larger project.
    fn new(name: &str) -> Self {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("check {name}"));
        let _ = fs::remove_dir_all(&root);
        let checkout = Checkout { root };
        let (ours, theirs) = (checkout.root.join("kv/integrations/mnn"), checkout.file(""));
        let common = ours.with_file_name("common");
        for folder in [&ours, &common, &theirs.join("include/MNN")] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::copy(folder().join("check.sh"), ours.join("check.sh")).unwrap();
        for file in ["patches.sh", "patches.awk"] {
            fs::copy(folder().join("../common").join(file), common.join(file)).unwrap();
        }
        let define = "#define MNN_VERSION_MAJOR 9\n#define MNN_VERSION_MINOR 8\n#define MNN_VERSION_PATCH 7\n";
        fs::write(theirs.join("include/MNN/MNNDefine.h"), define).unwrap();
        for (file, patch) in [("code.cpp", "mnn.patch"), ("bench.cpp", "mnn-bench.patch")] {
            fs::write(checkout.file(file), AFTER).unwrap();
            let hunks = format!("--- a/{file}\n+++ b/{file}\n@@ ? ? @@\n+first\n@@ ? ? @@\n+second\n");
            fs::write(ours.join(patch), hunks).unwrap();
            fs::write(ours.join(patch), checkout.renewed(patch)).unwrap();
            fs::write(checkout.file(file), BEFORE).unwrap();
        }
        checkout
    }

    fn file(&self, name: &str) -> PathBuf {
        self.root.join("MNN").join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap()
    }

    /// The patch with the places of the checkout, which has its lines.
    fn renewed(&self, patch: &str) -> String {
        let ours = self.root.join("kv/integrations");
        let output = Command::new("awk")
            .args(["-v", "root=MNN", "-v", "renew=1", "-f"])
            .args([ours.join("common/patches.awk"), ours.join("mnn").join(patch)])
            .env("LC_ALL", "C")
            .current_dir(&self.root)
            .output()
            .expect("awk");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        text
    }

    /// Exit status, standard output, standard error.
    fn check(&self, arguments: &[&str]) -> (i32, String, String) {
        let script = self.root.join("kv/integrations/mnn/check.sh");
        let Output { status, stdout, stderr } =
            Command::new("sh").arg(script).args(arguments).current_dir(&self.root).output().unwrap();
        (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
    }

    /// Fails unless code.cpp is refused for this reason, and stays as it is.
    fn refuses(&self, code: &str, reason: &str) {
        fs::write(self.file("code.cpp"), code).unwrap();
        for arguments in [&["MNN"][..], &["--apply", "MNN"], &["--apply", "--bench", "MNN"]] {
            let (status, said, _) = self.check(arguments);
            assert_eq!(status, 1, "{said}");
            assert!(said.contains(&format!("mnn.patch does not fit:\n    {reason}\n")), "{said}");
            assert!(said.contains("Other versions of MNN"), "{said}");
        }
        assert_eq!((self.read("code.cpp").as_str(), self.read("bench.cpp").as_str()), (code, BEFORE));
        let files = fs::read_dir(self.file("")).unwrap().count();
        assert_eq!(files, 3, "files of a refused patch are left behind");
    }
}

#[test]
fn check_applies_the_patches_that_fit() {
    let checkout = Checkout::new("fits");
    let (status, said, _) = checkout.check(&["MNN"]);
    assert_eq!(status, 0, "{said}");
    assert!(said.starts_with("MNN 9.8.7 or later in "), "{said}");
    let commands: Vec<_> = said.lines().filter(|line| line.contains("check.sh --apply ")).collect();
    assert!(commands.len() == 2 && commands[1].contains(" --apply --bench "), "{said}");
    assert_eq!(checkout.read("code.cpp"), BEFORE);

    assert_eq!(checkout.check(&["--apply", "MNN"]).0, 0);
    assert_eq!((checkout.read("code.cpp").as_str(), checkout.read("bench.cpp").as_str()), (AFTER, BEFORE));
    let (status, said, _) = checkout.check(&["MNN"]);
    assert_eq!(status, 0, "{said}");
    let next = said.lines().find_map(|line| line.strip_prefix("mnn.patch is applied. Configure with -DMNN_KV="));
    assert!(next.is_some_and(|path| path.ends_with("/kv")) && said.contains("mnn-bench.patch fits."), "{said}");

    assert_eq!(checkout.check(&["--apply", "--bench", "MNN"]).0, 0);
    assert_eq!(checkout.read("bench.cpp"), AFTER);
    let (status, said, _) = checkout.check(&["MNN"]);
    assert_eq!(status, 0, "{said}");
    assert!(said.contains("mnn.patch is applied.") && said.contains("mnn-bench.patch is applied."), "{said}");
    assert!(!said.contains("--apply"), "{said}");
}

/// Lines elsewhere, other spaces at the ends of lines and other blank lines are another version with the same places.
#[test]
fn a_patch_fits_every_version_with_the_same_lines_around() {
    let checkout = Checkout::new("moved");
    fs::write(checkout.file("code.cpp"), format!("new\nlines\n{}", BEFORE.replace("two\n", "\ttwo \r\n\n"))).unwrap();
    assert_eq!(checkout.check(&["--apply", "MNN"]).0, 0);
    let expected = "new\nlines\none\n\n\ttwo \r\nfirst\n\n{\nthree\n}\nfour\nfive\nsecond\nsix\nseven\n";
    assert_eq!(checkout.read("code.cpp"), expected);
}

/// A second line of hashes is the same place in another version.
#[test]
fn a_hunk_may_have_the_places_of_several_versions() {
    let checkout = Checkout::new("versions");
    let patch = checkout.root.join("kv/integrations/mnn/mnn.patch");
    let old = fs::read_to_string(&patch).unwrap();
    fs::write(checkout.file("code.cpp"), AFTER.replace("seven", "eight")).unwrap();
    let (new, mut both) = (checkout.renewed("mnn.patch"), String::new());
    for (old, new) in old.lines().zip(new.lines()) {
        both.push_str(&if old == new { format!("{old}\n") } else { format!("{old}\n{new}\n") });
    }
    assert_ne!(old, new);
    fs::write(&patch, both).unwrap();
    for version in ["seven", "eight"] {
        fs::write(checkout.file("code.cpp"), BEFORE.replace("seven", version)).unwrap();
        assert_eq!(checkout.check(&["--apply", "MNN"]).0, 0, "{version}");
        assert_eq!(checkout.read("code.cpp"), AFTER.replace("seven", version));
    }
}

#[test]
fn check_refuses_a_place_that_is_not_the_one_of_the_patch() {
    let checkout = Checkout::new("differs");
    let others = "code.cpp: the lines around hunk 2 are others in this version";
    checkout.refuses(&BEFORE.replace("six", "6"), others);
    checkout.refuses(&BEFORE.replace("five\n", "five\nfive and a half\n"), others);
    checkout.refuses(&BEFORE.replace('{', "{{"), "code.cpp: the lines around hunk 1 are others in this version");
    let twice = format!("{BEFORE}four\nfive\nsix\nseven\n");
    checkout.refuses(&twice, "code.cpp: the lines around hunk 2 are in several places in this version");
    checkout.refuses(&AFTER.replace("first\n", ""), "1 of 2 hunks are in already: undo them with git checkout");
    let elsewhere = format!("{}second\n", AFTER.replace("second\n", ""));
    checkout.refuses(&elsewhere, "code.cpp: has hunk 2 in another place");
    checkout.refuses("", "code.cpp: is missing");
}

#[test]
fn check_reports_a_bench_patch_that_does_not_fit() {
    let checkout = Checkout::new("bench");
    fs::write(checkout.file("bench.cpp"), "zero\n").unwrap();
    let (status, said, _) = checkout.check(&["MNN"]);
    assert_eq!(status, 0, "the patch itself fits: {said}");
    assert!(said.contains("mnn.patch fits.") && !said.contains("mnn-bench.patch fits"), "{said}");
    assert!(
        said.contains("mnn-bench.patch does not fit:\n    bench.cpp: the lines around hunk 1 are others"),
        "{said}"
    );
    assert_eq!(checkout.check(&["--apply", "--bench", "MNN"]).0, 1);
}

/// Their line numbers would put the lines at a wrong place of any other version.
#[test]
fn git_and_patch_do_not_apply_a_patch_by_themselves() {
    let checkout = Checkout::new("git");
    for command in ["git apply --unidiff-zero", "git apply", "patch -p1 -i"] {
        let patch = checkout.root.join("kv/integrations/mnn/mnn.patch");
        let command = format!("cd '{}' && {command} '{}'", checkout.file("").display(), patch.display());
        assert!(!Command::new("sh").args(["-c", &command]).output().unwrap().status.success(), "{command}");
    }
    assert_eq!(checkout.read("code.cpp"), BEFORE);
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
