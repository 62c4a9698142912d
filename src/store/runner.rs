//! Jobs, and the workers that run them, which all stores of the process share.

use super::MOST_WORKERS;
use super::blob::Blob;
use super::codec::{BlockShape, Codec, Encoding};
use super::kv::KvBytes;
use super::queue::{Queue, Queues, Taken};
use crate::status::{Result, error};
use crate::sys::{self, Mutex, PerProcess, Shared, Thread, memory};
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

/// Work on a block, with bytes that the job owns.
pub(super) struct Job {
    pub(super) layer: u32,
    pub(super) shape: BlockShape,
    pub(super) work: Work,
}

pub(super) enum Work {
    Encode {
        raw: KvBytes,
        purpose: Purpose,
    },
    Decode {
        blob: Shared<Blob>,
        /// Memory of an earlier block, which saves page faults.
        into: Option<KvBytes>,
    },
}

/// What came of a [`Job`].
pub(super) struct Outcome {
    pub(super) layer: u32,
    pub(super) shape: BlockShape,
    pub(super) encode_ns: u64,
    /// 0 when nothing was decoded.
    pub(super) decode_ns: u64,
    pub(super) done: Done,
}

pub(super) enum Done {
    Encoded(Result<Encoded>),
    Decoded(Result<KvBytes>),
}

/// The blobs of a block, or why there are none.
pub(super) enum Encoded {
    Smaller(Shared<Blob>),
    NoGain,
    Sampled { bytes: usize },
}

fn ns(since: Instant) -> u64 {
    since.elapsed().as_nanos() as u64
}

impl Job {
    pub(super) fn is_decode_in(&self, layer: u32) -> bool {
        self.layer == layer && matches!(self.work, Work::Decode { .. })
    }

    pub(super) fn is_encode_in(&self, layer: u32) -> bool {
        self.layer == layer && matches!(self.work, Work::Encode { .. })
    }

    pub(super) fn run(self, codec: &mut Codec, encoding: &Encoding) -> Outcome {
        let Job { layer, shape, work } = self;
        let start = Instant::now();
        match work {
            Work::Encode { raw, purpose } => {
                let blob = codec.encode(&shape, &raw, encoding);
                let (encode_ns, mut decode_ns) = (ns(start), 0);
                let compare = encoding.strict_roundtrip || purpose == Purpose::Sample { compare: true };
                let checked = blob.and_then(|blob| {
                    if let Some(blob) = blob.as_ref().filter(|_| compare) {
                        let start = Instant::now();
                        let same = codec.compare(&shape, blob, &raw);
                        // A coarse clock may not have moved.
                        decode_ns = ns(start).max(1);
                        same?;
                    }
                    Ok(blob)
                });
                let result = checked.and_then(|blob| match (blob, purpose) {
                    (None, _) => Ok(Encoded::NoGain),
                    (Some(blob), Purpose::Sample { .. }) => Ok(Encoded::Sampled { bytes: blob.len() }),
                    (Some(blob), Purpose::Keep | Purpose::KeepSoon) => Shared::new(blob).map(Encoded::Smaller),
                });
                Outcome { layer, shape, encode_ns, decode_ns, done: Done::Encoded(result) }
            }
            Work::Decode { blob, into } => {
                let raw = into.map_or_else(|| KvBytes::new(0, 0), Ok);
                let result = raw.and_then(|mut raw| codec.decode(&shape, &blob, &mut raw).map(|()| raw));
                Outcome { layer, shape, encode_ns: 0, decode_ns: ns(start), done: Done::Decoded(result) }
            }
        }
    }

    /// Makes the outcome of this job for the case that it panics.
    fn lost(&self) -> impl FnOnce() -> Outcome + use<> {
        let (layer, shape, encodes) = (self.layer, self.shape, matches!(self.work, Work::Encode { .. }));
        move || {
            let error = error!(Internal, "a bug in mnn-kv, please report it: a worker panicked");
            let done = if encodes { Done::Encoded(Err(error)) } else { Done::Decoded(Err(error)) };
            Outcome { layer, shape, encode_ns: 0, decode_ns: 0, done }
        }
    }
}

/// The means of running a job.
#[derive(Clone, Copy)]
pub(super) struct Context {
    encoding: Encoding,
    /// Refused allocations: those of the thread that made the store.
    #[cfg(test)]
    shortage: (u32, usize),
}

type Taking = Taken<Context, Job>;

/// Runs a job and hands its outcome in.
fn run(queues: &Queues<Context, Job, Outcome>, Taking { id, context, job }: Taking, codec: &mut Codec) {
    #[cfg(test)]
    let own = memory::shortage::inherit(context.shortage);
    let lost = job.lost();
    let outcome = catch_unwind(AssertUnwindSafe(|| job.run(codec, &context.encoding))).unwrap_or_else(|_| {
        // The codec may be in any state.
        *codec = Codec::default();
        lost()
    });
    #[cfg(test)]
    memory::shortage::inherit(own);
    queues.hand_in(id, outcome);
}

/// The workers of a process, as many as the store with the most has. They start with the first store that needs them, and
/// end with the last one.
struct Workers {
    queues: Shared<Queues<Context, Job, Outcome>>,
    /// By number; `None` was joined. Locked before the queues, by stores that come or go.
    threads: Mutex<Vec<Option<Thread>>>,
    process: u32,
}

/// A child of a fork has none of its parent's threads, one of which may have held a lock. It gets its own.
static WORKERS: PerProcess<Shared<Workers>> = PerProcess::new();

impl Workers {
    fn new() -> Result<Shared<Self>> {
        let queues = Shared::new(Queues::new())?;
        Shared::new(Workers { queues, threads: Mutex::new(Vec::new()), process: sys::process() })
    }

    /// Opens a queue, and starts the workers that it has more than others. OUT_OF_MEMORY: nothing is open.
    fn join(&self, context: Context, workers: u32) -> Result<Queue<Context, Job, Outcome>> {
        let mut threads = self.threads.lock().expect(NEVER);
        let slots = (workers as usize).saturating_sub(threads.len());
        memory::reserve(&mut threads, slots)?;
        for _ in 0..slots {
            memory::push(&mut threads, None)?;
        }
        let queue = Queues::open(&self.queues, context, workers)?;
        // Those that are present stay, now that they are wanted.
        for number in (0..workers).filter(|number| self.queues.arrive(*number)) {
            let slot = &mut threads[number as usize];
            // It has left, and returns.
            slot.take().into_iter().for_each(Thread::join);
            match self.start(number) {
                Ok(thread) => *slot = Some(thread),
                Err(error) => {
                    self.queues.leave(number);
                    queue.close();
                    self.reap(&mut threads);
                    return Err(error);
                }
            }
        }
        Ok(queue)
    }

    fn start(&self, number: u32) -> Result<Thread> {
        let queues = self.queues.clone();
        Thread::start(c"mnnkv-worker", move || {
            let mut codec = Codec::default();
            while let Some(taken) = queues.next(number) {
                run(&queues, taken, &mut codec);
            }
        })
    }

    /// Joins the workers that have left; all where no queue has one. Blocks for no job.
    fn reap(&self, threads: &mut [Option<Thread>]) {
        let wanted = self.queues.wanted();
        for (number, thread) in threads.iter_mut().enumerate().skip(wanted as usize) {
            if wanted == 0 || !self.queues.is_present(number as u32) {
                thread.take().into_iter().for_each(Thread::join);
            }
        }
    }
}

const NEVER: &str = "nothing panics while it holds the list of threads";

/// A store's share in the threads that run jobs. Dropping blocks until each of its jobs that has begun is done.
pub(super) struct Runner {
    pub(super) queue: Queue<Context, Job, Outcome>,
    workers: Shared<Workers>,
}

impl Runner {
    /// A share in the workers of the process.
    pub(super) fn new(workers: u32, encoding: Encoding) -> Result<Self> {
        Runner::among(WORKERS.get(Workers::new)?, workers, encoding)
    }

    fn among(all: &Shared<Workers>, workers: u32, encoding: Encoding) -> Result<Self> {
        let context = Context {
            encoding,
            #[cfg(test)]
            shortage: memory::shortage::get(),
        };
        Ok(Runner { queue: all.join(context, workers.min(MOST_WORKERS))?, workers: all.clone() })
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        if self.workers.process != sys::process() {
            // A forked child has no threads, and one of them may have held a lock. Their share of the queues is never
            // dropped, so the queues stay.
            return;
        }
        self.queue.close();
        self.workers.reap(&mut self.workers.threads.lock().expect(NEVER));
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
        Job { layer: 0, shape: shape(ticket, 64), work: Work::Encode { raw, purpose: Purpose::Keep } }
    }

    fn runner(all: &Shared<Workers>, workers: u32) -> Runner {
        Runner::among(all, workers, Encoding::default()).unwrap()
    }

    /// Workers that have started and were not joined.
    fn threads(all: &Workers) -> usize {
        all.threads.lock().unwrap().iter().flatten().count()
    }

    // A panic's message goes to a buffer of the test program, whose lock ThreadSanitizer does not see.
    #[cfg(not(tsan))]
    #[test]
    fn a_job_that_panics_is_lost_alone() {
        let runner = runner(&Workers::new().unwrap(), 2);
        for ticket in 0..8 {
            // The size of its rows overflows.
            let blob = Shared::new(Blob::new(&[], &[]).unwrap()).unwrap();
            let decode = Job { layer: 3, shape: shape(ticket, usize::MAX), work: Work::Decode { blob, into: None } };
            runner.queue.push(decode, Urgency::Soon).unwrap();
            runner.queue.push(encode(ticket), Urgency::Later).unwrap();
        }
        let (mut lost, mut encoded) = (Vec::new(), Vec::new());
        while runner.queue.wait() {
            while let Some(outcome) = runner.queue.outcome() {
                match (outcome.done, outcome.layer) {
                    (Done::Decoded(Err(error)), 3) => {
                        assert_eq!(error.status(), crate::status::Status::Internal, "{error}");
                        lost.push(outcome.shape.ticket);
                    }
                    (Done::Encoded(Ok(Encoded::Smaller(_))), _) => encoded.push(outcome.shape.ticket),
                    _ => panic!("neither lost nor encoded"),
                }
            }
        }
        lost.sort_unstable();
        encoded.sort_unstable();
        assert!(lost.iter().copied().eq(0..8) && encoded == lost, "{lost:?} {encoded:?}");
    }

    #[test]
    fn no_worker_outlives_the_last_store() {
        let all = Workers::new().unwrap();
        for _ in 0..3 {
            let stores = [1, 3, 2, 0].map(|workers| runner(&all, workers));
            for ticket in 0..20 {
                stores[..3].iter().for_each(|store| store.queue.push(encode(ticket), Urgency::Later).unwrap());
            }
            assert_eq!(threads(&all), 3, "the most that a store has");
            drop(stores);
            assert_eq!((threads(&all), all.queues.owners()), (0, 1), "each worker holds one");
        }
    }

    #[test]
    fn workers_that_no_store_has_any_more_end_and_start_again() {
        let all = Workers::new().unwrap();
        let narrow = runner(&all, 1);
        for ticket in 0..50 {
            let wide = runner(&all, 1 + ticket as u32 % 4);
            wide.queue.push(encode(ticket), Urgency::Soon).unwrap();
            narrow.queue.push(encode(ticket), Urgency::Later).unwrap();
            assert!(wide.queue.wait() && wide.queue.outcome().is_some());
        }
        let mut outcomes = 0;
        while narrow.queue.wait() {
            outcomes += std::iter::from_fn(|| narrow.queue.outcome()).count();
        }
        assert_eq!(outcomes, 50);
        while (1..4).any(|number| all.queues.is_present(number)) {
            std::thread::yield_now();
        }
        drop(runner(&all, 0));
        assert_eq!(threads(&all), 1);
    }

    #[test]
    fn a_thread_that_is_refused_leaves_nothing_open() {
        let all = Workers::new().unwrap();
        let narrow = runner(&all, 1);
        memory::shortage::set_least(1);
        for seed in 1..40 {
            memory::shortage::set(3, seed << 32 | seed);
            let _ = Runner::among(&all, 4, Encoding::default()).map(drop);
        }
        memory::shortage::set(0, 0);
        memory::shortage::set_least(1024);
        assert_eq!(all.queues.wanted(), 1);
        drop(narrow);
        assert_eq!((threads(&all), all.queues.owners()), (0, 1));
    }
}
