//! Errors
//!
//! The functions of mnnkv/model.h are in a library of their own, libmnnkv_model, which does not need libmnnkv. Each
//! library has the text of its own failures: that of a function of mnnkv/model/*.h is here, and mnnkv_last_error does not
//! have it. mnnkv::status::message() of the C++ wrappers returns the text of the library that made the call.

use std::ffi::c_char;

/// Returns one sentence about the calling thread's last failure in a function of mnnkv/model/*.h, as mnnkv_last_error
/// does for the others: UTF-8, at most 1,023 bytes, never NULL, "" before the first failure. Valid until the thread's
/// next call of this library. A successful call does not clear it.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub extern "C" fn mnnkv_model_last_error() -> *const c_char {
    // The core that is linked into this library, and not libmnnkv.
    mnnkv::ffi::status::mnnkv_last_error()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn the_soname_has_the_abi_number() {
        let abi = mnnkv::ffi::version::MNNKV_ABI_VERSION;
        assert!(include_str!("../../build.rs").contains(&format!("const ABI: &str = \"{abi}\";")));
        let library = format!("versioning = true\nversion_suffix_components = 1\nversion = \"{abi}.0.0\"\n");
        assert!(include_str!("../../Cargo.toml").contains(&library));
    }

    #[test]
    fn the_text_is_that_of_the_last_failure() {
        mnnkv::ffi::panic::guard(|| Err(mnnkv::status::error!(Io, "a disk is gone")));
        // SAFETY: the function returns a text with a zero.
        let text = unsafe { CStr::from_ptr(mnnkv_model_last_error()) };
        assert_eq!(text.to_str(), Ok("a disk is gone"));
    }
}
