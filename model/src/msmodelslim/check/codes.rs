//! Checks of weight codes, and of tensors that depend on them.

use super::{Checker, some};
use crate::msmodelslim::files::Located;
use crate::msmodelslim::finding::{FindingKind, Severity};
use crate::msmodelslim::layers::QuantizedLinear;
use crate::msmodelslim::packed_scale::PackedScale;
use crate::names::Name;
use crate::safetensors::FileDtype;
use mnnkv::status::Result;
use mnnkv::sys::memory;

/// Tolerance of deq_scale against the product of the other two: both may have been rounded to bf16.
const PRODUCT_TOLERANCE: f32 = 1.0 / 128.0;

impl Checker<'_> {
    pub(super) fn linear(&mut self, linear: &QuantizedLinear) -> Result<()> {
        for part in ["weight_scale", "input_scale"] {
            self.scales(linear.part(part))?;
        }
        for part in ["weight_offset", "input_offset"] {
            self.offsets(linear.part(part), Severity::Warning)?;
        }
        if !linear.tag.needs_weight_scale() {
            let word = linear.tag.word();
            let expected = memory::format(format_args!("0, since weights of type {word} are read without an offset,"))?;
            self.zeros(linear.part("weight_offset"), FindingKind::OffsetOutOfRange, &expected)?;
        }
        self.deq_scales(linear.part("deq_scale"))?;
        if linear.error.is_some() {
            return Ok(());
        }
        let sums = self.codes(linear)?;
        if linear.tag.has_static_input() {
            // Unreadable tensors are reported already.
            let products = self.products(linear);
            some(products)?;
            if let Some(sums) = sums {
                let corrections = self.corrections(linear, &sums);
                some(corrections)?;
            }
        }
        Ok(())
    }

    /// Checks the codes of a weight; returns the sums of its rows if they are needed.
    fn codes(&mut self, linear: &QuantizedLinear) -> Result<Option<Vec<i64>>> {
        let Some(weight) = self.whole(linear.part("weight")) else { return Ok(None) };
        let symmetric = !linear.tag.needs_weight_scale() || self.is_zero(linear.part("weight_offset"))?;
        let static_input = linear.tag.has_static_input();
        let mut sums = memory::filled(0i64, if static_input { linear.n } else { 0 })?;
        let (k, mut lowest) = (linear.k as u64, None);
        let read = self.scan(
            weight,
            |l, begin, count| l.codes(begin, count),
            |begin, piece| {
                let mut at = begin;
                let mut piece = piece;
                while !piece.is_empty() {
                    let (row, rest) = piece.split_at(piece.len().min((k - at % k) as usize));
                    if let Some(i) = row.iter().position(|code| *code == i8::MIN) {
                        lowest.get_or_insert(at + i as u64);
                    }
                    if static_input {
                        sums[(at / k) as usize] += row.iter().map(|code| i64::from(*code)).sum::<i64>();
                    }
                    at += row.len() as u64;
                    piece = rest;
                }
            },
        )?;
        if let Some(at) = lowest.filter(|_| symmetric) {
            let text = format_args!(
                "tensor {}: row {}, column {} is -128; symmetric scales give -127 to 127",
                weight.tensor.name,
                at / k,
                at % k
            );
            self.warn(weight, FindingKind::SuspiciousCode, text)?;
        }
        Ok((read && static_input).then_some(sums))
    }

    /// Whether a tensor is missing or all zeros.
    fn is_zero(&mut self, name: Name<'_>) -> Result<bool> {
        let (Some(located), mut zero) = (self.whole(name), true) else { return Ok(true) };
        self.scan(
            located,
            |l, begin, count| l.floats(begin, count),
            |_, piece| zero &= piece.iter().all(|x| *x == 0.0),
        )?;
        Ok(zero)
    }

    /// deq_scale = input_scale * weight_scale, if all three exist.
    fn products(&mut self, linear: &QuantizedLinear) -> Result<()> {
        let (Some(deq), Some(weight), Some(input)) = (
            self.whole(linear.part("deq_scale")),
            self.whole(linear.part("weight_scale")),
            self.whole(linear.part("input_scale")),
        ) else {
            return Ok(());
        };
        let (products, scales) = (unpacked(&deq)?, weight.floats(0, weight.tensor.elements())?);
        if scales.len() != products.len() && scales.len() != 1 && products.len() != 1 {
            return Ok(());
        }
        let input = input.floats(0, 1)?[0];
        for (i, found) in products.iter().enumerate() {
            let expected = input * scales[i.min(scales.len() - 1)];
            if (found - expected).abs() > PRODUCT_TOLERANCE * expected.abs() {
                let name = &deq.tensor.name;
                let text =
                    format_args!("tensor {name}: element {i} is {found}; input_scale times weight_scale is {expected}");
                return self.error(deq, FindingKind::ScaleProductMismatch, text);
            }
        }
        Ok(())
    }

    /// quant_bias = bias / deq_scale - sum of the row's codes * input_offset, if nothing else was added to it.
    fn corrections(&mut self, linear: &QuantizedLinear, sums: &[i64]) -> Result<()> {
        let (Some(quant_bias), Some(deq), Some(offset)) = (
            self.whole(linear.part("quant_bias")),
            self.whole(linear.part("deq_scale")),
            self.whole(linear.part("input_offset")),
        ) else {
            return Ok(());
        };
        if self.norms_add {
            return Ok(());
        }
        let (offset, rows) = (f64::from(offset.floats(0, 1)?[0]), sums.len() as u64);
        let (found, scales) = (quant_bias.i32s(0, rows)?, unpacked(&deq)?);
        let biases = self.whole(linear.part("bias")).map(|bias| bias.floats(0, rows)).transpose()?;
        for (i, (found, sum)) in found.iter().zip(sums).enumerate() {
            let scale = f64::from(scales[i.min(scales.len() - 1)]);
            let bias = biases.as_ref().map_or(0.0, |biases| f64::from(biases[i])) / scale;
            let correction = -(*sum as f64) * offset;
            // Writers compute in f32 and may have rounded bias and scale to 8 bits of mantissa.
            let slack = 1.0 + bias.abs() / 64.0 + correction.abs() / f64::from(1 << 20);
            // A scale of NaN or infinity is reported already.
            if (f64::from(*found) - bias - correction).abs() > slack {
                let (name, expected) = (&quant_bias.tensor.name, bias + correction);
                let text = format_args!(
                    "tensor {name}: element {i} is {found}; about {expected:.0} expected for the bias and the input's offset"
                );
                return self.fault(quant_bias, Severity::Warning, FindingKind::QuantBiasMismatch, text);
            }
        }
        Ok(())
    }
}

/// All elements of deq_scale; unknown forms are NaN.
fn unpacked(deq: &Located<'_>) -> Result<Vec<f32>> {
    let count = deq.tensor.elements();
    if deq.tensor.dtype != FileDtype::I64 {
        return deq.floats(0, count);
    }
    let packed = deq.i64s(0, count)?;
    memory::collect(packed.iter().map(|bits| PackedScale::unpack(*bits).number().unwrap_or(f32::NAN)))
}
