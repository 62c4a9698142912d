//! One layer of a host: its packed buffers, and what each of their tokens should read as.

use super::buffer::Buffer;
use super::random::Random;
use crate::dtype::Dtype;
use crate::layout::{self, Layout, Padding, Pair, Spec};
use crate::store::Cache;

/// A token in the cache.
#[derive(Clone)]
pub(super) struct Token {
    /// K and V as `[head][dim]`.
    key: Vec<u8>,
    value: Vec<u8>,
    /// It was cold at the end of some step, and may have been compressed since.
    pub(super) cold: bool,
}

pub(super) struct Host {
    pub(super) spec: Spec,
    pub(super) layout: Layout,
    pub(super) key: Buffer,
    pub(super) value: Buffer,
    /// All bits of the tokens' elements, in the order of the buffers.
    real: (Vec<u8>, Vec<u8>),
    /// The same with their padding, which a release may set to zero. The rest is gaps.
    padded: (Vec<u8>, Vec<u8>),
    /// What the host left in bytes that it has not written, for a buffer of any size it has had.
    filling: Vec<u8>,
    pub(super) tokens: Vec<Token>,
    /// Contents of few different bytes, which compress.
    plain: bool,
}

/// Every token that there is room for, `[head][token][dim]`.
type Dense = (Vec<u8>, Vec<u8>);

impl Host {
    pub(super) fn new(random: &mut Random) -> Self {
        let stride = |random: &mut Random| if random.once_in(4) { 1 } else { 0 };
        let spec = Spec {
            key_dtype: random.pick(&[Dtype::F16, Dtype::F32, Dtype::Bf16]),
            value_dtype: random.pick(&[Dtype::F16, Dtype::F32, Dtype::Bf16]),
            kv_heads: random.from(1, 3) as u32,
            head_dim: random.from(1, 12) as u32,
            l_pack: 1,
            h_pack: 1,
            flash_block: 1,
            max_tokens: 0,
            key_head_stride: stride(random),
            value_head_stride: stride(random),
            key_token_stride: 0,
            value_token_stride: 0,
        };
        let mut host = Host::of(spec, random);
        host.plain = !random.once_in(8);
        host
    }

    /// Empty buffers for a few tokens, packed anyhow.
    fn of(mut spec: Spec, random: &mut Random) -> Self {
        let room = random.from(8, 40) as u32;
        pack(&mut spec, room, random);
        Host::exactly(spec)
    }

    /// Empty buffers of this kind.
    pub(super) fn exactly(spec: Spec) -> Self {
        let mut host = Host {
            spec,
            layout: Layout::new(&spec).unwrap(),
            key: Buffer::default(),
            value: Buffer::default(),
            real: Default::default(),
            padded: Default::default(),
            filling: Vec::new(),
            tokens: Vec::new(),
            plain: true,
        };
        host.allocate();
        host
    }

    /// Buffers as the layout wants them, filled with what nobody may change where it belongs to no token.
    fn allocate(&mut self) {
        let layout = &self.layout;
        let (key, value) = (layout.key_bytes(), layout.value_bytes());
        let known = self.filling.len();
        self.filling.extend((known..key.max(value)).map(|at| (at % 251) as u8 ^ 0xA5));
        (self.key, self.value) = (Buffer::new(&self.filling[..key]), Buffer::new(&self.filling[..value]));

        let max = layout.max_tokens();
        let ones = (vec![0xFF; layout.dense_key_bytes(max)], vec![0xFF; layout.dense_value_bytes(max)]);
        let range = layout.range(0, max as u32).unwrap();
        self.real = (vec![0; key], vec![0; value]);
        layout::scatter(layout, &ones.0, &ones.1, range, &mut self.real.0, &mut self.real.1).unwrap();
        self.padded = self.real.clone();
        let (key, value) = (&mut self.padded.0, &mut self.padded.1);
        layout::for_each_run(layout, key, value, range, Padding::Dropped, &mut |run| run.fill(0xFF)).unwrap();
    }

    /// Heads, dims or a type that this layer's cache cannot have, with room for as many tokens.
    pub(super) fn impostor(&self, random: &mut Random) -> Self {
        let mut spec = self.spec;
        match random.below(4) {
            0 => spec.kv_heads += 1,
            1 => spec.head_dim += 1,
            2 => spec.key_dtype = if spec.key_dtype == Dtype::F16 { Dtype::Bf16 } else { Dtype::F16 },
            _ => spec.value_dtype = if spec.value_dtype == Dtype::F32 { Dtype::F16 } else { Dtype::F32 },
        }
        (spec.key_head_stride, spec.value_head_stride) = (0, 0);
        Host::exactly(spec)
    }

    /// The cache for a call. It may lie elsewhere than in the call before.
    pub(super) fn cache(&mut self) -> Cache<'_> {
        self.key.maybe_move();
        self.value.maybe_move();
        Cache { layout: &self.layout, key: &mut self.key, value: &mut self.value }
    }

    pub(super) fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    pub(super) fn room(&self) -> usize {
        self.layout.max_tokens() - self.tokens.len()
    }

    /// Appends tokens; there must be room.
    pub(super) fn append(&mut self, count: usize, random: &mut Random) {
        let shift = if self.plain { 60 } else { 56 };
        let mut row = |len: usize| (0..len).map(|_| (random.next() >> shift) as u8).collect::<Vec<u8>>();
        for _ in 0..count {
            let key = row(self.layout.dense_key_bytes(1));
            let value = row(self.layout.dense_value_bytes(1));
            let range = self.layout.range(self.len(), 1).unwrap();
            layout::scatter(&self.layout, &key, &value, range, &mut self.key, &mut self.value).unwrap();
            self.tokens.push(Token { key, value, cold: false });
        }
    }

    /// Writes another content to a token, which a session's contract forbids.
    pub(super) fn rewrite(&mut self, at: usize, random: &mut Random) {
        let (len, tokens) = (self.tokens.len(), std::mem::take(&mut self.tokens));
        self.tokens = tokens[..at].to_vec();
        self.append(1, random);
        self.tokens.extend_from_slice(&tokens[at + 1..]);
        assert_eq!(self.tokens.len(), len);
    }

    /// Forgets the tokens that are not in the mask; the buffers are the session's to edit.
    pub(super) fn keep(&mut self, mask: &[bool]) {
        let mut mask = mask.iter();
        self.tokens.retain(|_| *mask.next().unwrap());
        assert!(mask.next().is_none());
    }

    /// Other buffers with the same tokens, copied as a host does: raw bytes, whatever they are.
    pub(super) fn move_to_room_for(&mut self, max_tokens: usize, random: &mut Random) {
        let count = self.tokens.len();
        let range = self.layout.range(0, count as u32).unwrap();
        let mut rows = (vec![0; self.layout.dense_key_bytes(count)], vec![0; self.layout.dense_value_bytes(count)]);
        layout::gather(&self.layout, &self.key, &self.value, range, &mut rows.0, &mut rows.1).unwrap();
        pack(&mut self.spec, max_tokens as u32, random);
        self.layout = Layout::new(&self.spec).unwrap();
        self.allocate();
        let range = self.layout.range(0, count as u32).unwrap();
        layout::scatter(&self.layout, &rows.0, &rows.1, range, &mut self.key, &mut self.value).unwrap();
    }

    /// What every token reads as now, those behind the last, too.
    pub(super) fn dense(&self) -> Dense {
        let max = self.layout.max_tokens();
        let mut rows = (vec![0; self.layout.dense_key_bytes(max)], vec![0; self.layout.dense_value_bytes(max)]);
        let range = self.layout.range(0, max as u32).unwrap();
        layout::gather(&self.layout, &self.key, &self.value, range, &mut rows.0, &mut rows.1).unwrap();
        rows
    }

    /// Checks every byte of both buffers. Tokens read as they were written, or as zeros where they `may_be_gone`; tokens
    /// from `free` on and what belongs to no token are as they were `before`.
    pub(super) fn check(&self, before: &Dense, free: usize, may_be_gone: impl Fn(&Token) -> bool) {
        let now = self.dense();
        let (heads, max) = (self.spec.kv_heads as usize, self.layout.max_tokens());
        let planes = [(&now.0, &before.0, (|t| &t.key) as fn(&Token) -> &Vec<u8>), (&now.1, &before.1, |t| &t.value)];
        for (name, (now, before, of)) in ["K", "V"].into_iter().zip(planes) {
            let len = now.len() / heads / max;
            for head in 0..heads {
                let rows = &now[head * max * len..][..max * len];
                for (at, (token, row)) in self.tokens.iter().zip(rows.chunks_exact(len)).enumerate() {
                    let gone = may_be_gone(token) && row.iter().all(|b| *b == 0);
                    assert!(gone || *row == of(token)[head * len..][..len], "{name} of token {at}, head {head}");
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
}

/// Any packing, and head strides that leave a gap where the spec has some.
fn pack(spec: &mut Spec, max_tokens: u32, random: &mut Random) {
    spec.l_pack = random.pick(&[1, 1, 2, 4, 8]);
    spec.h_pack = random.pick(&[4, 8, 16]);
    spec.max_tokens = max_tokens;
    spec.flash_block = random.pick(&[4, 8, 16, 64, max_tokens]);
    let gaps = (spec.key_head_stride > 0, spec.value_head_stride > 0);
    (spec.key_head_stride, spec.value_head_stride) = (0, 0);
    let one = Layout::new(&Spec { kv_heads: 1, ..*spec }).unwrap();
    let stride = |gap: bool, bytes: usize| if gap { bytes as u64 + 12 } else { 0 };
    spec.key_head_stride = stride(gaps.0, one.key_bytes());
    spec.value_head_stride = stride(gaps.1, one.value_bytes());
}

/// The numbers in the ranges.
pub(super) fn expand(pairs: &[Pair]) -> impl Iterator<Item = u32> {
    pairs.iter().flat_map(|[offset, len]| *offset as u32..(*offset + *len) as u32)
}
