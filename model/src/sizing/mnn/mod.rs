//! Caches of MNN's CPU backend: bytes by `attention_mode` and CPU, with scales, sums, packing and room to grow.

mod config;
mod mode;

pub use config::{MnnConfig, MnnFile, MnnNumbers};
pub use mode::AttentionMode;

use super::element::CacheElement;
use super::shape::{Attention, Kv};
use super::sizer::MAX_TOKENS;
use mnnkv::dtype::Dtype;
use mnnkv::layout::{Int8Unit, Kind, Layout, Spec};
use mnnkv::status::{Result, bail};

/// Tokens that a buffer has room for beyond those of the step that allocates it.
const ROOM: u64 = 64;

/// A CPU, by the kernels that MNN chooses there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MnnCpu {
    /// Its name here.
    pub name: &'static str,
    /// MNN's lP and hP of f32.
    f32: (u32, u32),
    /// Those of f16, which MNN has on Arm.
    f16: Option<(u32, u32)>,
    int8: Int8Unit,
}

const fn int8(l_pack: u32, h_pack: u32) -> Int8Unit {
    Int8Unit { l_pack, h_pack }
}

impl MnnCpu {
    /// Every CPU with numbers in `docs/format.md`.
    pub const ALL: [MnnCpu; 7] = [
        MnnCpu { name: "sse", f32: (1, 4), f16: None, int8: int8(16, 4) },
        MnnCpu { name: "avx2", f32: (1, 4), f16: None, int8: int8(4, 8) },
        MnnCpu { name: "avx512", f32: (1, 8), f16: None, int8: int8(4, 64) },
        MnnCpu { name: "arm-neon", f32: (1, 8), f16: None, int8: int8(16, 4) },
        MnnCpu { name: "arm-sdot", f32: (1, 8), f16: Some((1, 16)), int8: int8(4, 8) },
        MnnCpu { name: "arm-i8mm", f32: (1, 8), f16: Some((1, 16)), int8: int8(8, 8) },
        MnnCpu { name: "arm-sme2", f32: (1, 64), f16: Some((2, 64)), int8: int8(4, 32) },
    ];

    /// The CPU with this name.
    pub fn named(name: &str) -> Option<MnnCpu> {
        MnnCpu::ALL.into_iter().find(|cpu| cpu.name == name)
    }

    /// The type of a float K or V: f16 on CPUs that have it in MNN if `precision` is low, else f32.
    pub fn element(&self, low_precision: bool) -> CacheElement {
        if low_precision && self.f16.is_some() { CacheElement::F16 } else { CacheElement::F32 }
    }
}

/// How MNN keeps K and V on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MnnCache {
    /// Types of K and V.
    pub mode: AttentionMode,
    /// Where.
    pub cpu: MnnCpu,
    float: Dtype,
}

impl MnnCache {
    /// A cache whose float half, if it has one, is `element`.
    ///
    /// UNSUPPORTED: if MNN has no such element on this CPU.
    pub fn new(mode: AttentionMode, cpu: MnnCpu, element: CacheElement) -> Result<MnnCache> {
        let float = match element {
            CacheElement::F32 => Dtype::F32,
            CacheElement::F16 if cpu.f16.is_some() => Dtype::F16,
            _ => {
                let expected = if cpu.f16.is_some() { "f16 or f32" } else { "f32" };
                let (name, cpu) = (element.name(), cpu.name);
                bail!(Unsupported, "the element type is {name}; MNN's float K and V on {cpu} are {expected}")
            }
        };
        Ok(MnnCache { mode, cpu, float })
    }

    /// The type of K, then that of V.
    pub fn kinds(&self) -> [Kind; 2] {
        self.mode.kinds(self.float)
    }

    /// The names of these types.
    pub fn names(&self) -> [&'static str; 2] {
        self.kinds().map(|kind| match kind {
            Kind::Float(Dtype::F16) => CacheElement::F16.name(),
            Kind::Float(_) => CacheElement::F32.name(),
            Kind::Int8 => CacheElement::Int8.name(),
            Kind::Tq3 | Kind::Tq4 => kind.name(),
        })
    }

    /// The cache of layer `number`.
    pub(super) fn layer(self, attention: &Attention, number: u32) -> Result<MnnLayer> {
        let Kv::Heads { kv_heads, head_dim } = attention.kv else {
            bail!(Unsupported, "layer {number} keeps latents (MLA), which no cache of MNN has");
        };
        attention.kv.elements(1)?;
        if let Some(kind) = self.kinds().into_iter().find(|kind| matches!(kind, Kind::Tq3 | Kind::Tq4))
            && !head_dim.is_multiple_of(32)
        {
            let (mode, kind) = (self.mode.number(), kind.name());
            bail!(
                Unsupported,
                "layer {number} has head_dim {head_dim} and attention_mode {mode} is {kind}; a multiple of 32 expected"
            );
        }
        let layer = MnnLayer { cache: self, kv_heads, head_dim };
        if layer.bytes_with_room(ROOM).is_none() {
            bail!(InvalidArgument, "layer {number} has {kv_heads} KV heads of head_dim {head_dim}, which are too many");
        }
        Ok(layer)
    }
}

/// The cache of one layer.
#[derive(Clone, Copy)]
pub(super) struct MnnLayer {
    cache: MnnCache,
    kv_heads: u32,
    head_dim: u32,
}

impl MnnLayer {
    /// Bytes after a step that has allocated buffers for `tokens` tokens; `None` if they exceed 64 bits.
    pub fn bytes(&self, tokens: u64) -> Option<u64> {
        if tokens == 0 {
            return Some(0);
        }
        let center = match self.cache.kinds()[0] {
            Kind::Int8 => u64::from(self.kv_heads) * u64::from(self.head_dim) * 4,
            _ => 0,
        };
        self.bytes_with_room((tokens + ROOM).min(MAX_TOKENS))?.checked_add(center)
    }

    /// Bytes of one more token, rounded up.
    pub fn token_bytes(&self) -> u64 {
        // No packing is longer than this many tokens.
        self.bytes_with_room(ROOM).unwrap_or(u64::MAX).div_ceil(ROOM)
    }

    /// Bytes of everything that grows with the room.
    fn bytes_with_room(&self, max_tokens: u64) -> Option<u64> {
        let MnnCache { mode, cpu, float } = self.cache;
        let [key, value] = self.cache.kinds();
        let (l_pack, h_pack) = if float == Dtype::F16 { cpu.f16? } else { cpu.f32 };
        let max_tokens = u32::try_from(max_tokens).ok()?;
        let layout = Layout::new(&Spec {
            key,
            value,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            l_pack,
            h_pack,
            int8: cpu.int8,
            flash_block: if mode.is_flash() { ROOM as u32 } else { max_tokens },
            max_tokens,
            key_head_stride: 0,
            value_head_stride: 0,
            key_token_stride: 0,
            value_token_stride: 0,
        });
        let layout = layout.ok()?;
        [layout.key_bytes(), layout.value_bytes(), layout.key_sum_bytes(), layout.value_sum_bytes()]
            .into_iter()
            .try_fold(0u64, |sum, bytes| sum.checked_add(bytes as u64))
    }
}
