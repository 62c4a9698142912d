//! Entries of the reference system's folders, joined to layers.
//!
//! The entries of a layer are taken in the order of their first tokens. Among entries with the same first token the longest
//! counts, then the first by path. An entry that begins before the end of its predecessor is left out, and everything
//! after a gap is, so that a layer is consecutive tokens.
//!
//! Some fields are additions to the reference's: `dtype` tells bfloat16 from f16, `q_file` and `attention_file`
//! name rows of Q and of attention, and `attention_scale` is the factor of Q times K.

use super::fields::Fields;
use super::files::{Tree, Words};
use super::folder::{self, Entry, RunKey};
use super::{Attention, Found, Layer, LayerInfo, Query, Source};
use crate::error::{Error, Finding, Result};
use mnnkv::dtype::Dtype;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

/// The entries of a layer, in the order of their tokens.
#[derive(Debug)]
pub(super) struct Parts {
    parts: Vec<Part>,
    /// The first token and all rows of a head.
    query: Option<(usize, usize)>,
    attention: Option<(usize, usize)>,
}

/// An entry. Words are `[token][head][dim]`.
#[derive(Debug)]
struct Part {
    entry: Entry,
    dtype: Dtype,
    query: Option<Rows>,
    scale: Option<f32>,
    /// `[token][query head][token of the layer]`
    attention: Option<Rows>,
}

/// Rows of the last tokens of an entry.
#[derive(Debug)]
struct Rows {
    words: Words,
    heads: usize,
    count: usize,
    columns: usize,
}

/// The layers of all meta files.
pub(super) fn find(tree: &Tree, findings: &mut Vec<Finding>) -> Result<Vec<Found>> {
    let is_meta = |path: &&std::path::PathBuf| {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        name.starts_with(b"meta_") && name.ends_with(b".json")
    };
    let Some(first) = tree.files.iter().find(is_meta) else { return Ok(Vec::new()) };
    if tree.is_file {
        return Err(Error::new(first.display(), "is one entry of a dump; name the folder of the dump"));
    }
    let scan = folder::scan(tree.root())?;
    // The reader of other formats has listed the same folders.
    findings.extend(scan.findings.into_iter().filter(|finding| finding.reason != "unreadable_folder"));
    let mut layers: BTreeMap<(String, u32), Vec<Part>> = BTreeMap::new();
    for entry in scan.entries {
        let run = match entry.run() {
            RunKey::Id(id) => id.to_owned(),
            RunKey::Folder(_) => tree.run_of_meta(&entry.meta),
        };
        let left_out = |field: &str, text: String| Error::new(format!("{}: {field}", entry.meta.display()), text);
        let layer = u32::try_from(entry.layer_id)
            .map_err(|_| left_out("layer_id", format!("is {} or missing; a layer expected", entry.layer_id)));
        let start = u32::try_from(entry.seq_start)
            .map_err(|_| left_out("seq_start", format!("is {}; 0 to {} expected", entry.seq_start, u32::MAX)));
        match layer.and_then(|layer| start.map(|_| layer)) {
            Ok(layer) => match Part::new(entry, findings) {
                Ok(part) => layers.entry((run, layer)).or_default().push(part),
                Err(e) => findings.push(e.finding("field")),
            },
            Err(e) => findings.push(e.finding("field")),
        }
    }
    Ok(layers.into_iter().map(|((run, layer), parts)| join(run, layer, parts, findings)).collect())
}

fn join(run: String, layer: u32, mut parts: Vec<Part>, findings: &mut Vec<Finding>) -> Found {
    // The shape of most entries, and of equally many the first.
    let mut shapes: BTreeMap<_, (usize, Reverse<usize>)> = BTreeMap::new();
    for (i, part) in parts.iter().enumerate() {
        shapes.entry(part.shape()).or_insert((0, Reverse(i))).0 += 1;
    }
    let shape = shapes.into_iter().max_by_key(|(_, count)| *count).map(|(shape, _)| shape);
    let (fitting, others) = parts.into_iter().partition(|part| Some(part.shape()) == shape);
    parts = fitting;
    tell(&others, "shape", "have another shape or type than the other entries of their layer", findings);

    parts.sort_by_key(|part| (part.entry.seq_start, Reverse(part.entry.seq_len)));
    let (mut kept, mut repeated, mut apart): (Vec<Part>, Vec<Part>, Vec<Part>) = Default::default();
    for part in parts {
        match kept.last().map_or(part.begin(), Part::end) {
            end if end == part.begin() => kept.push(part),
            end if end > part.begin() => repeated.push(part),
            _ => apart.push(part),
        }
    }
    tell(&repeated, "left_out", "begin before the end of an entry that is kept", findings);
    tell(&apart, "left_out", "follow missing tokens", findings);

    let (begin, end) = (kept[0].begin(), kept[kept.len() - 1].end());
    let prompt = kept.iter().take_while(|part| part.entry.stage == "prefill").last().map_or(begin, Part::end);
    let place = kept[0].entry.meta.display().to_string();
    findings.extend(other_columns(&mut kept, begin));
    let given = kept.iter().map(|part| (part.query.is_some(), part.attention.is_some()));
    let given = given.fold((0, 0), |(q, a), (query, attention)| (q + usize::from(query), a + usize::from(attention)));
    let query = last_stretch(&mut kept, |part| &mut part.query, |_| true);
    let attention =
        last_stretch(&mut kept, |part| &mut part.attention, |rows| query.is_none_or(|query| query.heads == rows.heads));
    for (reason, given, used) in [
        ("query", given.0, kept.iter().filter(|part| part.query.is_some()).count()),
        ("attention", given.1, kept.iter().filter(|part| part.attention.is_some()).count()),
    ] {
        if used < given {
            let text = format!("rows of {given} entries; the last {used} are used, others have a gap or another shape");
            findings.push(Finding::new(reason, &place, text));
        }
    }
    let first = &kept[0];
    let same_scale = kept.iter().all(|part| part.scale == first.scale);
    if !same_scale {
        findings.push(Finding::new(
            "query",
            &place,
            "attention_scale differs between entries of the layer; it is not used",
        ));
    }
    let info = LayerInfo {
        run,
        layer,
        begin,
        tokens: end - begin,
        prompt_tokens: prompt - begin,
        kv_heads: first.entry.kv_heads,
        head_dim: first.entry.head_dim,
        dtype: first.dtype,
        query_heads: query.or(attention).map_or(0, |rows| rows.heads),
        attention_scale: first.scale.filter(|_| same_scale),
    };
    let range = |rows: Option<Stretch>| rows.map(|rows| (rows.first - begin, rows.rows));
    let (query, attention) = (range(query), range(attention));
    Found { info, source: Source::Parts(Parts { parts: kept, query, attention }), place }
}

fn tell(parts: &[Part], reason: &str, what: &str, findings: &mut Vec<Finding>) {
    let [first, ..] = parts else { return };
    let text = format!("{} entries of the layer, this the first, {what}; they are left out", parts.len());
    findings.push(Finding::new(reason, first.entry.meta.display(), text));
}

/// Rows of consecutive tokens.
#[derive(Clone, Copy)]
struct Stretch {
    first: usize,
    rows: usize,
    heads: usize,
}

/// Drops attention whose rows do not have a column for each token up to the end of their entry.
fn other_columns(parts: &mut [Part], begin: usize) -> Option<Finding> {
    let mut first: Option<(String, String)> = None;
    let mut dropped = 0;
    for part in parts {
        let expected = part.end() - begin;
        let Some(rows) = part.attention.take_if(|rows| rows.columns != expected) else { continue };
        dropped += 1;
        first.get_or_insert_with(|| {
            let text =
                format!("is {}; {expected} expected, from the layer's first token to the entry's last", rows.columns);
            (format!("{}: attention_tokens", part.entry.meta.display()), text)
        });
    }
    first.map(|(place, text)| {
        Finding::new("attention", place, format!("{text}; attention of {dropped} entries is left out"))
    })
}

/// The last rows that follow each other. All others are dropped.
fn last_stretch(
    parts: &mut [Part],
    of: impl Fn(&mut Part) -> &mut Option<Rows>,
    fits: impl Fn(&Rows) -> bool,
) -> Option<Stretch> {
    let mut stretch: Option<Stretch> = None;
    for part in parts.iter_mut().rev() {
        let end = part.end();
        let slot = of(part);
        // Nothing joins across a gap: every entry has a token.
        let joins = |rows: &Rows| stretch.is_none_or(|s| s.first == end && s.heads == rows.heads);
        match slot.as_ref().filter(|rows| fits(rows) && joins(rows)) {
            Some(rows) => {
                let later = stretch.map_or(0, |stretch| stretch.rows);
                stretch = Some(Stretch { first: end - rows.count, rows: later + rows.count, heads: rows.heads });
            }
            None => *slot = None,
        }
    }
    stretch
}

impl Part {
    /// Adds the fields of [`Entry`]'s meta that the reference does not have. Wrong rows are a finding, and another type of
    /// words is an error.
    fn new(mut entry: Entry, findings: &mut Vec<Finding>) -> Result<Part> {
        let meta = Fields::new(&entry.meta, std::mem::take(&mut entry.fields));
        let dtype = meta.dtype_of(entry.bytes_per_elem)?;
        let mut part = Part { entry, dtype, query: None, scale: None, attention: None };
        match meta.positive("attention_scale") {
            Ok(scale) => part.scale = scale,
            Err(e) => findings.push(e.finding("query")),
        }
        match part.rows(&meta, "q", |_| Ok(part.entry.head_dim)) {
            Ok(rows) => part.query = rows,
            Err(e) => findings.push(e.finding("query")),
        }
        match part.rows(&meta, "attention", |meta| Ok(meta.number("attention_tokens", 1)? as usize)) {
            Ok(rows) => part.attention = rows,
            Err(e) => findings.push(e.finding("attention")),
        }
        Ok(part)
    }

    /// The rows of `<name>_file`. `<name>_rows` and `<name>_dtype` are those of the entry where they are absent.
    fn rows(&self, meta: &Fields, name: &str, columns: impl Fn(&Fields) -> Result<usize>) -> Result<Option<Rows>> {
        let field = |last: &str| format!("{name}_{last}");
        let Some(path) = meta.file(&field("file"))? else { return Ok(None) };
        let (heads, columns) = (meta.number("q_heads", 1)? as usize, columns(meta)?);
        let count = meta.optional(&field("rows"), 1)?.map_or(self.entry.seq_len, |rows| rows as usize);
        if !heads.is_multiple_of(self.entry.kv_heads) {
            let text = format!("is {heads}; a multiple of kv_heads {} expected", self.entry.kv_heads);
            return Err(meta.wrong("q_heads", text));
        }
        if count > self.entry.seq_len {
            let text = format!("is {count}; at most seq_len {} expected", self.entry.seq_len);
            return Err(meta.wrong(&field("rows"), text));
        }
        let dtype = meta.dtype(&field("dtype"))?.unwrap_or(self.dtype);
        let words = Words::whole(&path, &[count, heads, columns], dtype)?;
        Ok(Some(Rows { words, heads, count, columns }))
    }

    fn shape(&self) -> (usize, usize, u32) {
        (self.entry.kv_heads, self.entry.head_dim, self.dtype.code())
    }

    fn begin(&self) -> usize {
        self.entry.seq_start as usize
    }

    fn end(&self) -> usize {
        self.begin().saturating_add(self.entry.seq_len)
    }
}

impl Parts {
    /// The tokens with rows of Q and of attention.
    pub(super) fn score_ranges(&self) -> (Range<usize>, Range<usize>) {
        let range = |range: Option<(usize, usize)>| range.map_or(0..0, |(first, rows)| first..first + rows);
        (range(self.query), range(self.attention))
    }

    pub(super) fn load(&self, info: &LayerInfo) -> Result<Layer> {
        let row = info.head_dim * info.dtype.bytes();
        let (mut key, mut value) = (zeros(info.key_bytes())?, zeros(info.key_bytes())?);
        for part in &self.parts {
            let first = part.begin() - info.begin;
            scatter(&part.entry.load(&part.entry.key)?, info.kv_heads, row, &mut key, first);
            scatter(&part.entry.load(&part.entry.value)?, info.kv_heads, row, &mut value, first);
        }
        let query = match self.query {
            None => None,
            Some((first, rows)) => {
                let values = self.scores(info, (first, rows, info.head_dim), |part| part.query.as_ref())?;
                Some(Query { first, rows, values })
            }
        };
        let attention = match self.attention {
            None => None,
            Some((first, rows)) => {
                let values = self.scores(info, (first, rows, info.tokens), |part| part.attention.as_ref())?;
                Some(Attention { first, rows, values })
            }
        };
        Ok(Layer { info: info.clone(), key, value, query, attention })
    }

    /// `[query head][row][column]`. Columns that an entry does not have are 0.
    fn scores<'a>(
        &'a self,
        info: &LayerInfo,
        (first, rows, columns): (usize, usize, usize),
        of: impl Fn(&'a Part) -> Option<&'a Rows>,
    ) -> Result<Vec<f32>> {
        let mut values = zeros(info.query_heads * rows * columns)?;
        for part in &self.parts {
            let end = part.end() - info.begin;
            let Some(given) = of(part) else { continue };
            let from = given.words.values()?;
            for (i, from) in from.chunks_exact(given.columns).enumerate() {
                let (row, head) = (end - given.count - first + i / given.heads, i % given.heads);
                values[(head * rows + row) * columns..][..given.columns].copy_from_slice(from);
            }
        }
        Ok(values)
    }
}

fn zeros<T: Clone + Default>(len: usize) -> Result<Vec<T>> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(len).map_err(|_| Error::new("layer", format!("no memory for {len} elements")))?;
    zeros.resize(len, T::default());
    Ok(zeros)
}

/// Copies rows `[token][head]` to `[head][token]`, from the token `first` on.
fn scatter(from: &[u8], heads: usize, row: usize, to: &mut [u8], first: usize) {
    let head = to.len() / heads;
    for (i, from) in from.chunks_exact(row).enumerate() {
        let at = i % heads * head + (first + i / heads) * row;
        to[at..at + row].copy_from_slice(from);
    }
}
