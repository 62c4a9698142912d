//! Dump folders of the reference system: what a scan keeps, skips and says.

use mnnkv_replay::dumps::folder::{Scan, scan};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// A folder of its own for a test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mnnkv-folder-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("run/layer_0")).unwrap();
        Folder(path)
    }

    fn layer(&self) -> PathBuf {
        self.0.join("run/layer_0")
    }

    /// An entry of two tokens from `begin`, with `changes` in its meta.
    fn entry(&self, begin: usize, changes: Value) {
        let mut meta = json!({
            "layer_id": 0, "seq_start": begin, "seq_len": 2, "kv_heads": 1, "head_dim": 4, "bytes_per_elem": 2,
            "stage": "prefill", "k_file": format!("k{begin}.bin"), "v_file": format!("v{begin}.bin"),
        });
        for (key, value) in changes.as_object().unwrap() {
            meta[key] = value.clone();
        }
        fs::write(self.layer().join(format!("meta_{begin}.json")), meta.to_string()).unwrap();
        for kind in ["k", "v"] {
            fs::write(self.layer().join(format!("{kind}{begin}.bin")), [begin as u8; 16]).unwrap();
        }
    }

    fn scan(&self) -> Scan {
        scan(&self.0).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(unix)]
#[test]
fn links_pipes_and_odd_names_neither_hang_nor_lead_outside() {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    let folder = Folder::new("hostile");
    let layer = folder.layer();
    symlink(&folder.0, layer.join("loop")).unwrap();
    symlink(layer.join("loop"), layer.join("meta_loop.json")).unwrap();
    symlink("/nowhere", layer.join("meta_dangling.json")).unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(layer.join("meta_pipe.json")).arg(layer.join("pipe")).status();
    assert!(pipe.unwrap().success());
    fs::write(layer.join(std::ffi::OsStr::from_bytes(b"meta_\xff.json")), "{").unwrap();
    fs::write(layer.join("outside.txt"), "").unwrap();
    symlink("/etc/passwd", layer.join("link")).unwrap();
    let files = ["/etc/passwd", "../../../../../../../../etc/passwd", "link", "pipe", ".", "k0.bin/x"];
    for (begin, name) in (0..).step_by(2).zip(files) {
        folder.entry(begin, json!({ "k_file": name }));
    }
    let scan = folder.scan();
    assert!(scan.entries.is_empty(), "{scan:?}");
    let skips: Vec<(&str, u64)> = scan.skips.iter().map(|(reason, count)| (reason.as_str(), *count)).collect();
    let expected =
        [("binary_read_error", 2), ("k_or_v_outside_dump", 3), ("meta_parse_error", 3), ("missing_k_or_v_binary", 1)];
    assert_eq!(skips, expected, "{scan:?}");
    assert!(scan.findings.iter().any(|f| f.place.ends_with("meta_4.json: k_file")), "{:?}", scan.findings);
}

/// Values that a meta must not have, and a few that it may have.
fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
        Just(Value::Null),
        Just(json!([1])),
        Just(json!(true)),
        Just(json!(1e308)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_meta_is_an_entry_of_the_right_size_or_a_finding_with_its_path(
        fields in proptest::collection::btree_map(
            proptest::sample::select(vec![
                "layer_id", "seq_start", "seq_len", "kv_heads", "head_dim", "bytes_per_elem", "stage", "run_id", "k_file",
            ]),
            value(),
            1..4,
        ),
        cut in 0..300usize,
    ) {
        let folder = Folder::new("any");
        folder.entry(2, json!(fields));
        let damaged = fs::read(folder.layer().join("meta_2.json")).unwrap();
        fs::write(folder.layer().join("meta_3.json"), &damaged[..damaged.len().min(cut)]).unwrap();
        let scan = folder.scan();
        prop_assert_eq!(scan.entries.len() as u64 + scan.skips.values().sum::<u64>(), 2);
        for entry in &scan.entries {
            prop_assert_eq!(entry.load(&entry.key).unwrap().len(), 16);
        }
        for finding in scan.findings.iter().filter(|finding| scan.skips.contains_key(&finding.reason)) {
            prop_assert!(Path::new(&finding.place).starts_with(&folder.0), "{:?}", finding);
        }
    }
}
