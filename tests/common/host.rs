//! One layer of a host: packed buffers that move between calls, and the contents that each token must have. Reads and
//! writes by the oracle alone.
#![allow(dead_code)]

#[path = "buffer.rs"]
mod buffer;
#[path = "packing.rs"]
pub mod packing;

use crate::common::Random;
use buffer::Buffer;
use mnnkv::dtype::Dtype;
use mnnkv::layout::{self, Cache, CacheRef, Head, Layout, Pair, Spec, TokenRange};
use packing::{Both, Dense, Packing};
use std::ops::Range;

/// A token in the cache.
#[derive(Clone)]
pub struct Token {
    /// `[head][dim]`
    rows: Dense,
    /// It was cold at the end of some step, and may have been compressed since.
    pub cold: bool,
}

pub struct Host {
    pub layout: Layout,
    pub packing: Packing,
    pub key: Buffer,
    pub value: Buffer,
    /// The first byte of each element, `[head][token][dim]`.
    places: Vec<Both<usize>>,
    /// All bits of the tokens' elements, in the order of the buffers.
    real: Dense,
    /// The same with their padding, which a release may zero. The rest is gaps.
    padded: Dense,
    /// The bytes that the host left where no token is, for a buffer of any size that it has had.
    filling: Vec<u8>,
    pub tokens: Vec<Token>,
    /// Contents are of few different bytes, and compress.
    pub plain: bool,
    random: Random,
}

impl Host {
    /// Empty buffers.
    pub fn new(spec: Spec, seed: u64) -> Self {
        let mut host = Host {
            layout: Layout::new(&spec).unwrap(),
            packing: Packing { spec },
            key: Buffer::default(),
            value: Buffer::default(),
            places: Vec::new(),
            real: Dense::default(),
            padded: Dense::default(),
            filling: Vec::new(),
            tokens: Vec::new(),
            plain: true,
            random: Random::new(seed),
        };
        host.allocate(spec);
        host
    }

    /// Empty buffers of any kind, for a few tokens.
    pub fn any(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let dtypes = [Dtype::F16, Dtype::F32, Dtype::Bf16];
        let spec = Spec {
            key: random.pick(&dtypes).into(),
            value: random.pick(&dtypes).into(),
            key_head_stride: u64::from(random.once_in(4)),
            value_head_stride: u64::from(random.once_in(4)),
            ..packing::flash(random.from(1, 3) as u32, random.from(1, 12) as u32, 1, 1)
        };
        let room = random.from(8, 40);
        let mut host = Host::new(packed_anyhow(spec, room, &mut random), random.next());
        host.plain = !random.once_in(8);
        host
    }

    pub fn spec(&self) -> Spec {
        self.packing.spec
    }

    /// Buffers of this layout, filled with bytes that must stay where no token is.
    fn allocate(&mut self, spec: Spec) {
        (self.layout, self.packing) = (Layout::new(&spec).unwrap(), Packing { spec });
        let (key, value) = self.packing.bytes();
        let known = self.filling.len();
        self.filling.extend((known..key.max(value)).map(|at| (at % 251) as u8 ^ 0xA5));
        (self.key, self.value) = (Buffer::new(&self.filling[..key]), Buffer::new(&self.filling[..value]));

        let all: Vec<usize> = (0..self.layout.max_tokens()).collect();
        let (kb, vb) = (spec.key.words().bytes(), spec.value.words().bytes());
        self.real = (vec![0; key], vec![0; value]);
        self.places.clear();
        self.packing.for_each(&all, |k, v| {
            self.real.0[k..k + kb].fill(0xFF);
            self.real.1[v..v + vb].fill(0xFF);
            self.places.push((k, v));
        });
        self.padded = (vec![0xFF; key], vec![0xFF; value]);
        self.packing.release(&mut self.padded.0, &mut self.padded.1, 0..all.len());
        self.padded.0.iter_mut().chain(&mut self.padded.1).for_each(|byte| *byte = !*byte);
    }

    /// A layer with heads, dims or a type that this one's cache cannot have, and with room for as many tokens.
    pub fn impostor(&mut self) -> Self {
        let mut spec = self.spec();
        match self.random.below(4) {
            0 => spec.kv_heads += 1,
            1 => spec.head_dim += 1,
            2 => spec.key = if spec.key.words() == Dtype::F16 { Dtype::Bf16 } else { Dtype::F16 }.into(),
            _ => spec.value = if spec.value.words() == Dtype::F32 { Dtype::F16 } else { Dtype::F32 }.into(),
        }
        (spec.key_head_stride, spec.value_head_stride) = (0, 0);
        Host::new(spec, 1)
    }

    /// The cache for a call. It may lie elsewhere than in the call before.
    pub fn cache(&mut self) -> Cache<'_> {
        self.key.maybe_move();
        self.value.maybe_move();
        Cache::new(&self.layout, &mut self.key, &mut self.value).unwrap()
    }

    /// The cache where it lies, to read.
    pub fn cache_ref(&self) -> CacheRef<'_> {
        CacheRef::new(&self.layout, &self.key, &self.value).unwrap()
    }

    pub fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    pub fn room(&self) -> usize {
        self.layout.max_tokens() - self.tokens.len()
    }

    pub fn range(&self, begin: u32, count: u32) -> TokenRange {
        self.layout.range(begin, count).unwrap()
    }

    /// Appends tokens. There must be room.
    pub fn append(&mut self, count: usize) {
        for at in self.tokens.len()..self.tokens.len() + count {
            self.write(at);
        }
    }

    /// Writes new contents to a token, or to the one behind the last.
    pub fn write(&mut self, at: usize) {
        let shift = if self.plain { 60 } else { 56 };
        let mut row = |len: usize| (0..len).map(|_| (self.random.next() >> shift) as u8).collect::<Vec<u8>>();
        let rows = (row(self.layout.dense_key_bytes(1)), row(self.layout.dense_value_bytes(1)));
        self.put(at, rows);
    }

    /// Appends a token with this contents, `[head][dim]`.
    pub fn push(&mut self, rows: Dense) {
        self.put(self.tokens.len(), rows);
    }

    /// The cache has these tokens now, in this order. The buffers are the library's to edit.
    pub fn arrange(&mut self, tokens: Vec<Dense>) {
        self.tokens = tokens.into_iter().map(|rows| Token { rows, cold: false }).collect();
    }

    /// Writes this contents, `[head][dim]`, to a token, or to the one behind the last.
    pub fn put(&mut self, at: usize, rows: Dense) {
        self.packing.put(&mut self.key, &mut self.value, &[at], &rows);
        match self.tokens.get_mut(at) {
            Some(token) => token.rows = rows,
            None => self.tokens.push(Token { rows, cold: false }),
        }
    }

    /// Removes the tokens that are not in the mask. The buffers are the library's to edit.
    pub fn keep(&mut self, mask: impl IntoIterator<Item = bool>) {
        let mut mask = mask.into_iter();
        self.tokens.retain(|_| mask.next().unwrap());
        assert!(mask.next().is_none());
    }

    /// Moves these tokens together.
    pub fn compact(&mut self, pairs: &[Pair]) {
        let len = self.len();
        let mut cache = Cache::new(&self.layout, &mut self.key, &mut self.value).unwrap();
        layout::compact(&mut cache, 0, pairs, len).unwrap();
        self.keep((0..len as i32).map(|at| pairs.iter().any(|p| (p[0]..p[0] + p[1]).contains(&at))));
    }

    /// Other buffers, packed anyhow, with the same tokens: copied as a host does, raw bytes that may be zeros.
    pub fn move_to_room_for(&mut self, max_tokens: usize) {
        let tokens: Vec<usize> = (0..self.tokens.len()).collect();
        let rows = self.dense(0..tokens.len());
        let spec = packed_anyhow(self.spec(), max_tokens, &mut self.random);
        self.allocate(spec);
        self.packing.put(&mut self.key, &mut self.value, &tokens, &rows);
    }

    /// The bytes of tokens as they are now.
    pub fn dense(&self, tokens: Range<usize>) -> Dense {
        let Spec { key, value, kv_heads, head_dim, max_tokens, .. } = self.spec();
        let (kb, vb, dims, max) = (key.words().bytes(), value.words().bytes(), head_dim as usize, max_tokens as usize);
        let mut rows = Dense::default();
        for head in 0..kv_heads as usize {
            for (k, v) in &self.places[(head * max + tokens.start) * dims..(head * max + tokens.end) * dims] {
                rows.0.extend_from_slice(&self.key[*k..*k + kb]);
                rows.1.extend_from_slice(&self.value[*v..*v + vb]);
            }
        }
        rows
    }

    /// All that there is room for.
    pub fn all(&self) -> Dense {
        self.dense(0..self.layout.max_tokens())
    }

    /// Checks every byte of both buffers. Tokens read as they were written, or as zeros where they `may_be_gone`. Tokens
    /// from `free` on, and bytes of no token, are as they were `before`.
    pub fn check(&self, before: &Dense, free: usize, may_be_gone: impl Fn(usize, &Token) -> bool) {
        let now = self.all();
        let (heads, max) = (self.spec().kv_heads as usize, self.layout.max_tokens());
        let planes =
            [(&now.0, &before.0, (|t| &t.rows.0) as fn(&Token) -> &Vec<u8>), (&now.1, &before.1, |t| &t.rows.1)];
        for (name, (now, before, of)) in ["K", "V"].into_iter().zip(planes) {
            let len = now.len() / heads / max;
            for head in 0..heads {
                let rows = &now[head * max * len..][..max * len];
                for (at, (token, row)) in self.tokens.iter().zip(rows.chunks_exact(len)).enumerate() {
                    let is_gone = || may_be_gone(at, token) && row.iter().all(|b| *b == 0);
                    assert!(*row == of(token)[head * len..][..len] || is_gone(), "{name} of token {at}, head {head}");
                }
                let tail = head * max * len + free * len..(head + 1) * max * len;
                assert!(now[tail.clone()] == before[tail], "{name} behind token {free}, head {head}");
            }
        }
        let masks = [(&self.real.0, &self.padded.0), (&self.real.1, &self.padded.1)];
        for ((name, bytes), (real, padded)) in [("K", &self.key), ("V", &self.value)].into_iter().zip(masks) {
            let wrong = bytes.iter().zip(&self.filling).zip(real).zip(padded).fold(0, |wrong, (((b, f), r), p)| {
                let dropped = if *b == 0 { *p } else { 0 };
                wrong | (b ^ f) & !r & !dropped
            });
            assert_eq!(wrong, 0, "a byte of {name} that belongs to no token has changed");
        }
    }

    /// A KV head, to read.
    pub fn head(&self, head: u32) -> Head<'_> {
        let (key, value) = self.layout.head(head).unwrap();
        Head { layout: &self.layout, key: &self.key[key], value: &self.value[value] }
    }

    /// Checks that every token reads as it was written, or as zeros where `may_be_gone`.
    pub fn check_tokens(&self, may_be_gone: bool) {
        self.check(&self.all(), self.tokens.len(), |_, _| may_be_gone);
    }
}

/// Any packing, and head strides that leave a gap where the spec has some.
fn packed_anyhow(spec: Spec, max_tokens: usize, random: &mut Random) -> Spec {
    let mut packed = Spec {
        l_pack: random.pick(&[1, 1, 2, 4, 8]),
        h_pack: random.pick(&[4, 8, 16]),
        flash_block: random.pick(&[4, 8, 16, 64, max_tokens as u32]),
        max_tokens: max_tokens as u32,
        key_head_stride: 0,
        value_head_stride: 0,
        ..spec
    };
    let head: Both<usize> = Packing { spec: packed }.head_bytes();
    let stride = |gap: u64, bytes: usize| if gap > 0 { bytes as u64 + 12 } else { 0 };
    packed.key_head_stride = stride(spec.key_head_stride, head.0);
    packed.value_head_stride = stride(spec.value_head_stride, head.1);
    packed
}

/// The numbers in the ranges.
pub fn expand(pairs: &[Pair]) -> impl Iterator<Item = u32> {
    pairs.iter().flat_map(|[offset, len]| *offset as u32..(*offset + *len) as u32)
}
