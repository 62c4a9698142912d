//! A reader of format lanes, written from docs/format.md alone. Slow, and simple.

use xxhash_rust::xxh3::xxh3_64;

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or("the blob ends early")?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<usize, String> {
        let mut number = 0u128;
        for i in 0.. {
            let byte = self.take(1)?[0];
            number |= ((byte & 127) as u128) << (7 * i);
            if number >= 1 << 64 || byte == 0 && i > 0 {
                return Err("a number is too long".into());
            }
            if byte & 128 == 0 {
                break;
            }
        }
        Ok(number as usize)
    }
}

/// `(first bits, length, value)` of each code; the escape has the value 256.
fn code(bytes: &mut Bytes<'_>) -> Result<Vec<(u32, u32, u32)>, String> {
    let mut pending = None;
    let mut nibble = || match pending.take() {
        Some(high) => Ok::<u32, String>(high),
        None => {
            let byte = bytes.take(1)?[0] as u32;
            pending = Some(byte >> 4);
            Ok(byte & 15)
        }
    };
    let mut codes = vec![];
    let mut value = 0;
    while value < 256 {
        match nibble()? {
            0 => value += nibble()? + 16 * nibble()? + 1,
            len @ 1..=8 => {
                codes.push((0, len, value));
                value += 1;
            }
            none => value += none - 8,
        }
    }
    if value > 256 || pending.is_some_and(|high| high != 0) {
        return Err("lengths".into());
    }
    let left = 256 - codes.iter().map(|(_, len, _)| 1i32 << (8 - len)).sum::<i32>();
    match left {
        0 => {}
        1 | 2 | 4 | 8 | 16 | 32 | 64 | 128 => codes.push((0, 8 - left.ilog2(), 256)),
        _ => return Err("a code with gaps, or too long".into()),
    }
    codes.sort_by_key(|(_, len, value)| (*len, *value));
    let mut next = 0;
    for (bits, len, _) in &mut codes {
        *bits = next >> (8 - *len);
        next += 1 << (8 - *len);
    }
    Ok(codes)
}

fn plane(bytes: &mut Bytes<'_>, words: usize, lanes: usize) -> Result<Vec<u8>, String> {
    let code = code(bytes)?;
    let (escapes, stream) = (bytes.number()?, bytes.number()?);
    let mut escapes = bytes.take(escapes)?.iter();
    let mut stream = bytes.take(stream)?.iter();
    let mut windows: Vec<Vec<bool>> = vec![];
    for pair in bytes.take(2 * lanes)?.chunks(2) {
        let word = pair[0] as u32 | (pair[1] as u32) << 8;
        if word & 255 == 0 {
            return Err("a window without an end".into());
        }
        windows.push((word.trailing_zeros() + 1..16).rev().map(|bit| word >> bit & 1 == 1).collect());
    }
    let mut symbols = vec![];
    for _ in 0..(words - 1) / lanes {
        for window in &mut windows {
            let begins = |(bits, len, _): &&(u32, u32, u32)| {
                (0..*len).all(|i| window[i as usize] == (bits >> (len - 1 - i) & 1 == 1))
            };
            let (_, len, value) = *code.iter().find(begins).ok_or("no code")?;
            window.drain(..len as usize);
            symbols.push(if value < 256 { value as u8 } else { *escapes.next().ok_or("escapes end early")? });
        }
        for window in &mut windows {
            if window.len() < 8 {
                let byte = stream.next().ok_or("the stream ends early")?;
                window.extend((0..8).rev().map(|bit| byte >> bit & 1 == 1));
            }
        }
    }
    for (lane, window) in windows.iter().enumerate() {
        let symbol = window.iter().fold(0u8, |symbol, bit| symbol << 1 | *bit as u8);
        let is_used = symbols.len() < words;
        if window.len() != 8 || !is_used && symbol != 0 {
            return Err(format!("lane {lane} has bits left"));
        }
        symbols.extend(is_used.then_some(symbol));
    }
    if stream.next().is_some() || escapes.next().is_some() {
        return Err("bytes left over".into());
    }
    Ok(symbols)
}

/// The type and the words of a blob.
pub fn read(blob: &[u8]) -> Result<(u32, Vec<u8>), String> {
    let mut bytes = Bytes(blob);
    let header = bytes.take(20)?;
    let (dtype, kinds, lanes) = (header[9], header[10], header[11]);
    if header[..9] != *b"\0\0\0\0MNKV\x03" || !(1..=4).contains(&dtype) || !(1..=2).contains(&lanes) {
        return Err("header".into());
    }
    let width = [2, 2, 4, 1][dtype as usize - 1];
    let len = bytes.number()?;
    if len == 0 || len % width != 0 || width < 4 && kinds >> (2 * width) != 0 {
        return Err("header".into());
    }
    let count = len / width;
    let mut words = vec![0; len];
    for i in 0..width {
        let plane = match kinds >> (2 * i) & 3 {
            0 => bytes.take(count)?.to_vec(),
            1 => vec![bytes.take(1)?[0]; count],
            2 => plane(&mut bytes, count, 64 * lanes as usize)?,
            _ => return Err("kind".into()),
        };
        plane.iter().enumerate().for_each(|(j, byte)| words[j * width + i] = *byte);
    }
    match dtype {
        2 => words.chunks_mut(2).for_each(|word| {
            let turned = u16::from_le_bytes([word[0], word[1]]).rotate_right(1);
            word.copy_from_slice(&turned.to_le_bytes());
        }),
        3 => words.chunks_mut(4).for_each(|word| {
            let turned = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).rotate_right(1);
            word.copy_from_slice(&turned.to_le_bytes());
        }),
        _ => {}
    }
    match bytes.0.is_empty() && xxh3_64(&words).to_le_bytes() == header[12..20] {
        true => Ok((dtype as u32, words)),
        false => Err("bytes left over, or a checksum that differs".into()),
    }
}
