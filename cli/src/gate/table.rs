//! The table of gates. Flags, keys of threshold files, evaluation and docs/tools.md follow from it.

use super::cells::Column;

/// A gate, or a setting of gates.
pub struct Row {
    /// The flag without dashes; with underscores, the key of a threshold file.
    pub flag: &'static str,
    pub kind: Kind,
    /// In the syntax of the flag.
    pub default: &'static str,
    /// For each of [`SUITES`]; empty is the default.
    pub suites: [&'static str; 4],
    /// The key of the gate; empty for a setting.
    pub gate: &'static str,
    pub rule: Rule,
    pub meaning: &'static str,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Number,
    Switch,
    Word(&'static [&'static str]),
}

/// How a gate judges. A limit below 0, and a switch that is off, disable a gate.
#[derive(Clone, Copy, PartialEq)]
pub enum Rule {
    /// A setting of other gates.
    Setting,
    /// Every row reaches the target; in the reference, one does.
    AtLeast(Column),
    /// No row exceeds the limit.
    AtMost(Column),
    /// Some row is above 0 in one of the columns.
    Active(&'static [Column]),
    Lossless,
    Joint,
    Decode,
    Columns,
    Consistency,
    /// A gate of an llm_demo case.
    Demo,
    Perplexity,
}

/// Presets of `--suite`.
pub const SUITES: [&str; 4] = ["baseline", "probe", "full", "store"];

const NUMBER: Kind = Kind::Number;
const SWITCH: Kind = Kind::Switch;
/// A row without presets.
pub const SAME: [&str; 4] = [""; 4];

macro_rules! rows {
    ($($flag:literal, $kind:expr, $default:literal, $suites:expr, $gate:literal, $rule:expr, $meaning:literal;)*) => {
        &[$(Row { flag: $flag, kind: $kind, default: $default, suites: $suites, gate: $gate, rule: $rule, meaning: $meaning }),*]
    };
}

pub const ROWS: &[Row] = rows! {
    "lossy-target", NUMBER, "3.0", ["1.0", "", "", ""], "lossy_pass", Rule::AtLeast(Column::Lossy),
        "Eviction: tokens over kept tokens, at least";
    "lossless-target", NUMBER, "1.3", ["1.0", "", "", ""], "lossless_online_pass", Rule::Lossless,
        "Compression: raw over encoded bytes, at least; measured by the run";
    "joint-target", NUMBER, "-1", SAME, "joint_pass", Rule::Joint,
        "Raw over kept bytes of the whole cache, at least; needs metrics per layer, or --layers and --front-layers";
    "layers", NUMBER, "0", SAME, "", Rule::Setting, "Layers of the model, for --joint-target without metrics per layer";
    "front-layers", NUMBER, "0", SAME, "", Rule::Setting, "First layers that are compressed and keep all tokens";
    "decode-drop-target", NUMBER, "0.05", ["1.0", "", "", ""], "decode_pass", Rule::Decode,
        "(baseline - speed) / baseline of decoding, at most; off without a baseline";
    "decode-baseline", NUMBER, "0", SAME, "", Rule::Setting, "Decoding speed without compression, tokens per second";
    "decode-baseline-source", Kind::Word(&["fixed", "rolling", "same_batch"]), "", SAME, "", Rule::Setting,
        "The origin of --decode-baseline, for the summary; same_batch: --baseline-results";
    "decode-baseline-samples", NUMBER, "0", SAME, "", Rule::Setting, "Runs behind --decode-baseline";
    "decode-gate-aggregation", Kind::Word(&["avg", "median", "p90", "best"]), "avg", SAME, "", Rule::Setting,
        "The speed of several rows";
    "require-runtime-decomp", SWITCH, "false", ["", "", "true", "true"], "runtime_decomp_required_pass",
        Rule::Active(&[Column::Decomp]), "Something must be decoded";
    "max-lossless-decomp-us", NUMBER, "-1", ["", "", "30000", "70000"], "runtime_decomp_budget_pass",
        Rule::AtMost(Column::Decomp), "Decoding of a run, microseconds, at most";
    "max-lossless-async-wait-us", NUMBER, "-1", ["", "20000", "20000", "40000"], "runtime_async_wait_pass",
        Rule::AtMost(Column::AsyncWait), "Waits for restored tokens in a run, microseconds, at most";
    "async-wait-headroom-warn-ratio", NUMBER, "0.15", SAME, "", Rule::Setting,
        "A warning if less than this share of the wait budget is left";
    "max-lossless-queue-peak", NUMBER, "-1", ["8", "8", "8", "8"], "runtime_queue_peak_pass",
        Rule::AtMost(Column::QueuePeak), "Blocks queued, at most";
    "max-lossless-fallback", NUMBER, "-1", ["0", "0", "0", "0"], "runtime_fallback_pass",
        Rule::AtMost(Column::Fallback), "Failures that left tokens raw, at most";
    "max-lossless-backpressure-skip", NUMBER, "-1", SAME, "runtime_backpressure_skip_pass",
        Rule::AtMost(Column::BackpressureSkip), "Blocks skipped because the queue was full, at most";
    "strict-runtime-metric-columns", SWITCH, "false", ["", "true", "true", "true"], "runtime_metric_columns_pass",
        Rule::Columns, "Tables must have the eight columns of the store";
    "require-async-queue-activity", SWITCH, "false", SAME, "runtime_async_queue_activity_pass",
        Rule::Active(&[Column::AsyncQueuePeak]), "Something must be queued";
    "require-decode-cache-hit", SWITCH, "false", SAME, "runtime_decode_cache_required_pass",
        Rule::Active(&[Column::CacheHit]), "A restored block must have been decoded before";
    "require-decode-cache-activity", SWITCH, "false", SAME, "runtime_decode_cache_activity_pass",
        Rule::Active(&[Column::CacheHit, Column::CacheMiss]), "A block must be restored";
    "require-kv-content-consistency", SWITCH, "false", ["", "", "true", "true"], "kv_content_consistency_pass",
        Rule::Consistency, "Restores happened (full, store), workers worked, no failures, no bad log lines; compares no content";
    "max-kv-invalid-log-lines", NUMBER, "0", SAME, "", Rule::Setting, "Bad log lines that --require-kv-content-consistency allows";
    "runtime-mode", Kind::Word(&["probe", "full", "store"]), "", ["full", "probe", "full", "store"], "", Rule::Setting,
        "The mode of the run (kv_lossless_runtime_mode)";
    "async-threads", NUMBER, "0", SAME, "", Rule::Setting, "Workers of the run (kv_lossless_async_threads)";
    "uncompressed", SWITCH, "false", ["true", "", "", ""], "", Rule::Setting,
        "The run had compression off: counters that were not measured pass";
    "max-host-wait-p95-us", NUMBER, "-1", SAME, "host_wait_p95_pass", Rule::AtMost(Column::HostWaitP95),
        "95th percentile of a run's waits, microseconds, at most";
    "max-host-wait-us", NUMBER, "-1", SAME, "host_wait_max_pass", Rule::AtMost(Column::HostWaitMax),
        "Longest wait of a run, microseconds, at most";
    "llm-demo-decode-drop-target", NUMBER, "0.08", SAME, "llm_demo_decode_pass", Rule::Demo,
        "llm_demo: as --decode-drop-target, overall and per bucket of prompts";
    "llm-demo-require-baseline-decode", SWITCH, "true", SAME, "", Rule::Setting, "llm_demo: the baseline must have decoded";
    "llm-demo-require-bucket-decode-pass", SWITCH, "true", SAME, "bucket_gate_pass", Rule::Demo,
        "llm_demo: every bucket of prompts keeps its speed, with equal runs on both sides";
    "llm-demo-require-runtime-decomp", SWITCH, "true", SAME, "runtime_decomp_pass", Rule::Demo,
        "llm_demo: something must be decoded";
    "llm-demo-require-decode-cache-hit", SWITCH, "false", SAME, "decode_cache_hit_pass", Rule::Demo,
        "llm_demo: a restored block must have been decoded before";
    "llm-demo-lossy-target", NUMBER, "-1", SAME, "llm_demo_lossy_pass", Rule::Demo,
        "llm_demo: mean of the candidate's lossy ratios, at least";
    "llm-demo-lossless-target", NUMBER, "-1", SAME, "llm_demo_lossless_pass", Rule::Demo,
        "llm_demo: mean of the candidate's lossless ratios, at least";
    "max-ppl-increase", NUMBER, "0.05", SAME, "perplexity_pass", Rule::Perplexity,
        "--ppl: (candidate - baseline) / baseline of perplexity, at most";
};

/// Reads a value in the syntax of a flag.
pub fn parse(row: &Row, text: &str) -> Result<Value, String> {
    match row.kind {
        Kind::Number => match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Value::Number(number)),
            _ => Err(format!("{text:?} is not a finite number")),
        },
        Kind::Switch => match text {
            "true" | "1" => Ok(Value::Switch(true)),
            "false" | "0" => Ok(Value::Switch(false)),
            _ => Err(format!("{text:?} is not true or false")),
        },
        Kind::Word(words) if words.contains(&text) || text == row.default => Ok(Value::Word(text.to_owned())),
        Kind::Word(words) => Err(format!("{text:?} is not one of {}", words.join(", "))),
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Number(f64),
    Switch(bool),
    Word(String),
}

/// A value for every row of the table.
#[derive(Clone, Debug)]
pub struct Thresholds(Vec<Value>);

/// The number of the row with this flag.
pub fn index(flag: &str) -> Option<usize> {
    ROWS.iter().position(|row| row.flag == flag)
}

impl Thresholds {
    /// The defaults, or those of a preset.
    pub fn preset(suite: Option<&str>) -> Self {
        let suite = suite.and_then(|suite| SUITES.iter().position(|name| *name == suite));
        let text = |row: &Row| suite.map(|s| row.suites[s]).filter(|text| !text.is_empty()).unwrap_or(row.default);
        Thresholds(ROWS.iter().map(|row| parse(row, text(row)).expect("the table is right")).collect())
    }

    pub fn set(&mut self, index: usize, value: Value) {
        self.0[index] = value;
    }

    pub fn at(&self, index: usize) -> &Value {
        &self.0[index]
    }

    pub fn number(&self, flag: &str) -> f64 {
        match index(flag).map(|i| &self.0[i]) {
            Some(Value::Number(number)) => *number,
            _ => panic!("no number --{flag}"),
        }
    }

    pub fn switch(&self, flag: &str) -> bool {
        match index(flag).map(|i| &self.0[i]) {
            Some(Value::Switch(on)) => *on,
            _ => panic!("no switch --{flag}"),
        }
    }

    pub fn word(&self, flag: &str) -> &str {
        match index(flag).map(|i| &self.0[i]) {
            Some(Value::Word(word)) => word,
            _ => panic!("no word --{flag}"),
        }
    }
}
