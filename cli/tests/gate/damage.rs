//! Damaged inputs.

use super::ours::{metrics, perplexity};
use super::{Folder, lines, scenarios};
use serde_json::Value;
use std::fs;

/// A generator of random numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n.max(1)
    }
}

fn damaged(random: &mut Random, text: &str) -> Vec<u8> {
    const PIECES: [&str; 14] =
        ["|", "\"", "{", "}", "[", "nan", "-", "1e999", "null", "\n", "=", "\u{0}", "± ", "99999999999999999999"];
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        match random.below(5) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..bytes.len().min(at + 1 + random.below(40)))),
            2 if !bytes.is_empty() => bytes[at] = random.below(256) as u8,
            3 => {
                let piece = bytes[at..bytes.len().min(at + 60)].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => drop(bytes.splice(at..at, PIECES[random.below(PIECES.len())].bytes())),
        }
    }
    bytes
}

#[test]
fn a_damaged_input_is_a_verdict_or_an_error_that_names_the_file() {
    let folder = Folder::new("damage");
    let scenario = &scenarios("damage")[0];
    let demo = lines("llm_demo.jsonl").remove(0).to_string();
    let results = include_str!("../../testdata/report/results.json").to_owned();
    let inputs: [(&str, String, &[&str]); 8] = [
        ("results.json", results, &["results.json"]),
        ("bench.log", scenario.folder.read("logs/run_0001.log"), &["bench.log"]),
        ("metrics.json", metrics(3.0).to_string(), &["metrics.json"]),
        ("runs.jsonl", format!("{}\n{}\n", metrics(3.0), metrics(4.0)), &["runs.jsonl"]),
        ("demo.json", demo, &["demo.json"]),
        (
            "t.toml",
            "suite = \"full\"\nlossy_target = 2.5\nruntime_mode = \"store\"\n".into(),
            &["ok.json", "--thresholds", "t.toml"],
        ),
        (
            "s.toml",
            "async_threads = 2\n[[case]]\nname = \"a\"\nresults = [\"ok.json\"]\n".into(),
            &["--manifest", "s.toml"],
        ),
        ("ppl.json", perplexity(-2.0, "wiki").to_string(), &["--ppl", "ppl.json", "ok-ppl.json"]),
    ];
    folder.write("ok.json", &metrics(1.0).to_string());
    folder.write("ok-ppl.json", &perplexity(-2.0, "wiki").to_string());
    let mut errors = 0;
    for seed in 1..=1000 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let (name, text, words) = &inputs[random.below(inputs.len())];
        fs::write(folder.0.join(name), damaged(&mut random, text)).unwrap();
        let output = folder.gate(&[words, &["--summary", "out.json", "--markdown", "out.md"][..]].concat());
        let code = output.status.code().unwrap_or(-1);
        let object: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("seed {seed}, {name}: {e}: {output:?}"));
        let error = object["error"].as_str().unwrap_or_default();
        assert!((0..=3).contains(&code) && !error.contains("a bug"), "seed {seed}, {name}: {code}: {object}");
        let written = [folder.0.join("out.json"), folder.0.join("out.md")].map(|path| fs::remove_file(path).is_ok());
        assert_eq!(written, [code < 2; 2], "seed {seed}, {name}: {code}: {object}");
        assert!(code != 3 || error.contains(name) || error.contains("cannot open"), "seed {seed}, {name}: {error}");
        errors += usize::from(code == 3);
    }
    assert!(errors > 300, "{errors} of 1000 calls failed");
}
