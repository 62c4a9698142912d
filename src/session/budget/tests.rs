use super::*;
use crate::host::packing::flash;

const TOKEN: usize = 100;

/// A share of a layer of two heads, whose steps append `next` tokens.
fn share(bytes: usize, next: u32) -> Share {
    let rows = Layout::new(&flash(2, 24, 8, 64)).unwrap().rows();
    Share::new(bytes, &Sizes { rows, token: TOKEN, fewest: Format::K4V4 }, next)
}

#[test]
fn a_share_is_used_to_its_last_byte() {
    // K and V of a head may each have a page that tokens take in part.
    let pages = 4 * pages::page_size();
    // Beside 10 raw tokens there is room for those of the next step; those of a prompt's chunk leave first.
    for (next, room) in [(0, 1), (1, 1), (16, 16), (17, 0), (300, 0)] {
        let bytes = pages + (10 + room) * TOKEN;
        let holds_raw = |bytes: usize| share(bytes, next).holds_raw(10);
        assert!(holds_raw(2 * bytes) && !holds_raw(2 * bytes - 1), "twice the bytes, steps of {next} tokens");
        assert_eq!([7, 0].map(|more| share(bytes + more, next).for_blocks(10)), [7, 0]);
        assert_eq!(share(bytes - 1, next).for_blocks(10), 0);
    }
    let full = share(pages + 10 * TOKEN + 50, 1);
    assert!(!full.is_exceeded(10, 50) && full.is_exceeded(10, 51), "blocks of a byte more");
    assert!(!full.is_exceeded(9, 150) && full.is_exceeded(11, 0), "a token more");
}
