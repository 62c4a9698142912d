//! Checks of scales and offsets.

use super::Checker;
use crate::c8::LEAST_SCALE;
use crate::msmodelslim::finding::{FindingKind, Severity};
use crate::msmodelslim::packed_scale::PackedScale;
use crate::names::Name;
use crate::safetensors::FileDtype;
use mnnkv::status::Result;
use std::fmt;

/// The first wrong element, and the number of wrong ones.
#[derive(Default)]
struct Tally<T> {
    first: Option<(u64, T)>,
    count: u64,
}

impl<T: Copy> Tally<T> {
    fn add(&mut self, at: u64, value: T) {
        self.first.get_or_insert((at, value));
        self.count += 1;
    }

    fn described<'a>(&'a self, name: Name<'a>, expected: &'a str) -> Option<Described<'a, T>> {
        self.first.map(|first| Described { name, first, expected, more: self.count - 1 })
    }
}

/// "tensor x: element 3 is 0; something expected (and 4 more)"
struct Described<'a, T> {
    name: Name<'a>,
    first: (u64, T),
    expected: &'a str,
    more: u64,
}

impl<T: fmt::Display> fmt::Display for Described<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, value) = &self.first;
        write!(f, "tensor {}: element {at} is {value}; {} expected", self.name, self.expected)?;
        match self.more {
            0 => Ok(()),
            more => write!(f, " (and {more} more)"),
        }
    }
}

fn tally<T>() -> Tally<T> {
    Tally { first: None, count: 0 }
}

impl Checker<'_> {
    /// Checks that scales are positive and finite.
    pub(super) fn scales(&mut self, name: Name<'_>) -> Result<()> {
        self.scales_from(name, f32::from_bits(1), "a positive number")
    }

    /// Checks that KV scales are those of C8.
    pub(super) fn kv_scales(&mut self, name: Name<'_>) -> Result<()> {
        self.scales_from(name, LEAST_SCALE, "a finite number of at least 2^-100")
    }

    fn scales_from(&mut self, name: Name<'_>, least: f32, expected: &str) -> Result<()> {
        let Some(located) = self.whole(name).filter(|located| located.tensor.dtype.is_float()) else { return Ok(()) };
        let mut bad = tally::<f32>();
        self.scan(
            located,
            |l, begin, count| l.floats(begin, count),
            |begin, piece| {
                for (i, scale) in piece.iter().enumerate() {
                    if !(least..=f32::MAX).contains(scale) {
                        bad.add(begin + i as u64, *scale);
                    }
                }
            },
        )?;
        if let Some(text) = bad.described(name, expected) {
            self.error(located, FindingKind::BadScaleValue, format_args!("{text}"))?;
        }
        Ok(())
    }

    /// Checks that offsets are integers from -128 to 127. `severity` is that of fractions.
    pub(super) fn offsets(&mut self, name: Name<'_>, severity: Severity) -> Result<()> {
        let Some(located) = self.whole(name).filter(|located| located.tensor.dtype.is_float()) else { return Ok(()) };
        let (mut outside, mut fractions) = (tally::<f32>(), tally::<f32>());
        self.scan(
            located,
            |l, begin, count| l.floats(begin, count),
            |begin, piece| {
                for (i, offset) in piece.iter().enumerate() {
                    if !(-128.0..=127.0).contains(offset) {
                        outside.add(begin + i as u64, *offset);
                    } else if offset.fract() != 0.0 {
                        fractions.add(begin + i as u64, *offset);
                    }
                }
            },
        )?;
        if let Some(text) = outside.described(name, "a whole number from -128 to 127") {
            self.error(located, FindingKind::OffsetOutOfRange, format_args!("{text}"))?;
        }
        if let Some(text) = fractions.described(name, "a whole number") {
            self.fault(located, severity, FindingKind::NonIntegralOffset, format_args!("{text}"))?;
        }
        Ok(())
    }

    /// Current runtimes are correct only with KV offsets of 0.
    pub(super) fn kv_offsets(&mut self, name: Name<'_>) -> Result<()> {
        self.zeros(name, FindingKind::KvOffsetNonzero, "0, the only offset that every runtime reads alike,")
    }

    /// Warns about numbers other than 0.
    pub(super) fn zeros(&mut self, name: Name<'_>, kind: FindingKind, expected: &str) -> Result<()> {
        let Some(located) = self.whole(name).filter(|located| located.tensor.dtype.is_float()) else { return Ok(()) };
        let mut set = tally::<f32>();
        self.scan(
            located,
            |l, begin, count| l.floats(begin, count),
            |begin, piece| {
                for (i, offset) in piece.iter().enumerate().filter(|(_, offset)| **offset != 0.0) {
                    set.add(begin + i as u64, *offset);
                }
            },
        )?;
        if let Some(text) = set.described(name, expected) {
            self.warn(located, kind, format_args!("{text}"))?;
        }
        Ok(())
    }

    /// Checks deq_scale in both of its forms.
    pub(super) fn deq_scales(&mut self, name: Name<'_>) -> Result<()> {
        let Some(located) = self.whole(name) else { return Ok(()) };
        if located.tensor.dtype != FileDtype::I64 {
            return self.scales(name);
        }
        let (mut bad, mut strange, mut npu) = (tally::<f32>(), tally::<i64>(), tally::<i64>());
        self.scan(
            located,
            |l, begin, count| l.i64s(begin, count),
            |begin, piece| {
                for (i, bits) in piece.iter().enumerate() {
                    let at = begin + i as u64;
                    let unpacked = PackedScale::unpack(*bits);
                    match unpacked {
                        PackedScale::Plain(_) => {}
                        PackedScale::Npu(_) => npu.add(at, *bits),
                        PackedScale::Strange => strange.add(at, *bits),
                    }
                    if let Some(scale) = unpacked.number().filter(|scale| !(scale.is_finite() && *scale > 0.0)) {
                        bad.add(at, scale);
                    }
                }
            },
        )?;
        if let Some(text) = bad.described(name, "the bits of a positive f32") {
            self.error(located, FindingKind::BadScaleValue, format_args!("{text}"))?;
        }
        if let Some(text) = strange.described(name, "the bits of an f32 and nothing above them") {
            self.error(located, FindingKind::PackedScaleHighBits, format_args!("{text}"))?;
        }
        if let Some(text) = npu
            .described(name, "the bits of an f32 (this is the form of the NPU's converter, with 10 bits of mantissa)")
        {
            self.warn(located, FindingKind::PackedScaleNpuForm, format_args!("{text}"))?;
        }
        Ok(())
    }
}
