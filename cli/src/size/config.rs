//! The config of `mnnkv size`: Hugging Face's `config.json`, or MNN's `llm_config.json` and `config.json`.

use crate::failure::Failure;
use mnnkv_model::file::{ModelFile, Source};
use mnnkv_model::sizing::{AttentionMode, MAX_CONFIG_BYTES, MnnConfig, MnnFile, MnnNumbers, ModelConfig};
use serde_json::Value;
use std::path::{Path, PathBuf};

const LLM_CONFIG: &str = "llm_config.json";

/// Keys that only MNN's exporter writes.
const OF_MNN: [&str; 3] = ["layer_nums", "key_value_shape", "attention_mask"];
/// Keys one of which a Hugging Face config of a language model has.
const OF_HUGGING_FACE: [&str; 12] = [
    "model_type",
    "architectures",
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config",
];

/// What the user's path led to.
pub enum Config {
    HuggingFace(ModelConfig),
    Mnn(MnnConfig),
}

struct File {
    path: PathBuf,
    name: String,
    bytes: Vec<u8>,
    /// `None`: it is no JSON, which its reader reports with the place.
    json: Option<Value>,
}

impl File {
    fn read(path: &Path) -> Result<File, Failure> {
        let file = ModelFile::open(path)?;
        // One byte above the limit, which the parser reports.
        let bytes = file.read_vec(0, file.len().min(MAX_CONFIG_BYTES as u64 + 1))?;
        let json = serde_json::from_slice(&bytes).ok();
        Ok(File { path: path.to_owned(), name: path.display().to_string(), bytes, json })
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.json.as_ref()?.get(key)
    }

    fn has_one_of(&self, keys: &[&str]) -> bool {
        keys.iter().any(|key| self.get(key).is_some())
    }

    fn text(&self, key: &str) -> Result<Option<&str>, Failure> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(Failure(format!("{}: {key} is {other}; a string expected", self.name))),
        }
    }

    fn is_named(&self, name: &str) -> bool {
        self.path.file_name().is_some_and(|own| own == name)
    }

    /// Whether MNN's programs open it: it names files of a model, or lies beside an exported config.
    fn is_opened_by_mnn(&self) -> bool {
        let names_files = self.get("llm_model").is_some() || self.get("llm_config").is_some_and(Value::is_string);
        names_files || !self.has_one_of(&OF_HUGGING_FACE) && self.path.with_file_name(LLM_CONFIG).is_file()
    }

    /// The `llm_config.json` that MNN reads after this `config.json`.
    fn llm_config(&self) -> Result<PathBuf, Failure> {
        let name = self.text("llm_config")?.unwrap_or(LLM_CONFIG);
        Ok(match self.text("base_dir")? {
            // MNN joins them as they are.
            Some(folder) => PathBuf::from(format!("{folder}{name}")),
            None => self.path.with_file_name(name),
        })
    }

    fn as_mnn(&self) -> MnnFile<'_> {
        MnnFile { name: &self.name, json: &self.bytes }
    }
}

/// Reads the config of a file or folder. `given` and `mode` are for MNN's.
pub fn read(path: &Path, given: MnnNumbers, mode: Option<AttentionMode>) -> Result<Config, Failure> {
    let file = File::read(&file_of(path))?;
    if file.is_named(LLM_CONFIG) || file.has_one_of(&OF_MNN) {
        let host = opened_before(&file)?;
        return mnn(&file, host.as_ref(), given, mode);
    }
    if file.is_opened_by_mnn() {
        return mnn(&File::read(&file.llm_config()?)?, Some(&file), given, mode);
    }
    if file.json.as_ref().is_some_and(Value::is_object) && !file.has_one_of(&OF_HUGGING_FACE) {
        return Err(Failure(format!(
            "{} is none of the known configs; Hugging Face's config.json (num_hidden_layers), MNN's llm_config.json \
             (layer_nums) or MNN's config.json (llm_model) expected",
            file.name
        )));
    }
    let model =
        ModelConfig::from_config(&file.bytes).map_err(|e| Failure(format!("{}: {}", file.name, e.message())))?;
    Ok(Config::HuggingFace(model))
}

fn mnn(llm: &File, host: Option<&File>, given: MnnNumbers, mode: Option<AttentionMode>) -> Result<Config, Failure> {
    Ok(Config::Mnn(MnnConfig::read(llm.as_mnn(), host.map(File::as_mnn), given, mode)?))
}

/// The file that is read for a path.
pub fn file_of(path: &Path) -> PathBuf {
    let config = path.join("config.json");
    let exported = path.join(LLM_CONFIG);
    match path.is_dir() {
        false => path.to_owned(),
        true if !config.exists() && exported.exists() => exported,
        true => config,
    }
}

/// The `config.json` beside an exported config, if it leads there.
fn opened_before(llm: &File) -> Result<Option<File>, Failure> {
    let path = llm.path.with_file_name("config.json");
    if llm.is_named("config.json") || !path.is_file() {
        return Ok(None);
    }
    let host = File::read(&path)?;
    let is_hugging_face = host.has_one_of(&["num_hidden_layers", "architectures", "text_config"]);
    let leads_here = !is_hugging_face && host.llm_config()?.file_name() == llm.path.file_name();
    Ok(leads_here.then_some(host))
}
