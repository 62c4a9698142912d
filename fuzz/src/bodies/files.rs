//! Files of users that readers open by their path: dumps, PyTorch checkpoints, models in GGUF, and texts to judge them by.

use super::counting_allocator::peak;
use super::given::Given;
use checkpoint::Checkpoint;
use mnnkv_replay::dumps::Dump;
use mnnkv_replay::quality::{read_items, read_tokens};
use mnnkv_replay::{reference, transformer};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

#[path = "../../../cli/src/convert/archive.rs"]
mod archive;
#[path = "../../../cli/src/convert/checkpoint.rs"]
#[allow(dead_code)]
mod checkpoint;
#[path = "../../../cli/src/convert/pickle.rs"]
#[allow(dead_code)]
mod pickle;
#[path = "../../../cli/src/convert/tensors.rs"]
#[allow(dead_code)]
mod tensors;

/// A folder that is removed with its files.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("mnnkv-fuzz-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Names of files that a folder of dumps may have.
const NAMES: [&str; 20] = [
    "meta_0.json",
    "k_0.bin",
    "v_0.bin",
    "meta_1.json",
    "k_1.bin",
    "v_1.bin",
    "l3_k_h2_t1_d8.f32",
    "l3_v_h2_t1_d8.f32",
    "model_layers_3_self_attn_k.npy",
    "l0_k_h2_t4_d8.f16",
    "l0_v_h2_t4_d8.f16",
    "layer_1_key.npy",
    "layer_1_value.npy",
    "layer_1_query.npy",
    "cache.safetensors",
    "l2_k_h1_t2_d4.bf16",
    "l2_v_h1_t2_d4.bf16",
    "config.json",
    "model.safetensors",
    "attention_l0_h2_q2_t4.f16",
];

/// Any bytes as the files of a folder: each reader of dumps refuses them or reads layers, in
/// memory proportional to them. A file is a byte for its name, a 16-bit length and as many bytes.
pub fn dumps(data: &[u8]) {
    let folder = Folder::new();
    let mut given = Given::new(data);
    while !given.is_empty() {
        let name = given.pick(&NAMES);
        folder.write(name, given.block());
    }
    let held = peak(|| read(&folder.0));
    assert!(held < (4 << 20) + 4000 * data.len(), "{held} bytes for {}", data.len());
}

fn read(folder: &Path) {
    if let Ok(mut dump) = Dump::open(folder) {
        dump.retain(|layer| layer.key_bytes() < 1 << 20);
        for index in 0..dump.layers.len() {
            if let Ok(layer) = dump.load(index) {
                assert_eq!((layer.key.len(), layer.value.len()), (layer.info.key_bytes(), layer.info.key_bytes()));
            }
        }
    }
    let _ = reference::evaluate(folder, &reference::Options::default());
}

/// Any bytes as a PyTorch checkpoint: refused, or tensors with as many numbers as their shapes say, in memory
/// proportional to the file.
pub fn checkpoint(data: &[u8]) {
    let folder = Folder::new();
    let path = folder.write("any.pth", data);
    let held = peak(|| {
        let Ok(mut checkpoint) = Checkpoint::open(&path) else { return };
        for name in checkpoint.names().map(str::to_owned).collect::<Vec<_>>() {
            let shape = checkpoint.shape(&name).map(<[usize]>::to_vec);
            if let (Some(shape), Ok(values)) = (shape, checkpoint.values(&name)) {
                assert_eq!(shape.iter().product::<usize>(), values.len());
            }
        }
    });
    assert!(held < (4 << 20) + 400 * data.len(), "{held} bytes for {}", data.len());
}

/// Any bytes as a model in GGUF: refused, or one that reads a token, in memory proportional to the file.
pub fn gguf(data: &[u8]) {
    let folder = Folder::new();
    let path = folder.write("any.gguf", data);
    let held = peak(|| {
        let Ok(model) = transformer::Model::open(&path) else { return };
        let states = model.forward(&[0], &[7], |_, _, _| Ok::<_, ()>(())).expect("attention does not fail");
        assert_eq!(states.len(), model.shape().hidden);
        model.predict(&states, |row, logits| assert_eq!((row, logits.len()), (0, model.shape().vocabulary)));
    });
    assert!(held < (4 << 20) + 400 * data.len(), "{held} bytes for {}", data.len());
}

/// Any bytes as a file of tasks, or of tokens: refused, or texts that a model of this shape can read.
pub fn tasks(data: &[u8]) {
    let folder = Folder::new();
    let mut given = Given::new(data);
    let (kind, vocabulary, context) = (given.below(3), given.from(1, 300), given.from(1, 60));
    let name = given.pick(&["any.jsonl", "any.u16", "any.u32"]);
    let path = folder.write(name, given.rest());
    let held = peak(|| {
        if kind > 0 {
            let Ok(tokens) = read_tokens(&path, vocabulary) else { return };
            return assert!(tokens.iter().all(|token| (*token as usize) < vocabulary));
        }
        let shape = transformer::Shape {
            layers: 1,
            hidden: 1,
            inner: 1,
            heads: 1,
            kv_heads: 1,
            dims: 2,
            vocabulary,
            context,
            epsilon: 0.0,
            theta: 1.0,
            tied: true,
            gemma: None,
        };
        for item in read_items(&path, &shape).unwrap_or_default() {
            let len = item.tokens.len();
            assert!((1..len).contains(&item.question_from) && len <= context && !item.kind.is_empty());
            assert!(item.tokens.iter().all(|token| (*token as usize) < vocabulary));
            assert!(item.scored.is_sorted_by(|a, b| a < b) && item.scored[0] >= item.question_from);
            assert_eq!(item.scored.last(), Some(&(len - 1)));
        }
    });
    assert!(held < (4 << 20) + 400 * data.len(), "{held} bytes for {}", data.len());
}
