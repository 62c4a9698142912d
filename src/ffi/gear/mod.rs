//! `mnnkv/gear.h`: stateless calls over per-thread working memory.

mod decode;
mod encode;
mod options;

pub use decode::*;
pub use encode::*;
pub use options::*;

use crate::gear::{Decoder, Encoder};
use crate::status::Result;
use crate::sys::memory;
use crate::sys::thread_slot::ThreadSlot;

static ENCODER: ThreadSlot<Encoder> = ThreadSlot::new(0);
static DECODER: ThreadSlot<Decoder> = ThreadSlot::new(1);

/// Runs `body` on the calling thread's `T`. After a panic the thread gets a new one.
fn with_local<T: Default + 'static, R>(local: &ThreadSlot<T>, body: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
    let mut value = match local.take() {
        Some(value) => value,
        None => memory::boxed(T::default())?,
    };
    let result = body(&mut value);
    local.put(value);
    result
}
