//! A value of each thread's own, dropped when the thread ends.
//!
//! A thread-local variable of the standard library with a destructor aborts the process if there is no memory to register
//! the destructor. A POSIX key reports it, and then the value is not retained.

use std::marker::PhantomData;

/// The slots of the library; each has a number of its own.
const SLOTS: usize = 4;

/// One value of each thread, until it is taken.
pub(crate) struct ThreadSlot<T> {
    number: usize,
    value: PhantomData<fn() -> T>,
}

impl<T: 'static> ThreadSlot<T> {
    /// Slot `number`, which no other slot has.
    pub(crate) const fn new(number: usize) -> Self {
        assert!(number < SLOTS);
        ThreadSlot { number, value: PhantomData }
    }

    /// Takes the calling thread's value.
    pub(crate) fn take(&self) -> Option<Box<T>> {
        kept::take(self.number)
    }

    /// Retains `value` for the calling thread. Drops it when the thread ends, or at once if it cannot be retained.
    pub(crate) fn put(&self, value: Box<T>) {
        kept::put(self.number, value);
    }
}

#[cfg(all(unix, not(target_vendor = "apple")))]
mod kept {
    use super::SLOTS;
    use libc::{c_void, pthread_key_t};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// No key yet; one may be made.
    const NONE: u64 = 0;
    /// The library is being unloaded.
    const CLOSED: u64 = u64::MAX;
    /// One more than the key of each slot.
    static KEYS: [AtomicU64; SLOTS] = [const { AtomicU64::new(NONE) }; SLOTS];

    unsafe extern "C" fn drop_value<T>(value: *mut c_void) {
        // SAFETY: `put` made the pointer from a box of this type, and the key's value is zero since the call.
        drop(unsafe { Box::from_raw(value.cast::<T>()) });
    }

    fn known(number: usize) -> Option<pthread_key_t> {
        match KEYS[number].load(Ordering::Acquire) {
            NONE | CLOSED => None,
            key => Some((key - 1) as pthread_key_t),
        }
    }

    fn made<T>(number: usize) -> Option<pthread_key_t> {
        if let Some(key) = known(number) {
            return Some(key);
        }
        let mut key = 0;
        // SAFETY: `key` is writable, and the destructor takes what `put` stores.
        if unsafe { libc::pthread_key_create(&mut key, Some(drop_value::<T>)) } != 0 {
            return None;
        }
        // An i32 on Android, whose keys are negative; a u32 or a u64 elsewhere.
        let next = (key as u64).wrapping_add(1);
        if KEYS[number].compare_exchange(NONE, next, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return Some(key);
        }
        // SAFETY: the key was made above, and no value was stored under it.
        unsafe { libc::pthread_key_delete(key) };
        known(number)
    }

    pub(super) fn take<T>(number: usize) -> Option<Box<T>> {
        let key = known(number)?;
        // SAFETY: reading a key is sound whatever its value.
        let value = unsafe { libc::pthread_getspecific(key) };
        // SAFETY: no value is stored that must be freed with the key.
        if value.is_null() || unsafe { libc::pthread_setspecific(key, std::ptr::null()) } != 0 {
            return None;
        }
        // SAFETY: `put` made the pointer from a box of this type, and the key does not hold it any more.
        Some(unsafe { Box::from_raw(value.cast::<T>()) })
    }

    pub(super) fn put<T>(number: usize, value: Box<T>) {
        drop(take::<T>(number));
        let Some(key) = made::<T>(number) else { return };
        let value = Box::into_raw(value);
        // SAFETY: the key's destructor takes a pointer of this type.
        if unsafe { libc::pthread_setspecific(key, value.cast()) } != 0 {
            // SAFETY: the pointer was made above and is stored nowhere.
            drop(unsafe { Box::from_raw(value) });
        }
    }

    /// Deletes the keys before the code of their destructors is unloaded. Values of other threads are not freed.
    extern "C" fn delete_keys() {
        for state in &KEYS {
            let key = state.swap(CLOSED, Ordering::AcqRel);
            if key != NONE && key != CLOSED {
                // SAFETY: the key was made by this library, and nothing uses it from now on.
                unsafe { libc::pthread_key_delete((key - 1) as pthread_key_t) };
            }
        }
    }

    // SAFETY: the loader calls each entry once, without arguments, when the library or the program ends.
    #[used]
    #[unsafe(link_section = ".fini_array")]
    static DELETE_KEYS: extern "C" fn() = delete_keys;
}

#[cfg(not(all(unix, not(target_vendor = "apple"))))]
mod kept {
    use super::SLOTS;
    use std::any::Any;
    use std::cell::RefCell;

    thread_local! {
        static VALUES: RefCell<[Option<Box<dyn Any>>; SLOTS]> = const { RefCell::new([const { None }; SLOTS]) };
    }

    pub(super) fn take<T: 'static>(number: usize) -> Option<Box<T>> {
        VALUES.try_with(|values| values.borrow_mut()[number].take()).ok().flatten()?.downcast().ok()
    }

    pub(super) fn put<T: 'static>(number: usize, value: Box<T>) {
        let _ = VALUES.try_with(|values| values.borrow_mut()[number] = Some(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    static SLOT: ThreadSlot<Arc<()>> = ThreadSlot::new(SLOTS - 1);

    #[test]
    fn a_thread_finds_its_own_value_again_and_drops_it_at_its_end() {
        let counted = Arc::new(());
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    assert!(SLOT.take().is_none());
                    SLOT.put(Box::new(counted.clone()));
                    let value = SLOT.take().unwrap();
                    assert!(Arc::ptr_eq(&value, &counted) && SLOT.take().is_none());
                    SLOT.put(value);
                    SLOT.put(Box::new(counted.clone()));
                });
            }
        });
        // A scope may end before its threads' destructors have run.
        while Arc::strong_count(&counted) > 1 {
            std::thread::yield_now();
        }
    }
}
