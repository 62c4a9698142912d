//! Conversions of golden checkpoints, and refusals of damaged ones.

use super::{Arguments, run};
use clap::Parser;
use std::fs;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    arguments: Arguments,
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/testdata/compressor").join(name)
}

/// A temporary folder.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mnnkv-convert-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// The file that the command writes, or its error. A failure must leave no file and no part of one.
    fn convert(&self, input: &Path, flags: &str) -> Result<Vec<u8>, String> {
        let output = self.0.join("out.bin");
        let words = ["convert-compressor", "--input", input.to_str().unwrap(), "--output", output.to_str().unwrap()];
        let command = Command::parse_from(words.into_iter().chain(flags.split_whitespace()));
        let result = run(&command.arguments);
        let left =
            |name: &str| fs::read_dir(&self.0).unwrap().any(|e| e.unwrap().file_name().to_string_lossy() == *name);
        match result {
            Ok(_) => {
                let bytes = fs::read(&output).unwrap();
                fs::remove_file(&output).unwrap();
                Ok(bytes)
            }
            Err(failure) => {
                assert!(!left("out.bin"), "{flags}: the failed command left a file: {}", failure.0);
                let parts = fs::read_dir(&self.0).unwrap();
                assert!(parts.flatten().all(|e| !e.file_name().to_string_lossy().contains(".part")));
                Err(failure.0)
            }
        }
    }

    fn convert_bytes(&self, checkpoint: &[u8], flags: &str) -> Result<Vec<u8>, String> {
        let input = self.0.join("in.pth");
        fs::write(&input, checkpoint).unwrap();
        self.convert(&input, flags)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The error contains all words.
#[track_caller]
fn refused(result: Result<Vec<u8>, String>, words: &[&str]) {
    let failure = result.expect_err("it was converted");
    assert!(words.iter().all(|w| failure.contains(w)), "{failure:?} has not all of {words:?}");
    assert_eq!(failure.lines().count(), 1, "{failure}");
}

#[test]
fn every_nesting_gives_the_file_of_the_original_converter() {
    let folder = Folder::new("goldens");
    for checkpoint in ["flat", "compressor", "training"] {
        for (flags, file) in [
            ("", "std_fp16_12.bin"),
            ("--dtype fp32", "std_fp32_12.bin"),
            ("--prefix-order compress_tk,compress_tv", "std_fp16_6.bin"),
            ("--dtype fp32 --prefix-order compress_tk,compress_tv", "std_fp32_6.bin"),
        ] {
            // The goldens have the number of heads in their header.
            let flags = format!("--num-heads 2 {flags}");
            let ours = folder.convert(&golden("pth").join(format!("{checkpoint}.pth")), &flags).unwrap();
            assert!(ours == fs::read(golden(file)).unwrap(), "{checkpoint}.pth {flags}: not {file}");
        }
    }
}

#[test]
fn damaged_golden_checkpoints_are_refused() {
    let folder = Folder::new("bad");
    refused(folder.convert(&golden("pth/bad_bias_len.pth"), ""), &["bias has the shape [5]", "[4] expected"]);
    refused(
        folder.convert(&golden("pth/bad_layer_gap.pth"), ""),
        &["compress_tk.", "is missing; every", "layers 0 to"],
    );
    refused(folder.convert(&golden("pth/bad_not_dict.pth"), ""), &["the checkpoint is not a dictionary"]);
}

#[test]
fn flags_that_the_weights_contradict_are_refused() {
    let folder = Folder::new("contradicted");
    let pth = golden("pth/flat.pth");
    for (flags, words) in [
        ("--compression-factor 5", vec!["--compression-factor is 5", "3 vectors of 4"]),
        ("--head-dim 6", vec!["--head-dim is 6", "4 rows"]),
        ("--slot-order 0,3", vec!["--slot-order", "three"]),
        ("--slot-order 0,1,2", vec!["compress_ik.0.3.bias is a layer", "not in --slot-order"]),
        ("--prefix-order compress_tv,compress_tk", vec!["compress_tv at place 1"]),
        ("--prefix-order compress_tk", vec!["names 1 MLPs"]),
        ("--prefix-order a,b", vec!["no tensor belongs to a,b", "compress_tk"]),
    ] {
        refused(folder.convert(&pth, flags), &words);
    }
}

#[test]
fn other_files_are_refused() {
    let folder = Folder::new("none");
    refused(folder.convert(&folder.0.join("absent.pth"), ""), &["cannot open", "absent.pth"]);
    refused(folder.convert(&folder.0, ""), &["is a directory"]);
    refused(folder.convert_bytes(b"", ""), &["not a PyTorch checkpoint"]);
    refused(folder.convert_bytes(b"PK", ""), &["damaged zip archive"]);
    refused(folder.convert_bytes(&archive(b"\x80\x02}.", &[]), ""), &["this is not a compressor"]);
    // A number of 255 bytes, and an undefined operation.
    for pickle in [&b"\x80\x02\x8a\xff"[..], b"\x80\x02\xff.", b"", b"\x80\x02R."] {
        refused(folder.convert_bytes(&archive(pickle, &[]), ""), &["in.pth"]);
    }
}

/// A checkpoint with one storage for all tensors.
struct Tensors {
    storage: &'static str,
    bytes: Vec<u8>,
    tensors: Vec<(String, usize, Vec<usize>, Vec<usize>)>,
}

impl Tensors {
    /// Text MLPs of one layer with `dim` values per vector, two vectors at a time, and hidden layers of `hidden`.
    fn mlps(dim: usize, hidden: usize) -> Self {
        let mut all = Tensors { storage: "FloatStorage", bytes: Vec::new(), tensors: Vec::new() };
        for prefix in ["compress_tk", "compress_tv"] {
            for (slot, rows, cols) in [(0, hidden, 2 * dim), (3, hidden, hidden), (6, dim, hidden)] {
                all.push(&format!("{prefix}.0.{slot}.weight"), &[rows, cols], &[cols, 1]);
                all.push(&format!("{prefix}.0.{slot}.bias"), &[rows], &[1]);
            }
        }
        all
    }

    /// A tensor with storage of its own, in which element `i` is `i / 8`.
    fn push(&mut self, name: &str, dims: &[usize], strides: &[usize]) {
        self.tensors.push((name.to_owned(), self.bytes.len() / 4, dims.to_vec(), strides.to_vec()));
        for i in 0..dims.iter().product::<usize>() {
            self.bytes.extend((i as f32 / 8.0).to_le_bytes());
        }
    }

    fn find(&mut self, name: &str) -> &mut (String, usize, Vec<usize>, Vec<usize>) {
        self.tensors.iter_mut().find(|t| t.0 == name).unwrap()
    }

    /// Element `i` of a tensor.
    fn set(&mut self, name: &str, i: usize, value: f32) {
        let at = 4 * (self.find(name).1 + i);
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn checkpoint(&self) -> Vec<u8> {
        let text = |out: &mut Vec<u8>, text: &str| {
            out.push(b'X');
            out.extend((text.len() as u32).to_le_bytes());
            out.extend(text.as_bytes());
        };
        let int = |out: &mut Vec<u8>, n: usize| {
            out.push(b'J');
            out.extend((n as i32).to_le_bytes());
        };
        let tuple = |out: &mut Vec<u8>, numbers: &[usize]| {
            out.push(b'(');
            numbers.iter().for_each(|n| int(out, *n));
            out.push(b't');
        };
        let mut out = b"\x80\x02}(".to_vec();
        for (name, offset, dims, strides) in &self.tensors {
            text(&mut out, name);
            out.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
            text(&mut out, "storage");
            out.extend(format!("ctorch\n{}\n", self.storage).bytes());
            text(&mut out, "0");
            text(&mut out, "cpu");
            int(&mut out, self.bytes.len() / 4);
            out.extend(b"tQ");
            int(&mut out, *offset);
            tuple(&mut out, dims);
            tuple(&mut out, strides);
            out.extend(b"\x89}tR");
        }
        out.extend(b"u.");
        archive(&out, &[("data/0", &self.bytes), ("byteorder", b"little")])
    }
}

/// The archive that torch.save writes, in a folder of any name.
fn archive(pickle: &[u8], entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in [("data.pkl", pickle)].iter().chain(entries) {
        zip.start_file(format!("archive/{name}"), options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

const TEXT: &str = "--dtype fp16 --prefix-order compress_tk,compress_tv";

#[test]
fn weights_that_the_file_cannot_hold_are_refused() {
    let folder = Folder::new("values");
    for (value, words) in [(1e6, vec!["1000000"]), (f32::NAN, vec!["NaN"]), (f32::NEG_INFINITY, vec!["inf"])] {
        let mut tensors = Tensors::mlps(4, 4);
        tensors.set("compress_tv.0.3.weight", 5, value);
        refused(folder.convert_bytes(&tensors.checkpoint(), TEXT), &words);
    }
    let mut tensors = Tensors::mlps(4, 4);
    tensors.set("compress_tv.0.3.weight", 5, 1e6);
    folder.convert_bytes(&tensors.checkpoint(), &TEXT.replace("fp16", "bf16")).unwrap();
    tensors.storage = "LongStorage";
    refused(folder.convert_bytes(&tensors.checkpoint(), TEXT), &["LongStorage; FloatStorage"]);
}

#[test]
fn damaged_tensors_are_refused() {
    let folder = Folder::new("damaged");
    type Damage = fn(&mut Tensors);
    let cases: [(Damage, &[&str]); 6] = [
        (|t| t.find("compress_tk.0.3.weight").1 = 1 << 20, &["compress_tk.0.3.weight reaches beyond its storage"]),
        // -1 in the pickle.
        (|t| t.find("compress_tk.0.3.weight").1 = u32::MAX as usize, &["compress_tk.0.3.weight"]),
        // Stride 0: more elements than the storage has.
        (
            |t| {
                (t.find("compress_tk.0.3.weight").2, t.find("compress_tk.0.3.weight").3) =
                    (vec![4, 1 << 20], vec![0, 0])
            },
            &["reaches beyond"],
        ),
        (|t| t.find("compress_tk.0.3.weight").2 = vec![4, 4, 1], &["a tensor of 3 dimensions with 2 strides"]),
        (|t| t.bytes.truncate(100), &["reaches beyond"]),
        (|t| t.push("compress_tk.4000000000.0.weight", &[1], &[1]), &["the layer number 4000000000"]),
    ];
    for (damage, words) in cases {
        let mut tensors = Tensors::mlps(4, 4);
        damage(&mut tensors);
        refused(folder.convert_bytes(&tensors.checkpoint(), TEXT), words);
    }
}

/// A value nested `depth` times.
fn nested(depth: usize, wrap: &[u8]) -> Vec<u8> {
    [&b"\x80\x02N"[..], &wrap.repeat(depth), b"."].concat()
}

#[test]
fn memory_and_stack_of_a_pickle_are_bounded_by_its_length() {
    let folder = Folder::new("bombs");
    // Each value is the pair of the one before: 2^60 values in 300 bytes, once as tuples and once as lists of lists.
    let pairs = nested(60, b"q\x00h\x00\x86");
    let lists = nested(60, b"q\x00](h\x00h\x00e");
    // A recursive reader overflows its stack before 200,000.
    let deep = nested(200_000, b"\x85");
    for pickle in [pairs, lists, deep] {
        refused(folder.convert_bytes(&archive(&pickle, &[]), ""), &["the checkpoint is not a dictionary"]);
    }
    refused(folder.convert_bytes(&archive(&nested(5 << 20, b"0N"), &[]), ""), &["more than 4194304 operations"]);
    // A storage of 32 KiB for 60 tensors that are as long.
    let mut tensors = Tensors::mlps(64, 64);
    tensors.tensors.clear();
    tensors.bytes.truncate(64 * 128 * 4);
    for layer in 0..10 {
        for (slot, cols) in [(0, 128), (3, 64), (6, 64)] {
            for prefix in ["compress_tk", "compress_tv"] {
                tensors.tensors.push((format!("{prefix}.{layer}.{slot}.weight"), 0, vec![64, cols], vec![cols, 1]));
            }
        }
    }
    refused(folder.convert_bytes(&tensors.checkpoint(), TEXT), &["more than 4 times the file's bytes"]);
}
