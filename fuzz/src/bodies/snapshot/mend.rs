//! Checksums of a file made right, from `docs/format.md`, as far as it can be walked.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const SLOTS: [usize; 4] = [512, 1024, 1536, 2048];
const FINGERPRINT: usize = 2560;
/// The most commit records of a file that is mended.
const MOST_RECORDS: usize = 64;

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("in a sector"))
}

fn put(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

/// Numbers and bytes of a record, with their place in the file.
struct Reader<'a> {
    bytes: &'a mut [u8],
    at: usize,
    end: usize,
}

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = (self.at < self.end).then(|| self.bytes[self.at])?;
        self.at += 1;
        Some(byte)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Some(number);
            }
        }
        None
    }

    fn skip(&mut self, len: u64) -> Option<()> {
        self.at = self.at.checked_add(usize::try_from(len).ok()?).filter(|at| *at <= self.end)?;
        Some(())
    }

    /// Writes the checksum of `len` bytes, `gap` behind the cursor, to the next eight bytes.
    fn sum(&mut self, cursor: &mut u64, gap: u64, len: u64) -> Option<()> {
        let (begin, at) = (cursor.checked_add(gap)?, self.at);
        *cursor = begin.checked_add(len)?;
        let range = usize::try_from(begin).ok()?..usize::try_from(*cursor).ok()?;
        self.skip(8)?;
        let sum = xxh3_64(self.bytes.get(range)?);
        put(self.bytes, at, sum);
        Some(())
    }

    fn value(&mut self, cursor: &mut u64) -> Option<()> {
        self.number()?;
        match self.number()? {
            len @ 0..=64 => self.skip(len),
            len => {
                let gap = self.number()?;
                self.sum(cursor, gap, len)
            }
        }
    }

    fn item(&mut self, kind: u8, cursor: &mut u64) -> Option<()> {
        match kind {
            0x41 => {
                let (gap, len) = (self.number()?, self.number()?);
                self.number()?;
                self.number()?;
                self.sum(cursor, gap, len)
            }
            0x01 => {
                self.number()?;
                if self.byte()? == 1 {
                    self.number()?;
                    self.number()?;
                    self.skip(2)?;
                }
                let edits = self.number()?;
                self.skip(edits)?;
                self.value(cursor)
            }
            0x02 => {
                let name = self.number()?;
                self.skip(name)?;
                self.value(cursor)
            }
            _ => None,
        }
    }
}

/// The start of a record: base, previous_len, and where previous_sum and the items are.
fn head(image: &mut [u8], (begin, end): (usize, usize)) -> Option<(u64, u64, usize)> {
    let mut reader = Reader { bytes: image, at: begin, end };
    reader.number()?;
    Some((reader.number()?, reader.number()?, reader.at))
}

/// Mends the items of a record, and itself; `sum` is that of the record before. Returns its checksum.
fn record(image: &mut [u8], (begin, end): (usize, usize), sum: Option<u64>) -> Option<u64> {
    let (base, previous_len, at) = head(image, (begin, end))?;
    let mut reader = Reader { bytes: image, at, end };
    if previous_len > 0 {
        reader.skip(8)?;
        put(reader.bytes, at, sum.unwrap_or(0));
    }
    let mut items = || {
        reader.number()?;
        let mut cursor = base;
        while reader.at < end {
            let (kind, len) = (reader.byte()?, reader.number()?);
            let item_end = reader.at.checked_add(usize::try_from(len).ok()?).filter(|at| *at <= end)?;
            let mut item = Reader { bytes: &mut *reader.bytes, at: reader.at, end: item_end };
            let _ = item.item(kind, &mut cursor);
            reader.at = item_end;
        }
        Some(())
    };
    let _ = items();
    Some(xxh3_64(&image[begin..end]))
}

/// Mends what the copy of a slot leads to, and the copy.
fn slot(image: &mut [u8], offset: usize) -> Option<()> {
    let (mut chain, len) = (Vec::new(), image.len() as u64);
    let (mut begin, mut size) = (u64_at(image, offset + 16), u64_at(image, offset + 24));
    while chain.len() < MOST_RECORDS && size > 0 {
        let end = begin.checked_add(size).filter(|end| *end <= len)?;
        let place = (begin as usize, end as usize);
        chain.push(place);
        let Some((base, previous_len, _)) = head(image, place) else { break };
        (begin, size) = (base.wrapping_sub(previous_len), previous_len);
    }
    let mut sum = None;
    for place in chain.into_iter().rev() {
        sum = record(image, place, sum);
    }
    put(image, offset + 32, sum?);
    Some(())
}

/// Mends the header, the slots and the records that they lead to.
pub fn mend(image: &mut [u8]) {
    if image.len() < FINGERPRINT {
        return;
    }
    image[..16].copy_from_slice(b"MNKVSNAP\x01\0\x01\0\x01\0\0\0");
    let fingerprint = (u64_at(image, 16) as usize % 4096).min(image.len() - FINGERPRINT);
    let sum = xxh3_64(&image[FINGERPRINT..FINGERPRINT + fingerprint]);
    put(image, 16, fingerprint as u64);
    put(image, 24, sum);
    let header = xxh3_64(&image[..504]);
    put(image, 504, header);
    for offset in SLOTS {
        let _ = slot(image, offset);
        image[offset..offset + 8].copy_from_slice(b"MNKVSLOT");
        let end = u64_at(image, offset + 16).wrapping_add(u64_at(image, offset + 24));
        put(image, offset + 40, end);
        put(image, offset + 48, sum);
        put(image, offset + 56, fingerprint as u64);
        let sector = xxh3_64_with_seed(&image[offset..offset + 504], offset as u64);
        put(image, offset + 504, sector);
    }
}
