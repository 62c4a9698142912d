// mnnkv/model.h: files that come with a model; absent from a library built with MNNKV_MODEL=OFF.
//
// Generated from model/src/ffi by `make header`; do not edit. mnnkv.h has the conventions.

#ifndef MNNKV_MODEL_H
#define MNNKV_MODEL_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Sizing: bytes of the KV cache of a model, from its config.json ---------------------------------------------

/// 8-bit floating point (E4M3, E5M2). Only mnnkv_sizing_options::element accepts it.
#define MNNKV_DTYPE_FP8 7
/// 4-bit integers, two in a byte. Only mnnkv_sizing_options::element accepts it.
#define MNNKV_DTYPE_INT4 8
/// mnnkv_sizing_layer_info::kind: the layer keeps every token.
#define MNNKV_LAYER_FULL 1
/// mnnkv_sizing_layer_info::kind: sliding window; the layer keeps the last most_tokens tokens.
#define MNNKV_LAYER_SLIDING 2
/// mnnkv_sizing_layer_info::kind: chunked attention; the layer keeps the tokens of one chunk of most_tokens.
#define MNNKV_LAYER_CHUNKED 3
/// mnnkv_sizing_layer_info::kind: the layer reads the cache of an earlier layer and has none of its own.
#define MNNKV_LAYER_SHARED 4
/// mnnkv_sizing_layer_info::kind: the layer has a state of fixed size and no cache (linear attention, state space,
/// convolution).
#define MNNKV_LAYER_RECURRENT 5
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
/// apply in this order: eviction, int8, lossless compression.
typedef struct mnnkv_sizing_options {
    /// sizeof(mnnkv_sizing_options)
    uint32_t struct_size;
    /// Element type of the cache: MNNKV_DTYPE_F16, BF16, F32, INT8, FP8 or INT4; 0 = what the model runs in, or F16
    /// where its config does not say. Scales of quantised types are not counted.
    uint32_t element;
    /// Tensor-parallel ranks; 0 = 1. KV heads are distributed evenly. With fewer heads than ranks each rank has a copy
    /// of one. Latents (MLA) are complete on every rank.
    uint32_t ranks;
    /// Sequences of the given length; 0 = 1.
    uint32_t batch;
    /// Eviction: one token in h2o_ratio stays, 1 to 1,000,000, as kv_h2o_target_lossy_ratio with basis "logical"; 0 =
    /// no eviction.
    double h2o_ratio;
    /// Lossless compression: raw over compressed bytes of cold tokens, 1 to 1,000,000, as measured on this model and
    /// element type; 0 = none.
    double lossless_ratio;
    /// First layer with eviction; default 2.
    uint32_t h2o_layer_start;
    /// Last layer with eviction; -1 = the last of the model; default -1.
    int32_t h2o_layer_end;
    /// First and last tokens that eviction keeps; default 288. No token is evicted while they fill the ratio by
    /// themselves.
    uint32_t h2o_protected_tokens;
    /// No token is evicted below this length; default 512.
    uint32_t h2o_trigger_tokens;
    /// 1: K and V are C8, int8 with a scale and an offset per channel. 0: they are not.
    uint32_t c8;
    /// Layers to compress: MNNKV_SCOPE_FRONT_N, MNNKV_SCOPE_H2O_KEPT, both, or 0 for none; default FRONT_N.
    uint32_t lossless_scope;
    /// Number of first layers to compress; larger values mean all layers; default 2.
    uint32_t lossless_front_n;
    /// First and last tokens of a layer that stay raw; default 272.
    uint32_t lossless_hot_tokens;
    /// Must be 0.
    uint32_t reserved[4];
} mnnkv_sizing_options;

/// A model. Set struct_size before the call.
typedef struct mnnkv_sizing_info {
    /// sizeof(mnnkv_sizing_info)
    uint32_t struct_size;
    /// Decoder layers, with or without a cache.
    uint32_t layers;
    /// Layers with a cache of their own.
    uint32_t cache_layers;
    /// Element type that the model runs in (MNNKV_DTYPE_*); 0 = the config names none that is known.
    uint32_t element;
    /// Longest context of the model in tokens; 0 if the config does not state it.
    uint64_t max_context;
} mnnkv_sizing_info;

/// One layer. Set struct_size before the call. Fields that do not apply are 0.
typedef struct mnnkv_sizing_layer_info {
    /// sizeof(mnnkv_sizing_layer_info)
    uint32_t struct_size;
    /// MNNKV_LAYER_*
    uint32_t kind;
    /// KV heads; 0 with latent attention.
    uint32_t kv_heads;
    /// Elements of a key and of a value.
    uint32_t head_dim;
    /// Elements of a latent (MLA).
    uint32_t kv_lora_rank;
    /// Elements of the rotated key beside the latent (MLA).
    uint32_t qk_rope_head_dim;
    /// Largest number of tokens that the layer keeps; 0 = all.
    uint32_t most_tokens;
    /// 0.
    uint32_t reserved;
    /// Elements of the state of one sequence; 0 if the config does not state them.
    uint64_t state_elements;
} mnnkv_sizing_layer_info;

/// Bytes of a cache on one rank, all sequences together. Each number includes the savings before it; a disabled saving
/// changes nothing. Set struct_size before the call.
typedef struct mnnkv_sizing_total {
    /// sizeof(mnnkv_sizing_total)
    uint32_t struct_size;
    /// 0.
    uint32_t reserved;
    /// Bytes without savings.
    uint64_t raw;
    /// Bytes after eviction: the maximum over all lengths up to this one, hence monotonic.
    uint64_t after_h2o;
    /// Bytes after eviction and C8.
    uint64_t after_c8;
    /// Bytes after eviction, C8 and lossless compression: the cache between two steps.
    uint64_t after_lossless;
    /// Maximum bytes within a step: one compressed layer is raw for attention and the next one is decoded, while the
    /// blobs of both are kept. Allocate for this number.
    uint64_t peak;
    /// Bytes of C8's scales and offsets, one f32 each per channel of K and of V. They come with the weights and are in
    /// no other number.
    uint64_t c8_scale_bytes;
} mnnkv_sizing_total;

/// Writes the defaults of all fields, struct_size included: one sequence on one rank without savings. NULL is ignored.
/// Any thread.
void mnnkv_sizing_options_default(mnnkv_sizing_options *options);

/// Reads a Hugging Face config.json of len bytes, at most 4 MiB, without a terminating zero.
///
/// A multimodal config is read by its language model (text_config, llm_config, language_config, thinker_config).
/// Missing keys take the defaults of the model_type where those are known; mnnkv_sizing_notes lists every assumption. A
/// config may consist of numbers alone: {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
/// "head_dim": 128}; MLA has "kv_lora_rank" and "qk_rope_head_dim" instead. abi_version: MNNKV_ABI_VERSION. out: the
/// handle; mnnkv_sizing_destroy frees it. Any thread.
/// INVALID_ARGUMENT: if config_json is not a JSON object, or a key is missing or has another type or range; the message
///   names the key and its value.
/// UNSUPPORTED: if the size of the attention's cache is not defined in this version, or the ABI differs.
mnnkv_status mnnkv_sizing_create(const char *config_json, size_t len, uint32_t abi_version, mnnkv_sizing **out);

/// Frees the handle. NULL is ignored. No other call on the handle may run.
void mnnkv_sizing_destroy(mnnkv_sizing *sizing);

/// Writes the totals of the model. Set info->struct_size first. Any thread.
mnnkv_status mnnkv_sizing_get_info(const mnnkv_sizing *sizing, mnnkv_sizing_info *info);

/// Writes one layer, numbered from 0. Set info->struct_size first. Any thread.
/// INVALID_ARGUMENT: if layer is not below mnnkv_sizing_info::layers.
mnnkv_status mnnkv_sizing_get_layer_info(const mnnkv_sizing *sizing, uint32_t layer, mnnkv_sizing_layer_info *info);

/// Writes the bytes of one more token of one sequence on one rank, without savings. bytes_per_token: while no window or
/// chunk is full. bytes_per_late_token: once all are full. Any thread.
/// INVALID_ARGUMENT: if mnnkv_sizing_bytes returns it for these options.
/// UNSUPPORTED: if mnnkv_sizing_bytes returns it for these options.
mnnkv_status mnnkv_sizing_per_token(const mnnkv_sizing *sizing,
                                    const mnnkv_sizing_options *options,
                                    uint64_t *bytes_per_token,
                                    uint64_t *bytes_per_late_token);

/// Writes the bytes of the cache on one rank for the given tokens per sequence. Monotonic in tokens. options: NULL =
/// the defaults. Set total->struct_size first. Any thread.
/// INVALID_ARGUMENT: if tokens exceeds MNNKV_SIZING_MAX_TOKENS, an option is out of range, the ranks do not divide the
///   KV heads, or the bytes exceed 64 bits.
/// UNSUPPORTED: if C8 is combined with elements of 8 bits or fewer, or with latents (MLA).
mnnkv_status mnnkv_sizing_bytes(const mnnkv_sizing *sizing,
                                const mnnkv_sizing_options *options,
                                uint64_t tokens,
                                mnnkv_sizing_total *total);

/// Writes the longest context whose cache takes at most budget bytes on each rank at the peak of a step, with savings.
///
/// tokens: the largest length that fits; MNNKV_SIZING_MAX_TOKENS if every length fits; 0 if no token fits. bytes: the
/// peak at that length. Any thread.
/// INVALID_ARGUMENT: if mnnkv_sizing_bytes returns it for these options.
/// UNSUPPORTED: if mnnkv_sizing_bytes returns it for these options.
mnnkv_status mnnkv_sizing_longest(const mnnkv_sizing *sizing,
                                  const mnnkv_sizing_options *options,
                                  uint64_t budget,
                                  uint64_t *tokens,
                                  uint64_t *bytes);

/// Writes the assumptions about the model and the parts of the cache that no number includes, one sentence per line.
///
/// text: room for cap bytes. len: length of the text with its terminating zero; 1 if there are no notes. Any thread.
/// BUFFER_TOO_SMALL: if cap is below the length; *len is the length.
mnnkv_status mnnkv_sizing_notes(const mnnkv_sizing *sizing, char *text, size_t cap, size_t *len);

/// Writes everything as one JSON object: the model and its layers by kind, bytes per token, totals at each of n
/// contexts (at most 1,024) on one rank and on all, each saving alone, the longest context within budget bytes without
/// and with savings, and the notes. budget 0 omits the longest context. Names are those of the other functions.
///
/// contexts: n lengths in tokens; NULL with n 0. text, cap, len: as in mnnkv_sizing_notes. Any thread.
/// INVALID_ARGUMENT: if n exceeds 1,024, or mnnkv_sizing_bytes returns it.
/// UNSUPPORTED: if mnnkv_sizing_bytes returns it.
/// BUFFER_TOO_SMALL: if cap is below the length; *len is the length.
mnnkv_status mnnkv_sizing_report_json(const mnnkv_sizing *sizing,
                                      const mnnkv_sizing_options *options,
                                      const uint64_t *contexts,
                                      size_t n,
                                      uint64_t budget,
                                      char *text,
                                      size_t cap,
                                      size_t *len);

// --- C8: K and V as int8 codes with a scale per channel. Calibrate, quantise, restore, measure ------------------

/// mnnkv_c8_shape::order: [token][head][dim], the order of a projection.
#define MNNKV_ORDER_TOKEN_HEAD_DIM 1
/// mnnkv_c8_shape::order: [head][token][dim], the order of mnnkv_kv_gather.
#define MNNKV_ORDER_HEAD_TOKEN_DIM 2
/// mnnkv_c8_parameters: equal steps below and above 0, and every offset 0. The default of exporters, and the only form
/// that all runtimes read correctly.
#define MNNKV_C8_SYMMETRIC 1
/// mnnkv_c8_parameters: 255 steps from the least to the greatest number (or 0).
#define MNNKV_C8_ASYMMETRIC 2

/// The shape of the values of K or of V: kv_heads * head_dim * tokens dense elements in native byte order, of any
/// alignment. Their codes are int8, one each, in the same order. Lengths beside a shape must equal those of the shape:
/// values in bytes, codes in codes.
///
/// A channel is a dimension of a KV head, number kv_head * head_dim + dim; there are kv_heads * head_dim of them.
typedef struct mnnkv_c8_shape {
    /// sizeof(mnnkv_c8_shape)
    uint32_t struct_size;
    /// MNNKV_DTYPE_F16, _BF16 or _F32.
    uint32_t dtype;
    /// MNNKV_ORDER_*.
    uint32_t order;
    /// KV heads (not query heads), at least 1.
    uint32_t kv_heads;
    /// Elements per head and token, at least 1.
    uint32_t head_dim;
    /// Tokens; 0 is legal.
    uint32_t tokens;
    /// Must be 0.
    uint32_t reserved[2];
} mnnkv_c8_shape;

/// A scale and an offset for each channel of K or of V.
///
///   code  = clamp(rint(value / scale + offset), -128, 127)
///   value = (code - offset) * scale
///
/// in f32, rounded to nearest with ties to even. Scales are finite and at least 2^-100. Offsets are integers from -128
/// to 127, and 0 in symmetric files. Other values are INVALID_ARGUMENT, and the message names the channel. Repeat a
/// scale that a file has once for all channels.
typedef struct mnnkv_c8_scales {
    /// sizeof(mnnkv_c8_scales)
    uint32_t struct_size;
    /// Length of both arrays: kv_heads * head_dim.
    uint32_t channels;
    /// A scale for each channel.
    const float *scale;
    /// An offset for each channel.
    const float *offset;
    /// Must be 0.
    uint32_t reserved[2];
} mnnkv_c8_scales;

/// Errors of values that became codes and values again. Set struct_size before the call.
typedef struct mnnkv_c8_figures {
    /// sizeof(mnnkv_c8_figures)
    uint32_t struct_size;
    /// The channel with the largest root mean square error; the first of equals.
    uint32_t worst_channel;
    /// Values compared.
    uint64_t elements;
    /// Values outside the range of codes; their error is unbounded. The error of all others is at most half a scale and
    /// the rounding to the element type.
    uint64_t saturated;
    /// The largest absolute difference.
    double max_abs_error;
    /// The root mean square difference.
    double rms_error;
    /// rms_error over the root mean square value; 0 if nothing differs, infinite if all values are 0 and a restored one
    /// is not.
    double relative_rms_error;
    /// The cosine between values and restored values; 1 if nothing differs, 0 if one side is all zeros or infinite.
    double cosine_similarity;
    /// Written as 0.
    uint32_t reserved[2];
} mnnkv_c8_figures;

/// Writes empty ranges, +inf and -inf, to begin a calibration. min, max: one number per channel. Any thread.
mnnkv_status mnnkv_c8_ranges_clear(size_t channels, float *min, float *max);

/// Widens the ranges of all channels by a batch of K or of V as it enters the cache (K after RoPE).
///
/// values: values_len bytes. min, max: kv_heads * head_dim numbers each, changed in place. The result does not depend
/// on the order or the size of batches. Ranges of several threads merge by the lesser min and the greater max of each
/// channel. Nothing has changed on failure. Any thread.
/// INVALID_ARGUMENT: if a value is NaN or infinite (the message names token and channel), values_len is not that of the
///   shape, or a range is neither empty nor finite.
mnnkv_status mnnkv_c8_ranges_update(const mnnkv_c8_shape *shape,
                                    const void *values,
                                    size_t values_len,
                                    float *min,
                                    float *max);

/// Computes scales and offsets from ranges.
///
///   lo = min(min, 0), hi = max(max, 0), in f32
///   MNNKV_C8_SYMMETRIC    scale = max(-lo, hi) / 127      offset = 0
///   MNNKV_C8_ASYMMETRIC   scale = (hi - lo) / 255         offset = rint(-lo / scale) - 128
///
/// The least scale is 2^-23. dtype: element type of the statistics, MNNKV_DTYPE_F16, _BF16 or _F32. Scales are rounded
/// to it, as files of that type hold them, and written as f32. min, max, scale, offset: channels numbers each. Nothing
/// is written on failure. Any thread.
/// INVALID_ARGUMENT: if symmetry or dtype is not supported, a range is empty, or a scale overflows dtype; the message
///   names the channel.
mnnkv_status mnnkv_c8_parameters(const float *min,
                                 const float *max,
                                 size_t channels,
                                 uint32_t symmetry,
                                 uint32_t dtype,
                                 float *scale,
                                 float *offset);

/// Converts values to codes.
///
/// values: values_len bytes. codes: room for codes_cap codes; kv_heads * head_dim * tokens are written. Values outside
/// the range of codes saturate, infinities included; NaN becomes the code of 0. Codes do not depend on the CPU. Any
/// thread.
/// INVALID_ARGUMENT: if values_len is not that of the shape, or a scale is invalid.
/// BUFFER_TOO_SMALL: if codes_cap is too small; mnnkv_last_error has the required codes.
mnnkv_status mnnkv_c8_quantize(const mnnkv_c8_shape *shape,
                               const void *values,
                               size_t values_len,
                               const mnnkv_c8_scales *scales,
                               int8_t *codes,
                               size_t codes_cap);

/// Converts codes to values.
///
/// codes: codes_len codes. values: room for values_cap bytes; those of the shape are written, rounded to its dtype.
/// Products above the range of dtype become infinite (F16: with scales over 256). Values do not depend on the CPU. Any
/// thread.
/// INVALID_ARGUMENT: if codes_len is not that of the shape, or a scale is invalid.
/// BUFFER_TOO_SMALL: if values_cap is too small; mnnkv_last_error has the required bytes.
mnnkv_status mnnkv_c8_dequantize(const mnnkv_c8_shape *shape,
                                 const int8_t *codes,
                                 size_t codes_len,
                                 const mnnkv_c8_scales *scales,
                                 void *values,
                                 size_t values_cap);

/// Converts values to codes and back and measures the error. values: values_len bytes. Set figures->struct_size first.
/// Any thread.
/// INVALID_ARGUMENT: if a value is NaN or infinite (the message names token and channel), values_len is not that of the
///   shape, or a scale is invalid.
mnnkv_status mnnkv_c8_measure(const mnnkv_c8_shape *shape,
                              const void *values,
                              size_t values_len,
                              const mnnkv_c8_scales *scales,
                              mnnkv_c8_figures *figures);

/// Copies tokens begin .. begin + count of a packed cache as codes: mnnkv_kv_gather, then mnnkv_c8_quantize.
///
/// key, value: the buffers of the layout. key_scales, value_scales: of kv_heads * head_dim channels each. key_codes,
/// value_codes: [head][token][dim], kv_heads * count * head_dim codes each; cap_each is the capacity of each. The call
/// allocates the values of the range. Any thread, also several on one cache without a writer.
/// INVALID_ARGUMENT: if the range exceeds max_tokens, or a scale is invalid.
/// BUFFER_TOO_SMALL: if cap_each is too small; mnnkv_last_error has the required codes.
/// OUT_OF_MEMORY: if the values of the range cannot be allocated.
mnnkv_status mnnkv_c8_gather(const mnnkv_layout *layout,
                             const void *key,
                             const void *value,
                             uint32_t begin,
                             uint32_t count,
                             const mnnkv_c8_scales *key_scales,
                             const mnnkv_c8_scales *value_scales,
                             int8_t *key_codes,
                             int8_t *value_codes,
                             size_t cap_each);

/// Writes codes as values into tokens begin .. begin + count of a packed cache: mnnkv_c8_dequantize, then
/// mnnkv_kv_scatter.
///
/// key_codes, value_codes: [head][token][dim], len_each codes each, exactly those of the range. key_scales,
/// value_scales: of kv_heads * head_dim channels each. Padding and other tokens stay unchanged. The call allocates the
/// values of the range. The cache is unchanged on failure. One thread per cache.
/// INVALID_ARGUMENT: if the range exceeds max_tokens, len_each is not that of the range, or a scale is invalid.
/// OUT_OF_MEMORY: if the values of the range cannot be allocated.
mnnkv_status mnnkv_c8_scatter(const mnnkv_layout *layout,
                              const int8_t *key_codes,
                              const int8_t *value_codes,
                              size_t len_each,
                              const mnnkv_c8_scales *key_scales,
                              const mnnkv_c8_scales *value_scales,
                              uint32_t begin,
                              uint32_t count,
                              void *key,
                              void *value);

// --- msmodelslim: read directories of quantised weights. Check, dequantise, compute -----------------------------

/// mnnkv_msmodelslim_linear_info::tag: not quantised.
#define MNNKV_MSMODELSLIM_FLOAT 1
/// mnnkv_msmodelslim_linear_info::tag: 8-bit weights.
#define MNNKV_MSMODELSLIM_W8A16 2
/// mnnkv_msmodelslim_linear_info::tag: 8-bit weights and inputs, one scale for all inputs.
#define MNNKV_MSMODELSLIM_W8A8 3
/// mnnkv_msmodelslim_linear_info::tag: W8A8 with sparse weights.
#define MNNKV_MSMODELSLIM_W8A8S 4
/// mnnkv_msmodelslim_linear_info::tag: 8-bit weights, scales of inputs computed at run time.
#define MNNKV_MSMODELSLIM_W8A8_DYNAMIC 5
/// mnnkv_msmodelslim_linear_info::tag: the tensors of both W8A8 and W8A8_DYNAMIC.
#define MNNKV_MSMODELSLIM_W8A8_MIX 6
/// mnnkv_msmodelslim_linear_info::tag: another type of the format; listed, not read.
#define MNNKV_MSMODELSLIM_OTHER 7
/// mnnkv_msmodelslim_linear_info::granularity: not quantised.
#define MNNKV_SCALE_NONE 0
/// mnnkv_msmodelslim_linear_info::granularity: one scale for the whole weight.
#define MNNKV_SCALE_TENSOR 1
/// mnnkv_msmodelslim_linear_info::granularity: one scale for each row.
#define MNNKV_SCALE_CHANNEL 2
/// mnnkv_msmodelslim_linear_info::granularity: one scale for each group_size columns of a row.
#define MNNKV_SCALE_GROUP 3
/// mnnkv_msmodelslim_name: the linears.
#define MNNKV_MSMODELSLIM_LINEARS 1
/// mnnkv_msmodelslim_name: the norms.
#define MNNKV_MSMODELSLIM_NORMS 2
/// mnnkv_msmodelslim_name: the layers with KV scales.
#define MNNKV_MSMODELSLIM_KV_LAYERS 3

/// A directory of quantised weights as msmodelslim writes them, open for reading: a handle from mnnkv_msmodelslim_open.
/// Immutable; its functions may run on several threads at once.
///
/// The handle holds headers, not tensors. Tensors are read in pieces on demand and never mapped; a file that shrinks is
/// IO. Linears, norms and KV layers have numbers from 0 on: linears and norms in the order of their names, KV layers in
/// the order of their layers. mnnkv_msmodelslim_get_info returns their counts.
typedef struct mnnkv_msmodelslim mnnkv_msmodelslim;

/// A directory. Set struct_size before the call.
typedef struct mnnkv_msmodelslim_info {
    /// sizeof(mnnkv_msmodelslim_info)
    uint32_t struct_size;
    /// 1 if kv_cache_type or kv_quant_type declares KV scales.
    uint32_t kv_declared;
    /// Weights of two dimensions, unquantised ones included.
    uint64_t linears;
    /// Norms.
    uint64_t norms;
    /// Layers with KV scales.
    uint64_t kv_layers;
    /// Weight files.
    uint64_t weight_files;
    /// Bytes of all tensors.
    uint64_t bytes;
    /// 0.
    uint32_t reserved[2];
} mnnkv_msmodelslim_info;

/// A linear. Set struct_size before the call.
typedef struct mnnkv_msmodelslim_linear_info {
    /// sizeof(mnnkv_msmodelslim_linear_info)
    uint32_t struct_size;
    /// MNNKV_MSMODELSLIM_FLOAT to MNNKV_MSMODELSLIM_OTHER.
    uint32_t tag;
    /// MNNKV_SCALE_*.
    uint32_t granularity;
    /// 1 if a float bias exists. quant_bias of W8A8, W8A8S and W8A8_MIX includes it.
    uint32_t bias;
    /// Rows: outputs.
    uint64_t n;
    /// Columns: inputs.
    uint64_t k;
    /// Columns per scale; 0 without groups.
    uint64_t group_size;
    /// Bytes of all its tensors.
    uint64_t bytes;
    /// 0.
    uint32_t reserved[2];
} mnnkv_msmodelslim_linear_info;

/// Checks the directory at path (UTF-8, zero-terminated) and writes all findings as JSON: {"errors": 1, "warnings": 0,
/// "findings": [{"severity": "error", "kind": "missing_tensor", "tensor": "...", "file": "...", "text": "..."}, ...]}.
/// An error makes the directory unusable or its numbers wrong. A warning marks content that other readers may refuse or
/// read differently. The words of kind are stable. The check covers files, names, types, shapes, and every number of
/// scales, offsets and codes; it reads tensors once, in pieces. A broken or missing directory is a finding, not a
/// failure of the call.
///
/// text: room for cap bytes. len: length of the text with its terminating zero. Any thread.
/// BUFFER_TOO_SMALL: if cap is below the length; *len is the length. The next call reads everything again: begin with
///   64 KiB.
mnnkv_status mnnkv_msmodelslim_check_json(const char *path, char *text, size_t cap, size_t *len);

/// Opens the directory at path (UTF-8, zero-terminated). abi_version: MNNKV_ABI_VERSION. out: the handle;
/// mnnkv_msmodelslim_destroy frees it. A broken layer fails only when it is used. Any thread.
/// NOT_FOUND: if the directory, its weights or its description does not exist.
/// INVALID_ARGUMENT: if path is not a directory, or several files could be its description or index.
/// CORRUPT: if a JSON document or the header of a file is malformed.
/// IO: if reading fails.
/// UNSUPPORTED: if the ABI differs.
mnnkv_status mnnkv_msmodelslim_open(const char *path, uint32_t abi_version, mnnkv_msmodelslim **out);

/// Frees the handle. NULL is ignored. No other call on the handle may run.
void mnnkv_msmodelslim_destroy(mnnkv_msmodelslim *model);

/// Writes the counts of linears, norms and KV layers. Set info->struct_size first.
mnnkv_status mnnkv_msmodelslim_get_info(const mnnkv_msmodelslim *model, mnnkv_msmodelslim_info *info);

/// Writes the contents of the directory as a JSON object: model_quant_type, version, group_size, kv_cache_type, bytes,
/// and the lists linears (name, tag, n, k, granularity, group_size, bias, bytes, error), norms (name, len, bias,
/// smoothed, error) and kv (prefix, layer, key_channels, value_channels, error). Unusable entries have a text in error.
///
/// text: room for cap bytes. len: length of the text with its terminating zero.
/// BUFFER_TOO_SMALL: if cap is below the length; *len is the length.
mnnkv_status mnnkv_msmodelslim_layers_json(const mnnkv_msmodelslim *model, char *text, size_t cap, size_t *len);

/// Writes a name. list: MNNKV_MSMODELSLIM_LINEARS or MNNKV_MSMODELSLIM_NORMS (names without ".weight"), or
/// MNNKV_MSMODELSLIM_KV_LAYERS (the attention module, or its merged linear). text, cap, len: as in
/// mnnkv_msmodelslim_layers_json.
/// NOT_FOUND: if index is not below the length of the list.
/// INVALID_ARGUMENT: if list is not one of these.
/// BUFFER_TOO_SMALL: if cap is below the length; *len is the length.
mnnkv_status mnnkv_msmodelslim_name(const mnnkv_msmodelslim *model,
                                    uint32_t list,
                                    uint64_t index,
                                    char *text,
                                    size_t cap,
                                    size_t *len);

/// Writes the number of the linear with this name (zero-terminated, without ".weight").
/// NOT_FOUND: if no linear has this name.
mnnkv_status mnnkv_msmodelslim_find(const mnnkv_msmodelslim *model, const char *name, uint64_t *linear);

/// Writes one linear. Set info->struct_size first.
/// NOT_FOUND: if the linear does not exist.
mnnkv_status mnnkv_msmodelslim_get_linear_info(const mnnkv_msmodelslim *model,
                                               uint64_t linear,
                                               mnnkv_msmodelslim_linear_info *info);

/// Converts codes 0 .. 255 to the signed codes of this format: code - 128. Subtract 128 from their offset; their scale
/// stays. codes, signed_codes: n each, not overlapping. n 0 is legal. Any thread.
mnnkv_status mnnkv_msmodelslim_signed(const uint8_t *codes, size_t n, int8_t *signed_codes);

/// Writes rows row_begin .. row_begin + rows of a linear's weight as rows * k numbers of dtype (MNNKV_DTYPE_F16, BF16
/// or F32), row-major, rounded to nearest even from fp32.
///
/// W8A16, W8A8_DYNAMIC, W8A8_MIX: (code - weight_offset) * weight_scale. W8A8, W8A8S: code * weight_scale if the file
/// has that, else code * (deq_scale / input_scale). FLOAT: the numbers themselves. The call allocates a byte for each
/// code: convert some rows at a time.
/// out: room for out_bytes bytes, in native byte order, of any alignment. rows 0 is legal.
/// INVALID_ARGUMENT: if the rows do not exist, or dtype is not supported.
/// BUFFER_TOO_SMALL: if out_bytes is too small; mnnkv_last_error has the required bytes.
/// NOT_FOUND: if the linear does not exist.
/// UNSUPPORTED: if the type of quantisation is not supported.
/// CORRUPT: if its tensors contradict each other, or a scale is not positive; the message names the tensor.
/// IO: if a file cannot be read or became shorter.
mnnkv_status mnnkv_msmodelslim_dequantize(const mnnkv_msmodelslim *model,
                                          uint64_t linear,
                                          uint64_t row_begin,
                                          uint64_t rows,
                                          uint32_t dtype,
                                          void *out,
                                          size_t out_bytes);

/// Computes outputs of a linear of type W8A8, W8A8S or W8A8_MIX as the hardware does: y = (sum of x code * weight code,
/// plus quant_bias) * deq_scale, with quantised inputs and integer sums. quant_bias includes a float bias.
///
/// x: tokens rows of k floats. y: tokens rows of rows floats, for the outputs row_begin .. row_begin + rows; room for
/// y_cap floats. Inputs are divided by the scale; hardware that multiplies by the reciprocal may round a tie
/// differently.
/// INVALID_ARGUMENT: if the rows do not exist, or x contains NaN.
/// BUFFER_TOO_SMALL: if y_cap is too small; mnnkv_last_error has the required floats.
/// NOT_FOUND: if the linear does not exist.
/// UNSUPPORTED: if the type of quantisation is not supported.
/// CORRUPT: if its tensors contradict each other, or a scale is not positive; the message names the tensor.
/// IO: if a file cannot be read or became shorter.
mnnkv_status mnnkv_msmodelslim_linear_w8a8(const mnnkv_msmodelslim *model,
                                           uint64_t linear,
                                           uint64_t row_begin,
                                           uint64_t rows,
                                           const float *x,
                                           size_t tokens,
                                           float *y,
                                           size_t y_cap);

/// Writes weight and bias of a norm as fp32. quantized: 1 = the pair for quantised linears (".module" in its name, if
/// present), 0 = the plain pair for float linears. bias is zeros if the files have none.
///
/// weight, bias: room for cap floats each. len: floats of each.
/// BUFFER_TOO_SMALL: if cap is below the length; *len is the length.
/// NOT_FOUND: if the norm or its plain pair does not exist.
/// CORRUPT: if its tensors contradict each other.
/// IO: if a file cannot be read or became shorter.
mnnkv_status mnnkv_msmodelslim_norm(const mnnkv_msmodelslim *model,
                                    uint64_t norm,
                                    uint32_t quantized,
                                    float *weight,
                                    float *bias,
                                    size_t cap,
                                    size_t *len);

/// Writes the KV scales and offsets of a layer as fp32, for mnnkv_c8_scales. kv_layer: a number in
/// MNNKV_MSMODELSLIM_KV_LAYERS; equal to the layer's own number only if all layers have scales. values: 0 = keys, 1 =
/// values. Offsets are zeros if the files have none.
///
/// scale, offset: room for cap floats each. len: floats of each: one per channel, or 1 for all channels.
/// BUFFER_TOO_SMALL: if cap is below the length; *len is the length.
/// NOT_FOUND: if the layer does not exist.
/// CORRUPT: if its tensors contradict each other, or a scale is not positive.
/// IO: if a file cannot be read or became shorter.
mnnkv_status mnnkv_msmodelslim_kv_scales(const mnnkv_msmodelslim *model,
                                         uint64_t kv_layer,
                                         uint32_t values,
                                         float *scale,
                                         float *offset,
                                         size_t cap,
                                         size_t *len);

// --- msmodelslim: write a directory -----------------------------------------------------------------------------

/// A new directory of quantised weights: a handle from mnnkv_msmodelslim_writer_create. One thread at a time.
///
/// Declare everything with its shape, then append the contents in the same order:
///
///   mnnkv_msmodelslim_writer_tensor, _linear, _kv              once for each
///   mnnkv_msmodelslim_writer_append, _append_rows, _append_kv  one by one; a tensor or linear in pieces
///   mnnkv_msmodelslim_writer_finish                            the directory is complete
///
/// The files are quant_model_weights.safetensors, or its parts and their index, and quant_model_description.json. The
/// description is written last and marks a complete directory. Tensors are contiguous in the order of declaration. An
/// int8 weight whose size is not a multiple of 4 leaves later tensors unaligned, which some readers refuse: declare it
/// last. INVALID_ARGUMENT before finish, and OUT_OF_MEMORY, change nothing; the call may be repeated.
typedef struct mnnkv_msmodelslim_writer mnnkv_msmodelslim_writer;

/// Options of a writer. Zero every field, then set struct_size. NULL means all zeros.
typedef struct mnnkv_msmodelslim_writer_options {
    /// sizeof(mnnkv_msmodelslim_writer_options)
    uint32_t struct_size;
    /// 1 = weights have offsets, which runtimes read differently. 0 = offsets are zero.
    uint32_t asymmetric;
    /// Columns per scale, a divisor of every linear's k; 0 = one scale per row.
    uint64_t group_size;
    /// Bytes of tensors after which a part ends; 0 = one file without an index.
    uint64_t part_bytes;
    /// Must be 0.
    uint32_t reserved[2];
} mnnkv_msmodelslim_writer_options;

/// Prepares a directory at path (UTF-8, zero-terminated). An existing one must have no quantised weights or
/// description; otherwise its parent must exist. Nothing is written before the first contents. abi_version:
/// MNNKV_ABI_VERSION. out: the handle; mnnkv_msmodelslim_writer_destroy frees it. options: NULL = one file, a scale per
/// row, no offsets. Any thread.
/// INVALID_ARGUMENT: if path is not a directory or has weights, or an option is out of range.
/// IO: if path cannot be examined.
/// UNSUPPORTED: if the ABI differs.
mnnkv_status mnnkv_msmodelslim_writer_create(const char *path,
                                             const mnnkv_msmodelslim_writer_options *options,
                                             uint32_t abi_version,
                                             mnnkv_msmodelslim_writer **out);

/// Frees a writer and removes its files unless it finished. NULL is ignored. Accepts a handle that returns INTERNAL. No
/// other call on the handle may run.
void mnnkv_msmodelslim_writer_destroy(mnnkv_msmodelslim_writer *writer);

/// Declares a tensor that is copied unchanged. tag: the word for the description, such as "FLOAT" or the type of its
/// layer. dtype: a name of safetensors, such as "F16", "BF16", "F32", "I8". Texts are zero-terminated. shape: rank
/// dimensions, outermost first; rank 0 is a single number.
/// INVALID_ARGUMENT: if the name is declared already or has no dot, a word is unknown, the size overflows, or contents
///   have begun.
mnnkv_status mnnkv_msmodelslim_writer_tensor(mnnkv_msmodelslim_writer *writer,
                                             const char *name,
                                             const char *tag,
                                             const char *dtype,
                                             const uint64_t *shape,
                                             size_t rank);

/// Declares a linear's weight of n rows by k columns that comes as floats and is quantised to W8A16: name.weight,
/// name.weight_scale and name.weight_offset. name: zero-terminated. A bias is a tensor of its own.
/// INVALID_ARGUMENT: if the name is declared already, n or k is 0, group_size does not divide k, or contents have
///   begun.
mnnkv_status mnnkv_msmodelslim_writer_linear(mnnkv_msmodelslim_writer *writer, const char *name, size_t n, size_t k);

/// Declares the KV scales of a layer (C8). prefix: the name of its attention module, zero-terminated. channels: KV
/// heads times head_dim.
/// INVALID_ARGUMENT: if the name is declared already, channels is 0, or contents have begun.
mnnkv_status mnnkv_msmodelslim_writer_kv(mnnkv_msmodelslim_writer *writer, const char *prefix, size_t channels);

/// Appends len bytes, little-endian, to a declared tensor. After NOT_FOUND or IO only destroy is legal.
/// INVALID_ARGUMENT: if another tensor is next, or len exceeds the rest.
/// NOT_FOUND: if the parent of the directory does not exist.
/// IO: if writing fails.
mnnkv_status mnnkv_msmodelslim_writer_append(mnnkv_msmodelslim_writer *writer,
                                             const char *name,
                                             const void *data,
                                             size_t len);

/// Appends count floats, whole rows, to a declared linear. INVALID_ARGUMENT writes nothing.
/// INVALID_ARGUMENT: if another is next, count is not a multiple of k or exceeds the rest, a number is not finite, or,
///   with asymmetric, the range of numbers overflows f32.
/// NOT_FOUND: if the parent of the directory does not exist.
/// IO: if writing fails.
mnnkv_status mnnkv_msmodelslim_writer_append_rows(mnnkv_msmodelslim_writer *writer,
                                                  const char *name,
                                                  const float *weights,
                                                  size_t count);

/// Appends the KV scales of a declared layer, channels floats each. key_offset, value_offset: integers from -128 to
/// 127, or NULL for zeros, which all runtimes read alike.
/// INVALID_ARGUMENT: if another one is next, channels differs, a scale is not positive, or an offset is not a code.
/// NOT_FOUND: if the parent of the directory does not exist.
/// IO: if writing fails.
mnnkv_status mnnkv_msmodelslim_writer_append_kv(mnnkv_msmodelslim_writer *writer,
                                                const char *prefix,
                                                const float *key_scale,
                                                const float *key_offset,
                                                const float *value_scale,
                                                const float *value_offset,
                                                size_t channels);

/// Completes the directory. Afterwards only destroy is legal, except after OUT_OF_MEMORY. INVALID_ARGUMENT and IO
/// remove the files.
/// INVALID_ARGUMENT: if contents are missing, or nothing was declared.
/// IO: if writing fails.
/// OUT_OF_MEMORY: if memory was refused; nothing has changed, and the call may be repeated.
mnnkv_status mnnkv_msmodelslim_writer_finish(mnnkv_msmodelslim_writer *writer);

// --- Compressor: learned compressors (.bin), which make groups of tokens one. Read a file, run it on dense rows -

/// mnnkv_compressor_options::segments: the tokens after the image.
#define MNNKV_SEGMENT_TEXT 1
/// mnnkv_compressor_options::segments: the image at the start of the cache.
#define MNNKV_SEGMENT_IMAGE 2

/// A learned compressor of KV caches (FastCache, arXiv 2503.08461): a handle from mnnkv_compressor_open or _create.
/// Immutable; its functions may run on several threads at once, on different caches.
///
/// A file in InfiniLM's weights format, version 1, has small networks for every layer of a model. They turn the K, and
/// the V, of compression_factor neighbouring tokens of a head into those of one token. A host runs them once, after the
/// prompt. The cache becomes shorter and stays lossy; later tokens are appended as usual.
///
///   mnnkv_compressor* file = NULL;
///   uint32_t old_len = 0, new_len = 0;
///   if (mnnkv_compressor_open("compressor.bin", MNNKV_ABI_VERSION, &file) == MNNKV_OK &&
///       mnnkv_compressor_run_caches(file, 0, NULL, caches, layers, &old_len, &new_len) == MNNKV_OK) { ... }
///   mnnkv_compressor_destroy(file);
///
/// The prompt may begin with an image of image_kv_len tokens. With 12 blocks per layer the image has networks of its
/// own; with 6 it stays unchanged. Image and text are compressed separately: floor(length / factor) groups become as
/// many tokens, and the remaining tokens follow them unchanged. A segment of fewer groups than min_seq_len stays
/// unchanged. All layers have the same new length: mnnkv_compressor_new_len.
///
/// Positions: compressed keys are made of keys after RoPE and have no positions of their own. The position of the next
/// token depends on the training of the model: LLaVA's compressor continues at the new length, MiniCPM-V's at the
/// original length. Attention sees the new length in both cases.
typedef struct mnnkv_compressor mnnkv_compressor;

/// The header of a weights file. Set struct_size before the call.
typedef struct mnnkv_compressor_info {
    /// sizeof(mnnkv_compressor_info)
    uint32_t struct_size;
    /// MNNKV_DTYPE_F16, BF16 or F32: element type of the weights in the file. Caches may have another one.
    uint32_t dtype;
    /// Layers of the model.
    uint32_t layers;
    /// 12, or 6 without networks for images.
    uint32_t blocks_per_layer;
    /// Elements per head and token of the caches that it compresses.
    uint32_t head_dim;
    /// Tokens that become one.
    uint32_t compression_factor;
    /// Groups that a segment must have to be compressed.
    uint32_t min_seq_len;
    /// KV heads as the converter wrote them, mostly 0: the networks apply to any number.
    uint32_t num_heads;
    /// head_dim of the header; differs from head_dim where a converter guessed it.
    uint32_t header_head_dim;
    /// Inputs of a network, compression_factor * head_dim.
    uint32_t hidden_size;
    /// Bytes of metadata in the file; ignored.
    uint32_t metadata_bytes;
    /// Sentences of mnnkv_compressor_notes.
    uint32_t notes;
    /// Bytes of the file.
    uint64_t file_bytes;
    /// Bytes after the last block; ignored.
    uint64_t trailing_bytes;
    /// 0.
    uint32_t reserved[4];
} mnnkv_compressor_info;

/// A block of a weights file: one linear layer. Set struct_size before the call; the fields it covers are written.
typedef struct mnnkv_compressor_block_info {
    /// sizeof(mnnkv_compressor_block_info)
    uint32_t struct_size;
    /// Elements that leave it.
    uint32_t rows;
    /// Elements that enter it.
    uint32_t cols;
    /// 1 when it has a bias.
    uint32_t has_bias;
    /// Where its header begins, in bytes from the start of the file.
    uint64_t offset;
    /// 0.
    uint32_t reserved[2];
} mnnkv_compressor_block_info;

/// Options of a compression. Zero every field, then set struct_size. NULL means all zeros.
typedef struct mnnkv_compressor_options {
    /// sizeof(mnnkv_compressor_options)
    uint32_t struct_size;
    /// Tokens that become one; 0 or 1 = the factor of the file. Any other factor is INVALID_ARGUMENT.
    uint32_t factor;
    /// Groups that a segment must have to be compressed; 0 = as the file.
    uint32_t min_seq_len;
    /// Image tokens at the start of the cache; values above the length mean all.
    uint32_t image_kv_len;
    /// Segments to compress: MNNKV_SEGMENT_TEXT, MNNKV_SEGMENT_IMAGE or both; 0 = both.
    uint32_t segments;
    /// Must be 0.
    uint32_t reserved[3];
} mnnkv_compressor_options;

/// Reads a weights file. path: UTF-8, zero-terminated; links are followed. The weights stay in memory in the type of
/// the file, and the file is closed. abi_version: MNNKV_ABI_VERSION. out: the handle; mnnkv_compressor_destroy frees
/// it. Messages have the offset and the field, and name blocks by layer, number and network (tk, tv, ik, iv: text or
/// image, K or V). Any thread.
/// CORRUPT: if the file has another format or is cut off, counts, shapes or flags contradict each other, or a weight is
///   not finite.
/// UNSUPPORTED: if the version or element type of the file is not supported, or the ABI differs.
/// NOT_FOUND: if no file has this name.
/// INVALID_ARGUMENT: if path is not a file.
/// IO: if reading fails.
mnnkv_status mnnkv_compressor_open(const char *path, uint32_t abi_version, mnnkv_compressor **out);

/// As mnnkv_compressor_open, of a file of len bytes in memory. bytes is not retained.
mnnkv_status mnnkv_compressor_create(const void *bytes, size_t len, uint32_t abi_version, mnnkv_compressor **out);

/// Frees the handle. NULL is ignored. No other call on the handle may run.
void mnnkv_compressor_destroy(mnnkv_compressor *compressor);

/// Writes the header of the file. Set info->struct_size first. Any thread.
mnnkv_status mnnkv_compressor_get_info(const mnnkv_compressor *compressor, mnnkv_compressor_info *info);

/// Writes oddities of the file that are not errors, one sentence per line: reserved bytes other than 0, metadata, bytes
/// after the last block, a guessed head_dim.
///
/// text: room for cap bytes. len: length of the text with its terminating zero; 1 if there are no notes. Any thread.
/// BUFFER_TOO_SMALL: if cap is below the length; *len is the length.
mnnkv_status mnnkv_compressor_notes(const mnnkv_compressor *compressor, char *text, size_t cap, size_t *len);

/// Writes the shape and place of one block. block: 0 to blocks_per_layer - 1; three each for tk, tv, ik and iv. Set
/// info->struct_size first. Any thread.
/// INVALID_ARGUMENT: if layer or block does not exist.
mnnkv_status mnnkv_compressor_get_block_info(const mnnkv_compressor *compressor,
                                             uint32_t layer,
                                             uint32_t block,
                                             mnnkv_compressor_block_info *info);

/// Writes the length of a cache of kv_len tokens after compression; kv_len itself if nothing is compressed. options:
/// NULL = the defaults of the file. Any thread.
/// INVALID_ARGUMENT: if options->factor is not that of the file, or options->segments has unknown bits.
mnnkv_status mnnkv_compressor_new_len(const mnnkv_compressor *compressor,
                                      const mnnkv_compressor_options *options,
                                      uint32_t kv_len,
                                      uint32_t *new_len);

/// Compresses one layer of dense rows [head][token][dim].
///
/// dtype: MNNKV_DTYPE_F16, BF16 or F32, of all four buffers, in native byte order. key, value: kv_heads * kv_len *
/// head_dim elements each. key_out, value_out: kv_heads * new_len * head_dim elements each; mnnkv_compressor_new_len
/// returns new_len beforehand. cap_each: capacity of each in bytes. Uncompressed rows are copied. Weights are rounded
/// to dtype, sums are f32, and the result of each linear layer is rounded to dtype once: equal bytes on every machine.
/// options: NULL = the defaults of the file. Nothing is written on failure, except new_len on BUFFER_TOO_SMALL. Any
/// thread.
/// INVALID_ARGUMENT: if layer does not exist, or a result is not finite in dtype; the message names head and tokens.
/// BUFFER_TOO_SMALL: if cap_each is too small; *new_len is written, and mnnkv_last_error has the required bytes.
/// UNSUPPORTED: if dtype is not supported, or a weight exceeds its range.
mnnkv_status mnnkv_compressor_run(const mnnkv_compressor *compressor,
                                  uint32_t layer,
                                  const mnnkv_compressor_options *options,
                                  uint32_t dtype,
                                  uint32_t kv_heads,
                                  uint32_t kv_len,
                                  const void *key,
                                  const void *value,
                                  void *key_out,
                                  void *value_out,
                                  size_t cap_each,
                                  uint32_t *new_len);

// --- Compressor: run on packed caches in place ------------------------------------------------------------------

/// Compresses the packed caches of n_layers neighbouring layers in place: those of a model, or of one device.
///
/// caches: caches[i] belongs to layer first_layer + i. All have the same struct_size, which is their distance in bytes,
/// and the same kv_len. Layouts may differ in packing; head_dim is that of the file, and K and V of a cache have one
/// type: F16, BF16 or F32. options: NULL = the defaults of the file. old_len, new_len: tokens before and after; kv_len
/// of every cache becomes new_len. Bytes after it are not cleared: mnnkv_kv_release returns that memory.
///
/// All layers are computed before the first one is written: on failure no byte and no kv_len has changed. The call
/// allocates the compressed rows of all layers. One thread per cache. Stored tokens must be restored first, and their
/// blocks must be dropped afterwards (mnnkv_store_truncated to 0, mnnkv_session_reset).
/// INVALID_ARGUMENT: if a layer does not exist in the file, kv_len differs between caches, buffers overlap, a layout
///   does not fit, or a result is not finite.
/// UNSUPPORTED: if a cache is quantised, K and V have different types, or a weight exceeds the range of the type.
/// OUT_OF_MEMORY: if the rows cannot be allocated.
mnnkv_status mnnkv_compressor_run_caches(const mnnkv_compressor *compressor,
                                         uint32_t first_layer,
                                         const mnnkv_compressor_options *options,
                                         mnnkv_cache *caches,
                                         uint32_t n_layers,
                                         uint32_t *old_len,
                                         uint32_t *new_len);

// --- Compressor: write a file -----------------------------------------------------------------------------------

/// The header of a new weights file. There are no defaults: NULL is INVALID_ARGUMENT, and 0 means 0.
typedef struct mnnkv_compressor_header {
    /// sizeof(mnnkv_compressor_header)
    uint32_t struct_size;
    /// MNNKV_DTYPE_F16, BF16 or F32: element type of the weights in the file.
    uint32_t dtype;
    /// Layers of the model, at least 1.
    uint32_t layers;
    /// 6 (tk, tv) or 12 (tk, tv, ik, iv).
    uint32_t blocks_per_layer;
    /// Elements per head and token.
    uint32_t head_dim;
    /// Tokens that become one, at least 2.
    uint32_t compression_factor;
    /// Groups that a segment must have to be compressed; 2 is usual.
    uint32_t min_seq_len;
    /// KV heads of the model; 0 is usual.
    uint32_t num_heads;
    /// Must be 0.
    uint32_t reserved[4];
} mnnkv_compressor_header;

/// A linear layer of a compressor: y[r] = weight[r][0] * x[0] + weight[r][1] * x[1] + ... + bias[r].
typedef struct mnnkv_compressor_linear {
    /// Outputs.
    uint32_t rows;
    /// Inputs.
    uint32_t cols;
    /// rows * cols numbers, row-major.
    const float *weight;
    /// rows numbers, or NULL for none.
    const float *bias;
} mnnkv_compressor_linear;

/// Writes weights as a file for mnnkv_compressor_open and InfiniLM.
///
/// linears: n_linears = layers * blocks_per_layer linear layers, layer by layer; in a layer tk, tv, ik and iv (text or
/// image, K or V), the first, second and third linear layer of each. The first has compression_factor * head_dim
/// columns, the last head_dim rows, and the rows of each are the columns of the next. Numbers are rounded to nearest
/// even. path: UTF-8, zero-terminated. The file replaces one of the same name once it is complete on disk. Any thread.
/// INVALID_ARGUMENT: if shapes contradict each other, or a number is not finite in dtype (65520 in F16); the message
///   names layer, block and index.
/// NOT_FOUND: if the folder does not exist.
/// IO: if writing fails.
mnnkv_status mnnkv_compressor_write_file(const mnnkv_compressor_header *header,
                                         const mnnkv_compressor_linear *linears,
                                         size_t n_linears,
                                         const char *path);

/// As mnnkv_compressor_write_file, to memory. dst: room for cap bytes. len: bytes of the file. Any thread.
/// BUFFER_TOO_SMALL: if cap is below the length; *len is the length.
mnnkv_status mnnkv_compressor_write(const mnnkv_compressor_header *header,
                                    const mnnkv_compressor_linear *linears,
                                    size_t n_linears,
                                    void *dst,
                                    size_t cap,
                                    size_t *len);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_MODEL_H
