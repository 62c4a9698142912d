// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_MEMORY_H
#define MNNKV_MEMORY_H
#include "attend.h"
#ifdef __cplusplus
extern "C" {
#endif
#define MNNKV_MEMORY_RAW 0
#define MNNKV_MEMORY_QUANTISED 1
#define MNNKV_MEMORY_FILE 2
#define MNNKV_MEMORY_DROPPING 3
typedef struct mnnkv_memory_stats {
    uint32_t struct_size;
    uint32_t state;
    uint64_t budget_bytes;
    uint64_t raw_tokens;
    uint64_t quantised_tokens;
    uint64_t bytes;
    uint64_t raw_bytes;
    uint64_t block_bytes;
    uint64_t working_bytes;
    uint64_t file_bytes;
    uint64_t file_tokens;
    uint64_t dropped_tokens;
    uint64_t reads;
    uint64_t late_reads;
    uint64_t returned;
    uint64_t written_bytes;
    uint64_t failed_writes;
    uint64_t failed_reads;
    uint64_t lost;
    uint64_t over_steps;
    uint64_t wait_ns;
} mnnkv_memory_stats;
mnnkv_status mnnkv_session_memory(const mnnkv_session *session, mnnkv_memory_stats *stats);
mnnkv_status mnnkv_session_trim(mnnkv_session *session,
                                uint64_t bytes,
                                uint64_t *in_use);
#ifdef __cplusplus
}
#endif
#endif
