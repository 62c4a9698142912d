//! Chats that are saved, killed and loaded go on as those that never stopped.

use super::chat::Chat;
use super::examples::six_of_ten;
use crate::common::Random;
use crate::gear::Effort;
use crate::host::packing::flash;
use crate::session::tests::shared::Session;
use crate::snapshot::{Access, Snapshot, Storage};
use crate::status::{Result, Status};
use crate::store::Packing;
use crate::sys::storage::Medium;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const LAYERS: usize = 2;
pub(super) const FASTEST: Packing = Packing { effort: Effort::DEFAULT, threads: 1 };

/// A file in memory that outlives its handle, and the bytes that were read of it.
#[derive(Clone, Default)]
pub(super) struct Disk(Arc<Mutex<Vec<u8>>>, Arc<AtomicUsize>);

impl Medium for Disk {
    fn len(&self) -> Result<u64> {
        Ok(self.0.lock().unwrap().len() as u64)
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        to.copy_from_slice(&self.0.lock().unwrap()[offset as usize..][..to.len()]);
        self.1.fetch_add(to.len(), Ordering::Relaxed);
        Ok(())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        let mut bytes = self.0.lock().unwrap();
        let len = bytes.len().max(offset as usize + from.len());
        bytes.resize(len, 0);
        bytes[offset as usize..][..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

impl Disk {
    /// A file with these bytes.
    pub(super) fn of(bytes: Vec<u8>) -> Self {
        Disk(Arc::new(Mutex::new(bytes)), Arc::default())
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }

    pub(super) fn try_open(&self) -> Result<Snapshot> {
        Snapshot::open(self.storage(), Some(b"model"), Access::Append)
    }

    pub(super) fn create(&self) -> Snapshot {
        Snapshot::create(self.storage(), b"model").unwrap()
    }

    pub(super) fn open(&self) -> Snapshot {
        Snapshot::open(self.storage(), Some(b"model"), Access::Append).unwrap()
    }

    fn storage(&self) -> Storage {
        Storage::host("chat", self.clone()).unwrap()
    }
}

fn save(chat: &mut Chat, layer: usize, to: &mut Snapshot) -> u32 {
    let host = &mut chat.hosts[layer];
    let len = host.len();
    chat.session.save(layer as u32, Some(host.cache()), len, &FASTEST, to).unwrap().tokens
}

/// The process ends. Another one has the file, and buffers of another packing, without contents.
fn restart(chat: &mut Chat, config: &Value, from: &Snapshot) {
    chat.session = Session::new(config.to_string().as_bytes(), LAYERS as u32, 1).unwrap();
    chat.session.load(None, from).unwrap();
    for host in &mut chat.hosts {
        let room = host.layout.max_tokens();
        host.move_to_room_for(room);
        let all = host.range(0, host.len());
        crate::layout::zero(&mut host.cache(), all);
    }
}

/// Attention that depends on the position and the step alone.
fn look(chat: &mut Chat, layer: usize, rows: usize, seed: u64) {
    chat.look(layer, rows, |row, at| ((seed + row as u64 * 31 + u64::from(at) * 17) % 13) as f32 + 0.5);
    chat.begin_whole(layer);
    chat.close(layer, 0, 0).unwrap();
}

fn turns(seed: u64) {
    let mut random = Random::new(seed);
    let mut config = six_of_ten();
    if random.once_in(2) {
        for (key, value) in [
            ("kv_lossless_enable", json!(true)),
            ("kv_lossless_runtime_enable", json!(true)),
            ("kv_lossless_runtime_mode", json!("store")),
            ("kv_lossless_scope", json!("front_n_and_h2o_kept")),
            ("kv_lossless_hot_recent_tokens", json!(4)),
            ("kv_lossless_hot_sink_tokens", json!(0)),
            ("kv_lossless_block_tokens", json!(4)),
        ] {
            config[key] = value;
        }
    }
    if random.once_in(4) {
        config = json!({});
    }
    let spec = flash(random.from(1, 3) as u32, random.from(1, 9) as u32, 4, 96);
    let mut steady = Chat::new(config.clone(), LAYERS as u32, spec);
    let mut chat = Chat::new(config.clone(), LAYERS as u32, spec);
    let mut disk = Disk::default();
    let mut file = disk.create();
    let mut is_saved = false;
    for _ in 0..random.from(3, 25) {
        let (rows, seed, what) = (random.from(1, 6), random.next() >> 40, random.below(10));
        for layer in 0..LAYERS {
            let logical = steady.lengths(layer).0;
            if steady.hosts[layer].room() < 8 {
                continue;
            }
            match what {
                0 if logical > 4 => {
                    let cut = logical as i32 / 2;
                    let pairs = [[0, cut], [cut + 2, logical as i32 - cut - 2]];
                    [&mut steady, &mut chat].into_iter().for_each(|chat| chat.keep(layer, &pairs));
                }
                1 | 2 => {
                    let host = &mut chat.hosts[layer];
                    let len = host.len();
                    chat.session.park(layer as u32, Some(host.cache()), len, &FASTEST).unwrap();
                }
                3 if logical > 0 => {
                    let host = &mut chat.hosts[layer];
                    host.write(0);
                    chat.session.rewritten(layer as u32, 0, 1).unwrap();
                }
                4 => [&mut steady, &mut chat].into_iter().for_each(|chat| {
                    chat.session.pin((seed % 40) as u32, rows as u32, seed % 3 > 0).unwrap();
                }),
                _ => [&mut steady, &mut chat].into_iter().for_each(|chat| look(chat, layer, rows, seed)),
            }
            assert_eq!(chat.positions(layer), steady.positions(layer));
        }
        is_saved = match random.below(3) {
            0 => {
                for layer in 0..LAYERS {
                    save(&mut chat, layer, &mut file);
                }
                assert!((0..LAYERS).all(|layer| save(&mut chat, layer, &mut file) == 0), "nothing is new");
                file.commit().unwrap();
                true
            }
            _ => false,
        };
        if is_saved && random.once_in(2) {
            drop(file);
            file = disk.open();
            restart(&mut chat, &config, &file);
        } else if random.once_in(12) {
            file.discard().unwrap();
            if random.once_in(2) {
                disk = Disk::default();
                (file, is_saved) = (disk.create(), false);
            }
        }
    }
    if is_saved {
        restart(&mut chat, &config, &file);
        assert_eq!(save_parked(&chat, &mut file), Ok(0), "a layer that was loaded is in the file");
        (0..LAYERS).for_each(|layer| look(&mut chat, layer, 1, 3));
    }
}

fn save_parked(chat: &Chat, to: &mut Snapshot) -> std::result::Result<u32, Status> {
    let len = chat.lengths(0).1;
    chat.session.save(0, None, len, &FASTEST, to).map(|saved| saved.tokens).map_err(|error| error.status())
}

#[test]
fn a_chat_that_is_loaded_goes_on_as_one_that_never_stopped() {
    for seed in 0..600 {
        let result = std::panic::catch_unwind(|| turns(seed));
        assert!(result.is_ok(), "seed {seed}");
    }
}

#[test]
fn a_layer_that_is_parked_is_saved_without_what_the_file_has() {
    let mut chat = Chat::new(json!({}), LAYERS as u32, flash(2, 8, 4, 96));
    let disk = Disk::default();
    let mut file = disk.create();
    for turn in 0..5 {
        chat.step(0, 10);
        let host = &mut chat.hosts[0];
        let len = host.len();
        chat.session.park(0, Some(host.cache()), len, &FASTEST).unwrap();
        let pieces = file.pieces().len();
        assert_eq!(save(&mut chat, 0, &mut file), 10);
        file.commit().unwrap();
        assert_eq!(file.pieces().len(), pieces + 1, "turn {turn}");
    }
    let tokens: u32 = (0..5).filter_map(|piece| file.piece_tokens(piece)).sum();
    assert_eq!(tokens, 50);
    chat.begin_whole(0);
}

#[test]
fn a_second_park_takes_tokens_that_were_rewritten_and_the_cache_may_go() {
    let mut chat = Chat::new(json!({}), LAYERS as u32, flash(2, 8, 4, 96));
    chat.step(0, 20);
    for _ in 0..2 {
        let host = &mut chat.hosts[0];
        let len = host.len();
        chat.session.park(0, Some(host.cache()), len, &FASTEST).unwrap();
        host.write(7);
        chat.session.rewritten(0, 7, 1).unwrap();
    }
    let host = &mut chat.hosts[0];
    let len = host.len();
    assert!(chat.session.park(0, Some(host.cache()), len, &FASTEST).unwrap().raw_bytes > 0);
    host.move_to_room_for(96);
    let all = host.range(0, len);
    crate::layout::zero(&mut host.cache(), all);
    chat.begin_whole(0);
}

#[test]
fn a_save_writes_new_tokens_alone_and_an_edit_writes_none() {
    let mut chat = Chat::new(json!({}), LAYERS as u32, flash(2, 8, 4, 96));
    let mut file = Disk::default().create();
    chat.step(0, 20);
    assert_eq!(save(&mut chat, 0, &mut file), 20);
    chat.step(0, 3);
    chat.keep(0, &[[0, 5], [9, 14]]);
    assert_eq!(save(&mut chat, 0, &mut file), 3);
    file.commit().unwrap();
    chat.session.reset(Some(0)).unwrap();
    assert_eq!(chat.lengths(0), (0, 0));
    chat.session.load(Some(0), &file).unwrap();
    assert_eq!(chat.lengths(0), (19, 19));
    chat.begin_whole(0);
}

#[test]
fn a_save_reads_each_piece_of_a_hosts_bytes_once() {
    let mut chat = Chat::new(json!({}), LAYERS as u32, flash(2, 8, 4, 96));
    let disk = Disk::default();
    let mut file = disk.create();
    for _ in 0..5 {
        chat.step(0, 10);
        save(&mut chat, 0, &mut file);
        file.commit().unwrap();
    }
    file = disk.open();
    for times in [1, 0] {
        disk.1.store(0, Ordering::Relaxed);
        assert_eq!(save(&mut chat, 0, &mut file), 0);
        let (read, pieces) = (disk.1.load(Ordering::Relaxed) as u64, file.usage().unwrap().pieces);
        assert_eq!(read / pieces, times, "{read} bytes of {pieces}");
    }
}

#[test]
fn a_layer_that_is_saved_empty_takes_the_place_of_one_that_was_not_committed() {
    let mut chat = Chat::new(json!({}), LAYERS as u32, flash(2, 8, 4, 96));
    let mut file = Disk::default().create();
    chat.step(0, 7);
    save(&mut chat, 0, &mut file);
    chat.session.load(None, &file).unwrap();
    assert_eq!(chat.session.save(0, None, 0, &FASTEST, &mut file).unwrap().tokens, 0);
    file.commit().unwrap();
    chat.session.load(None, &file).unwrap();
    assert_eq!(chat.lengths(0), (0, 0));
}
