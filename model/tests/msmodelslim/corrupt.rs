//! Directories with one fault each, and what a check must say about them.

use crate::{folders, golden};
use mnnkv_model::msmodelslim::{Severity, check_path};

#[test]
fn every_fault_is_found_by_its_name() {
    let folders = folders(&golden("corrupt"));
    let mut problems = Vec::new();
    for folder in folders {
        let expect: serde_json::Value =
            serde_json::from_slice(&std::fs::read(folder.join("expect.json")).unwrap()).unwrap();
        let report = check_path(&folder).unwrap();
        let kind = expect["kind"].as_str().unwrap();
        let found: Vec<_> = report.findings.iter().filter(|f| f.kind.word() == kind).collect();
        let name = folder.file_name().unwrap().to_str().unwrap();
        let errors = report.count(Severity::Error);
        let fine = match expect["expect"].as_str().unwrap() {
            "error" => errors > 0 && found.iter().any(|f| f.severity == Severity::Error),
            "error_or_warn" | "error_or_alias" | "error_or_lenient" => !found.is_empty(),
            "ok_or_warn" => errors == 0,
            other => panic!("{other}"),
        };
        let tensor = expect["tensor"].as_str();
        let named = tensor.is_none_or(|tensor| found.iter().any(|f| f.tensor == tensor));
        if !fine || !named {
            problems.push(format!("{name}: {expect} {}", report.json().unwrap()));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
