//! Block sums that a host has made of its tiles: the checks by themselves.

use crate::status::{Result, bail};

/// No sums reach past this token. Bounds what a wrong number can allocate.
pub const MAX_TOKENS: u32 = 1 << 24;

/// The scalars of block sums, as in the C ABI. Nothing is checked.
#[derive(Clone, Copy, Debug)]
pub struct SumFields {
    /// [`SumFields::FIRST`] and [`SumFields::LAST`]: the first and the last token of the rows are in the sums.
    pub flags: u32,
    /// Heads that the rows belong to, `[heads][rows / heads]`, at least 1.
    pub heads: u32,
    /// Rows that count.
    pub rows: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Blocks for which there is room.
    pub blocks: u32,
    /// Physical position of the first token.
    pub token_begin: u32,
    /// The token after the last.
    pub token_end: u32,
}

impl SumFields {
    /// The sums have the first token of the rows.
    pub const FIRST: u32 = 1;
    /// The sums have the last token of the rows.
    pub const LAST: u32 = 2;

    /// Checks the scalars; returns the length of the sums.
    /// INVALID_ARGUMENT: if a field is out of range.
    pub fn check(&self) -> Result<usize> {
        let SumFields { flags, heads, rows, block_tokens, blocks, token_begin, token_end } = *self;
        if flags & !(Self::FIRST | Self::LAST) != 0 {
            bail!(InvalidArgument, "sums->flags is {flags:#x}; FIRST (1) and LAST (2) are known");
        }
        if heads == 0 || rows == 0 || !rows.is_multiple_of(heads) {
            bail!(InvalidArgument, "sums->rows is {rows} and sums->heads {heads}; at least one row per head expected");
        }
        if token_begin >= token_end || token_end > MAX_TOKENS {
            bail!(
                InvalidArgument,
                "sums->token_begin is {token_begin} and sums->token_end {token_end}; a token or more, and an end of \
                 {MAX_TOKENS} or less expected"
            );
        }
        if block_tokens == 0 {
            bail!(InvalidArgument, "sums->block_tokens is 0; that of mnnkv_step expected");
        }
        let used = self.used();
        if used > blocks as usize {
            bail!(
                InvalidArgument,
                "sums->blocks is {blocks}; tokens {token_begin} to {token_end} are in {used} blocks"
            );
        }
        match used.checked_mul(rows as usize) {
            Some(len) => Ok(len),
            None => bail!(InvalidArgument, "sums->rows is {rows}; no object has {used} blocks of them"),
        }
    }

    /// Blocks of the tokens.
    fn used(&self) -> usize {
        self.token_end.div_ceil(self.block_tokens) as usize - self.first_block()
    }

    fn first_block(&self) -> usize {
        (self.token_begin / self.block_tokens) as usize
    }
}

/// Block sums that are sound by themselves. The attention of a row to a block is its sum times the row's factor.
#[derive(Clone, Copy, Debug)]
pub struct BlockSums<'a> {
    pub(super) heads: usize,
    pub(super) rows: usize,
    pub(super) block_tokens: usize,
    pub(super) first_block: usize,
    pub(super) blocks: usize,
    pub(super) token_begin: u32,
    pub(super) token_end: u32,
    pub(super) first: bool,
    pub(super) last: bool,
    /// `[block][row]`
    pub(super) sums: &'a [f64],
    /// `[row]`; `None` for all 1.
    pub(super) factors: Option<&'a [f64]>,
}

impl<'a> BlockSums<'a> {
    /// `fields` passed [`SumFields::check`], which returned the length of `sums`; `factors` has one per row.
    pub fn new(fields: SumFields, sums: &'a [f64], factors: Option<&'a [f64]>) -> Self {
        BlockSums {
            heads: fields.heads as usize,
            rows: fields.rows as usize,
            block_tokens: fields.block_tokens as usize,
            first_block: fields.first_block(),
            blocks: fields.used(),
            token_begin: fields.token_begin,
            token_end: fields.token_end,
            first: fields.flags & SumFields::FIRST != 0,
            last: fields.flags & SumFields::LAST != 0,
            sums,
            factors,
        }
    }
}
