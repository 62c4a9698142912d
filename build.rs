//! The link flags of libmnnkv. They give it a name that does not change with the folder it was built in: without it a
//! program linked by path records the build folder. The number is the ABI number and must equal `MNNKV_ABI_VERSION`.

const ABI: &str = "1";

/// ZSTD's match finders for dictionaries and for inputs in two pieces, `<plain><suffix>`. The codec loads no dictionary
/// and compresses whole slices, but a table of ZSTD names them all; 190 KB. The feature "thin" of zstd-safe would save twice
/// that, and takes gear v1 to 0.6 of its speed in both directions.
const UNUSED: [(&str, &str); 12] = [
    ("ZSTD_compressBlock_fast", "_dictMatchState"),
    ("ZSTD_compressBlock_fast", "_extDict"),
    ("ZSTD_compressBlock_doubleFast", "_dictMatchState"),
    ("ZSTD_compressBlock_doubleFast", "_extDict"),
    ("ZSTD_compressBlock_lazy2", "_dictMatchState"),
    ("ZSTD_compressBlock_lazy2", "_dictMatchState_row"),
    ("ZSTD_compressBlock_lazy2", "_dedicatedDictSearch"),
    ("ZSTD_compressBlock_lazy2", "_dedicatedDictSearch_row"),
    ("ZSTD_compressBlock_lazy2", "_extDict"),
    ("ZSTD_compressBlock_lazy2", "_extDict_row"),
    ("ZSTD_compressBlock_btlazy2", "_dictMatchState"),
    ("ZSTD_compressBlock_btlazy2", "_extDict"),
];

/// Makes an ELF linker put the plain functions into that table, which lets it drop the others.
fn drop_unused_match_finders() {
    println!("cargo::rerun-if-env-changed=ZSTD_SYS_USE_PKG_CONFIG");
    // A ZSTD of the system is linked by its public functions.
    if std::env::var_os("ZSTD_SYS_USE_PKG_CONFIG").is_some() {
        return;
    }
    for (plain, suffix) in UNUSED {
        let row = if suffix.ends_with("_row") { "_row" } else { "" };
        println!("cargo::rustc-link-arg=-Wl,--wrap={plain}{suffix}");
        println!("cargo::rustc-link-arg=-Wl,--defsym=__wrap_{plain}{suffix}={plain}{row}");
    }
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The feature is that of the C library: its only target is that library, so that the flags reach no other. Flags for
    // cdylibs alone would need one in Cargo.toml, which every test would build.
    if std::env::var_os("CARGO_FEATURE_CAPI").is_none() {
        return;
    }
    let os = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if matches!(os.as_str(), "linux" | "android" | "freebsd" | "netbsd" | "openbsd") {
        drop_unused_match_finders();
    }
    match os.as_str() {
        "linux" | "freebsd" | "netbsd" | "openbsd" => {
            println!("cargo::rustc-link-arg=-Wl,-soname,libmnnkv.so.{ABI}");
        }
        // Android packages libraries by their plain name.
        "android" => println!("cargo::rustc-link-arg=-Wl,-soname,libmnnkv.so"),
        "macos" | "ios" => {
            println!("cargo::rustc-link-arg=-Wl,-install_name,@rpath/libmnnkv.{ABI}.dylib");
        }
        _ => {}
    }
}
