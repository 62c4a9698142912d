//! The committed header is what cbindgen makes of the source. `MNNKV_WRITE_HEADER=1` writes it instead.

use std::path::Path;

#[test]
fn the_committed_header_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut generated = Vec::new();
    // The order of the manual: conventions, simple calls, handles.
    [
        "status",
        "version",
        "gear",
        "layout",
        "h2o",
        "store",
        "session",
        "metrics",
        "compressor",
        "compressor_caches",
        "compressor_write",
        "msmodelslim",
        "msmodelslim_writer",
        "kv_int8",
        "sizing",
    ]
    .iter()
    .fold(cbindgen::Builder::new(), |b, room| b.with_src(root.join(format!("src/ffi/{room}.rs"))))
    .with_config(config)
    .generate()
    .unwrap()
    .write(&mut generated);
    let path = root.join("include/mnnkv.h");
    if std::env::var_os("MNNKV_WRITE_HEADER").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let committed = std::fs::read(&path).unwrap_or_default();
    assert!(committed == generated, "include/mnnkv.h is stale; run `make header` and commit it");
}
