use super::*;
use std::collections::HashMap;

/// A copy by its sequence; `None`: it was written in part.
type Copies = [Option<u64>; 4];

/// What saves leave that end, or are killed, with the copy that is not finished.
fn left_by_saves(count: u64) -> HashMap<Copies, Option<usize>> {
    let mut copies = [Some(0); 4];
    let mut left = HashMap::from([(copies, None)]);
    for sequence in 1..=count {
        let first = 2 * (sequence % 2) as usize;
        for (at, value, unfinished) in [
            (first, None, Some(first)),
            (first, Some(sequence), Some(first + 1)),
            (first + 1, None, Some(first + 1)),
            (first + 1, Some(sequence), None),
        ] {
            copies[at] = value;
            left.insert(copies, unfinished);
        }
    }
    left
}

#[test]
fn what_a_killed_save_leaves_is_read_and_anything_else_is_damage() {
    let left = left_by_saves(6);
    assert_eq!(left.len(), 25);
    let of = |number: usize| number.checked_sub(1).map(|sequence| sequence as u64);
    // Of 7 values each, with sequences to 5.
    for number in 0..7usize.pow(4) {
        let copies: Copies = std::array::from_fn(|i| of(number / 7usize.pow(i as u32) % 7));
        let fingerprint = Extent { offset: FINGERPRINT, len: 0, sum: 0 };
        let index = |sequence| Extent { offset: FINGERPRINT, len: 1, sum: sequence };
        let slot = |sequence: u64| Slot { sequence, index: index(sequence), end: FINGERPRINT + 1, fingerprint };
        match (Slots::read(&copies.map(|copy| copy.map(slot))), left.get(&copies)) {
            (Ok(slots), Some(unfinished)) => {
                assert_eq!(Some(slots.newest().sequence), copies.into_iter().flatten().max(), "{copies:?}");
                assert_eq!(slots.unfinished, unfinished.map(|at| COPIES[at]), "{copies:?}");
            }
            (Err(_), None) => {}
            (read, left) => panic!("{copies:?}: {read:?}, {left:?}"),
        }
    }
}
