//! Scales and offsets.

use super::Checker;
use crate::model::msmodelslim::finding::Kind;
use crate::model::msmodelslim::packed_scale::PackedScale;
use crate::model::safetensors::Dtype;

/// The first element that is wrong, and how many are.
#[derive(Default)]
struct Tally<T> {
    first: Option<(u64, T)>,
    count: u64,
}

impl<T: Copy + std::fmt::Display> Tally<T> {
    fn add(&mut self, at: u64, value: T) {
        self.first.get_or_insert((at, value));
        self.count += 1;
    }

    /// "tensor x: element 3 is 0; something expected (and 4 more)"
    fn text(&self, name: &str, expected: &str) -> Option<String> {
        let (at, value) = self.first?;
        let more = if self.count > 1 { format!(" (and {} more)", self.count - 1) } else { String::new() };
        Some(format!("tensor {name}: element {at} is {value}; {expected} expected{more}"))
    }
}

fn tally<T: Copy + Default + std::fmt::Display>() -> Tally<T> {
    Tally { first: None, count: 0 }
}

impl Checker<'_> {
    /// Scales are positive numbers.
    pub(super) fn scales(&mut self, name: &str) {
        let Some(located) = self.whole(name).filter(|located| located.tensor.dtype.is_float()) else { return };
        let mut bad = tally::<f32>();
        self.scan(
            located,
            |l, begin, count| l.floats(begin, count),
            |begin, piece| {
                for (i, scale) in piece.iter().enumerate() {
                    if !(scale.is_finite() && *scale > 0.0) {
                        bad.add(begin + i as u64, *scale);
                    }
                }
            },
        );
        if let Some(text) = bad.text(name, "a positive number") {
            self.fault(located, Kind::BadScaleValue, false, text);
        }
    }

    /// Offsets are codes: whole numbers from -128 to 127.
    pub(super) fn offsets(&mut self, name: &str) {
        let Some(located) = self.whole(name).filter(|located| located.tensor.dtype.is_float()) else { return };
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
        );
        if let Some(text) = outside.text(name, "a whole number from -128 to 127") {
            self.fault(located, Kind::OffsetOutOfRange, false, text);
        }
        if let Some(text) = fractions.text(name, "a whole number") {
            self.fault(located, Kind::NonIntegralOffset, true, text);
        }
    }

    /// Runtimes in use are right only with KV offsets of 0.
    pub(super) fn kv_offsets(&mut self, name: &str) {
        self.zeros(name, Kind::KvOffsetNonzero, "0, the only offset that every runtime reads alike,");
    }

    /// Warns of numbers other than 0.
    pub(super) fn zeros(&mut self, name: &str, kind: Kind, expected: &str) {
        let Some(located) = self.whole(name).filter(|located| located.tensor.dtype.is_float()) else { return };
        let mut set = tally::<f32>();
        self.scan(
            located,
            |l, begin, count| l.floats(begin, count),
            |begin, piece| {
                for (i, offset) in piece.iter().enumerate().filter(|(_, offset)| **offset != 0.0) {
                    set.add(begin + i as u64, *offset);
                }
            },
        );
        if let Some(text) = set.text(name, expected) {
            self.fault(located, kind, true, text);
        }
    }

    /// deq_scale in either of its forms.
    pub(super) fn deq_scales(&mut self, name: &str) {
        let Some(located) = self.whole(name) else { return };
        if located.tensor.dtype != Dtype::I64 {
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
        );
        if let Some(text) = bad.text(name, "the bits of a positive f32") {
            self.fault(located, Kind::BadScaleValue, false, text);
        }
        if let Some(text) = strange.text(name, "the bits of an f32 and nothing above them") {
            self.fault(located, Kind::PackedScaleHighBits, false, text);
        }
        if let Some(text) =
            npu.text(name, "the format's form; this is the NPU's, read with the mantissa it left, and that")
        {
            self.fault(located, Kind::PackedScaleNpuForm, true, text);
        }
    }
}
