//! Checks of the numbers in the tensors. Each tensor is read once, in pieces.

mod codes;
mod numbers;

use super::files::{Files, Located};
use super::finding::{FindingKind, Findings, Severity};
use super::layers::{Layers, Sibling, siblings};
use crate::names::Name;
use mnnkv::json::Brief;
use mnnkv::status::Result;
use mnnkv::sys::memory;
use std::fmt;

/// Elements per read.
const WINDOW: u64 = 1 << 18;

/// Checks every number of scales, offsets and codes. The only error is OUT_OF_MEMORY.
pub(super) fn values(files: &Files, layers: &Layers, findings: &mut Findings) -> Result<()> {
    let mut checker =
        Checker { files, findings, norms_add: layers.norms.iter().any(|norm| norm.bias || norm.smoothed) };
    for linear in layers.linears.iter().filter(|linear| linear.tag.is_int8()) {
        checker.linear(linear)?;
    }
    for side in layers.kv.iter().flat_map(|layer| [&layer.key, &layer.value]) {
        checker.kv_scales((&side.scale).into())?;
        if let Some(offset) = &side.offset {
            // C8 refuses fractions.
            checker.offsets(offset.into(), Severity::Error)?;
            checker.kv_offsets(offset.into())?;
        }
    }
    checker.siblings(layers)
}

struct Checker<'a> {
    files: &'a Files,
    findings: &'a mut Findings,
    /// Whether a norm may add a term that a linear's quant_bias compensates.
    norms_add: bool,
}

impl<'a> Checker<'a> {
    fn error(&mut self, located: Located<'_>, kind: FindingKind, text: fmt::Arguments<'_>) -> Result<()> {
        self.fault(located, Severity::Error, kind, text)
    }

    fn warn(&mut self, located: Located<'_>, kind: FindingKind, text: fmt::Arguments<'_>) -> Result<()> {
        self.fault(located, Severity::Warning, kind, text)
    }

    fn fault(
        &mut self,
        located: Located<'_>,
        severity: Severity,
        kind: FindingKind,
        text: fmt::Arguments<'_>,
    ) -> Result<()> {
        self.findings.add(severity, kind, &located.tensor.name, &located.file.name, text).map(drop)
    }

    /// A complete tensor; others are reported already.
    fn whole(&self, name: Name<'_>) -> Option<Located<'a>> {
        self.files.get(name).filter(|located| located.tensor.complete)
    }

    /// Passes all elements to `look` in pieces. False, with a finding: they cannot be read.
    fn scan<T>(
        &mut self,
        located: Located<'a>,
        read: impl Fn(&Located<'a>, u64, u64) -> Result<Vec<T>>,
        mut look: impl FnMut(u64, &[T]),
    ) -> Result<bool> {
        let elements = located.tensor.elements();
        let mut begin = 0;
        while begin < elements {
            let count = WINDOW.min(elements - begin);
            match read(&located, begin, count) {
                Ok(piece) => look(begin, &piece),
                Err(e) => {
                    self.findings.unreadable(&located.tensor.name, &located.file.name, e)?;
                    return Ok(false);
                }
            }
            begin += count;
        }
        Ok(true)
    }

    /// Linears that runtimes merge must have one scale for their common input.
    fn siblings(&mut self, layers: &Layers) -> Result<()> {
        for siblings in siblings(&layers.linears)?.chunk_by(Sibling::of_one) {
            let mut scales = Vec::new();
            for linear in siblings.iter().map(|sibling| sibling.linear) {
                if linear.tag.has_static_input()
                    && linear.error.is_none()
                    && let Some(located) = self.whole(linear.part("input_scale"))
                    && let Some(scale) = some(located.floats(0, 1))?
                {
                    memory::push(&mut scales, (located, scale[0]))?;
                }
            }
            let Some(&(first, expected)) = scales.first() else { continue };
            for (located, scale) in scales {
                // The tolerance of those runtimes.
                if (scale - expected).abs() > 1e-5 * expected.abs() + 1e-8 {
                    let text = format_args!(
                        "{} is {}, {} is {}; runtimes that load them as one linear refuse that",
                        located.tensor.name,
                        Brief(scale),
                        first.tensor.name,
                        Brief(expected)
                    );
                    self.warn(located, FindingKind::FusionMismatch, text)?;
                }
            }
        }
        Ok(())
    }
}

/// The readable elements. Failures are reported already.
fn some<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(e) => e.unless_out_of_memory().map(|_| None),
    }
}
