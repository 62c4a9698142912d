//! Softmax tiles: how a host describes one, and the checks of a tile by itself.

use crate::dtype::Dtype;
use crate::status::{Error, Result, error};

/// No tile reaches past this token. Bounds what a wrong number can allocate.
pub const MAX_TOKENS: u32 = 1 << 24;

/// The scalars of a tile, as in the C ABI. Nothing is checked.
///
/// A row's attention to a token is its value, times the row's `update_scale` of every later tile of the head, divided
/// by the row's `row_sum`. Final probabilities need neither.
///
/// The tiles of a head come in order, each from the token where the one before ends. They need not begin or end at
/// block or pack boundaries.
#[derive(Clone, Copy, Debug)]
pub struct TileFields {
    /// Code of the element type of the values: F16, BF16 or F32.
    pub dtype: u32,
    /// Tokens per pack: values are `[tokens / pack, rounded up][queries][pack]`, counted from the tile's own first
    /// token. 0 for plain rows, `[queries][tokens]`. Padding may hold anything.
    pub pack: u32,
    /// Query rows, at least 1, equal in all tiles of a head.
    pub queries: u32,
    /// Heads that the rows belong to, `[heads][queries / heads]`; 0 = not said. Read in a first tile only.
    pub heads: u32,
    /// Tokens, at least 1.
    pub tokens: u32,
    /// Physical position of the first token.
    pub token_begin: u32,
    /// [`TileFields::FIRST`], [`TileFields::LAST`], both or 0.
    pub flags: u32,
}

impl TileFields {
    /// The first tile of a head.
    pub const FIRST: u32 = 1;
    /// The last tile of a head.
    pub const LAST: u32 = 2;
}

/// A tile as a host describes it: scalars, and arrays whose lengths follow from them.
pub trait TileSource<'a> {
    /// The scalars.
    fn fields(&self) -> TileFields;

    /// The values, `bytes` long, in the machine's byte order, at any alignment.
    fn data(&self, bytes: usize) -> Result<&'a [u8]>;

    /// `[rows]`: factors of what the head has given before this tile. In a first tile they may hold anything.
    fn update_scale(&self, rows: usize) -> Result<Option<&'a [f32]>>;

    /// `[rows]`: divisors of the whole head, in its last tile only.
    fn row_sum(&self, rows: usize) -> Result<Option<&'a [f32]>>;
}

/// A tile of a host in Rust. The scalars are those of [`TileFields`].
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "see TileFields")]
pub struct Tile<'a> {
    pub dtype: Dtype,
    pub pack: usize,
    pub queries: usize,
    pub heads: usize,
    pub tokens: usize,
    pub token_begin: usize,
    pub first: bool,
    pub last: bool,
    /// See [`TileSource::data`].
    pub data: &'a [u8],
    /// See [`TileSource::update_scale`].
    pub update_scale: Option<&'a [f32]>,
    /// See [`TileSource::row_sum`].
    pub row_sum: Option<&'a [f32]>,
}

impl<'a> TileSource<'a> for Tile<'a> {
    #[inline(always)]
    fn fields(&self) -> TileFields {
        // Numbers that are too large stay so.
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        TileFields {
            dtype: self.dtype as u32,
            pack: number(self.pack),
            queries: number(self.queries),
            heads: number(self.heads),
            tokens: number(self.tokens),
            token_begin: number(self.token_begin),
            flags: flag(self.first, TileFields::FIRST) | flag(self.last, TileFields::LAST),
        }
    }

    #[inline(always)]
    fn data(&self, bytes: usize) -> Result<&'a [u8]> {
        if self.data.len() == bytes { Ok(self.data) } else { Err(wrong_length("data", self.data.len(), bytes)) }
    }

    #[inline(always)]
    fn update_scale(&self, rows: usize) -> Result<Option<&'a [f32]>> {
        per_row(self.update_scale, rows, "update_scale")
    }

    #[inline(always)]
    fn row_sum(&self, rows: usize) -> Result<Option<&'a [f32]>> {
        per_row(self.row_sum, rows, "row_sum")
    }
}

#[inline(always)]
fn per_row<'a>(given: Option<&'a [f32]>, rows: usize, name: &str) -> Result<Option<&'a [f32]>> {
    match given {
        Some(values) if values.len() != rows => Err(wrong_length(name, values.len(), rows)),
        _ => Ok(given),
    }
}

#[cold]
#[inline(never)]
fn wrong_length(name: &str, given: usize, expected: usize) -> Error {
    error!(InvalidArgument, "tile->{name} has length {given}; {expected} expected")
}

/// A tile that is sound by itself. Whether it continues its head, and whether the scales and sums of the rows that
/// count are numbers, is for the [`Accumulator`](super::Accumulator) to check.
#[derive(Clone, Copy, Debug)]
pub struct CheckedTile<'a> {
    pub(super) dtype: Dtype,
    pub(super) pack: usize,
    /// At least 1.
    pub(super) queries: usize,
    /// A divisor of `queries`, or 0, in a first tile.
    pub(super) heads: usize,
    /// At least 1.
    pub(super) tokens: usize,
    pub(super) token_begin: u32,
    pub(super) first: bool,
    pub(super) last: bool,
    /// [`data_bytes`] long.
    pub(super) data: &'a [u8],
    /// `queries` long.
    pub(super) update_scale: Option<&'a [f32]>,
    /// `queries` long, in a last tile only.
    pub(super) row_sum: Option<&'a [f32]>,
}

/// The fields that a tile is refused for.
#[derive(Clone, Copy)]
enum Fault {
    Flags,
    Dtype,
    Queries,
    Tokens,
    End,
    Heads,
    Size,
    EarlySum,
}

impl<'a> CheckedTile<'a> {
    /// Checks all that can be checked of a tile by itself.
    #[inline(always)]
    pub fn new(source: &impl TileSource<'a>) -> Result<Self> {
        let fields = source.fields();
        let (dtype, bytes) = match check(&fields) {
            Ok(found) => found,
            Err(fault) => return Err(refusal(fields, fault)),
        };
        let queries = fields.queries as usize;
        let (first, last) = (fields.flags & TileFields::FIRST != 0, fields.flags & TileFields::LAST != 0);
        let data = source.data(bytes)?;
        let update_scale = source.update_scale(queries)?;
        let row_sum = source.row_sum(queries)?;
        if row_sum.is_some() && !last {
            return Err(refusal(fields, Fault::EarlySum));
        }
        Ok(CheckedTile {
            dtype,
            pack: fields.pack as usize,
            queries,
            heads: fields.heads as usize,
            tokens: fields.tokens as usize,
            token_begin: fields.token_begin,
            first,
            last,
            data,
            update_scale,
            row_sum,
        })
    }

    /// The token after the last.
    #[inline(always)]
    pub(super) fn end(&self) -> u32 {
        self.token_begin + self.tokens as u32
    }
}

/// Returns the element type and the bytes of the values.
#[inline(always)]
fn check(fields: &TileFields) -> std::result::Result<(Dtype, usize), Fault> {
    let TileFields { pack, queries, heads, tokens, token_begin, flags, .. } = *fields;
    if flags & !(TileFields::FIRST | TileFields::LAST) != 0 {
        return Err(Fault::Flags);
    }
    let dtype = match Dtype::named(fields.dtype) {
        Some(dtype) if dtype != Dtype::Int8 => dtype,
        _ => return Err(Fault::Dtype),
    };
    if queries == 0 {
        return Err(Fault::Queries);
    }
    if tokens == 0 {
        return Err(Fault::Tokens);
    }
    if token_begin > MAX_TOKENS || tokens > MAX_TOKENS - token_begin {
        return Err(Fault::End);
    }
    if flags & TileFields::FIRST != 0 && heads > 1 && !queries.is_multiple_of(heads) {
        return Err(Fault::Heads);
    }
    match data_bytes(dtype, pack, queries, tokens) {
        Some(bytes) => Ok((dtype, bytes)),
        None => Err(Fault::Size),
    }
}

#[cold]
#[inline(never)]
fn refusal(fields: TileFields, fault: Fault) -> Error {
    let TileFields { dtype, pack, queries, heads, tokens, token_begin, flags } = fields;
    match fault {
        Fault::Flags => error!(InvalidArgument, "tile->flags is {flags:#x}; FIRST (1) and LAST (2) are known"),
        Fault::Dtype => match Dtype::float_from_code(dtype, "tile->dtype") {
            Err(error) => error,
            Ok(_) => error!(Internal, "tile->dtype is refused"),
        },
        Fault::Queries => error!(InvalidArgument, "tile->queries is 0; at least 1 expected"),
        Fault::Tokens => error!(InvalidArgument, "tile->tokens is 0; at least 1 expected"),
        Fault::End => error!(
            InvalidArgument,
            "tile->token_begin is {token_begin} and tile->tokens {tokens}; an end of {MAX_TOKENS} or less expected"
        ),
        Fault::Heads => {
            error!(InvalidArgument, "tile->queries is {queries}; a multiple of tile->heads, {heads}, expected")
        }
        Fault::Size => error!(
            InvalidArgument,
            "tile->queries is {queries}, tile->tokens {tokens} and tile->pack {pack}; no object is that large"
        ),
        Fault::EarlySum => error!(
            InvalidArgument,
            "tile->row_sum is given and tile->flags has no LAST (2); only the last tile of a head may have it"
        ),
    }
}

/// Bytes of a tile's values; `None` where no slice is that long.
#[inline(always)]
pub fn data_bytes(dtype: Dtype, pack: u32, queries: u32, tokens: u32) -> Option<usize> {
    let (pack, tokens) = (pack as usize, tokens as usize);
    let columns = match pack {
        0 => tokens,
        // The packs of all hosts; a division would be a good part of the cost of a short tile.
        _ if pack.is_power_of_two() => tokens.checked_add(pack - 1)? & !(pack - 1),
        _ => tokens.checked_next_multiple_of(pack)?,
    };
    columns.checked_mul(queries as usize)?.checked_mul(dtype.bytes())
}
