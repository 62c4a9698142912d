//! Figures and verdicts of a runtime case by the names of the reference, in its order.

use super::cells::Column;
use super::judge::Runtime;
use super::verdict::{Fact, Verdict, best};

/// Bad log lines that are quoted.
const QUOTED: usize = 5;

/// A list as Python prints it.
fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> Fact {
    Fact::Text(format!("[{}]", items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")))
}

/// A string as Python prints it inside a list.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out += "\\\\",
            '\t' => out += "\\t",
            c if c == quote => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

impl Runtime<'_> {
    /// `verdict` has the gates.
    pub fn facts(&self, verdict: &Verdict) -> Vec<(String, Fact)> {
        let limits = self.limits;
        let pass = |key: &str| Fact::Flag(verdict.gates.iter().all(|gate| gate.key != key || gate.pass));
        let best_of = |column| Fact::Number(self.best(column), 4);
        let limit = |flag: &str| Fact::Number(Some(limits.number(flag)), 4);
        let on = |flag: &str| Fact::Flag(limits.switch(flag));
        let enabled = |flag: &str| limits.number(flag) >= 0.0;
        let selected = self.selected();
        let missing = self.missing();
        let headroom = self.headroom();
        let cache = best([Column::CacheHit, Column::CacheMiss].into_iter().filter_map(|c| self.best(c)));
        let mut facts = Vec::with_capacity(96);
        let mut add = |key: &str, fact| facts.push((key.to_owned(), fact));

        add("quality_status", Fact::Text(if verdict.passed() { "PASS" } else { "FAIL" }.into()));
        add("lossy_target", limit("lossy-target"));
        add("lossy_best", best_of(Column::Lossy));
        add("lossy_pass", pass("lossy_pass"));
        add("lossless_target", limit("lossless-target"));
        add("lossless_selected_source", Fact::Text(selected.source.into()));
        add("lossless_selected_value", Fact::Number(selected.value, 4));
        add("lossless_selected_pass", pass("lossless_online_pass"));
        add("lossless_online_value", Fact::Number(selected.value, 4));
        add("lossless_online_pass", pass("lossless_online_pass"));
        add("runtime_decomp_required", on("require-runtime-decomp"));
        add("runtime_decomp_best_us", best_of(Column::Decomp));
        add("runtime_metric_columns_strict", on("strict-runtime-metric-columns"));
        add("runtime_metric_columns_ok", Fact::Flag(missing.is_empty()));
        add("runtime_metric_columns_pass", pass("runtime_metric_columns_pass"));
        add("runtime_metric_missing_columns", list(missing.iter().map(|name| quoted(name))));
        add("runtime_decomp_gate_enabled", Fact::Flag(enabled("max-lossless-decomp-us")));
        if enabled("max-lossless-decomp-us") {
            add("runtime_decomp_target_us", limit("max-lossless-decomp-us"));
        }
        add("runtime_async_queue_peak_best", best_of(Column::AsyncQueuePeak));
        add("runtime_async_queue_activity_required", on("require-async-queue-activity"));
        add("runtime_async_wait_best_us", best_of(Column::AsyncWait));
        add("runtime_async_wait_gate_enabled", Fact::Flag(enabled("max-lossless-async-wait-us")));
        if enabled("max-lossless-async-wait-us") {
            add("runtime_async_wait_target_us", limit("max-lossless-async-wait-us"));
        }
        if let Some((left, share, little)) = headroom {
            add("runtime_async_wait_headroom_us", Fact::Number(Some(left), 4));
            add("runtime_async_wait_headroom_ratio", Fact::Number(Some(share), 6));
            add(
                "runtime_async_wait_headroom_warn_ratio",
                Fact::Number(Some(limits.number("async-wait-headroom-warn-ratio")), 6),
            );
            add("runtime_async_wait_headroom_warn", Fact::Flag(little));
        }
        add("runtime_decode_cache_hit_best", best_of(Column::CacheHit));
        add("runtime_decode_cache_miss_best", best_of(Column::CacheMiss));
        add("runtime_decode_cache_activity_best", Fact::Number(cache, 4));
        add("runtime_decode_cache_required", on("require-decode-cache-hit"));
        add("runtime_decode_cache_activity_required", on("require-decode-cache-activity"));
        for key in [
            "runtime_decomp_required_pass",
            "runtime_decomp_budget_pass",
            "runtime_async_queue_activity_pass",
            "runtime_async_wait_pass",
            "runtime_decode_cache_required_pass",
            "runtime_decode_cache_activity_pass",
        ] {
            add(key, pass(key));
        }
        add("runtime_queue_peak_best", best_of(Column::QueuePeak));
        add("runtime_fallback_best", best_of(Column::Fallback));
        add("runtime_backpressure_skip_best", best_of(Column::BackpressureSkip));
        for what in ["queue_peak", "fallback", "backpressure_skip"] {
            let flag = format!("max-lossless-{}", what.replace('_', "-"));
            add(&format!("runtime_{what}_gate_enabled"), Fact::Flag(enabled(&flag)));
            if enabled(&flag) {
                add(&format!("runtime_{what}_target"), limit(&flag));
            }
            let key = format!("runtime_{what}_pass");
            add(&key, pass(&key));
        }
        let decomp = ["runtime_decomp_required_pass", "runtime_decomp_budget_pass"];
        add("runtime_decomp_pass", Fact::Flag(decomp.iter().all(|key| matches!(pass(key), Fact::Flag(true)))));
        add("require_kv_content_consistency", on("require-kv-content-consistency"));
        add("runtime_mode", Fact::Text(self.mode().into()));
        add("async_threads", Fact::Number(Some(limits.number("async-threads")), 0));
        add("runtime_decompressed_bytes_available", Fact::Flag(self.has_decoded_bytes()));
        add("runtime_decompressed_bytes_best", Fact::Number(Some(self.best(Column::DecodedBytes).unwrap_or(0.0)), 4));
        add("kv_restore_required", Fact::Flag(self.restore_required()));
        add("kv_restore_activity_pass", Fact::Flag(self.restored()));
        add("kv_fallback_clean_pass", Fact::Flag(self.clean()));
        add("kv_async_activity_required", Fact::Flag(self.workers_required()));
        add("kv_async_activity_pass", Fact::Flag(self.workers_active()));
        add("kv_invalid_log_count", Fact::Number(Some(self.inputs.bad_lines.len() as f64), 0));
        add("kv_invalid_log_max_allowed", Fact::Number(Some(limits.number("max-kv-invalid-log-lines")), 0));
        add("kv_invalid_log_pass", Fact::Flag(self.logs_pass()));
        let examples =
            self.inputs.bad_lines.iter().take(QUOTED).map(|bad| quoted(&format!("{}: {}", bad.place.file, bad.text)));
        add("kv_invalid_log_examples", list(examples));
        add("kv_content_consistency_pass", pass("kv_content_consistency_pass"));
        add("overall_pass", Fact::Flag(verdict.passed()));

        let speed = |aggregation| Fact::Number(self.speed(aggregation), 4);
        let aggregation = limits.word("decode-gate-aggregation");
        add("decode_gate_enabled", Fact::Flag(self.baseline.is_some()));
        add("decode_aggregation", Fact::Text(aggregation.into()));
        add("decode_gate_tps", speed(aggregation));
        add("decode_avg_tps", speed("avg"));
        add("decode_median_tps", speed("median"));
        add("decode_p90_tps", speed("p90"));
        if let Some(baseline) = self.baseline {
            add("decode_baseline", Fact::Number(Some(baseline), 4));
            if !limits.word("decode-baseline-source").is_empty() {
                add("decode_baseline_source", Fact::Text(limits.word("decode-baseline-source").into()));
                add("decode_baseline_samples", Fact::Number(Some(limits.number("decode-baseline-samples")), 0));
            }
            let drop = verdict.gates.iter().find(|gate| gate.key == "decode_pass").and_then(|gate| gate.value);
            add("decode_best", speed("best"));
            add("decode_drop_ratio", Fact::Number(drop, 6));
            add("decode_drop_target", Fact::Number(Some(limits.number("decode-drop-target")), 6));
            add("decode_pass", pass("decode_pass"));
        }
        for (offline, keys) in [
            (&self.inputs.upper, ["upper_selected_entries", "upper_selected_layers", "upper_json"]),
            (&self.inputs.online, ["online_selected_entries", "online_selected_layers", "online_json"]),
        ] {
            let Some(offline) = offline else { continue };
            add(keys[0], Fact::Text(offline.entries.to_string()));
            add(keys[1], list(&offline.layers));
            add(keys[2], Fact::Text(format!("`{}`", offline.file)));
        }
        facts
    }
}
