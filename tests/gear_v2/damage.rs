//! Truncated, changed and forged blobs: refused, with bounded memory, and without a write beyond the announced length
//! of a valid header.

use super::by_hand::blob;
use super::v2_reader::seal;
use super::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::LazyLock;

struct Counting;

thread_local! {
    /// Bytes that this thread allocated.
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed to the system allocator. `alloc_zeroed` and `realloc` call `alloc`.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + layout.size());
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Decodes into `capacity` bytes, and bounds the allocated memory.
fn decode_bounded(blob: &[u8], dtype: Dtype, capacity: usize) -> Result<Vec<u8>> {
    let mut out = vec![0xA5; capacity];
    let before = ALLOCATED.get();
    let result = Decoder::new().decode(blob, dtype, &mut out);
    let allocated = ALLOCATED.get() - before;
    assert!(allocated <= 32 * capacity + 32_768, "{allocated} bytes of memory for {capacity}");
    // Without a valid header and checksum the announced length is 0.
    let announced = gear::decoded_len(blob, dtype).ok().filter(|len| *len <= capacity).unwrap_or(0);
    assert!(out[announced..].iter().all(|byte| *byte == 0xA5), "a write beyond the announced length");
    let len = result?;
    assert_eq!(len, announced);
    out.truncate(len);
    Ok(out)
}

/// The status of a refused blob.
pub fn refused(blob: &[u8], dtype: Dtype, capacity: usize) -> Status {
    match decode_bounded(blob, dtype, capacity) {
        Ok(words) => panic!("{} bytes from an invalid blob", words.len()),
        Err(error) => error.status(),
    }
}

struct Base {
    name: &'static str,
    dtype: Dtype,
    words: Vec<u8>,
    blob: Vec<u8>,
}

static BASES: LazyLock<Vec<Base>> = LazyLock::new(|| {
    let base = |s: samples::Sample| Base { name: s.name, dtype: s.dtype, blob: s.encode(), words: s.words };
    samples().into_iter().map(base).collect()
});

/// A blob without the start of v2 is decoded as v1, which supports two types only.
fn is_damage(status: Status) -> bool {
    matches!(status, Status::Corrupt | Status::Unsupported)
}

#[test]
fn every_truncation_is_an_error() {
    for base in BASES.iter() {
        for end in 0..base.blob.len() {
            let status = refused(&base.blob[..end], base.dtype, base.words.len());
            assert!(
                status == Status::Corrupt || end < 8 && is_damage(status),
                "{} cut at {end}: {status:?}",
                base.name
            );
        }
    }
}

#[test]
fn every_flipped_bit_is_an_error() {
    for base in BASES.iter() {
        for bit in 0..base.blob.len() * 8 {
            let mut blob = base.blob.clone();
            blob[bit / 8] ^= 1 << (bit % 8);
            let status = refused(&blob, base.dtype, base.words.len());
            assert!(is_damage(status), "{} bit {bit}: {status:?}", base.name);
        }
    }
}

#[test]
fn appended_bytes_are_an_error() {
    for base in BASES.iter() {
        for more in [&[0][..], &base.blob] {
            let blob = [&base.blob, more].concat();
            assert_eq!(refused(&blob, base.dtype, base.words.len()), Status::Corrupt, "{}", base.name);
        }
    }
}

/// A blob with some bytes of its header replaced, and a matching trailer.
fn with_header(base: &Base, at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut blob = base.blob.clone();
    blob[at..at + bytes.len()].copy_from_slice(bytes);
    seal(&mut blob);
    blob
}

#[test]
fn a_checksum_of_other_words_is_corrupt() {
    for base in BASES.iter() {
        for at in 24..32 {
            let blob = with_header(base, at, &[base.blob[at] ^ 1]);
            assert_eq!(refused(&blob, base.dtype, base.words.len()), Status::Corrupt, "{}", base.name);
        }
    }
}

#[test]
fn another_type_is_refused_with_both_names() {
    for base in BASES.iter() {
        for other in Dtype::ALL.into_iter().filter(|dtype| *dtype != base.dtype) {
            let decoded = decode_bounded(&base.blob, other, base.words.len()).unwrap_err();
            for error in [decoded, gear::decoded_len(&base.blob, other).unwrap_err()] {
                assert_eq!(error.status(), Status::InvalidArgument);
                let names = [other.name(), base.dtype.name()];
                assert!(names.iter().all(|name| error.message().contains(name)), "{error}");
            }
        }
    }
}

#[test]
fn other_versions_are_unsupported_and_revisions_are_checked() {
    for base in BASES.iter() {
        for version in [0, 1, 4, 255] {
            // With any other content and checksum.
            let mut blob = with_header(base, 8, &[version]);
            blob.push(0);
            assert_eq!(refused(&blob, base.dtype, base.words.len()), Status::Unsupported, "version {version}");
        }
        for revision in [1, 7, 255] {
            let blob = with_header(base, 9, &[revision]);
            assert!(decode_bounded(&blob, base.dtype, base.words.len()).unwrap() == base.words, "{}", base.name);
            for (at, byte) in [(10, 0), (10, 5), (10, 255), (11, 3), (11, 255)] {
                let mut blob = blob.clone();
                blob[at] = byte;
                seal(&mut blob);
                assert_eq!(refused(&blob, base.dtype, base.words.len()), Status::Unsupported, "byte {at} = {byte}");
            }
        }
    }
}

#[test]
fn headers_that_contradict_the_body_are_corrupt() {
    for base in BASES.iter() {
        let len = base.words.len() as u64;
        let wide = base.dtype.bytes() as u64;
        let elements = (len / wide) as u32;
        for (at, bytes) in [
            (12, 0u32.to_le_bytes().to_vec()),
            (16, 0u64.to_le_bytes().to_vec()),
            (16, (len + wide).to_le_bytes().to_vec()),
            (16, (len - wide).to_le_bytes().to_vec()),
        ] {
            let status = refused(&with_header(base, at, &bytes), base.dtype, base.words.len() + 8);
            assert_eq!(status, Status::Corrupt, "{}: {bytes:?} at {at}", base.name);
        }
        if wide > 1 {
            let blob = with_header(base, 16, &(len - 1).to_le_bytes());
            assert_eq!(refused(&blob, base.dtype, base.words.len()), Status::Corrupt, "half a word");
        }
        if base.blob[11] == 1 {
            for row_len in [elements + 1, u32::MAX] {
                let blob = with_header(base, 12, &row_len.to_le_bytes());
                assert_eq!(refused(&blob, base.dtype, base.words.len()), Status::Corrupt, "{}", base.name);
            }
        }
    }
}

#[test]
fn a_hostile_length_allocates_no_memory() {
    for base in BASES.iter() {
        for len in [1u64 << 32, 1 << 60, u64::MAX - 3] {
            let blob = with_header(base, 16, &len.to_le_bytes());
            let error = decode_bounded(&blob, base.dtype, base.words.len()).unwrap_err();
            assert_eq!((error.status(), error.needed()), (Status::BufferTooSmall, Some(len as usize)), "{}", base.name);
        }
    }
}

#[test]
fn a_reader_of_v1_alone_refuses_every_blob() {
    for base in BASES.iter() {
        assert_eq!(base.blob[..4], [0; 4], "a word count of 0 is invalid in v1");
        for width in [2, 4] {
            assert!(std::panic::catch_unwind(|| v1_reader::words(&base.blob, width)).is_err(), "{}", base.name);
        }
    }
    // The library, without the name and with a rest that v1 accepts.
    let mut blob = Encoder::new().encode(&[7; 32], Dtype::F16, &Options::new(Format::V1)).unwrap().to_vec();
    assert!(decode(&blob, Dtype::F16, 32).is_ok());
    blob[..4].fill(0);
    assert_eq!(refused(&blob, Dtype::F16, 32), Status::Corrupt);
    blob[4..8].copy_from_slice(b"MNKW");
    assert_eq!(refused(&blob, Dtype::F16, 32), Status::Corrupt);
}

#[test]
fn flipped_bits_under_a_matching_trailer_are_an_error_or_change_no_words() {
    for base in BASES.iter().filter(|base| base.blob.len() < 1300) {
        for bit in 8 * 32..(base.blob.len() - 4) * 8 {
            let blob = with_header(base, bit / 8, &[base.blob[bit / 8] ^ 1 << (bit % 8)]);
            match decode_bounded(&blob, base.dtype, base.words.len()) {
                Ok(words) => assert!(words == base.words, "{} bit {bit}", base.name),
                Err(error) => assert!(is_damage(error.status()), "{} bit {bit}: {error}", base.name),
            }
        }
    }
}

/// A place in a body: any, or near the start, where most numbers are.
#[derive(Clone, Debug)]
enum Place {
    Any(prop::sample::Index),
    Early(usize),
}

impl Place {
    fn index(&self, len: usize) -> usize {
        match self {
            Place::Any(index) => index.index(len),
            Place::Early(index) => (*index).min(len - 1),
        }
    }
}

/// A change of a body.
#[derive(Clone, Debug)]
enum Change {
    Set(Place, u8),
    Insert(Place, Vec<u8>),
    Remove(Place, usize),
    /// From another base, to the end.
    Splice(Place, prop::sample::Index, prop::sample::Index, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let any_index = any::<prop::sample::Index>;
    let at = || prop_oneof![2 => any_index().prop_map(Place::Any), 1 => (0usize..24).prop_map(Place::Early)];
    // Numbers in LEB128 grow by bytes such as these.
    let byte = prop_oneof![any::<u8>(), prop::sample::select(vec![0u8, 1, 2, 0x7F, 0x80, 0xFF])];
    let bytes = prop::collection::vec(prop_oneof![any::<u8>(), Just(0xFF)], 1..10);
    prop_oneof![
        8 => (at(), byte).prop_map(|(at, byte)| Change::Set(at, byte)),
        2 => (at(), bytes).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        2 => (at(), 1usize..10).prop_map(|(at, len)| Change::Remove(at, len)),
        1 => (at(), any_index(), any_index(), 1usize..200)
            .prop_map(|(at, base, from, len)| Change::Splice(at, base, from, len)),
    ]
}

/// Changes a body that is not empty.
fn apply(change: &Change, body: &mut Vec<u8>) {
    let len = body.len();
    match change {
        Change::Set(at, byte) => body[at.index(len)] = *byte,
        Change::Insert(at, bytes) => {
            let at = at.index(len);
            body.splice(at..at, bytes.iter().copied());
        }
        Change::Remove(at, count) => {
            let at = at.index(len);
            body.drain(at..len.min(at + count));
        }
        Change::Splice(at, base, from, count) => {
            let other = &BASES[base.index(BASES.len())].blob;
            let from = from.index(other.len());
            body.splice(at.index(len).., other[from..other.len().min(from + count)].iter().copied());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn changed_bodies_under_a_matching_trailer_are_an_error_or_change_no_words(
        base in any::<prop::sample::Index>(),
        changes in prop::collection::vec(change(), 1..4),
        (len, row_len) in (0usize..20, 0usize..20),
    ) {
        let base = &BASES[base.index(BASES.len())];
        let mut body = base.blob[32..base.blob.len() - 4].to_vec();
        for change in &changes {
            if !body.is_empty() {
                apply(change, &mut body);
            }
        }
        // Sometimes other lengths of rows and words.
        let words = if len < 17 { &base.words[..] } else { &base.words[..base.words.len().div_ceil(len - 15) / 4 * 4] };
        let its_own = u32::from_le_bytes(base.blob[12..16].try_into().unwrap());
        let row_len = [1, 2, 3].get(row_len).copied().unwrap_or(its_own);
        let mut blob = blob(base.dtype, row_len, words, &body);
        blob[11] = base.blob[11];
        seal(&mut blob);
        match decode_bounded(&blob, base.dtype, base.words.len()) {
            Ok(decoded) => prop_assert!(decoded == words),
            Err(error) => prop_assert!(is_damage(error.status()), "{error}"),
        }
    }

    #[test]
    fn noise_under_a_header_is_an_error_or_has_its_checksum(
        noise in prop::collection::vec(any::<u8>(), 0..200),
        dtype in prop::sample::select(Dtype::ALL.to_vec()),
        row_len in 0u32..20,
        words in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let blob = blob(dtype, row_len, &words, &noise);
        match decode_bounded(&blob, dtype, 64) {
            Ok(decoded) => prop_assert!(decoded == words),
            Err(error) => prop_assert!(is_damage(error.status()), "{error}"),
        }
    }
}
