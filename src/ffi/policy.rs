//! Policy
//!
//! kv_h2o_policy names what tokens are ranked by when some must leave:
//!
//!   "mass"      the attention that they get: block sums of every step (scores.h)
//!   "keydiff"   how much their keys differ from the others, and the norms of their values: any attention
//!
//! Pinned tokens are never evicted, whatever the policy: a system prompt, an image, a list of tools.

use crate::ffi::given::frequencies;
use crate::ffi::panic::body;
use crate::ffi::pointer::{self, Sized32};
use crate::ffi::session::{layer_or_all, mnnkv_session};
use crate::ffi::status::mnnkv_status;
use crate::gear::Pairing;
use crate::status::{Result, bail};
use crate::store::KeyRotation;

/// Pins (on = 1) or unpins (0) the tokens at the logical positions first .. first + count, in all layers. Pinned tokens
/// are never evicted, nor is the rest of their blocks. They count towards the target of a plan, as sink and recent tokens
/// do; where these alone reach it, nothing is evicted. Where pins leave less than kv_h2o_max_tokens needs, all other tokens
/// leave but a block, and the steps above the limit are counted (h2o_over_limit_count).
/// Positions from the logical length on are those of tokens to come: a host may pin a prompt before its step. Pins of
/// evicted tokens have no effect. Pins follow their tokens through mnnkv_session_keep; those after the last token that stays
/// keep their distance from it, so that a step that is undone loses none. mnnkv_session_reset clears the pins of the layer.
/// A chat file has them. A waiting plan is made anew. Layers may be open.
/// INVALID_ARGUMENT: if first + count is above 2^31 - 1, or on is not 0 or 1; nothing has changed
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_pin(
    session: *mut mnnkv_session,
    first: u32,
    count: u32,
    on: u32,
) -> mnnkv_status {
    body!({
        let session = &pointer::reference(session, "session")?.session;
        if on > 1 {
            bail!(InvalidArgument, "on is {on}; 0 or 1 expected");
        }
        session.pin(first, count, on == 1)
    })
}

/// The rotation of keys by their logical positions (RoPE).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_rotation {
    pub struct_size: u32,
    /// The channels of a pair: 1 = d and d + dims / 2 (Llama, Qwen), 2 = 2 d and 2 d + 1 (GPT-J). With MNNKV_EXPERIMENTAL gear.h
    /// names them MNNKV_ROPE_*.
    pub pairing: u32,
    /// Rotated channels, the first of a head: even, usually head_dim; 0 is refused.
    pub dims: u32,
    /// The angle per position of pair i is theta^(-2 i / dims) in radians. theta is finite and at least 1; 0 = 10,000. Not read
    /// with inv_freq.
    pub theta: f32,
    /// [dims / 2]: the angle per position of each pair in radians, any finite numbers; NULL = from theta.
    pub inv_freq: *const f32,
}

// SAFETY: repr(C), begins with a u32, integers, a float and a raw pointer only.
unsafe impl Sized32 for mnnkv_rotation {
    const MIN: usize = size_of::<Self>();
}

/// The rotation as slices.
///
/// # Safety
/// The array is as the header says, for `'a`.
unsafe fn checked<'a>(given: &mnnkv_rotation) -> Result<KeyRotation<'a>> {
    let dims = given.dims as usize;
    let Some(pairing) = Pairing::from_code(given.pairing) else {
        bail!(InvalidArgument, "rotation->pairing is {}; 1 or 2 expected", given.pairing);
    };
    if dims == 0 || !dims.is_multiple_of(2) {
        bail!(InvalidArgument, "rotation->dims is {dims}; an even number from 2 on expected");
    }
    // SAFETY: dims / 2 numbers, by the header.
    let frequencies = unsafe { frequencies(given.theta, given.inv_freq, dims, "rotation->inv_freq") }?;
    Ok(KeyRotation { pairing, dims, frequencies })
}

/// Gives the rotation of the keys of a layer, or of all with MNNKV_ALL_LAYERS, before its first step: "keydiff" then
/// compares keys without their rotation, which keeps better tokens. Copied; NULL = not known. Holds for the tokens to come,
/// through mnnkv_session_reset, too. After the first step the scores of earlier keys are not computed again: reset the layer
/// before it gets another rotation. Other policies ignore it. Where rotated channels
/// exceed head_dim, end refuses.
/// INVALID_ARGUMENT: if layer is out of range, or a field of rotation is
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_rotation(
    session: *mut mnnkv_session,
    layer: u32,
    rotation: *const mnnkv_rotation,
) -> mnnkv_status {
    body!({
        let session = &pointer::reference(session, "session")?.session;
        let rotation = match pointer::options(rotation, "rotation")? {
            Some(given) => Some(checked(&given)?),
            None => None,
        };
        session.rotation(layer_or_all(layer), rotation.as_ref())
    })
}
