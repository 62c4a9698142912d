//! What the memory counts of a budget say, beside what is allocated.

use super::counting_allocator::{allocations, held_by_all};
use super::{common, packing};
use mnnkv::attend::{Format, Queries, Shape, Step};
use mnnkv::dtype::Dtype;
use mnnkv::layout::{Cache, CacheRef, Layout};
use mnnkv::session::{Host, Session};

const HEADS: usize = 4;
const DIMS: usize = 64;

/// Blocks are made every 64 tokens, and lists grow then. All other steps use the memory of those before.
#[test]
fn a_step_that_makes_no_block_allocates_nothing() {
    for config in [r#"{"kv_quant": "k8v4"}"#, r#"{"kv_memory_bytes": 3000000, "kv_quant": "k8v4"}"#] {
        let layout = Layout::new(&packing::flash(HEADS as u32, DIMS as u32, 8, 1024)).unwrap();
        let caches = [(); 2].map(|()| (vec![0x11; layout.key_bytes()], vec![0x11; layout.value_bytes()]));
        let session = Session::with_host(config.as_bytes(), b"", 2, 1, Host { attends: true }).unwrap();
        let mut layers = caches.map(|(key, value)| (key, value, 0));
        let queries = vec![0x11; HEADS * DIMS * 2];
        let blocks = |session: &Session| session.metrics(None).unwrap().quant_block_count;
        let mut quiet = 0;
        for step in 0..600 {
            let (made, before) = (blocks(&session), allocations());
            for (layer, (key, value, kv_len)) in (0..).zip(&mut layers) {
                let begun = session.begin(layer, Some(Cache::new(&layout, key, value).unwrap()), *kv_len).unwrap();
                *kv_len = begun.kv_len + 1;
                let cache = CacheRef::new(&layout, key, value).unwrap();
                for part in 0..3 {
                    session.attend(layer, (&cache, *kv_len), &one_row(&queries), (part, 3), &mut |_, _, _| {}).unwrap();
                }
                session.end(layer, 0, 1, Cache::new(&layout, key, value).unwrap(), *kv_len).unwrap();
            }
            let allocated = allocations() - before;
            if step > 200 && blocks(&session) == made {
                quiet += 1;
                assert_eq!(allocated, 0, "step {step} with {config}");
            }
        }
        assert!(quiet > 300);
    }
}

/// A step of one row.
fn one_row(queries: &[u8]) -> Step<'_> {
    let queries = Queries {
        dtype: Dtype::F16,
        heads: HEADS,
        rows: 1,
        dims: DIMS,
        head_stride: DIMS * 2,
        row_stride: HEADS * DIMS * 2,
        scale: 0.0,
        data: queries,
    };
    Step { queries, is_causal: true, window: None, soft_cap: None, sinks: None, mask: None }
}

/// A thread of the session has a part of the memory: no other test may run beside.
#[test]
#[cfg(unix)]
fn a_budget_counts_all_memory_in_a_process_of_its_own() {
    let name = "budget::a_budget_counts_what_is_allocated_for_blocks_lists_and_attention";
    let done = common::again(name).output().unwrap();
    let output = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(done.status.success() && output[0].contains("1 passed"), "{output:?}");
}

#[test]
#[ignore = "run by the test above"]
fn a_budget_counts_what_is_allocated_for_blocks_lists_and_attention() {
    let path = std::env::temp_dir().join(format!("mnnkv-{}-counted.blocks", std::process::id()));
    let path = path.to_str().unwrap().replace('\\', "/");
    for file in [String::new(), format!(r#", "kv_memory_file": "{path}""#)] {
        let layout = Layout::new(&packing::flash(HEADS as u32, DIMS as u32, 8, 4096)).unwrap();
        let mut random = common::Random::new(9);
        let mut words = |bytes: usize| -> Vec<u8> {
            (0..bytes / 2).flat_map(|_| (0x3400 | random.next() as u16 & 0x80FF).to_le_bytes()).collect()
        };
        let (keys, values) = (words(layout.key_bytes()), words(layout.value_bytes()));
        let (mut key, mut value) = (keys.clone(), values.clone());
        let queries = words(HEADS * DIMS * 2);
        let config = format!(r#"{{"kv_memory_bytes": 3000000, "kv_quant": "k4v4"{file}}}"#);
        let host = Host { attends: true };
        let session = Session::with_host(config.as_bytes(), b"", 1, 1, host).unwrap();
        let (mut kv_len, mut before) = (0, 0);
        for step in 0..if file.is_empty() { 50 } else { 400 } {
            let begun = session.begin(0, Some(Cache::new(&layout, &mut key, &mut value).unwrap()), kv_len).unwrap();
            kv_len = begun.kv_len + 64;
            // What begin has released is zero.
            key.copy_from_slice(&keys);
            value.copy_from_slice(&values);
            if begun.attends {
                let cache = CacheRef::new(&layout, &key, &value).unwrap();
                session.attend(0, (&cache, kv_len), &one_row(&queries), (0, 1), &mut |_, _, _| {}).unwrap();
            }
            session.end(0, HEADS as u32, 1, Cache::new(&layout, &mut key, &mut value).unwrap(), kv_len).unwrap();
            // Waits until nothing is on its way to the file.
            session.trim(3_000_000).unwrap();
            let stats = session.memory_stats().unwrap();
            assert_eq!(stats.dropped_tokens, 0);
            // Codes are in pages of their own, not in memory of the allocator.
            let tokens = session.metrics(None).unwrap().quant_tokens as u64;
            let lines = HEADS * Shape::new(DIMS).unwrap().lines(Format::K4V4);
            assert_eq!(session.metrics(None).unwrap().quant_k8v4_count, 0.0);
            let codes = (tokens - stats.file_tokens) * lines as u64;
            let counted = (stats.block_bytes + stats.working_bytes - codes) as isize;
            if step < 5 {
                before = held_by_all() - counted;
            }
            // Of each block the room of lists that grow ahead, of the layer its positions: not part of a budget.
            let rest = 1024 + 40 * (tokens / 64) as isize;
            assert!(
                (-64..=rest).contains(&(held_by_all() - before - counted)),
                "{} allocated, {counted} counted, {stats:?}",
                held_by_all() - before
            );
        }
    }
}
