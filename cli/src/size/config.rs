//! The config of `mnnkv size`: Hugging Face's `config.json`, or MNN's `llm_config.json` and `config.json`.

use crate::failure::Failure;
use mnnkv::json::Json;
use mnnkv_model::file::{ModelFile, Source};
use mnnkv_model::sizing::{AttentionMode, MAX_CONFIG_BYTES, MnnConfig, MnnFile, MnnNumbers, ModelConfig};
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

struct File<'a> {
    path: PathBuf,
    name: String,
    bytes: &'a [u8],
    /// `None`: it is no JSON, which its reader reports with the place.
    json: Option<Json<'a>>,
}

/// The bytes of a file, at most one above the limit, which the parser reports.
fn bytes_of(path: &Path) -> Result<Vec<u8>, Failure> {
    let file = ModelFile::open(path)?;
    Ok(file.read_vec(0, file.len().min(MAX_CONFIG_BYTES as u64 + 1))?)
}

impl<'a> File<'a> {
    fn new(path: &Path, bytes: &'a [u8]) -> Self {
        File { path: path.to_owned(), name: path.display().to_string(), bytes, json: Json::python(bytes).ok() }
    }

    fn get(&self, key: &str) -> Option<&Json<'a>> {
        self.json.as_ref()?.get(key)
    }

    fn has_one_of(&self, keys: &[&str]) -> bool {
        keys.iter().any(|key| self.get(key).is_some())
    }

    fn text(&self, key: &str) -> Result<Option<&str>, Failure> {
        match self.get(key) {
            None => Ok(None),
            Some(Json::Text(text)) => Ok(Some(text)),
            Some(other) => Err(Failure(format!("{}: {key} is {other}; a string expected", self.name))),
        }
    }

    fn is_named(&self, name: &str) -> bool {
        self.path.file_name().is_some_and(|own| own == name)
    }

    /// Whether MNN's programs open it: it names files of a model, or lies beside an exported config.
    fn is_opened_by_mnn(&self) -> bool {
        let names_files =
            self.get("llm_model").is_some() || self.get("llm_config").is_some_and(|name| name.text().is_some());
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

    /// Whether it is a `config.json` that MNN opens before this exported config.
    fn leads_to(&self, llm: &File) -> Result<bool, Failure> {
        let is_hugging_face = self.has_one_of(&["num_hidden_layers", "architectures", "text_config"]);
        Ok(!is_hugging_face && self.llm_config()?.file_name() == llm.path.file_name())
    }

    fn as_mnn(&self) -> MnnFile<'_> {
        MnnFile { name: &self.name, json: self.bytes }
    }
}

/// Reads the config of a file or folder. `given` and `mode` are for MNN's.
pub fn read(path: &Path, given: MnnNumbers, mode: Option<AttentionMode>) -> Result<Config, Failure> {
    let path = file_of(path);
    let bytes = bytes_of(&path)?;
    let file = File::new(&path, &bytes);
    if file.is_named(LLM_CONFIG) || file.has_one_of(&OF_MNN) {
        let beside = path.with_file_name("config.json");
        let bytes = if file.is_named("config.json") || !beside.is_file() { None } else { Some(bytes_of(&beside)?) };
        let host = bytes.as_ref().map(|bytes| File::new(&beside, bytes));
        let leads_here = host.as_ref().map_or(Ok(false), |host| host.leads_to(&file))?;
        return mnn(&file, host.as_ref().filter(|_| leads_here), given, mode);
    }
    if file.is_opened_by_mnn() {
        let path = file.llm_config()?;
        let bytes = bytes_of(&path)?;
        return mnn(&File::new(&path, &bytes), Some(&file), given, mode);
    }
    if matches!(file.json, Some(Json::Object(_))) && !file.has_one_of(&OF_HUGGING_FACE) {
        return Err(Failure(format!(
            "{} is none of the known configs; Hugging Face's config.json (num_hidden_layers), MNN's llm_config.json \
             (layer_nums) or MNN's config.json (llm_model) expected",
            file.name
        )));
    }
    let model = ModelConfig::from_config(file.bytes).map_err(|e| Failure(format!("{}: {}", file.name, e.message())))?;
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
