//! Valid and invalid blobs written by hand from `docs/format.md`, independent of the encoder.

use super::damage::refused;
use super::v2_reader::{self, seal};
use super::*;

/// Modes of a body.
const FLAT: u8 = 2;

/// A coded blob of revision 0.
pub fn blob(dtype: Dtype, row_len: u32, words: &[u8], body: &[u8]) -> Vec<u8> {
    let mut blob = b"\0\0\0\0MNKV\x02\0".to_vec();
    blob.extend_from_slice(&[dtype as u32 as u8, 1]);
    blob.extend_from_slice(&row_len.to_le_bytes());
    blob.extend_from_slice(&(words.len() as u64).to_le_bytes());
    blob.extend_from_slice(&xxh3_64(words).to_le_bytes());
    blob.extend_from_slice(body);
    blob.extend_from_slice(&[0; 4]);
    seal(&mut blob);
    blob
}

/// Lengths below 128.
fn bytes(payload: &[u8]) -> Vec<u8> {
    assert!(payload.len() < 128);
    [&[payload.len() as u8], payload].concat()
}

fn frame(payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0; payload.len() + 64];
    let len = zstd_safe::compress(&mut out[..], payload, 3).unwrap();
    bytes(&out[..len])
}

fn list(numbers: &[u32]) -> Vec<u8> {
    frame(&(0..4).flat_map(|i| numbers.iter().map(move |n| n.to_le_bytes()[i])).collect::<Vec<u8>>())
}

/// Uncompressed planes in one group; the unit is 127 rows.
fn plain(planes: &[u8]) -> Vec<u8> {
    [vec![127, 1, 0, 0], bytes(planes)].concat()
}

fn u16s(words: &[u16]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn reads(dtype: Dtype, row_len: u32, words: &[u8], body: &[u8]) {
    check_by_hand(&blob(dtype, row_len, words, body), dtype, words);
}

#[test]
fn flat_blobs_hold_the_bytes_of_the_words_in_order() {
    let flat = |dtype, row_len, words: &[u8], body: &[u8]| {
        let mut blob = blob(dtype, row_len, words, body);
        blob[11] = FLAT;
        seal(&mut blob);
        blob
    };
    // No type rotates bits.
    let words = [0x01, 0x80, 0x02, 0x81, 0x03, 0x82, 0x04, 0x83];
    let planes = [&[1u8, 2, 3, 4][..], &[0x80, 0x81, 0x82, 0x83]];
    let [low, high] = [[vec![0, 0], bytes(planes[0])].concat(), [vec![0, 1], frame(planes[1])].concat()];
    let body = [low.clone(), high.clone()].concat();
    check_by_hand(&flat(Dtype::F16, 1, &words, &body), Dtype::F16, &words);
    check_by_hand(&flat(Dtype::Bf16, 1, &words, &body), Dtype::Bf16, &words);
    check_by_hand(&flat(Dtype::Int8, 1, planes[0], &low), Dtype::Int8, planes[0]);
    let turned = [vec![1, 0], bytes(planes[0])].concat();
    for (what, body, status) in [
        ("a plane too few", low.clone(), Status::Corrupt),
        ("a plane too many", [&body[..], &low].concat(), Status::Corrupt),
        ("a plane that is too short", [vec![0, 0], bytes(&planes[0][1..]), high.clone()].concat(), Status::Corrupt),
        ("a frame that is too long", [low, vec![0, 1], frame(&[7; 5])].concat(), Status::Corrupt),
        ("a predictor", [turned, high].concat(), Status::Unsupported),
    ] {
        assert_eq!(refused(&flat(Dtype::F16, 1, &words, &body), Dtype::F16, words.len()), status, "{what}");
    }
}

fn check_by_hand(blob: &[u8], dtype: Dtype, words: &[u8]) {
    assert!(v2_reader::read(blob).words == words, "the reader of docs/format.md differs");
    assert_eq!(decode(blob, dtype, words.len() + 3).unwrap(), words);
}

/// Two channels of five rows: 10 12 15 15 14 and 250 3 7 6 6.
const ROWS: [u8; 10] = [10, 250, 12, 3, 15, 7, 15, 6, 14, 6];
/// Its residuals, predictor by predictor.
const RESIDUALS: [[u8; 10]; 5] = [
    [10, 12, 15, 15, 14, 250, 3, 7, 6, 6],
    [10, 2, 3, 0, 255, 250, 9, 4, 255, 0],
    [10, 6, 3, 0, 1, 250, 249, 4, 1, 0],
    [10, 12, 15, 15, 14, 240, 247, 248, 247, 248],
    [10, 2, 3, 0, 255, 240, 7, 1, 255, 1],
];

#[test]
fn predictors_match_the_format() {
    for (number, residual) in RESIDUALS.iter().enumerate() {
        for unit_rows in [1, 3, 5, 100] {
            let raw = [vec![0, unit_rows, 1, number as u8, 0], bytes(residual)].concat();
            reads(Dtype::Int8, 2, &ROWS, &raw);
            let coded = [vec![0, unit_rows, 1, number as u8, 1], frame(residual)].concat();
            reads(Dtype::Int8, 2, &ROWS, &coded);
        }
    }
}

#[test]
fn units_of_one_channel_may_have_different_predictors() {
    // Units of three and two rows: 0 1 of the first channel, 2 3 of the second. Group 3 has none.
    let units = frame(&[2, 0, 4, 1]);
    let groups = [
        [vec![2, 0], bytes(&RESIDUALS[2][3..5])].concat(),
        [vec![3, 1], frame(&RESIDUALS[3][8..])].concat(),
        [vec![1, 0], bytes(&RESIDUALS[1][..3])].concat(),
        vec![4, 0, 0],
        [vec![4, 0], bytes(&RESIDUALS[4][5..8])].concat(),
    ];
    reads(Dtype::Int8, 2, &ROWS, &[vec![0, 3, 5], units, groups.concat()].concat());
}

#[test]
fn words_and_tails_match_the_format() {
    let f16 = u16s(&[0x3C00, 0xBC01, 0x4002, 0xC003, 0x1234]);
    // Two rows of two, low bytes of both channels and then high bytes; the fifth word is a tail.
    reads(Dtype::F16, 2, &f16, &[vec![0], plain(&[0, 2, 1, 3, 0x3C, 0x40, 0xBC, 0xC0]), vec![0x34, 0x12]].concat());
    // -1.0 rotated left by a bit is 0x7F01.
    reads(Dtype::Bf16, 1, &u16s(&[0xBF80, 0x4000]), &[vec![0], plain(&[1, 0, 0x7F, 0x80])].concat());
    let f32: Vec<u8> = [0x3F80_0001u32, 0x8000_0000].iter().flat_map(|word| word.to_le_bytes()).collect();
    reads(Dtype::F32, 1, &f32, &[vec![0], plain(&[2, 1, 0, 0, 0, 0, 0x7F, 0])].concat());
    // A number may have redundant bytes.
    reads(Dtype::Int8, 1, &[9], &[0, 0x81, 0x80, 0, 0x81, 0, 0, 0, 0x81, 0, 9]);
}

#[test]
fn steps_from_row_to_row_match_the_format() {
    // Rows 0 and 3 are new. Row 1 equals row 0. Rows 2, 4 and 5 have small steps, row 6 has wide ones.
    let distances = list(&[0, 1, 1, 0, 4, 1, 3]);
    let words = [5, 250, 5, 250, 6, 249, 100, 100, 5, 1, 0, 249, 90, 200];
    // Kind 1: row 4 (0, 7 up). Kind 2: rows 2 (1 up, 1 down) and 5 (5 down, 8 down). 15 stands for 15 and more.
    let kinds = frame(&[0, 2, 1, 2, 3]);
    let nibbles = plain(&[0x20, 9, 0x1E, 15]);
    let large = [vec![1], plain(&[15])].concat();
    // Row 6 from row 3: 10 down, 100 up.
    let wide = plain(&[19, 200]);
    let new = plain(&[5, 100, 250, 100]);
    reads(Dtype::Int8, 2, &words, &[vec![1], distances, kinds, nibbles, large, wide, new].concat());
}

#[test]
fn steps_across_zero_match_the_format() {
    // From 0.0 one word down is -0.0, two down the negative denormal next to it; three up the positive one.
    let words = u16s(&[0x0000, 0x8000, 0x8001, 0x0001]);
    let body = [vec![1], list(&[0, 1, 1, 1]), frame(&[1, 1, 2]), plain(&[0x11, 6]), vec![0], plain(&[0, 0])].concat();
    reads(Dtype::F16, 1, &words, &body);
    // The same in f32, with wide steps: one down, one down, three up.
    let words: Vec<u8> = [0, 0x8000_0000u32, 0x8000_0001, 1].iter().flat_map(|word| word.to_le_bytes()).collect();
    let wide = plain(&[1, 1, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    reads(Dtype::F32, 1, &words, &[vec![1], list(&[0, 1, 1, 1]), frame(&[33, 33, 33]), wide, plain(&[0; 4])].concat());
}

/// Angles for one pair, with a given frequency.
fn angles(frequency: f32, position_steps: &[u32]) -> Vec<u8> {
    let tokens = position_steps.len() as u8;
    [vec![1, 1, 1], frequency.to_le_bytes().to_vec(), vec![tokens], list(position_steps)].concat()
}

#[test]
fn rotated_rows_match_the_format() {
    // A quarter turn: (1, 0) becomes (cos, sin), and that (-1, cos - sin ..). The cosine of the f32 nearest to
    // pi / 2 is -4.4e-8, three quarters of the smallest f16.
    let words = u16s(&[0x3C00, 0, 0x8001, 0x3C00]);
    let body = [vec![3], list(&[0, 1]), frame(&[0x80]), angles(std::f32::consts::FRAC_PI_2, &[0, 1])].concat();
    reads(Dtype::F16, 2, &words, &[body, plain(&[0, 0, 0x3C, 0])].concat());
    // Positions add up mod 2^32, and a head begins again.
    let words = u16s(&[0x3C00, 0, 0x3C00, 0, 0x3C00, 0, 0x3C00, 0]);
    let body = [vec![3], list(&[0, 1, 1, 1]), frame(&[0x80; 3]), angles(1.5, &[7, 0])].concat();
    reads(Dtype::F16, 2, &words, &[body, plain(&[0, 0, 0x3C, 0])].concat());
    let body = [vec![3], list(&[0, 1, 1, 2]), frame(&[0x80, 0, 0x80]), angles(1.5, &[7, 0, 1, u32::MAX])].concat();
    // Turned by 1.5: 0.0707 and 0.9975.
    let words = u16s(&[0x3C00, 0, 0x3C00, 0, 0x2C87, 0x3BFB, 0x3C00, 0]);
    reads(Dtype::F16, 2, &words, &[body, plain(&[0, 0, 0x3C, 0])].concat());
}

#[test]
fn predictions_are_the_mean_of_a_class() {
    // Angle 0. 1.0; 3.0, which joins; 2.0, the mean of both, joins; the next is 2.0, too, and begins a class.
    let words = [0x3C00, 0x4200, 0x4000, 0x4000, 0x4000u16].map(|x| [x, 0]).concat();
    let kinds = [0x83, 0x80, 0, 0];
    // 3.0 is 0x600 words above 1.0.
    let wide = plain(&[0, 0, 0x0C, 0]);
    let last_row = [list(&[0, 1, 1, 1, 1]), frame(&kinds), wide.clone(), angles(0.0, &[0; 5])];
    reads(Dtype::F16, 2, &u16s(&words), &[vec![3], last_row.concat(), plain(&[0, 0, 0x3C, 0])].concat());
    // A row may refer to any row of the class.
    let first_row = [list(&[0, 1, 2, 3, 2]), frame(&kinds), wide, angles(0.0, &[0; 5])];
    reads(Dtype::F16, 2, &u16s(&words), &[vec![3], first_row.concat(), plain(&[0, 0, 0x3C, 0])].concat());
}

#[test]
fn invalid_bodies_are_refused() {
    use Status::{Corrupt, Unsupported};
    let words = u16s(&[0x3C00, 0, 0x3C00, 0]);
    let new = plain(&[0, 0, 0x3C, 0]);
    let with = |flags: u8, parts: &[&[u8]]| [&[flags], &parts.concat()[..], &new].concat();
    let (distances, kinds, turn) = (list(&[0, 1]), frame(&[0]), angles(0.0, &[0, 0]));
    let changed = |at: usize, with: &[u8]| [&turn[..at], with, &turn[at + with.len()..]].concat();
    let theta = |theta: f32| [&[1, 1, 0][..], &theta.to_le_bytes(), &turn[7..]].concat();
    let not_a_list = [&[0x28, 0xB5, 0x2F, 0xFD][..], &[0xFF; 4]].concat();
    let two_frames = [&distances[1..], &frame(&[])[1..]].concat();

    reads(Dtype::F16, 2, &words, &with(1, &[&distances, &kinds]));
    reads(Dtype::F16, 2, &words, &with(3, &[&distances, &kinds, &turn]));
    reads(Dtype::F16, 2, &words, &with(3, &[&distances, &kinds, &theta(1e30)]));
    for (what, body, status) in [
        ("no body", vec![], Corrupt),
        ("flags alone", vec![0], Corrupt),
        ("flags 2", with(2, &[]), Unsupported),
        ("flags 4", with(4, &[]), Unsupported),
        ("flags 5", with(5, &[&distances, &kinds]), Unsupported),
        ("a byte after the end", [with(1, &[&distances, &kinds]), vec![0]].concat(), Corrupt),
        ("a first row that refers back", with(1, &[&list(&[1, 1]), &frame(&[0, 0])]), Corrupt),
        ("a row before the first", with(1, &[&list(&[0, 2]), &kinds]), Corrupt),
        ("a distance of 2^32 - 1", with(1, &[&list(&[0, u32::MAX]), &kinds]), Corrupt),
        ("too few distances", with(1, &[&list(&[0]), &kinds]), Corrupt),
        ("too many distances", with(1, &[&list(&[0, 1, 1]), &kinds]), Corrupt),
        ("a list that is not a frame", with(1, &[&bytes(&not_a_list), &kinds]), Corrupt),
        ("a list of two frames", with(1, &[&bytes(&two_frames), &kinds]), Corrupt),
        ("too many kinds", with(1, &[&distances, &frame(&[0, 0])]), Corrupt),
        ("kind 34", with(1, &[&distances, &frame(&[34])]), Corrupt),
        ("a join without angles", with(1, &[&distances, &frame(&[0x80])]), Corrupt),
        ("kind 34 that joins", with(3, &[&distances, &frame(&[0x80 + 34]), &turn]), Corrupt),
        ("missing steps", with(1, &[&distances, &frame(&[3])]), Corrupt),
        ("too many large steps", with(1, &[&distances, &frame(&[1]), &plain(&[0, 0]), &[1], &plain(&[9, 0])]), Corrupt),
        ("too few large steps", with(1, &[&distances, &frame(&[1]), &plain(&[15, 0]), &[0]]), Corrupt),
        (
            "large steps in any number",
            with(1, &[&distances, &frame(&[1]), &plain(&[15, 0]), &[0xFF; 9], &[1]]),
            Corrupt,
        ),
        ("pairing 0", with(3, &[&distances, &kinds, &changed(0, &[0])]), Unsupported),
        ("pairing 3", with(3, &[&distances, &kinds, &changed(0, &[3])]), Unsupported),
        ("no pairs", with(3, &[&distances, &kinds, &[1, 0, 1], &turn[7..]]), Corrupt),
        ("more pairs than the row has", with(3, &[&distances, &kinds, &changed(1, &[2])]), Corrupt),
        ("source 2", with(3, &[&distances, &kinds, &changed(2, &[2])]), Unsupported),
        ("a negative frequency", with(3, &[&distances, &kinds, &changed(3, &(-1f32).to_le_bytes())]), Corrupt),
        ("a frequency of 2e6", with(3, &[&distances, &kinds, &changed(3, &2e6f32.to_le_bytes())]), Corrupt),
        ("a frequency of NaN", with(3, &[&distances, &kinds, &changed(3, &f32::NAN.to_le_bytes())]), Corrupt),
        ("theta below 1", with(3, &[&distances, &kinds, &theta(0.99)]), Corrupt),
        ("theta above 1e30", with(3, &[&distances, &kinds, &theta(2e30)]), Corrupt),
        ("theta of NaN", with(3, &[&distances, &kinds, &theta(f32::NAN)]), Corrupt),
        ("no tokens", with(3, &[&distances, &kinds, &angles(0.0, &[])]), Corrupt),
        ("more tokens than rows", with(3, &[&distances, &kinds, &angles(0.0, &[0; 4])]), Corrupt),
        ("too few positions", with(3, &[&distances, &kinds, &turn[..7], &[2], &list(&[0])]), Corrupt),
    ] {
        assert_eq!(refused(&blob(Dtype::F16, 2, &words, &body), Dtype::F16, words.len()), status, "{what}");
    }
    let int8 = blob(Dtype::Int8, 2, &words[..4], &[vec![3], distances, kinds, turn, plain(&[0, 0x3C])].concat());
    assert_eq!(refused(&int8, Dtype::Int8, 4), Corrupt, "turned bytes");
    let heads = [list(&[0, 1, 1]), frame(&[0, 0]), angles(0.0, &[0, 0])].concat();
    let heads = blob(Dtype::F16, 2, &u16s(&[0; 6]), &with(3, &[&heads]));
    assert_eq!(refused(&heads, Dtype::F16, 12), Corrupt, "two tokens a head, three rows");
}

#[test]
fn invalid_planes_are_refused() {
    use Status::{Corrupt, Unsupported};
    let raw = bytes(&RESIDUALS[0]);
    let group = |head: &[u8]| [&[0], head, &raw].concat();
    let number = |bytes: &[u8]| [&[0][..], bytes, &[1, 0, 0], &raw].concat();
    reads(Dtype::Int8, 2, &ROWS, &group(&[5, 1, 0, 0]));
    reads(Dtype::Int8, 2, &ROWS, &number(&[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1]));
    for (what, body, status) in [
        ("units of no rows", group(&[0, 1, 0, 0]), Corrupt),
        ("no groups", group(&[5, 0, 0, 0]), Corrupt),
        ("257 groups", [&[0, 5, 0x81, 2][..], &frame(&[0, 0]), &[0, 0], &raw].concat(), Corrupt),
        ("2^63 groups", group(&[5, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1, 0, 0]), Corrupt),
        ("a number of 65 bits", number(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2]), Corrupt),
        ("a number of eleven bytes", number(&[0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0]), Corrupt),
        ("a number without end", vec![0, 0x85, 0x80], Corrupt),
        ("predictor 5", group(&[5, 1, 5, 0]), Unsupported),
        ("coding 2", group(&[5, 1, 0, 2]), Unsupported),
        ("a payload that is not a frame", group(&[5, 1, 0, 1]), Corrupt),
        ("a payload that is too short", [&[0, 5, 1, 0, 0][..], &bytes(&ROWS[1..])].concat(), Corrupt),
        ("a payload that is too long", [&[0, 5, 1, 0, 0][..], &bytes(&[1; 11])].concat(), Corrupt),
        ("a payload beyond the blob", vec![0, 5, 1, 0, 0, 10, 1, 2, 3], Corrupt),
        ("a payload beyond memory", [&[0, 5, 1, 0, 0][..], &[0xFF; 9], &[1, 2, 3]].concat(), Corrupt),
        ("a frame that is too short", [&[0, 5, 1, 0, 1][..], &frame(&ROWS[1..])].concat(), Corrupt),
        ("a frame that is too long", [&[0, 5, 1, 0, 1][..], &frame(&[1; 11])].concat(), Corrupt),
        ("a frame of 16 MB", [&[0, 5, 1, 0, 1][..], &long_frame()].concat(), Corrupt),
        ("a missing group", [&[0, 5, 2][..], &frame(&[0, 2]), &[0, 0], &raw, &[0, 0, 0]].concat(), Corrupt),
        ("a unit too few", [&[0, 5, 2][..], &frame(&[0]), &[0, 0], &raw, &[0, 0, 0]].concat(), Corrupt),
        ("a group too few", [&[0, 5, 2][..], &frame(&[0, 0]), &[0, 0], &raw].concat(), Corrupt),
    ] {
        assert_eq!(refused(&blob(Dtype::Int8, 2, &ROWS, &body), Dtype::Int8, ROWS.len()), status, "{what}");
    }
}

/// A small frame with a large content.
fn long_frame() -> Vec<u8> {
    let mut out = vec![0; 4096];
    let len = zstd_safe::compress(&mut out[..], &vec![0; 16 << 20], 3).unwrap();
    [&[len as u8 | 0x80, (len >> 7) as u8], &out[..len]].concat()
}
