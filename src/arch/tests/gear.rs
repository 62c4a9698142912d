//! The kernels of gear.

use super::*;

#[test]
fn every_level_lists_the_places_of_a_byte() {
    for len in lengths() {
        for src in contents(len) {
            let byte = src.get(len / 2).copied().unwrap_or(7);
            let expected: Vec<u16> = (0..len).filter(|i| src[*i] == byte).map(|i| i as u16).collect();
            for k in available() {
                let mut places = vec![0; len];
                let count = (k.places)(&src, byte, &mut places);
                assert_eq!(places[..count], expected, "{:?} {len}", k.level);
            }
        }
    }
}
