//! Quantised caches of MNN: the library against an oracle of MNN's formulas, which `quantised/model.rs` tests in its turn.

#[path = "quantised/c_abi.rs"]
mod c_abi;
mod common;
#[path = "common/described.rs"]
mod described;
#[path = "quantised/model.rs"]
mod model;
#[path = "quantised/portable.rs"]
mod portable;
#[path = "common/quantised/mod.rs"]
mod quantised;
#[path = "quantised/refused.rs"]
mod refused;
#[path = "quantised/schedules.rs"]
mod schedules;

use described::{edit, layout, range, spec, view};
use proptest::prelude::*;
use quantised::{Shape, Unit, kinds};

/// Every unit, mode and float, few heads and dims.
fn shapes() -> impl Strategy<Value = Shape> {
    let units = prop::sample::select(vec![(16, 4), (4, 8), (4, 64), (8, 8), (4, 32)]);
    let packs = prop::sample::select(vec![(1, 4), (1, 8), (1, 16), (2, 64)]);
    let dims = prop_oneof![prop::sample::select(vec![32usize, 64, 80]), 1usize..50];
    let gaps = prop_oneof![Just((0, 0)), (0usize..9, 0usize..9)];
    (9usize..15, units, 1usize..3, dims, packs, prop::sample::select(vec![2usize, 4]), 1usize..200, gaps).prop_map(
        |(mode, (l, h), heads, dims, pack, elem, max, gaps)| {
            let (key, value) = kinds(mode);
            // A record is 32 dims.
            let dims = if mode > 10 { dims.div_ceil(32) * 32 } else { dims };
            let gaps = (4 * gaps.0, 4 * gaps.1);
            Shape { key, value, unit: Unit { l, h }, heads, dims, pack, elem, block: 64, max, gaps }
        },
    )
}
