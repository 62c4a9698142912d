use super::*;
use crate::status::Status;
use half::{bf16, f16};
use proptest::prelude::*;

/// Numbers for tests that need no shrinking (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 16) as usize % n
    }

    /// Between -1 and 1.
    fn real(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// A whole head of plain f32 rows, `[queries][tokens]`, whose values are final.
fn rows(queries: usize, token_begin: usize, values: &[f32]) -> OwnedTile {
    let shape = Shape { dtype: Dtype::F32, pack: 0, queries };
    shape.tile(token_begin, values.len() / queries, |row, token| values[row * (values.len() / queries) + token])
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    dtype: Dtype,
    pack: usize,
    queries: usize,
}

impl Shape {
    /// The only tile of a head. Padding is NaN.
    fn tile(self, token_begin: usize, tokens: usize, value: impl Fn(usize, usize) -> f32) -> OwnedTile {
        let Shape { dtype, pack, queries } = self;
        let len = Tile::data_bytes(dtype, pack, queries, tokens).unwrap() / dtype.bytes();
        let mut values = vec![f32::NAN; len];
        for (row, token) in (0..queries).flat_map(|row| (0..tokens).map(move |token| (row, token))) {
            let at = match pack {
                0 => row * tokens + token,
                _ => (token / pack * queries + row) * pack + token % pack,
            };
            values[at] = value(row, token);
        }
        let data = match dtype {
            Dtype::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_ne_bytes()).collect(),
            Dtype::Bf16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_ne_bytes()).collect(),
            _ => values.iter().flat_map(|v| v.to_ne_bytes()).collect(),
        };
        let (first, last) = (true, true);
        OwnedTile {
            dtype,
            pack,
            queries,
            heads: 0,
            tokens,
            token_begin,
            first,
            last,
            data,
            update_scale: None,
            row_sum: None,
        }
    }
}

/// A head as a flash attention leaves it, and what its softmax is in float64.
struct Head {
    tiles: Vec<OwnedTile>,
    /// `[row][token]`
    exact: Vec<Vec<f64>>,
}

/// A head over `tokens` tokens in tiles of 1 to 149. With `flash` tiles are scaled by the running maximum and sums come
/// last, else they are normalised.
fn head(random: &mut Random, shape: Shape, tokens: usize, flash: bool) -> Head {
    let logits: Vec<Vec<f32>> =
        (0..shape.queries).map(|_| (0..tokens).map(|_| 4.0 * random.real()).collect()).collect();
    let exact: Vec<Vec<f64>> = logits
        .iter()
        .map(|row| {
            let weights: Vec<f64> = row.iter().map(|x| f64::from(*x).exp()).collect();
            let sum: f64 = weights.iter().sum();
            weights.iter().map(|w| w / sum).collect()
        })
        .collect();

    let mut parts = Vec::new();
    let mut begin = 0;
    while begin < tokens {
        let end = tokens.min(begin + 1 + random.below(149));
        parts.push(begin..end);
        begin = end;
    }
    let mut max = vec![f32::NEG_INFINITY; shape.queries];
    let mut sum = vec![0.0; shape.queries];
    let mut tiles = Vec::new();
    for part in &parts {
        let mut scale = vec![0.0; shape.queries];
        for (row, logits) in logits.iter().enumerate() {
            let new = logits[part.clone()].iter().fold(max[row], |a, b| a.max(*b));
            scale[row] = (max[row] - new).exp();
            max[row] = new;
            sum[row] = sum[row] * scale[row] + logits[part.clone()].iter().map(|x| (x - new).exp()).sum::<f32>();
        }
        let mut tile = if flash {
            shape.tile(part.start, part.len(), |row, token| (logits[row][part.start + token] - max[row]).exp())
        } else {
            shape.tile(part.start, part.len(), |row, token| exact[row][part.start + token] as f32)
        };
        (tile.first, tile.last) = (tiles.is_empty(), tiles.len() + 1 == parts.len());
        if flash {
            // The first tile's scale is exp(-inf - m); it may as well be nothing at all.
            tile.update_scale = Some(if tile.first { vec![f32::NAN; shape.queries] } else { scale });
            tile.row_sum = tile.last.then(|| sum.clone());
        }
        tiles.push(tile);
    }
    Head { tiles, exact }
}

/// The masses of heads that are shared out over lanes.
fn masses(heads: &[Head], lanes: &[usize], block_tokens: usize, max_tokens: usize, last_rows: usize) -> Vec<u128> {
    let mut accumulators: Vec<Accumulator> =
        (0..=*lanes.iter().max().unwrap()).map(|_| Accumulator::default()).collect();
    accumulators.iter_mut().for_each(|a| a.start(block_tokens, max_tokens, last_rows));
    for (head, lane) in heads.iter().zip(lanes) {
        for tile in &head.tiles {
            accumulators[*lane].add(&tile.tile()).unwrap();
        }
        assert!(!accumulators[*lane].in_head());
    }
    let mut total = vec![0; max_tokens.div_ceil(block_tokens)];
    for lane in &accumulators {
        total.iter_mut().zip(lane.masses()).for_each(|(total, mass)| *total += mass);
    }
    assert_eq!(accumulators.iter().map(Accumulator::heads).sum::<u64>(), heads.len() as u64);
    total
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn masses_are_those_of_a_plain_softmax_whoever_gathers_them(
        (dtype, relative) in prop::sample::select(vec![(Dtype::F32, 1e-5), (Dtype::F16, 2e-3), (Dtype::Bf16, 1.6e-2)]),
        pack in prop::sample::select(vec![0usize, 4, 8, 16, 5, 150]),
        queries in 1usize..=7,
        tokens in 1usize..600,
        block_tokens in 1usize..=70,
        last_rows in prop_oneof![Just(usize::MAX), 0usize..9],
        heads in 1usize..6,
        flash: bool,
        seed: u64,
    ) {
        let random = &mut Random(seed);
        let shape = Shape { dtype, pack, queries };
        let heads: Vec<Head> = (0..heads).map(|_| head(random, shape, tokens, flash)).collect();
        let lanes = |random: &mut Random| -> Vec<usize> { heads.iter().map(|_| random.below(4)).collect() };
        let ours = masses(&heads, &lanes(random), block_tokens, tokens, last_rows);
        for _ in 0..3 {
            prop_assert_eq!(&masses(&heads, &lanes(random), block_tokens, tokens, last_rows), &ours);
        }
        let first_row = queries.saturating_sub(last_rows);
        for (block, mass) in ours.iter().enumerate() {
            let range = block * block_tokens..tokens.min((block + 1) * block_tokens);
            let rows = || heads.iter().flat_map(|head| &head.exact[first_row..]);
            let exact: f64 = rows().flat_map(|row| &row[range.clone()]).sum();
            // A small number is a denormal of f16: then it is right to half of the smallest one.
            let step = if dtype == Dtype::F16 { 2f64.powi(-25) * (rows().count() * range.len()) as f64 } else { 0.0 };
            let ours = mass_to_f64(*mass);
            prop_assert!((ours - exact).abs() <= relative * exact + step, "block {}: {} and not {}", block, ours, exact);
        }
    }
}

fn started(block_tokens: usize, max_tokens: usize) -> Accumulator {
    let mut scores = Accumulator::default();
    scores.start(block_tokens, max_tokens, usize::MAX);
    scores
}

fn numbers(scores: &Accumulator) -> Vec<f64> {
    scores.masses().iter().map(|mass| mass_to_f64(*mass)).collect()
}

#[test]
fn a_worked_example_of_one_normalised_tile() {
    let mut scores = started(2, 100);
    scores.add(&rows(2, 3, &[0.25, 0.5, 0.25, 0.125, 0.125, 0.75]).tile()).unwrap();
    assert_eq!(numbers(&scores), [0.0, 0.375, 1.625]);
    assert_eq!((scores.heads(), scores.rows(), scores.token_end(), scores.in_head()), (1, 2, 6, false));
}

#[test]
fn a_worked_example_of_a_flash_attention() {
    // Two tiles of one row; the maximum grows by ln 4 with the second, so the first counts a quarter.
    let mut scores = started(2, 4);
    let first = OwnedTile { last: false, ..rows(1, 0, &[1.0, 0.5]) };
    scores.add(&first.tile()).unwrap();
    assert!(scores.in_head() && scores.heads() == 0 && scores.masses().is_empty());
    let last = OwnedTile {
        first: false,
        update_scale: Some(vec![0.25]),
        row_sum: Some(vec![1.5]),
        ..rows(1, 2, &[1.0, 0.125])
    };
    scores.add(&last.tile()).unwrap();
    assert_eq!(numbers(&scores).iter().map(|mass| (mass * 1e9).round() / 1e9).collect::<Vec<_>>(), [0.25, 0.75]);
}

#[test]
fn a_tile_may_span_many_blocks_and_begin_anywhere() {
    let mut scores = started(3, 20);
    scores
        .add(&Shape { dtype: Dtype::F16, pack: 4, queries: 2 }.tile(5, 11, |row, _| 1.0 + row as f32).tile())
        .unwrap();
    assert_eq!(numbers(&scores), [0.0, 3.0, 9.0, 9.0, 9.0, 3.0]);
    assert_eq!(scores.token_end(), 16);
}

/// A decode step's tiles take a short way, and what comes of it is what the long one gives.
#[test]
fn plain_tiles_count_as_any() {
    let mut random = Random(7);
    for (rows, block_tokens, tile_tokens, pack) in [1, 4, 16]
        .into_iter()
        .flat_map(|rows| {
            [7, 16, 32, 64, 100]
                .into_iter()
                .flat_map(move |block| [(block, 64), (block, 1), (block, 33)].map(|(b, t)| (rows, b, t)))
        })
        .flat_map(|(rows, block, tile)| [0, 64, 80].map(|pack| (rows, block, tile, pack)))
    {
        let (mut short, mut long) = (started(block_tokens, 4096), started(block_tokens, 4096));
        let dtype = [Dtype::F32, Dtype::F16, Dtype::Bf16][random.below(3)];
        let shape = Shape { dtype, pack, queries: rows };
        let tiles = 40;
        let (mut token, mut plain) = (0, 0);
        for i in 0..tiles {
            let tokens = tile_tokens - usize::from(i == 20 && tile_tokens > 1);
            let noise: Vec<f32> = (0..rows * tokens).map(|_| random.real().abs() / 64.0).collect();
            let mut tile = shape.tile(token, tokens, |row, at| noise[row * tokens + at]);
            (tile.first, tile.last) = (i == 0, i + 1 == tiles);
            tile.update_scale =
                Some((0..rows).map(|row| if i % 9 == 5 && row == rows / 2 { 0.5 } else { 1.0 }).collect());
            let took = short.add_plain(&tile.tile());
            plain += usize::from(took);
            if !took {
                short.add_any(&tile.tile()).unwrap();
            }
            long.add_any(&tile.tile()).unwrap();
            token += tokens;
        }
        assert!(plain > tiles / 2 || 3 * block_tokens < tile_tokens, "{rows} {block_tokens} {tile_tokens} {pack}");
        assert_eq!((short.heads(), short.rows(), short.token_end()), (1, rows as u64, token));
        assert_eq!(numbers(&short).len(), numbers(&long).len());
        for (block, (short, long)) in numbers(&short).iter().zip(numbers(&long)).enumerate() {
            assert!((short / long - 1.0).abs() < 1e-5, "block {block}: {short} {long}");
        }
    }
}

#[test]
fn only_the_last_rows_count() {
    for (last_rows, expected) in [(0, 0.0), (1, 4.0), (2, 6.0), (3, 7.0), (4, 7.0)] {
        let mut scores = Accumulator::default();
        scores.start(8, 8, last_rows);
        // What does not count may be anything.
        let first = if last_rows < 3 { f32::NAN } else { 1.0 };
        let tile = OwnedTile { row_sum: Some(vec![first, 1.0, 1.0]), ..rows(3, 0, &[first, 2.0, 4.0]) };
        match last_rows {
            0 => scores.add(&OwnedTile { row_sum: None, ..tile }.tile()).unwrap(),
            _ => scores.add(&tile.tile()).unwrap(),
        }
        assert_eq!(numbers(&scores), [expected]);
        assert_eq!((scores.heads(), scores.rows()), (1, last_rows.min(3) as u64));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Heads as rows of one tile are what they are one by one; where tiles do not say so, both readings are there.
    #[test]
    fn heads_may_come_as_rows_of_one_tile(
        pack in prop::sample::select(vec![0usize, 4, 8, 16, 5]),
        heads in 1usize..9,
        queries in 1usize..9,
        most_decode_rows in 0usize..9,
        last_rows in prop_oneof![Just(usize::MAX), 0usize..9],
        flash: bool,
        seed: u64,
    ) {
        let random = &mut Random(seed);
        let (dtype, tokens) = (Dtype::F32, 1 + random.below(300));
        let all = head(random, Shape { dtype, pack, queries: heads * queries }, tokens, flash);
        let group = |said: usize| {
            let mut scores = Accumulator::default();
            scores.start_step(16, tokens, last_rows, most_decode_rows);
            for tile in &all.tiles {
                let tile = OwnedTile { heads: said, ..tile.clone() };
                scores.add(&tile.tile()).unwrap();
            }
            scores
        };
        let exact = |counts: &dyn Fn(usize) -> bool| -> Vec<f64> {
            let rows: Vec<&Vec<f64>> = (0..heads * queries).filter(|r| counts(*r)).map(|r| &all.exact[r]).collect();
            let block = |begin: usize| rows.iter().flat_map(|row| &row[begin..tokens.min(begin + 16)]).sum();
            (0..tokens).step_by(16).map(block).collect()
        };
        let check = |sums: &Sums, exact: Vec<f64>, rows: usize| {
            assert_eq!(sums.rows as usize, rows);
            let near = |(ours, exact): (&u128, &f64)| (mass_to_f64(*ours) - exact).abs() <= 1e-5 * exact;
            assert!(sums.masses.len() == exact.len() && sums.masses.iter().zip(&exact).all(near), "{sums:?} {exact:?}");
        };

        let said = group(heads);
        let counted = if queries <= most_decode_rows { queries } else { last_rows.min(queries) };
        check(said.sure(), exact(&|row| row % queries >= queries - counted), heads * counted);
        prop_assert_eq!((said.heads(), said.sure().unsaid), (heads as u64, 0));

        let unsaid = group(0);
        let rows = heads * queries;
        let last = last_rows.min(rows);
        if rows <= most_decode_rows || most_decode_rows == 0 || last == rows {
            let last = if rows <= most_decode_rows { rows } else { last };
            check(unsaid.sure(), exact(&|row| row >= rows - last), last);
            prop_assert_eq!((unsaid.heads(), unsaid.sure().unsaid), (1, 1));
        } else {
            check(unsaid.unsure(true), exact(&|row| row >= rows - last), last);
            check(unsaid.unsure(false), exact(&|_| true), rows);
            prop_assert_eq!(unsaid.heads(), 0);
        }
    }
}

#[test]
fn rows_of_a_prompt_may_hold_anything_where_they_do_not_count_whoever_may_have_them() {
    let mut scores = Accumulator::default();
    scores.start_step(8, 8, 1, 2);
    scores.add(&rows(4, 0, &[f32::NAN, f32::NAN, f32::NAN, 2.0]).tile()).unwrap();
    assert_eq!((scores.unsure(true).heads, scores.unsure(true).rows, scores.unsure(false).heads), (1, 1, 0));
    scores.add(&OwnedTile { heads: 1, ..rows(4, 0, &[f32::NAN, f32::NAN, f32::NAN, 2.0]) }.tile()).unwrap();
    assert_eq!(numbers(&scores), [2.0]);
}

#[test]
fn a_start_forgets_an_open_head_and_all_masses() {
    let mut scores = started(4, 8);
    scores.add(&rows(1, 0, &[1.0; 8]).tile()).unwrap();
    scores.add(&OwnedTile { last: false, ..rows(1, 0, &[1.0; 8]) }.tile()).unwrap();
    scores.start(4, 8, usize::MAX);
    assert!(!scores.in_head() && scores.masses().is_empty());
    assert_eq!((scores.heads(), scores.rows(), scores.token_end()), (0, 0, 0));
    scores.add(&rows(1, 0, &[0.5; 2]).tile()).unwrap();
    assert_eq!(numbers(&scores), [1.0]);
}

#[test]
fn data_may_lie_anywhere_in_memory() {
    let tile = Shape { dtype: Dtype::F32, pack: 8, queries: 3 }.tile(0, 21, |row, token| (row * 21 + token) as f32);
    let exact = (0..63).sum::<usize>() as f64;
    for offset in 0..8 {
        let mut moved = vec![0xEE; offset];
        moved.extend(&tile.data);
        let mut scores = started(64, 64);
        scores.add(&Tile { data: &moved[offset..], ..tile.tile() }).unwrap();
        assert_eq!(numbers(&scores), [exact]);
    }
}

#[test]
fn a_long_piece_of_f16_does_not_overflow() {
    let tokens = 100_000;
    let mut scores = started(tokens, tokens);
    scores.add(&Shape { dtype: Dtype::F16, pack: 0, queries: 1 }.tile(0, tokens, |_, _| 1.0).tile()).unwrap();
    assert_eq!(numbers(&scores), [tokens as f64]);
}

#[test]
fn memory_is_for_rows_times_pieces_and_tiles() {
    let (rows, tokens, tile_tokens) = (4096, 4096, 64);
    let mut scores = started(64, tokens);
    let tiles = tokens / tile_tokens;
    for i in 0..tiles {
        // Masked values may be tiny and yet not 0.
        let visible = |row: usize, token: usize| if i * tile_tokens + token <= row { 1.0 } else { 1.7e-38 };
        let mut tile = Shape { dtype: Dtype::F32, pack: 16, queries: rows }.tile(i * tile_tokens, tile_tokens, visible);
        (tile.first, tile.last) = (i == 0, i + 1 == tiles);
        tile.update_scale = Some(vec![1.0; rows]);
        tile.row_sum = tile.last.then(|| (1..=rows).map(|row| row as f32).collect());
        scores.add(&tile.tile()).unwrap();
    }
    let harmonic = |token: usize| (token..rows).map(|row| 1.0 / (row + 1) as f64).sum::<f64>();
    for (block, mass) in numbers(&scores).iter().enumerate() {
        let exact: f64 = (block * 64..(block + 1) * 64).map(harmonic).sum();
        assert!((mass / exact - 1.0).abs() < 1e-6, "{block}: {mass} {exact}");
    }
    let pieces = tiles;
    let most = rows * (pieces + tiles) + Mark::WORDS * tiles;
    assert!(scores.head.log.len() <= most);
    assert!(scores.head.log.capacity() <= 2 * most, "and twice that while it grows");
}

#[test]
fn a_mass_is_exact_to_its_last_bit() {
    for (number, expected) in [
        (0.0, 0),
        (-0.0, 0),
        (1.0, 1 << 80),
        (1.5, 3 << 79),
        (2f64.powi(-80), 1),
        (2f64.powi(-80) * 1.999, 1),
        (2f64.powi(-81), 0),
        (f64::MIN_POSITIVE / 2.0, 0),
        (2f64.powi(31) + 2f64.powi(-21), (1 << 111) + (1 << 59)),
        (HEAD_LIMIT - 2f64.powi(-21), (1 << 112) - (1 << 59)),
    ] {
        assert_eq!(fixed(number), expected, "{number:e}");
    }
    assert_eq!(mass_to_f64(fixed(0.1)), 0.1);
    assert_eq!(mass_to_f64(fixed(12345.678)), 12345.678);
}

/// Adds `tile` after `before`, and expects a refusal that changes nothing.
fn refused(before: &[OwnedTile], tile: &OwnedTile, status: Status, text: &str) {
    let mut scores = started(8, 100);
    before.iter().for_each(|tile| scores.add(&tile.tile()).unwrap());
    let state =
        |s: &Accumulator| (s.heads(), s.rows(), s.in_head(), s.masses().to_vec(), s.token_end(), s.head.log.clone());
    let old = state(&scores);
    let error = scores.add(&tile.tile()).unwrap_err();
    assert!(error.status() == status && error.message().contains(text), "{error}");
    assert_eq!(state(&scores), old, "{error}");
}

#[test]
fn a_bad_tile_is_refused_and_changes_nothing() {
    let good = || rows(2, 0, &[0.5; 16]);
    let open = || vec![good(), OwnedTile { last: false, ..good() }];
    let later = || OwnedTile { first: false, token_begin: 8, ..good() };
    let invalid =
        |before: &[OwnedTile], tile: OwnedTile, text: &str| refused(before, &tile, Status::InvalidArgument, text);
    let int8 = OwnedTile { dtype: Dtype::Int8, data: vec![0; 16], ..good() };
    refused(&[], &int8, Status::Unsupported, "tile->dtype is INT8");
    invalid(&[], OwnedTile { queries: 0, ..good() }, "tile->queries is 0");
    invalid(&[], OwnedTile { tokens: 0, ..good() }, "tile->tokens is 0");
    invalid(
        &[],
        OwnedTile { token_begin: 93, ..good() },
        "token_begin is 93 and tile->tokens 8; an end of 100 or less",
    );
    invalid(&[], OwnedTile { token_begin: usize::MAX, ..good() }, &format!("tile->token_begin is {}", usize::MAX));
    invalid(
        &[],
        OwnedTile { data: vec![0; 63], ..good() },
        "tile->data holds 63 bytes; 64 expected (2 rows of 8 tokens, F32",
    );
    invalid(&[], OwnedTile { pack: 5, ..good() }, "64 bytes; 80 expected");
    invalid(&[], OwnedTile { pack: usize::MAX, ..good() }, "tile->data cannot hold");
    invalid(&[], OwnedTile { queries: usize::MAX, ..good() }, "tile->data cannot hold");
    invalid(&[], later(), "tile->flags has no FIRST (1), and no head has begun");
    invalid(&open(), good(), "tile->flags has FIRST (1), and the head before has not ended");
    invalid(&open(), OwnedTile { first: false, ..rows(1, 8, &[0.5; 8]) }, "tile->queries is 1; 2 expected");
    for token_begin in [7, 9, 0] {
        let tile = OwnedTile { token_begin, ..later() };
        invalid(&open(), tile, &format!("tile->token_begin is {token_begin}; 8 expected"));
    }
    invalid(&[], OwnedTile { heads: 4, ..rows(6, 0, &[0.5; 6]) }, "tile->queries is 6; a multiple of tile->heads, 4");
    invalid(&[], OwnedTile { heads: 3, ..good() }, "tile->queries is 2; a multiple of tile->heads, 3");
    invalid(
        &open(),
        OwnedTile { update_scale: Some(vec![1.0]), ..later() },
        "tile->update_scale holds 1 values; 2 expected",
    );
    invalid(
        &[],
        OwnedTile { update_scale: Some(vec![1.0; 3]), ..good() },
        "tile->update_scale holds 3 values; 2 expected",
    );
    invalid(&[], OwnedTile { row_sum: Some(vec![1.0; 3]), ..good() }, "tile->row_sum holds 3 values; 2 expected");
    let early = OwnedTile { last: false, row_sum: Some(vec![1.0; 2]), ..later() };
    invalid(&open(), early, "tile->row_sum is given and tile->flags has no LAST (2)");
    for bad in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY] {
        invalid(&[], OwnedTile { row_sum: Some(vec![1.0, bad]), ..good() }, &format!("tile->row_sum[1] is {bad}"));
    }
    for bad in [-1.0, f32::NAN, f32::INFINITY] {
        let tile = OwnedTile { update_scale: Some(vec![bad, 1.0]), ..later() };
        invalid(&open(), tile, &format!("tile->update_scale[0] is {bad}"));
    }
    // Many rows at once are looked at as closely.
    let sums = (0..50).map(|i| if i == 37 { f32::NAN } else { 1.0 }).collect();
    invalid(&[], OwnedTile { row_sum: Some(sums), ..rows(50, 0, &[0.5; 50]) }, "tile->row_sum[37] is NaN");
}

#[test]
fn a_scale_of_0_and_the_smallest_row_sum_are_numbers() {
    let mut scores = started(1, 2);
    scores.add(&OwnedTile { last: false, ..rows(1, 0, &[1.0]) }.tile()).unwrap();
    let sum = f32::from_bits(1);
    let last =
        OwnedTile { first: false, update_scale: Some(vec![0.0]), row_sum: Some(vec![sum]), ..rows(1, 1, &[sum]) };
    scores.add(&last.tile()).unwrap();
    assert_eq!(numbers(&scores), [0.0, 1.0]);
}

#[test]
fn a_head_that_is_no_attention_is_dropped_and_the_block_named() {
    for (dtype, bad, text) in [
        (Dtype::F32, f32::NAN, "attention to block 3 is NaN"),
        (Dtype::F16, f32::NAN, "attention to block 3 is NaN"),
        (Dtype::Bf16, f32::NAN, "attention to block 3 is NaN"),
        (Dtype::F32, f32::INFINITY, "attention to block 3 is inf"),
        (Dtype::F16, f32::INFINITY, "attention to block 3 is inf"),
        (Dtype::F32, -2.0, "attention to block 3 is -2"),
        (Dtype::F16, -2.0, "attention to block 3 is -2"),
        (Dtype::Bf16, -2.0, "attention to block 3 is -2"),
        (Dtype::F32, 1e30, "attention to block 3 is "),
    ] {
        for queries in [1, 3] {
            let mut scores = started(4, 100);
            scores.add(&rows(1, 0, &[0.5; 2]).tile()).unwrap();
            let tile = Shape { dtype, pack: 4, queries }.tile(0, 20, |_, token| if token == 13 { bad } else { 0.0 });
            scores.add(&OwnedTile { last: false, ..tile.clone() }.tile()).unwrap();
            let error = scores
                .add(&OwnedTile { first: false, ..Shape { dtype, pack: 4, queries }.tile(20, 1, |_, _| 0.0) }.tile());
            let error = error.unwrap_err();
            let text =
                if bad == -2.0 { format!("attention to block 3 is {}", -2 * queries as i32) } else { text.into() };
            assert!(error.status() == Status::InvalidArgument && error.message().starts_with(&text), "{error}");
            assert_eq!((scores.heads(), scores.rows(), scores.in_head(), scores.token_end()), (1, 1, false, 2));
            assert_eq!(numbers(&scores), [1.0]);
            // The next head is as good as any.
            scores.add(&rows(1, 0, &[0.5; 2]).tile()).unwrap();
            assert_eq!(numbers(&scores), [2.0]);
        }
    }
}

#[test]
fn sizes_that_do_not_fit_are_none() {
    assert_eq!(Tile::data_bytes(Dtype::F16, 8, 3, 9), Some(16 * 3 * 2));
    assert_eq!(Tile::data_bytes(Dtype::F32, 0, 3, 9), Some(9 * 3 * 4));
    for (pack, queries, tokens) in
        [(0, usize::MAX, 2), (16, 1, usize::MAX), (usize::MAX, 1, usize::MAX), (0, 1, usize::MAX / 2)]
    {
        assert_eq!(Tile::data_bytes(Dtype::F32, pack, queries, tokens), None);
    }
}
