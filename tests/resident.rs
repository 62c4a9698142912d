//! Released memory leaves the process. A program of its own: nothing else allocates.
#![cfg(target_os = "linux")]

#[path = "common/packing.rs"]
mod packing;

use mnnkv::layout::{self, Cache, Layout};
use mnnkv::sys::pages;

/// Resident bytes of this process.
fn resident() -> i64 {
    let statm = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = statm.lines().find(|l| l.starts_with("Rss:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<i64>().unwrap() * 1024
}

#[test]
fn release_lowers_the_resident_size_by_what_it_reports() {
    // 64 MiB: 8 heads x 16,384 tokens x 128 dims, f16, K and V.
    let spec = packing::flash(8, 128, 16, 16_384);
    let layout = Layout::new(&spec).unwrap();
    let (mut key, mut value) = (vec![0x3Cu8; layout.key_bytes()], vec![0x3Cu8; layout.value_bytes()]);
    assert_eq!(key.len() + value.len(), 64 << 20);
    for (begin, count) in [(16, 12_000), (12_100, 4_000), (0, 16_384)] {
        let range = layout.range(begin, count).unwrap();
        let pages =
            layout::whole_pages(&layout, range, (key.as_ptr().addr(), value.as_ptr().addr()), pages::page_size());
        let before = resident();
        let reported =
            layout::release(&mut Cache::new(&layout, &mut key, &mut value).unwrap(), range, &mut pages::give_back)
                as i64;
        let fell = before - resident();
        assert!((fell - reported).abs() <= reported / 10 + (64 << 10), "reported {reported}, fell by {fell}");
        assert!(reported <= pages as i64, "reported {reported} of {pages}");
        assert!(begin == 0 || reported == pages as i64, "all of it was in memory");
    }
    assert!(key.iter().chain(&value).all(|b| *b == 0));
}
