// mnnkv/policy.h: which tokens an eviction removes: pinned tokens, and what they are ranked by.
//
// Generated from src/ffi by `make header`; do not edit. mnnkv.h has the conventions.

#ifndef MNNKV_POLICY_H
#define MNNKV_POLICY_H

#include "session.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Policy -----------------------------------------------------------------------------------------------------
//
// kv_h2o_policy names what tokens are ranked by when some must leave:
//
//   "mass"      the attention that they get: block sums of every step (scores.h)
//   "keydiff"   how much their keys differ from the others, and the norms of their values: any attention
//
// Pinned tokens are never evicted, whatever the policy: a system prompt, an image, a list of tools.

/// The rotation of keys by their logical positions (RoPE).
typedef struct mnnkv_rotation {
    uint32_t struct_size;
    /// The channels of a pair: 1 = d and d + dims / 2 (Llama, Qwen), 2 = 2 d and 2 d + 1 (GPT-J). With MNNKV_EXPERIMENTAL gear.h
    /// names them MNNKV_ROPE_*.
    uint32_t pairing;
    /// Rotated channels, the first of a head: even, usually head_dim; 0 is refused.
    uint32_t dims;
    /// The angle per position of pair i is theta^(-2 i / dims) in radians. theta is finite and at least 1; 0 = 10,000. Not read
    /// with inv_freq.
    float theta;
    /// [dims / 2]: the angle per position of each pair in radians, any finite numbers; NULL = from theta.
    const float *inv_freq;
} mnnkv_rotation;

/// Pins (on = 1) or unpins (0) the tokens at the logical positions first .. first + count, in all layers. Pinned tokens
/// are never evicted, nor is the rest of their blocks. They count towards the target of a plan, as sink and recent tokens
/// do; where these alone reach it, nothing is evicted. Where pins leave less than kv_h2o_max_tokens needs, all other tokens
/// leave but a block, and the steps above the limit are counted (h2o_over_limit_count).
/// Positions from the logical length on are those of tokens to come: a host may pin a prompt before its step. Pins of
/// evicted tokens have no effect. Pins follow their tokens through mnnkv_session_keep; those after the last token that stays
/// keep their distance from it, so that a step that is undone loses none. mnnkv_session_reset clears the pins of the layer.
/// A chat file has them. A waiting plan is made anew. Layers may be open.
/// INVALID_ARGUMENT: if first + count is above 2^31 - 1, or on is not 0 or 1; nothing has changed
mnnkv_status mnnkv_session_pin(mnnkv_session *session,
                               uint32_t first,
                               uint32_t count,
                               uint32_t on);

/// Gives the rotation of the keys of a layer, or of all with MNNKV_ALL_LAYERS, before its first step: "keydiff" then
/// compares keys without their rotation, which keeps better tokens. Copied; NULL = not known. Holds for the tokens to come,
/// through mnnkv_session_reset, too. After the first step the scores of earlier keys are not computed again: reset the layer
/// before it gets another rotation. Other policies ignore it. Where rotated channels
/// exceed head_dim, end refuses.
/// INVALID_ARGUMENT: if layer is out of range, or a field of rotation is
mnnkv_status mnnkv_session_rotation(mnnkv_session *session,
                                    uint32_t layer,
                                    const mnnkv_rotation *rotation);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_POLICY_H
