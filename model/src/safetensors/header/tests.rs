use super::*;
use proptest::prelude::*;
use safetensors::SafeTensors;

/// A file of this header and this many data bytes.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

#[test]
fn a_header_says_where_each_tensor_is() {
    let header = r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"I8","shape":[3],"data_offsets":[8,11]},
        "a":{"shape":[2,2],"dtype":"F16","data_offsets":[0,8]},
        "c":{"dtype":"F32","shape":[0,7],"data_offsets":[11,11]}} "#;
    let begin = 8 + header.len() as u64;
    let tensors = read(&file(header, 11)[..]).unwrap();
    let tensor = |name: &str, dtype, shape: &[u64], begin, bytes| Tensor {
        name: name.to_owned(),
        dtype,
        shape: shape.to_vec(),
        begin,
        bytes,
        complete: true,
    };
    let expected = [
        tensor("a", FileDtype::F16, &[2, 2], begin, 8),
        tensor("b", FileDtype::I8, &[3], begin + 8, 3),
        tensor("c", FileDtype::F32, &[0, 7], begin + 11, 0),
    ];
    assert_eq!(tensors, expected);
}

#[test]
fn every_fault_names_the_tensor() {
    let entry = |name: &str, dtype: &str, shape: &str, begin: u64, end: u64| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
    };
    let a = entry("a", "I8", "[4]", 0, 4);
    for (entries, data, fault, tensor, word) in [
        (vec![a.clone(), entry("b", "I8", "[4]", 3, 7)], 7, Fault::Malformed, "b", "overlaps"),
        (vec![a.clone(), entry("b", "I8", "[4]", 5, 9)], 9, Fault::Malformed, "b", "gap"),
        (vec![a.clone(), entry("b", "F16", "[4]", 4, 8)], 8, Fault::Malformed, "b", "has 8"),
        (vec![a.clone(), entry("b", "I9", "[4]", 4, 8)], 8, Fault::Malformed, "b", "I9"),
        (vec![a.clone(), entry("b", "F4", "[3]", 4, 5)], 5, Fault::Malformed, "b", "whole number of bytes"),
        (vec![a.clone(), entry("b", "I8", "[4294967296,4294967296,4]", 4, 8)], 8, Fault::Malformed, "b", "2^64"),
        (vec![a.clone(), entry("b", "I8", "[4]", 8, 4)], 8, Fault::Malformed, "b", "data_offsets"),
        (vec![a.clone(), entry("b", "I8", "[-4]", 4, 8)], 8, Fault::Malformed, "", "tensor b: shape"),
        (vec![a.clone(), a.clone()], 4, Fault::Duplicate, "a", "twice"),
        (vec![a.clone(), r#""b":{"dtype":"I8","shape":[4]}"#.to_owned()], 8, Fault::Malformed, "", "tensor b lacks"),
        (vec![a.clone(), r#""b":7"#.to_owned()], 4, Fault::Malformed, "", "tensor b as an object"),
        (vec![a.clone(), entry("b", "I8", "[4]", 4, 8)], 7, Fault::Truncated, "b", "7 are there"),
        (vec![a.clone()], 5, Fault::Malformed, "", "1 bytes follow"),
        (vec![entry("a", "I8", "[4]", u64::MAX - 4, u64::MAX)], 4, Fault::Malformed, "a", "gap"),
    ] {
        let bytes = file(&format!("{{{}}}", entries.join(",")), data);
        let (_, problems) = survey(&bytes[..]).unwrap();
        let first = &problems[0];
        assert_eq!((first.fault, first.tensor.as_str()), (fault, tensor), "{problems:?}");
        assert!(first.text.contains(word), "{first:?}");
        assert_eq!(read(&bytes[..]).unwrap_err().status(), Status::Corrupt);
    }
}

#[test]
fn a_header_that_cannot_be_there_costs_no_memory() {
    for (bytes, fault) in [
        (vec![1, 2, 3], Fault::Truncated),
        (u64::MAX.to_le_bytes().to_vec(), Fault::Malformed),
        ((MAX_HEADER + 1).to_le_bytes().to_vec(), Fault::Malformed),
        (MAX_HEADER.to_le_bytes().to_vec(), Fault::Truncated),
        (file(" {}", 0), Fault::Malformed),
        (file("{} x", 0), Fault::Malformed),
    ] {
        let (tensors, problems) = survey(&bytes[..]).unwrap();
        assert!(tensors.is_empty());
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].fault, fault, "{problems:?}");
    }
}

#[test]
fn a_truncated_file_still_lists_its_tensors() {
    let header =
        r#"{"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"I8","shape":[4],"data_offsets":[4,8]}}"#;
    let (tensors, problems) = survey(&file(header, 6)[..]).unwrap();
    assert_eq!(tensors.iter().map(|t| (t.name.as_str(), t.complete)).collect::<Vec<_>>(), [("a", true), ("b", false)]);
    assert_eq!(problems.len(), 1);
}

/// Names, types and dimensions of files of the format's own implementation.
fn tensors() -> impl Strategy<Value = Vec<(String, safetensors::Dtype, Vec<usize>)>> {
    use safetensors::Dtype as D;
    let dtypes = [D::BOOL, D::U8, D::I8, D::I16, D::F16, D::BF16, D::I32, D::F32, D::F64, D::I64, D::F8_E4M3, D::C64];
    let shape = prop::collection::vec(0usize..5, 0..4);
    let one = ("[a-z.\"\\\\é]{1,6}", proptest::sample::select(dtypes.to_vec()), shape);
    prop::collection::vec(one, 0..6)
}

fn written(tensors: &[(String, safetensors::Dtype, Vec<usize>)]) -> Vec<u8> {
    let zeros = vec![0; 4096];
    let views = tensors.iter().map(|(name, dtype, shape)| {
        let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        (name.clone(), safetensors::tensor::TensorView::new(*dtype, shape.clone(), &zeros[..bytes]).unwrap())
    });
    let views: std::collections::BTreeMap<_, _> = views.collect();
    safetensors::serialize(views, None).unwrap()
}

/// Bytes with a meaning in a header.
const MARKS: &[u8] = b"\0\x01{}[],:\"0129aFI";

proptest! {
    #[test]
    fn files_of_the_formats_own_writer_are_read_alike(tensors in tensors()) {
        let bytes = written(&tensors);
        let theirs = SafeTensors::deserialize(&bytes).unwrap();
        let ours = read(&bytes[..]).unwrap();
        prop_assert_eq!(ours.len(), theirs.len());
        for tensor in &ours {
            let view = theirs.tensor(&tensor.name).unwrap();
            prop_assert_eq!(tensor.dtype.name(), view.dtype().to_string());
            prop_assert_eq!(&tensor.shape, &view.shape().iter().map(|d| *d as u64).collect::<Vec<_>>());
            let begin = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
            prop_assert_eq!((tensor.begin, tensor.bytes), (begin as u64, view.data().len() as u64));
        }
    }

    /// The format's own reader accepts all that this one accepts, and refuses all that it refuses, except keys that
    /// come twice.
    #[test]
    fn damaged_files_are_judged_as_the_formats_own_reader_does(
        tensors in tensors(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), proptest::sample::select(MARKS)), 1..4),
    ) {
        let mut bytes = written(&tensors);
        for (at, byte) in edits {
            // Only the header matters.
            let header = bytes.len().min(400);
            bytes[at.index(header)] = byte;
        }
        let theirs = SafeTensors::deserialize(&bytes);
        match read(&bytes[..]) {
            Ok(_) => prop_assert!(theirs.is_ok(), "{:?}", theirs.err()),
            Err(e) => prop_assert!(theirs.is_err() || e.message().contains("twice"), "{}", e),
        }
    }
}

#[test]
fn types_are_those_of_the_format() {
    use safetensors::Dtype as D;
    let theirs = [
        D::BOOL,
        D::F4,
        D::F6_E2M3,
        D::F6_E3M2,
        D::U8,
        D::I8,
        D::F8_E5M2,
        D::F8_E4M3,
        D::F8_E8M0,
        D::F8_E4M3FNUZ,
        D::F8_E5M2FNUZ,
        D::I16,
        D::U16,
        D::F16,
        D::BF16,
        D::I32,
        D::U32,
        D::F32,
        D::C64,
        D::F64,
        D::I64,
        D::U64,
    ];
    assert_eq!(FileDtype::ALL.len(), theirs.len());
    for dtype in theirs {
        let ours = FileDtype::from_name(&dtype.to_string()).unwrap();
        assert_eq!(ours.bits(), dtype.bitsize() as u64);
    }
}
