//! Savings by eviction and compression, computed by hand.

use super::{layers, model, notes_say, says};
use mnnkv::status::Status;
use mnnkv_model::sizing::*;

/// Bytes of a token of a layer in these tests: 2 x 4 heads x 64 x 2 bytes.
const TOKEN: u64 = 1024;

fn eight_layers() -> Vec<LayerShape> {
    layers(8, 4, 64, Span::Full)
}

fn sizer_of(layers: &[LayerShape], savings: Savings) -> Sizer {
    Sizer::new(layers, Setup::new(CacheElement::F16), &savings).unwrap()
}

fn with_h2o(h2o: H2o) -> Sizer {
    sizer_of(&eight_layers(), Savings { h2o: Some(h2o), ..Savings::default() })
}

fn with_lossless(lossless: Lossless, h2o: Option<H2o>) -> Sizer {
    sizer_of(&eight_layers(), Savings { lossless: Some(lossless), h2o })
}

#[test]
fn eviction_leaves_one_token_in_so_many_from_its_first_layer_on() {
    let bytes = with_h2o(H2o::new(3.5)).bytes(35_000).unwrap();
    assert_eq!(bytes.raw, 8 * 35_000 * TOKEN);
    assert_eq!(bytes.after_h2o, (2 * 35_000 + 6 * 10_000) * TOKEN);
    assert_eq!([bytes.after_lossless, bytes.peak], [bytes.after_h2o; 2]);

    let middle = H2o { first_layer: 3, last_layer: Some(4), ..H2o::new(3.5) };
    assert_eq!(with_h2o(middle).bytes(35_000).unwrap().after_h2o, (6 * 35_000 + 2 * 10_000) * TOKEN);
    let nowhere = H2o { first_layer: 8, ..H2o::new(3.5) };
    assert_eq!(with_h2o(nowhere).bytes(35_000).unwrap().after_h2o, 8 * 35_000 * TOKEN);
}

#[test]
fn tokens_that_are_kept_are_rounded_up() {
    let all = H2o { first_layer: 0, protected_tokens: 0, trigger_tokens: 0, ..H2o::new(3.0) };
    for (tokens, kept) in [(0, 0), (1, 1), (3, 1), (4, 2), (6, 2), (7, 3), (3000, 1000), (3001, 1001)] {
        assert_eq!(with_h2o(all).bytes(tokens).unwrap().after_h2o, 8 * kept * TOKEN, "{tokens} tokens");
    }
}

#[test]
fn short_chats_are_whole_and_their_peak_is_not_forgotten() {
    // The first 32 and the last 256 tokens are as many as a ratio of 4 allows up to 1,152 tokens.
    let h2o = H2o { first_layer: 0, ..H2o::new(4.0) };
    for (tokens, held) in [(500, 500), (1152, 1152), (1153, 1152), (4608, 1152), (4609, 1153), (8000, 2000)] {
        assert_eq!(with_h2o(h2o).bytes(tokens).unwrap().after_h2o, 8 * held * TOKEN, "{tokens} tokens");
    }
    // Without protected tokens the trigger alone decides: 512 is the first length that is evicted from.
    let trigger = H2o { first_layer: 0, protected_tokens: 0, ..H2o::new(4.0) };
    for (tokens, held) in [(511, 511), (512, 511), (2044, 511), (2045, 512)] {
        assert_eq!(with_h2o(trigger).bytes(tokens).unwrap().after_h2o, 8 * held * TOKEN, "{tokens} tokens");
    }
}

#[test]
fn a_window_and_an_eviction_do_not_multiply() {
    // 10,000 of 35,000 tokens stay, more than the window.
    let sliding = layers(1, 4, 64, Span::Sliding(4096));
    let h2o = Some(H2o { first_layer: 0, ..H2o::new(3.5) });
    let savings = Savings { h2o, ..Savings::default() };
    let sizer = sizer_of(&sliding, savings);
    assert_eq!(sizer.bytes(35_000).unwrap().after_h2o, 4096 * TOKEN);
    assert_eq!(sizer.bytes(7_000).unwrap().after_h2o, 2000 * TOKEN);
}

#[test]
fn compression_excludes_hot_tokens() {
    let sizer = with_lossless(Lossless::new(2.0), None);
    assert_eq!(sizer.bytes(272).unwrap().after_lossless, 8 * 272 * TOKEN);
    let bytes = sizer.bytes(10_272).unwrap();
    assert_eq!(bytes.after_lossless, (6 * 10_272 + 2 * (272 + 5_000)) * TOKEN);
    // Both compressed layers are neighbours: one is raw, the other decoded, and both blobs are kept.
    assert_eq!(bytes.peak, bytes.after_lossless + 2 * 10_000 * TOKEN);
}

#[test]
fn one_compressed_layer_brings_back_only_itself() {
    let bytes = with_lossless(Lossless { front_layers: 1, ..Lossless::new(2.0) }, None).bytes(10_272).unwrap();
    assert_eq!(bytes.peak, bytes.after_lossless + 10_000 * TOKEN);
}

#[test]
fn compressed_bytes_are_rounded_up_per_layer() {
    let sizer = with_lossless(Lossless { hot_tokens: 0, ..Lossless::new(3.0) }, None);
    // 1,024 / 3 is 341.3.
    assert_eq!(sizer.bytes(1).unwrap().after_lossless, 6 * TOKEN + 2 * 342);
}

#[test]
fn scopes_name_layers_once() {
    let h2o = Some(H2o { first_layer: 1, last_layer: Some(3), protected_tokens: 0, trigger_tokens: 0, ratio: 2.0 });
    let compressed = |front_layers, h2o_layers, h2o| {
        let lossless = Lossless { ratio: 4.0, front_layers, h2o_layers, hot_tokens: 0 };
        let bytes = with_lossless(lossless, h2o).bytes(8000).unwrap();
        (bytes.after_h2o / TOKEN, bytes.after_lossless / TOKEN)
    };
    let (evicted, whole) = (4000, 8000);
    // front_n
    assert_eq!(compressed(2, false, h2o).1, whole / 4 + evicted / 4 + 2 * evicted + 4 * whole);
    // h2o_kept
    assert_eq!(compressed(0, true, h2o).1, 3 * evicted / 4 + 5 * whole);
    // front_n_and_h2o_kept: layer 1 is in both.
    assert_eq!(compressed(2, true, h2o).1, whole / 4 + 3 * evicted / 4 + 4 * whole);
    // A number above the layers of the model means all; without h2o there are no layers of h2o.
    assert_eq!(compressed(99, true, None), (8 * whole, 8 * whole / 4));
    assert_eq!(compressed(0, true, None), (8 * whole, 8 * whole));
}

#[test]
fn savings_act_one_after_the_other() {
    let savings = Savings {
        h2o: Some(H2o { first_layer: 0, protected_tokens: 0, trigger_tokens: 0, ..H2o::new(4.0) }),
        lossless: Some(Lossless { ratio: 1.25, front_layers: 0, h2o_layers: true, hot_tokens: 0 }),
    };
    let setup = Setup { ranks: 2, batch: 3, ..Setup::new(CacheElement::Bf16) };
    let bytes = Sizer::new(&eight_layers(), setup, &savings).unwrap().bytes(4000).unwrap();
    // On a rank 2 of 4 heads: 512 bytes a token.
    assert_eq!(bytes.raw, 3 * 8 * 4000 * 512);
    assert_eq!(bytes.after_h2o, 3 * 8 * 1000 * 512);
    assert_eq!(bytes.after_lossless, 3 * 8 * 409_600);
    assert_eq!(bytes.peak, 3 * (8 * 409_600 + 2 * 512_000));
}

#[test]
fn ratios_and_ranges_no_session_would_take_are_refused() {
    for ratio in [0.99, 0.0, -3.0, f64::NAN, f64::INFINITY, 1e7] {
        for savings in [
            Savings { h2o: Some(H2o::new(ratio)), ..Savings::default() },
            Savings { lossless: Some(Lossless::new(ratio)), ..Savings::default() },
        ] {
            let error = Sizer::new(&eight_layers(), Setup::new(CacheElement::F16), &savings).err().unwrap();
            assert_eq!(error.status(), Status::InvalidArgument);
            says(error.message(), &["ratio", &ratio.to_string(), "1 to 1000000"]);
        }
    }
    let h2o = Some(H2o { first_layer: 3, last_layer: Some(2), ..H2o::new(2.0) });
    let savings = Savings { h2o, ..Savings::default() };
    let error = Sizer::new(&eight_layers(), Setup::new(CacheElement::F16), &savings).err().unwrap();
    says(error.message(), &["last layer", "2", "3"]);
}

#[test]
fn savings_that_save_nothing_are_told() {
    let model = model("llama-3-8b");
    let notes = |savings| {
        let request = Request { setup: Setup::new(CacheElement::F16), savings, contexts: vec![100_000], budget: None };
        SizeReport::new(&model, &request).unwrap().notes
    };
    let h2o = Some(H2o { first_layer: 32, ..H2o::new(2.0) });
    notes_say(&notes(Savings { h2o, ..Savings::default() }), &["begins at layer 32", "nothing is evicted"]);
    let lossless = Some(Lossless { front_layers: 0, h2o_layers: true, ..Lossless::new(2.0) });
    let both = notes(Savings { lossless, ..Savings::default() });
    notes_say(&notes(Savings { h2o, ..Savings::default() }), &["the largest up to a length"]);
    notes_say(&both, &["layers of h2o", "h2o is off"]);
    notes_say(&both, &["nothing is compressed"]);
    notes_say(&both, &["100000 tokens", "8192"]);
}
