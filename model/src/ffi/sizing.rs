//! Sizing: bytes of the KV cache of a model, from its config.json

use crate::sizing::{CacheElement, H2o, Lossless, ModelConfig, Request, Savings, Setup, SizeReport, Sizer};
use mnnkv::ffi::handle;
use mnnkv::ffi::panic::guard;
use mnnkv::ffi::pointer::{self, Out, Sized32, SizedOut};
use mnnkv::ffi::status::mnnkv_status;
use mnnkv::status::{Result, bail, error};
use mnnkv::sys::memory;
use std::ffi::c_char;

/// 8-bit floating point (E4M3, E5M2). Only mnnkv_sizing_options::element accepts it.
pub const MNNKV_DTYPE_FP8: u32 = 7;
/// 4-bit integers, two in a byte. Only mnnkv_sizing_options::element accepts it.
pub const MNNKV_DTYPE_INT4: u32 = 8;

/// mnnkv_sizing_options::lossless_scope: the first lossless_front_n layers.
pub const MNNKV_SCOPE_FRONT_N: u32 = 1;
/// mnnkv_sizing_options::lossless_scope: the layers with eviction.
pub const MNNKV_SCOPE_H2O_KEPT: u32 = 2;

/// The largest token count of the sizing functions: 2^31 - 1, the longest cache.
pub const MNNKV_SIZING_MAX_TOKENS: u64 = 2147483647;

const _: () = assert!(MNNKV_SIZING_MAX_TOKENS == crate::sizing::MAX_TOKENS);

/// The KV cache of a model as its config.json describes it: a handle from mnnkv_sizing_create. Immutable; any number of
/// threads may use it at once.
///
/// A layer with KV heads keeps 2 * kv_heads * head_dim elements per token (MHA, GQA, MQA). A layer with latent
/// attention (MLA) keeps kv_lora_rank + qk_rope_head_dim. A layer with a window or chunk keeps at most that many
/// tokens. Sizes count tokens; the rounding of allocators is not included.
///
///   mnnkv_sizing* model = NULL;
///   mnnkv_sizing_options options;
///   uint64_t tokens = 0, bytes = 0;
///   mnnkv_sizing_options_default(&options);
///   options.h2o_ratio = 3.5;
///   if (mnnkv_sizing_create(json, json_len, MNNKV_ABI_VERSION, &model) == MNNKV_OK &&
///       mnnkv_sizing_longest(model, &options, 4ull << 30, &tokens, &bytes) == MNNKV_OK) { ... }
///   mnnkv_sizing_destroy(model);
pub struct mnnkv_sizing(ModelConfig);

/// The cache and the expected savings. Start from mnnkv_sizing_options_default; NULL means those defaults. Savings
/// apply in this order: eviction, lossless compression. A zeroed struct is legal and differs from the defaults: from
/// h2o_layer_start on 0 stands for itself, so that h2o_layer_end 0 is layer 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_sizing_options {
    /// sizeof(mnnkv_sizing_options)
    pub struct_size: u32,
    /// Element type of the cache: MNNKV_DTYPE_F16, BF16, F32, INT8, FP8 or INT4; 0 = what the model runs in, or F16
    /// where its config does not say. Scales of quantised types are not counted. The INT4 of a token of a layer are
    /// rounded up to whole bytes.
    pub element: u32,
    /// Tensor-parallel ranks; 0 = 1. KV heads are distributed evenly. With fewer heads than ranks each rank has a copy
    /// of one. Latents (MLA) are complete on every rank.
    pub ranks: u32,
    /// Sequences of the given length; 0 = 1.
    pub batch: u32,
    /// Eviction: one token in h2o_ratio stays, 1 to 1,000,000, as kv_h2o_target_lossy_ratio; 0 =
    /// no eviction.
    pub h2o_ratio: f64,
    /// Lossless compression: raw over compressed bytes of cold tokens, 1 to 1,000,000, as measured on this model and
    /// element type; 0 = none.
    pub lossless_ratio: f64,
    /// First layer with eviction; default 2.
    pub h2o_layer_start: u32,
    /// Last layer with eviction; -1 = the last of the model; default -1. Any other number below
    /// h2o_layer_start is INVALID_ARGUMENT.
    pub h2o_layer_end: i32,
    /// First and last tokens that eviction keeps; default 288. No token is evicted while they fill the ratio by
    /// themselves.
    pub h2o_protected_tokens: u32,
    /// No token is evicted below this length; default 512.
    pub h2o_trigger_tokens: u32,
    /// Layers to compress: MNNKV_SCOPE_FRONT_N, MNNKV_SCOPE_H2O_KEPT, both, or 0 for none; default FRONT_N.
    pub lossless_scope: u32,
    /// Number of first layers to compress; larger values mean all layers; default 2.
    pub lossless_front_n: u32,
    /// First and last tokens of a layer that stay raw; default 272.
    pub lossless_hot_tokens: u32,
    /// Must be 0.
    pub reserved: [u32; 3],
}

// SAFETY: repr(C), begins with a u32, integers and floats only.
unsafe impl Sized32 for mnnkv_sizing_options {
    const MIN: usize = 72;
}
const _: () = assert!(size_of::<mnnkv_sizing_options>() == 72);

impl Default for mnnkv_sizing_options {
    fn default() -> Self {
        let (h2o, lossless) = (H2o::new(1.0), Lossless::new(1.0));
        mnnkv_sizing_options {
            struct_size: size_of::<Self>() as u32,
            element: 0,
            ranks: 0,
            batch: 0,
            h2o_ratio: 0.0,
            lossless_ratio: 0.0,
            h2o_layer_start: h2o.first_layer,
            h2o_layer_end: -1,
            h2o_protected_tokens: h2o.protected_tokens,
            h2o_trigger_tokens: h2o.trigger_tokens,
            lossless_scope: MNNKV_SCOPE_FRONT_N,
            lossless_front_n: lossless.front_layers,
            lossless_hot_tokens: lossless.hot_tokens,
            reserved: [0; 3],
        }
    }
}

impl mnnkv_sizing_options {
    /// The checked options for a model.
    fn check(&self, model: &ModelConfig) -> Result<(Setup, Savings)> {
        pointer::reserved(&self.reserved, "options")?;
        let element = match self.element {
            0 => model.element.unwrap_or(CacheElement::F16),
            code => CacheElement::from_code(code, "options->element")?,
        };
        let setup = Setup { ranks: self.ranks.max(1), batch: self.batch.max(1), ..Setup::new(element) };
        if self.lossless_scope & !(MNNKV_SCOPE_FRONT_N | MNNKV_SCOPE_H2O_KEPT) != 0 {
            let scope = self.lossless_scope;
            bail!(InvalidArgument, "options->lossless_scope is {scope:#x}; FRONT_N (1) and H2O_KEPT (2) are known");
        }
        let last_layer = match self.h2o_layer_end {
            -1 => None,
            end => Some(u32::try_from(end).map_err(|_| {
                error!(InvalidArgument, "options->h2o_layer_end is {end}; -1 for the last layer, or 0 or more expected")
            })?),
        };
        let front = self.lossless_scope & MNNKV_SCOPE_FRONT_N != 0;
        Ok((
            setup,
            Savings {
                h2o: (self.h2o_ratio != 0.0).then_some(H2o {
                    ratio: self.h2o_ratio,
                    first_layer: self.h2o_layer_start,
                    last_layer,
                    protected_tokens: self.h2o_protected_tokens,
                    trigger_tokens: self.h2o_trigger_tokens,
                }),
                lossless: (self.lossless_ratio != 0.0).then_some(Lossless {
                    ratio: self.lossless_ratio,
                    front_layers: if front { self.lossless_front_n } else { 0 },
                    h2o_layers: self.lossless_scope & MNNKV_SCOPE_H2O_KEPT != 0,
                    hot_tokens: self.lossless_hot_tokens,
                }),
            },
        ))
    }
}

/// Bytes of a cache on one rank, all sequences together. Each number includes the savings before it; a disabled saving
/// changes nothing. Set struct_size before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_sizing_total {
    /// sizeof(mnnkv_sizing_total)
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes without savings.
    pub raw: u64,
    /// Bytes after eviction: the maximum over all lengths up to this one, hence monotonic.
    pub after_h2o: u64,
    /// Bytes after eviction and lossless compression: the cache between two steps.
    pub after_lossless: u64,
    /// Maximum bytes within a step: one compressed layer is raw for attention and the next one is decoded, while the
    /// blobs of both are kept. Allocate for this number.
    pub peak: u64,
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_sizing_total {
    const MIN: usize = 40;
}
const _: () = assert!(size_of::<mnnkv_sizing_total>() == 40);

/// # Safety
/// `sizing` is NULL or live.
unsafe fn with(sizing: *const mnnkv_sizing, body: impl FnOnce(&ModelConfig) -> Result<()>) -> mnnkv_status {
    guard(|| {
        // SAFETY: passed on.
        body(unsafe { &pointer::reference(sizing, "sizing")?.0 })
    })
}

/// # Safety
/// `options` is NULL or as in the header.
unsafe fn request(model: &ModelConfig, options: *const mnnkv_sizing_options) -> Result<(Setup, Savings)> {
    // SAFETY: passed on.
    unsafe { pointer::options(options, "options") }?.unwrap_or_default().check(model)
}

/// # Safety
/// `options` is NULL or as in the header.
unsafe fn sizer(model: &ModelConfig, options: *const mnnkv_sizing_options) -> Result<Sizer> {
    // SAFETY: passed on.
    let (setup, savings) = unsafe { request(model, options) }?;
    Sizer::new(&model.layers, setup, &savings)
}

/// Writes the defaults of all fields, struct_size included: one sequence on one rank without savings. NULL is ignored.
/// Any thread.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_sizing_options_default(options: *mut mnnkv_sizing_options) {
    if options.is_null() || !options.is_aligned() {
        return;
    }
    // SAFETY: not NULL and aligned; the caller guarantees the rest.
    unsafe { options.write(mnnkv_sizing_options::default()) };
}

/// Reads a Hugging Face config.json of len bytes, at most 4 MiB, without a terminating zero.
///
/// A multimodal config is read by its language model (text_config, llm_config, language_config, thinker_config).
/// Missing keys take the defaults of the model_type where those are known; the notes of mnnkv_sizing_report_json list
/// every assumption. A
/// config may consist of numbers only: {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
/// "head_dim": 128}; MLA has "kv_lora_rank" and "qk_rope_head_dim" instead. abi_version: MNNKV_ABI_VERSION. out: the
/// handle; mnnkv_sizing_destroy frees it. Any thread.
/// INVALID_ARGUMENT: if config_json is not a JSON object, or a key is missing or has another type or range; the message
///   names the key and its value.
/// UNSUPPORTED: if the size of the attention's cache is not defined in this version, or the ABI differs.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_sizing_create(
    config_json: *const c_char,
    len: usize,
    abi_version: u32,
    out: *mut *mut mnnkv_sizing,
) -> mnnkv_status {
    // SAFETY: the caller guarantees its pointers.
    guard(|| unsafe {
        handle::create(abi_version, out, || {
            let config = pointer::input_bytes(config_json.cast(), len, "config_json")?;
            Ok(mnnkv_sizing(ModelConfig::from_config(config)?))
        })
    })
}

/// Frees the handle. NULL is ignored. No other call on the handle may run.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_sizing_destroy(sizing: *mut mnnkv_sizing) {
    // SAFETY: the caller guarantees a live handle.
    unsafe { handle::destroy(sizing) }
}

/// Writes the bytes of the cache on one rank for the given tokens per sequence. Monotonic in tokens. options: NULL =
/// the defaults. Set total->struct_size first. Any thread.
/// INVALID_ARGUMENT: if tokens exceeds MNNKV_SIZING_MAX_TOKENS, an option is out of range, the ranks do not divide the
///   KV heads, or the bytes exceed 64 bits.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_sizing_bytes(
    sizing: *const mnnkv_sizing,
    options: *const mnnkv_sizing_options,
    tokens: u64,
    total: *mut mnnkv_sizing_total,
) -> mnnkv_status {
    // SAFETY: the caller guarantees its pointers.
    unsafe {
        with(sizing, |model| {
            let sizer = sizer(model, options)?;
            let total = SizedOut::new(total, "total")?;
            let bytes = sizer.bytes(tokens)?;
            total.set(&mnnkv_sizing_total {
                struct_size: size_of::<mnnkv_sizing_total>() as u32,
                reserved: 0,
                raw: bytes.raw,
                after_h2o: bytes.after_h2o,
                after_lossless: bytes.after_lossless,
                peak: bytes.peak,
            });
            Ok(())
        })
    }
}

/// Writes the longest context whose cache takes at most budget bytes on each rank at the peak of a step, with savings.
///
/// tokens: the largest length that fits; MNNKV_SIZING_MAX_TOKENS if every length fits; 0 if no token fits. bytes: the
/// peak at that length. Any thread.
/// INVALID_ARGUMENT: if mnnkv_sizing_bytes returns it for these options.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_sizing_longest(
    sizing: *const mnnkv_sizing,
    options: *const mnnkv_sizing_options,
    budget: u64,
    tokens: *mut u64,
    bytes: *mut u64,
) -> mnnkv_status {
    // SAFETY: the caller guarantees its pointers.
    unsafe {
        with(sizing, |model| {
            let sizer = sizer(model, options)?;
            let (tokens, bytes) = (Out::new(tokens, "tokens")?, Out::new(bytes, "bytes")?);
            let longest = sizer.longest(budget);
            tokens.set(longest.tokens);
            bytes.set(longest.bytes);
            Ok(())
        })
    }
}

/// Writes everything as one JSON object: the model and its layers by kind, bytes per token, totals at each of n
/// contexts (at most 1,024) on one rank and on all, and the longest context within budget bytes without
/// and with savings. budget 0 omits the longest context. Names are those of mnnkv_sizing_total, and these:
///
///   model_type, max_context   of the config, where it states them
///   groups                    the layers by kind ("full", "sliding", "chunked", "shared", "recurrent"): numbers has theirs,
///                             most_tokens what one keeps, layer_bytes_per_token the bytes of a token in one of them
///   bytes_per_token           bytes of one more token without savings; bytes_per_late_token, once all windows are full
///   rank, all_ranks           of a total: the bytes on one rank, and on all ranks together
///   longest_without_savings   as longest, without savings; bounded is false where every length fits
///   notes                     assumptions about the model, and the parts of the cache that no number includes: sentences
///
/// contexts: n lengths in tokens; NULL with n 0. text: room for cap bytes. len: length of the text with its terminating
/// zero. Any thread.
/// INVALID_ARGUMENT: if n exceeds 1,024, mnnkv_sizing_bytes returns it, or the bytes of all ranks exceed 64 bits.
/// BUFFER_TOO_SMALL: if cap is below the length; *len is the length.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_sizing_report_json(
    sizing: *const mnnkv_sizing,
    options: *const mnnkv_sizing_options,
    contexts: *const u64,
    n: usize,
    budget: u64,
    text: *mut c_char,
    cap: usize,
    len: *mut usize,
) -> mnnkv_status {
    // SAFETY: the caller guarantees its pointers.
    unsafe {
        with(sizing, |model| {
            let (setup, savings) = request(model, options)?;
            let bytes = n.saturating_mul(size_of::<u64>());
            pointer::disjoint((contexts.cast(), bytes, "contexts"), (text.cast_const().cast(), cap, "text"))?;
            let contexts = pointer::input(contexts, n, "contexts")?;
            let (out, len) = (pointer::output(text.cast::<u8>(), cap, "text")?, Out::new(len, "len")?);
            if contexts.len() > crate::sizing::MAX_CONTEXTS {
                bail!(InvalidArgument, "n is {n}; {} contexts or fewer expected", crate::sizing::MAX_CONTEXTS);
            }
            let budget = (budget > 0).then_some(budget);
            let request = Request { setup, savings, contexts: memory::copied(contexts)?, budget };
            pointer::put_text(&SizeReport::new(model, &request)?.json()?, out, &len)
        })
    }
}
