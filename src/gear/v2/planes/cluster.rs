//! Clusters units of like distribution, which then share an entropy table.
//!
//! Works on histograms of [`BINS`] bins of about equal mass, so a unit costs 64 bytes and a comparison a few
//! instructions. All arithmetic is in integers, so every machine finds the same groups.

use crate::status::Result;
use crate::sys::memory;

/// Bins of a unit's histogram.
pub(super) const BINS: usize = 32;
/// The counts of the bins in a unit, which is at most [`MAX_UNIT`] long.
pub(super) type Histogram = [i16; BINS];
/// The cost of a symbol of each bin in a group, in bits / 256.
type Costs = [i16; BINS];

/// The longest unit.
pub(super) const MAX_UNIT: usize = 4096;

/// log2(i) * 256, rounded down; 0 for i = 0.
static LOG2: [u16; MAX_UNIT + 1] = {
    let mut table = [0; MAX_UNIT + 1];
    let mut i = 1;
    while i <= MAX_UNIT {
        // Repeated squaring of the mantissa yields the fraction bit by bit; 1.0 is 2^30.
        let exponent = i.ilog2();
        let mut mantissa = ((i as u64) << 30) >> exponent;
        let mut result = exponent as u16;
        let mut bit = 0;
        while bit < 8 {
            mantissa = (mantissa * mantissa) >> 30;
            let carry = mantissa >> 31;
            mantissa >>= carry;
            result = (result << 1) | carry as u16;
            bit += 1;
        }
        table[i] = result;
        i += 1;
    }
    table
};

/// log2 of `x` >= 1 in 1/256.
fn log2(x: u64) -> u32 {
    let shift = (x.ilog2() + 1).saturating_sub(MAX_UNIT.ilog2());
    256 * shift + LOG2[(x >> shift) as usize] as u32
}

/// The bin of every byte value. Bins hold about equal shares of `counts`, in the order of the values.
pub(super) fn bins(counts: &[u32; 256]) -> [u8; 256] {
    let total: u64 = counts.iter().map(|c| *c as u64).sum::<u64>().max(1);
    let mut below = 0;
    std::array::from_fn(|value| {
        let centre = 2 * below + counts[value] as u64;
        below += counts[value] as u64;
        (centre * BINS as u64 / (2 * total)).min(BINS as u64 - 1) as u8
    })
}

/// Counts the bins of a unit.
pub(super) fn histogram(bins: &[u8; 256], unit: &[u8]) -> Histogram {
    // Neighbours often fall into the same bin; separate counters spare one increment waiting for the other.
    let mut parts = [[0i16; BINS]; 8];
    let (chunks, rest) = unit.as_chunks::<8>();
    for chunk in chunks {
        for (part, value) in parts.iter_mut().zip(chunk) {
            part[bins[*value as usize] as usize % BINS] += 1;
        }
    }
    for value in rest {
        parts[0][bins[*value as usize] as usize % BINS] += 1;
    }
    let mut sum = [0; BINS];
    for part in &parts {
        sum.iter_mut().zip(part).for_each(|(sum, n)| *sum += n);
    }
    sum
}

/// The cost of a unit in a group.
fn cost(unit: &Histogram, costs: &Costs) -> i32 {
    unit.iter().zip(costs).map(|(n, c)| *n as i32 * *c as i32).sum()
}

/// The cost of a unit with a table of its own.
fn own_cost(unit: &Histogram) -> i32 {
    let total: i32 = unit.iter().map(|n| *n as i32).sum();
    let logs: i32 = unit.iter().map(|n| *n as i32 * LOG2[*n as usize] as i32).sum();
    total * LOG2[total as usize] as i32 - logs
}

/// Costs from counts. A symbol that does not occur gets a high cost, but a finite one.
fn costs(counts: &[u64; BINS]) -> Costs {
    let total = counts.iter().sum::<u64>() * 16 + BINS as u64;
    counts.map(|n| (log2(total) - log2(n * 16 + 1)).min(16 * 256) as i16)
}

/// Units that make the groups; all others only choose among them.
const SAMPLE: usize = 192;
/// Symbols for each group that may exist.
const SYMBOLS_PER_GROUP: usize = 2048;

/// Puts each of `count` units into one of at most `limit` groups. Calls `assign` with the number of each unit and that
/// of its group, numbered from 0 without gaps. Returns the number of groups. A group must save `group_bytes`.
/// `histogram` returns the histogram of a unit; only those of a sample are kept.
///
/// Starts with one group and adds the unit that fits worst as the seed of the next. Then groups and units settle
/// (Lloyd's algorithm), groups that do not pay are dropped, and the rest settle once more.
pub(super) fn cluster(
    count: usize,
    mut histogram: impl FnMut(usize) -> Histogram,
    limit: usize,
    group_bytes: usize,
    mut assign: impl FnMut(usize, usize),
) -> Result<usize> {
    let step = count.div_ceil(SAMPLE).max(1);
    let sample: Vec<Histogram> = memory::collect((0..count).step_by(step).map(&mut histogram))?;
    let mut whole = [0u64; BINS];
    for unit in &sample {
        add(&mut whole, unit);
    }
    let symbols: u64 = whole.iter().sum::<u64>().max(1);
    let limit = limit.min(symbols as usize * step / SYMBOLS_PER_GROUP).max(1);
    let mut groups = Vec::new();
    memory::reserve(&mut groups, limit)?;
    memory::push(&mut groups, costs(&whole))?;
    let mut cheapest: Vec<i32> = memory::collect(sample.iter().map(|unit| cost(unit, &groups[0])))?;
    let mut excess: Vec<i32> = memory::collect(sample.iter().zip(&cheapest).map(|(unit, cost)| cost - own_cost(unit)))?;
    while groups.len() < limit {
        let Some((worst, _)) = excess.iter().enumerate().max_by_key(|(i, e)| (**e, std::cmp::Reverse(*i))) else {
            break;
        };
        let seed = sample[worst];
        let len: u64 = seed.iter().map(|n| *n as u64).sum();
        // One unit is a small sample: a sixteenth of the whole smooths it.
        let group = costs(&std::array::from_fn(|i| seed[i] as u64 * 256 + whole[i] * len * 16 / symbols));
        for ((unit, cheapest), excess) in sample.iter().zip(&mut cheapest).zip(&mut excess) {
            let saved = (*cheapest - cost(unit, &group)).max(0);
            *cheapest -= saved;
            *excess -= saved;
        }
        // Never the seed again, even if the group does not suit its own seed.
        excess[worst] = 0;
        memory::push(&mut groups, group)?;
    }

    settle(&sample, &mut groups)?;
    let losses = settle(&sample, &mut groups)?;
    let worth = group_bytes as i64 * 8 * 256 / step as i64;
    let mut pays = losses.iter().map(|loss| *loss >= worth);
    groups.retain(|_| pays.next() == Some(true));
    if groups.is_empty() {
        memory::push(&mut groups, costs(&whole))?;
    }
    settle(&sample, &mut groups)?;

    let mut number = [None; 256];
    let mut used = 0;
    for unit in 0..count {
        let counts = if unit % step == 0 { sample[unit / step] } else { histogram(unit) };
        let (group, _) = choose(&counts, &groups);
        let group = *number[group].get_or_insert_with(|| {
            used += 1;
            used - 1
        });
        assign(unit, group);
    }
    Ok(used)
}

fn add(counts: &mut [u64; BINS], unit: &Histogram) {
    for (sum, n) in counts.iter_mut().zip(unit) {
        *sum += *n as u64;
    }
}

/// The cheapest group for a unit, and the additional cost of the next.
fn choose(unit: &Histogram, groups: &[Costs]) -> (usize, i32) {
    let (mut best, mut second) = ((0, i32::MAX), i32::MAX);
    for (group, costs) in groups.iter().enumerate() {
        let cost = cost(unit, costs);
        if cost < best.1 {
            (second, best) = (best.1, (group, cost));
        } else if cost < second {
            second = cost;
        }
    }
    (best.0, second - best.1)
}

/// Moves every unit to its cheapest group, then sets the costs of every group from its units. Returns the cost of
/// dropping each group.
fn settle(units: &[Histogram], groups: &mut Vec<Costs>) -> Result<Vec<i64>> {
    let mut sums = memory::filled(([0u64; BINS], 0i64), groups.len())?;
    for unit in units {
        let (group, loss) = choose(unit, groups);
        add(&mut sums[group].0, unit);
        sums[group].1 += loss as i64;
    }
    // Groups without units go.
    sums.retain(|(sum, _)| sum.iter().any(|n| *n > 0));
    groups.truncate(sums.len());
    groups.iter_mut().zip(&sums).for_each(|(group, (sum, _))| *group = costs(sum));
    memory::collect(sums.iter().map(|(_, loss)| *loss))
}
