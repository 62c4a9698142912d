// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_RECALL_H
#define MNNKV_RECALL_H
#include "session.h"
#include "snapshot.h"
#ifdef __cplusplus
extern "C" {
#endif
typedef struct mnnkv_queries {
    uint32_t struct_size;
    uint32_t dtype;
    uint32_t heads;
    uint32_t rows;
    uint32_t head_dim;
    float scale;
    uint64_t head_stride;
    uint64_t row_stride;
    const void *data;
} mnnkv_queries;
typedef struct mnnkv_recall_stats {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t away_tokens;
    uint64_t lost_tokens;
    uint64_t file_tokens;
    uint64_t parked_bytes;
    uint64_t summary_bytes;
    uint64_t left_blocks;
    uint64_t returned_blocks;
    uint64_t parked_blocks;
    uint64_t late_writes;
    uint64_t failures;
    uint64_t query_rows;
    uint64_t written_bytes;
    uint64_t read_bytes;
    uint64_t failed_writes;
    uint64_t failed_reads;
    uint64_t begin_ns;
    uint64_t end_ns;
} mnnkv_recall_stats;
mnnkv_status mnnkv_session_queries(mnnkv_session *session,
                                   uint32_t layer,
                                   const mnnkv_queries *queries);
mnnkv_status mnnkv_session_recall_file(mnnkv_session *session,
                                       mnnkv_snapshot *snapshot);
mnnkv_status mnnkv_session_recall_stats(const mnnkv_session *session, uint32_t layer, mnnkv_recall_stats *stats);
#ifdef __cplusplus
}
#endif
#endif
