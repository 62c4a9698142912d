//! Rows of results: one per line of a table, and one per run of a session.

use std::fmt;

macro_rules! columns {
    ($($variant:ident $name:literal [$($alias:literal),*] $scale:literal;)*) => {
        /// A measured figure of a row.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Column { $($variant),* }

        /// Name in a table of the reference, names in other tables and in metrics, and the factor of those.
        const COLUMNS: &[(Column, &str, &[&str], f64)] = &[$((Column::$variant, $name, &[$($alias),*], $scale)),*];
    };
}

columns! {
    Keep "h2o_keep" ["h2o_keep_ratio"] 1.0;
    Lossy "h2o_lossy" ["h2o_lossy_ratio"] 1.0;
    Lossless "h2o_lossless" ["h2o_lossless_ratio"] 1.0;
    TargetKeep "h2o_target_keep_effective" [] 1.0;
    FloorKeep "h2o_floor_keep" ["h2o_floor_keep_by_recent_sink"] 1.0;
    QuantizedKeep "h2o_quantized_keep" ["h2o_block_quantized_keep"] 1.0;
    Evict "h2o_evict_us" [] 1.0;
    Codec "h2o_codec_us" [] 1.0;
    RawMb "h2o_lossless_raw_mb" ["h2o_lossless_raw_bytes"] 9.5367431640625e-7;
    CompMb "h2o_lossless_comp_mb" ["h2o_lossless_compressed_bytes"] 9.5367431640625e-7;
    Comp "h2o_lossless_comp_us" ["h2o_lossless_compress_us"] 1.0;
    Decomp "h2o_lossless_decomp_us" ["h2o_lossless_decompress_us"] 1.0;
    QueuePeak "h2o_lossless_queue_peak" ["h2o_lossless_queue_depth_peak"] 1.0;
    Fallback "h2o_lossless_fallback" ["h2o_lossless_fallback_count"] 1.0;
    BackpressureSkip "h2o_lossless_backpressure_skip" ["h2o_lossless_backpressure_skip_count"] 1.0;
    AsyncQueuePeak "h2o_lossless_async_queue_peak" [] 1.0;
    AsyncWait "h2o_lossless_async_wait_us" [] 1.0;
    CacheHit "h2o_lossless_decode_cache_hit" [] 1.0;
    CacheMiss "h2o_lossless_decode_cache_miss" [] 1.0;
    DecodedBytes "h2o_lossless_decompressed_bytes" [] 1.0;
    HostWaitP95 "h2o_host_wait_us_p95" [] 1.0;
    HostWaitMax "h2o_host_wait_us_max" [] 1.0;
    EvictedTokens "h2o_total_evict_tokens" [] 1.0;
    SavedBytes "h2o_resident_saved_bytes" [] 1.0;
}

impl Column {
    pub const COUNT: usize = COLUMNS.len();

    /// The columns that `--strict-runtime-metric-columns` requires.
    pub const STORE: [Column; 8] = [
        Column::Decomp,
        Column::QueuePeak,
        Column::Fallback,
        Column::BackpressureSkip,
        Column::AsyncQueuePeak,
        Column::AsyncWait,
        Column::CacheHit,
        Column::CacheMiss,
    ];

    pub fn name(self) -> &'static str {
        COLUMNS[self as usize].1
    }

    /// The column of a heading or of a metric, and the factor of its numbers.
    pub fn find(name: &str) -> Option<(Column, f64)> {
        COLUMNS.iter().find_map(|(column, own, aliases, scale)| {
            if *own == name {
                return Some((*column, 1.0));
            }
            aliases.contains(&name).then_some((*column, *scale))
        })
    }

    pub fn all() -> impl Iterator<Item = Column> {
        COLUMNS.iter().map(|(column, ..)| *column)
    }
}

/// A file and a line, or a field, of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub file: String,
    /// A line number, or the path of a field.
    pub at: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.at.is_empty() { write!(f, "{}", self.file) } else { write!(f, "{}:{}", self.file, self.at) }
    }
}

/// The content of a cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// No such column.
    Absent,
    /// A column without a figure in this row.
    Unmeasured,
    /// Text that is no measurement: the text and why.
    Bad(String),
    Number(f64),
}

impl Cell {
    pub fn number(&self) -> Option<f64> {
        if let Cell::Number(number) = self { Some(*number) } else { None }
    }
}

/// One run, as a line of a table or as the metrics of a session.
#[derive(Clone, Debug)]
pub struct Row {
    pub place: Place,
    /// Model, backend, threads: runs with equal keys can be compared.
    pub key: String,
    /// Tokens per second of decoding.
    pub decode: Cell,
    cells: Vec<Cell>,
    /// Raw over kept bytes of all layers, from metrics per layer.
    pub joint: Option<f64>,
}

impl Row {
    pub fn new(place: Place, key: String) -> Self {
        Row { place, key, decode: Cell::Absent, cells: vec![Cell::Absent; Column::COUNT], joint: None }
    }

    pub fn cell(&self, column: Column) -> &Cell {
        &self.cells[column as usize]
    }

    pub fn number(&self, column: Column) -> Option<f64> {
        self.cell(column).number()
    }

    pub fn set(&mut self, column: Column, cell: Cell) {
        self.cells[column as usize] = cell;
    }
}

/// The first number of a cell such as `3.114 ± 0.002`.
///
/// A faithful reading takes the first run of digits, so `1e-05` is 1 and a cell without digits is 0, and accepts `nan`
/// and `inf`.
pub fn number(text: &str, faithful: bool) -> Cell {
    if faithful {
        return Cell::Number(first_digits(text));
    }
    let text = text.trim();
    let first = text.split('±').next().unwrap_or("").trim();
    match first.parse::<f64>() {
        _ if text.is_empty() || text == "-" => Cell::Unmeasured,
        Ok(number) if number.is_finite() => Cell::Number(number),
        _ => Cell::Bad(format!("{text:?} is not a finite number")),
    }
}

/// As [`number`], for what is counted or measured from 0 on.
pub fn measured(text: &str, faithful: bool) -> Cell {
    match number(text, faithful) {
        Cell::Number(number) if number < 0.0 && !faithful => {
            Cell::Bad(format!("{:?} is below 0; a measurement is at least 0", text.trim()))
        }
        cell => cell,
    }
}

fn first_digits(text: &str) -> f64 {
    let bytes = text.as_bytes();
    let Some(start) = bytes.iter().position(u8::is_ascii_digit) else {
        let word = text.trim().to_ascii_lowercase();
        let (sign, word) = word.strip_prefix('-').map_or((1.0, word.as_str()), |rest| (-1.0, rest));
        return match word.strip_prefix('+').unwrap_or(word) {
            "nan" => f64::NAN,
            "inf" | "infinity" => sign * f64::INFINITY,
            _ => 0.0,
        };
    };
    let digits = |from: usize| bytes[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut end = start + digits(start);
    if bytes.get(end) == Some(&b'.') && digits(end + 1) > 0 {
        end += 1 + digits(end + 1);
    }
    let negative = start > 0 && bytes[start - 1] == b'-';
    let number = text[start..end].parse::<f64>().unwrap_or(0.0);
    if negative { -number } else { number }
}
