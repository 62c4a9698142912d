//! Damaged dumps.

use super::common::{Folder, layer_with_scores, testdata};
use super::{WHOLE, load};
use mnnkv_replay::dumps::Dump;
use mnnkv_replay::dumps::writer::{self, Format, Options, Split};
use proptest::prelude::*;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

/// A small dump of every format, each in a folder of its own.
fn everything() -> Folder {
    let folder = Folder::new();
    let options = Options { split: Split::Prompt(2), ..WHOLE };
    let source = folder.path().join("folder");
    writer::write_folder(&layer_with_scores(), &source, &options, &mut Default::default()).unwrap();
    let (dump, _) = load(&source);
    for (format, name) in [(Format::Flat, "flat"), (Format::Safetensors, "safetensors")] {
        writer::write(&dump, &[0], &folder.path().join(name), &Options { format, ..WHOLE }, &mut |_| {}).unwrap();
    }
    let npy = folder.path().join("npy");
    fs::create_dir_all(&npy).unwrap();
    for name in ["l0_k.npy", "l0_v.npy"] {
        fs::copy(testdata("npy").join(name), npy.join(name)).unwrap();
    }
    let packed = folder.path().join("packed");
    fs::create_dir_all(&packed).unwrap();
    let meta = json!({
        "layer_id": 0, "used_seq_len": 3, "max_seq_len": 8, "kv_heads": 2, "head_dim": 2, "bytes_per_elem": 2, "pack_h": 2,
        "pack_l": 1, "flash_upper_kv": 4, "key_used_bytes": 16, "value_used_bytes": 16, "stage": "prefill",
        "run_id": "packed", "k_file": "packed_k_packed_t0_3.bin", "v_file": "packed_v_packed_t0_3.bin",
    });
    fs::write(packed.join("packed_meta_packed_t0_3.json"), meta.to_string()).unwrap();
    for name in ["k", "v"] {
        fs::write(packed.join(format!("packed_{name}_packed_t0_3.bin")), [1; 32]).unwrap();
    }
    assert_eq!((load(folder.path()).1.len(), load(folder.path()).0.findings.len()), (5, 0));
    folder
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(self::files(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

#[derive(Clone, Debug)]
enum Damage {
    Truncate(prop::sample::Index),
    Append(Vec<u8>),
    Replace(prop::sample::Index, Vec<u8>),
    /// A number of the file becomes another one.
    Number(prop::sample::Index, String),
    Rename(String),
    Remove,
}

fn damage() -> impl Strategy<Value = Damage> {
    let numbers =
        ["0", "-1", "1", "3", "4294967295", "4294967296", "18446744073709551616", "1e300", "[[[[", "null", "''"];
    prop_oneof![
        any::<prop::sample::Index>().prop_map(Damage::Truncate),
        prop::collection::vec(any::<u8>(), 1..20).prop_map(Damage::Append),
        (any::<prop::sample::Index>(), prop::collection::vec(any::<u8>(), 1..9))
            .prop_map(|(at, to)| Damage::Replace(at, to)),
        (any::<prop::sample::Index>(), prop::sample::select(numbers.map(String::from).to_vec()))
            .prop_map(|(at, to)| Damage::Number(at, to)),
        "[a-z][a-z0-9_.]{0,11}(\\.f16|\\.npy|\\.safetensors|\\.json)?".prop_map(Damage::Rename),
        Just(Damage::Remove),
    ]
}

fn apply(damage: &Damage, path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    match damage {
        // A file may be empty from the damage before.
        Damage::Truncate(at) => bytes.truncate(at.index(bytes.len() + 1)),
        Damage::Append(more) => bytes.extend(more),
        Damage::Replace(at, to) => {
            let at = at.index(bytes.len().min(128) + 1);
            let end = bytes.len().min(at + to.len());
            bytes.splice(at..end, to.iter().copied());
        }
        Damage::Number(at, to) => {
            let starts: Vec<usize> = (0..bytes.len())
                .filter(|i| bytes[*i].is_ascii_digit() && (*i == 0 || !bytes[i - 1].is_ascii_digit()))
                .collect();
            if !starts.is_empty() {
                let begin = starts[at.index(starts.len())];
                let end = (begin..bytes.len()).find(|i| !bytes[*i].is_ascii_digit()).unwrap_or(bytes.len());
                bytes.splice(begin..end, to.bytes());
            }
        }
        Damage::Rename(name) => return fs::rename(path, path.with_file_name(name)).unwrap(),
        Damage::Remove => return fs::remove_file(path).unwrap(),
    }
    fs::write(path, bytes).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn damage_never_stops_the_layers_of_other_folders_and_never_panics(
        damages in prop::collection::vec((any::<prop::sample::Index>(), damage()), 1..4),
    ) {
        let folder = everything();
        let mut damaged = Vec::new();
        for (at, damage) in &damages {
            let files = files(folder.path());
            let path = &files[at.index(files.len())];
            damaged.push(path.strip_prefix(folder.path()).unwrap().components().next().unwrap().as_os_str().to_owned());
            apply(damage, path);
        }
        let dump = Dump::open(folder.path());
        if let Ok(dump) = &dump {
            for i in 0..dump.layers.len() {
                dump.load(i).map_err(|e| TestCaseError::fail(e.to_string()))?;
            }
            for finding in &dump.findings {
                prop_assert!(finding.place.contains("folder") || finding.place.contains("run")
                    || damaged.iter().any(|name| finding.place.contains(&*name.to_string_lossy())), "{finding:?}");
            }
        }
        for name in ["folder", "flat", "safetensors", "npy", "packed"] {
            let alone = Dump::open(&folder.path().join(name));
            if !damaged.iter().any(|damaged| damaged == name) {
                prop_assert_eq!(alone.unwrap().layers.len(), 1);
                prop_assert!(dump.is_ok());
            } else if let Err(e) = alone {
                prop_assert!(e.to_string().contains(name), "{}", e);
            }
        }
    }
}

#[test]
fn a_header_cannot_claim_more_than_the_file_has() {
    let folder = Folder::new();
    let claims: [(&str, Vec<u8>, &str); 5] = [
        ("l0_k_h999999_t999999_d999999.f16", vec![0; 8], "999999"),
        ("l0_k_h4294967296_t4294967296_d2.f32", vec![0; 8], "address space"),
        ("big.safetensors", u64::MAX.to_le_bytes().to_vec(), "header"),
        ("l1_k.npy", [b"\x93NUMPY\x02\0".as_slice(), &[255; 4]].concat(), "header"),
        ("l2_k.npy", [b"\x93NUMPY\x01\0\xff\xff".as_slice(), &[b'('; 100]].concat(), "65535"),
    ];
    for (name, bytes, word) in &claims {
        fs::write(folder.path().join(name), bytes).unwrap();
        let error = Dump::open(&folder.path().join(name)).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(word), "{error}");
    }
}

#[test]
fn a_folder_without_a_dump_and_a_path_without_a_file_are_errors_with_the_path() {
    let folder = Folder::new();
    fs::write(folder.path().join("notes.txt"), "x").unwrap();
    let error = Dump::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("no KV dump") && error.contains("mnnkv-dumps"), "{error}");
    let error = Dump::open(&folder.path().join("absent")).unwrap_err().to_string();
    assert!(error.contains("absent: cannot read"), "{error}");
}
