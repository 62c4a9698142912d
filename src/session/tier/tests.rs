use super::*;
use crate::file::Medium;
use crate::host::packing::flash;
use crate::layout::{Cache, Layout};
use crate::session::{Host, Session};
use crate::sys::memory;
use std::sync::Arc;

/// The bytes of a disk, and whether it is shut.
type Shut = (std::sync::Mutex<(Vec<u8>, bool)>, std::sync::Condvar);

/// A disk in memory whose writes wait while it is shut.
#[derive(Clone, Default)]
struct Gate(Arc<Shut>);

impl Gate {
    fn shut(&self, shut: bool) {
        self.0.0.lock().unwrap().1 = shut;
        self.0.1.notify_all();
    }
}

impl Medium for Gate {
    fn len(&self) -> Result<u64> {
        Ok(self.0.0.lock().unwrap().0.len() as u64)
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        to.copy_from_slice(&self.0.0.lock().unwrap().0[offset as usize..][..to.len()]);
        Ok(())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        let mut disk = self.0.1.wait_while(self.0.0.lock().unwrap(), |(_, shut)| *shut).unwrap();
        let end = offset as usize + from.len();
        let len = disk.0.len().max(end);
        disk.0.resize(len, 0);
        disk.0[offset as usize..end].copy_from_slice(from);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.0.0.lock().unwrap().0.truncate(len as usize);
        Ok(())
    }
}

/// A chat of one layer with a file on such a disk, which a thread writes.
struct Chat {
    session: Session,
    layout: Layout,
    key: Vec<u8>,
    value: Vec<u8>,
    len: u32,
    gate: Gate,
}

impl Drop for Chat {
    /// The thread must end where a test has failed.
    fn drop(&mut self) {
        self.gate.shut(false);
    }
}

impl Chat {
    fn new(gate: &Gate) -> Self {
        let layout = Layout::new(&flash(2, 24, 4, 900)).unwrap();
        let path = std::env::temp_dir().join(format!("mnnkv-gate-{}", std::process::id()));
        let config = format!(r#"{{"kv_memory_bytes": 150000, "kv_memory_file": {path:?}, "kv_memory_wait_us": 0}}"#);
        let session = Session::with_host(config.as_bytes(), b"", 1, 1, Host { attends: true }).unwrap();
        {
            let mut state = session.state().unwrap();
            let tier = state.tier.as_mut().unwrap();
            tier.file = Some(ChatFile::create(Storage::host("gate", gate.clone()).unwrap(), b"").unwrap());
            tier.writer.runs_inline = false;
        }
        let (key, value) = (vec![0x11; layout.key_bytes()], vec![0x11; layout.value_bytes()]);
        Chat { session, layout, key, value, len: 0, gate: gate.clone() }
    }

    fn step(&mut self, tokens: u32) {
        let Chat { session, layout, key, value, len, .. } = self;
        *len = session.begin(0, Some(Cache::new(layout, key, value).unwrap()), *len).unwrap().kv_len + tokens;
        session.end(0, 0, 0, Cache::new(layout, key, value).unwrap(), *len).unwrap();
    }
}

/// A chat of 40 steps, of which the disk has written nothing.
fn behind_a_shut_gate() -> (Gate, Chat) {
    let gate = Gate::default();
    let mut chat = Chat::new(&gate);
    gate.shut(true);
    for _ in 0..40 {
        chat.step(50);
    }
    (gate, chat)
}

#[test]
fn no_step_waits_for_a_disk_that_does_not_write_and_nothing_is_dropped() {
    let (gate, chat) = behind_a_shut_gate();
    let stats = chat.session.memory_stats().unwrap();
    assert!(stats.bytes > stats.budget_bytes && stats.file_tokens == 0, "{stats:?}");
    assert!(stats.late_writes > 0 && stats.over_steps > 0 && stats.dropped_tokens == 0, "{stats:?}");
    gate.shut(false);
    chat.session.trim(150_000).unwrap();
    let after = chat.session.memory_stats().unwrap();
    assert!(after.bytes <= after.budget_bytes && after.file_tokens > 300 && after.dropped_tokens == 0, "{after:?}");
}

#[test]
fn a_session_that_ends_does_not_wait_for_blocks_that_no_write_has_begun() {
    let (gate, chat) = behind_a_shut_gate();
    drop(chat);
    assert_eq!(gate.len().unwrap(), 0, "a file without a save goes");
}

#[test]
fn blocks_that_memory_is_refused_for_stay_where_they_are() {
    let gate = Gate::default();
    let mut chat = Chat::new(&gate);
    for round in 0..36 {
        memory::shortage::set(u32::from(round % 2 == 0) * 4, round);
        let Chat { session, layout, key, value, len, .. } = &mut chat;
        let begun = session.begin(0, Some(Cache::new(layout, key, value).unwrap()), *len);
        memory::shortage::set(0, 0);
        if let Ok(begun) = begun {
            *len = begun.kv_len + 60;
            session.end(0, 0, 0, Cache::new(layout, key, value).unwrap(), *len).unwrap();
        }
    }
    chat.session.trim(150_000).unwrap();
    let stats = chat.session.memory_stats().unwrap();
    assert!(stats.file_tokens > 100 && stats.dropped_tokens == 0 && stats.bytes <= stats.budget_bytes, "{stats:?}");
}
