//! Wrong calls: refused, and without effect.

use super::chat::{Chat, LAYERS, c, size};
use crate::bodies::given::Given;
use mnnkv::ffi::h2o::*;
use mnnkv::ffi::session::*;
use mnnkv::ffi::status::{MNNKV_INVALID_ARGUMENT as INVALID, MNNKV_OK as OK, mnnkv_status};
use mnnkv::status::Status;
use std::ptr::null_mut;

/// Numbers behind every pointer of a garbage struct.
static NUMBERS: [f64; 1 << 12] = [0.5; 1 << 12];

impl Chat {
    pub fn wrong(&mut self, layer: usize, given: &mut Given<'_>) {
        let view = |chat: &Chat| [0, 1].map(|layer| (chat.lengths(layer), chat.positions(layer)));
        let before = view(self);
        let status = match given.byte() % 5 {
            0 => self.wrong_cache(layer, given),
            1 => self.wrong_pairs(layer, given),
            2 => self.wrong_sums(layer, given),
            3 => self.wrong_save(given),
            _ => self.wrong_numbers(layer, given),
        };
        assert_ne!(status, Status::Internal as mnnkv_status);
        assert_eq!(view(self), before);
        let is_open = self.layers[layer].step.is_some();
        self.check(layer, !is_open);
    }

    /// A cache or a length that is none of the layer's, or a call that is not due.
    fn wrong_cache(&mut self, layer: usize, given: &mut Given<'_>) -> mnnkv_status {
        let (session, number) = (self.session, layer as u32);
        let mine = &mut self.layers[layer];
        let (is_open, knows, mut layout) = (mine.step.is_some(), !mine.tokens.is_empty(), mine.layout());
        let len = mine.whole_len();
        let mut cache = mine.cache(&layout, len);
        let field = given.below(7);
        match field {
            0 => cache.kv_len = cache.kv_len.wrapping_add(given.any().max(1)),
            1 => layout.struct_size = given.below(40) as u32,
            2 => cache.struct_size = given.below(size_of_val(&cache)) as u32,
            // Only fewer: the buffers are as large as they were.
            3 if layout.kv_heads > 1 => layout.kv_heads -= 1,
            4 if layout.head_dim > 1 => layout.head_dim -= 1,
            5 => layout.key_dtype = given.any().max(7),
            6 => cache.key = null_mut(),
            _ => return INVALID,
        }
        cache.layout = &layout;
        if field == 0 || !knows {
            // A step may begin or end with other lengths; then only these calls are wrong for certain.
            return match is_open {
                true => c!(mnnkv_session_begin(session, number, &mut cache, null_mut())),
                false => c!(mnnkv_session_end(session, number, 1, 1, &mut cache)),
            };
        }
        let status = match (is_open, given.flag()) {
            (true, true) => c!(mnnkv_session_end(session, number, 1, 1, &mut cache)),
            (true, false) => c!(mnnkv_session_abort(session, number, &mut cache)),
            (false, true) => c!(mnnkv_session_begin(session, number, &mut cache, null_mut())),
            (false, false) => {
                let pairs = [0, 0];
                c!(mnnkv_session_keep(session, number, pairs.as_ptr(), 1, &mut cache))
            }
        };
        // A layer without a token in its cache, or an end that fits, may be right.
        assert!(status != OK, "field {field} was taken");
        status
    }

    fn wrong_pairs(&mut self, layer: usize, given: &mut Given<'_>) -> mnnkv_status {
        let (session, mine) = (self.session, &mut self.layers[layer]);
        let pairs: Vec<[i32; 2]> = (0..given.below(6)).map(|_| [given.any() as i32, given.any() as i32]).collect();
        let mut end = 0;
        let fits = pairs.iter().all(|[first, count]| {
            let (first, count) = (i64::from(*first), i64::from(*count));
            let fits = first >= end && count >= 0 && first + count <= mine.tokens.len() as i64;
            end = first + count;
            fits
        });
        if fits && mine.step.is_none() {
            return INVALID;
        }
        let (layout, len) = (mine.layout(), mine.len as usize);
        let mut cache = mine.cache(&layout, len);
        let status = c!(mnnkv_session_keep(session, layer as u32, pairs.as_ptr().cast(), pairs.len(), &mut cache));
        assert_eq!(status, INVALID);
        status
    }

    fn wrong_sums(&mut self, layer: usize, given: &mut Given<'_>) -> mnnkv_status {
        let small = |given: &mut Given<'_>| given.below(40) as u32;
        let numbers = NUMBERS.as_ptr().cast_mut();
        let sums = mnnkv_block_sums {
            struct_size: if given.byte() < 20 {
                given.any() % size::<mnnkv_block_sums>()
            } else {
                size::<mnnkv_block_sums>()
            },
            flags: if given.byte() < 20 { given.any() } else { given.any() % 4 },
            heads: small(given),
            // 40 blocks of 40 rows are behind the pointer.
            rows: small(given),
            block_tokens: given.any(),
            blocks: small(given),
            sums: if given.byte() < 20 { null_mut() } else { numbers },
            factors: if given.flag() { null_mut() } else { numbers },
            token_begin: small(given),
            token_end: given.any(),
            state: if given.byte() < 20 { given.any() } else { MNNKV_SUMS_COMPLETE },
            queries: given.any(),
            used: given.any(),
            reserved: if given.byte() < 20 { given.any() } else { 0 },
        };
        let status = c!(mnnkv_session_block_sums(self.session, layer as u32, given.below(3) as u32, &sums));
        match &mut self.layers[layer].step {
            Some(step) => step.is_spoiled |= status == OK,
            None => assert_ne!(status, OK),
        }
        status
    }

    /// A save of too few layers, of none, of another length, while a layer is open, or where no file can be.
    fn wrong_save(&mut self, given: &mut Given<'_>) -> mnnkv_status {
        let (session, is_closed, mut path) = (self.session, self.is_closed(), self.path.0.as_ptr());
        let layouts: Vec<_> = self.layers.iter().map(|mine| mine.layout()).collect();
        let caches = self.layers.iter_mut().zip(&layouts).map(|(mine, layout)| mine.cache(layout, mine.len as usize));
        let (mut caches, mut layers): (Vec<_>, _) = (caches.collect(), LAYERS as u32);
        match given.below(5) {
            0 => layers = 1,
            1 => layers = 0,
            2 => caches[given.below(LAYERS)].kv_len += 1 + given.any() % 1000,
            3 => path = c"".as_ptr(),
            _ if is_closed => path = c"/nowhere/chat.kv".as_ptr(),
            _ => {}
        }
        let status = c!(mnnkv_session_save(session, path, caches.as_ptr(), layers, null_mut()));
        assert_ne!(status, OK);
        status
    }

    /// Layers and positions out of range.
    fn wrong_numbers(&mut self, layer: usize, given: &mut Given<'_>) -> mnnkv_status {
        let session = self.session;
        let (past, any) = (given.any().clamp(LAYERS as u32, u32::MAX - 1), given.any());
        let status = match given.below(6) {
            0 => c!(mnnkv_session_reset(session, past)),
            1 => c!(mnnkv_session_rewritten(session, past, 0, 1)),
            2 => {
                let whole = self.layers[layer].whole_len() as u32;
                c!(mnnkv_session_rewritten(session, layer as u32, any.max(whole), given.any().max(1)))
            }
            3 => c!(mnnkv_session_pin(session, any.max(1 << 30), 1 << 30, 1)),
            4 => c!(mnnkv_session_pin(session, any, given.any(), given.any().max(2))),
            _ => c!(mnnkv_session_open(session, c"/nowhere/chat.kv".as_ptr())),
        };
        assert_ne!(status, OK);
        status
    }
}
