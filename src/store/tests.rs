//! The store against a host that keeps the contents of every token: random schedules, worked examples and damage.

use super::*;
use crate::dtype::Dtype;
use crate::gear::{Effort, Encoder, Format, Options, Predictors};
use crate::host::Host;
use crate::host::packing::flash;
use crate::layout::{Cache, Spec};
use crate::status::Status;
#[cfg(target_os = "linux")]
use crate::sys::pages;
use proptest::prelude::*;

fn host(max_tokens: u32, seed: u64) -> Host {
    let spec = Spec { value: Dtype::F32.into(), l_pack: 2, flash_block: 16, ..flash(2, 12, 8, max_tokens) };
    Host::new(spec, seed)
}

/// A host of as many tokens as it has room for, and a store.
fn full(tokens: u32, settings: Settings) -> (Store, Host) {
    let mut host = host(tokens, 9);
    host.append(tokens as usize);
    (Store::new(settings).unwrap(), host)
}

fn submit(store: &mut Store, layer: u32, host: &Host, begin: u32, count: u32) -> Result<Submitted> {
    store.submit(layer, &host.cache_ref(), host.range(begin, count), Purpose::Keep)
}

/// Checks that every token reads as it was written, but for those that only the store has.
fn check(host: &Host, store: &Store, layer: u32) {
    let blocks = store.layers.get(&layer).map_or(&[][..], |layer| &layer.blocks);
    let released = |t: u32| blocks.iter().filter(|b| b.is_released() && b.overlaps(&(t..t + 1))).count();
    host.check(&host.all(), host.tokens.len(), |at, _| {
        assert!(released(at as u32) <= 1, "token {at} of layer {layer} is in several released blocks");
        released(at as u32) == 1
    });
}

fn is_zero(host: &Host, token: usize) -> bool {
    let (key, value) = host.dense(token..token + 1);
    key.iter().chain(&value).all(|b| *b == 0)
}

#[derive(Clone, Debug)]
enum Step {
    Append(u32),
    Submit(u32, u32),
    Commit,
    Prefetch,
    Restore,
    Rewrite(u32),
    Compact(Vec<(u32, u32)>),
    Truncate(u32),
    Grow,
    Shift(u32, u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1u32..30).prop_map(Step::Append),
        4 => (0u32..100, 1u32..40).prop_map(|(b, c)| Step::Submit(b, c)),
        4 => Just(Step::Commit),
        2 => Just(Step::Prefetch),
        2 => Just(Step::Restore),
        1 => (0u32..100).prop_map(Step::Rewrite),
        2 => prop::collection::vec((0u32..8, 1u32..25), 0..6).prop_map(Step::Compact),
        1 => (0u32..100).prop_map(Step::Truncate),
        1 => Just(Step::Grow),
        1 => (0u32..100, 1u32..40).prop_map(|(b, c)| Step::Shift(b, c)),
    ]
}

/// Whether the range overlaps what would be lost: released tokens, or a block of other tokens that equals the cache.
fn must_refuse(layer: &LayerBlocks, host: &Host, range: TokenRange) -> bool {
    let overlapping = || layer.blocks.iter().filter(|b| b.overlaps(&tokens(range)));
    if overlapping().any(|b| b.is_released()) {
        return true;
    }
    let is_current = |b: &Block| {
        let Some(its) = b.range_in(&host.layout) else { return false };
        let mut rows = KvBytes::new(0, 0).unwrap();
        gather(&mut rows, &host.cache_ref(), its).unwrap();
        rows.digest() == b.shape.digest
    };
    let is_same = |b: &Block| b.is_whole_at(range) && is_current(b);
    !overlapping().any(is_same) && overlapping().any(|b| b.has_content() && is_current(b))
}

fn run(store: &mut Store, host: &mut Host, layer: u32, step: &Step) {
    match step {
        Step::Append(n) => host.append(host.room().min(*n as usize)),
        Step::Submit(begin, count) => {
            let begin = (*begin).min(host.len());
            let range = host.range(begin, (*count).min(host.len() - begin));
            // While blocks are being encoded it is open which of them shrink, and are worth protecting.
            if store.layers.get(&layer).is_some_and(|l| l.blocks.iter().any(|b| b.state == BlockState::Encoding)) {
                store.settle();
            }
            let refused = range.is_empty() || store.layers.get(&layer).is_some_and(|l| must_refuse(l, host, range));
            let result = submit(store, layer, host, range.begin() as u32, range.count() as u32);
            match result.and_then(Submitted::ticket).map_err(|e| e.status()).err() {
                Some(Status::Busy) => {
                    let unclaimed = |b: &Block| b.blob.is_some() && !b.claimed;
                    let waits = store.layers.values().flat_map(|layer| &layer.blocks).any(unclaimed);
                    assert!(!refused && (store.encoding > 0 || waits && store.settings.pending_bytes > 0));
                }
                other => assert_eq!(other, refused.then_some(Status::InvalidArgument)),
            }
        }
        Step::Commit => {
            store.commit(layer, host.cache(), Writes::Possible).unwrap();
        }
        Step::Prefetch => store.prefetch(layer, Spares::default()),
        Step::Restore => {
            store.restore(layer, host.cache()).unwrap();
            assert!(store.layers.get(&layer).is_none_or(|l| l.blocks.iter().all(|b| !b.is_released())));
        }
        Step::Rewrite(token) => {
            // A host may only write to tokens that are there.
            store.restore(layer, host.cache()).unwrap();
            if *token < host.len() {
                host.write(*token as usize);
            }
        }
        Step::Compact(steps) => {
            let mut pairs: Vec<Pair> = Vec::new();
            let mut at = 0;
            for (skip, len) in steps {
                let end = at + skip + len;
                if end > host.len() {
                    break;
                }
                pairs.push([(at + skip) as i32, *len as i32]);
                at = end;
            }
            host.compact(&pairs);
            store.compacted(layer, &pairs).unwrap();
        }
        Step::Truncate(len) => {
            let len = (*len).min(host.len());
            host.tokens.truncate(len as usize);
            store.truncated(layer, len);
        }
        Step::Grow => host.move_to_room_for(host.layout.max_tokens() + 20),
        Step::Shift(begin, count) => {
            // Tokens are overwritten, released or not, and reported.
            let end = (begin + count).min(host.len());
            (*begin..end).for_each(|token| host.write(token as usize));
            store.rewritten(layer, *begin..end.max(*begin)).unwrap();
        }
    }
    check(host, store, layer);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn no_schedule_loses_or_changes_a_token(
        steps in prop::collection::vec((any::<bool>(), step()), 1..60),
        seed: u64,
        workers in prop::sample::select(vec![0u32, 0, 1, 3]),
        bounds in prop::sample::select(vec![(256usize, 0usize, 0usize), (1, 0, 3000), (3, 4000, 100_000)]),
        strict_roundtrip: bool,
    ) {
        let (max_queue, pending_bytes, decode_cache_bytes) = bounds;
        let encoding = Encoding { strict_roundtrip, ..Encoding::default() };
        let settings = Settings { encoding, workers, max_queue, pending_bytes, decode_cache_bytes };
        let mut store = Store::new(settings).unwrap();
        let mut hosts = [host(100, seed), host(80, !seed)];
        for host in &mut hosts {
            host.append(60);
        }
        for (second, step) in &steps {
            let layer = usize::from(*second);
            run(&mut store, &mut hosts[layer], layer as u32, step);
        }
        for (layer, host) in hosts.iter_mut().enumerate() {
            run(&mut store, host, layer as u32, &Step::Restore);
        }
        let stats = store.statistics(None);
        prop_assert_eq!(stats.released_blocks, 0);
        prop_assert_eq!(stats.restored_blocks, stats.prefetch_hits + stats.cache_hits + stats.cache_misses);
        prop_assert_eq!(stats.failed_blocks, 0);
        prop_assert!(stats.compressed_bytes < stats.raw_bytes || stats.raw_bytes == 0);
        // With no token left nothing is kept, and nothing counts as under way once the workers are done.
        (0..2).for_each(|layer| store.truncated(layer, 0));
        store.settle();
        prop_assert_eq!((store.encoding, store.staged_bytes, store.decoded.bytes(None)), (0, 0, 0));
    }
}

/// Raw bytes of a token of [`host`].
const TOKEN_BYTES: u64 = 2 * 12 * (2 + 4);

/// 64 tokens of layer 0, of which 8..40 are released.
fn released() -> (Store, Host) {
    let (mut store, mut host) = (Store::new(Settings::default()).unwrap(), host(100, 9));
    host.append(64);
    submit(&mut store, 0, &host, 8, 32).unwrap();
    store.commit(0, host.cache(), Writes::Possible).unwrap();
    assert_eq!(store.statistics(None).released_blocks, 1);
    assert!(is_zero(&host, 8), "released tokens read as zero");
    (store, host)
}

#[test]
fn a_restored_block_is_released_again_without_encoding() {
    let (mut store, mut host) = released();
    for round in 1..4 {
        let restored = store.restore(0, host.cache()).unwrap();
        assert_eq!((restored.blocks, restored.bytes), (1, 32 * TOKEN_BYTES));
        check(&host, &store, 0);
        let committed = store.commit(0, host.cache(), Writes::Possible).unwrap();
        assert_eq!((committed.released_blocks, committed.stale_blocks), (1, 0));
        let stats = store.statistics(None);
        assert_eq!((stats.submitted_blocks, stats.restored_blocks, stats.released_blocks), (1, round, 1));
    }
    // Submitting the same tokens again changes nothing.
    store.restore(0, host.cache()).unwrap();
    assert_eq!(submit(&mut store, 0, &host, 8, 32).unwrap(), Submitted::Known(0));
    assert_eq!(store.statistics(None).submitted_blocks, 1);
}

#[test]
fn tokens_submitted_again_with_other_contents_are_another_block() {
    let (mut store, mut host) = full(64, Settings::default());
    let submitted = |store: &mut Store, host: &Host| submit(store, 0, host, 8, 32).unwrap();
    assert_eq!(submitted(&mut store, &host), Submitted::Encoded(0));
    assert_eq!(submitted(&mut store, &host), Submitted::Known(0));
    host.write(20);
    assert_eq!(submitted(&mut store, &host), Submitted::Encoded(1));
    store.commit(0, host.cache(), Writes::Possible).unwrap();
    let stats = store.statistics(None);
    assert_eq!((stats.released_blocks, stats.resident_blocks, stats.stale_blocks), (1, 0, 1));
    store.restore(0, host.cache()).unwrap();
    check(&host, &store, 0);
}

/// A store with a worker, of which only one block may be under way, and a host of two layers.
fn bounded() -> (Store, [Host; 2]) {
    let store = Store::new(Settings { workers: 1, pending_bytes: 1, ..Settings::default() }).unwrap();
    let mut hosts = [host(100, 3), host(100, 5)];
    hosts.iter_mut().for_each(|host| host.append(100));
    (store, hosts)
}

fn refused(store: &mut Store, hosts: &[Host], layer: usize, begin: u32) -> Option<Status> {
    match submit(store, layer as u32, &hosts[layer], begin, 32).unwrap() {
        Submitted::Full(error) => {
            assert!(error.message().ends_with("pending_bytes is 1"), "{error}");
            Some(error.status())
        }
        Submitted::Queued(_) => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_full_queue_is_refused_by_its_own_bound() {
    let (mut store, host) = full(100, Settings { workers: 1, max_queue: 0, ..Settings::default() });
    let Submitted::Full(error) = submit(&mut store, 0, &host, 0, 32).unwrap() else { panic!("it was queued") };
    assert_eq!(error.message(), "0 blocks wait to be encoded; max_queue is 0");
}

#[test]
fn bytes_are_under_way_until_they_have_replaced_raw_ones() {
    let (mut store, mut hosts) = bounded();
    assert_eq!(refused(&mut store, &hosts, 0, 0), None, "one block is always let in");
    assert_eq!(refused(&mut store, &hosts, 0, 32), Some(Status::Busy));
    store.settle();
    assert_eq!(refused(&mut store, &hosts, 0, 32), Some(Status::Busy), "its blob is beside the raw bytes");
    assert!(store.statistics(None).busy_blocks == 2 && store.statistics(Some(1)).busy_blocks == 0);
    store.commit(0, hosts[0].cache(), Writes::Possible).unwrap();
    assert_eq!(refused(&mut store, &hosts, 0, 32), None);
}

#[test]
fn blobs_of_a_layer_without_further_steps_make_way_in_the_end() {
    let (mut store, mut hosts) = bounded();
    assert_eq!(refused(&mut store, &hosts, 0, 0), None);
    store.settle();
    store.commit(0, hosts[0].cache(), Writes::Possible).unwrap();
    assert_eq!(refused(&mut store, &hosts, 1, 0), None);
    store.settle();
    // While other layers make progress, no blob makes way.
    for _ in 0..3 {
        for _ in 0..store.most_refusals() {
            assert_eq!(refused(&mut store, &hosts, 0, 32), Some(Status::Busy));
        }
        store.restore(0, hosts[0].cache()).unwrap();
        store.commit(0, hosts[0].cache(), Writes::None).unwrap();
    }
    store.restore(0, hosts[0].cache()).unwrap();
    for _ in 0..store.most_refusals() {
        assert_eq!(refused(&mut store, &hosts, 0, 32), Some(Status::Busy));
    }
    assert_eq!(refused(&mut store, &hosts, 0, 32), None);
    assert_eq!(store.statistics(Some(1)).resident_blocks, 0);
    assert!(store.statistics(Some(0)).resident_blocks > 0, "blobs that have replaced raw bytes are kept");
    hosts.iter().zip(0..).for_each(|(host, layer)| check(host, &store, layer));
}

#[test]
fn blobs_wait_for_their_layers_next_step_however_many_layers_there_are() {
    let (mut store, mut hosts) = bounded();
    for _ in 0..3 {
        assert_eq!(refused(&mut store, &hosts, 0, 0), None);
        store.settle();
        let others = &hosts[1];
        for layer in 1..400 {
            let refused = submit(&mut store, layer, others, 0, 32).unwrap();
            assert!(matches!(refused, Submitted::Full(_)), "layer {layer}");
        }
        store.commit(0, hosts[0].cache(), Writes::Possible).unwrap();
        assert_eq!(store.statistics(Some(0)).released_blocks, 1);
        store.truncated(0, 0);
    }
}

impl Store {
    /// Blocks until the workers have nothing to do.
    pub(crate) fn settle(&mut self) {
        while self.runner.as_ref().is_some_and(|runner| runner.queue.wait()) {
            self.collect();
        }
    }

    /// Damages a bit of every blob, or repairs it.
    pub(crate) fn flip_blobs(&mut self, bit: usize) {
        for block in self.layers.values_mut().flat_map(|layer| &mut layer.blocks) {
            for part in block.blob.as_mut().unwrap().get_mut().unwrap().bytes_mut() {
                part[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}

#[test]
fn a_damaged_blob_is_an_error_and_is_kept() {
    let (mut store, mut host) = released();
    for bit in [0, 100, 1000] {
        store.flip_blobs(bit);
        let before = (host.key.to_vec(), host.value.to_vec());
        assert_eq!(store.restore(0, host.cache()).unwrap_err().status(), Status::Corrupt);
        assert!(host.key.to_vec() == before.0 && host.value.to_vec() == before.1);
        assert_eq!(store.statistics(None).released_blocks, 1, "still there");
        store.flip_blobs(bit);
    }
    store.restore(0, host.cache()).unwrap();
    check(&host, &store, 0);
}

#[test]
fn a_cache_that_no_longer_fits_is_stale_and_the_block_waits() {
    let (mut store, mut host) = released();
    let other = Spec { kv_heads: 1, ..host.spec() };
    for spec in [other, Spec { max_tokens: 39, ..host.spec() }, Spec { key: Dtype::Bf16.into(), ..host.spec() }] {
        let layout = Layout::new(&spec).unwrap();
        let (mut key, mut value) = (vec![5; layout.key_bytes()], vec![5; layout.value_bytes()]);
        let error = store.restore(0, Cache::new(&layout, &mut key, &mut value).unwrap()).unwrap_err();
        assert_eq!(error.status(), Status::Stale, "{error}");
        assert!(key.iter().chain(&value).all(|b| *b == 5));
    }
    store.restore(0, host.cache()).unwrap();
    check(&host, &store, 0);
}

#[test]
fn a_block_is_released_beside_one_that_the_layout_has_no_room_for() {
    let (mut store, mut host) = full(100, Settings::default());
    submit(&mut store, 0, &host, 60, 40).unwrap();
    store.commit(0, host.cache(), Writes::Possible).unwrap();
    let (_, mut short) = full(60, Settings::default());
    submit(&mut store, 0, &short, 20, 40).unwrap();
    store.commit(0, short.cache(), Writes::Possible).unwrap();
    assert!(is_zero(&short, 59), "released tokens read as zero");
}

#[test]
fn tokens_written_after_submit_stay_raw() {
    let (mut store, mut host) = full(64, Settings::default());
    submit(&mut store, 0, &host, 0, 32).unwrap();
    submit(&mut store, 0, &host, 32, 32).unwrap();
    host.write(40);
    store.commit(0, host.cache(), Writes::Possible).unwrap();
    let stats = store.statistics(None);
    assert_eq!((stats.released_blocks, stats.resident_blocks, stats.stale_blocks), (1, 0, 1));
    check(&host, &store, 0);
}

#[cfg(target_os = "linux")]
#[test]
fn blocks_that_cut_a_flash_block_in_two_give_its_memory_back_together() {
    // A flash block of V is two pages, interleaved by dims: half of its tokens fill no page.
    let spec = flash(1, 64, 16, 4096);
    let layout = Layout::new(&spec).unwrap();
    let (mut key, mut value) = (vec![1; layout.key_bytes()], vec![1; layout.value_bytes()]);
    let mut store = Store::new(Settings::default()).unwrap();
    let (begin, count) = (32, 64);
    for i in 0..60 {
        store
            .submit(
                0,
                &CacheRef::new(&layout, &key, &value).unwrap(),
                layout.range(begin + i * count, count).unwrap(),
                Purpose::Keep,
            )
            .unwrap();
    }
    let cache = Cache::new(&layout, &mut key, &mut value).unwrap();
    let committed = store.commit(0, cache, Writes::Possible).unwrap();
    let raw = 2 * layout.dense_key_bytes(60 * 64) as u64;
    assert!(committed.released_blocks == 60 && committed.released_bytes > raw * 95 / 100, "{committed:?} of {raw}");
    store.restore(0, Cache::new(&layout, &mut key, &mut value).unwrap()).unwrap();
    assert!(key.iter().chain(&value).all(|b| *b == 1));
}

#[cfg(target_os = "linux")]
#[test]
fn no_memory_is_taken_for_tokens_that_are_gone() {
    for workers in [0, 1] {
        let layout = Layout::new(&flash(1, 64, 16, 4096)).unwrap();
        let (mut key, mut value) = (vec![1; layout.key_bytes()], vec![1; layout.value_bytes()]);
        let mut store = Store::new(Settings { workers, ..Settings::default() }).unwrap();
        for (begin, count) in [(0, 64), (64, 4032)] {
            let range = layout.range(begin, count).unwrap();
            store.submit(0, &CacheRef::new(&layout, &key, &value).unwrap(), range, Purpose::Keep).unwrap();
        }
        while store.statistics(None).resident_blocks < 2 {
            std::thread::yield_now();
        }
        store.commit(0, Cache::new(&layout, &mut key, &mut value).unwrap(), Writes::Possible).unwrap();
        store.truncated(0, 64);
        store.restore(0, Cache::new(&layout, &mut key, &mut value).unwrap()).unwrap();
        drop(store);
        for buffer in [&mut key, &mut value] {
            let (kept, gone) = buffer.split_at_mut(64 * 128);
            assert!(kept.iter().all(|b| *b == 1));
            assert!(pages::give_back(gone) < gone.len() as u64 / 10);
        }
    }
}

#[test]
fn a_block_that_would_not_shrink_is_not_kept() {
    let mut host = host(16, 1);
    host.plain = false;
    host.append(16);
    let encoding = Encoding { strict_roundtrip: true, ..Encoding::default() };
    let mut store = Store::new(Settings { encoding, ..Settings::default() }).unwrap();
    assert_eq!(submit(&mut store, 0, &host, 0, 16).unwrap(), Submitted::Raw(0));
    let stats = store.statistics(None);
    assert_eq!((stats.no_gain_blocks, stats.resident_blocks, stats.compressed_bytes), (1, 0, 0));
    assert_eq!((stats.encoded_bytes, stats.encoded_to_bytes, stats.decoded_bytes), (2304, 2304, 0));
    assert_eq!(store.commit(0, host.cache(), Writes::Possible).unwrap(), Committed::default());
}

#[test]
fn blobs_are_those_of_the_encoder_with_the_settings_of_the_store() {
    let layout = Layout::new(&flash(2, 64, 16, 256)).unwrap();
    // Rows that follow each other slowly, so that predictors matter.
    let word = |at: usize| (0x3C00 + (at / 128 * 3 + at % 128 * 5 + at % 7) % 2000) as u16;
    let dense: Vec<u8> = (0..2 * 256 * 64).flat_map(|at| word(at).to_ne_bytes()).collect();
    let (mut key, mut value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
    let all = layout.range(0, 256).unwrap();
    layout::scatter(&mut Cache::new(&layout, &mut key, &mut value).unwrap(), all, &dense, &dense).unwrap();
    let mut sizes = Vec::new();
    for (raw_keys, effort) in [(true, 5), (false, 5), (false, 1)] {
        let effort = Effort::new(effort, "effort").unwrap();
        let all = Predictors::ALL;
        let key_predictors = if raw_keys { Predictors::raw() } else { all };
        let encoding = Encoding { key_predictors, value_predictors: all, effort, strict_roundtrip: false };
        let mut store = Store::new(Settings { encoding, ..Settings::default() }).unwrap();
        store
            .submit(0, &CacheRef::new(&layout, &key, &value).unwrap(), layout.range(0, 256).unwrap(), Purpose::Keep)
            .unwrap();
        let size = |predictors| {
            let options = Options { format: Format::V1, predictors, effort };
            let heads = dense.chunks_exact(dense.len() / 2);
            heads.map(|head| Encoder::default().encode(head, Dtype::F16, &options).unwrap().len()).sum::<usize>()
        };
        let (of_key, of_value) = (size(key_predictors), size(all));
        assert_eq!(store.statistics(None).compressed_bytes as usize, of_key + of_value);
        sizes.extend([of_key, of_value]);
    }
    sizes.sort_unstable();
    sizes.dedup();
    assert!(sizes.len() >= 3, "raw and predicted, and two efforts: {sizes:?}");
}

#[test]
fn a_block_that_equals_the_cache_is_not_dropped_for_a_part_of_it() {
    let (mut store, mut host) = full(64, Settings::default());
    submit(&mut store, 0, &host, 0, 40).unwrap();
    let error = submit(&mut store, 0, &host, 10, 1).unwrap_err();
    assert_eq!(error.status(), Status::InvalidArgument);
    assert!(error.message().contains("tokens 10 to 10 of layer 0 overlap block 0 (tokens 0 to 39)"), "{error}");
    assert_eq!((store.statistics(None).resident_blocks, store.statistics(None).stale_blocks), (1, 0));
    // After one of its tokens was rewritten the block is dropped and counted.
    host.write(30);
    submit(&mut store, 0, &host, 10, 20).unwrap();
    assert_eq!((store.statistics(None).resident_blocks, store.statistics(None).stale_blocks), (1, 1));
    store.commit(0, host.cache(), Writes::Possible).unwrap();
    store.restore(0, host.cache()).unwrap();
    check(&host, &store, 0);
}

#[test]
fn a_block_that_replaces_one_on_its_way_is_encoded() {
    let (mut store, mut host) = full(100, Settings { workers: 1, ..Settings::default() });
    for round in 0..50 {
        host.write(5);
        submit(&mut store, 0, &host, 0, 100).unwrap();
        // The worker is at the block before, or it waits.
        if round % 10 == 9 {
            store.settle();
            let stats = store.statistics(None);
            assert_eq!((stats.queued_blocks, stats.resident_blocks), (0, 1), "round {round}");
        }
    }
}

#[test]
fn blobs_of_rewritten_tokens_are_never_restored_over_them() {
    let (mut store, mut host) = released();
    // 8 to 39 are released, one after the other is rewritten where it lies, and those around it come back.
    for token in [8, 20, 39] {
        host.write(token as usize);
        store.rewritten(0, token..token + 1).unwrap();
    }
    assert_eq!(store.statistics(None).stale_blocks, 3);
    check(&host, &store, 0);
    assert_eq!(store.restore(0, host.cache()).unwrap().bytes, 29 * TOKEN_BYTES);
    check(&host, &store, 0);
    store.rewritten(7, 0..100).unwrap();
}

/// Quadratic work would take minutes here.
#[test]
fn forty_thousand_blocks_of_a_token_are_no_more_than_forty_thousand_blocks() {
    const TOKENS: u32 = 40_000;
    let layout = Layout::new(&Spec { head_dim: 16, ..flash(1, 64, 16, TOKENS) }).unwrap();
    let (mut key, mut value) = (vec![1; layout.key_bytes()], vec![1; layout.value_bytes()]);
    let mut store = Store::new(Settings { decode_cache_bytes: 20_000, ..Settings::default() }).unwrap();
    let config = Encoding { effort: Effort::new(1, "effort").unwrap(), ..Encoding::default() };
    store.settings.encoding = config;
    for token in 0..TOKENS {
        store
            .submit(0, &CacheRef::new(&layout, &key, &value).unwrap(), layout.range(token, 1).unwrap(), Purpose::Keep)
            .unwrap();
    }
    let blocks = store.statistics(None).resident_blocks + store.statistics(None).no_gain_blocks;
    assert_eq!(blocks, u64::from(TOKENS));
    for _ in 0..2 {
        store.commit(0, Cache::new(&layout, &mut key, &mut value).unwrap(), Writes::None).unwrap();
        store.restore(0, Cache::new(&layout, &mut key, &mut value).unwrap()).unwrap();
    }
    let pairs: Vec<Pair> = (0..TOKENS as i32 / 2).map(|t| [2 * t, 1]).collect();
    store.compacted(0, &pairs).unwrap();
    assert!(key.iter().chain(&value).all(|b| *b == 1));
}

#[test]
fn layers_without_blocks_are_left_alone() {
    let (mut store, mut host) = released();
    assert_eq!(store.commit(7, host.cache(), Writes::Possible).unwrap(), Committed::default());
    assert_eq!(store.restore(7, host.cache()).unwrap().blocks, 0);
    store.compacted(7, &[[0, 1]]).unwrap();
    store.truncated(7, 0);
    assert_eq!(store.compacted(0, &[[4, 4], [2, 1]]).unwrap_err().status(), Status::InvalidArgument);
    assert_eq!(store.statistics(None).released_blocks, 1);
}
