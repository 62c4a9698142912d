//! Shape checks of a weights file.

use super::SLOTS;
use std::fmt;

/// A dimension of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Rows,
    Cols,
}

/// The required length of a side, and its reason.
pub(super) enum Expected {
    HiddenSize(u64),
    RowsBefore { rows: u64, slot: usize },
    HeadDim { head_dim: u64, input: u64, factor: u64 },
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expected::HiddenSize(input) => write!(f, "{input} expected, which is hidden_size"),
            Expected::RowsBefore { rows, slot } => write!(f, "{rows} expected, the rows of slot {slot}"),
            Expected::HeadDim { head_dim, input, factor } => {
                write!(f, "{head_dim} expected: hidden_size {input} / compression_factor {factor}")
            }
        }
    }
}

/// Checks the blocks of a file in their order.
///
/// A network turns `factor` rows of a head into one: its first layer has `factor * head_dim` columns, its last one
/// `head_dim` rows, and the rows of a layer are the columns of the next. Inner widths are free.
pub(super) struct Shapes {
    input: u64,
    factor: u64,
    /// Rows of the block before.
    width: u64,
}

impl Shapes {
    /// For networks of `input` elements, a multiple of `factor`.
    pub(super) fn new(input: u64, factor: u64) -> Self {
        Shapes { input, factor, width: 0 }
    }

    /// Elements per head and token.
    pub(super) fn head_dim(&self) -> u64 {
        self.input / self.factor
    }

    /// Checks the next block, `block` within its layer. The error names the side and the reason.
    pub(super) fn next(&mut self, block: usize, rows: u64, cols: u64) -> Result<(), (Side, Expected)> {
        let slot = block % SLOTS;
        let Shapes { input, factor, width } = *self;
        if slot == 0 && cols != input {
            return Err((Side::Cols, Expected::HiddenSize(input)));
        }
        if slot > 0 && cols != width {
            return Err((Side::Cols, Expected::RowsBefore { rows: width, slot: slot - 1 }));
        }
        let head_dim = self.head_dim();
        if slot == SLOTS - 1 && rows != head_dim {
            return Err((Side::Rows, Expected::HeadDim { head_dim, input, factor }));
        }
        self.width = rows;
        Ok(())
    }
}
