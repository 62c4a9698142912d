//! Gives libmnnkv_llama the name that programs record, as ../build.rs does for libmnnkv. The number is the ABI number and
//! must equal `MNNKV_ABI_VERSION`.

const ABI: &str = "1";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The feature is that of the C library: its only target is that library, so that the flag reaches no other.
    if std::env::var_os("CARGO_FEATURE_CAPI").is_none() {
        return;
    }
    match std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default().as_str() {
        "linux" | "freebsd" | "netbsd" | "openbsd" => {
            println!("cargo::rustc-link-arg=-Wl,-soname,libmnnkv_llama.so.{ABI}");
        }
        // Android packages libraries by their plain name.
        "android" => println!("cargo::rustc-link-arg=-Wl,-soname,libmnnkv_llama.so"),
        "macos" | "ios" => {
            println!("cargo::rustc-link-arg=-Wl,-install_name,@rpath/libmnnkv_llama.{ABI}.dylib");
        }
        _ => {}
    }
}
