//! The same files through the C ABI.

use crate::failing_allocator::{Refused, each_of};
use mnnkv::ffi::cache::{mnnkv_cache, mnnkv_layout};
use mnnkv::ffi::status::{MNNKV_OK, mnnkv_status};
use mnnkv::ffi::version::MNNKV_ABI_VERSION;
use mnnkv::status::{Error, Result, Status};
use mnnkv_model::ffi::compressor::*;
use mnnkv_model::ffi::compressor_caches::*;
use mnnkv_model::ffi::msmodelslim::*;
use mnnkv_model::ffi::sizing::*;
use std::ffi::{CString, c_char};
use std::path::Path;
use std::ptr::{null, null_mut};

fn path(name: &str) -> CString {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name);
    CString::new(path.to_str().unwrap()).unwrap()
}

/// A status as the tests of Rust functions have it.
fn result(status: mnnkv_status) -> Result<()> {
    match Status::ALL.iter().find(|known| known.code() == status) {
        None if status == MNNKV_OK => Ok(()),
        None => panic!("{status} is not a status"),
        Some(status) => Err(Error::new(*status, "")),
    }
}

/// Runs a call of the C ABI with each of its allocations refused. The text of the last error is kept beforehand, since
/// a thread's first one is registered with the system.
fn each(what: &str, mut call: impl FnMut() -> mnnkv_status) -> u64 {
    // SAFETY: NULL is refused.
    unsafe { mnnkv_compressor_get_info(null(), null_mut()) };
    each_of(&[Refused::Nth], what, || result(call()))
}

/// Makes a handle again and again; what was made is destroyed.
fn each_handle<T>(what: &str, create: impl Fn(*mut *mut T) -> mnnkv_status, destroy: unsafe extern "C" fn(*mut T)) {
    let made = each(what, || {
        let mut handle = null_mut();
        let status = create(&mut handle);
        assert_eq!(handle.is_null(), status != MNNKV_OK);
        // SAFETY: NULL, or from the call above and not destroyed yet.
        unsafe { destroy(handle) };
        status
    });
    assert!(made > 0, "{what}");
}

#[test]
fn handles_are_made() {
    let (compressor, weights) = (path("compressor/toy_fp16.bin"), path("msmodelslim/w8a16_sharded"));
    let config = std::fs::read(path("configs/gemma-3-4b-it.json").to_str().unwrap()).unwrap();
    // SAFETY: all pointers are live for the calls.
    unsafe {
        let open = |out| mnnkv_compressor_open(compressor.as_ptr(), MNNKV_ABI_VERSION, out);
        each_handle("mnnkv_compressor_open", open, mnnkv_compressor_destroy);
        let open = |out| mnnkv_msmodelslim_open(weights.as_ptr(), MNNKV_ABI_VERSION, out);
        each_handle("mnnkv_msmodelslim_open", open, mnnkv_msmodelslim_destroy);
        let create = |out| mnnkv_sizing_create(config.as_ptr().cast(), config.len(), MNNKV_ABI_VERSION, out);
        each_handle("mnnkv_sizing_create", create, mnnkv_sizing_destroy);
    }
}

#[test]
fn texts_are_written() {
    let weights = path("msmodelslim/w8a16_sharded");
    let config = std::fs::read(path("configs/gemma-3-4b-it.json").to_str().unwrap()).unwrap();
    let mut room = vec![0 as c_char; 1 << 16];
    let (text, cap, mut len) = (room.as_mut_ptr(), room.len(), 0);
    // SAFETY: all pointers are live for the calls; handles are destroyed once.
    unsafe {
        each("mnnkv_msmodelslim_check_json", || mnnkv_msmodelslim_check_json(weights.as_ptr(), text, cap, &mut len));
        let mut sizing = null_mut();
        let create = mnnkv_sizing_create(config.as_ptr().cast(), config.len(), MNNKV_ABI_VERSION, &mut sizing);
        assert_eq!(create, MNNKV_OK);
        let contexts = [1000, 100_000];
        each("mnnkv_sizing_report_json", || {
            mnnkv_sizing_report_json(sizing, null(), contexts.as_ptr(), 2, 1 << 33, text, cap, &mut len)
        });
        let (mut tokens, mut bytes) = (0, 0);
        each("mnnkv_sizing_longest", || mnnkv_sizing_longest(sizing, null(), 1 << 33, &mut tokens, &mut bytes));
        mnnkv_sizing_destroy(sizing);
    }
}

/// On failure no byte of any cache and no kv_len has changed.
#[test]
fn caches_are_compressed_or_left() {
    let file_path = path("compressor/std_fp16_12.bin");
    let mut file = null_mut();
    // SAFETY: all pointers are live for the calls; structs of integers and pointers may be zeros.
    unsafe {
        assert_eq!(mnnkv_compressor_open(file_path.as_ptr(), MNNKV_ABI_VERSION, &mut file), MNNKV_OK);
        let mut info: mnnkv_compressor_info = std::mem::zeroed();
        info.struct_size = size_of::<mnnkv_compressor_info>() as u32;
        assert_eq!(mnnkv_compressor_get_info(file, &mut info), MNNKV_OK);
        let mut layout: mnnkv_layout = std::mem::zeroed();
        layout.struct_size = size_of::<mnnkv_layout>() as u32;
        (layout.key_dtype, layout.value_dtype, layout.kv_heads, layout.head_dim) = (1, 1, 2, info.head_dim);
        (layout.e_pack, layout.l_pack, layout.h_pack, layout.flash_block, layout.max_tokens) = (4, 1, 4, 64, 64);
        let elements = 2 * info.head_dim as usize * 64;
        let mut buffers = [(); 4].map(|()| vec![7u16; elements]);
        let [first_key, first_value, second_key, second_value] = &mut buffers;
        let places = [(first_key, first_value), (second_key, second_value)];
        let places = places.map(|(key, value)| (key.as_mut_ptr(), value.as_mut_ptr()));
        let cache = |(key, value): (*mut u16, *mut u16)| mnnkv_cache {
            struct_size: size_of::<mnnkv_cache>() as u32,
            layout: &layout,
            key: key.cast(),
            value: value.cast(),
            kv_len: 40,
        };
        let made = each("mnnkv_compressor_run_caches", || {
            let mut caches = places.map(cache);
            for place in places.iter().flat_map(|(key, value)| [key, value]) {
                std::slice::from_raw_parts_mut(*place, elements).fill(7);
            }
            let (mut old, mut new) = (0, 0);
            let status = mnnkv_compressor_run_caches(file, 0, null(), caches.as_mut_ptr(), 2, &mut old, &mut new);
            let left = |place: *mut u16| std::slice::from_raw_parts(place, elements).iter().all(|x| *x == 7);
            for ((key, value), cache) in places.iter().zip(&caches) {
                assert_eq!(cache.kv_len == 40, status != MNNKV_OK);
                assert_eq!(left(*key) && left(*value), status != MNNKV_OK);
            }
            status
        });
        assert!(made > 10);
        mnnkv_compressor_destroy(file);
    }
}
