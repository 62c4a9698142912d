//! A host: a session, a snapshot, and every token of each layer.

use super::config::Config;
use super::disk::Disk;
use crate::bodies::given::Given;
use crate::bodies::packing::{Dense, Packing, flash};
use crate::bodies::random::Random;
use mnnkv::dtype::Dtype;
use mnnkv::ffi::cache::{mnnkv_cache, mnnkv_layout};
use mnnkv::ffi::session::*;
use mnnkv::ffi::snapshot::*;
use mnnkv::ffi::status::{MNNKV_INVALID_ARGUMENT as INVALID, MNNKV_OK as OK, mnnkv_last_error, mnnkv_status};
use mnnkv::layout::Spec;
use mnnkv::status::Status;
use std::ffi::CStr;
use std::ptr::null_mut;
use std::rc::Rc;

pub const LAYERS: usize = 2;
pub const LANES: u32 = 2;
/// The most tokens of a layer's chat.
pub const MOST_TOKENS: usize = 240;

/// The bits of a token.
pub type Token = Rc<Dense>;

/// Calls an export, whose arguments are valid as session.h asks for.
macro_rules! c {
    ($name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: handles are alive, and pointers lead to as much memory as the header asks for.
        unsafe { $name($($argument),*) }
    };
}
pub(in crate::bodies) use c;

/// The state that a load brings back.
#[derive(Clone, Default)]
struct Saved {
    tokens: Vec<Token>,
    pins: Vec<bool>,
    positions: Vec<u32>,
}

/// An open step.
#[derive(Default)]
pub struct Step {
    /// What begin has said.
    pub begun: mnnkv_step,
    pub appended: Vec<Token>,
    /// Query heads and rows, all of whose sums were given.
    pub scored: Option<(u32, u32)>,
    /// Wrong sums were taken.
    pub is_spoiled: bool,
}

pub struct Layer {
    pub spec: Spec,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    /// Every token of the chat.
    pub tokens: Vec<Token>,
    /// Pinned positions, those of tokens to come as well.
    pub pins: Vec<bool>,
    /// Tokens in the cache, those of an open step left out.
    pub len: u32,
    pub step: Option<Step>,
    /// The buffers may be other ones.
    pub is_parked: bool,
    given: Option<Saved>,
    committed: Option<Saved>,
}

pub struct Chat {
    pub config: Config,
    pub session: *mut mnnkv_session,
    pub snapshot: *mut mnnkv_snapshot,
    pub layers: Vec<Layer>,
    pub random: Random,
    /// A disk has failed, and files may lack what it lost.
    pub is_faulty: bool,
    /// Calls are printed: MNNKV_FUZZ_TRACE is set.
    pub is_traced: bool,
    /// All that the session may still use; the last one is the snapshot's.
    #[allow(clippy::vec_box)] // their functions have their addresses
    disks: Vec<Box<Disk>>,
}

/// Asserts that a right call has succeeded.
#[track_caller]
pub fn right(status: mnnkv_status) {
    // SAFETY: the text is never NULL, and valid until the next call.
    assert_eq!(status, OK, "{}", unsafe { CStr::from_ptr(mnnkv_last_error()) }.to_string_lossy());
}

pub fn size<T>() -> u32 {
    size_of::<T>() as u32
}

/// The layout of a cache of floats, without gaps, as the C ABI has it.
pub fn layout(spec: &Spec) -> mnnkv_layout {
    let Spec { key, value, kv_heads, head_dim, l_pack, h_pack, flash_block, max_tokens, .. } = *spec;
    mnnkv_layout {
        struct_size: size::<mnnkv_layout>(),
        key_dtype: key.words() as u32,
        value_dtype: value.words() as u32,
        kv_heads,
        head_dim,
        e_pack: 0,
        l_pack,
        h_pack,
        flash_block,
        max_tokens,
        key_head_stride: 0,
        value_head_stride: 0,
        key_token_stride: 0,
        value_token_stride: 0,
        int8: std::ptr::null(),
    }
}

/// An empty snapshot on a disk, which must outlive it.
pub fn snapshot_on(disk: &Disk) -> *mut mnnkv_snapshot {
    let io = disk.io();
    let options = mnnkv_snapshot_options {
        struct_size: size::<mnnkv_snapshot_options>(),
        abi_version: 1,
        path: std::ptr::null(),
        io: &io,
        fingerprint: std::ptr::null(),
        fingerprint_len: 0,
        access: MNNKV_SNAPSHOT_APPEND,
        reserved: 0,
    };
    let mut snapshot = null_mut();
    right(c!(mnnkv_snapshot_create(&options, &mut snapshot)));
    snapshot
}

impl Layer {
    fn any(given: &mut Given<'_>) -> Self {
        let dtypes = [Dtype::F16, Dtype::F32, Dtype::Bf16];
        let flash = flash(given.from(1, 2) as u32, given.from(1, 9) as u32, 1, 1);
        let spec = Spec { key: given.pick(&dtypes).into(), value: given.pick(&dtypes).into(), ..flash };
        let mut layer = Layer {
            spec,
            key: Vec::new(),
            value: Vec::new(),
            tokens: Vec::new(),
            pins: Vec::new(),
            len: 0,
            step: None,
            is_parked: true,
            given: None,
            committed: None,
        };
        layer.relayout(16, given);
        layer
    }

    pub fn packing(&self) -> Packing {
        Packing { spec: self.spec }
    }

    /// Tokens in the cache, those of an open step included.
    pub fn whole_len(&self) -> usize {
        self.len as usize + self.step.as_ref().map_or(0, |step| step.appended.len())
    }

    /// Copies what is in the cache to another one, packed anyhow.
    pub fn relayout(&mut self, room: usize, given: &mut Given<'_>) {
        let tokens: Vec<usize> = (0..self.whole_len()).collect();
        let keeps = !self.is_parked || self.step.is_some();
        let rows = keeps.then(|| self.packing().rows(&self.key, &self.value, &tokens));
        self.spec = Spec {
            l_pack: given.pick(&[1, 2, 4]),
            h_pack: given.pick(&[1, 4, 8]),
            flash_block: given.pick(&[1, 4, 16, 64]),
            max_tokens: room.max(tokens.len()).max(1) as u32,
            ..self.spec
        };
        let (key, value) = self.packing().bytes();
        (self.key, self.value) = (vec![0; key], vec![0; value]);
        if let Some(rows) = rows {
            self.packing().put(&mut self.key, &mut self.value, &tokens, &rows);
        }
    }

    pub fn layout(&self) -> mnnkv_layout {
        layout(&self.spec)
    }

    /// The cache with `kv_len` tokens, for calls while `layout` lives.
    pub fn cache(&mut self, layout: &mnnkv_layout, kv_len: usize) -> mnnkv_cache {
        mnnkv_cache {
            struct_size: size::<mnnkv_cache>(),
            layout,
            key: self.key.as_mut_ptr().cast(),
            value: self.value.as_mut_ptr().cast(),
            kv_len: kv_len as u32,
        }
    }

    /// Writes a token to a place.
    pub fn put(&mut self, at: usize, token: &Token) {
        let packing = self.packing();
        packing.put(&mut self.key, &mut self.value, &[at], token);
    }

    /// Puts the layer back to what a snapshot has.
    fn load(&mut self, saved: Saved) {
        (self.len, self.is_parked, self.step) = (saved.positions.len() as u32, true, None);
        (self.tokens, self.pins) = (saved.tokens, saved.pins);
        // With room for the tokens, also before the next begin.
        self.spec.max_tokens = self.spec.max_tokens.max(self.len);
        let (key, value) = self.packing().bytes();
        (self.key, self.value) = (vec![0; key], vec![0; value]);
    }
}

impl Chat {
    /// A session for a config, which may be refused.
    pub fn new(given: &mut Given<'_>) -> Option<Self> {
        let config = Config::any(given);
        let layers = (0..LAYERS).map(|_| Layer::any(given)).collect();
        let mut chat = Chat {
            session: null_mut(),
            snapshot: null_mut(),
            layers,
            random: Random::new(given.byte().into()),
            is_faulty: false,
            is_traced: std::env::var_os("MNNKV_FUZZ_TRACE").is_some(),
            disks: Vec::new(),
            config,
        };
        if chat.is_traced {
            eprintln!("{}", chat.config.json);
        }
        if chat.make_session() == INVALID {
            return None;
        }
        chat.snapshot = chat.make_snapshot();
        Some(chat)
    }

    fn make_session(&mut self) -> mnnkv_status {
        let options = mnnkv_session_options {
            struct_size: size::<mnnkv_session_options>(),
            abi_version: 1,
            layers: LAYERS as u32,
            lanes: LANES,
            config_json: self.config.json.as_ptr().cast(),
            config_len: self.config.json.len(),
            defaults_json: std::ptr::null(),
            defaults_len: 0,
            attends: 0,
            reserved: 0,
        };
        let status = c!(mnnkv_session_create(&options, &mut self.session));
        assert!(status == OK || status == INVALID);
        status
    }

    /// An empty snapshot on a disk of its own.
    fn make_snapshot(&mut self) -> *mut mnnkv_snapshot {
        self.disks.push(Box::default());
        snapshot_on(self.disk())
    }

    pub fn disk(&self) -> &Disk {
        self.disks.last().expect("each snapshot has one")
    }

    pub fn is_closed(&self) -> bool {
        self.layers.iter().all(|layer| layer.step.is_none())
    }

    /// New bits of a token: plain ones compress, others are any.
    pub fn token(&mut self, layer: usize, is_plain: bool) -> Token {
        let Layer { spec, .. } = &self.layers[layer];
        let elements = (spec.kv_heads * spec.head_dim) as usize;
        let mut row = |dtype: Dtype| -> Vec<u8> {
            let shift = if is_plain { 60 } else { 56 };
            (0..elements * dtype.bytes()).map(|_| (self.random.next() >> shift) as u8).collect()
        };
        Rc::new((row(spec.key.words()), row(spec.value.words())))
    }

    /// The logical positions of a layer's cache, in physical order.
    pub fn positions(&self, layer: usize) -> Vec<u32> {
        let (mut pairs, mut count) = ([0i32; 2 * MOST_TOKENS], 0);
        right(c!(mnnkv_session_positions(
            self.session,
            layer as u32,
            MNNKV_IN_CACHE,
            pairs.as_mut_ptr(),
            MOST_TOKENS,
            &mut count
        )));
        pairs[..2 * count]
            .as_chunks::<2>()
            .0
            .iter()
            .flat_map(|[first, len]| *first as u32..(*first + *len) as u32)
            .collect()
    }

    pub fn lengths(&self, layer: usize) -> (u32, u32) {
        let (mut logical, mut physical) = (0, 0);
        right(c!(mnnkv_session_lengths(self.session, layer as u32, &mut logical, &mut physical)));
        (logical, physical)
    }

    /// Lengths and positions are those of the model, and the cache has these tokens; or zeros in the place of some,
    /// where they `may_be_gone`.
    pub fn check(&self, layer: usize, may_be_gone: bool) {
        let positions = self.positions(layer);
        let mine = &self.layers[layer];
        let logical = mine.tokens.len() as u32;
        assert_eq!(self.lengths(layer), (logical, mine.len));
        assert_eq!(positions.len(), mine.len as usize);
        assert!(positions.is_sorted_by(|a, b| a < b) && positions.last().is_none_or(|last| *last < logical));
        assert!(layer >= self.config.start || mine.len == logical, "the layer evicts nothing");
        let appended = mine.step.iter().flat_map(|step| &step.appended);
        let expected = positions.iter().map(|at| &mine.tokens[*at as usize]).chain(appended);
        for (at, token) in expected.enumerate() {
            let rows = mine.packing().rows(&mine.key, &mine.value, &[at]);
            let heads = mine.spec.kv_heads as usize;
            for (name, now, expected) in [("K", &rows.0, &token.0), ("V", &rows.1, &token.1)] {
                let each = now.chunks(now.len() / heads).zip(expected.chunks(expected.len() / heads));
                let is_right = |(now, expected): (&[u8], &[u8])| {
                    now == expected || may_be_gone && now.iter().all(|byte| *byte == 0)
                };
                assert!(each.into_iter().all(is_right), "layer {layer}: {name} of token {at}");
            }
        }
    }

    /// Saves a layer, which becomes part of the snapshot with the next commit.
    pub fn saved(&mut self, layer: usize) {
        let positions = self.positions(layer);
        let mine = &mut self.layers[layer];
        // A layer that never had tokens is in no file, nor are its pins.
        let pins = if mine.tokens.is_empty() { Vec::new() } else { mine.pins.clone() };
        mine.given = Some(Saved { tokens: mine.tokens.clone(), pins, positions });
    }

    /// All that was saved is committed.
    pub fn settle(&mut self) {
        self.layers.iter_mut().for_each(|layer| layer.committed = layer.given.clone());
    }

    /// Loads the snapshot into the session, or into a new one, as another process does.
    pub fn load(&mut self, is_new: bool) {
        if is_new {
            // SAFETY: the handle is not used again.
            unsafe { mnnkv_session_destroy(self.session) };
            right(self.make_session());
            self.layers.iter_mut().for_each(|layer| {
                layer.load(Saved::default());
            });
        }
        let failures = self.disk().failures.get();
        let status = c!(mnnkv_snapshot_load(self.snapshot, self.session, MNNKV_ALL_LAYERS));
        if status == OK {
            for layer in 0..LAYERS {
                let saved = self.layers[layer].committed.clone().unwrap_or_default();
                assert_eq!(self.positions(layer), saved.positions);
                self.layers[layer].load(saved);
            }
        } else {
            assert!(failures > 0 || self.is_faulty);
            self.io_failed(status);
        }
        (0..LAYERS).for_each(|layer| self.check_lengths_after_load(layer));
    }

    fn check_lengths_after_load(&self, layer: usize) {
        let mine = &self.layers[layer];
        assert_eq!(self.lengths(layer), (mine.tokens.len() as u32, mine.len));
    }

    /// Only disks that fail lead to this.
    #[track_caller]
    pub fn io_failed(&self, status: mnnkv_status) {
        assert!(self.is_faulty, "status {status} without a failure of the disk");
        let allowed = [Status::Io, Status::Corrupt].map(|status| status as mnnkv_status);
        assert!(allowed.contains(&status), "status {status}");
    }

    /// Every layer begins once more.
    pub fn finish(mut self) {
        for layer in 0..LAYERS {
            let mut nothing = Given::new(&[]);
            if self.layers[layer].step.is_some() {
                self.abort(layer);
            }
            self.begin(layer, 1, &mut nothing);
            self.abort(layer);
        }
    }
}

impl Drop for Chat {
    fn drop(&mut self) {
        // SAFETY: the handles are not used again; disks are dropped after them.
        unsafe {
            mnnkv_session_destroy(self.session);
            mnnkv_snapshot_destroy(self.snapshot);
        }
    }
}
