//! `mnnkv report` as a process: the page, its figures, its refusals, and its look in a browser.

mod common;

use common::Folder;
use mnnkv::dtype::Dtype;
use mnnkv::layout::{Kind, Rows};
use mnnkv::session::Holds;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

impl Folder {
    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, value: &Value) -> String {
        fs::write(self.path(name), value.to_string()).unwrap();
        self.path(name)
    }

    /// The page of results.
    #[track_caller]
    fn page(&self, results: &[&Value], options: &[&str]) -> String {
        let names = results.iter().enumerate().map(|(i, value)| self.write(&format!("round{i}.json"), value));
        let names: Vec<String> = names.collect();
        let page = self.path("page.html");
        let mut words = vec!["report", "--overwrite", "-o", &page];
        words.extend(options);
        words.extend(names.iter().map(String::as_str));
        let output = mnnkv(&words);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::read_to_string(page).unwrap()
    }
}

fn mnnkv(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mnnkv")).args(words).output().unwrap()
}

fn sample() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/report/lm_a.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[track_caller]
fn parsed(page: &str) -> roxmltree::Document<'_> {
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    roxmltree::Document::parse_with_options(page, options).unwrap_or_else(|e| panic!("{e}"))
}

fn text(node: roxmltree::Node) -> String {
    node.descendants().filter_map(|n| n.text().filter(|_| n.is_text())).collect()
}

fn all<'a>(page: &'a roxmltree::Document, tag: &str) -> Vec<roxmltree::Node<'a, 'a>> {
    page.descendants().filter(|n| n.has_tag_name(tag)).collect()
}

/// Cells of the first table whose caption begins so.
#[track_caller]
fn table(page: &roxmltree::Document, caption: &str) -> Vec<Vec<String>> {
    let found = all(page, "caption").into_iter().find(|c| text(*c).starts_with(caption));
    let found = found.unwrap_or_else(|| panic!("no table {caption:?}")).parent().unwrap();
    let rows = found.descendants().filter(|n| n.has_tag_name("tr"));
    rows.map(|row| row.children().filter(|n| n.is_element()).map(text).collect()).collect()
}

fn numbers(list: &Value, key: &str) -> f64 {
    list.as_array().unwrap().iter().map(|entry| entry[key].as_f64().unwrap()).sum()
}

/// The entries of a list that a test chooses.
fn chosen(list: &Value, of: impl Fn(&Value) -> bool) -> Value {
    list.as_array().unwrap().iter().filter(|entry| of(entry)).cloned().collect()
}

const SECTIONS: [&str; 9] = [
    "Summary",
    "Next steps",
    "The whole cache",
    "Ratio by layer",
    "Ratio against speed",
    "Output error against kept tokens",
    "Memory against tokens",
    "Findings",
    "Terms",
];

#[test]
fn the_page_is_whole_well_formed_and_refers_to_nothing_outside() {
    let page = Folder::new("whole").page(&[&sample()], &[]);
    for outside in ["http:", "https:", "src=", "href=", "url(", "@import", "<script", "<iframe", "#0100"] {
        assert!(!page.contains(outside), "{outside}");
    }
    let page = parsed(&page);
    assert_eq!(all(&page, "h2").into_iter().map(text).collect::<Vec<_>>(), SECTIONS);
    let charts: Vec<_> = all(&page, "svg").into_iter().filter(|svg| svg.attribute("role") == Some("img")).collect();
    assert!(charts.len() > 8);
    for chart in charts {
        let ids: Vec<&str> = chart.attribute("aria-labelledby").unwrap().split(' ').collect();
        let named = ids.iter().map(|id| page.descendants().find(|n| n.attribute("id") == Some(id)).unwrap());
        assert!(named.map(text).all(|words| words.len() > 1));
        assert!(chart.descendants().any(|n| n.has_tag_name("polyline") || n.has_tag_name("rect")));
    }
    assert_eq!(all(&page, "figure").len(), all(&page, "figure").iter().filter(|f| has_table(f)).count());
}

fn has_table(figure: &roxmltree::Node) -> bool {
    figure.descendants().any(|n| n.has_tag_name("table"))
}

#[test]
fn figures_on_the_page_are_those_of_the_results() {
    let results = sample();
    let html = Folder::new("figures").page(&[&results], &[]);
    let page = parsed(&html);
    let summary = text(all(&page, "section")[0]);

    let v1 = |e: &Value| e["format"] == "v1" && e["effort"] == 5 && e["cut"] == "blocks";
    let blocks = chosen(&results["lossless"], v1);
    let lossless = numbers(&blocks, "raw_bytes") / numbers(&blocks, "kept_bytes");
    assert!(summary.contains(&format!("{lossless:.2}:1")), "{summary}");
    let at = |ratio: f64| move |e: &Value| e["target_ratio"] == ratio;
    let whole = chosen(&results["whole_cache"], |e| at(3.5)(e) && e["lossless"] == "v1 effort 5");
    for key in ["joint", "reference_product"] {
        assert!(summary.contains(&format!("{:.2}", numbers(&whole, key))), "{key}: {summary}");
    }
    // The first two layers keep all tokens.
    let replayed = |ratio: f64| {
        let deep = |e: &Value| at(ratio)(e) && e["policy"] == "ema" && e["layer"].as_u64() >= Some(2);
        let layers = chosen(&results["eviction"], deep);
        numbers(&layers, "relative_l2") / layers.as_array().unwrap().len() as f64
    };
    assert!(summary.contains(&format!("changes by {:.0}%", replayed(3.5) * 100.0)), "{summary}");
    let limits = table(&page, "The highest ratio under a limit");
    let shown: Vec<[&str; 3]> = limits[1..].iter().map(|row| [&row[0][..], &row[1][..], &row[3][..]]).collect();
    let error = |ratio| format!("{:.1}%", replayed(ratio) * 100.0);
    let last = format!("{:.0}%", replayed(3.5) * 100.0);
    assert!(replayed(2.0) > 0.05 && replayed(3.5) > 0.10);
    // At one token in 8 nothing is evicted, so its error of 0 is no merit.
    assert_eq!(shown, [["5.0%", "1.5", &error(1.5)], ["10%", "2", &error(2.0)], ["20%", "3.5", &last]]);

    let rows = table(&page, "Ratios of the whole cache");
    let wholes = chosen(&results["whole_cache"], |e| e["lossless"] == "v1 effort 5");
    assert_eq!(rows.len() - 1, wholes.as_array().unwrap().len());
    for (row, whole) in rows[1..].iter().zip(wholes.as_array().unwrap()) {
        let keys = ["joint", "lossless_only", "lossy_only", "reference_product"];
        let expected = keys.map(|key| format!("{:.2}", whole[key].as_f64().unwrap()));
        assert_eq!([1, 3, 4, 6].map(|column| row[column].as_str()), expected);
    }
    // At the length of the dump the model of memory must give the measured ratio.
    let memory = table(&page, "Bytes of the cache");
    let row = memory.iter().find(|row| row[..2] == ["2", "1,088"]).unwrap();
    let raw = numbers(&results["layers"], "raw_bytes");
    let joint = numbers(&chosen(&wholes, at(2.0)), "joint");
    assert_eq!(row[2], format!("{:.1} MiB", raw / 1048576.0));
    assert_eq!(row[5], format!("{:.1} MiB", raw / joint / 1048576.0));
}

#[test]
fn the_config_of_the_page_is_accepted_and_has_the_advised_ratio() {
    let page = Folder::new("config").page(&[&sample()], &[]);
    let page = parsed(&page);
    let budget = text(all(&page, "pre")[0]);
    let (parsed, warnings) = mnnkv::session::config::Config::parse(budget.as_bytes(), b"", 6).unwrap();
    assert_eq!((parsed.memory.unwrap().bytes, warnings), (64_000_000, Vec::<String>::new()));
    let config = text(all(&page, "pre")[1]);
    let (parsed, warnings) = mnnkv::session::config::Config::parse(config.as_bytes(), b"", 6).unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    assert!(parsed.lossless.is_some() && parsed.eviction.is_some());
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["kv_h2o_target_lossy_ratio"], 2.0);
}

#[test]
fn a_budget_is_advised_where_it_bounds_something() {
    let steps = |change: &dyn Fn(&mut Value)| {
        let mut results = sample();
        results["layers"].as_array_mut().unwrap().iter_mut().for_each(change);
        let page = Folder::new("budget").page(&[&results], &[]);
        let page = parsed(&page);
        (text(all(&page, "pre")[0]), text(*all(&page, "ol").first().unwrap()))
    };
    let first = sample()["layers"][0].clone();
    let kind = Kind::Float(Dtype::F16);
    let [heads, dims] = ["kv_heads", "head_dim"].map(|key| first[key].as_u64().unwrap() as usize);
    let holds = Holds::of(64_000_000, 6, &Rows { key: kind, value: kind, heads, dims }).unwrap();
    let (config, words) = steps(&|layer| layer["dtype"] = "F16".into());
    assert!(config.contains("\"kv_memory_mb\": 64"), "{config}");
    let digits: String = words.chars().filter(|c| *c != ',').collect();
    for tokens in [holds.raw_tokens, holds.quantised_tokens, holds.file_tokens] {
        assert!(digits.contains(&tokens.to_string()), "{tokens}: {words}");
    }
    // A model that 64 MB are too small for.
    let (config, _) = steps(&|layer| layer["kv_heads"] = 400.into());
    assert!(config.contains("kv_memory_mb") && !config.contains("64"), "{config}");
    let (config, words) = steps(&|layer| layer["dtype"] = "INT8".into());
    assert!(!config.contains("kv_memory_mb") && words.contains("Set these keys in the host"), "{words}");
}

#[test]
fn names_from_files_are_text_and_nothing_else() {
    let evil = "</td><script>alert('1')</script>\"&amp;\u{1}\u{ffff}\u{202e}`|*_[x](http://x.y)";
    let mut results = sample();
    for list in ["layers", "lossless", "eviction", "whole_cache"] {
        results[list].as_array_mut().unwrap().iter_mut().for_each(|entry| entry["run"] = evil.into());
    }
    for entry in results["eviction"].as_array_mut().unwrap() {
        entry["policy"] = evil.into();
    }
    for key in ["dumps", "program"] {
        results[key] = evil.into();
    }
    results["settings"][evil] = evil.into();
    results["findings"] = json!([{ "reason": evil, "place": evil, "text": evil }]);
    results["lossless"][0]["rotation"] = evil.into();
    let gates = json!({ "overall_pass": false, "case": evil, "warnings": [evil],
        "gates": [{ "gate": evil, "pass": false, "reason": evil }] });
    let folder = Folder::new("names");
    let markdown = folder.path("page.md");
    let page = folder.page(&[&results, &gates], &["--markdown", &markdown]);
    assert!(!page.contains("<script") && !page.contains("</td><s"));
    let page = parsed(&page);
    assert!(all(&page, "td").into_iter().any(|cell| text(cell).contains("</td><script>alert('1')</script>\"&amp;")));
    assert!(all(&page, "script").is_empty() && all(&page, "a").is_empty());
    let markdown = fs::read_to_string(markdown).unwrap();
    assert!(markdown.contains("&lt;script&gt;") && !markdown.contains("<script") && !markdown.contains("http://"));
    // A cell cannot end its table's row.
    let widths = |line: &str| line.replace("\\|", "").matches('|').count();
    let rows: Vec<usize> = markdown.lines().filter(|l| l.starts_with("| &lt;/td")).map(widths).collect();
    assert!(rows.iter().all(|bars| *bars > 2), "{rows:?}");
}

#[test]
fn results_without_meaning_are_refused_by_file_and_field_and_leave_no_page() {
    let folder = Folder::new("refused");
    let page = folder.path("page.html");
    let refused = |results: &str, words: &[&str]| {
        fs::write(folder.path("bad.json"), results).unwrap();
        let output = mnnkv(&["report", &folder.path("bad.json"), "-o", &page]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{error}");
        assert!(words.iter().chain(&["bad.json: "]).all(|word| error.contains(word)), "{words:?}: {error}");
        assert!(fs::read_dir(&folder.0).unwrap().count() == 1);
    };
    let change = |list: &str, key: &str, value: Value| {
        let mut results = sample();
        if list.is_empty() {
            results[key] = value
        } else {
            results[list][3][key] = value
        }
        results.to_string()
    };
    refused(&change("", "format", "other".into()), &["format is \"other\"", "mnnkv-evaluate"]);
    refused(&change("", "version", 2.into()), &["version is 2; 1 expected"]);
    refused(&change("", "layers", "none".into()), &["layers: invalid type: string", "line 1 column"]);
    refused(&change("lossless", "ratio", "2".into()), &["lossless[3].ratio", "expected f64"]);
    refused(&change("lossless", "kept_bytes", (-1).into()), &["lossless[3].kept_bytes", "expected u64"]);
    refused(&change("lossless", "kept_bytes", 0.into()), &["lossless[3].kept_bytes is 0e0"]);
    refused(&change("lossless", "tensor", "q".into()), &["lossless[3].tensor is \"q\"; \"k\" or \"v\" expected"]);
    refused(&change("eviction", "kept_share", 1.5.into()), &["eviction[3].kept_share is 1.5", "from 0 to 1"]);
    refused(&change("whole_cache", "joint", 1e300.into()), &["whole_cache[3].joint is 1e300"]);
    refused(&change("layers", "tokens", 0.into()), &["layers[3].tokens"]);
    let nan = sample().to_string().replacen("\"relative_l2\":", "\"relative_l2\":NaN,\"x\":", 1);
    refused(&nan, &["eviction: expected value at line 1 column"]);
    refused(&nan.replace("NaN", "1e999"), &["eviction", "number out of range at line 1 column"]);
    let missing = sample().to_string().replacen("\"cosine\":", "\"sine\":", 1);
    refused(&missing, &["eviction[0]", "missing field `cosine`"]);
    refused("[1, 2]", &["no JSON object"]);
    refused("", &["no JSON object"]);
    refused("{}", &["format is missing"]);
    refused(&"{\"gates\":".repeat(100_000), &["gates: EOF while parsing", "line 1 column 900000"]);
    refused(&(sample().to_string() + "x"), &["trailing"]);
    refused(r#"{"gates":[{"gate":"a"}],"overall_pass":true}"#, &["gates[0]", "missing field `pass`"]);

    fs::write(&page, "old").unwrap();
    let good = folder.write("good.json", &sample());
    let output = mnnkv(&["report", &good, "-o", &page]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("page.html exists; a new file or --overwrite expected"));
    assert_eq!(mnnkv(&["report", &folder.path("bad.json"), "--overwrite", "-o", &page]).status.code(), Some(3));
    assert_eq!(fs::read_to_string(&page).unwrap(), "old");
    let output = mnnkv(&["report", &good, "--overwrite", "-o", &good]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("good.json is an input; another file expected"));
    assert_eq!(mnnkv(&["report", "--compare", &good, "--overwrite", "-o", &page]).status.code(), Some(3));
    assert_eq!(mnnkv(&["report", &good]).status.code(), Some(2));
}

#[test]
fn parts_that_were_not_measured_are_left_out_with_the_reason() {
    let folder = Folder::new("parts");
    let mut results = sample();
    results["complete"] = false.into();
    for (list, reason) in [
        ("eviction", "Eviction was not replayed: the dump has neither Q nor attention rows"),
        ("whole_cache", "Ratios of the whole cache need the codec"),
        ("lossless", "No tensor was encoded"),
        ("layers", "memory cannot be computed"),
    ] {
        results[list] = json!([]);
        let page = folder.page(&[&results], &[]);
        let page = parsed(&page);
        let words = text(page.root_element());
        assert!(words.contains(reason) && words.contains("The evaluation was stopped early"), "{list}");
        // Parts of a dump advise nothing.
        assert!(all(&page, "h2").len() == SECTIONS.len() - 1 && !words.contains("Next steps"));
    }
}

#[test]
fn many_layers_and_endless_lists_make_a_page_of_bounded_size() {
    let mut results = sample();
    let many = |results: &mut Value, list: &str, copies: u32, change: &dyn Fn(&mut Value, u32)| {
        let entries = results[list].as_array().unwrap().clone();
        let copy = |i: u32| {
            entries.iter().cloned().map(move |mut entry| {
                change(&mut entry, i);
                entry
            })
        };
        results[list] = (0..copies).flat_map(copy).collect();
    };
    let layer =
        |entry: &mut Value, i: u32| entry["layer"] = (entry["layer"].as_u64().unwrap() + u64::from(6 * i)).into();
    for list in ["layers", "lossless", "eviction"] {
        many(&mut results, list, 14, &layer);
    }
    let folder = Folder::new("many");
    let page = folder.page(&[&results], &[]);
    assert!(page.len() < 1 << 20, "{} bytes for 84 layers", page.len());
    parsed(&page);

    let long = "x".repeat(100_000);
    many(&mut results, "eviction", 12, &|entry, i| entry["policy"] = format!("{i}{long}").into());
    results["eviction"].as_array_mut().unwrap().truncate(2000);
    many(&mut results, "lossless", 20, &|entry, i| entry["format"] = format!("v{i}").into());
    many(&mut results, "whole_cache", 200, &|entry, i| entry["run"] = i.to_string().into());
    results["findings"] =
        (0..5000).map(|i| json!({ "reason": "gap", "place": i.to_string(), "text": long[..99] })).collect();
    let page = folder.page(&[&results], &[]);
    assert!(page.len() < 2 << 20, "{} bytes", page.len());
    assert!(page.contains("4840 more rows are in the results"));
    parsed(&page);
}

#[test]
fn rounds_stand_side_by_side_with_their_changes() {
    let (before, mut after) = (sample(), sample());
    for entry in after["lossless"].as_array_mut().unwrap() {
        entry["kept_bytes"] = (entry["kept_bytes"].as_f64().unwrap() * 0.8).round().into();
        entry["kept_bytes"] = (entry["kept_bytes"].as_f64().unwrap() as u64).into();
    }
    for entry in after["whole_cache"].as_array_mut().unwrap() {
        entry["joint"] = (entry["joint"].as_f64().unwrap() * 1.1).into();
    }
    let folder = Folder::new("rounds");
    let markdown = folder.path("page.md");
    let page = folder.page(&[&before, &after], &["--compare", "--markdown", &markdown]);
    let page = parsed(&page);
    let rows = table(&page, "Key figures");
    assert_eq!(rows[0], ["figure", "round0.json", "round1.json", "change"]);
    let change = |label: &str| rows.iter().find(|row| row[0].starts_with(label)).unwrap()[3].clone();
    assert_eq!([change("ratio, lossless"), change("ratio, both"), change("error, one")], ["+25%", "+10%", "+0%"]);
    assert_eq!(table(&page, "Eviction")[0][0], "round");
    let markdown = fs::read_to_string(markdown).unwrap();
    assert!(rows[1..].iter().all(|row| markdown.contains(&format!(" {} | {} | {} |", row[1], row[2], row[3]))));
}

#[test]
fn gates_are_listed_with_their_reasons() {
    let gate = |name: &str, pass: bool, enabled: bool| {
        json!({ "gate": name, "flag": "", "enabled": enabled, "pass": pass, "value": 2.5, "target": null,
            "reason": format!("why {name}") })
    };
    let case = json!({ "case": "store", "suite": "runtime", "overall_pass": false, "warnings": ["little headroom"],
        "gates": [gate("lossy_pass", false, true), gate("decode_pass", true, true), gate("queue_pass", true, false)] });
    let summary = json!({ "overall_pass": false, "rows": [], "mnnkv": { "version": "0.1.0", "cases": [case] } });
    let page = Folder::new("gates").page(&[&sample(), &summary], &[]);
    let page = parsed(&page);
    let rows = table(&page, "Gates of store");
    assert_eq!(rows[1], ["lossy_pass", "✗ fail", "2.5", "—", "why lossy_pass"]);
    assert_eq!(rows[2][1], "✓ pass");
    assert_eq!(table(&page, "Gates of store that are off")[1][0], "queue_pass");
    let words = text(page.root_element());
    assert!(words.contains("1 of 1 cases fail.") && words.contains("Warning: little headroom"));
}

/// The first browser that is installed and can take pictures.
fn browser() -> Option<PathBuf> {
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    let names = ["chromium", "chromium-browser", "google-chrome", "chrome"];
    names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name))).find(|path| path.is_file())
}

/// Widths of a phone and of a desk, and the height of both pictures.
const WIDTHS: [usize; 2] = [375, 1280];
const HEIGHT: usize = 1500;

/// Measures a page and sends the figures to the frame around it.
const MEASURE: &str = r#"<script>
addEventListener('load', () => {
  const folded = document.querySelectorAll('details').length;
  document.querySelectorAll('details').forEach(d => d.open = true);
  const outside = [], covered = [];
  let least = 99;
  for (const svg of document.querySelectorAll('svg[role=img]')) {
    const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
    const texts = [...svg.querySelectorAll('text')].map(t => [t, t.getBoundingClientRect()]);
    texts.forEach(([t, b], i) => {
      least = Math.min(least, parseFloat(getComputedStyle(t).fontSize) * scale);
      if (b.left < box.left - 1 || b.right > box.right + 1 || b.top < box.top - 1 || b.bottom > box.bottom + 1)
        outside.push(t.textContent.trim());
      for (const [u, c] of texts.slice(i + 1))
        if (Math.min(b.right, c.right) - Math.max(b.left, c.left) > 1 && Math.min(b.bottom, c.bottom) - Math.max(b.top, c.top) > 4)
          covered.push(t.textContent.trim() + '/' + u.textContent.trim());
    });
  }
  const root = document.documentElement, look = getComputedStyle(root);
  parent.postMessage({ width: innerWidth, scroll: root.scrollWidth, height: root.scrollHeight, least, outside, covered,
    folded, page: look.backgroundColor, ink: look.color }, '*');
});
</script></body>"#;

/// A document with pages in frames of all widths, since windows have a least width. It collects what they measure.
fn frames(pages: &[&str]) -> String {
    let row =
        |page| WIDTHS.map(|width| format!("<iframe src='{page}' width='{width}' height='{HEIGHT}'></iframe>")).concat();
    format!(
        "<!DOCTYPE html><meta name='color-scheme' content='light dark'><style>body {{ margin: 0; white-space: nowrap; \
         overflow: hidden }} iframe {{ border: 0; vertical-align: top; color-scheme: light dark }}</style>{}\
         <script>const all = []; addEventListener('message', e => {{ all.push(e.data); \
         document.title = JSON.stringify(all.sort((a, b) => a.width - b.width)); }})</script>",
        pages.iter().map(row).collect::<Vec<_>>().join("<br>")
    )
}

#[test]
fn a_browser_shows_the_page_on_phone_and_desk_in_light_and_dark() {
    let Some(browser) = browser() else {
        println!("skipped: no browser is installed");
        return;
    };
    let folder = Folder::new("browser");
    for (name, page) in [
        ("rounds.html", folder.page(&[&sample(), &sample()], &["--compare"])),
        ("one.html", folder.page(&[&sample()], &[])),
    ] {
        let policy = page.find("<meta http-equiv=").unwrap()..page.find("<meta name=\"viewport\"").unwrap();
        let mut measured = page.clone();
        measured.replace_range(policy, "");
        fs::write(folder.path(name), measured.replace("</body>", MEASURE)).unwrap();
    }
    fs::write(folder.path("frames.html"), frames(&["page.html"])).unwrap();
    fs::write(folder.path("measured.html"), frames(&["one.html", "rounds.html"])).unwrap();
    let run = |scheme: usize, what: &str, file: &str| {
        let window = format!("--window-size={},{HEIGHT}", WIDTHS.iter().sum::<usize>());
        let output = Command::new(&browser)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--hide-scrollbars", "--force-device-scale-factor=1", "--virtual-time-budget=5000"])
            .arg(format!("--user-data-dir={}", folder.path("profile")))
            // 0 is dark, 1 is light.
            .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
            .args([&window, what, &format!("file://{}", folder.path(file))])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let mut looks = Vec::new();
    for (scheme, name) in ["dark", "light"].into_iter().enumerate() {
        let dom = run(scheme, "--dump-dom", "measured.html");
        let title = dom.split("<title>").nth(1).unwrap_or_else(|| panic!("nothing was measured: {dom}"));
        let title = title.split("</title>").next().unwrap();
        let all: Value = serde_json::from_str(title).unwrap();
        assert_eq!(all.as_array().unwrap().len(), 4);
        // Sorted by width, two pages each.
        for (i, one) in all.as_array().unwrap().iter().enumerate() {
            let width = WIDTHS[i / 2];
            assert_eq!(
                (one["width"].as_u64(), one["scroll"].as_u64()),
                (Some(width as u64), Some(width as u64)),
                "{name}"
            );
            assert!(one["least"].as_f64().unwrap() >= 11.0, "{name} {width}: text of {} px", one["least"]);
            assert_eq!((&one["outside"], &one["covered"]), (&json!([]), &json!([])), "{name} {width}");
            assert!(one["height"].as_f64().unwrap() > 3000.0 && one["folded"].as_f64().unwrap() > 4.0);
        }
        let picture = folder.path(&format!("{name}.png"));
        run(scheme, &format!("--screenshot={picture}"), "frames.html");
        looks.push(look(&picture));
    }
    for (dark, light) in looks[0].iter().zip(&looks[1]) {
        assert!(*dark < 60 && *light > 200, "backgrounds of brightness {dark} and {light}");
    }
}

/// Checks a picture of the frames: each shows something, and nothing at its right edge. Returns the brightness of the
/// backgrounds.
fn look(picture: &str) -> Vec<u32> {
    let mut reader = png::Decoder::new(std::io::BufReader::new(fs::File::open(picture).unwrap())).read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut bytes).unwrap();
    let (step, line) = (info.color_type.samples(), info.line_size);
    let pixel = |x: usize, y: usize| &bytes[y * line + x * step..][..3];
    let mut left = 0;
    let frames = WIDTHS.map(|width| {
        let frame = left..left + width;
        left += width;
        let background = pixel(frame.start + 4, 4);
        let colours: std::collections::HashSet<&[u8]> =
            (0..HEIGHT).flat_map(|y| frame.clone().map(move |x| (x, y))).map(|(x, y)| pixel(x, y)).collect();
        assert!(colours.len() > 50, "{picture}: {} colours", colours.len());
        assert!(
            (0..HEIGHT).all(|y| (1..8).all(|x| pixel(frame.end - x, y) == background)),
            "{picture}: the right edge"
        );
        background.iter().map(|byte| u32::from(*byte)).sum::<u32>() / 3
    });
    frames.to_vec()
}
