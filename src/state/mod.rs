//! state: the state buffer of another engine to fewer bytes and back, bit for bit.
//!
//! The caller describes tensors inside of the buffer; all other bytes are opaque. `docs/state.md` describes a blob byte
//! for byte. Each line feeds the next, and decoding goes up:
//!
//! | stage | input -> output | file |
//! |---|---|---|
//! | plan | tensors -> regions with fields, cut into sections | `plan.rs` |
//! | separate | the rows of a section -> streams of words | `streams.rs` |
//! | code | a stream -> a gear blob, or the bytes as they are | `section.rs` over `gear` |
//! | contain | plan and payloads -> blob | `table.rs` |
//!
//! A section is a run of consecutive bytes of the buffer, and has nothing in common with the others, so that sections
//! are jobs: any number of threads writes the same blob, and each decodes to memory of its own.

mod plan;
mod section;
mod streams;
mod table;

pub use plan::{Form, Tensor};

use crate::gear::Effort;
use crate::status::{Error, Result, Status, bail, error};
use crate::sys::{self, Mutex, memory, parallel};
use plan::Plan;
use section::Worker;
use table::{Head, Sums};
use xxhash_rust::xxh3::xxh3_64;

/// How to encode, and on how many threads.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// 1 writes gear lanes, but for quantised tensors; 2 to 9 write gear v2 with that effort.
    pub effort: Effort,
    /// Threads, the calling one included; 0 = as many as cores.
    pub threads: usize,
}

/// The largest blob of `len` bytes with these tensors. Fails as [`encode`].
pub fn bound(len: usize, tensors: &[Tensor]) -> Result<usize> {
    blob_bound(&Plan::of(len, tensors)?)
}

fn blob_bound(plan: &Plan) -> Result<usize> {
    let payloads = plan.sections.iter().try_fold(table::len_of(plan), |sum, section| {
        sum.checked_add(section::bound(plan, section)).filter(|sum| *sum <= isize::MAX as usize)
    });
    payloads.ok_or_else(|| error!(InvalidArgument, "src_len is {}; no memory can hold its blob", plan.len))
}

/// Encodes `src` to `dst`, which has room for [`bound`] bytes; returns the length. The bytes of `dst` after it are
/// undefined.
pub fn encode(src: &[u8], tensors: &[Tensor], options: Options, dst: &mut [u8]) -> Result<usize> {
    let plan = Plan::of(src.len(), tensors)?;
    let needed = blob_bound(&plan)?;
    if dst.len() < needed {
        return Err(Error::too_small("dst_cap", dst.len(), needed));
    }
    let head_len = table::len_of(&plan);
    let (head, mut rest) = dst.split_at_mut(head_len);
    // Each section is encoded where it may end at most, and moved down when all lengths are known.
    let mut slots = Vec::new();
    memory::reserve(&mut slots, plan.sections.len())?;
    for section in &plan.sections {
        let (slot, behind) = rest.split_at_mut(section::bound(&plan, section));
        memory::push(&mut slots, Mutex::new((slot, Sums::default())))?;
        rest = behind;
    }
    parallel::for_each::<Worker>(slots.len(), threads(options.threads), |worker, at| {
        let (slot, sums) = &mut *slots[at].lock().map_err(|_| Error::out_of_service("a section"))?;
        let section = &plan.sections[at];
        let raw = &src[section.bytes()];
        let len = worker.encode(&plan, section, raw, options.effort, slot)?;
        *sums = Sums { len, raw: xxh3_64(raw), stored: xxh3_64(&slot[..len]) };
        Ok(())
    })?;
    let mut sums = Vec::new();
    memory::reserve(&mut sums, slots.len())?;
    for slot in slots {
        let (_, sum) = slot.into_inner().map_err(|_| Error::out_of_service("a section"))?;
        memory::push(&mut sums, sum)?;
    }
    let stored_len = head_len + sums.iter().map(|sums| sums.len).sum::<usize>();
    table::write(&plan, &sums, stored_len, head);
    let (mut from, mut to) = (head_len, head_len);
    for (section, sums) in plan.sections.iter().zip(&sums) {
        dst.copy_within(from..from + sums.len, to);
        from += section::bound(&plan, section);
        to += sums.len;
    }
    Ok(stored_len)
}

/// The decoded length in bytes that a blob announces, after a check of all but its sections.
pub fn decoded_len(blob: &[u8]) -> Result<usize> {
    table::read(blob).map(|head| head.plan.len)
}

/// Decodes `blob` to the start of `dst`; returns the length. After a failure the decoded length of `dst` is undefined;
/// bytes after it are never written.
pub fn decode(blob: &[u8], threads_given: usize, dst: &mut [u8]) -> Result<usize> {
    let Head { plan, sums, payloads } = table::read(blob)?;
    let Some(mut rest) = dst.get_mut(..plan.len) else {
        return Err(Error::too_small("dst_cap", dst.len(), plan.len));
    };
    let mut jobs = Vec::new();
    memory::reserve(&mut jobs, plan.sections.len())?;
    let mut at = payloads;
    for (section, sums) in plan.sections.iter().zip(&sums) {
        let (raw, behind) = rest.split_at_mut(section.bytes().len());
        memory::push(&mut jobs, (Mutex::new(raw), at..at + sums.len))?;
        at += sums.len;
        rest = behind;
    }
    parallel::for_each::<Worker>(jobs.len(), threads(threads_given), |worker, at| {
        let (raw, stored) = &jobs[at];
        let raw = &mut *raw.lock().map_err(|_| Error::out_of_service("a section"))?;
        let payload = &blob[stored.clone()];
        let place = |error: Error| {
            error.within(format_args!("section {at} of {}, blob bytes {} to {}", jobs.len(), stored.start, stored.end))
        };
        verified(payload, sums[at].stored, "stored").map_err(place)?;
        worker.decode(&plan, &plan.sections[at], payload, raw).map_err(place)?;
        verified(raw, sums[at].raw, "decoded").map_err(place)
    })?;
    Ok(plan.len)
}

fn verified(bytes: &[u8], expected: u64, what: &str) -> Result<()> {
    match xxh3_64(bytes) {
        sum if sum == expected => Ok(()),
        sum => bail!(Corrupt, "the {what} bytes have checksum {sum:#018x}; {expected:#018x} expected"),
    }
}

fn threads(given: usize) -> usize {
    if given == 0 { sys::cores() as usize } else { given }
}

/// The error of a forged blob, from that of the codec inside.
fn corrupt(error: Error) -> Error {
    match error.status() {
        Status::InvalidArgument | Status::BufferTooSmall => error!(Corrupt, "{}", error.message()),
        _ => error,
    }
}
