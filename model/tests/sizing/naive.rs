//! Random shapes against a count of every token in every layer, and budgets.

use super::{layers, model, plain};
use crate::common::Random;
use mnnkv::status::Status;
use mnnkv_model::sizing::*;
use proptest::prelude::*;

/// Bits of a token of a layer on a rank, head by head.
fn token_bits(kv: Kv, element: CacheElement, ranks: u32) -> u64 {
    let elements = match kv {
        Kv::Heads { kv_heads, head_dim } => {
            // Rank 0 has the heads that are its own, or a copy of one.
            let own = (0..kv_heads).filter(|head| head * ranks / kv_heads == 0).count().max(1);
            (0..own).map(|_| u64::from(head_dim) + u64::from(head_dim)).sum::<u64>()
        }
        Kv::Latent { kv_lora_rank, qk_rope_head_dim } => u64::from(kv_lora_rank + qk_rope_head_dim),
    };
    let bits = match element {
        CacheElement::F32 => 32,
        CacheElement::F16 | CacheElement::Bf16 => 16,
        CacheElement::Int8 | CacheElement::Fp8 => 8,
        CacheElement::Int4 => 4,
    };
    elements * bits
}

/// Every token of every sequence in every layer, one after the other.
fn count(all: &[LayerShape], setup: Setup, tokens: u64) -> u64 {
    let mut bytes = 0;
    for _ in 0..setup.batch {
        for layer in all {
            let LayerShape::Attention(Attention { kv, span }) = layer else { continue };
            for position in 0..tokens {
                let kept = match span {
                    Span::Full => true,
                    Span::Sliding(window) => position + u64::from(*window) >= tokens,
                    // Memory for a chunk is used again by the next.
                    Span::Chunked(chunk) => position < u64::from(*chunk),
                };
                if kept {
                    bytes += token_bits(*kv, setup.element, setup.ranks).div_ceil(8);
                }
            }
        }
    }
    bytes
}

fn any_layer() -> impl Strategy<Value = LayerShape> {
    let heads = (0u32..4, 1u32..20).prop_map(|(log, head_dim)| Kv::Heads { kv_heads: 1 << log, head_dim });
    let latent =
        (1u32..20, 0u32..5).prop_map(|(kv_lora_rank, qk_rope_head_dim)| Kv::Latent { kv_lora_rank, qk_rope_head_dim });
    let kv = prop_oneof![3 => heads, 1 => latent];
    let span = prop_oneof![Just(Span::Full), (1u32..40).prop_map(Span::Sliding), (1u32..40).prop_map(Span::Chunked)];
    prop_oneof![
        6 => (kv, span).prop_map(|(kv, span)| LayerShape::Attention(Attention { kv, span })),
        1 => Just(LayerShape::Shared),
        1 => Just(LayerShape::Recurrent { state_elements: Some(7) }),
    ]
}

fn any_element() -> impl Strategy<Value = CacheElement> {
    use CacheElement::*;
    prop::sample::select(vec![F16, Bf16, F32, Int8, Fp8, Int4])
}

prop_compose! {
    fn any_setup()(element in any_element(), log in 0u32..5, batch in 1u32..4) -> Setup {
        Setup { ranks: 1 << log, batch, ..Setup::new(element) }
    }
}

proptest! {
    #[test]
    fn bytes_are_those_of_every_token_in_every_layer(
        all in prop::collection::vec(any_layer(), 0..8), setup in any_setup(), tokens in 0u64..90,
    ) {
        let bytes = Sizer::new(&all, setup, &Savings::default()).unwrap().bytes(tokens).unwrap();
        let expected = count(&all, setup, tokens);
        prop_assert_eq!(bytes.stages().map(|(_, value)| value), [expected; 4]);
    }

    /// With savings of every kind: what is found fits, and one token more does not.
    #[test]
    fn the_longest_context_fits_and_one_more_token_does_not(
        all in prop::collection::vec(any_layer(), 1..8),
        setup in any_setup(),
        budget in prop_oneof![0u64..3000, 0u64..2_000_000],
        h2o in prop::option::of((1.0f64..6.0, 0u32..8, 0u32..30, 0u32..60)),
        lossless in prop::option::of((1.0f64..3.0, 0u32..8, any::<bool>(), 0u32..40)),
    ) {
        let savings = Savings {
            h2o: h2o.map(|(ratio, first_layer, protected_tokens, trigger_tokens)| H2o {
                ratio, first_layer, last_layer: None, protected_tokens, trigger_tokens,
            }),
            lossless: lossless.map(|(ratio, front_layers, h2o_layers, hot_tokens)| Lossless {
                ratio, front_layers, h2o_layers, hot_tokens,
            }),
        };
        let sizer = Sizer::new(&all, setup, &savings).unwrap();
        let longest = sizer.longest(budget);
        prop_assert_eq!(longest.bytes, sizer.bytes(longest.tokens).unwrap().peak);
        prop_assert!(longest.bytes <= budget);
        if longest.bounded {
            prop_assert!(sizer.bytes(longest.tokens + 1).unwrap().peak > budget);
        } else {
            prop_assert_eq!(longest.tokens, MAX_TOKENS);
        }
        // And never less before: bytes do not fall with length.
        let mut last = Bytes::default();
        for tokens in (0..200).chain((200..20_000).step_by(997)) {
            let now = sizer.bytes(tokens).unwrap();
            let pairs = last.stages().into_iter().zip(now.stages());
            for ((name, before), (_, after)) in pairs {
                prop_assert!(before <= after, "{name} falls at {tokens}: {before} to {after}");
            }
            last = now;
        }
    }
}

#[test]
fn llama_3_8b_in_a_gibibyte_is_8192_tokens() {
    let sizer = plain(&model("llama-3-8b").layers);
    assert_eq!(sizer.longest(1 << 30), Longest { tokens: 8192, bytes: 1 << 30, bounded: true });
    assert_eq!(sizer.longest((1 << 30) - 1).tokens, 8191);
    assert_eq!(sizer.longest(131_071), Longest { tokens: 0, bytes: 0, bounded: true });
}

#[test]
fn a_budget_that_holds_every_window_bounds_nothing() {
    let sizer = plain(&model("mistral-7b-v0.1").layers);
    let all = 4096 * 131_072;
    assert_eq!(sizer.longest(all), Longest { tokens: MAX_TOKENS, bytes: all, bounded: false });
    assert_eq!(sizer.longest(all - 1).tokens, 4095);
}

#[test]
fn bytes_that_do_not_fit_64_bits_are_an_error_and_fit_no_budget() {
    let all = layers(4, 1 << 16, 1 << 14, Span::Full);
    let setup = Setup { batch: 1 << 20, ..Setup::new(CacheElement::F32) };
    let sizer = Sizer::new(&all, setup, &Savings::default()).unwrap();
    // A token takes 2^2 * 2 * 2^30 * 2^2 * 2^20 = 2^55 bytes.
    assert_eq!(sizer.bytes(511).unwrap().raw, 511 << 55);
    let error = sizer.bytes(512).unwrap_err();
    assert_eq!(error.status(), Status::InvalidArgument);
    super::says(error.message(), &["512 tokens", "1048576 sequences", "64 bits"]);
    assert_eq!(sizer.longest(u64::MAX), Longest { tokens: 511, bytes: 511 << 55, bounded: true });

    let error = sizer.bytes(MAX_TOKENS + 1).unwrap_err();
    super::says(error.message(), &["2147483648", "2147483647"]);
}

#[test]
fn the_largest_shapes_are_sized_or_refused_without_overflow() {
    let mut random = Random(0x5eed);
    let extremes = [1, 2, 3, 1 << 16, u32::MAX - 1, u32::MAX];
    for _ in 0..2000 {
        let mut pick = || extremes[random.below(extremes.len())];
        let all = layers(3, pick(), pick(), if pick() % 2 == 0 { Span::Full } else { Span::Sliding(pick()) });
        let setup = Setup { ranks: pick(), batch: pick(), ..Setup::new(CacheElement::F32) };
        if let Ok(sizer) = Sizer::new(&all, setup, &Savings::default()) {
            let _ = (sizer.bytes(MAX_TOKENS), sizer.bytes_per_token(), sizer.longest(u64::MAX));
        }
    }
}

#[test]
fn ranks_that_heads_cannot_be_dealt_out_to_are_refused() {
    let refused = |heads, ranks, batch| {
        let setup = Setup { ranks, batch, ..Setup::new(CacheElement::F16) };
        Sizer::new(&layers(1, heads, 64, Span::Full), setup, &Savings::default()).err().unwrap()
    };
    for (heads, ranks) in [(8, 3), (8, 5), (8, 7), (7, 2), (32, 12)] {
        let error = refused(heads, ranks, 1);
        assert_eq!(error.status(), Status::InvalidArgument);
        super::says(error.message(), &[&format!("{heads} KV heads"), &format!("{ranks} tensor-parallel ranks")]);
    }
    super::says(refused(8, 0, 1).message(), &["ranks is 0"]);
    super::says(refused(8, 1, 0).message(), &["batch is 0"]);
}
