//! Checks of scales and offsets.

use super::Checker;
use crate::c8::LEAST_SCALE;
use crate::msmodelslim::files::Located;
use crate::msmodelslim::finding::{FindingKind, Severity};
use crate::msmodelslim::packed_scale::PackedScale;
use crate::names::Name;
use crate::safetensors::FileDtype;
use mnnkv::status::Result;
use std::fmt;

/// What no element of a tensor may be.
pub(super) struct Rule<'a, T> {
    severity: Severity,
    kind: FindingKind,
    /// The elements that it is about.
    bad: fn(T) -> bool,
    expected: &'a str,
}

fn error<T>(kind: FindingKind, bad: fn(T) -> bool, expected: &str) -> Rule<'_, T> {
    Rule { severity: Severity::Error, kind, bad, expected }
}

fn warning<T>(kind: FindingKind, bad: fn(T) -> bool, expected: &str) -> Rule<'_, T> {
    Rule { severity: Severity::Warning, kind, bad, expected }
}

/// An element of deq_scale: a number that is no scale, or else its bits.
#[derive(Clone, Copy)]
struct Deq(i64);

impl Deq {
    fn is_no_scale(self) -> bool {
        PackedScale::unpack(self.0).number().is_some_and(|scale| !(scale.is_finite() && scale > 0.0))
    }
}

impl fmt::Display for Deq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match PackedScale::unpack(self.0).number().filter(|_| self.is_no_scale()) {
            Some(number) => number.fmt(f),
            None => self.0.fmt(f),
        }
    }
}

impl<'a> Checker<'a> {
    /// Checks that scales are positive and finite.
    pub(super) fn scales(&mut self, name: Name<'_>) -> Result<()> {
        let bad = |scale: f32| !(f32::from_bits(1)..=f32::MAX).contains(&scale);
        self.floats(name, [error(FindingKind::BadScaleValue, bad, "a positive number")])
    }

    /// Checks that KV scales are those of C8.
    pub(super) fn kv_scales(&mut self, name: Name<'_>) -> Result<()> {
        let bad = |scale: f32| !(LEAST_SCALE..=f32::MAX).contains(&scale);
        self.floats(name, [error(FindingKind::BadScaleValue, bad, "a finite number of at least 2^-100")])
    }

    /// Checks that offsets are integers from -128 to 127. `severity` is that of fractions.
    pub(super) fn offsets(&mut self, name: Name<'_>, severity: Severity) -> Result<()> {
        let (outside, fraction) = (|x: f32| !is_in_range(x), |x: f32| is_in_range(x) && x.fract() != 0.0);
        let outside = error(FindingKind::OffsetOutOfRange, outside, "a whole number from -128 to 127");
        let fraction = error(FindingKind::NonIntegralOffset, fraction, "a whole number");
        self.floats(name, [outside, Rule { severity, ..fraction }])
    }

    /// Current runtimes are correct only with KV offsets of 0.
    pub(super) fn kv_offsets(&mut self, name: Name<'_>) -> Result<()> {
        self.zeros(name, FindingKind::KvOffsetNonzero, "0, the only offset that every runtime reads alike,")
    }

    /// Warns about numbers other than 0.
    pub(super) fn zeros(&mut self, name: Name<'_>, kind: FindingKind, expected: &str) -> Result<()> {
        self.floats(name, [warning(kind, |x| x != 0.0, expected)])
    }

    /// Checks deq_scale in both of its forms.
    pub(super) fn deq_scales(&mut self, name: Name<'_>) -> Result<()> {
        if self.whole(name).is_none_or(|located| located.tensor.dtype != FileDtype::I64) {
            return self.scales(name);
        }
        let is_strange = |deq: Deq| PackedScale::unpack(deq.0) == PackedScale::Strange;
        let is_npu = |deq: Deq| matches!(PackedScale::unpack(deq.0), PackedScale::Npu(_));
        const NPU: &str = "the bits of an f32 (this is the form of the NPU's converter, with 10 bits of mantissa)";
        let rules = [
            error(FindingKind::BadScaleValue, Deq::is_no_scale, "the bits of a positive f32"),
            error(FindingKind::PackedScaleHighBits, is_strange, "the bits of an f32 and nothing above them"),
            warning(FindingKind::PackedScaleNpuForm, is_npu, NPU),
        ];
        self.apply(name, |l, begin, count| l.i64s(begin, count), Deq, rules)
    }

    /// Applies rules to a tensor of floats; another type is reported already.
    fn floats<const N: usize>(&mut self, name: Name<'_>, rules: [Rule<'_, f32>; N]) -> Result<()> {
        match self.whole(name).is_some_and(|located| located.tensor.dtype.is_float()) {
            true => self.apply(name, |l, begin, count| l.floats(begin, count), |x| x, rules),
            false => Ok(()),
        }
    }

    /// Adds a finding for each rule that elements break, with the first of them.
    fn apply<U: Copy, T: Copy + fmt::Display, const N: usize>(
        &mut self,
        name: Name<'_>,
        read: impl Fn(&Located<'a>, u64, u64) -> Result<Vec<U>>,
        element: impl Fn(U) -> T,
        rules: [Rule<'_, T>; N],
    ) -> Result<()> {
        let Some(located) = self.whole(name) else { return Ok(()) };
        let (mut first, mut count) = ([None; N], [0u64; N]);
        self.scan(located, read, |begin, piece| {
            for (at, x) in (begin..).zip(piece.iter().map(|x| element(*x))) {
                for (rule, (first, count)) in rules.iter().zip(first.iter_mut().zip(&mut count)) {
                    if (rule.bad)(x) {
                        first.get_or_insert((at, x));
                        *count += 1;
                    }
                }
            }
        })?;
        for (rule, (first, count)) in rules.iter().zip(first.iter().zip(count)) {
            let Some((at, x)) = first else { continue };
            let text = format_args!("tensor {name}: element {at} is {x}; {} expected", rule.expected);
            match count - 1 {
                0 => self.fault(located, rule.severity, rule.kind, text)?,
                more => self.fault(located, rule.severity, rule.kind, format_args!("{text} (and {more} more)"))?,
            }
        }
        Ok(())
    }
}

fn is_in_range(offset: f32) -> bool {
    (-128.0..=127.0).contains(&offset)
}
