use super::super::*;
use super::*;
use crate::ffi::panic::guard;
use crate::ffi::status::*;
use crate::ffi::version::MNNKV_ABI_VERSION;
use std::ptr::{null, null_mut};

/// Bytes of a host, and the number that its functions return.
#[derive(Default)]
struct Bytes {
    bytes: Vec<u8>,
    code: i32,
}

unsafe extern "C" fn size(user: *mut c_void, size: *mut u64) -> i32 {
    // SAFETY: as in `io`.
    unsafe {
        let host = &*user.cast::<Bytes>();
        *size = host.bytes.len() as u64;
        host.code
    }
}

unsafe extern "C" fn read(user: *mut c_void, offset: u64, to: *mut c_void, len: usize) -> i32 {
    // SAFETY: as in `io`.
    unsafe {
        let host = &*user.cast::<Bytes>();
        let from = &host.bytes[offset as usize..][..len];
        to.cast::<u8>().copy_from_nonoverlapping(from.as_ptr(), len);
        host.code
    }
}

unsafe extern "C" fn write(user: *mut c_void, offset: u64, from: *const c_void, len: usize) -> i32 {
    // SAFETY: as in `io`.
    unsafe {
        let host = &mut *user.cast::<Bytes>();
        let end = host.bytes.len().max(offset as usize + len);
        host.bytes.resize(end, 0);
        host.bytes[offset as usize..][..len].copy_from_slice(std::slice::from_raw_parts(from.cast(), len));
        host.code
    }
}

unsafe extern "C" fn sync(user: *mut c_void) -> i32 {
    // SAFETY: as in `io`.
    unsafe { (*user.cast::<Bytes>()).code }
}

fn io(host: &mut Bytes) -> mnnkv_snapshot_io {
    mnnkv_snapshot_io {
        struct_size: size_of::<mnnkv_snapshot_io>() as u32,
        reserved: 0,
        name: c"chat".as_ptr(),
        user: (&raw mut *host).cast(),
        size: Some(size),
        read: Some(read),
        write: Some(write),
        sync: Some(sync),
        truncate: None,
    }
}

fn options(io: *const mnnkv_snapshot_io, access: u32) -> mnnkv_snapshot_options {
    mnnkv_snapshot_options {
        struct_size: size_of::<mnnkv_snapshot_options>() as u32,
        abi_version: MNNKV_ABI_VERSION,
        path: null(),
        io,
        fingerprint: c"model".as_ptr().cast(),
        fingerprint_len: 5,
        access,
        reserved: 0,
    }
}

#[test]
fn sections_are_committed_through_the_functions_of_a_host_and_read_again() {
    let mut host = Bytes::default();
    let io = io(&mut host);
    let (mut snapshot, mut len, mut room) = (null_mut(), 0, [0u8; 80]);
    // SAFETY: the handle is live until destroy; other pointers are NULL or live.
    unsafe {
        assert_eq!(mnnkv_snapshot_create(&options(&io, 0), &mut snapshot), MNNKV_OK);
        assert_eq!(mnnkv_snapshot_put(snapshot, c"tokens".as_ptr(), [7u8; 70].as_ptr().cast(), 70), MNNKV_OK);
        assert_eq!(mnnkv_snapshot_put(snapshot, c"gone".as_ptr(), null(), 0), MNNKV_OK);
        assert_eq!(mnnkv_snapshot_get(snapshot, c"tokens".as_ptr(), null_mut(), 0, &mut len), MNNKV_NOT_FOUND);
        assert_eq!(mnnkv_snapshot_commit(snapshot), MNNKV_OK);
        assert_eq!(mnnkv_snapshot_put(snapshot, c"gone".as_ptr(), [0u8; 1].as_ptr().cast(), 1), MNNKV_OK);
        (*io.user.cast::<Bytes>()).code = 28;
        assert_eq!(mnnkv_snapshot_commit(snapshot), MNNKV_IO);
        assert_eq!(last_error_text(), "io->write of chat at offset 2682 returned 28");
        (*io.user.cast::<Bytes>()).code = 0;
        assert_eq!(mnnkv_snapshot_commit(snapshot), MNNKV_OK);
        mnnkv_snapshot_destroy(snapshot);

        let only_read = mnnkv_snapshot_io { write: None, sync: None, ..io };
        assert_eq!(mnnkv_snapshot_open(&options(&only_read, MNNKV_SNAPSHOT_READ), &mut snapshot), MNNKV_OK);
        let out = room.as_mut_ptr();
        assert_eq!(mnnkv_snapshot_get(snapshot, c"tokens".as_ptr(), null_mut(), 0, &mut len), MNNKV_BUFFER_TOO_SMALL);
        assert_eq!(len, 70);
        assert_eq!(mnnkv_snapshot_get(snapshot, c"tokens".as_ptr(), out.cast(), 80, &mut len), MNNKV_OK);
        assert_eq!((len, &*std::ptr::slice_from_raw_parts(out, 70)), (70, &[7; 70][..]));
        assert_eq!(mnnkv_snapshot_put(snapshot, c"a".as_ptr(), null(), 0), MNNKV_INVALID_ARGUMENT);
        mnnkv_snapshot_destroy(snapshot);
    }
}

#[test]
fn failures_of_a_host_have_the_name_of_its_bytes_and_the_offset_where_there_is_one() {
    unsafe extern "C" fn empty(_: *mut c_void, size: *mut u64) -> i32 {
        // SAFETY: as in `io`.
        unsafe { *size = 0 };
        0
    }
    unsafe extern "C" fn written(_: *mut c_void, _: u64, _: *const c_void, _: usize) -> i32 {
        0
    }
    let mut host = Bytes { code: 7, ..Bytes::default() };
    let all = io(&mut host);
    let (unnamed, size, write) = (mnnkv_snapshot_io { name: null(), ..all }, Some(empty as _), Some(written as _));
    let mut snapshot = null_mut();
    for (io, text) in [
        (all, "io->size of chat returned 7"),
        (unnamed, "io->size of snapshot returned 7"),
        (mnnkv_snapshot_io { size, ..all }, "io->write of chat at offset 0 returned 7"),
        (mnnkv_snapshot_io { size, write, ..all }, "io->sync of chat returned 7"),
    ] {
        // SAFETY: all pointers are NULL or live.
        unsafe {
            assert_eq!(mnnkv_snapshot_create(&options(&io, 0), &mut snapshot), MNNKV_IO);
        }
        assert_eq!(last_error_text(), text);
    }
}

#[test]
fn options_that_are_incomplete_or_for_another_model_open_nothing() {
    let mut host = Bytes::default();
    let io = io(&mut host);
    let mut snapshot = null_mut();
    // SAFETY: the handle is live until destroy; other pointers are NULL or live.
    unsafe {
        assert_eq!(mnnkv_snapshot_create(&options(&io, 0), &mut snapshot), MNNKV_OK);
        assert_eq!(guard(|| with(snapshot, |_| panic!("a bug"))), MNNKV_INTERNAL);
        assert_eq!(mnnkv_snapshot_commit(snapshot), MNNKV_INTERNAL);
        mnnkv_snapshot_destroy(snapshot);
        snapshot = null_mut();
        let given = options(&io, MNNKV_SNAPSHOT_APPEND);
        let path = c"/".as_ptr();
        let long = [0u8; 65_537];
        let missing = mnnkv_snapshot_io { write: None, ..io };
        for (options, status) in [
            (mnnkv_snapshot_options { fingerprint_len: 4, ..given }, MNNKV_STALE),
            (
                mnnkv_snapshot_options { fingerprint: long.as_ptr().cast(), fingerprint_len: long.len(), ..given },
                MNNKV_INVALID_ARGUMENT,
            ),
            (mnnkv_snapshot_options { access: 3, ..given }, MNNKV_INVALID_ARGUMENT),
            (mnnkv_snapshot_options { io: null(), ..given }, MNNKV_INVALID_ARGUMENT),
            (mnnkv_snapshot_options { path, ..given }, MNNKV_INVALID_ARGUMENT),
            (mnnkv_snapshot_options { io: &missing, ..given }, MNNKV_INVALID_ARGUMENT),
            (mnnkv_snapshot_options { abi_version: MNNKV_ABI_VERSION + 1, ..given }, MNNKV_UNSUPPORTED),
        ] {
            assert_eq!(mnnkv_snapshot_open(&options, &mut snapshot), status);
            assert!(snapshot.is_null());
        }
        assert_eq!(mnnkv_snapshot_create(&given, &mut snapshot), MNNKV_INVALID_ARGUMENT, "the host has bytes");
    }
}
