// mnnkv/report.h: what a session does, warns of and has counted.
//
// Generated from src/ffi/session by `make header`; do not edit. mnnkv.h has the conventions.

#ifndef MNNKV_REPORT_H
#define MNNKV_REPORT_H

#include "session.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Session: report --------------------------------------------------------------------------------------------
//
// Numbers of all layers together, and of each in "layers". Counts, bytes and us (microseconds) are totals since create, except
// those marked "now". All layers together have the sums; peaks, maxima and percentiles are computed over all layers instead. A
// number that was not measured is absent; a count of 0 is a measurement.
//
//   h2o_keep_ratio                        ratio   physical / logical tokens, layers that evict
//   h2o_lossy_ratio                       ratio   logical / physical tokens, layers that evict
//   h2o_lossless_ratio                    ratio   raw / encoded bytes, blocks left raw included
//   h2o_target_keep_effective             ratio   share that plans aim at: target or floor, mean
//   h2o_floor_keep_by_recent_sink         ratio   floor: share in sink, recent and pinned blocks, mean
//   h2o_block_quantized_keep              ratio   that share rounded up to whole blocks, mean; plans keep all where the
//                                                 floor reaches the target
//   h2o_evict_us                          us      moving kept tokens, releasing pages
//   h2o_codec_us                          us      encoding and decoding
//   h2o_lossless_raw_bytes                bytes   blocks encoded, raw size
//   h2o_lossless_compressed_bytes         bytes   blocks encoded, encoded size (raw if no gain)
//   h2o_lossless_decompressed_bytes       bytes   blocks decoded, raw size
//   h2o_lossless_compress_us              us      encoding
//   h2o_lossless_decompress_us            us      decoding
//   h2o_lossless_queue_depth_peak         count   most blocks queued; absent without workers
//   h2o_lossless_fallback_count           count   failures: blocks left raw, plans not made
//   h2o_lossless_backpressure_skip_count  count   blocks skipped: queue full, pending bytes used up, refused
//   h2o_lossless_async_queue_peak         count   as h2o_lossless_queue_depth_peak
//   h2o_lossless_async_wait_us            us      restoring in begin, waits included
//   h2o_lossless_decode_cache_hit         count   restored blocks decoded before begin
//   h2o_lossless_decode_cache_miss        count   restored blocks decoded by begin, or by head
//   h2o_last_evict_tokens                 tokens  removed by the last eviction of each layer
//   h2o_total_evict_tokens                tokens  removed by all evictions
//   h2o_logical_tokens                    tokens  now: in the chat
//   h2o_physical_tokens                   tokens  now: in the caches
//   h2o_score_us                          us      scoring in end; block sums are not timed
//   h2o_plan_us                           us      planning
//   h2o_plan_count                        count   plans made
//   h2o_stale_plan_count                  count   plans dropped, cache had changed
//   h2o_released_bytes                    bytes   returned to the system; a tail of INT8 V once
//   h2o_resident_saved_bytes              bytes   now: pages of evicted and stored tokens, less blobs, copies, summaries and
//                                                 decoded rows; may be negative
//   h2o_reclaimable_bytes                 bytes   now: buffers after the last token
//   h2o_lossless_restored_blocks          count   blocks restored; by head, each head of a block
//   h2o_lossless_restored_bytes           bytes   blocks restored, raw size
//   h2o_lossless_restore_hit              count   restored blocks kept decoded since earlier steps
//   h2o_lossless_prefetch_hit             count   restored blocks that a worker decoded ahead
//   h2o_lossless_prefetch_miss            count   restored blocks that no worker decoded in time
//   h2o_lossless_stale_count              count   blocks dropped, cache had changed
//   h2o_host_wait_us_p50                  us      median of the begins that restored, within 5%
//   h2o_host_wait_us_p95                  us      95th percentile, likewise
//   h2o_host_wait_us_max                  us      maximum, exact
//   h2o_unscored_plan_count               count   plans that kept more than planned: unscored tokens
//   h2o_over_limit_count                  count   steps that ended above kv_h2o_max_tokens; absent without
//   h2o_host_wait_us_p99                  us      99th percentile, within 5%
//   h2o_parked_raw_bytes                  bytes   now: parked tokens, raw size
//   h2o_parked_bytes                      bytes   now: parked tokens, encoded size
//   quant_tokens                          tokens  now: in 8 and 4 bits, in memory or in the file (attend.h), if only for one
//                                                 head
//   quant_bytes                           bytes   now: of their codes, sketches and lists, in memory
//   quant_block_count                     count   blocks of 64 tokens made
//   quant_unfit_block_count               count   blocks that stayed raw: a number is not finite, or codes would be too far
//                                                 from it
//   quant_failure_count                   count   begins that left tokens raw: memory was refused
//   quant_begin_us                        us      making blocks in begin
//
// "memory" of a session with a budget (memory.h): bytes as of now, counts since create. Not counted: lists of the session and
// what threads and the allocator keep, some 2 MB in all. raw_tokens and quantised_tokens are those of a chat with steps of
// one token, working memory of 512 KiB and layers like the first. The raw tokens of a step are of the same share: with long
// chunks a small budget holds fewer.
//
//   state             name    the furthest of any layer now: raw, quantised, file or dropping, which it is until its reset
//   budget_bytes      bytes   the budget
//   raw_tokens        tokens  of a chat that half of the budget holds at least, raw; 0 before the first begin
//   quantised_tokens  tokens  of a chat that the budget holds at least in 8 and 4 bits, likewise
//   bytes             bytes   raw_bytes + block_bytes + working_bytes
//   raw_bytes         bytes   raw tokens in the host's buffers, with padding; of a loaded layer before its begin, without
//   block_bytes       bytes   blocks, and what is known of those in the file
//   working_bytes     bytes   working memory of begin and attend
//   file_bytes        bytes   length of the file
//   file_tokens       tokens  only in the file, over all layers; that of one of n KV heads counts 1 / n
//   dropped_tokens    tokens  dropped since the resets, likewise
//   reads             count   heads of blocks that steps have read from the file
//   late_reads        count   heads of blocks that came too late for a step
//   returned          count   heads of blocks that came back to stay
//   written_bytes     bytes   written to the file
//   failed_writes     count   writes that failed, or had no room in kv_memory_file_mb
//   failed_reads      count   reads that failed
//   lost              count   heads of blocks that the file had no more
//   over_steps        count   steps of up to 16 tokens that ended above the share of their layer; a chunk of more may
//   wait_ns           ns      that attending threads waited for the file

/// Writes what a session does, warns of and has counted: one JSON object. Any thread.
///
///   {"does": "layers 2 to 29: one token in 3.5 stays, from 1,016 tokens on; ...", "warnings": ["...", ...],
///    "h2o_lossy_ratio": 3.4, ..., "memory": {"state": "quantised", ...}, "layers": [{"layer": 2, ...}, ...]}
///
/// does       what the config does, one line. From the first begin on it has lengths that a budget holds at least: "at most 64
///            MB: tokens are raw up to 1,361, then ..."
/// warnings   sentences about the config: unknown keys that begin as ours or are nearly one of ours (docs/config.md), keys
///            without effect. Steps add one if a layer stays raw or hardly shrinks, tokens were dropped, a file fails, or
///            kv_h2o_max_tokens is exceeded
/// memory     only with a budget
/// layers     those that were passed
///
/// The text may grow between two calls.
mnnkv_status mnnkv_session_report(const mnnkv_session *session, char *text, size_t cap, size_t *len);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_REPORT_H
