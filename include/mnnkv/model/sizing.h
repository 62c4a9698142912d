// mnnkv/model/sizing.h: bytes of the KV cache of a model, from its config.json.
//
// Generated from model/src/ffi by `make header`; do not edit. mnnkv/session.h has the conventions.

#ifndef MNNKV_MODEL_SIZING_H
#define MNNKV_MODEL_SIZING_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Sizing: bytes of the KV cache of a model, from its config.json ----------------------------------------------------------

/// 8-bit floating point (E4M3, E5M2). Only mnnkv_sizing_options::element accepts it.
#define MNNKV_DTYPE_FP8 7
/// 4-bit integers, two in a byte. Only mnnkv_sizing_options::element accepts it.
#define MNNKV_DTYPE_INT4 8
/// mnnkv_sizing_options::lossless_scope: the first lossless_front_n layers.
#define MNNKV_SCOPE_FRONT_N 1
/// mnnkv_sizing_options::lossless_scope: the layers with eviction.
#define MNNKV_SCOPE_H2O_KEPT 2
/// The largest token count of the sizing functions: 2^31 - 1, the longest cache.
#define MNNKV_SIZING_MAX_TOKENS 2147483647

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
typedef struct mnnkv_sizing mnnkv_sizing;

/// The cache and the expected savings. Start from mnnkv_sizing_options_default; NULL means those defaults. Savings
/// apply in this order: eviction, lossless compression. A zeroed struct is legal and differs from the defaults: from
/// h2o_layer_start on 0 stands for itself, so that h2o_layer_end 0 is layer 0.
typedef struct mnnkv_sizing_options {
    uint32_t struct_size;          ///< sizeof(mnnkv_sizing_options)
    /// Element type of the cache: MNNKV_DTYPE_F16, BF16, F32, INT8, FP8 or INT4; 0 = what the model runs in, or F16
    /// where its config does not say. Scales of quantised types are not counted. The INT4 of a token of a layer are
    /// rounded up to whole bytes.
    uint32_t element;
    /// Tensor-parallel ranks; 0 = 1. KV heads are distributed evenly. With fewer heads than ranks each rank has a copy
    /// of one. Latents (MLA) are complete on every rank.
    uint32_t ranks;
    uint32_t batch;                ///< Sequences of the given length; 0 = 1.
    /// Eviction: one token in h2o_ratio stays, 1 to 1,000,000, as kv_h2o_target_lossy_ratio; 0 =
    /// no eviction.
    double h2o_ratio;
    /// Lossless compression: raw over compressed bytes of cold tokens, 1 to 1,000,000, as measured on this model and
    /// element type; 0 = none.
    double lossless_ratio;
    uint32_t h2o_layer_start;      ///< First layer with eviction; default 2.
    /// Last layer with eviction; -1 = the last of the model; default -1. Any other number below
    /// h2o_layer_start is INVALID_ARGUMENT.
    int32_t h2o_layer_end;
    /// First and last tokens that eviction keeps; default 288. No token is evicted while they fill the ratio by
    /// themselves.
    uint32_t h2o_protected_tokens;
    uint32_t h2o_trigger_tokens;   ///< No token is evicted below this length; default 512.
    /// Layers to compress: MNNKV_SCOPE_FRONT_N, MNNKV_SCOPE_H2O_KEPT, both, or 0 for none; default FRONT_N.
    uint32_t lossless_scope;
    uint32_t lossless_front_n;     ///< Number of first layers to compress; larger values mean all layers; default 2.
    uint32_t lossless_hot_tokens;  ///< First and last tokens of a layer that stay raw; default 272.
    uint32_t reserved[3];          ///< Must be 0.
} mnnkv_sizing_options;

/// Bytes of a cache on one rank, all sequences together. Each number includes the savings before it; a disabled saving
/// changes nothing. Set struct_size before the call.
typedef struct mnnkv_sizing_total {
    uint32_t struct_size;     ///< sizeof(mnnkv_sizing_total)
    uint32_t reserved;        ///< 0.
    uint64_t raw;             ///< Bytes without savings.
    uint64_t after_h2o;       ///< Bytes after eviction: the maximum over all lengths up to this one, hence monotonic.
    uint64_t after_lossless;  ///< Bytes after eviction and lossless compression: the cache between two steps.
    /// Maximum bytes within a step: one compressed layer is raw for attention and the next one is decoded, while the
    /// blobs of both are kept. Allocate for this number.
    uint64_t peak;
} mnnkv_sizing_total;

/// Writes the defaults of all fields, struct_size included: one sequence on one rank without savings. NULL is ignored.
/// Any thread.
void mnnkv_sizing_options_default(mnnkv_sizing_options *options);

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
mnnkv_status mnnkv_sizing_create(const char *config_json, size_t len, uint32_t abi_version, mnnkv_sizing **out);

/// Frees the handle. NULL is ignored. No other call on the handle may run.
void mnnkv_sizing_destroy(mnnkv_sizing *sizing);

/// Writes the bytes of the cache on one rank for the given tokens per sequence. Monotonic in tokens. options: NULL =
/// the defaults. Set total->struct_size first. Any thread.
/// INVALID_ARGUMENT: if tokens exceeds MNNKV_SIZING_MAX_TOKENS, an option is out of range, the ranks do not divide the
///   KV heads, or the bytes exceed 64 bits.
mnnkv_status mnnkv_sizing_bytes(const mnnkv_sizing *sizing, const mnnkv_sizing_options *options, uint64_t tokens,
                                mnnkv_sizing_total *total);

/// Writes the longest context whose cache takes at most budget bytes on each rank at the peak of a step, with savings.
///
/// tokens: the largest length that fits; MNNKV_SIZING_MAX_TOKENS if every length fits; 0 if no token fits. bytes: the
/// peak at that length. Any thread.
/// INVALID_ARGUMENT: if mnnkv_sizing_bytes returns it for these options.
mnnkv_status mnnkv_sizing_longest(const mnnkv_sizing *sizing, const mnnkv_sizing_options *options, uint64_t budget,
                                  uint64_t *tokens, uint64_t *bytes);

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
mnnkv_status mnnkv_sizing_report_json(const mnnkv_sizing *sizing, const mnnkv_sizing_options *options, const uint64_t *contexts,
                                      size_t n, uint64_t budget, char *text, size_t cap, size_t *len);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_MODEL_SIZING_H
