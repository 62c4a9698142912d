//! The thread that writes blocks to a file, and their sketches.

use crate::attend::{Basis, Block, Offloaded, Place, Shape, SketchWork, Sketches};
use crate::status::{Error, Result};
use crate::sys::storage::Storage;
use crate::sys::{self, Condvar, Mutex, Shared, Thread, memory};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bytes of a line of codes.
const LINE: usize = 64;

/// The directions that a block is sketched by.
pub(super) enum Directions {
    Known(Shared<Basis>),
    /// Those of these keys, `[head][token][dim]`, of so many tokens.
    Of(Vec<f32>, usize),
}

/// A block on its way to the file.
pub(super) struct Job {
    pub(super) layer: u32,
    pub(super) ticket: u64,
    pub(super) storage: Shared<Storage>,
    pub(super) place: Place,
    pub(super) shape: Shape,
    /// The codes of its heads.
    pub(super) bytes: Vec<u8>,
    /// Where each ends.
    pub(super) ends: Vec<usize>,
    pub(super) directions: Directions,
}

/// What has become of a block.
pub(super) struct Written {
    pub(super) layer: u32,
    pub(super) ticket: u64,
    pub(super) heads: Result<Vec<Option<Offloaded>>>,
    /// Directions that were chosen.
    pub(super) basis: Option<Shared<Basis>>,
}

impl Sketching {
    /// What is known in the file of the heads of a block, whose codes are these bytes, and where each ends. Leaves their sketches.
    pub(in crate::session) fn heads(
        &mut self,
        shape: Shape,
        (bytes, ends): (&[u8], &[usize]),
        basis: &Basis,
    ) -> Result<Vec<Option<Offloaded>>> {
        let (mut heads, mut begin) = (Vec::new(), 0);
        memory::reserve(&mut heads, ends.len())?;
        self.bytes.clear();
        for (head, (end, codes)) in ends.iter().zip(self.block.heads_mut(ends.len())?).enumerate() {
            let bytes = &bytes[begin..*end];
            codes.read(shape, bytes)?;
            let first = (begin / LINE) as u32;
            let offloaded = match bytes.is_empty() {
                true => {
                    memory::resize(&mut self.bytes, (head + 1) * Sketches::bytes(shape.dims))?;
                    None
                }
                false => {
                    let (codes, basis) = (codes.view(shape), (basis, head));
                    Some(Offloaded::new(&codes, (first, bytes), basis, &mut self.work, &mut self.bytes)?)
                }
            };
            memory::push(&mut heads, offloaded)?;
            begin = *end;
        }
        Ok(heads)
    }

    /// The sketches of the last block, and where each goes.
    pub(in crate::session) fn sketches(&self, shape: Shape, to: Sketches) -> impl Iterator<Item = (u64, &[u8])> {
        let sketches = self.bytes.chunks_exact(Sketches::bytes(shape.dims));
        to.places(sketches.len(), shape.dims).map(|place| place.start).zip(sketches)
    }
}

/// Working memory of sketches of blocks.
#[derive(Default)]
pub(in crate::session) struct Sketching {
    block: Block,
    work: SketchWork,
    /// The sketches of a block.
    bytes: Vec<u8>,
}

impl Job {
    /// Bytes of memory.
    fn memory(&self) -> usize {
        let keys = if let Directions::Of(keys, _) = &self.directions { size_of_val(&keys[..]) } else { 0 };
        self.bytes.len() + keys
    }

    fn run(self) -> Written {
        let Job { layer, ticket, .. } = self;
        let mut work = Sketching::default();
        let mut basis = None;
        let heads = self.directions(&mut basis).and_then(|directions| {
            let heads = work.heads(self.shape, (&self.bytes, &self.ends), &directions)?;
            self.storage.write_at(self.place.codes.start, &self.bytes)?;
            let mut sketches = work.sketches(self.shape, self.place.sketches);
            sketches.try_for_each(|(at, bytes)| self.storage.write_at(at, bytes))?;
            Ok(heads)
        });
        Written { layer, ticket, heads, basis }
    }

    /// The directions of sketches; `chosen` has those that are new.
    fn directions(&self, chosen: &mut Option<Shared<Basis>>) -> Result<Shared<Basis>> {
        match &self.directions {
            Directions::Known(basis) => Ok(basis.clone()),
            Directions::Of(keys, tokens) => {
                let learnt = Basis::learn(keys, *tokens, self.ends.len(), self.shape.dims)?;
                Ok(chosen.insert(Shared::new(learnt)?).clone())
            }
        }
    }
}

/// The thread of a file. It starts with the first block and sleeps while there is none.
pub(super) struct Writer {
    inbox: Shared<Inbox>,
    thread: Option<Thread>,
    process: u32,
    /// Jobs run in the calls that queue them, for tests that count steps.
    #[cfg(test)]
    pub(super) runs_inline: bool,
}

struct Inbox {
    books: Mutex<Books>,
    news: Condvar,
}

#[derive(Default)]
struct Books {
    jobs: VecDeque<Job>,
    /// Bytes of jobs, that of the thread included.
    bytes: usize,
    is_busy: bool,
    /// Has room for all jobs.
    ended: Vec<Written>,
    closes: bool,
}

impl Writer {
    pub(super) fn new() -> Result<Self> {
        let inbox = Shared::new(Inbox { books: Mutex::default(), news: Condvar::new() })?;
        Ok(Writer {
            inbox,
            thread: None,
            process: sys::process(),
            #[cfg(test)]
            runs_inline: true,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.inbox.books.lock().map_or(0, |books| books.bytes)
    }

    /// Whether no job is on its way, nor one that has ended to be taken.
    pub(super) fn is_idle(&self) -> bool {
        self.inbox.books.lock().is_ok_and(|books| books.bytes == 0 && books.ended.is_empty())
    }

    /// Queues a job. Where no thread can be started it runs now.
    pub(super) fn push(&mut self, job: Job) -> Result<()> {
        #[cfg(test)]
        let threads = !self.runs_inline;
        #[cfg(not(test))]
        let threads = true;
        if threads && self.thread.is_none() {
            let inbox = self.inbox.clone();
            self.thread = Thread::start(c"mnnkv-file", move || inbox.serve()).ok();
        }
        let mut books = self.inbox.books()?;
        memory::reserve_deque(&mut books.jobs, 1)?;
        let waiting = books.jobs.len() + usize::from(books.is_busy) + 1;
        memory::reserve_amortized(&mut books.ended, waiting)?;
        books.bytes += job.memory();
        #[expect(clippy::disallowed_methods, reason = "room is reserved")]
        books.jobs.push_back(job);
        drop(books);
        match &self.thread {
            Some(_) => self.inbox.news.notify_all(),
            None => while self.inbox.run_next()? {},
        }
        Ok(())
    }

    /// Takes what has ended.
    pub(super) fn take(&self, to: &mut Vec<Written>) -> Result<()> {
        let mut books = self.inbox.books()?;
        if books.ended.is_empty() {
            return Ok(());
        }
        memory::reserve_amortized(to, books.ended.len())?;
        #[expect(clippy::disallowed_methods, reason = "room is reserved")]
        to.append(&mut books.ended);
        Ok(())
    }

    pub(super) fn drain(&self) -> Result<()> {
        let mut books = self.inbox.books()?;
        while self.thread.is_some() && (books.is_busy || !books.jobs.is_empty()) {
            books = self.inbox.news.wait(books).map_err(|_| Error::out_of_service("the writer of the file"))?;
        }
        Ok(())
    }
}

impl Inbox {
    fn books(&self) -> Result<sys::MutexGuard<'_, Books>> {
        self.books.lock().map_err(|_| Error::out_of_service("the writer of the file"))
    }

    /// Runs a job, if there is one.
    fn run_next(&self) -> Result<bool> {
        let mut books = self.books()?;
        let Some(job) = books.jobs.pop_front() else { return Ok(false) };
        books.is_busy = true;
        drop(books);
        let (layer, ticket, bytes) = (job.layer, job.ticket, job.memory());
        let written = catch_unwind(AssertUnwindSafe(|| job.run())).unwrap_or_else(|_| Written {
            layer,
            ticket,
            heads: Err(Error::out_of_service("the writer of the file")),
            basis: None,
        });
        let mut books = self.books()?;
        (books.is_busy, books.bytes) = (false, books.bytes - bytes);
        #[expect(clippy::disallowed_methods, reason = "Writer::push has made room")]
        books.ended.push(written);
        drop(books);
        self.news.notify_all();
        Ok(true)
    }

    /// Runs jobs until the writer closes.
    fn serve(&self) {
        loop {
            while self.run_next().unwrap_or(false) {}
            let Ok(mut books) = self.books() else { return };
            while books.jobs.is_empty() {
                if books.closes {
                    return;
                }
                match self.news.wait(books) {
                    Ok(again) => books = again,
                    Err(_) => return,
                }
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // A child of a fork has not its parent's thread, which may hold the lock.
        let Some(thread) = self.thread.take().filter(|_| self.process == sys::process()) else { return };
        if let Ok(mut books) = self.inbox.books.lock() {
            books.closes = true;
            // What is not written yet is of a chat that ends.
            books.jobs.clear();
        }
        self.inbox.news.notify_all();
        thread.join();
    }
}
