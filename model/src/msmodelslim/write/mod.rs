//! Writes directories of the newer generation.

mod output;
mod plan;

use super::quantize::quantize_rows;
use super::tags::Tag;
use crate::c8::LEAST_SCALE;
use crate::safetensors::FileDtype;
use mnnkv::status::{Error, Result, Status, bail};
use mnnkv::sys::{files, memory};
use output::{Folder, Output};
use plan::{Contents, WritePlan};
use std::path::{Path, PathBuf};

/// Options of a new directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOptions {
    /// Bytes of tensors after which a part ends; 0 = one file without an index.
    pub part_bytes: u64,
    /// Columns per scale; 0 = one scale per row.
    pub group_size: usize,
    /// Whether offsets are zero, which all runtimes read alike.
    pub symmetric: bool,
}

impl Default for WriteOptions {
    /// One file, a scale per row, offsets of zero.
    fn default() -> Self {
        WriteOptions { part_bytes: 0, group_size: 0, symmetric: true }
    }
}

/// Writes a directory of W8A16 linears, copied tensors, and KV scales (C8).
///
/// Declarations come first, with shapes: [`Writer::tensor`], [`Writer::linear`], [`Writer::kv`]. Contents follow in the
/// same order, in pieces of any number of bytes or rows: [`Writer::append`], [`Writer::append_rows`],
/// [`Writer::append_kv`]. [`Writer::finish`] completes the directory: the description is written last and marks a
/// complete directory. Dropping an unfinished writer removes its files.
///
/// Files are `quant_model_weights.safetensors` or its parts and index, and `quant_model_description.json`. Data is
/// contiguous in the order of declaration. An int8 weight whose size is no multiple of 4 leaves later tensors
/// unaligned, which some readers refuse: declare it last. Allocates the scales of one linear, and the codes of the
/// appended rows.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    options: WriteOptions,
    plan: WritePlan,
    /// The next step.
    step: usize,
    /// Bytes or rows of that step so far.
    done: u64,
    /// Scales and offsets of the current linear so far.
    scales: Vec<f32>,
    offsets: Vec<f32>,
    output: Option<Output>,
    failed: bool,
}

impl Writer {
    /// Prepares a directory at `path`, which is taken from the root on. An existing one must have no weights or
    /// description. Nothing is written before the first contents.
    pub fn new(path: &Path, options: WriteOptions) -> Result<Writer> {
        Folder::check(path)?;
        Ok(Writer {
            path: files::absolute(path)?,
            options,
            plan: WritePlan::default(),
            step: 0,
            done: 0,
            scales: Vec::new(),
            offsets: Vec::new(),
            output: None,
            failed: false,
        })
    }

    fn declare(&self) -> Result<()> {
        if self.output.is_some() {
            bail!(InvalidArgument, "contents have begun; declarations must come first");
        }
        Ok(())
    }

    /// Declares a tensor that is copied unchanged, with the tag of its layer.
    pub fn tensor(&mut self, name: &str, tag: Tag, dtype: FileDtype, shape: &[u64]) -> Result<()> {
        self.declare()?;
        self.plan.tensor(name, tag, dtype, shape)
    }

    /// Declares the weight of a linear, `n` rows by `k` columns, which comes as numbers and is quantised to W8A16.
    pub fn linear(&mut self, name: &str, n: usize, k: usize) -> Result<()> {
        self.declare()?;
        self.plan.linear(name, n, k, self.options.group_size)
    }

    /// Declares the KV scales of a layer. `prefix` is the name of its attention module.
    pub fn kv(&mut self, prefix: &str, channels: usize) -> Result<()> {
        self.declare()?;
        self.plan.kv(prefix, channels)
    }

    /// The contents of the next step, if it has this name.
    fn due(&mut self, name: &str, what: &str) -> Result<Contents> {
        if self.failed {
            bail!(InvalidArgument, "writing failed or finished before; nothing more can be written");
        }
        self.skip_empty(Some(name));
        let Some(step) = self.plan.steps.get(self.step) else {
            bail!(InvalidArgument, "{name}: all declared contents are complete");
        };
        if step.name != name || step.contents.what() != what {
            bail!(InvalidArgument, "{name} given as {what}; {} as {} is next", step.name, step.contents.what());
        }
        Ok(step.contents)
    }

    /// Skips tensors without elements, which have no contents; `name` is that of the call.
    fn skip_empty(&mut self, name: Option<&str>) {
        while let Some(step) = self.plan.steps.get(self.step)
            && matches!(step.contents, Contents::Tensor { bytes: 0 })
            && name != Some(&step.name)
        {
            self.advance();
        }
    }

    /// Writes; the first call creates the files.
    ///
    /// The first call allocates all memory and checks the directory: OUT_OF_MEMORY and INVALID_ARGUMENT change nothing. Any
    /// other failure ends the writer.
    fn put(&mut self, contents: &[&[u8]]) -> Result<()> {
        let result = self.try_put(contents);
        if let Err(e) = &result {
            self.failed = self.output.is_some() || !matches!(e.status(), Status::OutOfMemory | Status::InvalidArgument);
        }
        result
    }

    fn try_put(&mut self, contents: &[&[u8]]) -> Result<()> {
        let output = match &mut self.output {
            Some(output) => output,
            none => none.insert(Output::create(&self.path, &self.plan, self.options.part_bytes)?),
        };
        contents.iter().try_for_each(|bytes| output.write(&self.plan, bytes))
    }

    fn advance(&mut self) {
        self.step += 1;
        self.done = 0;
    }

    /// Appends bytes, little-endian, to a declared tensor.
    pub fn append(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let Contents::Tensor { bytes: total } = self.due(name, "bytes")? else { unreachable!("due compares") };
        let left = total - self.done;
        if bytes.len() as u64 > left {
            bail!(InvalidArgument, "{name}: {} bytes given, {left} of {total} are left", bytes.len());
        }
        self.put(&[bytes])?;
        self.done += bytes.len() as u64;
        if self.done == total {
            self.advance();
        }
        Ok(())
    }

    /// Appends rows to a declared linear. INVALID_ARGUMENT: if the numbers are no whole rows, exceed the rest, or are
    /// not finite; nothing is written then.
    pub fn append_rows(&mut self, name: &str, weights: &[f32]) -> Result<()> {
        let Contents::Linear { n, k, group } = self.due(name, "rows")? else { unreachable!("due compares") };
        let (rows, left) = (weights.len() / k, n - self.done as usize);
        if !weights.len().is_multiple_of(k) || rows > left {
            bail!(
                InvalidArgument,
                "{name}: {} numbers given; whole rows of {k}, at most {left}, expected",
                weights.len()
            );
        }
        if let Some(at) = weights.iter().position(|w| !w.is_finite()) {
            let (row, column) = (self.done as usize + at / k, at % k);
            bail!(InvalidArgument, "{name}: row {row}, column {column} is {}; a finite number expected", weights[at]);
        }
        let groups = k / group;
        // Truncated to the written length: a failed call may have left more.
        let of_rows = self.done as usize * groups..(self.done as usize + rows) * groups;
        let end = of_rows.end;
        memory::resize(&mut self.scales, end)?;
        memory::resize(&mut self.offsets, end)?;
        let (mut codes, mut bytes) = (memory::filled(0, weights.len())?, memory::filled(0, weights.len())?);
        let (scales, offsets) = (&mut self.scales[of_rows.clone()], &mut self.offsets[of_rows]);
        quantize_rows(weights, k, self.options.symmetric, &mut codes, scales, offsets).map_err(|e| e.within(name))?;
        bytes.iter_mut().zip(&codes).for_each(|(byte, code)| *byte = *code as u8);
        let done = self.done + rows as u64;
        if done as usize == n {
            let (scales, offsets) = (little_endian(&self.scales)?, little_endian(&self.offsets)?);
            self.put(&[&bytes, &scales, &offsets])?;
            self.scales.clear();
            self.offsets.clear();
            self.advance();
        } else {
            self.put(&[&bytes])?;
            self.done = done;
        }
        Ok(())
    }

    /// Appends the KV scales of a declared layer: numbers from 2^-100 on, one per channel, and offsets, integers from -128 to
    /// 127; `None` = zeros.
    pub fn append_kv(
        &mut self,
        prefix: &str,
        key: (&[f32], Option<&[f32]>),
        value: (&[f32], Option<&[f32]>),
    ) -> Result<()> {
        let Contents::Kv { channels } = self.due(prefix, "KV scales")? else { unreachable!("due compares") };
        for (what, (scales, offsets)) in [("key", key), ("value", value)] {
            let offsets = offsets.unwrap_or(&[]);
            for (kind, given) in [("scales", scales.len()), ("offsets", offsets.len())] {
                if given != channels && (kind == "scales" || given > 0) {
                    bail!(InvalidArgument, "{prefix}: {given} {what} {kind} given; {channels} expected");
                }
            }
            if let Some(at) = scales.iter().position(|scale| !(LEAST_SCALE..=f32::MAX).contains(scale)) {
                let scale = scales[at];
                bail!(
                    InvalidArgument,
                    "{prefix}: {what} scale {at} is {scale:e}; a finite number of at least 2^-100 expected"
                );
            }
            let code = |offset: &f32| (-128.0..=127.0).contains(offset) && offset.fract() == 0.0;
            if let Some(at) = offsets.iter().position(|offset| !code(offset)) {
                let offset = offsets[at];
                bail!(
                    InvalidArgument,
                    "{prefix}: {what} offset {at} is {offset}; an integer from -128 to 127 expected"
                );
            }
        }
        let zeros = memory::filled(0.0, channels)?;
        let bytes = |(scales, offsets): (&[f32], Option<&[f32]>)| {
            Ok([
                little_endian(scales)?,
                little_endian(offsets.filter(|offsets| !offsets.is_empty()).unwrap_or(&zeros))?,
            ])
        };
        let ([key, key_offset], [value, value_offset]) = (bytes(key)?, bytes(value)?);
        self.put(&[&key, &key_offset, &value, &value_offset])?;
        self.advance();
        Ok(())
    }

    /// Completes the directory. INVALID_ARGUMENT: if contents are missing, or nothing was declared. OUT_OF_MEMORY
    /// changes nothing, and the call may be repeated. Any other failure removes the files.
    pub fn finish(&mut self) -> Result<()> {
        let result = self.try_finish();
        if !matches!(&result, Err(e) if e.status() == Status::OutOfMemory) {
            self.failed = true;
            self.output = None;
        }
        result
    }

    fn try_finish(&mut self) -> Result<()> {
        if self.failed {
            bail!(InvalidArgument, "writing failed or finished before; nothing more can be written");
        }
        self.skip_empty(None);
        if let Some(step) = self.plan.steps.get(self.step) {
            bail!(InvalidArgument, "{} is incomplete: {} received", step.name, self.done);
        }
        if self.plan.steps.is_empty() {
            bail!(InvalidArgument, "nothing was declared");
        }
        self.put(&[])?;
        let description = self.plan.description(self.options.group_size)?;
        let index = self.output.as_ref().map(|output| output.index(&self.plan)).transpose()?;
        match (self.output.take(), index) {
            (Some(output), Some(index)) => output.finish(&self.plan, &index, &description),
            _ => Err(Error::new(Status::Internal, "no output after writing")),
        }
    }
}

fn little_endian(floats: &[f32]) -> Result<Vec<u8>> {
    let mut bytes = memory::filled(0, size_of_val(floats))?;
    bytes.as_chunks_mut::<4>().0.iter_mut().zip(floats).for_each(|(to, x)| *to = x.to_le_bytes());
    Ok(bytes)
}
