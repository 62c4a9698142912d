//! Shape checks of a weights file.

use super::SLOTS;
use std::fmt;

/// A side that contradicts the others: its name, its required length, and the reason.
pub(super) struct Wrong {
    /// Whether it is the rows, else the columns.
    pub(super) rows: bool,
    expected: u64,
    why: Why,
}

enum Why {
    HiddenSize,
    RowsOf(usize),
    Quotient(u64, u64),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} expected", self.expected)?;
        match self.why {
            Why::HiddenSize => f.write_str(", which is hidden_size"),
            Why::RowsOf(slot) => write!(f, ", the rows of slot {slot}"),
            Why::Quotient(input, factor) => write!(f, ": hidden_size {input} / compression_factor {factor}"),
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

    /// Checks the next block, `block` within its layer.
    pub(super) fn next(&mut self, block: usize, rows: u64, cols: u64) -> Result<(), Wrong> {
        let Shapes { input, factor, width } = *self;
        let slot = block % SLOTS;
        let (expected, why) = if slot == 0 { (input, Why::HiddenSize) } else { (width, Why::RowsOf(slot - 1)) };
        if cols != expected {
            return Err(Wrong { rows: false, expected, why });
        }
        if slot == SLOTS - 1 && rows != input / factor {
            return Err(Wrong { rows: true, expected: input / factor, why: Why::Quotient(input, factor) });
        }
        self.width = rows;
        Ok(())
    }
}
