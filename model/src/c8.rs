//! KV caches as int8 codes with a scale and an offset for each channel: msmodelslim's C8.
//!
//! A channel is a dimension of a KV head, `kv_head * head_dim + dim`. K and V have scales of their own.
//!
//! ```text
//! value = (code - offset) * scale                             in f32, then rounded to the element type
//! ```

use half::{bf16, f16};
use mnnkv::dtype::Dtype;
use mnnkv::status::{Result, bail};

/// The least scale, 2^-100: no step of the arithmetic then depends on the CPU's treatment of denormals.
pub const LEAST_SCALE: f32 = f32::from_bits((127 - 100) << 23);

/// The order of elements in memory, innermost last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Order {
    /// `[token][head][dim]`, the order of a projection.
    TokenHeadDim = 1,
    /// `[head][token][dim]`, the order of a gathered cache.
    HeadTokenDim = 2,
}

impl Order {
    /// The order with this number in the C ABI. `what` names the argument in the error.
    pub fn from_code(code: u32, what: &str) -> Result<Self> {
        Ok(match code {
            1 => Order::TokenHeadDim,
            2 => Order::HeadTokenDim,
            _ => bail!(InvalidArgument, "{what} is {code}; token, head, dim (1) or head, token, dim (2) expected"),
        })
    }
}

/// Element type, order and lengths of K or V of a layer. The bytes fit an isize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    dtype: Dtype,
    order: Order,
    heads: usize,
    dims: usize,
    tokens: usize,
}

impl CacheShape {
    /// `dtype` is F16, BF16 or F32; `heads` and `dims` are at least 1.
    pub fn new(dtype: Dtype, order: Order, heads: usize, dims: usize, tokens: usize) -> Result<Self> {
        if dtype == Dtype::Int8 {
            bail!(InvalidArgument, "the values are INT8; F16, BF16 or F32 expected");
        }
        for (name, given) in [("kv_heads", heads), ("head_dim", dims)] {
            if given == 0 {
                bail!(InvalidArgument, "{name} is 0; at least 1 expected");
            }
        }
        let bytes = [dims, tokens.max(1), dtype.bytes()].iter().try_fold(heads, |n, by| n.checked_mul(*by));
        if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            bail!(InvalidArgument, "{heads} heads, {dims} dims and {tokens} tokens overflow memory");
        }
        Ok(CacheShape { dtype, order, heads, dims, tokens })
    }

    /// Channels: heads times dims.
    pub fn channels(&self) -> usize {
        self.heads * self.dims
    }

    /// Elements: as many codes, of a byte each.
    pub fn elements(&self) -> usize {
        self.channels() * self.tokens
    }

    /// Bytes of the values.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.bytes()
    }
}

/// Converts codes to values, `(code - offset) * scale` in f32 rounded to the element type, ties to even, in the order
/// of the codes. Values are in native byte order.
///
/// Results above the range of the type become infinite: in F16 with scales over 256, in F32 where a value is within a
/// scale of its greatest. The result depends neither on the CPU level nor on the host's treatment of denormals.
///
/// INVALID_ARGUMENT: if a length is not that of the shape, a scale is not finite or below [`LEAST_SCALE`], or an offset
/// is no integer from -128 to 127; the error names the first wrong channel. Nothing is written then.
pub fn dequantize(shape: &CacheShape, codes: &[i8], scale: &[f32], offset: &[f32], values: &mut [u8]) -> Result<()> {
    for (what, given, expected) in [
        ("codes", codes.len(), shape.elements()),
        ("bytes of values", values.len(), shape.bytes()),
        ("scales", scale.len(), shape.channels()),
        ("offsets", offset.len(), shape.channels()),
    ] {
        if given != expected {
            let CacheShape { dtype, heads, dims, tokens, .. } = shape;
            bail!(
                InvalidArgument,
                "{given} {what} given; {expected} expected: {tokens} tokens of {heads} heads of {dims} dims in {}",
                dtype.name()
            );
        }
    }
    check(scale, offset)?;
    let CacheShape { order, heads, dims, tokens, .. } = *shape;
    let inner = if order == Order::TokenHeadDim { heads * dims } else { dims };
    let mut rows = codes.chunks_exact(inner);
    let mut written = values.chunks_exact_mut(inner * shape.dtype.bytes());
    for (scale, offset) in scale.chunks_exact(inner).zip(offset.chunks_exact(inner)) {
        for (row, values) in rows.by_ref().zip(written.by_ref()).take(tokens) {
            let exact = row.iter().zip(scale.iter().zip(offset)).map(|(code, (s, o))| (f32::from(*code) - o) * s);
            match shape.dtype {
                Dtype::F16 => write(values, exact, |value| f16::from_f32(value).to_ne_bytes()),
                Dtype::Bf16 => write(values, exact, |value| bf16::from_f32(value).to_ne_bytes()),
                // No shape has INT8.
                Dtype::F32 | Dtype::Int8 => write(values, exact, f32::to_ne_bytes),
            }
        }
    }
    Ok(())
}

fn write<const N: usize>(values: &mut [u8], exact: impl Iterator<Item = f32>, round: impl Fn(f32) -> [u8; N]) {
    for (to, value) in values.as_chunks_mut::<N>().0.iter_mut().zip(exact) {
        *to = round(value);
    }
}

fn check(scale: &[f32], offset: &[f32]) -> Result<()> {
    for (channel, (scale, offset)) in scale.iter().zip(offset).enumerate() {
        if !(LEAST_SCALE..=f32::MAX).contains(scale) {
            bail!(
                InvalidArgument,
                "the scale of channel {channel} is {scale:e}; a finite number of at least 2^-100 expected"
            );
        }
        if !((-128.0..=127.0).contains(offset) && offset.fract() == 0.0) {
            bail!(InvalidArgument, "the offset of channel {channel} is {offset}; an integer from -128 to 127 expected");
        }
    }
    Ok(())
}
