//! The arena against a plain map.

use crate::recall::arena::{Arena, Slot};
use crate::sys::memory::shortage;
use proptest::prelude::*;

proptest! {
    #[test]
    fn blobs_are_what_was_put_in_whatever_comes_and_goes_and_all_memory_goes_back(
        script in prop::collection::vec((any::<u16>(), 0usize..4, 0u32..100_000), 1..200), refusals: bool, seed: u64,
    ) {
        let mut arena = Arena::default();
        let mut blobs: Vec<(Slot, Vec<u8>)> = Vec::new();
        shortage::set(if refusals { 5 } else { 0 }, seed);
        for (step, (number, action, len)) in script.into_iter().enumerate() {
            if action == 0 && !blobs.is_empty() {
                arena.remove(blobs.swap_remove(usize::from(number) % blobs.len()).0);
            } else {
                // Many of equal length, as in 4 bits, and some beyond a region.
                let len = [4_864, 4_864, len / 10, len * 5][action] as usize;
                let blob = vec![step as u8; len];
                match arena.put(&blob) {
                    Ok(slot) => blobs.push((slot, blob)),
                    Err(error) => prop_assert!(refusals, "{error}"),
                }
            }
            for (slot, blob) in &blobs {
                prop_assert!(arena.get(slot) == &blob[..]);
            }
            let needed: usize = blobs.iter().map(|(_, blob)| blob.len()).sum();
            prop_assert!(arena.bytes() >= needed);
        }
        shortage::set(0, 0);
        blobs.drain(..).for_each(|(slot, _)| arena.remove(slot));
        prop_assert!(arena.bytes() < 256 * 1024, "{} bytes without a blob", arena.bytes());
    }
}

#[test]
fn a_freed_place_is_used_again_before_memory_grows() {
    let mut arena = Arena::default();
    let mut slots: Vec<Slot> = (0..500).map(|_| arena.put(&[1; 4_864]).unwrap()).collect();
    let bytes = arena.bytes();
    assert!(bytes < 500 * 4_864 * 5 / 4, "{bytes} bytes");
    for round in 0..1_000 {
        arena.remove(slots.swap_remove(round * 7 % slots.len()));
        slots.push(arena.put(&[2; 4_864]).unwrap());
        assert_eq!(arena.bytes(), bytes);
    }
}
