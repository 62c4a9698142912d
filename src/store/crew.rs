//! Jobs, and the worker threads that run them.

use super::codec::{BlockShape, Codec, Encoding};
use super::kv::KvBytes;
use super::queue::Queue;
use crate::status::{Result, error};
use crate::sys::{self, Shared, Thread, memory};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// Why a block is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The blobs are kept, so that the raw bytes can be released.
    Keep,
    /// As `Keep`, in turn with the decoding of prefetched blocks instead of after it.
    KeepSoon,
    /// The blobs are measured and dropped.
    Sample {
        /// The blobs are decoded and compared, too.
        compare: bool,
    },
}

/// One block to encode.
pub(super) struct EncodeJob {
    pub(super) layer: u32,
    pub(super) shape: BlockShape,
    pub(super) raw: KvBytes,
    pub(super) purpose: Purpose,
}

/// One block to decode.
pub(super) struct DecodeJob {
    pub(super) layer: u32,
    pub(super) shape: BlockShape,
    pub(super) blob: Shared<KvBytes>,
    /// Memory of an earlier block, which saves page faults.
    pub(super) into: Option<KvBytes>,
}

/// Work on bytes that the job owns.
pub(super) enum Job {
    Encode(EncodeJob),
    Decode(DecodeJob),
}

/// The blobs of a block, or why there are none.
pub(super) enum Encoded {
    Smaller(Shared<KvBytes>),
    NoGain,
    Sampled { bytes: usize },
}

/// The outcome of an [`EncodeJob`].
pub(super) struct EncodeOutcome {
    pub(super) layer: u32,
    pub(super) ticket: u64,
    pub(super) raw_bytes: usize,
    pub(super) result: Result<Encoded>,
    pub(super) encode_ns: u64,
    /// 0 when the blobs were not decoded.
    pub(super) decode_ns: u64,
}

/// The outcome of a [`DecodeJob`].
pub(super) struct DecodeOutcome {
    pub(super) layer: u32,
    pub(super) ticket: u64,
    pub(super) result: Result<KvBytes>,
    pub(super) decode_ns: u64,
}

/// The outcome of a [`Job`].
pub(super) enum Outcome {
    Encoded(EncodeOutcome),
    Decoded(DecodeOutcome),
}

fn ns(since: Instant) -> u64 {
    since.elapsed().as_nanos() as u64
}

impl EncodeJob {
    pub(super) fn run(self, codec: &mut Codec, encoding: &Encoding) -> EncodeOutcome {
        let EncodeJob { layer, shape, raw, purpose } = self;
        let start = Instant::now();
        let blob = codec.encode(&shape.rows, &raw, encoding);
        let encode_ns = ns(start);
        let compare = encoding.strict_roundtrip || purpose == Purpose::Sample { compare: true };
        let mut decode_ns = 0;
        let checked = blob.and_then(|blob| match blob {
            Some(blob) if compare => {
                let start = Instant::now();
                let same = codec.compare(&shape, &blob, &raw);
                // 0 means "not decoded", and a coarse clock may not have moved.
                decode_ns = ns(start).max(1);
                same.map(|()| Some(blob))
            }
            blob => Ok(blob),
        });
        let result = checked.and_then(|blob| match (blob, purpose) {
            (None, _) => Ok(Encoded::NoGain),
            (Some(blob), Purpose::Sample { .. }) => Ok(Encoded::Sampled { bytes: blob.len() }),
            (Some(blob), Purpose::Keep | Purpose::KeepSoon) => Shared::new(blob).map(Encoded::Smaller),
        });
        EncodeOutcome { layer, ticket: shape.ticket, raw_bytes: raw.len(), result, encode_ns, decode_ns }
    }
}

impl DecodeJob {
    fn run(self, codec: &mut Codec) -> DecodeOutcome {
        let DecodeJob { layer, shape, blob, into } = self;
        let start = Instant::now();
        let raw = into.map_or_else(|| KvBytes::new(0, 0), Ok);
        let result = raw.and_then(|mut raw| codec.decode(&shape, &blob, &mut raw).map(|()| raw));
        DecodeOutcome { layer, ticket: shape.ticket, result, decode_ns: ns(start) }
    }
}

impl Job {
    pub(super) fn is_decode_in(&self, layer: u32) -> bool {
        matches!(self, Job::Decode(job) if job.layer == layer)
    }

    /// Ticket and raw bytes of an encode job of the layer.
    pub(super) fn encodes(&self, layer: u32) -> Option<(u64, usize)> {
        match self {
            Job::Encode(job) if job.layer == layer => Some((job.shape.ticket, job.raw.len())),
            _ => None,
        }
    }

    fn run(self, codec: &mut Codec, encoding: &Encoding) -> Outcome {
        match self {
            Job::Encode(job) => Outcome::Encoded(job.run(codec, encoding)),
            Job::Decode(job) => Outcome::Decoded(job.run(codec)),
        }
    }

    /// Makes the outcome of this job for the case that it panics.
    fn lost(&self) -> impl FnOnce() -> Outcome + use<> {
        let (layer, ticket, raw_bytes) = match self {
            Job::Encode(EncodeJob { layer, shape, raw, .. }) => (*layer, shape.ticket, Some(raw.len())),
            Job::Decode(DecodeJob { layer, shape, .. }) => (*layer, shape.ticket, None),
        };
        move || {
            let error = error!(Internal, "a bug in mnn-kv, please report it: a worker panicked");
            match raw_bytes {
                Some(raw_bytes) => {
                    let result = Err(error);
                    Outcome::Encoded(EncodeOutcome { layer, ticket, raw_bytes, result, encode_ns: 0, decode_ns: 0 })
                }
                None => Outcome::Decoded(DecodeOutcome { layer, ticket, result: Err(error), decode_ns: 0 }),
            }
        }
    }
}

/// The workers. Dropping blocks until each has finished its current job.
pub(super) struct Crew {
    queue: Shared<Queue<Job, Outcome>>,
    threads: Vec<Thread>,
    /// The process that has the threads.
    process: u32,
}

impl Crew {
    pub(super) fn new(workers: u32, encoding: Encoding) -> Result<Self> {
        let mut crew = Crew { queue: Shared::new(Queue::new())?, threads: Vec::new(), process: sys::process() };
        #[cfg(test)]
        let shortage = memory::shortage::get();
        memory::reserve(&mut crew.threads, workers as usize)?;
        for _worker in 0..workers {
            let queue = crew.queue.clone();
            let work = move || {
                #[cfg(test)]
                {
                    memory::shortage::set(shortage.0, u64::from(_worker) + 7);
                    memory::shortage::set_least(shortage.1);
                }
                let mut codec = Codec::default();
                while let Some(job) = queue.next() {
                    let lost = job.lost();
                    let run = catch_unwind(AssertUnwindSafe(|| job.run(&mut codec, &encoding)));
                    queue.hand_in(run.unwrap_or_else(|_| {
                        // The codec may be in any state.
                        codec = Codec::default();
                        lost()
                    }));
                }
            };
            memory::push(&mut crew.threads, Thread::start(c"mnnkv-worker", work)?)?;
        }
        Ok(crew)
    }

    pub(super) fn queue(&self) -> &Queue<Job, Outcome> {
        &self.queue
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        if self.process != sys::process() {
            // A forked child has no threads, and one of them may have held the queue's lock. Their share of the queue is
            // never dropped, so the queue stays.
            return;
        }
        self.queue.close();
        self.threads.drain(..).for_each(Thread::join);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::queue::Urgency;
    use super::*;
    use crate::layout::Layout;

    fn shape(ticket: u64, tokens: usize) -> BlockShape {
        let rows = Layout::new(&crate::host::packing::flash(1, 64, 16, 64)).unwrap().rows();
        BlockShape { ticket, rows, tokens, digest: 0 }
    }

    fn encode(ticket: u64) -> Job {
        let raw = KvBytes::new(64 * 128, 64 * 128).unwrap();
        Job::Encode(EncodeJob { layer: 0, shape: shape(ticket, 64), raw, purpose: Purpose::Keep })
    }

    // A panic's message goes to a buffer of the test program, whose lock ThreadSanitizer does not see.
    #[cfg(not(tsan))]
    #[test]
    fn a_job_that_panics_is_lost_alone() {
        let crew = Crew::new(2, Encoding::default()).unwrap();
        for ticket in 0..8 {
            // The size of its rows overflows.
            let blob = Shared::new(KvBytes::new(1, 1).unwrap()).unwrap();
            let decode = Job::Decode(DecodeJob { layer: 3, shape: shape(ticket, usize::MAX), blob, into: None });
            crew.queue.push(decode, Urgency::Soon).unwrap();
            crew.queue.push(encode(ticket), Urgency::Later).unwrap();
        }
        let (mut lost, mut encoded) = (Vec::new(), Vec::new());
        while crew.queue.wait() {
            while let Some(outcome) = crew.queue.outcome() {
                match outcome {
                    Outcome::Decoded(DecodeOutcome { layer: 3, ticket, result: Err(error), .. }) => {
                        assert_eq!(error.status(), crate::status::Status::Internal, "{error}");
                        lost.push(ticket);
                    }
                    Outcome::Encoded(EncodeOutcome { ticket, result: Ok(Encoded::Smaller(_)), .. }) => {
                        encoded.push(ticket)
                    }
                    _ => panic!("neither lost nor encoded"),
                }
            }
        }
        lost.sort_unstable();
        encoded.sort_unstable();
        assert!(lost.iter().copied().eq(0..8) && encoded == lost, "{lost:?} {encoded:?}");
    }

    #[test]
    fn no_worker_outlives_its_crew() {
        for workers in [1, 3] {
            let crew = Crew::new(workers, Encoding::default()).unwrap();
            (0..20).for_each(|ticket| crew.queue.push(encode(ticket), Urgency::Later).unwrap());
            let queue = crew.queue.clone();
            drop(crew);
            assert_eq!(queue.owners(), 1, "each worker holds one");
        }
    }
}
