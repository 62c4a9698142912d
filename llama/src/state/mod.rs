//! The state buffer of llama.cpp to fewer bytes and back, bit for bit.
//!
//! The caller describes tensors inside of the buffer; all other bytes are opaque. The README of integrations/llama.cpp
//! describes a blob byte for byte. A section is a run of bytes of one form, and has nothing in common with the others, so that
//! sections are jobs: any number of threads writes the same blob, and each decodes to memory of its own.

mod head;
mod section;

pub use section::{Form, Tensor};

use head::{ENTRY, Entry, Head};
use mnnkv::status::{Error, Result, error};
use mnnkv::sys::{self, memory, parallel};
use section::{Section, Worker};
use std::sync::Mutex;

/// The largest blob of `len` bytes with these tensors. INVALID_ARGUMENT: if a tensor is out of range or overlaps another.
pub fn bound(len: usize, tensors: &[Tensor]) -> Result<usize> {
    bound_of(&section::cut(len, tensors)?)
}

fn bound_of(sections: &[Section]) -> Result<usize> {
    let mut bounds = sections.iter().map(|section| section.bound() + ENTRY);
    let sum = bounds.try_fold(head::len_of(0), usize::checked_add).filter(|sum| *sum <= isize::MAX as usize);
    sum.ok_or_else(|| error!(InvalidArgument, "src_len is too much: no memory can hold the blob"))
}

/// Encodes `src` to `dst`, which has room for [`bound`] bytes; returns the length. The bytes of `dst` after it are
/// undefined. `threads`: the calling one included; 0 = as many as cores.
pub fn encode(src: &[u8], tensors: &[Tensor], threads: usize, dst: &mut [u8]) -> Result<usize> {
    let sections = section::cut(src.len(), tensors)?;
    let needed = bound_of(&sections)?;
    if dst.len() < needed {
        return Err(Error::too_small("dst_cap", dst.len(), needed));
    }
    let head_len = head::len_of(sections.len());
    let (head, mut rest) = dst.split_at_mut(head_len);
    // Each section is encoded where it may end at most, and moved down when all lengths are known.
    let mut slots = Vec::new();
    memory::reserve(&mut slots, sections.len())?;
    for section in &sections {
        let (slot, behind) = rest.split_at_mut(section.bound());
        memory::push(&mut slots, Mutex::new((slot, Entry { section: *section, len: 0, sum: 0 })))?;
        rest = behind;
    }
    parallel::for_each::<Worker>(slots.len(), threads_of(threads), |worker, at| {
        let (slot, entry) = &mut *slots[at].lock().map_err(|_| Error::out_of_service("a section"))?;
        entry.len = worker.encode(entry.section.form, &src[entry.section.bytes()], slot)?;
        entry.sum = head::checksum(&slot[..entry.len]);
        Ok(())
    })?;
    let mut entries = Vec::new();
    memory::reserve(&mut entries, slots.len())?;
    for slot in slots {
        memory::push(&mut entries, slot.into_inner().map_err(|_| Error::out_of_service("a section"))?.1)?;
    }
    let len = head_len + entries.iter().map(|entry| entry.len).sum::<usize>();
    head::write(&entries, len, src.len(), head);
    let (mut from, mut to) = (head_len, head_len);
    for entry in &entries {
        dst.copy_within(from..from + entry.len, to);
        from += entry.section.bound();
        to += entry.len;
    }
    Ok(len)
}

/// The decoded length that a blob announces, after a check of all but its sections.
pub fn decoded_len(blob: &[u8]) -> Result<usize> {
    head::read(blob).map(|head| head.decoded_len)
}

/// Decodes `blob` to the start of `dst`; returns the length. After a failure the decoded length of `dst` is undefined;
/// bytes after it are never written. `threads` as for [`encode`].
pub fn decode(blob: &[u8], threads: usize, dst: &mut [u8]) -> Result<usize> {
    let Head { entries, mut payload, decoded_len } = head::read(blob)?;
    let Some(mut rest) = dst.get_mut(..decoded_len) else {
        return Err(Error::too_small("dst_cap", dst.len(), decoded_len));
    };
    let mut jobs = Vec::new();
    memory::reserve(&mut jobs, entries.len())?;
    for entry in &entries {
        let (raw, behind) = rest.split_at_mut(entry.section.len);
        memory::push(&mut jobs, (Mutex::new(raw), payload..payload + entry.len))?;
        payload += entry.len;
        rest = behind;
    }
    parallel::for_each::<Worker>(jobs.len(), threads_of(threads), |worker, at| {
        let (raw, stored) = &jobs[at];
        let raw = &mut *raw.lock().map_err(|_| Error::out_of_service("a section"))?;
        let payload = &blob[stored.clone()];
        let decoded =
            head::verify(payload, entries[at].sum).and_then(|()| worker.decode(entries[at].section.form, payload, raw));
        decoded.map_err(|error| {
            error.within(format_args!("section {at} of {}, blob bytes {} to {}", jobs.len(), stored.start, stored.end))
        })
    })?;
    Ok(decoded_len)
}

fn threads_of(given: usize) -> usize {
    if given == 0 { sys::cores() as usize } else { given }
}
