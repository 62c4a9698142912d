//! Files: what is read, what is refused, what is written.

use super::*;

#[test]
fn every_damaged_file_is_refused_by_offset_and_field() {
    let damage = [
        ("magic", "offset 0:", "magic"),
        ("magic_bigendian", "offset 0:", "magic"),
        ("version_0", "offset 4:", "version is 0"),
        ("version_2", "offset 4:", "version is 2"),
        ("dtype_3", "offset 8:", "dtype is 3"),
        ("dtype_3_fp16_payload", "offset 8:", "dtype is 3"),
        ("layers_zero", "offset 12:", "num_layers is 0"),
        ("layers_3", "offset 1660:", "layer 2, block 0 (tk slot 0): the block header"),
        ("factor_0", "offset 28:", "compression_factor is 0"),
        ("factor_mismatch", "offset 356:", "layer 0, block 2 (tk slot 2): rows is 4; 3 expected"),
        ("wcount_zero", "offset 36:", "weight_count_per_layer is 0"),
        ("wcount_5", "offset 36:", "weight_count_per_layer is 5"),
        ("wcount_max", "offset 36:", "weight_count_per_layer is 4294967295"),
        ("empty", "offset 0:", "header"),
        ("trunc_header", "offset 0:", "the file 43"),
        ("trunc_meta", "offset 12:", "7 are left"),
        ("trunc_weight", "offset 56:", "layer 0, block 0 (tk slot 0): a weight of 4 x 12"),
        ("trunc_weight_last", "offset 1580:", "layer 1, block 5 (tv slot 2): a weight of 4 x 4"),
        ("missing_last_layer", "offset 852:", "layer 1, block 0 (tk slot 0): the block header"),
        ("bias_flag_2", "offset 52:", "layer 0, block 0 (tk slot 0): has_bias is 2"),
        ("bias_flag_ffffffff", "offset 52:", "has_bias is 4294967295"),
        ("rows_zero", "offset 44:", "layer 0, block 0 (tk slot 0): rows is 0"),
        ("cols_zero", "offset 48:", "layer 0, block 0 (tk slot 0): cols is 0"),
        ("overflow_ffffffff", "offset 56:", "4294967295 x 4294967295"),
        ("out_rows_mismatch", "offset 356:", "layer 0, block 2 (tk slot 2): rows is 5; 4 expected"),
        ("nonfinite_weight", "offset ", "weight["),
    ];
    for (name, offset, words) in damage {
        let error = Compressor::read(&golden(&format!("bad_{name}.bin"))[..]).unwrap_err();
        let expected =
            if offset == "offset 4:" || offset == "offset 8:" { Status::Unsupported } else { Status::Corrupt };
        assert_eq!(error.status(), expected, "{name}: {error}");
        assert!(error.message().contains(offset) && error.message().contains(words), "{name}: {error}");
    }
    assert_eq!(names("bad_").len(), damage.len());
}

fn walk(file: &[u8]) -> Vec<(u64, u32, u32, bool)> {
    let number = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let element = if file[8] == 2 { 4 } else { 2 };
    let mut at = 44 + number(40) as usize;
    let mut blocks = Vec::new();
    for _ in 0..number(12) * number(36) {
        let (rows, cols, bias) = (number(at), number(at + 4), number(at + 8));
        blocks.push((at as u64, rows, cols, bias == 1));
        at += 12 + element * (rows * cols + bias * rows) as usize;
    }
    blocks
}

#[test]
fn a_file_that_is_read_is_written_with_the_same_bytes() {
    let mut files = names("std_");
    files.extend(names("toy_").into_iter().filter(|name| name.ends_with(".bin")));
    files.extend(names("odd_"));
    assert!(files.len() >= 7);
    for name in files {
        let bytes = golden(&name);
        let file = read(&bytes);
        let blocks = (0..file.layers()).flat_map(|layer| file.blocks(layer).unwrap());
        let blocks: Vec<_> = blocks.map(|b| (b.offset, b.rows as u32, b.cols as u32, b.has_bias)).collect();
        assert_eq!(blocks, walk(&bytes), "{name}");
        assert_eq!(file.weights().unwrap().file_bytes(), bytes.len() as u64);
        assert!(file.weights().unwrap().to_bytes().unwrap() == bytes, "{name}");
    }
}

#[test]
fn checkpoints_become_the_bytes_that_the_converter_makes_of_them() {
    let numbers: Vec<f32> = array("weights_std_f32.npy").values.iter().map(|x| *x as f32).collect();
    for name in names("std_") {
        let (dtype, blocks) = name.trim_start_matches("std_").trim_end_matches(".bin").split_once('_').unwrap();
        let dtype = match dtype {
            "fp16" => Dtype::F16,
            "bf16" => Dtype::Bf16,
            _ => Dtype::F32,
        };
        let mut rest = &numbers[..];
        let mut take = |len: usize| {
            let (taken, left) = rest.split_at(len);
            rest = left;
            Cow::Borrowed(taken)
        };
        let shapes = [(4, 12), (4, 4), (4, 4)];
        let mut layer = || -> Vec<LinearWeights> {
            let blocks = shapes.iter().cycle().take(12);
            blocks
                .map(|&(rows, cols)| LinearWeights { rows, cols, weight: take(rows * cols), bias: Some(take(rows)) })
                .collect()
        };
        let mut layers = vec![layer(), layer()];
        layers.iter_mut().for_each(|layer| layer.truncate(blocks.parse().unwrap()));
        let weights = Weights { dtype, num_heads: 2, head_dim: 4, factor: 3, min_seq_len: 2, layers };
        assert!(weights.to_bytes().unwrap() == golden(&name), "{name}");
    }
}

#[test]
fn what_other_readers_skip_is_skipped() {
    for name in ["reserved_fp16_6.bin", "trailing5_fp16_6.bin"] {
        assert_eq!(read(&golden(name)).weights().unwrap(), read(&golden("std_fp16_6.bin")).weights().unwrap());
    }
    let mut bytes = golden("std_fp16_12.bin");
    bytes[40] = 13;
    bytes.splice(44..44, *b"anything else");
    let file = read(&bytes);
    assert_eq!(file.weights().unwrap().to_bytes().unwrap(), golden("std_fp16_12.bin"));
}

#[test]
fn head_dim_may_be_what_a_converter_guesses_and_nothing_else() {
    let with = |head_dim: u8| {
        let mut bytes = golden("toy_fp32.bin");
        bytes[20] = head_dim;
        bytes
    };
    // The first linear layer has three rows, the last one two.
    let guessed = read(&with(3));
    assert_eq!(guessed.head_dim(), 2);
    assert_eq!(guessed.weights().unwrap().to_bytes().unwrap(), golden("toy_fp32.bin"));
    for head_dim in [0, 1, 4] {
        let error = Compressor::read(&with(head_dim)[..]).unwrap_err();
        assert!(error.message().contains(&format!("offset 20: head_dim is {head_dim}; 2 expected")), "{error}");
    }
    let mut bytes = golden("toy_fp32.bin");
    bytes[24] = 6;
    let error = Compressor::read(&bytes[..]).unwrap_err();
    assert!(error.message().contains("cols is 4; 6 expected, which is hidden_size"), "{error}");
}

#[test]
fn no_cut_of_a_file_is_read() {
    for name in ["std_fp16_12.bin", "toy_fp32.bin"] {
        let bytes = golden(name);
        for len in 0..bytes.len() {
            let error = Compressor::read(&bytes[..len]).unwrap_err();
            assert!(error.status() == Status::Corrupt && error.message().contains("offset "), "{name} {len}: {error}");
        }
    }
}

#[test]
fn metadata_that_ends_behind_the_file_is_refused_where_it_is_announced() {
    for (extra, expected) in [(u32::MAX, "offset 40:"), (1616, "offset 12:"), (1617, "offset 40:")] {
        let mut bytes = golden("std_fp32_6.bin");
        bytes[40..44].copy_from_slice(&extra.to_le_bytes());
        let error = Compressor::read(&bytes[..]).unwrap_err();
        assert!(error.message().contains(expected), "{extra}: {error}");
    }
}

#[test]
fn sizes_that_overflow_or_are_not_there_are_refused_before_memory_is_taken() {
    for (rows, cols) in [(1u32 << 31, 1u32 << 31), (u32::MAX, u32::MAX), (100_000, 1_000_000), (1, u32::MAX)] {
        let mut bytes = golden("std_fp32_6.bin");
        bytes[44..48].copy_from_slice(&rows.to_le_bytes());
        bytes[48..52].copy_from_slice(&cols.to_le_bytes());
        let error = Compressor::read(&bytes[..]).unwrap_err();
        let words = format!("offset 56: layer 0, block 0 (tk slot 0): a weight of {rows} x {cols}");
        assert!(error.message().contains(&words), "{error}");
    }
    let mut bytes = golden("std_fp32_6.bin");
    bytes[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = Compressor::read(&bytes[..]).unwrap_err();
    assert!(error.message().contains("offset 12: num_layers is 4294967295"), "{error}");
}

#[test]
fn a_number_that_the_file_has_no_room_for_is_not_written() {
    for (dtype, value, fits) in [
        (Dtype::F16, 65519.99, true),
        (Dtype::F16, 65520.0, false),
        (Dtype::F16, -1e30, false),
        (Dtype::Bf16, 3.39e38, true),
        (Dtype::Bf16, -f32::MAX, false),
        (Dtype::F32, f32::MAX, true),
        (Dtype::F32, f32::NAN, false),
        (Dtype::Bf16, f32::INFINITY, false),
    ] {
        for (at, words) in [(Some(11), "block 0 (tk slot 0): weight[2][3]"), (None, "block 0 (tk slot 0): bias[1]")] {
            let mut pieces = 0;
            let written = changed(dtype, 0, at, value).write(|_| {
                pieces += 1;
                Ok(())
            });
            match written {
                Ok(()) => assert!(fits, "{value} {dtype:?}"),
                Err(error) => assert!(!fits && pieces == 0 && error.message().contains(words), "{error}"),
            }
        }
    }
}

#[test]
fn weights_that_no_reader_would_take_are_not_written() {
    let good = read(&golden("toy_fp32.bin")).weights().unwrap();
    let refused = |change: &dyn Fn(&mut Weights), words: &str| {
        let mut weights = good.clone();
        change(&mut weights);
        let error = weights.to_bytes().unwrap_err();
        assert!(error.status() == Status::InvalidArgument && error.message().contains(words), "{words}: {error}");
    };
    refused(&|w| w.dtype = Dtype::Int8, "dtype is INT8");
    refused(&|w| w.factor = 1, "compression_factor is 1");
    refused(&|w| w.factor = 4, "layer 0, block 0 (tk slot 0): cols is 4; 8 expected");
    refused(&|w| w.head_dim = 0, "head_dim is 0");
    refused(&|w| w.head_dim = 1 << 31, "head_dim is 2147483648");
    refused(&|w| w.layers.clear(), "0 layers of 0 blocks");
    refused(&|w| w.layers[0].truncate(5), "1 layers of 5 blocks");
    refused(&|w| w.layers.push(Vec::new()), "layer 1 has 0 blocks; 6 expected");
    refused(&|w| w.layers[0][1].cols = 2, "block 1 (tk slot 1): 6 elements for a weight of 2 x 2");
    refused(&|w| w.layers[0][4].rows = 0, "block 4 (tv slot 1): rows is 0");
    refused(&|w| w.layers[0][1].bias.as_mut().unwrap().to_mut().push(0.0), "block 1 (tk slot 1): 3 elements of bias");
    refused(&|w| w.layers[0].swap(1, 2), "block 1 (tk slot 1): cols is 2; 3 expected, the rows of slot 0");
    refused(&|w| w.layers[0][5] = w.layers[0][4].clone(), "block 5 (tv slot 2): cols is 3; 2 expected");
    let nan = |w: &mut Weights| w.layers[0][0].weight.to_mut()[0] = f32::NAN;
    refused(&nan, "block 0 (tk slot 0): weight[0][0] is NaN");
    // Numbers are looked at last.
    refused(&|w| (nan(w), w.layers[0][5] = w.layers[0][4].clone()).1, "block 5 (tv slot 2): cols is 3; 2 expected");
    refused(&|w| w.layers[0][2] = linear(3, 2, true, 1), "block 2 (tk slot 2): rows is 3; 2 expected");
}

#[test]
fn a_chain_that_does_not_hold_is_refused_where_it_breaks() {
    // The second linear layer of the example, 2 x 3, as a 3 x 2.
    let mut bytes = golden("toy_fp32.bin");
    assert_eq!(walk(&bytes)[1], (116, 2, 3, true));
    bytes.swap(116, 120);
    let error = Compressor::read(&bytes[..]).unwrap_err();
    let words = "offset 120: layer 0, block 1 (tk slot 1): cols is 2; 3 expected, the rows of slot 0";
    assert!(error.message().contains(words), "{error}");
    let cut = &golden("std_fp32_6.bin")[..44 + 12 + 192 + 15];
    let error = Compressor::read(cut).unwrap_err();
    let words = "offset 248: layer 0, block 0 (tk slot 0): a bias of 4 elements of 4 bytes is cut, 15 bytes left";
    assert!(error.message().contains(words), "{error}");
}

#[test]
fn what_is_not_finite_is_refused_by_its_place() {
    // Weight and bias of the second linear layer of the example: 2 x 3 and 2.
    for (dtype, size, infinity, nan) in
        [("fp32", 4, 0x7F80u16, 0xFFC1u16), ("bf16", 2, 0xFF80, 0x7FC0), ("fp16", 2, 0x7C00, 0xFE00)]
    {
        let good = golden(&format!("toy_{dtype}.bin"));
        let first = walk(&good)[1].0 as usize + 12;
        for (element, name) in [(0, "weight[0][0]"), (5, "weight[1][2]"), (6, "bias[0]"), (7, "bias[1]")] {
            for bits in [infinity, nan] {
                let mut bytes = good.clone();
                let at = first + element * size;
                bytes[at + size - 2..at + size].copy_from_slice(&bits.to_le_bytes());
                let error = Compressor::read(&bytes[..]).unwrap_err();
                let words = format!("offset {at}: layer 0, block 1 (tk slot 1): {name} is ");
                assert!(error.message().contains(&words), "{words}: {error}");
            }
        }
    }
}

#[test]
fn more_layers_than_the_file_has_room_for_are_refused_before_the_first_block() {
    // The headers of 2 layers of 6 blocks have 144 bytes.
    let bytes = golden("std_fp32_6.bin");
    for (len, offset) in [(44 + 143, "offset 12:"), (44 + 144, "offset 56:")] {
        let error = Compressor::read(&bytes[..len]).unwrap_err();
        assert!(error.message().contains(offset), "{error}");
    }
}
