//! Prefetches: hints that bytes will be read soon, so that memory answers while other work runs.

/// Bytes of a cache line; larger ones cost a hint too many.
const LINE: usize = 64;

/// Asks for every line of `bytes`. Changes nothing, and does nothing on CPUs without such a hint.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    for line in bytes.chunks(LINE) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 has SSE; a prefetch reads nothing that the program sees.
        unsafe {
            core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(line.as_ptr().cast());
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above; the address is that of a live slice.
        unsafe {
            core::arch::asm!("prfm pldl1keep, [{0}]", in(reg) line.as_ptr(), options(nostack, readonly, preserves_flags));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = line;
    }
}

/// Asks for the line of an address, which may be any, in the second-level cache: the first has too few misses in flight for
/// rows that lie apart, and loses them before they are read.
#[inline(always)]
pub fn prefetch_far(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has SSE; a prefetch reads nothing that the program sees, and never faults.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T1 }>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prfm pldl2keep, [{0}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}
