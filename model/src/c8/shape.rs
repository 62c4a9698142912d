//! The shape of K or V of a layer, and the walk over it.

use mnnkv::dtype::Dtype;
use mnnkv::dtype::convert::{self, first_not_finite, widen};
use mnnkv::status::{Result, bail};
use mnnkv::sys::memory;
use std::ops::Range;

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

/// Consecutive rows, one per token, with the same channels in each.
pub(super) struct Part {
    pub(super) channels: Range<usize>,
    pub(super) elements: Range<usize>,
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

    /// Element type of the values.
    pub fn dtype(&self) -> Dtype {
        self.dtype
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

    /// All elements in order. A part is a matrix whose columns are channels, in both orders.
    pub(super) fn parts(&self) -> impl Iterator<Item = Part> {
        let count = match self.order {
            Order::TokenHeadDim => 1,
            Order::HeadTokenDim => self.heads,
        };
        let (channels, elements) = (self.channels() / count, self.elements() / count);
        let nth = |i: usize, len: usize| i * len..(i + 1) * len;
        (0..count).map(move |i| Part { channels: nth(i, channels), elements: nth(i, elements) })
    }

    /// Calls `visit` with each row of `values`: token, first channel, bytes, numbers.
    pub(super) fn rows(
        &self,
        values: &[u8],
        mut visit: impl FnMut(usize, usize, &[u8], &[f32]) -> Result<()>,
    ) -> Result<()> {
        let mut numbers = Vec::new();
        for Part { channels, elements } in self.parts() {
            memory::resize(&mut numbers, channels.len())?;
            let rows = values[self.bytes_of(&elements)].chunks_exact(channels.len() * self.dtype.bytes());
            for (token, row) in rows.enumerate() {
                widen(self.dtype, convert::Endian::Native, row, &mut numbers);
                visit(token, channels.start, row, &numbers)?;
            }
        }
        Ok(())
    }

    /// The shape of one row with this number of channels.
    pub(super) fn of_row(&self, channels: usize) -> CacheShape {
        CacheShape { heads: 1, dims: channels, tokens: 1, ..*self }
    }

    /// The bytes of a range of elements.
    pub(super) fn bytes_of(&self, elements: &Range<usize>) -> Range<usize> {
        elements.start * self.dtype.bytes()..elements.end * self.dtype.bytes()
    }

    /// Checks the length of values.
    pub(super) fn check_values(&self, values: &[u8]) -> Result<()> {
        if values.len() != self.bytes() {
            bail!(InvalidArgument, "{} bytes of values given; {} expected: {self}", values.len(), self.bytes());
        }
        Ok(())
    }

    /// Checks the length of codes.
    pub(super) fn check_codes(&self, codes: &[i8]) -> Result<()> {
        if codes.len() != self.elements() {
            bail!(InvalidArgument, "{} codes given; {} expected: {self}", codes.len(), self.elements());
        }
        Ok(())
    }

    /// Checks the length of a per-channel array.
    pub(super) fn check_channels(&self, what: &str, given: usize) -> Result<()> {
        if given != self.channels() {
            bail!(InvalidArgument, "{what} for {given} channels given; {} expected: {self}", self.channels());
        }
        Ok(())
    }

    /// Fails if a row contains NaN or infinity; the error names token and channel.
    pub(super) fn check_finite(&self, token: usize, first_channel: usize, numbers: &[f32]) -> Result<()> {
        let Some(i) = first_not_finite(numbers) else { return Ok(()) };
        let channel = first_channel + i;
        let (head, dim) = (channel / self.dims, channel % self.dims);
        bail!(
            InvalidArgument,
            "token {token}, channel {channel} (head {head}, dim {dim}) is {}; a finite number expected",
            numbers[i]
        )
    }
}

impl std::fmt::Display for CacheShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let CacheShape { dtype, heads, dims, tokens, .. } = self;
        write!(f, "{tokens} tokens of {heads} heads of {dims} dims in {}", dtype.name())
    }
}
