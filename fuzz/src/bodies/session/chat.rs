//! A host: a session, its chat file, and every token of each layer.

use super::config::Config;
use crate::bodies::given::Given;
use crate::bodies::packing::{Dense, Packing, flash};
use crate::bodies::random::Random;
use mnnkv::dtype::Dtype;
use mnnkv::ffi::cache::{mnnkv_cache, mnnkv_layout};
use mnnkv::ffi::session::*;
use mnnkv::ffi::status::{
    MNNKV_INVALID_ARGUMENT as INVALID, MNNKV_NOT_FOUND, MNNKV_OK as OK, mnnkv_last_error, mnnkv_status,
};
use mnnkv::layout::Spec;
use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};
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

/// What an open brings back of a layer.
#[derive(Clone, Default)]
struct Saved {
    tokens: Vec<Token>,
    pins: Vec<bool>,
    positions: Vec<u32>,
    is_known: bool,
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
    /// A call has had its cache: a save has the layer.
    pub is_known: bool,
    /// The tokens are in the file alone: the buffers may be other ones.
    pub is_away: bool,
    saved: Option<Saved>,
}

/// A path of its own in the temporary folder, at which nothing is.
pub struct ChatPath(pub CString);

impl ChatPath {
    pub fn new() -> Self {
        let path = std::env::temp_dir().join(format!("mnnkv-fuzz-{}.kv", std::process::id()));
        let path = ChatPath(CString::new(path.to_str().expect("Unicode")).expect("no zero"));
        path.remove();
        path
    }

    fn remove(&self) {
        let _ = std::fs::remove_file(self.0.to_str().expect("Unicode"));
    }
}

impl Drop for ChatPath {
    fn drop(&mut self) {
        self.remove();
    }
}

pub struct Chat {
    pub config: Config,
    pub session: *mut mnnkv_session,
    pub layers: Vec<Layer>,
    pub random: Random,
    /// Calls are printed: MNNKV_FUZZ_TRACE is set.
    pub is_traced: bool,
    /// A save or an open has given the session its file.
    pub has_file: bool,
    pub path: ChatPath,
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
            is_known: false,
            is_away: true,
            saved: None,
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
        let keeps = !self.is_away || self.step.is_some();
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

    /// Puts the layer back to what the file has.
    fn load(&mut self, saved: Saved) {
        (self.len, self.is_away, self.step) = (saved.positions.len() as u32, true, None);
        self.is_known = saved.is_known;
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
            layers,
            random: Random::new(given.byte().into()),
            is_traced: std::env::var_os("MNNKV_FUZZ_TRACE").is_some(),
            has_file: false,
            path: ChatPath::new(),
            config,
        };
        if chat.is_traced {
            eprintln!("{}", chat.config.json);
        }
        if chat.make_session() == INVALID {
            return None;
        }
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
            fingerprint: c"fuzz".as_ptr().cast(),
            fingerprint_len: 4,
        };
        let status = c!(mnnkv_session_create(&options, &mut self.session));
        assert!(status == OK || status == INVALID);
        status
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

    /// The path for a save or an open: NULL where the session knows its file.
    fn path(&self, given: &mut Given<'_>) -> *const std::ffi::c_char {
        if self.has_file && given.flag() { null() } else { self.path.0.as_ptr() }
    }

    /// Saves the chat. A second save has nothing to write.
    pub fn save(&mut self, given: &mut Given<'_>) {
        let (session, path) = (self.session, self.path(given));
        let layouts: Vec<mnnkv_layout> = self.layers.iter().map(Layer::layout).collect();
        let caches = self.layers.iter_mut().zip(&layouts).map(|(mine, layout)| {
            let len = mine.len as usize;
            let is_empty = len == 0 || mine.is_away && given.flag();
            let cache = mine.cache(layout, len);
            let none = mnnkv_cache { layout: null(), key: null_mut(), value: null_mut(), ..cache };
            if is_empty { none } else { cache }
        });
        let (caches, mut written): (Vec<mnnkv_cache>, u64) = (caches.collect(), 0);
        right(c!(mnnkv_session_save(session, path, caches.as_ptr(), LAYERS as u32, &mut written)));
        self.has_file = true;
        for layer in 0..LAYERS {
            self.check(layer, true);
            let positions = self.positions(layer);
            let mine = &mut self.layers[layer];
            let saved =
                Saved { tokens: mine.tokens.clone(), pins: mine.pins.clone(), positions, is_known: mine.is_known };
            // A layer that no call had a cache of is in no file, nor are its pins.
            mine.saved = Some(if mine.is_known { saved } else { Saved::default() });
        }
    }

    /// Opens the chat that was saved last, in this session or in a new one, as another process does.
    pub fn open(&mut self, given: &mut Given<'_>) {
        if given.flag() {
            // SAFETY: the handle is not used again.
            unsafe { mnnkv_session_destroy(self.session) };
            right(self.make_session());
            self.has_file = false;
            self.layers.iter_mut().for_each(|layer| layer.load(Saved::default()));
        }
        let status = c!(mnnkv_session_open(self.session, self.path(given)));
        if self.layers[0].saved.is_none() {
            return assert!(status == MNNKV_NOT_FOUND, "{status}");
        }
        right(status);
        self.has_file = true;
        for layer in &mut self.layers {
            layer.load(layer.saved.clone().unwrap_or_default());
        }
        for (layer, mine) in self.layers.iter().enumerate() {
            assert_eq!(self.lengths(layer), (mine.tokens.len() as u32, mine.len));
            assert_eq!(Some(self.positions(layer)), mine.saved.as_ref().map(|saved| saved.positions.clone()));
        }
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
        // SAFETY: the handle is not used again.
        unsafe { mnnkv_session_destroy(self.session) };
    }
}
