//! Any bytes as a schedule of calls of a session through the C ABI, right ones and wrong ones, against a host that knows every
//! token. A right call succeeds; a wrong one is refused and changes nothing; the cache always has the tokens that the positions
//! name, bit for bit, also in another session that opens the chat.

pub(super) mod chat;
mod config;
mod steps;
mod wrong;

use super::given::Given;
use chat::Chat;

/// The most calls of a schedule.
const MOST_CALLS: usize = 300;

pub fn session(data: &[u8]) {
    let mut given = Given::new(data);
    let Some(mut chat) = Chat::new(&mut given) else { return };
    for _ in 0..MOST_CALLS {
        if given.is_empty() {
            break;
        }
        chat.call(&mut given);
    }
    chat.finish();
}
