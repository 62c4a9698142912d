//! Checks of the numbers in the tensors. Each tensor is read once, in pieces.

mod codes;
mod numbers;

use super::files::{Files, Located};
use super::finding::{Findings, Kind};
use super::layers::{Layers, siblings};

/// Elements that are read at a time.
const WINDOW: u64 = 1 << 18;

/// Looks at every number of scales, offsets and codes.
pub(super) fn values(files: &Files, layers: &Layers, findings: &mut Findings) {
    let mut checker =
        Checker { files, findings, norms_add: layers.norms.iter().any(|norm| norm.bias || norm.smoothed) };
    for linear in layers.linears.iter().filter(|linear| linear.tag.is_int8()) {
        checker.linear(linear);
    }
    for layer in &layers.kv {
        for side in [&layer.key, &layer.value] {
            checker.scales(&side.scale);
            if let Some(offset) = &side.offset {
                checker.offsets(offset);
                checker.kv_offsets(offset);
            }
        }
    }
    checker.siblings(layers);
}

struct Checker<'a> {
    files: &'a Files,
    findings: &'a mut Findings,
    /// Whether a norm may add something that a linear's quant_bias makes up for.
    norms_add: bool,
}

impl<'a> Checker<'a> {
    fn fault(&mut self, located: Located<'_>, kind: Kind, warning: bool, text: String) {
        let name = &located.tensor.name;
        let finding =
            if warning { self.findings.warn(kind, name, text) } else { self.findings.error(kind, name, text) };
        located.file.name.clone_into(&mut finding.file);
    }

    /// A tensor that is there and whole; others have been reported.
    fn whole(&self, name: &str) -> Option<Located<'a>> {
        self.files.get(name).filter(|located| located.tensor.complete)
    }

    /// Runs `look` over all elements in pieces. That they cannot be read is a finding.
    fn scan<T>(
        &mut self,
        located: Located<'a>,
        read: impl Fn(&Located<'a>, u64, u64) -> crate::status::Result<Vec<T>>,
        mut look: impl FnMut(u64, &[T]),
    ) -> bool {
        let elements = located.tensor.elements();
        let mut begin = 0;
        while begin < elements {
            let count = WINDOW.min(elements - begin);
            match read(&located, begin, count) {
                Ok(piece) => look(begin, &piece),
                Err(e) => {
                    let finding = self.findings.error(Kind::Unreadable, &located.tensor.name, e.message().to_owned());
                    finding.status = e.status();
                    located.file.name.clone_into(&mut finding.file);
                    return false;
                }
            }
            begin += count;
        }
        true
    }

    /// Linears that runtimes load as one must have one scale for their common input.
    fn siblings(&mut self, layers: &Layers) {
        for siblings in siblings(&layers.linears).values() {
            let scale =
                |name: String| self.whole(&name).and_then(|located| Some((located, located.floats(0, 1).ok()?[0])));
            let scales = siblings.iter().filter(|linear| linear.tag.has_static_input() && linear.error.is_none());
            let scales: Vec<_> = scales.filter_map(|linear| scale(linear.part("input_scale"))).collect();
            let Some(&(first, expected)) = scales.first() else { continue };
            for (located, scale) in scales {
                // The tolerance with which those runtimes compare.
                if (scale - expected).abs() > 1e-5 * expected.abs() + 1e-8 {
                    let text = format!(
                        "{} is {scale}, {} is {expected}; runtimes that load them as one linear refuse that",
                        located.tensor.name, first.tensor.name
                    );
                    self.fault(located, Kind::FusionMismatch, true, text);
                }
            }
        }
    }
}
