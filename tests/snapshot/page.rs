//! A second reader and a writer of commits, from `docs/format.md` alone, without code of the library. Slow and obvious;
//! panics on any violation of the page.

use std::collections::BTreeMap;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// The copy of a slot at an offset: sequence, record, record_len, record_sum.
fn slot(image: &[u8], offset: usize) -> [u64; 4] {
    let sector = &image[offset..offset + 512];
    assert_eq!(&sector[..8], b"MNKVSLOT");
    assert_eq!(xxh3_64_with_seed(&sector[..504], offset as u64), u64_at(sector, 504));
    assert_eq!(u64_at(sector, 40), u64_at(sector, 16) + u64_at(sector, 24));
    assert_eq!([u64_at(sector, 48), u64_at(sector, 56)], [u64_at(image, 24), u64_at(image, 16) & 0xffff_ffff]);
    [8, 16, 24, 32].map(|at| u64_at(sector, at))
}

/// The offset of the newest slot, and the slot. Both copies of each are whole.
fn newest(image: &[u8]) -> (usize, [u64; 4]) {
    let slots = [512, 1536].map(|offset| {
        assert_eq!(slot(image, offset), slot(image, offset + 512));
        slot(image, offset)
    });
    let second = slots[1][0] > slots[0][0];
    let [n, older] = if second { [slots[1][0], slots[0][0]] } else { [slots[0][0], slots[1][0]] };
    assert!(n == older + 1 && second == (n % 2 == 1) || n == 0 && older == 0);
    if second { (1536, slots[1]) } else { (512, slots[0]) }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: u64) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len as usize);
        self.0 = rest;
        taken
    }

    fn number(&mut self) -> u64 {
        let len = self.0.iter().position(|byte| *byte < 128).unwrap() + 1;
        let bytes = self.take(len as u64);
        assert!(len == 1 || bytes[len - 1] != 0, "not the shortest form");
        bytes.iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 127))
    }

    fn sum(&mut self) -> u64 {
        u64_at(self.take(8), 0)
    }
}

/// heads, head_dim, key, value; piece and token of each token; the parts of the state.
pub type Layer = ([u64; 4], Vec<(u64, u64)>, Vec<Vec<u8>>);

#[derive(Default)]
pub struct Page {
    pub sequence: u64,
    pub fingerprint: Vec<u8>,
    /// Layer, tokens, raw_sum and parts.
    pub pieces: Vec<(u64, u64, u64, Vec<Vec<u8>>)>,
    pub layers: BTreeMap<u64, Layer>,
    pub sections: BTreeMap<String, Vec<Vec<u8>>>,
}

impl Page {
    pub fn read(image: &[u8]) -> Self {
        assert_eq!(&image[..14], b"MNKVSNAP\x01\0\x01\0\x01\0");
        assert_eq!(xxh3_64(&image[..504]), u64_at(image, 504));
        let len = u64_at(image, 16) as u32 as usize;
        let fingerprint = image[2560..2560 + len].to_vec();
        assert_eq!(xxh3_64(&fingerprint), u64_at(image, 24));
        let (_, [sequence, mut at, mut len, mut sum]) = newest(image);
        let mut records = Vec::new();
        for n in (0..=sequence).rev() {
            let record = &image[at as usize..(at + len) as usize];
            assert_eq!(xxh3_64(record), sum);
            let mut reader = Reader(record);
            assert_eq!(reader.number(), n);
            let base = reader.number();
            let previous_len = reader.number();
            sum = if n == 0 { 0 } else { reader.sum() };
            let pieces = reader.number();
            records.push((base, at, pieces, reader.0));
            (at, len) = (base - previous_len, previous_len);
        }
        let mut page = Page { sequence, fingerprint, ..Page::default() };
        for (base, end, pieces, items) in records.into_iter().rev() {
            assert_eq!(pieces, page.pieces.len() as u64);
            let (mut cursor, mut items) = (base, Reader(items));
            while !items.0.is_empty() {
                let (kind, len) = (items.take(1)[0], items.number());
                page.item(kind, Reader(items.take(len)), image, &mut cursor);
                assert!(cursor <= end);
            }
        }
        page
    }

    fn item(&mut self, kind: u8, mut item: Reader<'_>, image: &[u8], cursor: &mut u64) {
        let mut place = |gap: u64, len: u64| {
            let begin = *cursor + gap;
            *cursor = begin + len;
            &image[begin as usize..*cursor as usize]
        };
        let mut value = |item: &mut Reader<'_>, old: Option<&Vec<Vec<u8>>>| {
            let mut parts = old.cloned().unwrap_or_default();
            parts.truncate(item.number() as usize);
            match item.number() {
                0 => {}
                len @ 1..=64 => parts.push(item.take(len).to_vec()),
                len => {
                    let bytes = place(item.number(), len);
                    assert_eq!(xxh3_64(bytes), item.sum());
                    parts.push(bytes.to_vec());
                }
            }
            parts
        };
        match kind {
            0x41 => {
                let bytes = place(item.number(), item.number());
                let (layer, tokens) = (item.number(), item.number());
                assert_eq!(xxh3_64(bytes), item.sum());
                let mut reader = Reader(bytes);
                let lens: Vec<u64> = (0..reader.number()).map(|_| reader.number()).collect();
                let parts = lens.into_iter().map(|len| reader.take(len).to_vec()).collect();
                assert!(reader.0.is_empty());
                self.pieces.push((layer, tokens, item.sum(), parts));
            }
            0x01 => {
                let (layer, has_geometry) = (item.number(), item.take(1)[0]);
                let old = self.layers.remove(&layer);
                let (mut geometry, mut tokens, state) = old.unwrap_or_default();
                if has_geometry == 1 {
                    let [heads, head_dim] = [item.number(), item.number()];
                    let types = item.take(2);
                    geometry = [heads, head_dim, types[0].into(), types[1].into()];
                    tokens.clear();
                }
                let (mut edits, mut new, mut at) = (Reader(item.take_counted()), Vec::new(), 0);
                while !edits.0.is_empty() {
                    let (tag, second) = (edits.number(), edits.number() as usize);
                    let n = (tag / 2) as usize;
                    if tag % 2 == 0 {
                        new.extend(&tokens[at + second..at + second + n]);
                        at += second + n;
                    } else {
                        let (piece, offset) = (self.pieces.len() - 1 - second, edits.number());
                        assert_eq!(self.pieces[piece].0, layer);
                        assert!(offset + tag / 2 <= self.pieces[piece].1);
                        new.extend((offset..offset + tag / 2).map(|token| (piece as u64, token)));
                    }
                }
                let state = value(&mut item, Some(&state));
                self.layers.insert(layer, (geometry, new, state));
            }
            0x02 => {
                let name = String::from_utf8(item.take_counted().to_vec()).unwrap();
                let value = value(&mut item, self.sections.get(&name));
                self.sections.insert(name, value);
            }
            0x03 => drop(self.sections.remove(str::from_utf8(item.take_counted()).unwrap()).unwrap()),
            kind => panic!("kind {kind}"),
        }
        assert!(item.0.is_empty());
    }
}

impl<'a> Reader<'a> {
    fn take_counted(&mut self) -> &'a [u8] {
        let len = self.number();
        self.take(len)
    }
}

pub fn number(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 128 {
        bytes.push(number as u8 | 128);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// The record of the newest state.
pub fn record(image: &[u8]) -> std::ops::Range<usize> {
    let (_, [_, at, len, _]) = newest(image);
    at as usize..(at + len) as usize
}

/// Puts another record in place of the newest one.
pub fn replace_record(image: &mut Vec<u8>, record: &[u8]) {
    let (offset, [sequence, at, ..]) = newest(image);
    image.truncate(at as usize);
    image.extend(record);
    for offset in [offset, offset + 512] {
        let fields = [sequence, at, record.len() as u64, xxh3_64(record), at + record.len() as u64];
        for (i, field) in fields.into_iter().enumerate() {
            image[offset + 8 + 8 * i..][..8].copy_from_slice(&field.to_le_bytes());
        }
        let sum = xxh3_64_with_seed(&image[offset..offset + 504], offset as u64);
        image[offset + 504..][..8].copy_from_slice(&sum.to_le_bytes());
    }
}
