//! Gates over the rows of one runtime case: rows and thresholds in, verdict out.

use super::cells::{Cell, Column, Row};
use super::read::Inputs;
use super::table::{self, ROWS, Rule, Thresholds, Value};
use super::verdict::{Gate, Verdict, best, fixed, mean, percentile};
use serde_json::json;

/// All that the gates of a runtime case read.
pub struct Runtime<'a> {
    pub inputs: &'a Inputs,
    pub limits: &'a Thresholds,
    /// Decode speed without compression, if it is known.
    pub baseline: Option<f64>,
    /// Judge as the reference does, its mistakes included.
    pub faithful: bool,
}

/// The lossless ratio that is judged, and its source.
#[derive(Clone, Debug)]
pub struct Selected {
    pub source: &'static str,
    pub value: Option<f64>,
}

/// A check that passed with a remark, or failed for a reason.
type Check = Result<String, String>;

impl Runtime<'_> {
    /// The gates in the order of the table.
    pub fn judge(&self) -> Verdict {
        let gates = ROWS.iter().enumerate().filter_map(|(i, row)| self.gate(i, row)).collect();
        let mut verdict = Verdict { suite: "runtime", gates, ..Verdict::default() };
        verdict.warnings = self.warnings();
        verdict.facts = self.facts(&verdict);
        self.add_figures(&mut verdict);
        verdict
    }

    fn gate(&self, i: usize, row: &table::Row) -> Option<Gate> {
        let (limit, on) = match self.limits.at(i) {
            Value::Number(limit) => (Some(*limit), *limit >= 0.0),
            Value::Switch(on) => (None, *on),
            Value::Word(_) => (None, false),
        };
        let target = limit.unwrap_or(0.0);
        let (value, check) = match row.rule {
            Rule::Setting | Rule::Demo | Rule::Perplexity => return None,
            Rule::AtLeast(column) => (self.judged(column), self.at_least(column, target)),
            Rule::AtMost(column) => (self.best(column), self.at_most(column, target)),
            Rule::Active(columns) => (best(columns.iter().filter_map(|c| self.best(*c))), self.active(columns)),
            Rule::Lossless => (self.selected().value, self.lossless(target)),
            Rule::Joint => (self.joint(), self.joint_check(target)),
            Rule::Decode => (self.drop(), self.decode(target)),
            Rule::Columns => (Some(self.missing().len() as f64), self.columns()),
            Rule::Consistency => (None, self.consistency()),
        };
        let enabled = on && (row.rule != Rule::Decode || self.baseline.is_some());
        let (pass, reason) = match check {
            _ if !enabled => (true, String::new()),
            Ok(remark) => (true, remark),
            Err(reason) => (false, reason),
        };
        let (key, flag) = (row.gate.into(), row.flag.into());
        Some(Gate { key, flag, value, target: limit.filter(|_| on), enabled, pass, reason })
    }

    pub fn numbers(&self, column: Column) -> impl Iterator<Item = f64> {
        self.inputs.rows.iter().filter_map(move |row| row.number(column))
    }

    /// The maximum. An absent column is 0 in the reference.
    pub fn best(&self, column: Column) -> Option<f64> {
        best(self.numbers(column)).or(self.faithful.then_some(0.0))
    }

    pub fn is_above(&self, column: Column, least: f64) -> bool {
        self.best(column).is_some_and(|best| best > least)
    }

    pub fn worst(&self, column: Column) -> Option<f64> {
        self.numbers(column).reduce(f64::min)
    }

    pub fn mean(&self, column: Column) -> Option<f64> {
        mean(&self.numbers(column).collect::<Vec<_>>()).or(self.faithful.then_some(0.0))
    }

    /// The figure that a floor is compared with.
    fn judged(&self, column: Column) -> Option<f64> {
        if self.faithful { self.best(column) } else { self.worst(column) }
    }

    /// Returns the place and text of the first cell of a column without a number.
    fn bad(&self, column: Column) -> Option<String> {
        self.inputs.rows.iter().find_map(|row| match row.cell(column) {
            Cell::Bad(text) => Some(format!("{}, {}: {text}", row.place, column.name())),
            _ => None,
        })
    }

    fn place_of(&self, column: Column, value: Option<f64>) -> String {
        let row = self.inputs.rows.iter().find(|row| row.number(column) == value);
        row.map_or_else(|| "no row".into(), |row| row.place.to_string())
    }

    fn unmeasured(&self, column: Column) -> String {
        match self.without(column) {
            Some(row) if !self.is_absent(column) => format!("{}, {}: not measured", row.place, column.name()),
            _ => format!("{} is no column of any input", column.name()),
        }
    }

    /// The first row without a figure.
    fn without(&self, column: Column) -> Option<&Row> {
        self.inputs.rows.iter().find(|row| matches!(row.cell(column), Cell::Unmeasured | Cell::Absent))
    }

    fn is_absent(&self, column: Column) -> bool {
        self.inputs.rows.iter().all(|row| *row.cell(column) == Cell::Absent)
    }

    fn at_least(&self, column: Column, target: f64) -> Check {
        let value = self.judged(column);
        let reaches = value.is_some_and(|value| value >= target);
        if self.faithful {
            return if reaches { Ok(String::new()) } else { Err("the best row is below the target".into()) };
        }
        if let Some(bad) = self.bad(column) {
            return Err(bad);
        }
        match (value, self.without(column)) {
            // Every run keeps at most all tokens.
            (None, _) if target <= 1.0 => Ok("not measured; at most 1 asks for nothing".into()),
            (None, _) => Err(self.unmeasured(column)),
            (Some(_), Some(_)) if target > 1.0 => Err(self.unmeasured(column)),
            _ if reaches => Ok(String::new()),
            _ => {
                let best = self.best(column);
                let other = if best > value { format!("; the best row has {}", fixed(best, 4)) } else { String::new() };
                Err(format!(
                    "{} is below the target{other}{}",
                    self.place_of(column, value),
                    self.unreachable(column, target)
                ))
            }
        }
    }

    /// The floor of the kept share decides which ratio a run can reach.
    fn unreachable(&self, column: Column, target: f64) -> String {
        let kept =
            [Column::FloorKeep, Column::QuantizedKeep].into_iter().filter_map(|c| self.best(c)).fold(0.0, f64::max);
        if column != Column::Lossy || kept == 0.0 || 1.0 / kept >= target {
            return String::new();
        }
        format!("; unreachable: sink, recent and whole blocks keep {kept:.4}, which allows {:.4}", 1.0 / kept)
    }

    fn at_most(&self, column: Column, limit: f64) -> Check {
        let value = self.best(column);
        if let Some(bad) = self.bad(column).filter(|_| !self.faithful) {
            return Err(bad);
        }
        let some_unmeasured = !self.faithful && self.without(column).is_some();
        match value {
            None if self.limits.switch("uncompressed") => Ok("not measured, compression was off".into()),
            None => Err(self.unmeasured(column)),
            Some(_) if some_unmeasured && !self.limits.switch("uncompressed") => Err(self.unmeasured(column)),
            Some(value) if value <= limit => Ok(String::new()),
            Some(_) => Err(format!("{} is above the limit", self.place_of(column, value))),
        }
    }

    fn active(&self, columns: &[Column]) -> Check {
        if let Some(bad) = columns.iter().find_map(|c| self.bad(*c)).filter(|_| !self.faithful) {
            return Err(bad);
        }
        let active = |row: &&Row| columns.iter().any(|c| row.number(*c).is_some_and(|n| n > 0.0));
        let idle: Vec<String> =
            self.inputs.rows.iter().filter(|row| !active(row)).map(|row| row.place.to_string()).collect();
        let names = columns.iter().map(|c| c.name()).collect::<Vec<_>>().join(" and ");
        match idle.len() {
            // With NaN in front the reference's maximum is no activity.
            n if n == self.inputs.rows.len() => Err(format!("{names} is 0 or not measured in every row")),
            _ if self.faithful && columns.iter().all(|c| self.best(*c).is_none_or(|best| best.is_nan())) => {
                Err(format!("{names} is NaN"))
            }
            0 => Ok(String::new()),
            n => Ok(format!("none in {n} of {} rows, first {}", self.inputs.rows.len(), idle[0])),
        }
    }

    /// The run's own ratio; the reference prefers results of old dumps.
    pub fn selected(&self) -> Selected {
        if !self.faithful {
            return Selected { source: "runtime", value: self.worst(Column::Lossless) };
        }
        match (&self.inputs.online, &self.inputs.upper) {
            (Some(online), _) => Selected { source: "offline_online_sim", value: Some(online.ratio) },
            (None, Some(upper)) => Selected { source: "offline_upper_bound", value: Some(upper.ratio) },
            (None, None) => Selected { source: "runtime", value: self.mean(Column::Lossless) },
        }
    }

    fn lossless(&self, target: f64) -> Check {
        if !self.faithful {
            return self.at_least(Column::Lossless, target);
        }
        let selected = self.selected();
        if selected.value.is_some_and(|value| value >= target) {
            return Ok(String::new());
        }
        Err(format!("{} is below the target", selected.source))
    }

    /// All layers: from metrics per layer, else from the shares of front and deep layers.
    fn joint(&self) -> Option<f64> {
        let (rows, known) = (&self.inputs.rows, self.inputs.rows.iter().filter_map(|row| row.joint));
        if let Some(worst) = known.clone().reduce(f64::min) {
            return (known.count() == rows.len()).then_some(worst);
        }
        let (layers, front) = (self.limits.number("layers"), self.limits.number("front-layers"));
        if layers <= 0.0 || !(0.0..=layers).contains(&front) {
            return None;
        }
        let (lossy, lossless) = (self.worst(Column::Lossy)?, self.selected().value?);
        let share = front / layers;
        Some(1.0 / (share / lossless + (1.0 - share) / lossy))
    }

    fn joint_check(&self, target: f64) -> Check {
        match self.joint() {
            None => Err(
                "not measured: metrics lack layers; where none has them --layers and --front-layers tell the shares"
                    .into(),
            ),
            Some(joint) if joint >= target => Ok(String::new()),
            Some(_) => Err("the whole cache is below the target".into()),
        }
    }

    /// Decode speeds of all rows; 0 for a cell without one, in the reference.
    fn speeds(&self) -> Vec<f64> {
        self.inputs.rows.iter().filter_map(|row| row.decode.number()).collect()
    }

    /// One speed out of those of all rows.
    pub fn speed(&self, aggregation: &str) -> Option<f64> {
        let absent = self.faithful.then_some(0.0);
        aggregate(&self.speeds(), aggregation).or(absent)
    }

    fn drop(&self) -> Option<f64> {
        let speed = self.speed(self.limits.word("decode-gate-aggregation"))?;
        self.baseline.map(|baseline| (baseline - speed) / baseline)
    }

    /// Returns the place and text of the first decode speed without a number.
    pub fn bad_speed(&self) -> Option<String> {
        self.inputs.rows.iter().find_map(|row| match &row.decode {
            Cell::Bad(text) => Some(format!("{}, decode speed: {text}", row.place)),
            _ => None,
        })
    }

    fn decode(&self, target: f64) -> Check {
        match (self.drop(), self.bad_speed()) {
            (_, Some(bad)) => Err(bad),
            (None, None) => Err("no input has a decode speed".into()),
            (Some(_), None) if !self.faithful && self.speedless().is_some() => {
                Err(format!("{}: no decode speed", self.speedless().map_or(String::new(), |row| row.place.to_string())))
            }
            (Some(drop), None) if drop <= target => Ok(String::new()),
            (Some(_), None) => {
                let speed = self.speed(self.limits.word("decode-gate-aggregation"));
                Err(format!("{} tokens/s against {}", fixed(speed, 4), fixed(self.baseline, 4)))
            }
        }
    }

    /// The first row of a table without a decode speed.
    fn speedless(&self) -> Option<&Row> {
        self.inputs.rows.iter().find(|row| row.decode == Cell::Unmeasured)
    }

    /// Store columns that some row lacks; for the reference, those that no row has.
    pub fn missing(&self) -> Vec<&'static str> {
        let any = |column: Column| self.inputs.rows.iter().any(|row| *row.cell(column) == Cell::Absent);
        let absent = |column: &Column| if self.faithful { self.is_absent(*column) } else { any(*column) };
        Column::STORE.into_iter().filter(absent).map(Column::name).collect()
    }

    fn columns(&self) -> Check {
        match self.missing() {
            missing if missing.is_empty() => Ok(String::new()),
            missing => Err(format!("missing: {}", missing.join(", "))),
        }
    }

    pub fn mode(&self) -> &str {
        self.limits.word("runtime-mode")
    }

    pub fn restore_required(&self) -> bool {
        matches!(self.mode(), "full" | "store")
    }

    /// Whether a table tells how many bytes were decoded.
    pub fn has_decoded_bytes(&self) -> bool {
        self.numbers(Column::DecodedBytes).next().is_some()
    }

    pub fn restored(&self) -> bool {
        let decoded = self.is_above(Column::Decomp, 0.0);
        !self.restore_required() || (decoded && (!self.has_decoded_bytes() || self.is_above(Column::DecodedBytes, 0.0)))
    }

    pub fn clean(&self) -> bool {
        let readable = self.faithful || self.bad(Column::Fallback).is_none();
        readable && self.best(Column::Fallback).is_some_and(|fallback| fallback <= 0.0)
    }

    pub fn workers_required(&self) -> bool {
        self.limits.number("async-threads") > 0.0 && self.mode() != "probe"
    }

    pub fn workers_active(&self) -> bool {
        let used = [Column::AsyncQueuePeak, Column::AsyncWait];
        !self.workers_required() || used.iter().any(|column| self.is_above(*column, 0.0))
    }

    pub fn logs_pass(&self) -> bool {
        self.inputs.bad_lines.len() as f64 <= self.limits.number("max-kv-invalid-log-lines")
    }

    fn consistency(&self) -> Check {
        let mut causes = Vec::new();
        if !self.restored() {
            causes.push("nothing was decoded".to_owned());
        }
        if !self.clean() {
            let best = self.best(Column::Fallback).map(|n| format!("{n} failures"));
            causes.push(self.bad(Column::Fallback).or(best).unwrap_or_else(|| self.unmeasured(Column::Fallback)));
        }
        if !self.workers_active() {
            causes.push("no worker was used".into());
        }
        if !self.logs_pass() {
            let first = &self.inputs.bad_lines[0];
            causes.push(format!(
                "{} bad log lines, first {}: {}",
                self.inputs.bad_lines.len(),
                first.place,
                first.text
            ));
        }
        if causes.is_empty() { Ok(String::new()) } else { Err(causes.join("; ")) }
    }

    /// Left of the wait budget: microseconds, their share, and whether that is little. `None` without a budget.
    pub fn headroom(&self) -> Option<(f64, f64, bool)> {
        let budget = self.limits.number("max-lossless-async-wait-us");
        let wait = self.best(Column::AsyncWait).filter(|_| budget >= 0.0)?;
        let left = budget - wait;
        let share = if budget > 0.0 { left / budget } else { 1.0 };
        let little = wait <= budget && share < self.limits.number("async-wait-headroom-warn-ratio");
        Some((left, share, little))
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let missing = self.missing();
        if self.faithful && !missing.is_empty() {
            warnings.push(format!("[WARN] runtime metric columns missing in CSV: {}", missing.join(", ")));
            warnings.push(
                "[WARN] likely using an older llm_bench binary/log format; rebuild and use the expected v6 llm_bench."
                    .into(),
            );
        }
        let fallback = match self.selected().source {
            "offline_upper_bound" => "online-sim lossless JSON not provided or invalid; falling back to upper-bound.",
            "runtime" if self.faithful => "no offline lossless JSON provided; falling back to runtime value.",
            _ => "",
        };
        if !fallback.is_empty() {
            warnings.push(format!("[WARN] {fallback} Gate result may be unreliable."));
        }
        if let Some((left, share, true)) = self.headroom() {
            let wait = fixed(self.best(Column::AsyncWait), 2);
            let budget = self.limits.number("max-lossless-async-wait-us");
            let figures = format!("best={wait}us target={budget:.2}us headroom={left:.2}us ratio={share:.4}");
            warnings.push(format!("[WARN] runtime async wait headroom is low: {figures}"));
        }
        if self.faithful {
            return warnings;
        }
        for column in Column::all() {
            if let Some(bad) = self.bad(column) {
                warnings.push(bad);
            }
        }
        if self.baseline.is_none() {
            warnings.push("no decode baseline: the speed of decoding is not judged".into());
        }
        warnings
    }

    /// Figures beside those of the reference.
    fn add_figures(&self, verdict: &mut Verdict) {
        let product = self.worst(Column::Lossy).zip(self.selected().value).map(|(lossy, lossless)| lossy * lossless);
        let figures = [
            ("rows", json!(self.inputs.rows.len())),
            ("lossy_best", json!(self.best(Column::Lossy))),
            ("lossy_worst", json!(self.worst(Column::Lossy))),
            ("lossless_runtime_best", json!(self.best(Column::Lossless))),
            ("lossless_runtime_worst", json!(self.worst(Column::Lossless))),
            ("lossless_offline_online_sim", json!(self.inputs.online.as_ref().map(|o| o.ratio))),
            ("lossless_offline_aggregate", json!(self.inputs.upper.as_ref().map(|o| o.ratio))),
            ("joint_whole_cache", json!(self.joint())),
            ("reference_product", json!(product)),
            ("store_decomp_us", json!(self.best(Column::Decomp))),
            ("async_wait_us", json!(self.best(Column::AsyncWait))),
            ("host_wait_p95_us", json!(self.best(Column::HostWaitP95))),
            ("host_wait_max_us", json!(self.best(Column::HostWaitMax))),
            ("decode_tps", json!(self.speed(self.limits.word("decode-gate-aggregation")))),
            ("decode_baseline", json!(self.baseline)),
        ];
        verdict.figures.extend(figures.map(|(key, value)| (key.to_owned(), value)));
    }
}

/// One speed out of several: `avg`, `median`, `p90` or `best`.
pub fn aggregate(speeds: &[f64], aggregation: &str) -> Option<f64> {
    let mut sorted = speeds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match aggregation {
        "median" if !sorted.is_empty() && sorted.len().is_multiple_of(2) => {
            Some((sorted[middle - 1] + sorted[middle]) / 2.0)
        }
        "median" => sorted.get(middle).copied(),
        "p90" => percentile(&sorted, 0.9),
        "best" => best(speeds.iter().copied()),
        _ => mean(speeds),
    }
}
