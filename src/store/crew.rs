//! Jobs, and the threads that do them.

use super::codec::{Codec, Encoding, Shape};
use super::kv::Kv;
use super::queue::Queue;
use crate::status::{Result, error};
use crate::sys::{self, Shared, Thread, memory};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// Why a block is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Its blobs are kept, so that the raw bytes can be released.
    Keep,
    /// The same, and in turn with blocks that are decoded ahead instead of after them.
    KeepSoon,
    /// Only the size is wanted; `compare`: and whether it decodes to the same.
    Sample {
        /// Decode, too.
        compare: bool,
    },
}

/// Work on bytes of its own.
pub(super) enum Job {
    Encode {
        layer: u32,
        shape: Shape,
        raw: Kv,
        purpose: Purpose,
    },
    /// `into`: memory of an earlier block, which saves the faults of new pages.
    Decode {
        layer: u32,
        shape: Shape,
        blob: Shared<Kv>,
        into: Option<Kv>,
    },
}

/// What an encoder made of a block.
pub(super) enum Encoded {
    Smaller(Shared<Kv>),
    NoGain,
    Sampled { bytes: usize },
}

/// What became of a job.
pub(super) enum Outcome {
    Encoded { layer: u32, ticket: u64, raw_bytes: usize, result: Result<Encoded>, encode_ns: u64, decode_ns: u64 },
    Decoded { layer: u32, ticket: u64, result: Result<Kv>, decode_ns: u64 },
}

fn ns(since: Instant) -> u64 {
    since.elapsed().as_nanos() as u64
}

impl Job {
    pub(super) fn is_decode_in(&self, which: u32) -> bool {
        matches!(self, Job::Decode { layer, .. } if *layer == which)
    }

    /// The ticket and the raw bytes of a block of the layer that waits to be encoded.
    pub(super) fn encodes(&self, which: u32) -> Option<(u64, usize)> {
        match self {
            Job::Encode { layer, shape, raw, .. } if *layer == which => Some((shape.ticket, raw.len())),
            _ => None,
        }
    }

    pub(super) fn run(self, codec: &mut Codec, encoding: &Encoding) -> Outcome {
        let start = Instant::now();
        match self {
            Job::Encode { layer, shape, raw, purpose } => {
                let blob = codec.encode(&shape.rows, &raw, encoding);
                let encode_ns = ns(start);
                let compare = encoding.strict_roundtrip || purpose == Purpose::Sample { compare: true };
                let mut decode_ns = 0;
                let checked = blob.and_then(|blob| match blob {
                    Some(blob) if compare => {
                        let start = Instant::now();
                        let same = codec.compare(&shape, &blob, &raw);
                        // A coarse clock must not hide that it was decoded.
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
                Outcome::Encoded { layer, ticket: shape.ticket, raw_bytes: raw.len(), result, encode_ns, decode_ns }
            }
            Job::Decode { layer, shape, blob, into } => {
                let raw = into.map_or_else(|| Kv::new(0, 0), Ok);
                let result = raw.and_then(|mut raw| codec.decode(&shape, &blob, &mut raw).map(|()| raw));
                Outcome::Decoded { layer, ticket: shape.ticket, result, decode_ns: ns(start) }
            }
        }
    }

    /// The outcome of a job that panicked.
    fn lost(&self) -> impl FnOnce() -> Outcome + use<> {
        enum Of {
            Encode(u64, usize),
            Decode(u64),
        }
        let (layer, of) = match self {
            Job::Encode { layer, shape, raw, .. } => (*layer, Of::Encode(shape.ticket, raw.len())),
            Job::Decode { layer, shape, .. } => (*layer, Of::Decode(shape.ticket)),
        };
        move || {
            let error = error!(Internal, "a bug in mnn-kv, please report it: a worker panicked");
            match of {
                Of::Encode(ticket, raw_bytes) => {
                    Outcome::Encoded { layer, ticket, raw_bytes, result: Err(error), encode_ns: 0, decode_ns: 0 }
                }
                Of::Decode(ticket) => Outcome::Decoded { layer, ticket, result: Err(error), decode_ns: 0 },
            }
        }
    }
}

/// Threads that do jobs until it is dropped; dropping waits for the job that each is at.
pub(super) struct Crew {
    queue: Shared<Queue<Job, Outcome>>,
    threads: Vec<Thread>,
    /// Where the threads are.
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
                        // Whatever state the panic left behind goes with it.
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
            // A forked child: the threads are not here, and one of them may have held the queue's lock. Their share of
            // the queue is never given up, so the queue stays.
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

    fn shape(ticket: u64, tokens: usize) -> Shape {
        let rows = Layout::new(&crate::host::packing::flash(1, 64, 16, 64)).unwrap().rows();
        Shape { ticket, rows, tokens, digest: 0 }
    }

    fn encode(ticket: u64) -> Job {
        let raw = Kv::new(64 * 128, 64 * 128).unwrap();
        Job::Encode { layer: 0, shape: shape(ticket, 64), raw, purpose: Purpose::Keep }
    }

    // What a panic says goes to a buffer of the test program, whose lock ThreadSanitizer does not see.
    #[cfg(not(tsan))]
    #[test]
    fn a_job_that_panics_is_lost_alone() {
        let crew = Crew::new(2, Encoding::default()).unwrap();
        for ticket in 0..8 {
            // The size of its rows overflows.
            let blob = Shared::new(Kv::new(1, 1).unwrap()).unwrap();
            let decode = Job::Decode { layer: 3, shape: shape(ticket, usize::MAX), blob, into: None };
            crew.queue.push(decode, Urgency::Soon).unwrap();
            crew.queue.push(encode(ticket), Urgency::Later).unwrap();
        }
        let (mut lost, mut encoded) = (Vec::new(), Vec::new());
        while crew.queue.wait() {
            while let Some(outcome) = crew.queue.outcome() {
                match outcome {
                    Outcome::Decoded { layer: 3, ticket, result: Err(error), .. } => {
                        assert_eq!(error.status(), crate::status::Status::Internal, "{error}");
                        lost.push(ticket);
                    }
                    Outcome::Encoded { ticket, result: Ok(Encoded::Smaller(_)), .. } => encoded.push(ticket),
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
