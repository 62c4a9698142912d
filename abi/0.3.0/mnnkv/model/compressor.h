// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_MODEL_COMPRESSOR_H
#define MNNKV_MODEL_COMPRESSOR_H
#include "base.h"
#ifdef __cplusplus
extern "C" {
#endif
#define MNNKV_SEGMENT_TEXT 1
#define MNNKV_SEGMENT_IMAGE 2
typedef struct mnnkv_compressor mnnkv_compressor;
typedef struct mnnkv_compressor_info {
    uint32_t struct_size;
    uint32_t dtype;
    uint32_t layers;
    uint32_t blocks_per_layer;
    uint32_t head_dim;
    uint32_t compression_factor;
    uint32_t min_seq_len;
    uint32_t num_heads;
    uint32_t header_head_dim;
    uint32_t hidden_size;
    uint32_t metadata_bytes;
    uint32_t notes;
    uint64_t file_bytes;
    uint64_t trailing_bytes;
    uint32_t reserved[4];
} mnnkv_compressor_info;
typedef struct mnnkv_compressor_block_info {
    uint32_t struct_size;
    uint32_t rows;
    uint32_t cols;
    uint32_t has_bias;
    uint64_t offset;
    uint32_t reserved[2];
} mnnkv_compressor_block_info;
typedef struct mnnkv_compressor_options {
    uint32_t struct_size;
    uint32_t factor;
    uint32_t min_seq_len;
    uint32_t image_kv_len;
    uint32_t segments;
    uint32_t reserved[3];
} mnnkv_compressor_options;
mnnkv_status mnnkv_compressor_open(const char *path, uint32_t abi_version, mnnkv_compressor **out);
mnnkv_status mnnkv_compressor_create(const void *bytes, size_t len, uint32_t abi_version, mnnkv_compressor **out);
void mnnkv_compressor_destroy(mnnkv_compressor *compressor);
mnnkv_status mnnkv_compressor_get_info(const mnnkv_compressor *compressor, mnnkv_compressor_info *info);
mnnkv_status mnnkv_compressor_notes(const mnnkv_compressor *compressor, char *text, size_t cap, size_t *len);
mnnkv_status mnnkv_compressor_get_block_info(const mnnkv_compressor *compressor,
                                             uint32_t layer,
                                             uint32_t block,
                                             mnnkv_compressor_block_info *info);
mnnkv_status mnnkv_compressor_new_len(const mnnkv_compressor *compressor,
                                      const mnnkv_compressor_options *options,
                                      uint32_t kv_len,
                                      uint32_t *new_len);
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
mnnkv_status mnnkv_compressor_run_caches(const mnnkv_compressor *compressor,
                                         uint32_t first_layer,
                                         const mnnkv_compressor_options *options,
                                         mnnkv_cache *caches,
                                         uint32_t n_layers,
                                         uint32_t *old_len,
                                         uint32_t *new_len);
typedef struct mnnkv_compressor_header {
    uint32_t struct_size;
    uint32_t dtype;
    uint32_t layers;
    uint32_t blocks_per_layer;
    uint32_t head_dim;
    uint32_t compression_factor;
    uint32_t min_seq_len;
    uint32_t num_heads;
    uint32_t reserved[4];
} mnnkv_compressor_header;
typedef struct mnnkv_compressor_linear {
    uint32_t rows;
    uint32_t cols;
    const float *weight;
    const float *bias;
} mnnkv_compressor_linear;
mnnkv_status mnnkv_compressor_write_file(const mnnkv_compressor_header *header,
                                         const mnnkv_compressor_linear *linears,
                                         size_t n_linears,
                                         const char *path);
mnnkv_status mnnkv_compressor_write(const mnnkv_compressor_header *header,
                                    const mnnkv_compressor_linear *linears,
                                    size_t n_linears,
                                    void *dst,
                                    size_t cap,
                                    size_t *len);
#ifdef __cplusplus
}
#endif
#endif
