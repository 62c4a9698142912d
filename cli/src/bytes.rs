//! Amounts of memory as text.

/// Parses a number of bytes such as `8GiB`, `512M` or `1.5e9`. K, M, G and T, alone or with iB, are powers of 1,024;
/// with B they are powers of 1,000.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| c.is_ascii_alphabetic() && !matches!(c, 'e' | 'E')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let thousands = |n: u32| 1000_f64.powi(n as i32);
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "ki" | "kib" => 1024.0,
        "m" | "mi" | "mib" => 1048576.0,
        "g" | "gi" | "gib" => 1073741824.0,
        "t" | "ti" | "tib" => 1099511627776.0,
        "kb" => thousands(1),
        "mb" => thousands(2),
        "gb" => thousands(3),
        "tb" => thousands(4),
        _ => return Err(format!("the unit {unit:?} is not one of B, KiB, MiB, GiB, TiB, kB, MB, GB, TB")),
    };
    match number.trim().parse::<f64>() {
        Ok(n) if n >= 0.0 && n * factor < 9e18 => Ok((n * factor) as u64),
        _ => Err(format!("{number:?} is not an amount; one such as 8GiB expected")),
    }
}

/// Bytes with at most four digits and a unit: `512 B`, `70.2 GiB`.
pub fn format(bytes: u64) -> String {
    let mut amount = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB", "PiB"] {
        // Compares rounded amounts, so that 1024.0 KiB is shown as 1 MiB.
        if unit == "PiB" || (amount * 10.0).round() < 10240.0 {
            let digits = usize::from(unit != "B" && amount.fract() != 0.0);
            return format!("{amount:.digits$} {unit}");
        }
        amount /= 1024.0;
    }
    unreachable!("the last unit has no limit")
}

/// A count with commas: `131,072`.
pub fn count(n: u64) -> String {
    indicatif::HumanCount(n).to_string()
}

/// A count of things: `1 file`, `2 files`.
pub fn plural(n: u64, what: &str) -> String {
    format!("{} {what}{}", count(n), if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_accepts_binary_and_decimal_units() {
        for (text, bytes) in [
            ("0", 0),
            ("70272", 70272),
            ("1e3", 1000),
            ("8GiB", 8 << 30),
            ("8g", 8 << 30),
            ("1.5 MiB", 3 << 19),
            ("2GB", 2_000_000_000),
            ("64kB", 64_000),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "GiB", "-1", "8 parsecs", "1e40", "nan", "eight"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn format_chooses_the_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (70272, "68.6 KiB"),
            ((1 << 30) - 1, "1.0 GiB"),
            (8 << 30, "8 GiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(format(bytes), text);
        }
        assert_eq!([0, 999, 1000, 131_072, 1_234_567].map(count), ["0", "999", "1,000", "131,072", "1,234,567"]);
    }
}
