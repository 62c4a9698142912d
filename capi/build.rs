//! Gives the shared library a name that does not change with the folder it was built in. Without it a program linked
//! by path records the build folder. The number is the ABI number and must equal `MNNKV_ABI_VERSION`.

const ABI: &str = "1";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let os = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    match os.as_str() {
        "linux" | "freebsd" | "netbsd" | "openbsd" => {
            println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmnnkv.so.{ABI}");
        }
        // Android packages libraries by their plain name.
        "android" => println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmnnkv.so"),
        "macos" | "ios" => {
            println!("cargo::rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libmnnkv.{ABI}.dylib");
        }
        _ => {}
    }
}
