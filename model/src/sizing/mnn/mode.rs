//! MNN's `attention_mode`: the types of K and V.

use mnnkv::dtype::Dtype;
use mnnkv::layout::Kind;
use mnnkv::status::{Result, bail};
use std::fmt::Display;

/// A mode that MNN runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionMode(u32);

impl AttentionMode {
    /// MNN's own choice.
    pub const DEFAULT: AttentionMode = AttentionMode(8);
    /// The mode that MNN takes for INT8 without mnn-kv if a chat is continued.
    pub const INT8_KEY: AttentionMode = AttentionMode(9);
    /// INT8 K and V.
    pub const INT8: AttentionMode = AttentionMode(10);
    /// Modes and their types, for error texts.
    pub const KNOWN: &str = "0, 7, 8 or 15 (float), 1, 2 or 9 (K int8), 10 (K and V int8), 3 or 11 (K TQ3), 12 (K and V \
                             TQ3), 5 or 13 (K TQ4) or 14 (K and V TQ4)";

    /// The mode with this number. `what` names it in the error.
    ///
    /// INVALID_ARGUMENT: if MNN has no such mode. UNSUPPORTED: for 4 and 6, with which MNN writes past its buffers.
    pub fn new(number: u64, what: &str) -> Result<AttentionMode> {
        match number {
            4 | 6 => bail!(
                Unsupported,
                "{what} is {number}: MNN overruns its buffer of softmax weights without flash attention; {} expected",
                number + 8
            ),
            0..=15 => Ok(AttentionMode(number as u32)),
            _ => bail!(InvalidArgument, "{what} is {number}; {} expected", AttentionMode::KNOWN),
        }
    }

    /// Its number.
    pub fn number(self) -> u32 {
        self.0
    }

    /// UNSUPPORTED: if MNN has no such mode for models of this type. `path` names the type's key in the error.
    pub fn check_model_type(self, model_type: Option<&str>, path: impl Display) -> Result<()> {
        if model_type == Some("gpt_oss") && self.is_quantised() {
            let mode = self.0;
            bail!(
                Unsupported,
                "{path} is \"gpt_oss\" and attention_mode {mode}; MNN's attention with sinks stays float"
            );
        }
        Ok(())
    }

    /// Whether attention is computed in blocks of 64 tokens.
    pub(super) fn is_flash(self) -> bool {
        self.0 >= 8
    }

    /// Whether K or V is not float.
    fn is_quantised(self) -> bool {
        !matches!(self.0 % 8, 0 | 7)
    }

    /// The types of K and V where floats are `float`.
    pub(super) fn kinds(self, float: Dtype) -> [Kind; 2] {
        let float = Kind::Float(float);
        match self.0 % 8 {
            1 => [Kind::Int8, float],
            2 if self.is_flash() => [Kind::Int8, Kind::Int8],
            2 => [Kind::Int8, float],
            3 => [Kind::Tq3, float],
            4 => [Kind::Tq3, Kind::Tq3],
            5 => [Kind::Tq4, float],
            6 => [Kind::Tq4, Kind::Tq4],
            _ => [float, float],
        }
    }
}
