use super::*;
use crate::common::Random;
use crate::dtype::Dtype;
use crate::host::packing;
use crate::status::Status;
use proptest::prelude::*;

/// From -1 to below 1.
fn real(random: &mut Random) -> f32 {
    (2.0 * random.unit() - 1.0) as f32
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
        let data = packing::tile(dtype, pack, queries, tokens, |row, token| f64::from(value(row, token)));
        OwnedTile { dtype, pack, queries, heads: 0, tokens, token_begin, data, ..OwnedTile::of_one_token() }
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
    let logits: Vec<Vec<f32>> = (0..shape.queries).map(|_| (0..tokens).map(|_| 4.0 * real(random)).collect()).collect();
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
            // Not read: exp(-inf - m) at best.
            tile.update_scale = Some(if tile.first { vec![f32::NAN; shape.queries] } else { scale });
            tile.row_sum = tile.last.then(|| sum.clone());
        }
        tiles.push(tile);
    }
    Head { tiles, exact }
}

/// The masses of heads, each on its lane.
fn masses(heads: &[Head], lanes: &[usize], block_tokens: usize, max_tokens: usize, last_rows: usize) -> Vec<u128> {
    let mut accumulators: Vec<Accumulator> =
        (0..=*lanes.iter().max().unwrap()).map(|_| Accumulator::default()).collect();
    accumulators.iter_mut().for_each(|a| a.start(block_tokens, last_rows, 0));
    for (head, lane) in heads.iter().zip(lanes) {
        for tile in &head.tiles {
            add(&mut accumulators[*lane], tile).unwrap();
        }
        assert!(!accumulators[*lane].in_head());
    }
    let mut total = vec![0; max_tokens.div_ceil(block_tokens)];
    for lane in &accumulators {
        total.iter_mut().zip(&lane.sums().masses).for_each(|(total, mass)| *total += mass);
    }
    assert_eq!(accumulators.iter().map(|lane| lane.sums().heads).sum::<u64>(), heads.len() as u64);
    total
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn masses_are_those_of_a_plain_softmax_on_any_lanes(
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
        let random = &mut Random::new(seed);
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

fn started(block_tokens: usize) -> Accumulator {
    let mut scores = Accumulator::default();
    scores.start(block_tokens, usize::MAX, 0);
    scores
}

/// Checks a tile and adds it.
fn add(scores: &mut Accumulator, tile: &OwnedTile) -> Result<()> {
    scores.add(&tile.checked()?)
}

fn numbers(scores: &Accumulator) -> Vec<f64> {
    scores.sums().masses.iter().map(|mass| mass_to_f64(*mass)).collect()
}

#[test]
fn a_worked_example_of_one_normalised_tile() {
    let mut scores = started(2);
    add(&mut scores, &rows(2, 3, &[0.25, 0.5, 0.25, 0.125, 0.125, 0.75])).unwrap();
    assert_eq!(numbers(&scores), [0.0, 0.375, 1.625]);
    assert_eq!((scores.sums().heads, scores.sums().rows, scores.token_end(), scores.in_head()), (1, 2, 6, false));
}

#[test]
fn a_worked_example_of_a_flash_attention() {
    // Two tiles of one row; the maximum grows by ln 4 with the second, so the first counts a quarter.
    let mut scores = started(2);
    let first = OwnedTile { last: false, ..rows(1, 0, &[1.0, 0.5]) };
    add(&mut scores, &first).unwrap();
    assert!(scores.in_head() && scores.sums().heads == 0 && scores.sums().masses.is_empty());
    let last = OwnedTile {
        first: false,
        update_scale: Some(vec![0.25]),
        row_sum: Some(vec![1.5]),
        ..rows(1, 2, &[1.0, 0.125])
    };
    add(&mut scores, &last).unwrap();
    assert_eq!(numbers(&scores).iter().map(|mass| (mass * 1e9).round() / 1e9).collect::<Vec<_>>(), [0.25, 0.75]);
}

#[test]
fn a_tile_may_span_many_blocks_and_begin_anywhere() {
    let mut scores = started(3);
    let shape = Shape { dtype: Dtype::F16, pack: 4, queries: 2 };
    add(&mut scores, &shape.tile(5, 11, |row, _| 1.0 + row as f32)).unwrap();
    assert_eq!(numbers(&scores), [0.0, 3.0, 9.0, 9.0, 9.0, 3.0]);
    assert_eq!(scores.token_end(), 16);
}

#[test]
fn the_fast_path_equals_the_exact_path() {
    let random = &mut Random::new(7);
    for (rows, block_tokens, tile_tokens, pack) in [1, 4, 16]
        .into_iter()
        .flat_map(|rows| {
            [7, 16, 32, 64, 100]
                .into_iter()
                .flat_map(move |block| [(block, 64), (block, 1), (block, 33)].map(|(b, t)| (rows, b, t)))
        })
        .flat_map(|(rows, block, tile)| [0, 64, 80].map(|pack| (rows, block, tile, pack)))
    {
        let (mut short, mut long) = (started(block_tokens), started(block_tokens));
        let dtype = [Dtype::F32, Dtype::F16, Dtype::Bf16][random.below(3)];
        let shape = Shape { dtype, pack, queries: rows };
        let tiles = 40;
        let (mut token, mut plain) = (0, 0);
        for i in 0..tiles {
            let tokens = tile_tokens - usize::from(i == 20 && tile_tokens > 1);
            let noise: Vec<f32> = (0..rows * tokens).map(|_| real(random).abs() / 64.0).collect();
            let mut tile = shape.tile(token, tokens, |row, at| noise[row * tokens + at]);
            (tile.first, tile.last) = (i == 0, i + 1 == tiles);
            tile.update_scale =
                Some((0..rows).map(|row| if i % 9 == 5 && row == rows / 2 { 0.5 } else { 1.0 }).collect());
            let tile = tile.checked().unwrap();
            let took = short.add_plain(&tile);
            plain += usize::from(took);
            if !took {
                short.add_any(&tile).unwrap();
            }
            long.add_any(&tile).unwrap();
            token += tokens;
        }
        assert!(plain > tiles / 2 || 3 * block_tokens < tile_tokens, "{rows} {block_tokens} {tile_tokens} {pack}");
        assert_eq!((short.sums().heads, short.sums().rows, short.token_end()), (1, rows as u64, token));
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
        scores.start(8, last_rows, 0);
        // Rows that do not count may hold anything.
        let first = if last_rows < 3 { f32::NAN } else { 1.0 };
        let tile = OwnedTile { row_sum: Some(vec![first, 1.0, 1.0]), ..rows(3, 0, &[first, 2.0, 4.0]) };
        match last_rows {
            0 => add(&mut scores, &OwnedTile { row_sum: None, ..tile }).unwrap(),
            _ => add(&mut scores, &tile).unwrap(),
        }
        assert_eq!(numbers(&scores), [expected]);
        assert_eq!((scores.sums().heads, scores.sums().rows), (1, last_rows.min(3) as u64));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Heads as rows of one tile give what they give one by one. Where tiles do not say so, both readings are there.
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
        let random = &mut Random::new(seed);
        let (dtype, tokens) = (Dtype::F32, 1 + random.below(300));
        let all = head(random, Shape { dtype, pack, queries: heads * queries }, tokens, flash);
        let group = |said: usize| {
            let mut scores = Accumulator::default();
            scores.start(16, last_rows, most_decode_rows);
            for tile in &all.tiles {
                let tile = OwnedTile { heads: said, ..tile.clone() };
                add(&mut scores, &tile).unwrap();
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
        check(said.sums(), exact(&|row| row % queries >= queries - counted), heads * counted);
        prop_assert_eq!((said.sums().heads, said.sums().unsaid), (heads as u64, 0));

        let unsaid = group(0);
        let rows = heads * queries;
        let last = last_rows.min(rows);
        if rows <= most_decode_rows || most_decode_rows == 0 || last == rows {
            let last = if rows <= most_decode_rows { rows } else { last };
            check(unsaid.sums(), exact(&|row| row >= rows - last), last);
            prop_assert_eq!((unsaid.sums().heads, unsaid.sums().unsaid), (1, 1));
        } else {
            check(unsaid.ambiguous(true), exact(&|row| row >= rows - last), last);
            check(unsaid.ambiguous(false), exact(&|_| true), rows);
            prop_assert_eq!(unsaid.sums().heads, 0);
        }
    }
}

#[test]
fn rows_of_an_ambiguous_head_may_hold_anything_where_they_do_not_count() {
    let mut scores = Accumulator::default();
    scores.start(8, 1, 2);
    add(&mut scores, &rows(4, 0, &[f32::NAN, f32::NAN, f32::NAN, 2.0])).unwrap();
    assert_eq!((scores.ambiguous(true).heads, scores.ambiguous(true).rows, scores.ambiguous(false).heads), (1, 1, 0));
    add(&mut scores, &OwnedTile { heads: 1, ..rows(4, 0, &[f32::NAN, f32::NAN, f32::NAN, 2.0]) }).unwrap();
    assert_eq!(numbers(&scores), [2.0]);
}

#[test]
fn a_start_forgets_an_open_head_and_all_masses() {
    let mut scores = started(4);
    add(&mut scores, &rows(1, 0, &[1.0; 8])).unwrap();
    add(&mut scores, &OwnedTile { last: false, ..rows(1, 0, &[1.0; 8]) }).unwrap();
    scores.start(4, usize::MAX, 0);
    assert!(!scores.in_head() && scores.sums().masses.is_empty());
    assert_eq!((scores.sums().heads, scores.sums().rows, scores.token_end()), (0, 0, 0));
    add(&mut scores, &rows(1, 0, &[0.5; 2])).unwrap();
    assert_eq!(numbers(&scores), [1.0]);
}

#[test]
fn data_may_lie_anywhere_in_memory() {
    let tile = Shape { dtype: Dtype::F32, pack: 8, queries: 3 }.tile(0, 21, |row, token| (row * 21 + token) as f32);
    let exact = (0..63).sum::<usize>() as f64;
    for offset in 0..8 {
        let mut moved = vec![0xEE; offset];
        moved.extend(&tile.data);
        let mut scores = started(64);
        let tile = Tile { data: &moved[offset..], ..tile.tile() };
        scores.add(&CheckedTile::new(&tile).unwrap()).unwrap();
        assert_eq!(numbers(&scores), [exact]);
    }
}

#[test]
fn a_long_piece_of_f16_does_not_overflow() {
    let tokens = 100_000;
    let mut scores = started(tokens);
    add(&mut scores, &Shape { dtype: Dtype::F16, pack: 0, queries: 1 }.tile(0, tokens, |_, _| 1.0)).unwrap();
    assert_eq!(numbers(&scores), [tokens as f64]);
}

#[test]
fn memory_is_for_rows_times_pieces_and_tiles() {
    let (rows, tokens, tile_tokens) = (4096, 4096, 64);
    let mut scores = started(64);
    let tiles = tokens / tile_tokens;
    for i in 0..tiles {
        // Masked values may be tiny and yet not 0.
        let visible = |row: usize, token: usize| if i * tile_tokens + token <= row { 1.0 } else { 1.7e-38 };
        let mut tile = Shape { dtype: Dtype::F32, pack: 16, queries: rows }.tile(i * tile_tokens, tile_tokens, visible);
        (tile.first, tile.last) = (i == 0, i + 1 == tiles);
        tile.update_scale = Some(vec![1.0; rows]);
        tile.row_sum = tile.last.then(|| (1..=rows).map(|row| row as f32).collect());
        add(&mut scores, &tile).unwrap();
    }
    let harmonic = |token: usize| (token..rows).map(|row| 1.0 / (row + 1) as f64).sum::<f64>();
    for (block, mass) in numbers(&scores).iter().enumerate() {
        let exact: f64 = (block * 64..(block + 1) * 64).map(harmonic).sum();
        assert!((mass / exact - 1.0).abs() < 1e-6, "{block}: {mass} {exact}");
    }
    let pieces = tiles;
    let most = rows * (pieces + tiles);
    let (len, capacity) = scores.head.log.size();
    assert!(len <= most && capacity <= 2 * most, "{len} of {capacity} words, twice {most} while it grows");
}

/// The state that a refused tile must not change.
fn state(scores: &Accumulator) -> (u64, u64, bool, Vec<u128>, usize, Log) {
    let Sums { heads, rows, masses, .. } = scores.sums();
    (*heads, *rows, scores.in_head(), masses.clone(), scores.token_end(), scores.head.log.clone())
}

/// The refusal of fields that no [`Tile`] can have.
fn refusal_of(fields: TileFields) -> Error {
    struct Fields(TileFields);
    impl<'a> TileSource<'a> for Fields {
        fn fields(&self) -> TileFields {
            self.0
        }

        fn data(&self, _: usize) -> Result<&'a [u8]> {
            unreachable!("the fields come first")
        }

        fn update_scale(&self, _: usize) -> Result<Option<&'a [f32]>> {
            unreachable!()
        }

        fn row_sum(&self, _: usize) -> Result<Option<&'a [f32]>> {
            unreachable!()
        }
    }
    CheckedTile::new(&Fields(fields)).unwrap_err()
}

#[test]
fn a_tile_that_is_bad_by_itself_is_refused() {
    let good = || rows(2, 0, &[0.5; 16]);
    let with = |change: fn(&mut OwnedTile)| {
        let mut tile = good();
        change(&mut tile);
        tile
    };
    for (tile, text) in [
        (with(|t| t.queries = 0), "tile->queries is 0"),
        (with(|t| t.tokens = 0), "tile->tokens is 0"),
        (
            with(|t| t.token_begin = 16_777_209),
            "token_begin is 16777209 and tile->tokens 8; an end of 16777216 or less",
        ),
        (with(|t| t.token_begin = usize::MAX), "tile->token_begin is 4294967295"),
        (with(|t| t.tokens = usize::MAX), "tile->tokens 4294967295; an end of"),
        (with(|t| t.data.truncate(63)), "tile->data has length 63; 64 expected"),
        (with(|t| t.pack = 5), "length 64; 80 expected"),
        (with(|t| (t.pack, t.queries) = (usize::MAX, usize::MAX)), "no object is that large"),
        (with(|t| t.heads = 3), "tile->queries is 2; a multiple of tile->heads, 3"),
        (OwnedTile { heads: 4, ..rows(6, 0, &[0.5; 6]) }, "tile->queries is 6; a multiple of tile->heads, 4"),
        (with(|t| t.update_scale = Some(vec![1.0; 3])), "tile->update_scale has length 3; 2 expected"),
        (with(|t| t.row_sum = Some(vec![1.0; 3])), "tile->row_sum has length 3; 2 expected"),
        (
            with(|t| (t.row_sum, t.last) = (Some(vec![1.0; 2]), false)),
            "tile->row_sum is given and tile->flags has no LAST",
        ),
    ] {
        let error = tile.checked().unwrap_err();
        assert!(error.status() == Status::InvalidArgument && error.message().contains(text), "{error}");
    }
    let int8 = OwnedTile { dtype: Dtype::Int8, data: vec![0; 16], ..good() }.checked().unwrap_err();
    assert!(int8.status() == Status::Unsupported && int8.message().contains("tile->dtype is INT8"), "{int8}");
    for (fields, text) in [
        (TileFields { flags: 4, ..good().tile().fields() }, "tile->flags is 0x4"),
        (TileFields { dtype: 9, ..good().tile().fields() }, "tile->dtype is 9"),
    ] {
        let error = refusal_of(fields);
        assert!(error.status() == Status::InvalidArgument && error.message().contains(text), "{error}");
    }
    // The largest end, and heads that are not read.
    assert!(with(|t| t.token_begin = 16_777_208).checked().is_ok());
    assert!(with(|t| (t.heads, t.first) = (3, false)).checked().is_ok());
}

#[test]
fn a_tile_that_does_not_fit_its_head_is_refused_and_changes_nothing() {
    let good = || rows(2, 0, &[0.5; 16]);
    let later = || OwnedTile { first: false, token_begin: 8, ..good() };
    let later_at = |token_begin| OwnedTile { token_begin, ..later() };
    let sum = |bad| OwnedTile { row_sum: Some(vec![1.0, bad]), ..good() };
    let scale = |bad| OwnedTile { update_scale: Some(vec![bad, 1.0]), ..later() };
    let many = (0..50).map(|i| if i == 37 { f32::NAN } else { 1.0 }).collect();
    let many = OwnedTile { row_sum: Some(many), ..rows(50, 0, &[0.5; 50]) };
    let mut cases = vec![
        (false, later(), "tile->flags has no FIRST (1), and no head has begun".to_string()),
        (true, good(), "tile->flags has FIRST (1), and the head before has not ended".into()),
        (true, OwnedTile { first: false, ..rows(1, 8, &[0.5; 8]) }, "tile->queries is 1; 2 expected".into()),
        (false, many, "tile->row_sum[37] is NaN".into()),
    ];
    cases.extend([7, 9, 0].map(|at| (true, later_at(at), format!("tile->token_begin is {at}; 8 expected"))));
    cases.extend(
        [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY].map(|bad| (false, sum(bad), format!("tile->row_sum[1] is {bad}"))),
    );
    cases.extend(
        [-1.0, f32::NAN, f32::INFINITY].map(|bad| (true, scale(bad), format!("tile->update_scale[0] is {bad}"))),
    );
    for (open, tile, text) in cases {
        let mut scores = started(8);
        add(&mut scores, &good()).unwrap();
        if open {
            add(&mut scores, &OwnedTile { last: false, ..good() }).unwrap();
        }
        let before = state(&scores);
        let error = add(&mut scores, &tile).unwrap_err();
        assert!(error.status() == Status::InvalidArgument && error.message().contains(&text), "{error}");
        assert_eq!(state(&scores), before, "{error}");
        // The right one may follow.
        add(&mut scores, &if open { later() } else { good() }).unwrap();
    }
}

#[test]
fn a_scale_of_0_and_the_smallest_row_sum_are_numbers() {
    let mut scores = started(1);
    add(&mut scores, &OwnedTile { last: false, ..rows(1, 0, &[1.0]) }).unwrap();
    let sum = f32::from_bits(1);
    let last =
        OwnedTile { first: false, update_scale: Some(vec![0.0]), row_sum: Some(vec![sum]), ..rows(1, 1, &[sum]) };
    add(&mut scores, &last).unwrap();
    assert_eq!(numbers(&scores), [0.0, 1.0]);
}

#[test]
fn a_head_with_masses_that_are_no_numbers_is_dropped_and_the_block_named() {
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
            let mut scores = started(4);
            add(&mut scores, &rows(1, 0, &[0.5; 2])).unwrap();
            let tile = Shape { dtype, pack: 4, queries }.tile(0, 20, |_, token| if token == 13 { bad } else { 0.0 });
            add(&mut scores, &OwnedTile { last: false, ..tile.clone() }).unwrap();
            let last = OwnedTile { first: false, ..Shape { dtype, pack: 4, queries }.tile(20, 1, |_, _| 0.0) };
            let error = add(&mut scores, &last).unwrap_err();
            let text =
                if bad == -2.0 { format!("attention to block 3 is {}", -2 * queries as i32) } else { text.into() };
            assert!(error.status() == Status::InvalidArgument && error.message().starts_with(&text), "{error}");
            assert_eq!(
                (scores.sums().heads, scores.sums().rows, scores.in_head(), scores.token_end()),
                (1, 1, false, 2)
            );
            assert_eq!(numbers(&scores), [1.0]);
            // The next head counts.
            add(&mut scores, &rows(1, 0, &[0.5; 2])).unwrap();
            assert_eq!(numbers(&scores), [2.0]);
        }
    }
}

#[test]
fn sizes_of_tiles() {
    for (dtype, pack, queries, tokens, bytes) in [
        (Dtype::F16, 8, 3, 9, Some(16 * 3 * 2)),
        (Dtype::F32, 0, 3, 9, Some(9 * 3 * 4)),
        (Dtype::Bf16, 5, 1, 11, Some(15 * 2)),
        (Dtype::F32, 1 << 31, u32::MAX, 1 << 24, None),
        (Dtype::F32, u32::MAX, u32::MAX, u32::MAX, None),
    ] {
        assert_eq!(data_bytes(dtype, pack, queries, tokens), bytes);
    }
}
