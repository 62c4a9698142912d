//! Threads whose start can be refused. The standard library's aborts the process when memory runs out.

use super::memory;
use crate::status::Result;
use std::time::Duration;

/// A thread. It must be joined; a dropped one runs on by itself.
pub(crate) struct Thread(system::Handle);

impl Thread {
    /// Starts a thread that runs `body`. `name` is at most 15 bytes.
    ///
    /// OUT_OF_MEMORY: the system has no memory or no thread left.
    pub(crate) fn start(name: &std::ffi::CStr, body: impl FnOnce() + Send + 'static) -> Result<Self> {
        system::start(name, body).map(Thread)
    }

    /// As [`Thread::start`], for a body that borrows.
    ///
    /// # Safety
    /// The thread must be joined before anything that `body` borrows is dropped.
    pub(super) unsafe fn start_scoped<'a>(name: &std::ffi::CStr, body: impl FnOnce() + Send + 'a) -> Result<Self> {
        let body: Box<dyn FnOnce() + Send + 'a> = memory::boxed(body)?;
        // SAFETY: the types differ in a lifetime that ends after the thread, by contract.
        let body = unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + 'a>, Box<dyn FnOnce() + Send>>(body) };
        Thread::start(name, body)
    }

    /// Blocks until the thread has ended.
    pub(crate) fn join(self) {
        system::join(self.0);
    }
}

/// Lets the thread sleep.
pub(crate) fn sleep(duration: Duration) {
    std::thread::sleep(duration);
}

/// The stack of the standard library's threads.
#[cfg(any(unix, windows))]
const STACK_BYTES: usize = 2 << 20;

/// Runs a boxed `F`. A panic must not unwind into the system, and no caller takes an error.
///
/// # Safety
/// `body` is a box that was given away.
#[cfg(any(unix, windows))]
unsafe fn run_boxed<F: FnOnce()>(body: *mut std::ffi::c_void) {
    // SAFETY: the caller's.
    let body = unsafe { Box::from_raw(body.cast::<F>()) };
    let _ = super::quietly(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)));
}

#[cfg(unix)]
mod system {
    use super::{STACK_BYTES, run_boxed};
    use crate::status::{Result, bail};
    use crate::sys::memory;
    use std::ffi::{CStr, c_void};
    use std::ptr;

    pub(super) type Handle = libc::pthread_t;

    pub(super) fn start<F: FnOnce() + Send + 'static>(name: &CStr, body: F) -> Result<Handle> {
        let body = Box::into_raw(memory::boxed(body)?);
        // SAFETY: a thread id is an integer or a pointer; create overwrites it.
        let mut handle: Handle = unsafe { std::mem::zeroed() };
        // SAFETY: attributes are initialised before they are used, and destroyed once; `run` takes the box over when
        // the thread was started.
        let error = unsafe {
            let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
            let error = match libc::pthread_attr_init(&mut attributes) {
                0 => {
                    // A refused size leaves the default.
                    libc::pthread_attr_setstacksize(&mut attributes, STACK_BYTES);
                    let error = libc::pthread_create(&mut handle, &attributes, run::<F>, body.cast());
                    libc::pthread_attr_destroy(&mut attributes);
                    error
                }
                error => error,
            };
            if error != 0 {
                drop(Box::from_raw(body));
            }
            error
        };
        if error != 0 {
            bail!(OutOfMemory, "thread {name:?} cannot be started: system error {error}");
        }
        set_name(handle, name);
        Ok(handle)
    }

    extern "C" fn run<F: FnOnce()>(body: *mut c_void) -> *mut c_void {
        // SAFETY: `start` boxed it and gave it away.
        unsafe { run_boxed::<F>(body) };
        ptr::null_mut()
    }

    pub(super) fn join(handle: Handle) {
        // SAFETY: the handle is of a thread that was started and not joined yet.
        unsafe { libc::pthread_join(handle, ptr::null_mut()) };
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn set_name(handle: Handle, name: &CStr) {
        // SAFETY: the thread has not been joined; a name that is too long is refused.
        unsafe { libc::pthread_setname_np(handle, name.as_ptr()) };
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn set_name(_handle: Handle, _name: &CStr) {}
}

#[cfg(windows)]
mod system {
    use super::{STACK_BYTES, run_boxed};
    use crate::status::{Result, bail};
    use crate::sys::memory;
    use std::ffi::{CStr, c_void};
    use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle, RawHandle};
    use std::ptr;

    pub(super) type Handle = OwnedHandle;

    /// The size is of the address space, not of the memory that is taken at once.
    const STACK_SIZE_PARAM_IS_A_RESERVATION: u32 = 0x1_0000;
    const INFINITE: u32 = u32::MAX;

    #[link(name = "kernel32")]
    unsafe extern "system" {
        fn CreateThread(
            attributes: *const c_void,
            stack: usize,
            run: extern "system" fn(*mut c_void) -> u32,
            argument: *mut c_void,
            flags: u32,
            id: *mut u32,
        ) -> RawHandle;
        fn WaitForSingleObject(handle: RawHandle, milliseconds: u32) -> u32;
    }

    pub(super) fn start<F: FnOnce() + Send + 'static>(name: &CStr, body: F) -> Result<Handle> {
        let body = Box::into_raw(memory::boxed(body)?);
        let flags = STACK_SIZE_PARAM_IS_A_RESERVATION;
        // SAFETY: `run` takes the box over when the thread was started; the system needs neither attributes nor a place
        // for the thread's number.
        let handle = unsafe { CreateThread(ptr::null(), STACK_BYTES, run::<F>, body.cast(), flags, ptr::null_mut()) };
        if handle.is_null() {
            let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
            // SAFETY: boxed above, and no thread has it.
            drop(unsafe { Box::from_raw(body) });
            bail!(OutOfMemory, "thread {name:?} cannot be started: system error {error}");
        }
        // SAFETY: the handle is open and has no other owner.
        Ok(unsafe { OwnedHandle::from_raw_handle(handle) })
    }

    extern "system" fn run<F: FnOnce()>(body: *mut c_void) -> u32 {
        // SAFETY: `start` boxed it and gave it away.
        unsafe { run_boxed::<F>(body) };
        0
    }

    pub(super) fn join(handle: Handle) {
        // SAFETY: the handle is of a thread, and open until it is dropped here.
        unsafe { WaitForSingleObject(handle.as_raw_handle(), INFINITE) };
    }
}

#[cfg(not(any(unix, windows)))]
mod system {
    use crate::status::{Result, error};
    use std::ffi::CStr;

    pub(super) type Handle = std::thread::JoinHandle<()>;

    #[expect(clippy::disallowed_methods, reason = "there is no other way to start a thread here")]
    pub(super) fn start(name: &CStr, body: impl FnOnce() + Send + 'static) -> Result<Handle> {
        let thread = std::thread::Builder::new().spawn(body);
        thread.map_err(|_| error!(OutOfMemory, "thread {name:?} cannot be started"))
    }

    pub(super) fn join(handle: Handle) {
        let _ = handle.join();
    }
}

/// The id of the calling process. A forked child has none of its parent's threads.
pub(crate) fn process() -> u32 {
    std::process::id()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_thread_runs_its_body_and_can_be_joined_even_when_it_panics() {
        let (sender, receiver) = mpsc::channel();
        let thread = Thread::start(c"mnnkv-test", move || {
            sender.send(7).unwrap();
            panic!("silent");
        });
        thread.unwrap().join();
        assert_eq!(receiver.recv(), Ok(7));
    }
}
