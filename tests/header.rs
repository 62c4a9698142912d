//! The committed headers are what cbindgen makes of the source. `MNNKV_WRITE_HEADER=1` writes them instead.

use std::path::Path;

/// Compares a header with what cbindgen makes of the files in a folder. Their order is that of the manual: simple calls,
/// then handles.
fn check(header: &str, config: &str, folder: &str, rooms: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join(config)).unwrap();
    let mut generated = Vec::new();
    rooms
        .iter()
        .fold(cbindgen::Builder::new(), |b, room| b.with_src(root.join(format!("{folder}/{room}.rs"))))
        .with_config(config)
        .generate()
        .unwrap()
        .write(&mut generated);
    let path = root.join(header);
    if std::env::var_os("MNNKV_WRITE_HEADER").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let committed = std::fs::read(&path).unwrap_or_default();
    assert!(committed == generated, "{header} is stale; run `make header` and commit it");
}

#[test]
fn the_header_is_current() {
    let rooms = [
        "status",
        "version",
        "gear",
        "cache",
        "layout",
        "h2o",
        "store",
        "session/handle",
        "session/step",
        "session/tiles",
        "session/history",
        "session/metrics",
    ];
    check("include/mnnkv.h", "cbindgen.toml", "src/ffi", &rooms);
}

#[test]
fn the_header_of_model_files_is_current() {
    let rooms =
        ["sizing", "c8", "msmodelslim", "msmodelslim_writer", "compressor", "compressor_caches", "compressor_write"];
    check("include/mnnkv/model.h", "model/cbindgen.toml", "model/src/ffi", &rooms);
}
