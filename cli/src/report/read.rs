//! Reads the files of a report. Their content is not trusted: each number is checked before it is shown.

use crate::failure::Failure;
use crate::gate::Gate;
use crate::input::{self, short, typed};
use mnnkv_replay::results::{FORMAT, Results, VERSION};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::path::Path;

/// The content of one file.
pub enum Input {
    /// A result of `mnnkv evaluate`.
    Evaluation(Box<Results>),
    /// Verdicts of `mnnkv gate`, one entry per case.
    Gates(Vec<Case>),
}

/// The gates of one case.
#[derive(Debug, Deserialize)]
pub struct Case {
    /// Absent where the file has one case.
    #[serde(default)]
    pub case: String,
    #[serde(default)]
    pub suite: String,
    pub overall_pass: bool,
    pub gates: Vec<Gate>,
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// The fields that tell the kind of a file.
#[derive(Deserialize)]
struct Probe {
    format: Option<Value>,
    version: Option<Value>,
    gates: Option<IgnoredAny>,
    mnnkv: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Summary {
    mnnkv: Cases,
}

#[derive(Deserialize)]
struct Cases {
    cases: Vec<Case>,
}

/// Reads one file. The failure names the file and the field.
pub fn read(path: &Path) -> Result<Input, Failure> {
    let bytes = input::bytes(path, input::MOST_RESULTS)?;
    content(&bytes).map_err(|text| Failure(format!("{}: {text}", path.display())))
}

/// The content of a file, checked.
fn content(bytes: &[u8]) -> Result<Input, String> {
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err("no JSON object".into());
    }
    let probe: Probe = parse(bytes, |json| typed(json))?;
    if probe.format.as_ref().is_some_and(|format| format == FORMAT) {
        return Ok(Input::Evaluation(Box::new(parse(bytes, |json| evaluation(probe.version.as_ref(), json))?)));
    }
    if probe.mnnkv.is_some() {
        return Ok(Input::Gates(parse(bytes, |json| typed::<Summary>(json))?.mnnkv.cases));
    }
    if probe.gates.is_some() {
        return Ok(Input::Gates(vec![parse(bytes, |json| typed(json))?]));
    }
    let found = probe.format.map_or("missing".into(), short);
    Err(format!(
        "format is {found}; {FORMAT:?} of `mnnkv evaluate --output`, or gates of `mnnkv gate --json` or `--summary` expected"
    ))
}

/// A result of `mnnkv evaluate` with this version, checked.
pub fn evaluation<'de>(
    version: Option<&Value>,
    json: impl Deserializer<'de, Error = serde_json::Error>,
) -> Result<Results, String> {
    match version {
        Some(version) if *version == VERSION => {}
        Some(version) => return Err(format!("version is {}; {VERSION} expected", short(version))),
        None => return Err(format!("version is missing; {VERSION} expected")),
    }
    let results: Results = typed(json)?;
    check(&results)?;
    Ok(results)
}

type Json<'de> = serde_json::Deserializer<serde_json::de::SliceRead<'de>>;

/// Reads the one value that a file has.
fn parse<'de, T>(bytes: &'de [u8], read: impl FnOnce(&mut Json<'de>) -> Result<T, String>) -> Result<T, String> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = read(&mut json)?;
    json.end().map_err(|e| e.to_string())?;
    Ok(value)
}

/// A number's list and field, the number, and the least and greatest that is allowed.
type Checked<'a> = (&'a str, f64, f64, f64);

/// Checks that every number has a meaning. JSON has no NaN, but it has 1e300 and -1.
fn check(results: &Results) -> Result<(), String> {
    const RATIO: (f64, f64) = (1e-6, 1e9);
    let list = |list: &str, i: usize, fields: &[Checked]| {
        let wrong = fields.iter().find(|(_, value, least, most)| !(least..=most).contains(&value));
        wrong.map_or(Ok(()), |(field, value, least, most)| {
            Err(format!("{list}[{i}].{field} is {value:e}; a number from {least} to {most:e} expected"))
        })
    };
    for (i, layer) in results.layers.iter().enumerate() {
        let (tokens, raw) = (layer.tokens as f64, layer.raw_bytes as f64);
        list("layers", i, &[("tokens", tokens, 1.0, 1e12), ("raw_bytes", raw, 1.0, 1e18)])?;
    }
    for (i, r) in results.lossless.iter().enumerate() {
        let (raw, hot) = (r.raw_bytes as f64, r.hot_bytes as f64);
        list(
            "lossless",
            i,
            &[
                ("raw_bytes", raw, 1.0, 1e18),
                ("kept_bytes", r.kept_bytes as f64, 1.0, 1e18),
                ("hot_bytes", hot, 0.0, raw.min(r.kept_bytes as f64)),
                ("ratio", r.ratio, RATIO.0, RATIO.1),
                ("encode_bytes_per_second", r.encode_bytes_per_second.unwrap_or(1.0), 1.0, 1e15),
                ("decode_bytes_per_second", r.decode_bytes_per_second.unwrap_or(1.0), 1.0, 1e15),
            ],
        )?;
        if !["k", "v"].contains(&r.tensor.as_str()) {
            return Err(format!("lossless[{i}].tensor is {:?}; \"k\" or \"v\" expected", short(&r.tensor)));
        }
    }
    for (i, r) in results.eviction.iter().enumerate() {
        list(
            "eviction",
            i,
            &[
                ("target_ratio", r.target_ratio, 1.0, 1e6),
                ("block_tokens", r.block_tokens.into(), 1.0, 65536.0),
                ("kept_share", r.kept_share, 0.0, 1.0),
                ("kept_mass", r.kept_mass, 0.0, 1.0 + 1e-6),
                ("relative_l2", r.relative_l2, 0.0, 1e6),
                ("cosine", r.cosine, -1.0 - 1e-6, 1.0 + 1e-6),
                ("moved_tokens", r.moved_tokens, 0.0, 1e12),
                ("restored_bytes_per_step", r.restored_bytes_per_step.unwrap_or(0.0), 0.0, 1e18),
            ],
        )?;
    }
    for (i, r) in results.whole_cache.iter().enumerate() {
        let ratio = |field, value| (field, value, RATIO.0, RATIO.1);
        list(
            "whole_cache",
            i,
            &[
                ("target_ratio", r.target_ratio, 1.0, 1e6),
                ("block_tokens", r.block_tokens.into(), 1.0, 65536.0),
                ratio("front_lossless", r.front_lossless),
                ratio("deep_lossy", r.deep_lossy),
                ratio("deep_lossless", r.deep_lossless),
                ratio("lossless_only", r.lossless_only),
                ratio("lossy_only", r.lossy_only),
                ratio("joint", r.joint),
                ratio("reference_product", r.reference_product),
            ],
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{content, html, markdown};
    use super::*;
    use crate::figures::Figures;

    const SAMPLE: &[u8] = include_bytes!("../../testdata/report/lm_a.json");

    /// Damages of a file: other bytes, a piece less, a piece twice, another number.
    fn damaged(seed: u64) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let mut bytes = SAMPLE.to_vec();
        let numbers: [&[u8]; 8] =
            [b"0", b"-1", b"1e308", b"18446744073709551615", b"4294967295", b"1e-300", b"null", b"7"];
        for _ in 0..1 + random(4) {
            let at = random(bytes.len());
            match random(6) {
                0 => bytes[at] = random(256) as u8,
                1 => drop(bytes.drain(at..(at + 1 + random(2000)).min(bytes.len()))),
                // Whole entries, so that the file stays JSON.
                _ => {
                    let is_number = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
                    let Some(first) = bytes[at..].iter().position(|b| *b == b':').map(|i| at + i + 1) else { continue };
                    let len = bytes[first..].iter().take_while(|byte| is_number(byte)).count();
                    let number = if len > 0 { numbers[random(numbers.len())] } else { b"" };
                    drop(bytes.splice(first..first + len, number.iter().copied()));
                }
            }
        }
        bytes
    }

    #[test]
    fn a_thousand_damaged_files_give_an_error_or_a_whole_page() {
        let (mut refused, mut written) = (0, 0);
        for seed in 0..1000 {
            match content(&damaged(seed)) {
                Err(text) => {
                    assert!(!text.is_empty() && text.len() < 900, "{seed}: {text}");
                    refused += 1;
                }
                Ok(Input::Gates(_)) => {}
                Ok(Input::Evaluation(results)) => {
                    written += 1;
                    // Charts and tables of rounds have the widest choice of figures.
                    let good: Results = parse(SAMPLE, |json| typed(json)).unwrap();
                    let rounds = [Figures::new("a".into(), good), Figures::new("b".into(), *results)];
                    for document in [content::comparison(&rounds, &vec![]), content::report(&rounds[1..], &vec![])] {
                        let page = html::page(&document);
                        let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
                        roxmltree::Document::parse_with_options(&page, options)
                            .unwrap_or_else(|e| panic!("{seed}: {e}"));
                        assert!(page.len() < 2 << 20 && !page.contains("NaN") && !page.contains(">inf"), "{seed}");
                        assert!(!markdown::page(&document).contains("NaN"), "{seed}");
                    }
                }
            }
        }
        assert!(refused > 300 && written > 100, "{refused} refused, {written} written");
    }
}
