//! Findings of a check.

use mnnkv::json::Escaped;
use mnnkv::status::{Error, Result, Status};
use mnnkv::sys::memory;
use std::fmt;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The part is unusable, or its numbers are wrong.
    Error,
    /// Usable here; other readers may refuse it or read it differently.
    Warning,
}

impl Severity {
    /// The word in reports.
    pub const fn word(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        }
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident $word:literal $status:ident,)+) => {
        /// Kinds of findings. The words are stable.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum FindingKind {
            $($(#[$doc])* $variant,)+
        }

        impl FindingKind {
            /// Every kind.
            pub const ALL: &[FindingKind] = &[$(FindingKind::$variant,)+];

            /// The word in reports.
            pub const fn word(self) -> &'static str {
                match self {
                    $(FindingKind::$variant => $word,)+
                }
            }

            /// The status of a call that fails because of such a finding.
            pub const fn status(self) -> Status {
                match self {
                    $(FindingKind::$variant => Status::$status,)+
                }
            }
        }
    };
}

kinds! {
    /// A file or folder that cannot be read.
    Unreadable "unreadable" Io,
    /// No description.
    MissingDescription "missing_description" NotFound,
    /// Several files could be the description or the index.
    Ambiguous "ambiguous_files" InvalidArgument,
    /// No file with weights.
    MissingWeights "missing_weights" NotFound,
    /// A file name that leads out of the folder.
    HostilePath "hostile_path" Corrupt,
    /// A malformed JSON document.
    JsonSyntax "json_syntax" Corrupt,
    /// JSON of an unexpected shape.
    JsonShape "json_shape" Corrupt,
    /// An equivalent value of another type.
    LenientType "lenient_type" Corrupt,
    /// A repeated key in a document.
    DuplicateKey "duplicate_key" Corrupt,
    /// A missing key.
    MissingKey "missing_key" Corrupt,
    /// An unknown key.
    UnknownKey "unknown_key" Corrupt,
    /// An unknown version.
    UnknownVersion "unknown_version" Unsupported,
    /// A file shorter than it announces.
    SafetensorsTruncated "safetensors_truncated" Corrupt,
    /// A header that violates the format.
    SafetensorsHeader "safetensors_header" Corrupt,
    /// A tensor name that begins with a dot or has a zero byte.
    TensorName "tensor_name" Corrupt,
    /// A repeated tensor.
    DuplicateTensor "duplicate_tensor" Corrupt,
    /// Parts without an index, or an index that contradicts the files.
    IndexIncomplete "index_incomplete" Corrupt,
    /// A missing part of the index.
    MissingShard "missing_shard" NotFound,
    /// A description entry without a tensor.
    MissingTensor "missing_tensor" Corrupt,
    /// A tensor without a description entry.
    UndescribedTensor "undescribed_tensor" Corrupt,
    /// An unknown tag.
    UnknownQuantType "unknown_quant_type" Unsupported,
    /// A tag that this library does not support.
    UnsupportedQuantType "unsupported_quant_type" Unsupported,
    /// Different tags within one linear, or among linears that runtimes merge.
    InconsistentTags "inconsistent_tags" Corrupt,
    /// A linear without one of its tensors.
    IncompleteLayer "incomplete_layer" Corrupt,
    /// An illegal element type for the place of a tensor.
    DtypeMismatch "dtype_mismatch" Corrupt,
    /// An illegal shape for the place of a tensor.
    ShapeMismatch "shape_mismatch" Corrupt,
    /// A group_size that contradicts the tensors.
    GroupSizeMismatch "group_size_mismatch" Corrupt,
    /// A scale that is zero, negative, infinite or NaN; a KV scale below 2^-100.
    BadScaleValue "bad_scale_value" Corrupt,
    /// An offset outside -128 .. 127, or other than 0 where the type has none.
    OffsetOutOfRange "offset_out_of_range" Corrupt,
    /// An offset that is not an integer.
    NonIntegralOffset "non_integral_offset" Corrupt,
    /// A deq_scale with bits above the 32 of its number.
    PackedScaleHighBits "packed_scale_high_bits" Corrupt,
    /// A deq_scale in the form of the NPU's own converter.
    PackedScaleNpuForm "packed_scale_npu_form" Corrupt,
    /// deq_scale is not input_scale times weight_scale.
    ScaleProductMismatch "scale_product_mismatch" Corrupt,
    /// A quant_bias that lacks the correction for the input's offset.
    QuantBiasMismatch "quant_bias_mismatch" Corrupt,
    /// A code of -128 where scales are symmetric.
    SuspiciousCode "suspicious_code" Corrupt,
    /// Different input scales among linears that runtimes merge.
    FusionMismatch "fusion_mismatch" Corrupt,
    /// KV scales or offsets without their counterpart.
    KvIncomplete "kv_incomplete" Corrupt,
    /// A KV tensor under a name of some documents or tools.
    KvAlias "kv_alias" Corrupt,
    /// KV tensors without kv_cache_type.
    KvUndeclared "kv_undeclared" Corrupt,
    /// A KV offset that is not 0.
    KvOffsetNonzero "kv_offset_nonzero" Corrupt,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Severity.
    pub severity: Severity,
    /// Kind.
    pub kind: FindingKind,
    /// The tensor or key, or empty.
    pub tensor: String,
    /// The file's name within the folder, or empty.
    pub file: String,
    /// The found and the expected content.
    pub text: String,
    /// The status of a call that fails because of it.
    pub status: Status,
}

impl Finding {
    /// The error of a call that needs the subject of this finding.
    pub fn error(&self) -> Error {
        Error::formatted(self.status, format_args!("{self}"))
    }

    /// As [`Finding::error`], for storage.
    pub(super) fn kept_error(&self) -> Result<Error> {
        Error::kept(self.status, format_args!("{self}"))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.file.as_str() {
            "" => f.write_str(&self.text),
            file => write!(f, "{file}: {}", self.text),
        }
    }
}

/// A list of findings.
#[derive(Debug, Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    /// Adds a finding about a tensor or key and a file, both of which may be empty.
    pub(super) fn add(
        &mut self,
        severity: Severity,
        kind: FindingKind,
        tensor: impl fmt::Display,
        file: &str,
        text: fmt::Arguments<'_>,
    ) -> Result<&mut Finding> {
        let (tensor, file) = (memory::format(format_args!("{tensor}"))?, memory::text(file)?);
        let finding = Finding { severity, kind, tensor, file, text: memory::format(text)?, status: kind.status() };
        memory::push(&mut self.0, finding)?;
        Ok(self.0.last_mut().expect("just pushed"))
    }

    pub(super) fn error(
        &mut self,
        kind: FindingKind,
        tensor: impl fmt::Display,
        file: &str,
        text: fmt::Arguments<'_>,
    ) -> Result<&mut Finding> {
        self.add(Severity::Error, kind, tensor, file, text)
    }

    pub(super) fn warn(
        &mut self,
        kind: FindingKind,
        tensor: impl fmt::Display,
        file: &str,
        text: fmt::Arguments<'_>,
    ) -> Result<()> {
        self.add(Severity::Warning, kind, tensor, file, text).map(drop)
    }

    /// Adds a read failure; OUT_OF_MEMORY is returned instead.
    pub(super) fn unreadable(&mut self, tensor: &str, file: &str, error: Error) -> Result<()> {
        let error = error.unless_out_of_memory()?;
        self.error(FindingKind::Unreadable, tensor, file, format_args!("{}", error.message()))?.status = error.status();
        Ok(())
    }
}

/// All findings of a check, in the order of the check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// The findings.
    pub findings: Vec<Finding>,
}

impl CheckReport {
    /// Findings of one severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }

    /// {"errors": 1, "warnings": 0, "findings": [{"severity", "kind", "tensor", "file", "text"}, ...]}
    pub fn json(&self) -> Result<String> {
        let mut text = String::new();
        let (errors, warnings) = (self.count(Severity::Error), self.count(Severity::Warning));
        memory::append(&mut text, format_args!("{{\"errors\":{errors},\"warnings\":{warnings},\"findings\":["))?;
        for (number, Finding { severity, kind, tensor, file, text: found, .. }) in self.findings.iter().enumerate() {
            let (mark, severity, kind) = (if number > 0 { "," } else { "" }, severity.word(), kind.word());
            let (tensor, file, found) = (Escaped(tensor), Escaped(file), Escaped(found));
            let place = format_args!("\"tensor\":{tensor},\"file\":{file},\"text\":{found}");
            memory::append(
                &mut text,
                format_args!("{mark}{{\"severity\":\"{severity}\",\"kind\":\"{kind}\",{place}}}"),
            )?;
        }
        memory::append(&mut text, format_args!("]}}"))?;
        Ok(text)
    }
}
