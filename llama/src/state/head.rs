//! The head of a blob: what its sections are, and where.

use super::section::{Form, Section};
use mnnkv::dtype::Dtype;
use mnnkv::status::{Result, bail, error};
use mnnkv::sys::memory;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"MNKVSTAT";
const VERSION: u32 = 1;
const HEADER: usize = 40;
/// Bytes of a section in the head.
pub(super) const ENTRY: usize = 32;
const CHECKSUM: usize = 8;

/// A section in a blob.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) section: Section,
    /// Bytes of the payload.
    pub(super) len: usize,
    /// Checksum of the payload.
    pub(super) sum: u64,
}

/// A head that has been checked.
pub(super) struct Head {
    pub(super) entries: Vec<Entry>,
    /// Where the first payload begins. The last one ends with the blob.
    pub(super) payload: usize,
    pub(super) decoded_len: usize,
}

/// Bytes of the head of so many sections.
pub(super) fn len_of(sections: usize) -> usize {
    HEADER + sections * ENTRY + CHECKSUM
}

pub(super) fn checksum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// CORRUPT: if the checksum of a payload is another.
pub(super) fn verify(payload: &[u8], expected: u64) -> Result<()> {
    match checksum(payload) {
        sum if sum == expected => Ok(()),
        sum => bail!(Corrupt, "the checksum is {sum:#018x}; {expected:#018x} expected"),
    }
}

/// Writes the head, which takes all of `out`.
pub(super) fn write(entries: &[Entry], blob_len: usize, decoded_len: usize, out: &mut [u8]) {
    let (body, sum) = out.split_at_mut(len_of(entries.len()) - CHECKSUM);
    let (header, table) = body.split_at_mut(HEADER);
    header[..8].copy_from_slice(&MAGIC);
    header[8..16].copy_from_slice(&u64::from(VERSION).to_le_bytes());
    for (to, number) in header[16..].as_chunks_mut().0.iter_mut().zip([blob_len, decoded_len, entries.len()]) {
        *to = (number as u64).to_le_bytes();
    }
    for (to, entry) in table.chunks_exact_mut(ENTRY).zip(entries) {
        let Form { dtype, block, scale } = entry.section.form;
        let form = [dtype as u64, block.into(), scale.into()];
        let form = form[0] | form[1] << 16 | form[2] << 32;
        let numbers = [entry.section.len as u64, entry.len as u64, entry.sum, form];
        to.as_chunks_mut().0.iter_mut().zip(numbers).for_each(|(to, number)| *to = number.to_le_bytes());
    }
    sum.copy_from_slice(&checksum(body).to_le_bytes());
}

/// Reads the head of a blob, and checks it against the blob's length.
pub(super) fn read(blob: &[u8]) -> Result<Head> {
    let Some((header, behind)) = blob.split_at_checked(HEADER) else {
        bail!(Corrupt, "the blob has {} bytes; {} or more expected", blob.len(), len_of(0));
    };
    if header[..8] != MAGIC {
        bail!(Corrupt, "the blob does not begin with MNKVSTAT");
    }
    let numbers: &[[u8; 8]; 4] = header[8..].as_chunks().0.first_chunk().expect("four numbers");
    let [version, blob_len, decoded_len, count] = numbers.map(u64::from_le_bytes);
    if version as u32 != VERSION {
        bail!(Unsupported, "the blob has version {}; {VERSION} expected", version as u32);
    }
    if version >> 32 != 0 {
        bail!(Corrupt, "bytes 12 to 16 of the blob are not 0");
    }
    if blob_len != blob.len() as u64 {
        bail!(Corrupt, "the blob has {} bytes; {blob_len} expected", blob.len());
    }
    let table_len = usize::try_from(count).ok().and_then(|count| count.checked_mul(ENTRY));
    let table = table_len
        .and_then(|len| behind.split_at_checked(len))
        .map(|(table, behind)| (table, behind.split_first_chunk()));
    let Some((table, Some((sum, payloads)))) = table else {
        bail!(Corrupt, "the blob has {} bytes, which are too few for {count} sections", blob.len());
    };
    let head_len = HEADER + table.len();
    verify(&blob[..head_len], u64::from_le_bytes(*sum)).map_err(|e| e.within("the head"))?;
    let (mut entries, mut start, mut left) = (Vec::new(), 0usize, payloads.len());
    memory::reserve(&mut entries, table.len() / ENTRY)?;
    for (at, entry) in table.as_chunks::<ENTRY>().0.iter().enumerate() {
        let entry = read_entry(entry, start).map_err(|e| e.within(format_args!("section {at}")))?;
        let ends = start.checked_add(entry.section.len).zip(left.checked_sub(entry.len));
        (start, left) = ends.ok_or_else(|| error!(Corrupt, "section {at} ends after the blob or the address space"))?;
        memory::push(&mut entries, entry)?;
    }
    if left > 0 || start as u64 != decoded_len {
        bail!(Corrupt, "the sections decode to {start} bytes and leave {left}; {decoded_len} and 0 expected");
    }
    Ok(Head { entries, payload: head_len + CHECKSUM, decoded_len: start })
}

fn read_entry(entry: &[u8; ENTRY], start: usize) -> Result<Entry> {
    let numbers: &[[u8; 8]; 4] = entry.as_chunks().0.first_chunk().expect("four numbers");
    let [raw_len, len, sum, form] = numbers.map(u64::from_le_bytes);
    let [code, block, scale, zero] = [form, form >> 16, form >> 32, form >> 48].map(|number| number as u16);
    let form = Dtype::named(code.into()).map(|dtype| Form { dtype, block, scale });
    let unit = form.and_then(Form::unit).filter(|_| zero == 0);
    match (form.zip(unit), usize::try_from(raw_len), usize::try_from(len)) {
        (Some((form, unit)), Ok(raw_len), Ok(len)) if raw_len > 0 && raw_len.is_multiple_of(unit) => {
            Ok(Entry { section: Section { start, len: raw_len, form }, len, sum })
        }
        _ => bail!(Corrupt, "it has {raw_len} bytes of dtype {code} in blocks of {block}, {scale} of them words"),
    }
}
