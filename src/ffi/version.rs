//! Version

use crate::arch;
use crate::status::{Result, bail};
use std::ffi::c_char;

/// Version of this header.
pub const MNNKV_VERSION_MAJOR: u32 = 0;
pub const MNNKV_VERSION_MINOR: u32 = 4;
pub const MNNKV_VERSION_PATCH: u32 = 0;
/// major * 10000 + minor * 100 + patch
pub const MNNKV_VERSION_NUMBER: u32 = 400;
/// The abi_version argument of every function that makes a handle. It changes when older programs can no longer run.
pub const MNNKV_ABI_VERSION: u32 = 1;

const _: () =
    assert!(MNNKV_VERSION_NUMBER == MNNKV_VERSION_MAJOR * 10000 + MNNKV_VERSION_MINOR * 100 + MNNKV_VERSION_PATCH);

/// Returns the version of the loaded library, as MNNKV_VERSION_NUMBER.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub extern "C" fn mnnkv_version() -> u32 {
    MNNKV_VERSION_NUMBER
}

/// Returns the ABI version of the loaded library.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub extern "C" fn mnnkv_abi_version() -> u32 {
    MNNKV_ABI_VERSION
}

/// Returns the SIMD level in use: "portable", "sse2", "avx2", "avx512" or "neon". Static text.
/// The environment variable MNNKV_CPU_LEVEL, one of these names, may lower the level; it is read once. Results do not
/// depend on the level.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub extern "C" fn mnnkv_cpu_level() -> *const c_char {
    arch::level_name().as_ptr()
}

/// Fails when a program was built with another ABI.
pub fn check_abi(given: u32) -> Result<()> {
    if given != MNNKV_ABI_VERSION {
        bail!(Unsupported, "abi_version is {given}; MNNKV_ABI_VERSION, {MNNKV_ABI_VERSION} in this library, expected");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_the_version_of_the_crate() {
        let text = format!("{MNNKV_VERSION_MAJOR}.{MNNKV_VERSION_MINOR}.{MNNKV_VERSION_PATCH}");
        assert_eq!(text, env!("CARGO_PKG_VERSION"));
    }

    #[test]
    fn the_soname_has_the_abi_number() {
        let line = format!("const ABI: &str = \"{MNNKV_ABI_VERSION}\";");
        assert!(include_str!("../../build.rs").contains(&line));
        // cargo-c derives its SONAME from this.
        let library =
            format!("versioning = true\nversion_suffix_components = 1\nversion = \"{MNNKV_ABI_VERSION}.0.0\"\n");
        assert!(include_str!("../../Cargo.toml").contains(&library));
    }
}
