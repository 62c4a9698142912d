use super::*;
use proptest::prelude::*;

const MOST: u64 = 600;

proptest! {
    /// Against a map of the file's bytes: blocks of any lengths come and go.
    #[test]
    fn a_block_gets_the_first_place_that_has_room(lengths in prop::collection::vec(1..90u64, 1..120), order in any::<u64>()) {
        let mut file = Offload::new(String::new(), Some(MOST), Duration::ZERO);
        let (mut used, mut blocks) = ([false; MOST as usize], Vec::new());
        for (at, len) in lengths.into_iter().enumerate() {
            if at % 3 == 2 && !blocks.is_empty() {
                let gone: Range<u64> = blocks.swap_remove((order >> (at % 50)) as usize % blocks.len());
                used[gone.start as usize..gone.end as usize].fill(false);
                file.free_place(gone);
                continue;
            }
            let fits = |from: &usize| used[*from..].iter().take(len as usize).all(|used| !used);
            let first = (0..=(MOST - len) as usize).find(fits);
            let place = file.place(len);
            prop_assert_eq!(place.as_ref().ok().map(|place| place.start as usize), first);
            if let Ok(place) = place {
                prop_assert_eq!(place.end - place.start, len);
                used[place.start as usize..place.end as usize].fill(true);
                file.take(&place);
                blocks.push(place);
            }
        }
    }
}
