//! Bytes of a host in memory, whose functions fail when told.

use mnnkv::ffi::snapshot::mnnkv_snapshot_io;
use std::cell::{Cell, RefCell};
use std::ffi::c_void;

#[derive(Default)]
pub struct Disk {
    bytes: RefCell<Vec<u8>>,
    /// Calls that fail from now on.
    pub failures: Cell<u32>,
}

impl Disk {
    /// The functions for this disk, which must outlive them.
    pub fn io(&self) -> mnnkv_snapshot_io {
        mnnkv_snapshot_io {
            struct_size: size_of::<mnnkv_snapshot_io>() as u32,
            reserved: 0,
            name: std::ptr::null(),
            user: std::ptr::from_ref(self).cast_mut().cast(),
            size: Some(size),
            read: Some(read),
            write: Some(write),
            sync: Some(sync),
            truncate: Some(truncate),
        }
    }

    fn fails(&self) -> bool {
        let failures = self.failures.get();
        self.failures.set(failures.saturating_sub(1));
        failures > 0
    }
}

// `user` is a disk that is alive, and other pointers are valid for their bytes as long as the call: snapshot.h.

unsafe extern "C" fn size(user: *mut c_void, size: *mut u64) -> i32 {
    // SAFETY: see above.
    let (disk, size) = unsafe { (&*user.cast::<Disk>(), &mut *size) };
    *size = disk.bytes.borrow().len() as u64;
    0
}

unsafe extern "C" fn read(user: *mut c_void, offset: u64, to: *mut c_void, len: usize) -> i32 {
    // SAFETY: see above.
    let (disk, to) = unsafe { (&*user.cast::<Disk>(), std::slice::from_raw_parts_mut(to.cast::<u8>(), len)) };
    if disk.fails() {
        return 1;
    }
    match disk.bytes.borrow().get(offset as usize..).and_then(|rest| rest.get(..len)) {
        Some(from) => to.copy_from_slice(from),
        None => return 2,
    }
    0
}

unsafe extern "C" fn write(user: *mut c_void, offset: u64, from: *const c_void, len: usize) -> i32 {
    // SAFETY: see above.
    let (disk, from) = unsafe { (&*user.cast::<Disk>(), std::slice::from_raw_parts(from.cast::<u8>(), len)) };
    // A write that fails has written a part.
    let fails = disk.fails();
    let from = &from[..if fails { len / 2 } else { len }];
    let (mut bytes, begin) = (disk.bytes.borrow_mut(), offset as usize);
    let end = begin + from.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[begin..end].copy_from_slice(from);
    fails.into()
}

unsafe extern "C" fn sync(user: *mut c_void) -> i32 {
    // SAFETY: see above.
    unsafe { &*user.cast::<Disk>() }.fails().into()
}

unsafe extern "C" fn truncate(user: *mut c_void, size: u64) -> i32 {
    // SAFETY: see above.
    unsafe { &*user.cast::<Disk>() }.bytes.borrow_mut().truncate(size as usize);
    0
}
