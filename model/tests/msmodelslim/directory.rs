//! Small directories that are made in the test, by another writer of safetensors.

use mnnkv_model::msmodelslim::MemoryFolder;
use safetensors::Dtype;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// A directory to be changed before it is looked at.
#[derive(Clone)]
pub struct Directory {
    pub tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
    pub description: Map<String, Value>,
    pub config: Value,
}

pub fn f32s(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

pub fn i32s(numbers: &[i32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

impl Directory {
    /// Two linears `m.a` (W8A8, 3 by 4) and `m.b` (W8A16, 3 by 4), a norm, and KV scales of two channels.
    pub fn healthy() -> Directory {
        let mut directory = Directory {
            tensors: BTreeMap::new(),
            description: json!({
                "model_quant_type": "W8A8", "version": "1.0.0", "group_size": 0, "metadata": {}, "optional": {},
                "kv_cache_type": "C8", "kv_quant_type": "C8",
            })
            .as_object()
            .unwrap()
            .clone(),
            config: json!({"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2}),
        };
        let codes = [1i8, -2, 3, 4, 5, 6, -7, 8, 127, -127, 9, 10].map(|c| c as u8).to_vec();
        for (name, tag) in [("m.a", "W8A8"), ("m.b", "W8A16")] {
            directory.put(&format!("{name}.weight"), tag, Dtype::I8, &[3, 4], codes.clone());
        }
        // Sums of rows are 6, 12 and 19, the offset is 5, and there is no bias.
        directory.put("m.a.input_scale", "W8A8", Dtype::F32, &[1], f32s(&[0.5]));
        directory.put("m.a.input_offset", "W8A8", Dtype::F32, &[1], f32s(&[5.0]));
        directory.put("m.a.deq_scale", "W8A8", Dtype::F32, &[3], f32s(&[0.25, 0.5, 0.125]));
        directory.put("m.a.quant_bias", "W8A8", Dtype::I32, &[3], i32s(&[-30, -60, -95]));
        directory.put("m.b.weight_scale", "W8A16", Dtype::F32, &[3, 1], f32s(&[0.5, 0.25, 1.0]));
        directory.put("m.b.weight_offset", "W8A16", Dtype::F32, &[3, 1], f32s(&[0.0, 1.0, -3.0]));
        directory.put("m.norm.weight", "FLOAT", Dtype::F32, &[4], f32s(&[1.0, 2.0, 3.0, 4.0]));
        for side in ["k_proj", "v_proj"] {
            directory.put(&format!("m.3.{side}.kv_cache_scale"), "C8", Dtype::F32, &[2], f32s(&[0.5, 2.0]));
            directory.put(&format!("m.3.{side}.kv_cache_offset"), "C8", Dtype::F32, &[2], f32s(&[0.0, 0.0]));
        }
        directory
    }

    pub fn put(&mut self, name: &str, tag: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) {
        self.tensors.insert(name.to_owned(), (dtype, shape.to_vec(), bytes));
        self.description.insert(name.to_owned(), tag.into());
    }

    /// Takes a tensor and its entry away.
    pub fn remove(&mut self, name: &str) {
        assert!(self.tensors.remove(name).is_some() && self.description.remove(name).is_some());
    }

    /// Other contents for a tensor.
    pub fn set(&mut self, name: &str, bytes: Vec<u8>) {
        let tensor = self.tensors.get_mut(name).unwrap();
        assert_eq!(tensor.2.len(), bytes.len());
        tensor.2 = bytes;
    }

    pub fn rename(&mut self, from: &str, to: &str) {
        let (tensor, tag) = (self.tensors.remove(from).unwrap(), self.description.remove(from).unwrap());
        self.tensors.insert(to.to_owned(), tensor);
        self.description.insert(to.to_owned(), tag);
    }

    pub fn weights(&self) -> Vec<u8> {
        let views = self.tensors.iter().map(|(name, (dtype, shape, bytes))| {
            (name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        safetensors::serialize(views.collect::<Vec<_>>(), None).unwrap()
    }

    pub fn folder(&self) -> MemoryFolder {
        folder(&[
            ("quant_model_weights.safetensors", &self.weights()),
            ("quant_model_description.json", Value::Object(self.description.clone()).to_string().as_bytes()),
            ("config.json", self.config.to_string().as_bytes()),
        ])
    }
}

/// A folder of these files.
pub fn folder(files: &[(&str, &[u8])]) -> MemoryFolder {
    MemoryFolder(files.iter().map(|(name, bytes)| ((*name).to_owned(), (*bytes).into())).collect())
}
