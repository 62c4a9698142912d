//! Layout operations against MNN's formulas. Buffers start as noise and are compared whole: every padding word, gap and
//! token outside the range is a canary.

mod common;
#[path = "common/packing.rs"]
mod packing;

use common::Random;
use mnnkv::dtype::Dtype;
use mnnkv::layout::{self, CacheRef, Int8Unit, Kind, Layout, Pair, Spec};
use mnnkv::status::Status;
use packing::{Dense, Packing};
use proptest::prelude::*;

/// A packing, its layout, and buffers of noise.
struct Cache {
    packing: Packing,
    layout: Layout,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Cache {
    fn new(spec: Spec, seed: u64) -> Self {
        let packing = Packing { spec };
        let (k, v) = packing.bytes();
        let mut random = Random(seed | 1);
        Cache { packing, layout: Layout::new(&spec).unwrap(), key: random.bytes(k), value: random.bytes(v) }
    }

    fn rows(&self, tokens: std::ops::Range<usize>) -> Dense {
        self.packing.rows(&self.key, &self.value, &tokens.collect::<Vec<_>>())
    }

    fn put(&mut self, tokens: std::ops::Range<usize>, rows: &Dense) {
        self.packing.put(&mut self.key, &mut self.value, &tokens.collect::<Vec<_>>(), rows);
    }

    fn edit(&mut self) -> layout::Cache<'_> {
        layout::Cache::new(&self.layout, &mut self.key, &mut self.value).unwrap()
    }

    fn gathered(&self, begin: usize, count: usize) -> Dense {
        let range = self.layout.range(begin as u32, count as u32).unwrap();
        let mut out = (vec![0; self.layout.dense_key_bytes(count)], vec![0; self.layout.dense_value_bytes(count)]);
        let cache = CacheRef::new(&self.layout, &self.key, &self.value).unwrap();
        layout::gather(&cache, range, &mut out.0, &mut out.1).unwrap();
        out
    }
}

fn dtype() -> impl Strategy<Value = Dtype> {
    prop_oneof![Just(Dtype::F16), Just(Dtype::Bf16), Just(Dtype::F32)]
}

fn spec() -> impl Strategy<Value = Spec> {
    let packs = (prop::sample::select(vec![1u32, 2, 3, 4, 8]), prop::sample::select(vec![1u32, 2, 3, 4, 8, 16, 64]));
    let gaps = prop_oneof![Just((0u64, 0u64)), (0u64..40, 0u64..40)];
    let flash_block = prop_oneof![Just(64u32), 1u32..40, Just(1000)];
    // Row-major K, V or both, heads inside the token stride or not.
    let row_major = prop_oneof![Just((false, false)), any::<(bool, bool)>()];
    (dtype(), dtype(), 1u32..4, 1u32..40, packs, flash_block, 1u32..150, gaps, row_major, any::<bool>()).prop_map(
        |(key_dtype, value_dtype, kv_heads, head_dim, packs, flash_block, max_tokens, gaps, row_major, inside)| {
            let (l_pack, h_pack) = packs;
            let mut spec = Spec {
                key: key_dtype.into(),
                value: value_dtype.into(),
                kv_heads,
                head_dim,
                l_pack,
                h_pack,
                int8: Int8Unit::default(),
                flash_block,
                max_tokens,
                key_head_stride: 0,
                value_head_stride: 0,
                key_token_stride: 0,
                value_token_stride: 0,
            };
            if gaps != (0, 0) {
                let (k, v) = Packing { spec }.head_bytes();
                spec.key_head_stride = k as u64 + gaps.0 * 4;
                spec.value_head_stride = v as u64 + gaps.1 * 4;
            }
            spread_tokens(&mut spec, row_major, inside, gaps);
            spec
        },
    )
}

/// Gives K, V or both a token stride.
fn spread_tokens(spec: &mut Spec, (key, value): (bool, bool), heads_inside: bool, gaps: (u64, u64)) {
    let heads = u64::from(spec.kv_heads);
    if key {
        (spec.h_pack, spec.key_head_stride) = (1, 0);
    }
    if value {
        (spec.flash_block, spec.value_head_stride) = (1, 0);
    }
    let (row_k, row_v) = Packing { spec: *spec }.row_bytes();
    let apart = |row: usize, gap: u64| if heads_inside { (row as u64 + gap * 4) * heads } else { row as u64 + gap * 4 };
    if key {
        spec.key_token_stride = apart(row_k, gaps.0);
    }
    if value {
        spec.value_token_stride = apart(row_v, gaps.1);
    }
    let (k, v) = Packing { spec: *spec }.head_bytes();
    // Heads that do not fit between two tokens follow each other. The others may have gaps, too.
    if key && !heads_inside {
        spec.key_head_stride = k as u64;
    } else if key && gaps.0 > 0 {
        spec.key_head_stride = row_k as u64 + gaps.0 * 4;
    }
    if value && !heads_inside {
        spec.value_head_stride = v as u64;
    } else if value && gaps.1 > 0 {
        spec.value_head_stride = row_v as u64 + gaps.1 * 4;
    }
}

/// A layout and two fractions that become tokens inside it.
fn spec_and_range() -> impl Strategy<Value = (Spec, usize, usize)> {
    spec().prop_flat_map(|s| {
        let max = s.max_tokens as usize;
        (Just(s), 0..=max).prop_flat_map(move |(s, begin)| (Just(s), Just(begin), 0..=max - begin))
    })
}

/// Ascending pairs within `limit` tokens, some aligned to blocks, some not, some empty.
fn pairs(limit: usize) -> impl Strategy<Value = Vec<Pair>> {
    (prop::sample::select(vec![1usize, 1, 4, 16, 64]), prop::collection::vec((0usize..20, 0usize..40), 0..8)).prop_map(
        move |(unit, steps)| {
            let mut at = 0;
            let mut out = Vec::new();
            for (skip, len) in steps {
                let (offset, len) = (at + skip * unit, len.div_ceil(unit) * unit);
                if offset + len > limit {
                    break;
                }
                out.push([offset as i32, len as i32]);
                at = offset + len;
            }
            out
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn sizes_are_those_of_the_formulas(spec in spec()) {
        let c = Cache::new(spec, 1);
        prop_assert_eq!((c.layout.key_bytes(), c.layout.value_bytes()), c.packing.bytes());
    }

    #[test]
    fn gather_reads_and_scatter_writes_exactly_the_range((spec, begin, count) in spec_and_range(), seed: u64) {
        let mut c = Cache::new(spec, seed);
        prop_assert!(c.gathered(begin, count) == c.rows(begin..begin + count));

        let rows = Cache::new(spec, !seed).rows(begin..begin + count);
        let mut expected = Cache { packing: c.packing, layout: c.layout.clone(), key: c.key.clone(), value: c.value.clone() };
        expected.put(begin..begin + count, &rows);
        let range = c.layout.range(begin as u32, count as u32).unwrap();
        layout::scatter(&mut c.edit(), range, &rows.0, &rows.1).unwrap();
        prop_assert!(c.key == expected.key);
        prop_assert!(c.value == expected.value);
    }

    #[test]
    fn zero_and_release_clear_exactly_the_range((spec, begin, count) in spec_and_range(), seed: u64) {
        let mut c = Cache::new(spec, seed);
        let mut expected = Cache::new(spec, seed);
        let (k, v) = expected.rows(begin..begin + count);
        expected.put(begin..begin + count, &(vec![0; k.len()], vec![0; v.len()]));
        let range = c.layout.range(begin as u32, count as u32).unwrap();
        layout::zero(&mut c.edit(), range);
        prop_assert!(c.key == expected.key);
        prop_assert!(c.value == expected.value);

        // release passes the same bytes and their padding, each once.
        let mut c = Cache::new(spec, seed);
        let mut expected = Cache::new(spec, seed);
        expected.packing.release(&mut expected.key, &mut expected.value, begin..begin + count);
        let mut passed = 0;
        layout::release(&mut c.edit(), range, &mut |run| {
            run.fill(0);
            passed += run.len();
            0
        });
        prop_assert!(c.key == expected.key && c.value == expected.value);
        let (mut ones, mut zeros) = (vec![1; c.key.len() + c.value.len()], 0);
        let (key, value) = ones.split_at_mut(c.key.len());
        expected.packing.release(key, value, begin..begin + count);
        ones.iter().for_each(|byte| zeros += usize::from(*byte == 0));
        prop_assert_eq!(passed, zeros);
    }

    #[test]
    fn move_is_a_copy_through_elsewhere((spec, src, count) in spec_and_range(), to in any::<prop::sample::Index>(), seed: u64) {
        let dst = to.index(spec.max_tokens as usize - count + 1);
        let mut c = Cache::new(spec, seed);
        let mut expected = Cache::new(spec, seed);
        let rows = expected.rows(src..src + count);
        expected.put(dst..dst + count, &rows);
        layout::move_tokens(&mut c.edit(), src as u32, dst as u32, count as u32).unwrap();
        prop_assert!(c.key == expected.key);
        prop_assert!(c.value == expected.value);
    }

    #[test]
    fn compact_keeps_the_named_tokens_in_order_and_touches_nothing_else(
        (spec, base, rest) in spec_and_range(),
        plan in pairs(150),
        seed: u64,
    ) {
        let plan: Vec<Pair> = plan.into_iter().take_while(|p| (p[0] + p[1]) as usize <= rest).collect();
        let mut c = Cache::new(spec, seed);
        let before = Cache::new(spec, seed);
        let kept: Vec<usize> =
            (0..base).chain(plan.iter().flat_map(|p| (0..p[1]).map(move |i| base + (p[0] + i) as usize))).collect();
        let kv_len = (base + rest) as u32;
        let new_len =
            layout::compact(&mut c.edit(), base as u32, &plan, kv_len).unwrap() as usize;
        prop_assert_eq!(new_len, kept.len());
        prop_assert!(c.rows(0..new_len) == before.packing.rows(&before.key, &before.value, &kept));
        // Tokens from new_len on are undefined. Everything else is as it was.
        let stale = new_len..base + rest;
        let (k, v) = c.rows(stale.clone());
        let zeros = (vec![0; k.len()], vec![0; v.len()]);
        let mut expected = before;
        let moved = c.rows(0..new_len);
        expected.put(0..new_len, &moved);
        expected.put(stale.clone(), &zeros);
        c.put(stale, &zeros);
        prop_assert!(c.key == expected.key);
        prop_assert!(c.value == expected.value);
    }
}

const SMALL: Spec = Spec {
    key: Kind::Float(Dtype::F16),
    value: Kind::Float(Dtype::F16),
    kv_heads: 2,
    head_dim: 5,
    l_pack: 2,
    h_pack: 4,
    int8: Int8Unit { l_pack: 0, h_pack: 0 },
    flash_block: 6,
    max_tokens: 20,
    key_head_stride: 0,
    value_head_stride: 0,
    key_token_stride: 0,
    value_token_stride: 0,
};

#[test]
fn a_real_mnn_cache_gathers_to_the_rows_it_was_made_of() {
    // x86 AVX-512, f32: docs in testdata/README.md. The dump holds the used part of each head.
    let spec = Spec {
        key: Dtype::F32.into(),
        value: Dtype::F32.into(),
        kv_heads: 2,
        head_dim: 64,
        l_pack: 1,
        h_pack: 8,
        int8: Int8Unit::default(),
        flash_block: 64,
        max_tokens: 893,
        key_head_stride: 229_376,
        value_head_stride: 229_376,
        key_token_stride: 0,
        value_token_stride: 0,
    };
    let layout = Layout::new(&spec).unwrap();
    let (mut key, value) = (common::read("mnn_packed/key_packed.f32"), common::read("mnn_packed/value_packed.f32"));
    key.truncate(layout.key_bytes());
    let (first, count) = (7, 886);
    let range = layout.range(first, count).unwrap();
    let size = layout.dense_key_bytes(count as usize);
    let (mut keys, mut values) = (vec![0; size], vec![0; size]);
    layout::gather(&CacheRef::new(&layout, &key, &value).unwrap(), range, &mut keys, &mut values).unwrap();
    for (gathered, file) in [(keys, "key"), (values, "value")] {
        // Rows are [token][head][dim]; gather gives [head][token][dim].
        let rows = common::read(&format!("mnn_packed/{file}_rows.f32"));
        let row = 64 * 4;
        assert_eq!(rows.len(), gathered.len());
        for (i, expected) in rows.chunks_exact(row).enumerate() {
            let (token, head) = (i / 2, i % 2);
            let at = (head * count as usize + token) * row;
            assert!(&gathered[at..at + row] == expected, "{file}: token {token} of head {head}");
        }
    }
}

#[test]
fn bad_plans_are_refused_before_a_byte_moves() {
    for (name, base, pairs, kv_len) in [
        ("negative offset", 0, vec![[-1, 2]], 20),
        ("negative length", 0, vec![[3, -2]], 20),
        ("overlapping", 0, vec![[2, 4], [5, 2]], 20),
        ("unsorted", 0, vec![[8, 2], [2, 2]], 20),
        ("past the end", 0, vec![[2, 2], [18, 3]], 20),
        ("past the end by base", 10, vec![[2, 2], [8, 3]], 20),
        ("sum overflows", 0, vec![[i32::MAX, i32::MAX]], 20),
        ("base past the end", 11, vec![], 10),
        ("length past the layout", 0, vec![[2, 2]], 21),
    ] {
        let mut c = Cache::new(SMALL, 3);
        let before = (c.key.clone(), c.value.clone());
        let error = layout::compact(&mut c.edit(), base, &pairs, kv_len).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument, "{name}");
        assert!((c.key, c.value) == before, "{name}");
    }
}

#[test]
fn impossible_layouts_are_refused_by_name() {
    let huge = u32::MAX;
    for (field, spec) in [
        ("kv_heads", Spec { kv_heads: 0, ..SMALL }),
        ("head_dim", Spec { head_dim: 0, ..SMALL }),
        ("l_pack", Spec { l_pack: 0, ..SMALL }),
        ("h_pack", Spec { h_pack: 0, ..SMALL }),
        ("flash_block", Spec { flash_block: 0, ..SMALL }),
        ("max_tokens", Spec { max_tokens: 0, ..SMALL }),
        ("key", Spec { kv_heads: huge, head_dim: huge, max_tokens: huge, ..SMALL }),
        ("key", Spec { head_dim: huge, max_tokens: huge, ..SMALL }),
        ("value", Spec { kv_heads: 1 << 12, flash_block: huge, h_pack: 1 << 20, ..SMALL }),
        ("key_head_stride", Spec { key_head_stride: 8, ..SMALL }),
        ("key_head_stride", Spec { key_head_stride: 1 << 20 | 1, ..SMALL }),
        ("value_head_stride", Spec { value_head_stride: 2, ..SMALL }),
        ("value", Spec { value_head_stride: u64::MAX - 1, ..SMALL }),
        ("key_token_stride is 64; 0 expected where 4 tokens", Spec { key_token_stride: 64, ..SMALL }),
        ("value_token_stride is 10; 0 expected where 6 tokens", Spec { value_token_stride: 10, ..SMALL }),
        ("key_token_stride is 8; at least 12", Spec { h_pack: 1, key_token_stride: 8, ..SMALL }),
        ("key_token_stride is 31; a multiple of 2", Spec { h_pack: 1, key_token_stride: 31, ..SMALL }),
        (
            "key_head_stride is 20; at least 468, or heads that fit",
            Spec { h_pack: 1, key_token_stride: 24, key_head_stride: 20, ..SMALL },
        ),
        ("value", Spec { flash_block: 1, value_token_stride: u64::MAX - 7, ..SMALL }),
        ("key_token_stride is 20; at least 2 heads of 12 bytes", Spec { h_pack: 1, key_token_stride: 20, ..SMALL }),
    ] {
        let error = Layout::new(&spec).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument, "{field}");
        assert!(error.message().contains(field), "{field}: {error}");
    }
}

#[test]
fn ranges_and_buffers_that_do_not_fit_are_refused() {
    let c = Cache::new(SMALL, 5);
    for (begin, count) in [(0, 21), (20, 1), (21, 0), (u32::MAX, 1), (u32::MAX, u32::MAX)] {
        assert_eq!(c.layout.range(begin, count).unwrap_err().status(), Status::InvalidArgument);
    }
    assert!(c.layout.range(20, 0).is_ok());
    let range = c.layout.range(0, 4).unwrap();
    let (mut key, mut value) = (c.key.clone(), c.value.clone());
    let mut out = vec![0; c.layout.dense_key_bytes(4)];
    assert_eq!(CacheRef::new(&c.layout, &key[1..], &value).err().unwrap().status(), Status::InvalidArgument);
    assert!(layout::Cache::new(&c.layout, &mut key, &mut value[1..]).is_err());
    let small =
        layout::gather(&CacheRef::new(&c.layout, &key, &value).unwrap(), range, &mut out.clone()[1..], &mut out);
    assert_eq!(small.unwrap_err().status(), Status::BufferTooSmall);
    let long = vec![0; out.len() + 2];
    let unequal =
        layout::scatter(&mut layout::Cache::new(&c.layout, &mut key, &mut value).unwrap(), range, &long, &out);
    assert_eq!(unequal.unwrap_err().status(), Status::InvalidArgument);
    assert!(key == c.key && value == c.value);
}
