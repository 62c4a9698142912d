// mnnkv/policy.h: tokens that are never evicted.
//
// Generated from src/ffi/session by `make header`; do not edit. mnnkv.h has the conventions.

#ifndef MNNKV_POLICY_H
#define MNNKV_POLICY_H

#include "session.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Pins -------------------------------------------------------------------------------------------------------
//
// Pinned tokens are never evicted: a system prompt, an image, a list of tools.

/// Pins (on = 1) or unpins (0) the tokens at the logical positions first .. first + count, in all layers. Pinned tokens
/// are never evicted, nor is the rest of their blocks. They count towards the target of a plan, as sink and recent tokens
/// do; where these alone reach it, nothing is evicted. Where pins leave less than kv_h2o_max_tokens needs, all other tokens
/// leave but a block, and the steps above the limit are counted (h2o_over_limit_count).
/// Positions from the logical length on are those of tokens to come: a host may pin a prompt before its step. Pins of
/// evicted tokens have no effect. Pins follow their tokens through mnnkv_session_keep; those after the last token that stays
/// keep their distance from it, so that a step that is undone loses none. mnnkv_session_reset clears the pins of the layer.
/// A chat file has them. A waiting plan is made anew. Layers may be open.
/// INVALID_ARGUMENT: if first + count is above 2^31 - 1, or on is not 0 or 1; nothing has changed
mnnkv_status mnnkv_session_pin(mnnkv_session *session, uint32_t first, uint32_t count, uint32_t on);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_POLICY_H
