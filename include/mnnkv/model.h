/*
 * mnn-kv: files that come with a model. Part of libmnnkv unless it was built without (MNNKV_MODEL=OFF).
 *
 * Generated from model/src/ffi by `make header`; do not edit. The conventions are those of mnnkv.h.
 *
 * What is here
 *   sizing       bytes of the KV cache of a model, from its config.json
 *   c8      K and V as int8 codes with a scale per channel: calibrate, quantise, restore, measure
 *   msmodelslim  directories of quantised weights as msmodelslim exports them: check, read as numbers, write
 *   compressor   learned compressors (.bin): groups of tokens become one; read, write, run on a cache in place
 */


#ifndef MNNKV_MODEL_H
#define MNNKV_MODEL_H

#include "../mnnkv.h"

/// 8-bit floating point (E4M3, E5M2): mnnkv_sizing_options::element alone takes it.
#define MNNKV_DTYPE_FP8 7

/// 4-bit integers, two in a byte: mnnkv_sizing_options::element alone takes it.
#define MNNKV_DTYPE_INT4 8

/// mnnkv_sizing_layer_info::kind: keeps every token.
#define MNNKV_LAYER_FULL 1

/// mnnkv_sizing_layer_info::kind: keeps the last most_tokens tokens (sliding window).
#define MNNKV_LAYER_SLIDING 2

/// mnnkv_sizing_layer_info::kind: keeps the tokens of a chunk of most_tokens (chunked attention).
#define MNNKV_LAYER_CHUNKED 3

/// mnnkv_sizing_layer_info::kind: reads the cache of an earlier layer and has none of its own.
#define MNNKV_LAYER_SHARED 4

/// mnnkv_sizing_layer_info::kind: has a state of fixed size and no cache (linear attention, state space, convolution).
#define MNNKV_LAYER_RECURRENT 5

/// mnnkv_sizing_options::lossless_scope: the first lossless_front_n layers.
#define MNNKV_SCOPE_FRONT_N 1

/// mnnkv_sizing_options::lossless_scope: the layers that tokens are evicted from.
#define MNNKV_SCOPE_H2O_KEPT 2

/// The most tokens that sizes are given for: 2^31 - 1, the longest cache.
#define MNNKV_SIZING_MAX_TOKENS 2147483647

/// mnnkv_c8_shape::order: [token][head][dim], what a projection writes.
#define MNNKV_ORDER_TOKEN_HEAD_DIM 1

/// mnnkv_c8_shape::order: [head][token][dim], what mnnkv_kv_gather writes.
#define MNNKV_ORDER_HEAD_TOKEN_DIM 2

/// mnnkv_c8_parameters: as many steps below 0 as above, and every offset 0. What exporters do unless told
/// otherwise; some runtimes ignore offsets, so this is what all of them read right.
#define MNNKV_C8_SYMMETRIC 1

/// mnnkv_c8_parameters: 255 steps from the least to the greatest number (or 0).
#define MNNKV_C8_ASYMMETRIC 2

/// mnnkv_msmodelslim_linear_info::tag: not quantised.
#define MNNKV_MSMODELSLIM_FLOAT 1

/// mnnkv_msmodelslim_linear_info::tag: weights in 8 bits.
#define MNNKV_MSMODELSLIM_W8A16 2

/// mnnkv_msmodelslim_linear_info::tag: weights and inputs in 8 bits, one scale for all inputs.
#define MNNKV_MSMODELSLIM_W8A8 3

/// mnnkv_msmodelslim_linear_info::tag: as W8A8, of sparse weights.
#define MNNKV_MSMODELSLIM_W8A8S 4

/// mnnkv_msmodelslim_linear_info::tag: weights in 8 bits, scales of inputs found at run time.
#define MNNKV_MSMODELSLIM_W8A8_DYNAMIC 5

/// mnnkv_msmodelslim_linear_info::tag: what W8A8 and W8A8_DYNAMIC need, both.
#define MNNKV_MSMODELSLIM_W8A8_MIX 6

/// mnnkv_msmodelslim_linear_info::tag: another type of the format, which the library lists and does not read.
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

/// mnnkv_compressor_options::segments: the tokens behind the image.
#define MNNKV_SEGMENT_TEXT 1

/// mnnkv_compressor_options::segments: the image at the start.
#define MNNKV_SEGMENT_IMAGE 2

/// A learned compressor of KV caches (FastCache, arXiv 2503.08461): a handle from mnnkv_compressor_open or _create.
///
/// A file in InfiniLM's weights format, version 1, has small networks for every layer of a model, which turn the K, and
/// the V, of compression_factor neighbouring tokens of a head into that of one. It is run once, after the prompt: the
/// cache becomes shorter, and stays lossy. Tokens that are generated then are appended as ever.
///
///   mnnkv_compressor* file = NULL;
///   uint32_t old_len = 0, new_len = 0;
///   if (mnnkv_compressor_open("compressor.bin", MNNKV_ABI_VERSION, &file) == MNNKV_OK &&
///       mnnkv_compressor_run_caches(file, 0, NULL, caches, layers, &old_len, &new_len) == MNNKV_OK) { ... }
///   mnnkv_compressor_destroy(file);
///
/// The prompt may begin with an image (image_kv_len tokens), which has networks of its own where the file has 12 blocks
/// per layer; with 6 it stays as it is. Image and text are compressed apart: floor(length / factor) groups become as
/// many tokens, and the tokens that are left over follow them unchanged. A segment of fewer groups than min_seq_len
/// stays as it is. So the new length is the same for all layers: mnnkv_compressor_new_len.
///
/// Positions: compressed keys have no positions of their own, they are made of keys after RoPE. Which position the next
/// token has, the caller decides, as the model was trained: LLaVA's compressor for positions that go on at the new
/// length, MiniCPM-V's for those that go on at the original length. Attention sees the new length in both.
///
/// A handle never changes: its functions may run on several threads at once, on different caches.
typedef struct mnnkv_compressor mnnkv_compressor;

/// A directory of quantised weights as msmodelslim writes them, open for reading: a handle from mnnkv_msmodelslim_open.
///
/// It holds the headers, not the tensors: those are read in pieces when they are asked for, and never mapped, so that a
/// file that shrinks gives IO. Functions name linears, norms and KV layers by their numbers from 0 on: linears and
/// norms in the order of their names, KV layers in the order of their layers. mnnkv_msmodelslim_get_info says how many
/// there are. A handle never changes: its functions may run on several threads at once.
typedef struct mnnkv_msmodelslim mnnkv_msmodelslim;

/// A directory of quantised weights that is being written: a handle from mnnkv_msmodelslim_writer_create.
///
/// First everything is announced, with its shape, then its contents come in the same order:
///
///   mnnkv_msmodelslim_writer_tensor, _linear, _kv              once for each
///   mnnkv_msmodelslim_writer_append, _append_rows, _append_kv  the same one by one; a tensor or linear in pieces
///   mnnkv_msmodelslim_writer_finish                            the directory is complete
///
/// The files are quant_model_weights.safetensors, or its parts and their index, and quant_model_description.json, which
/// is written last: a directory that has one is whole. Tensors lie in the order of the announcements without gaps:
/// behind an int8 weight whose size is no multiple of 4 they are not aligned, which some readers refuse; announce such
/// a weight last. What answers INVALID_ARGUMENT before finish, or OUT_OF_MEMORY, has changed nothing and may be called
/// again. One thread at a time.
typedef struct mnnkv_msmodelslim_writer mnnkv_msmodelslim_writer;

/// What a model's config.json says about its KV cache: a handle from mnnkv_sizing_create. It never changes, so any
/// number of threads may ask it at once.
///
/// A layer with KV heads keeps 2 * kv_heads * head_dim elements per token (MHA, GQA, MQA), one with latent attention
/// (MLA) kv_lora_rank + qk_rope_head_dim. Layers with a window or chunk keep at most that many tokens. Bytes are those
/// of the tokens: what allocators round up to is not counted.
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

/// How a cache is kept, and what is expected to be saved. Start from mnnkv_sizing_options_default; a NULL pointer means
/// those defaults. Savings act in this order: tokens are evicted, elements become int8, cold bytes are compressed.
typedef struct mnnkv_sizing_options {
    /// sizeof(mnnkv_sizing_options)
    uint32_t struct_size;
    /// CacheElement type of the cache: MNNKV_DTYPE_F16, BF16, F32, INT8, FP8 or INT4; 0 = what the model runs in, or F16
    /// where its config does not say. Scales of quantised types are not counted.
    uint32_t element;
    /// Tensor-parallel ranks; 0 = 1. KV heads are dealt out evenly; where there are fewer heads than ranks each rank
    /// has a copy of one. Latents (MLA) are whole on every rank.
    uint32_t ranks;
    /// Sequences of the asked length; 0 = 1.
    uint32_t batch;
    /// Eviction: one token in this many stays, 1 to 1,000,000, as kv_h2o_target_lossy_ratio with basis "logical";
    /// 0 = none is evicted.
    double h2o_ratio;
    /// Lossless compression: raw over compressed bytes of cold tokens, 1 to 1,000,000, as measured on this model and
    /// element type; 0 = none.
    double lossless_ratio;
    /// First layer to evict from; default 2.
    uint32_t h2o_layer_start;
    /// Last layer to evict from, -1 = the model's last; default -1.
    int32_t h2o_layer_end;
    /// First and last tokens that always stay; default 288. While they alone are as many as the ratio allows, all stay.
    uint32_t h2o_protected_tokens;
    /// Nothing is evicted below this length; default 512.
    uint32_t h2o_trigger_tokens;
    /// 1: K and V are int8 with a scale and an offset per channel, which come with the weights; 0: they are not.
    uint32_t c8;
    /// Layers to compress: MNNKV_SCOPE_FRONT_N, MNNKV_SCOPE_H2O_KEPT, both, or 0 for none; default FRONT_N.
    uint32_t lossless_scope;
    /// Number of first layers to compress; more than the model has is all; default 2.
    uint32_t lossless_front_n;
    /// First and last tokens of a layer, which are never compressed; default 272.
    uint32_t lossless_hot_tokens;
    /// Must be 0.
    uint32_t reserved[4];
} mnnkv_sizing_options;

/// A model as a whole. Set struct_size before the call; the fields it covers are written.
typedef struct mnnkv_sizing_info {
    /// sizeof(mnnkv_sizing_info)
    uint32_t struct_size;
    /// Decoder layers, with a cache or without.
    uint32_t layers;
    /// Layers that have a cache of their own.
    uint32_t cache_layers;
    /// CacheElement type that the model runs in (MNNKV_DTYPE_*); 0 = the config names none that is known.
    uint32_t element;
    /// Longest context that the model was made for, in tokens; 0 = the config does not say.
    uint64_t max_context;
} mnnkv_sizing_info;

/// One layer. Set struct_size before the call; the fields it covers are written. What a layer has not is 0.
typedef struct mnnkv_sizing_layer_info {
    /// sizeof(mnnkv_sizing_layer_info)
    uint32_t struct_size;
    /// MNNKV_LAYER_*
    uint32_t kind;
    /// KV heads; 0 in latent attention.
    uint32_t kv_heads;
    /// Elements of a key, and of a value.
    uint32_t head_dim;
    /// Elements of a latent (MLA).
    uint32_t kv_lora_rank;
    /// Elements of the rotated key beside it (MLA).
    uint32_t qk_rope_head_dim;
    /// Most tokens that the layer keeps; 0 = all of them.
    uint32_t most_tokens;
    /// 0.
    uint32_t reserved;
    /// Elements of the state of one sequence; 0 = the config does not say.
    uint64_t state_elements;
} mnnkv_sizing_layer_info;

/// The bytes of a cache on one rank, all sequences together. Each number has the savings of those before it; what is
/// off changes nothing. Set struct_size before the call; the fields it covers are written.
typedef struct mnnkv_sizing_total {
    /// sizeof(mnnkv_sizing_total)
    uint32_t struct_size;
    /// 0.
    uint32_t reserved;
    /// Bytes: nothing is saved.
    uint64_t raw;
    /// Bytes: tokens are evicted. The most that a chat of this length has held, so it never falls as chats grow.
    uint64_t after_h2o;
    /// Bytes: and what stays is int8.
    uint64_t after_c8;
    /// Bytes: and its cold tokens are compressed; the cache between two steps.
    uint64_t after_lossless;
    /// Bytes: the most within a step, when a compressed layer is raw for attention to read and the next one is decoded,
    /// while the blobs of both are kept. This is what has to fit.
    uint64_t peak;
    /// Bytes: C8's scales and offsets, one f32 each per channel of K and of V. They come with the weights and are in no
    /// other number.
    uint64_t c8_scale_bytes;
} mnnkv_sizing_total;

/// The values of K or of V: element type, order and lengths. There are kv_heads * head_dim * tokens of them, dense, in
/// the byte order of the machine, without need for alignment; their codes are int8, one for each, in the same order.
/// Functions take lengths besides, which must be those of the shape: of values in bytes, of codes in codes.
///
/// A channel is a dim of a KV head, number kv_head * head_dim + dim; there are kv_heads * head_dim of them.
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
    /// Any number; 0 is legal.
    uint32_t tokens;
    /// Must be 0.
    uint32_t reserved[2];
} mnnkv_c8_shape;

/// A scale and an offset for each channel of K or of V.
///
///   code  = clamp(rint(value / scale + offset), -128, 127)
///   value = (code - offset) * scale
///
/// in f32, rounded to nearest with ties to even. Scales are finite and at least 2^-100, offsets are integers from -128
/// to 127 (0 in symmetric files); anything else is INVALID_ARGUMENT and the message names the channel. Where a file has
/// one scale for all channels, repeat it.
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

/// What values lose on the way to int8 and back. Set struct_size before the call; the fields it covers are written.
typedef struct mnnkv_c8_figures {
    /// sizeof(mnnkv_c8_figures)
    uint32_t struct_size;
    /// The channel whose root mean square difference is the largest; the first of equals.
    uint32_t worst_channel;
    /// Values compared.
    uint64_t elements;
    /// Values beyond the range of codes. Their error has no bound; all others are off by half a scale at most, and
    /// by their rounding to the element type.
    uint64_t saturated;
    /// The largest absolute difference.
    double max_abs_error;
    /// The root of the mean square difference.
    double rms_error;
    /// That over the root of the mean square value; 0 where nothing differs, infinite where all values are 0 and some
    /// restored one is not.
    double relative_rms_error;
    /// The cosine of the angle between values and restored values; 1 where nothing differs, 0 where one side is all
    /// zeros or infinite.
    double cosine_similarity;
    /// Written as 0.
    uint32_t reserved[2];
} mnnkv_c8_figures;

/// A directory as a whole. Set struct_size before the call; the fields it covers are written.
typedef struct mnnkv_msmodelslim_info {
    /// sizeof(mnnkv_msmodelslim_info)
    uint32_t struct_size;
    /// 1 when KV scales are declared: kv_cache_type or kv_quant_type.
    uint32_t kv_declared;
    /// Weights with two dimensions, those that are not quantised included.
    uint64_t linears;
    /// Norms.
    uint64_t norms;
    /// Layers with KV scales.
    uint64_t kv_layers;
    /// Files with weights.
    uint64_t weight_files;
    /// Bytes of all tensors.
    uint64_t bytes;
    /// 0.
    uint32_t reserved[2];
} mnnkv_msmodelslim_info;

/// A linear. Set struct_size before the call; the fields it covers are written.
typedef struct mnnkv_msmodelslim_linear_info {
    /// sizeof(mnnkv_msmodelslim_linear_info)
    uint32_t struct_size;
    /// MNNKV_MSMODELSLIM_FLOAT to MNNKV_MSMODELSLIM_OTHER.
    uint32_t tag;
    /// MNNKV_SCALE_*.
    uint32_t granularity;
    /// 1 when there is a float bias. With W8A8, W8A8S and W8A8_MIX quant_bias contains it already.
    uint32_t bias;
    /// Rows: outputs.
    uint64_t n;
    /// Columns: inputs.
    uint64_t k;
    /// Columns with one scale; 0 unless there are groups.
    uint64_t group_size;
    /// Bytes of all its tensors.
    uint64_t bytes;
    /// 0.
    uint32_t reserved[2];
} mnnkv_msmodelslim_linear_info;

/// How a directory is written. Zero every field, then set struct_size; a NULL pointer means the same as all zeros.
typedef struct mnnkv_msmodelslim_writer_options {
    /// sizeof(mnnkv_msmodelslim_writer_options)
    uint32_t struct_size;
    /// 1 = weights have offsets, which not every runtime reads alike. 0 = offsets are zero.
    uint32_t asymmetric;
    /// Columns with one scale, a divisor of every linear's k; 0 = one scale for each row.
    uint64_t group_size;
    /// Bytes of tensors at which a part ends; 0 = one file without an index.
    uint64_t part_bytes;
    /// Must be 0.
    uint32_t reserved[2];
} mnnkv_msmodelslim_writer_options;

/// What a weights file says of itself. Set struct_size before the call; the fields it covers are written.
typedef struct mnnkv_compressor_info {
    /// sizeof(mnnkv_compressor_info)
    uint32_t struct_size;
    /// MNNKV_DTYPE_F16, BF16 or F32: of the weights in the file. Caches may have another type.
    uint32_t dtype;
    /// Layers of the model.
    uint32_t layers;
    /// 12, or 6 when there are no networks for images.
    uint32_t blocks_per_layer;
    /// Elements per head and token of the caches that it compresses.
    uint32_t head_dim;
    /// Tokens that become one.
    uint32_t compression_factor;
    /// Groups that a segment must have to be compressed.
    uint32_t min_seq_len;
    /// KV heads as the converter was told, mostly 0: the networks serve any number.
    uint32_t num_heads;
    /// head_dim as the file's header has it; another one than head_dim where a converter guessed it.
    uint32_t header_head_dim;
    /// Elements that enter a network, compression_factor * head_dim.
    uint32_t hidden_size;
    /// Bytes of metadata in the file, which the library ignores.
    uint32_t metadata_bytes;
    /// Sentences in mnnkv_compressor_notes.
    uint32_t notes;
    /// Bytes of the file.
    uint64_t file_bytes;
    /// Bytes behind the last block, which the library ignores.
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

/// How caches are compressed. Zero every field, then set struct_size; a NULL pointer means the same as all zeros.
typedef struct mnnkv_compressor_options {
    /// sizeof(mnnkv_compressor_options)
    uint32_t struct_size;
    /// Tokens that become one; 0 or 1 = as the file says. A file has one factor: any other is INVALID_ARGUMENT.
    uint32_t factor;
    /// Groups that a segment must have to be compressed; 0 = as the file says.
    uint32_t min_seq_len;
    /// Tokens at the start of the cache that are an image's; more than there are means all.
    uint32_t image_kv_len;
    /// MNNKV_SEGMENT_TEXT, MNNKV_SEGMENT_IMAGE or both: the segments that are compressed; 0 = both.
    uint32_t segments;
    /// Must be 0.
    uint32_t reserved[3];
} mnnkv_compressor_options;

/// What the header of a weights file is to say. There are no defaults: NULL is INVALID_ARGUMENT, and 0 means 0.
typedef struct mnnkv_compressor_header {
    /// sizeof(mnnkv_compressor_header)
    uint32_t struct_size;
    /// MNNKV_DTYPE_F16, BF16 or F32: of the weights in the file.
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
    /// Elements that leave it.
    uint32_t rows;
    /// Elements that enter it.
    uint32_t cols;
    /// rows * cols numbers: row after row.
    const float *weight;
    /// rows numbers, or NULL for none.
    const float *bias;
} mnnkv_compressor_linear;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/// Fills in the defaults named at the fields, struct_size included: one sequence on one rank without savings. NULL is
/// ignored. Any thread.
void mnnkv_sizing_options_default(struct mnnkv_sizing_options *options);

/// Reads a Hugging Face config.json of len bytes (no terminating zero needed; at most 4 MiB).
///
/// Of a multimodal model the language model counts (text_config, llm_config, language_config, thinker_config). What the
/// config leaves out is taken from the defaults of its model_type where those are known; every assumption, and what no
/// number has, is in mnnkv_sizing_notes. Numbers alone are a config, too: {"num_hidden_layers": 32,
/// "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}, or for MLA with "kv_lora_rank" and
/// "qk_rope_head_dim". abi_version: MNNKV_ABI_VERSION. out: the handle, to be given to mnnkv_sizing_destroy.
/// INVALID_ARGUMENT: no JSON object; a key that is missing or has a value of another type or range, which the message
/// names with what was found. UNSUPPORTED: attention whose cache this version cannot tell the size of; another ABI.
/// Any thread.
mnnkv_status mnnkv_sizing_create(const char *config_json,
                                 size_t len,
                                 uint32_t abi_version,
                                 struct mnnkv_sizing **out);

/// Frees what mnnkv_sizing_create made. NULL is ignored. No other call on it may be under way.
void mnnkv_sizing_destroy(struct mnnkv_sizing *sizing);

/// The model as a whole. Set info->struct_size first. Any thread.
mnnkv_status mnnkv_sizing_get_info(const struct mnnkv_sizing *sizing, struct mnnkv_sizing_info *info);

/// One layer, counted from 0. Set info->struct_size first. INVALID_ARGUMENT: no such layer. Any thread.
mnnkv_status mnnkv_sizing_get_layer_info(const struct mnnkv_sizing *sizing,
                                         uint32_t layer,
                                         struct mnnkv_sizing_layer_info *info);

/// Bytes that one more token of one sequence takes on a rank, before any saving. bytes_per_token: while no window or
/// chunk is full, bytes_per_late_token: once all are.
/// INVALID_ARGUMENT, UNSUPPORTED: as mnnkv_sizing_bytes. Any thread.
mnnkv_status mnnkv_sizing_per_token(const struct mnnkv_sizing *sizing,
                                    const struct mnnkv_sizing_options *options,
                                    uint64_t *bytes_per_token,
                                    uint64_t *bytes_per_late_token);

/// Bytes of the cache on one rank at tokens tokens per sequence. More tokens never take less. options: NULL = the
/// defaults. Set total->struct_size first.
/// INVALID_ARGUMENT: tokens over MNNKV_SIZING_MAX_TOKENS; an option out of range; more KV heads than ranks that they
/// cannot be dealt out to evenly; bytes that do not fit 64 bits. UNSUPPORTED: C8 of elements with 8 bits or fewer, or
/// of latents (MLA). Any thread.
mnnkv_status mnnkv_sizing_bytes(const struct mnnkv_sizing *sizing,
                                const struct mnnkv_sizing_options *options,
                                uint64_t tokens,
                                struct mnnkv_sizing_total *total);

/// The longest context whose cache takes at most budget bytes on each rank, savings applied, at the peak of a step.
///
/// tokens: these fit, and one more would not; MNNKV_SIZING_MAX_TOKENS when every length fits, since layers keep a
/// bounded number of tokens or the budget is vast. 0 when not even one fits. bytes: what they take at the peak.
/// INVALID_ARGUMENT, UNSUPPORTED: as mnnkv_sizing_bytes, for options. Any thread.
mnnkv_status mnnkv_sizing_longest(const struct mnnkv_sizing *sizing,
                                  const struct mnnkv_sizing_options *options,
                                  uint64_t budget,
                                  uint64_t *tokens,
                                  uint64_t *bytes);

/// What was assumed about the model, and what no number has, one sentence per line.
///
/// text: room for cap bytes. len: the length of the text with the zero at its end; 1 when there is nothing to say.
/// BUFFER_TOO_SMALL: *len is what is needed. Any thread.
mnnkv_status mnnkv_sizing_notes(const struct mnnkv_sizing *sizing,
                                char *text,
                                size_t cap,
                                size_t *len);

/// Everything at once as a JSON object: the model and its layers by kind, bytes per token, totals at each of n contexts
/// (at most 1,024) on one rank and on all, what each saving leaves alone, the longest context in budget bytes without
/// and with savings (budget 0: left out), and notes. Numbers have the names that they have in the other functions.
///
/// contexts: n lengths in tokens; NULL with n 0. text, cap, len: as mnnkv_sizing_notes.
/// INVALID_ARGUMENT, UNSUPPORTED: as mnnkv_sizing_bytes. Any thread.
mnnkv_status mnnkv_sizing_report_json(const struct mnnkv_sizing *sizing,
                                      const struct mnnkv_sizing_options *options,
                                      const uint64_t *contexts,
                                      size_t n,
                                      uint64_t budget,
                                      char *text,
                                      size_t cap,
                                      size_t *len);

/// Begins calibration: no range of the channels holds anything. min, max: one number per channel (+inf and -inf, the
/// ranges of nothing). Any thread.
mnnkv_status mnnkv_c8_ranges_clear(size_t channels,
                                   float *min,
                                   float *max);

/// Widens the ranges of channels by a batch of K or of V, as it goes into the cache (K after RoPE).
///
/// values: values_len bytes, those of the shape. min, max: kv_heads * head_dim numbers each, changed in place. Call it
/// with every batch: in any order and any split the ranges come out the same, and those of several threads are merged
/// by taking the lesser min and the greater max of each channel.
/// INVALID_ARGUMENT: NaN or infinity among the values (the message names token and channel), values_len that is not
/// that of the shape, a range that is neither cleared nor finite; no range has changed then. Any thread.
mnnkv_status mnnkv_c8_ranges_update(const struct mnnkv_c8_shape *shape,
                                    const void *values,
                                    size_t values_len,
                                    float *min,
                                    float *max);

/// Makes scales and offsets of what calibration saw.
///
///   lo = min(min, 0), hi = max(max, 0), in f32
///   MNNKV_C8_SYMMETRIC    scale = max(-lo, hi) / 127      offset = 0
///   MNNKV_C8_ASYMMETRIC   scale = (hi - lo) / 255         offset = rint(-lo / scale) - 128
///
/// and no scale below 2^-23. dtype: the element type of the statistics, MNNKV_DTYPE_F16, _BF16 or _F32; scales are
/// rounded to it, as files in that type hold them, and written as f32. min, max, scale, offset: channels numbers each.
/// INVALID_ARGUMENT: another symmetry or dtype, a channel of which nothing was observed, or one whose scale overflows
/// dtype (the message names it); nothing is written then. Any thread.
mnnkv_status mnnkv_c8_parameters(const float *min,
                                 const float *max,
                                 size_t channels,
                                 uint32_t symmetry,
                                 uint32_t dtype,
                                 float *scale,
                                 float *offset);

/// Turns values into codes.
///
/// values: values_len bytes, those of the shape. codes: room for codes_cap codes; kv_heads * head_dim * tokens are
/// written. Values beyond the range of codes saturate, infinities too; NaN gets the code of 0. Codes do not depend on
/// the CPU.
/// INVALID_ARGUMENT: values_len is not that of the shape, or bad scales. BUFFER_TOO_SMALL: codes_cap;
/// mnnkv_last_error says what is needed. Any thread.
mnnkv_status mnnkv_c8_quantize(const struct mnnkv_c8_shape *shape,
                               const void *values,
                               size_t values_len,
                               const struct mnnkv_c8_scales *scales,
                               int8_t *codes,
                               size_t codes_cap);

/// Turns codes into values.
///
/// codes: codes_len codes, those of the shape. values: room for values_cap bytes, of which the shape's are written,
/// rounded to its dtype. A product beyond the largest number of the dtype becomes infinite (F16: with scales over 256).
/// Values do not depend on the CPU.
/// INVALID_ARGUMENT: codes_len is not that of the shape, or bad scales. BUFFER_TOO_SMALL: values_cap; mnnkv_last_error
/// says what is needed. Any thread.
mnnkv_status mnnkv_c8_dequantize(const struct mnnkv_c8_shape *shape,
                                 const int8_t *codes,
                                 size_t codes_len,
                                 const struct mnnkv_c8_scales *scales,
                                 void *values,
                                 size_t values_cap);

/// Turns values into codes and back and says what that costs. values: values_len bytes, those of the shape. Set
/// figures->struct_size first.
/// INVALID_ARGUMENT: NaN or infinity among the values (the message names token and channel), values_len that is not
/// that of the shape, or bad scales. Any thread.
mnnkv_status mnnkv_c8_measure(const struct mnnkv_c8_shape *shape,
                              const void *values,
                              size_t values_len,
                              const struct mnnkv_c8_scales *scales,
                              struct mnnkv_c8_figures *figures);

/// Copies tokens begin .. begin + count out of a packed cache as codes, as mnnkv_kv_gather and mnnkv_c8_quantize
/// would together.
///
/// key, value: the buffers of the layout. key_scales, value_scales: of kv_heads * head_dim channels each. key_codes,
/// value_codes: [head][token][dim], kv_heads * count * head_dim codes each; cap_each is the capacity of each. Takes
/// memory for the values of the range while it works.
/// INVALID_ARGUMENT: the range is not inside max_tokens, or bad scales. BUFFER_TOO_SMALL: cap_each; mnnkv_last_error
/// says what is needed. OUT_OF_MEMORY. Any thread, also on the same cache as long as nobody writes it.
mnnkv_status mnnkv_c8_gather(const mnnkv_layout *layout,
                             const void *key,
                             const void *value,
                             uint32_t begin,
                             uint32_t count,
                             const struct mnnkv_c8_scales *key_scales,
                             const struct mnnkv_c8_scales *value_scales,
                             int8_t *key_codes,
                             int8_t *value_codes,
                             size_t cap_each);

/// Writes codes as values into tokens begin .. begin + count of a packed cache, as mnnkv_c8_dequantize and
/// mnnkv_kv_scatter would together.
///
/// key_codes, value_codes: [head][token][dim], len_each codes in each, exactly those of the range. key_scales,
/// value_scales: of kv_heads * head_dim channels each. Padding and other tokens are untouched. Takes memory for the
/// values of the range while it works.
/// INVALID_ARGUMENT: the range is not inside max_tokens, len_each, or bad scales; OUT_OF_MEMORY. The cache has not
/// changed then. One thread per cache.
mnnkv_status mnnkv_c8_scatter(const mnnkv_layout *layout,
                              const int8_t *key_codes,
                              const int8_t *value_codes,
                              size_t len_each,
                              const struct mnnkv_c8_scales *key_scales,
                              const struct mnnkv_c8_scales *value_scales,
                              uint32_t begin,
                              uint32_t count,
                              void *key,
                              void *value);

/// Checks the directory at path (UTF-8, zero-terminated) and reports everything that is wrong with it as JSON:
/// {"errors": 1, "warnings": 0, "findings": [{"severity": "error", "kind": "missing_tensor", "tensor": "...", "file":
/// "...", "text": "..."}, ...]}. An error is what cannot be used or gives wrong numbers, a warning what other readers
/// may refuse or read otherwise; the words of kind are stable. Files, names, types, shapes, and every number of scales,
/// offsets and codes are checked; tensors are read once, in pieces. A directory that is broken, or not there, is no
/// failure of the call: the report says so.
///
/// text: room for cap bytes. len: the length of the text with the zero at its end. BUFFER_TOO_SMALL: *len is what is
/// needed; the next call reads everything again, so begin with room for a report, such as 64 KiB. Any thread.
mnnkv_status mnnkv_msmodelslim_check_json(const char *path,
                                          char *text,
                                          size_t cap,
                                          size_t *len);

/// Opens the directory at path (UTF-8, zero-terminated). abi_version: MNNKV_ABI_VERSION. out: the handle, to be given
/// to mnnkv_msmodelslim_destroy.
///
/// NOT_FOUND: no such directory, or no weights or description in it. INVALID_ARGUMENT: path is no directory, or several
/// files could be its description or index. CORRUPT: a document or a file's header is broken; a layer that is broken is
/// an error only when it is used. IO: something cannot be read. UNSUPPORTED: another ABI. Any thread.
mnnkv_status mnnkv_msmodelslim_open(const char *path,
                                    uint32_t abi_version,
                                    struct mnnkv_msmodelslim **out);

/// Closes a directory. NULL is ignored. No other call may be under way.
void mnnkv_msmodelslim_destroy(struct mnnkv_msmodelslim *model);

/// How many linears, norms and KV layers there are. Set info->struct_size first.
mnnkv_status mnnkv_msmodelslim_get_info(const struct mnnkv_msmodelslim *model,
                                        struct mnnkv_msmodelslim_info *info);

/// Everything that is in the directory, as JSON: an object with model_quant_type, version, group_size, kv_cache_type,
/// bytes, and the lists linears (name, tag, n, k, granularity, group_size, bias, bytes, error), norms (name, len, bias,
/// smoothed, error) and kv (prefix, layer, key_channels, value_channels, error). What cannot be used has a text in
/// error.
///
/// text: room for cap bytes. len: the length of the text with the zero at its end. BUFFER_TOO_SMALL: *len is what is
/// needed.
mnnkv_status mnnkv_msmodelslim_layers_json(const struct mnnkv_msmodelslim *model,
                                           char *text,
                                           size_t cap,
                                           size_t *len);

/// The name of number index of list: MNNKV_MSMODELSLIM_LINEARS (without ".weight"), MNNKV_MSMODELSLIM_NORMS (the same)
/// or MNNKV_MSMODELSLIM_KV_LAYERS (the attention module, or its merged linear). text, cap, len: as
/// mnnkv_msmodelslim_layers_json. NOT_FOUND: the list is shorter. INVALID_ARGUMENT: another list.
mnnkv_status mnnkv_msmodelslim_name(const struct mnnkv_msmodelslim *model,
                                    uint32_t list,
                                    uint64_t index,
                                    char *text,
                                    size_t cap,
                                    size_t *len);

/// The number of the linear of this name (zero-terminated, without ".weight"). NOT_FOUND: there is none.
mnnkv_status mnnkv_msmodelslim_find(const struct mnnkv_msmodelslim *model,
                                    const char *name,
                                    uint64_t *linear);

/// What the linear of this number is. Set info->struct_size first. NOT_FOUND: there is none.
mnnkv_status mnnkv_msmodelslim_get_linear_info(const struct mnnkv_msmodelslim *model,
                                               uint64_t linear,
                                               struct mnnkv_msmodelslim_linear_info *info);

/// Codes of 0 .. 255 as the signed ones that files of this format have: code - 128. Their offset, less 128, and their
/// scale go on. codes, signed_codes: n each; they may not overlap. n 0 is legal. Any thread.
mnnkv_status mnnkv_msmodelslim_signed(const uint8_t *codes,
                                      size_t n,
                                      int8_t *signed_codes);

/// Writes rows row_begin .. row_begin + rows of a linear's weight as numbers: rows * k elements of dtype
/// (MNNKV_DTYPE_F16, BF16 or F32), row-major, rounded to nearest even from fp32.
///
/// W8A16, W8A8_DYNAMIC, W8A8_MIX: (code - weight_offset) * weight_scale. W8A8, W8A8S: code * weight_scale where the
/// file has that, else code * (deq_scale / input_scale). FLOAT: the numbers themselves. Memory during the call: a byte
/// for each code, so take some rows at a time.
/// out: room for out_bytes bytes, in the byte order of the machine; needs no alignment. rows 0 is legal. NOT_FOUND: no
/// such linear. INVALID_ARGUMENT: rows that it does not have, or another dtype. BUFFER_TOO_SMALL: out_bytes;
/// mnnkv_last_error says what is needed. UNSUPPORTED: another type of quantisation. CORRUPT: its tensors do not fit
/// each other, or a scale is no positive number; the message names it. IO: the file cannot be read, or has become
/// shorter.
mnnkv_status mnnkv_msmodelslim_dequantize(const struct mnnkv_msmodelslim *model,
                                          uint64_t linear,
                                          uint64_t row_begin,
                                          uint64_t rows,
                                          uint32_t dtype,
                                          void *out,
                                          size_t out_bytes);

/// Some outputs of a linear of type W8A8, W8A8S or W8A8_MIX, computed as the hardware does: inputs are quantised, codes
/// are multiplied and summed in whole numbers, and the sums turned back: y = (sum of x code * weight code, plus
/// quant_bias) * deq_scale. A float bias is part of quant_bias.
///
/// x: tokens rows of k floats. y: tokens rows of rows floats, for the outputs row_begin .. row_begin + rows; room for
/// y_cap floats. Inputs are quantised with a division; hardware that multiplies with the reciprocal may round a tie
/// otherwise. NOT_FOUND, UNSUPPORTED, CORRUPT, IO: as mnnkv_msmodelslim_dequantize. INVALID_ARGUMENT: rows that it does
/// not have, or NaN in x. BUFFER_TOO_SMALL: y_cap; mnnkv_last_error says what is needed.
mnnkv_status mnnkv_msmodelslim_linear_w8a8(const struct mnnkv_msmodelslim *model,
                                           uint64_t linear,
                                           uint64_t row_begin,
                                           uint64_t rows,
                                           const float *x,
                                           size_t tokens,
                                           float *y,
                                           size_t y_cap);

/// Factors and summands of a norm, fp32. quantized: 1 = for quantised linears behind it (the pair of its name with
/// ".module" where there is one), 0 = for float ones (the plain pair). Without a bias in the files bias is zeros.
///
/// weight, bias: room for cap floats each. len: how many there are. BUFFER_TOO_SMALL: *len is what is needed.
/// NOT_FOUND: no such norm, or no plain pair. CORRUPT: its tensors do not fit each other. IO: as
/// mnnkv_msmodelslim_dequantize.
mnnkv_status mnnkv_msmodelslim_norm(const struct mnnkv_msmodelslim *model,
                                    uint64_t norm,
                                    uint32_t quantized,
                                    float *weight,
                                    float *bias,
                                    size_t cap,
                                    size_t *len);

/// Scales and offsets of a layer's KV cache, fp32, as mnnkv_c8_scales takes them. kv_layer: a number in
/// MNNKV_MSMODELSLIM_KV_LAYERS, which is the layer's own only where all layers have scales. values: 0 = of keys, 1 = of
/// values. Offsets that the file does not have are zeros.
///
/// scale, offset: room for cap floats each. len: how many there are: one for each channel, or 1, which is for all of
/// them. BUFFER_TOO_SMALL: *len is what is needed. NOT_FOUND: no such layer. CORRUPT: its tensors do not fit each
/// other, or a scale is no positive number. IO: as mnnkv_msmodelslim_dequantize.
mnnkv_status mnnkv_msmodelslim_kv_scales(const struct mnnkv_msmodelslim *model,
                                         uint64_t kv_layer,
                                         uint32_t values,
                                         float *scale,
                                         float *offset,
                                         size_t cap,
                                         size_t *len);

/// Prepares a directory at path (UTF-8, zero-terminated). It may exist, and must have no quantised weights or
/// description; else its parent must exist. Nothing is written before the first contents. abi_version:
/// MNNKV_ABI_VERSION. out: the handle, to be given to mnnkv_msmodelslim_writer_destroy.
/// options: NULL = one file, scales for rows, no offsets. INVALID_ARGUMENT: path is no directory, or one with weights;
/// an option out of range. IO: path cannot be looked at. UNSUPPORTED: another ABI. Any thread.
mnnkv_status mnnkv_msmodelslim_writer_create(const char *path,
                                             const struct mnnkv_msmodelslim_writer_options *options,
                                             uint32_t abi_version,
                                             struct mnnkv_msmodelslim_writer **out);

/// Frees a writer. What it wrote is removed unless it has finished. NULL is ignored. Works on a handle that answers
/// INTERNAL. No other call may be under way.
void mnnkv_msmodelslim_writer_destroy(struct mnnkv_msmodelslim_writer *writer);

/// Announces a tensor that is copied as it is. tag: the word for the description, such as "FLOAT", or of the layer that
/// it is of. dtype: as safetensors has it, such as "F16", "BF16", "F32", "I8". Texts are zero-terminated. shape: rank
/// dimensions, outermost first; 0 for a single number.
/// INVALID_ARGUMENT: a name that was announced or has no dot, an unknown word, a shape of no possible size, or contents
/// have begun.
mnnkv_status mnnkv_msmodelslim_writer_tensor(struct mnnkv_msmodelslim_writer *writer,
                                             const char *name,
                                             const char *tag,
                                             const char *dtype,
                                             const uint64_t *shape,
                                             size_t rank);

/// Announces a linear's weight, n rows by k columns, that comes as floats and is quantised to W8A16: name.weight,
/// name.weight_scale and name.weight_offset. name: zero-terminated. Its bias, if any, is a tensor of its own.
/// INVALID_ARGUMENT: a name that was announced, no rows or columns, group_size does not divide k, or contents have
/// begun.
mnnkv_status mnnkv_msmodelslim_writer_linear(struct mnnkv_msmodelslim_writer *writer,
                                             const char *name,
                                             size_t n,
                                             size_t k);

/// Announces the KV scales of a layer (C8). prefix: the name of its attention module, zero-terminated. channels: KV
/// heads times head_dim. INVALID_ARGUMENT: as mnnkv_msmodelslim_writer_linear.
mnnkv_status mnnkv_msmodelslim_writer_kv(struct mnnkv_msmodelslim_writer *writer,
                                         const char *prefix,
                                         size_t channels);

/// The next len bytes of an announced tensor, little endian. INVALID_ARGUMENT: another one is due, or more bytes than
/// are left. NOT_FOUND, IO: the directory cannot be written, such as where its parent is missing; then only destroy is
/// left.
mnnkv_status mnnkv_msmodelslim_writer_append(struct mnnkv_msmodelslim_writer *writer,
                                             const char *name,
                                             const void *data,
                                             size_t len);

/// The next count floats of an announced linear: whole rows. INVALID_ARGUMENT: another one is due, no whole rows, more
/// than are left, a number that is not finite, or, with asymmetric, numbers that are further apart than f32 reaches;
/// nothing is written then. NOT_FOUND, IO: as mnnkv_msmodelslim_writer_append.
mnnkv_status mnnkv_msmodelslim_writer_append_rows(struct mnnkv_msmodelslim_writer *writer,
                                                  const char *name,
                                                  const float *weights,
                                                  size_t count);

/// The KV scales of an announced layer: channels floats each. key_offset, value_offset: whole numbers from -128 to 127,
/// or NULL for zeros, which every runtime reads alike. INVALID_ARGUMENT: another one is due, another number of
/// channels, a scale that is not positive, or an offset that is no code. NOT_FOUND, IO: as
/// mnnkv_msmodelslim_writer_append.
mnnkv_status mnnkv_msmodelslim_writer_append_kv(struct mnnkv_msmodelslim_writer *writer,
                                                const char *prefix,
                                                const float *key_scale,
                                                const float *key_offset,
                                                const float *value_scale,
                                                const float *value_offset,
                                                size_t channels);

/// Completes the directory. INVALID_ARGUMENT: contents are missing, or nothing was announced. IO: the directory cannot
/// be written. What was written is removed then, and only destroy is left, as it is on success. OUT_OF_MEMORY: nothing
/// was changed; call again.
mnnkv_status mnnkv_msmodelslim_writer_finish(struct mnnkv_msmodelslim_writer *writer);

/// Reads a weights file. path: UTF-8, terminated by a zero; links are followed. The file is read through, its weights
/// are kept in memory in the file's type, and it is closed. abi_version: MNNKV_ABI_VERSION. out: the handle, to be
/// given to mnnkv_compressor_destroy.
///
/// The reader is strict: what it takes, mnnkv_compressor_run can compute. CORRUPT: the file is of another
/// kind, or cut off; counts, shapes or flags do not fit together; a weight is not finite. UNSUPPORTED: another version
/// or element type of the format; another ABI. The message has the offset and the field, and names blocks by layer,
/// number and what they are for (tk, tv, ik, iv: text or image, K or V). NOT_FOUND: there is no file of this name. IO:
/// it cannot be read. INVALID_ARGUMENT: path is no file. Any thread.
mnnkv_status mnnkv_compressor_open(const char *path,
                                   uint32_t abi_version,
                                   struct mnnkv_compressor **out);

/// As mnnkv_compressor_open, of a file of len bytes in memory. Its weights are copied: bytes may go after the call.
mnnkv_status mnnkv_compressor_create(const void *bytes,
                                     size_t len,
                                     uint32_t abi_version,
                                     struct mnnkv_compressor **out);

/// Frees a compressor. NULL is ignored. No other call may be under way.
void mnnkv_compressor_destroy(struct mnnkv_compressor *compressor);

/// What the file says of itself. Set info->struct_size first. Any thread.
mnnkv_status mnnkv_compressor_get_info(const struct mnnkv_compressor *compressor,
                                       struct mnnkv_compressor_info *info);

/// What is odd about the file but no error, one sentence per line: reserved bytes that are not 0, metadata, bytes
/// behind the last block, a head_dim that a converter guessed.
///
/// text: room for cap bytes. len: the length of the text with the zero at its end; 1 when there is nothing to say.
/// BUFFER_TOO_SMALL: *len is what is needed. Any thread.
mnnkv_status mnnkv_compressor_notes(const struct mnnkv_compressor *compressor,
                                    char *text,
                                    size_t cap,
                                    size_t *len);

/// What one block of the file is. block: 0 to blocks_per_layer - 1; 3 each for tk, tv, ik and iv. Set info->struct_size
/// first. INVALID_ARGUMENT: there is no such layer or block. Any thread.
mnnkv_status mnnkv_compressor_get_block_info(const struct mnnkv_compressor *compressor,
                                             uint32_t layer,
                                             uint32_t block,
                                             struct mnnkv_compressor_block_info *info);

/// How long a cache of kv_len tokens becomes: kv_len itself when nothing would be compressed. options: NULL = as the
/// file says. INVALID_ARGUMENT: a factor that is not that of the file, unknown segments. Any thread.
mnnkv_status mnnkv_compressor_new_len(const struct mnnkv_compressor *compressor,
                                      const struct mnnkv_compressor_options *options,
                                      uint32_t kv_len,
                                      uint32_t *new_len);

/// Compresses one layer of dense rows [head][token][dim].
///
/// dtype: MNNKV_DTYPE_F16, BF16 or F32, of all four buffers, in the byte order of the machine. key, value: kv_heads *
/// kv_len * head_dim elements each. key_out, value_out: kv_heads * new_len * head_dim elements each (new_len:
/// mnnkv_compressor_new_len says it beforehand); cap_each is the capacity of each in bytes. Rows that are not
/// compressed are copied. Weights are rounded to dtype, sums are f32, and each linear layer's result is rounded to
/// dtype once: the same bytes on every machine. options: NULL = as the file says. INVALID_ARGUMENT: no such layer, or a
/// result that is not finite in dtype (the message names head and tokens). BUFFER_TOO_SMALL: cap_each; *new_len is
/// written, mnnkv_last_error says how many bytes are needed. UNSUPPORTED: another dtype, or one too small for a weight.
/// Otherwise nothing is written on failure. Any thread.
mnnkv_status mnnkv_compressor_run(const struct mnnkv_compressor *compressor,
                                  uint32_t layer,
                                  const struct mnnkv_compressor_options *options,
                                  uint32_t dtype,
                                  uint32_t kv_heads,
                                  uint32_t kv_len,
                                  const void *key,
                                  const void *value,
                                  void *key_out,
                                  void *value_out,
                                  size_t cap_each,
                                  uint32_t *new_len);

/// Compresses the packed caches of n_layers neighbouring layers in place: all of a model's, or those of one device.
///
/// caches: the cache of layer first_layer + i is caches[i]; all have the same struct_size (they lie so many bytes
/// apart) and kv_len. Layouts may differ in packing, but have the head_dim of the file; K and V of a cache have one
/// type, F16, BF16 or F32. options: NULL = as the file says. old_len, new_len: tokens before and after; kv_len of
/// every cache becomes new_len. What lies behind it in the buffers is not cleared: mnnkv_kv_release gives that memory
/// back.
///
/// All layers are computed, into memory of the call (the compressed rows of all layers), before the first one is
/// written: on any failure no byte of any cache and no kv_len has changed.
/// INVALID_ARGUMENT: layers that the file does not have, caches of different kv_len, buffers that overlap, a layout
/// that does not fit, or a result that is not finite. UNSUPPORTED: a quantised cache, K and V of different types, a
/// type too small for a weight. One thread per cache; a session's or store's compressed tokens must be restored first,
/// and their blocks are no longer the cache's afterwards (mnnkv_store_truncated to 0, mnnkv_session_reset).
mnnkv_status mnnkv_compressor_run_caches(const struct mnnkv_compressor *compressor,
                                         uint32_t first_layer,
                                         const struct mnnkv_compressor_options *options,
                                         mnnkv_cache *caches,
                                         uint32_t n_layers,
                                         uint32_t *old_len,
                                         uint32_t *new_len);

/// Writes weights as a file for mnnkv_compressor_open, and InfiniLM.
///
/// linears: n_linears = layers * blocks_per_layer linear layers, layer by layer; in a layer tk, tv, ik and iv (text or
/// image, K or V), the first, second and third linear layer of each. The first has compression_factor * head_dim
/// columns, the last head_dim rows, and each as many columns as the one before has rows. Numbers are rounded to nearest
/// even. path: UTF-8, terminated by a zero. The file is complete or not there: one of that name stays what it is until
/// the new one is on the disk.
/// INVALID_ARGUMENT: shapes that do not fit together, or a number that is not finite in dtype (65520 in F16, say); the
/// message names layer, block and index. NOT_FOUND, IO: there is no such folder, or it cannot be written. Any thread.
mnnkv_status mnnkv_compressor_write_file(const struct mnnkv_compressor_header *header,
                                         const struct mnnkv_compressor_linear *linears,
                                         size_t n_linears,
                                         const char *path);

/// As mnnkv_compressor_write_file, to memory. dst: room for cap bytes. len: bytes of the file. BUFFER_TOO_SMALL: *len
/// is what is needed. Any thread.
mnnkv_status mnnkv_compressor_write(const struct mnnkv_compressor_header *header,
                                    const struct mnnkv_compressor_linear *linears,
                                    size_t n_linears,
                                    void *dst,
                                    size_t cap,
                                    size_t *len);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MNNKV_MODEL_H */
