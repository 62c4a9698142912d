use super::*;
use proptest::prelude::*;
use serde_json::Value;

fn json(metrics: &Metrics) -> String {
    let mut out = String::new();
    metrics.write_json(&mut out).unwrap();
    format!("{{{}}}", out.strip_prefix(',').unwrap_or_default())
}

#[test]
fn nothing_measured_is_an_empty_object() {
    assert!(Metrics::default().fields().all(|(_, value)| value.is_nan()));
    assert_eq!(json(&Metrics::default()), "{}");
}

#[test]
fn the_names_are_those_that_hosts_print_and_ours_after_them() {
    let expected = "h2o_keep_ratio h2o_lossy_ratio h2o_lossless_ratio \
        h2o_target_keep_effective h2o_floor_keep_by_recent_sink h2o_block_quantized_keep h2o_evict_us h2o_codec_us \
        h2o_lossless_raw_bytes h2o_lossless_compressed_bytes h2o_lossless_decompressed_bytes h2o_lossless_compress_us \
        h2o_lossless_decompress_us h2o_lossless_queue_depth_peak h2o_lossless_fallback_count \
        h2o_lossless_backpressure_skip_count h2o_lossless_async_queue_peak h2o_lossless_async_wait_us \
        h2o_lossless_decode_cache_hit h2o_lossless_decode_cache_miss h2o_last_evict_tokens h2o_total_evict_tokens \
        h2o_logical_tokens h2o_physical_tokens h2o_score_us h2o_plan_us h2o_plan_count h2o_stale_plan_count \
        h2o_released_bytes h2o_resident_saved_bytes h2o_reclaimable_bytes h2o_lossless_restored_blocks \
        h2o_lossless_restored_bytes h2o_lossless_restore_hit h2o_lossless_prefetch_hit h2o_lossless_prefetch_miss \
        h2o_lossless_stale_count h2o_host_wait_us_p50 h2o_host_wait_us_p95 h2o_host_wait_us_max \
        h2o_unscored_plan_count h2o_over_limit_count h2o_host_wait_us_p99 \
        quant_tokens quant_bytes quant_block_count \
        quant_unfit_block_count quant_k8v4_count quant_failure_count quant_begin_us";
    let names: Vec<_> = Metrics::default().fields().map(|(name, _)| name).collect();
    assert_eq!(names, expected.split_whitespace().collect::<Vec<_>>());
}

#[test]
fn numbers_are_written_plainly() {
    let metrics = Metrics {
        h2o_keep_ratio: 0.28125,
        h2o_lossless_raw_bytes: 9_007_199_254_740_991.0,
        h2o_evict_us: -0.0,
        h2o_plan_us: 12.5,
        h2o_plan_count: 3.0,
        h2o_codec_us: f64::INFINITY,
        h2o_host_wait_us_max: 1e300,
        ..Metrics::default()
    };
    assert_eq!(
        json(&metrics),
        "{\"h2o_keep_ratio\":0.28125,\"h2o_evict_us\":0,\"h2o_lossless_raw_bytes\":9007199254740991,\
         \"h2o_plan_us\":12.5,\"h2o_plan_count\":3,\"h2o_host_wait_us_max\":1e300}"
    );
}

#[test]
fn no_durations_have_no_quantiles() {
    let none = WaitTimes::default();
    assert_eq!((none.count(), none.max(), none.quantile(0.5), none.quantile(1.0)), (0, None, None, None));
}

#[test]
fn buckets_meet_without_gaps_up_to_the_greatest_number() {
    assert_eq!(WaitTimes::bucket(u64::MAX), WaitTimes::BUCKETS - 1);
    let edges = (0..64).flat_map(|bit| (1..64).map(move |part| (u128::from(part as u64) << bit) as u64));
    for ns in edges.filter(|ns| *ns > 0) {
        let step = WaitTimes::bucket(ns) - WaitTimes::bucket(ns - 1);
        assert!(step <= 1, "{ns}");
    }
    for ns in 0..32 {
        assert_eq!(WaitTimes::middle(WaitTimes::bucket(ns)), ns as f64, "short durations are exact");
    }
}

/// Durations of every magnitude.
fn durations() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec((any::<u64>(), 0..64u32).prop_map(|(ns, shift)| ns >> shift), 0..400)
}

fn recorded(durations: &[u64]) -> WaitTimes {
    let mut times = WaitTimes::default();
    durations.iter().for_each(|ns| times.record(*ns));
    times
}

proptest! {
    #[test]
    fn quantiles_are_those_of_the_sorted_list(
        mut list in durations(), shares in prop::collection::vec(0.0..=1.0, 1..8),
    ) {
        let times = recorded(&list);
        list.sort_unstable();
        prop_assert_eq!(times.count(), list.len() as u64);
        prop_assert_eq!(times.max(), list.last().map(|ns| *ns as f64 / 1000.0));
        prop_assert_eq!(times.quantile(1.0), times.max());
        for q in shares.into_iter().chain([0.0, 0.5, 0.95]) {
            let rank = ((q * list.len() as f64).ceil() as usize).max(1);
            match (times.quantile(q), list.get(rank - 1)) {
                (Some(got), Some(ns)) => {
                    let want = *ns as f64 / 1000.0;
                    prop_assert!((got - want).abs() <= 0.05 * want, "q {} is {}, not {}", q, got, want);
                }
                (got, want) => prop_assert!(got.is_none() && want.is_none(), "{:?} {:?}", got, want),
            }
        }
    }

    #[test]
    fn merged_times_are_those_recorded_together(a in durations(), b in durations()) {
        let mut merged = recorded(&a);
        merged.merge(&recorded(&b));
        let together = recorded(&[a, b].concat());
        prop_assert_eq!(merged.counts, together.counts);
        prop_assert_eq!((merged.count, merged.max_ns), (together.count, together.max_ns));
    }

    #[test]
    fn json_has_only_measured_values(
        a in prop::option::of(any::<f64>()), b in prop::option::of(0.0..1e7f64), c in prop::option::of(any::<u32>()),
    ) {
        let metrics = Metrics {
            h2o_keep_ratio: a.unwrap_or(f64::NAN),
            h2o_score_us: b.unwrap_or(f64::NAN),
            h2o_host_wait_us_max: c.map_or(f64::NAN, f64::from),
            ..Metrics::default()
        };
        let text = json(&metrics);
        let parsed: Value = serde_json::from_str(&text).unwrap();
        let measured: Vec<_> = metrics.fields().filter(|(_, value)| value.is_finite()).collect();
        prop_assert_eq!(parsed.as_object().unwrap().len(), measured.len());
        for (name, value) in measured {
            // serde_json's fast reader may be off by the last bit, which is not little of a denormal.
            let (read, least) = (parsed[name].as_f64().unwrap(), f64::from_bits(1));
            prop_assert!((read - value).abs() <= (value.abs() * 1e-15).max(least), "{} is {}", name, text);
        }
    }
}
