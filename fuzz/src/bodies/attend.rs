//! Any bytes as a chat in 8 and 4 bits through the C ABI: K and V of any size, steps that are attended to in any parts, edits,
//! trims and saves, right and wrong ones, against a host that knows every token. A right call succeeds, a wrong one
//! changes nothing, the cache has the tokens that the positions name, and an output is between the values of V.

use super::given::Given;
use super::packing::{Dense, Packing, flash};
use super::random::Random;
use super::session::chat::{ChatPath, c, layout, right, size};
use mnnkv::dtype::Dtype;
use mnnkv::dtype::convert::{Endian, narrow, widen};
use mnnkv::ffi::cache::{mnnkv_cache, mnnkv_layout};
use mnnkv::ffi::session::*;
use mnnkv::ffi::status::{MNNKV_INVALID_ARGUMENT as INVALID, MNNKV_OK as OK, mnnkv_status};
use mnnkv::layout::Spec;
use mnnkv::status::Status;
use serde_json::Value;
use std::ffi::CStr;
use std::ptr::{null, null_mut};
use std::rc::Rc;

const MOST_CALLS: usize = 120;
const MOST_TOKENS: usize = 2000;
/// Most rows that attend in a step.
const MOST_ROWS: usize = 70;
const LANES: u32 = 2;
/// Most elements of queries, of an output and of a mask, strides included.
const ROOM: usize = 1 << 16;

/// An open step.
#[derive(Clone, Copy, Debug)]
struct Open {
    rows: usize,
    /// Parts of its attention, and whether all have run.
    parts: u32,
    attended: bool,
}

struct Chat {
    json: String,
    has_budget: bool,
    /// A begin has succeeded.
    has_begun: bool,
    /// The host attends by the library in the open step.
    attends: bool,
    session: *mut mnnkv_session,
    spec: Spec,
    heads: u32,
    key: Vec<u8>,
    value: Vec<u8>,
    kv_len: usize,
    /// Every token of the chat, those of an open step included.
    tokens: Vec<Rc<Dense>>,
    random: Random,
    /// K and V are small numbers, else any bits.
    is_plain: bool,
    /// No |V| was larger.
    most: f32,
    open: Option<Open>,
    /// Any of which tokens, queries and masks are.
    numbers: Vec<f32>,
    output: Vec<f32>,
    /// Where it is saved, and the file of some budgets.
    path: ChatPath,
    /// Calls are printed: MNNKV_FUZZ_TRACE is set.
    is_traced: bool,
}

/// Any bytes as the calls of a host that attends.
pub fn attend(data: &[u8]) {
    let mut given = Given::new(data);
    let Some(mut chat) = Chat::new(&mut given) else { return };
    for _ in 0..MOST_CALLS {
        if given.is_empty() || !chat.call(&mut given) {
            break;
        }
    }
    chat.check_memory();
}

impl Chat {
    fn new(given: &mut Given<'_>) -> Option<Self> {
        let (choice, sinks) = (given.below(5), given.below(20));
        let path = ChatPath::new();
        let budget = 1000 * given.from(500, 900);
        let keys = match choice {
            0 => r#""kv_quant":"k8v4""#.to_owned(),
            4 => r#""kv_quant":"k4v4""#.to_owned(),
            3 => format!(
                r#""kv_memory_bytes":{budget},"kv_memory_wait_us":10000000,"kv_memory_file":"{}""#,
                path.0.to_str().expect("Unicode")
            ),
            _ => format!(r#""kv_memory_bytes":{budget},"kv_memory_wait_us":10000000"#),
        };
        let dtypes = [Dtype::F32, Dtype::F16, Dtype::Bf16];
        let (kv_heads, dims) = (given.from(1, 2) as u32, given.pick(&[8, 16, 24, 40, 64, 128, 128, 12]));
        let float = flash(kv_heads, dims, 1, 1);
        let spec = Spec { key: given.pick(&dtypes).into(), value: given.pick(&dtypes).into(), ..float };
        let mut chat = Chat {
            json: format!(r#"{{"kv_quant_sink_tokens":{sinks},{keys}}}"#),
            has_budget: (1..4).contains(&choice),
            has_begun: false,
            attends: false,
            session: null_mut(),
            spec,
            heads: kv_heads * given.from(1, 2) as u32,
            key: Vec::new(),
            value: Vec::new(),
            kv_len: 0,
            tokens: Vec::new(),
            random: Random::new(given.byte().into()),
            is_plain: given.byte() < 200,
            most: 0.0,
            open: None,
            numbers: Vec::new(),
            output: vec![0.0; ROOM],
            path,
            is_traced: std::env::var_os("MNNKV_FUZZ_TRACE").is_some(),
        };
        if chat.is_traced {
            eprintln!("{}, {:?}", chat.json, chat.spec);
        }
        chat.numbers = (0..2 * ROOM).map(|_| chat.random.below(4001) as f32 / 1000.0 - 2.0).collect();
        chat.relayout(0, given);
        match chat.make_session() {
            OK => Some(chat),
            refused => {
                assert_eq!(refused, INVALID);
                None
            }
        }
    }

    fn make_session(&mut self) -> mnnkv_status {
        let options = mnnkv_session_options {
            struct_size: size::<mnnkv_session_options>(),
            abi_version: 1,
            layers: 1,
            lanes: LANES,
            config_json: self.json.as_ptr().cast(),
            config_len: self.json.len(),
            defaults_json: null(),
            defaults_len: 0,
            attends: 1,
            reserved: 0,
            fingerprint: null(),
            fingerprint_len: 0,
        };
        c!(mnnkv_session_create(&options, &mut self.session))
    }

    fn packing(&self) -> Packing {
        Packing { spec: self.spec }
    }

    /// Moves the cache to buffers with room for more tokens, packed anyhow.
    fn relayout(&mut self, more: usize, given: &mut Given<'_>) {
        let places: Vec<usize> = (0..self.kv_len).collect();
        let rows = self.packing().rows(&self.key, &self.value, &places);
        self.spec = Spec {
            l_pack: given.pick(&[1, 2, 4]),
            h_pack: given.pick(&[1, 4, 8]),
            flash_block: given.pick(&[1, 16, 64]),
            max_tokens: (self.kv_len + more + given.below(70)).max(1) as u32,
            ..self.spec
        };
        let (key, value) = self.packing().bytes();
        (self.key, self.value) = (vec![0; key], vec![0; value]);
        self.packing().put(&mut self.key, &mut self.value, &places, &rows);
    }

    fn cache(&mut self, layout: &mnnkv_layout) -> mnnkv_cache {
        mnnkv_cache {
            struct_size: size::<mnnkv_cache>(),
            layout,
            key: self.key.as_mut_ptr().cast(),
            value: self.value.as_mut_ptr().cast(),
            kv_len: self.kv_len as u32,
        }
    }

    /// One call; false where the chat ends.
    fn call(&mut self, given: &mut Given<'_>) -> bool {
        let choice = given.byte() % 16;
        if self.is_traced {
            let (len, of) = (self.kv_len, self.tokens.len());
            eprintln!(
                "call {choice}: {len} of {of} tokens in a cache with room for {}, {:?}",
                self.spec.max_tokens, self.open
            );
        }
        match (choice, self.open.is_some()) {
            (0..=5, false) => return self.begin(given),
            (0..=5, true) => self.end(given),
            (6, true) => self.attend(given),
            (7..=8, _) if self.open.is_none_or(|open| (1..=MOST_ROWS).contains(&open.rows)) => self.wrong(given),
            (9, false) => self.keep(given),
            (10, false) if !self.tokens.is_empty() && given.byte() < 64 => self.save(),
            (11, false) if !self.tokens.is_empty() && given.byte() < 64 => self.restart(given),
            (12, _) => self.trim(given),
            (13, _) => {
                let (first, count, on) = (given.below(MOST_TOKENS), given.below(80), given.flag());
                right(c!(mnnkv_session_pin(self.session, first as u32, count as u32, on.into())));
            }
            (14, false) => self.relayout(0, given),
            (15, _) if given.byte() < 32 => {
                right(c!(mnnkv_session_reset(self.session, 0)));
                // The next chat may have buffers with more padding than the budget has room for.
                (self.kv_len, self.open, self.has_begun) = (0, None, false);
                self.tokens.clear();
            }
            _ => self.check_memory(),
        }
        self.check();
        true
    }

    /// Lengths and positions are those of the host, and the cache has these tokens, of which a few are read.
    fn check(&mut self) {
        let (mut logical, mut physical) = (0, 0);
        right(c!(mnnkv_session_lengths(self.session, 0, &mut logical, &mut physical)));
        let (mut pairs, mut count) = ([0i32; 2 * MOST_TOKENS], 0);
        right(c!(mnnkv_session_positions(
            self.session,
            0,
            MNNKV_IN_CACHE,
            pairs.as_mut_ptr(),
            MOST_TOKENS,
            &mut count
        )));
        let pairs = pairs[..2 * count].as_chunks::<2>().0;
        let new = self.open.map_or(0, |open| open.rows);
        let mut places: Vec<usize> =
            pairs.iter().flat_map(|[first, len]| *first as usize..(first + len) as usize).collect();
        assert_eq!((logical as usize, physical as usize), (self.tokens.len() - new, self.kv_len - new));
        assert_eq!(places.len(), self.kv_len - new);
        assert!(places.is_sorted_by(|a, b| a < b));
        places.extend(self.tokens.len() - new..self.tokens.len());
        for _ in 0..places.len().min(8) {
            let at = self.random.below(places.len());
            let place = places[at];
            let found = self.packing().rows(&self.key, &self.value, &[at]);
            assert!(found == *self.tokens[place], "token {place} at {at}");
        }
    }

    /// Begins a step and appends its tokens; false where the budget is too small for the model.
    fn begin(&mut self, given: &mut Given<'_>) -> bool {
        let rows = match given.byte() {
            most if self.tokens.is_empty() => given.below(if most < 64 { 1600 } else { 200 }),
            0..150 => given.from(1, 4),
            _ => given.below(MOST_ROWS),
        };
        if self.tokens.len() + rows > MOST_TOKENS {
            return false;
        }
        let layout = layout(&self.spec);
        let mut cache = self.cache(&layout);
        let mut step = mnnkv_step { struct_size: size::<mnnkv_step>(), rows: rows as u32, ..Default::default() };
        let status = c!(mnnkv_session_begin(self.session, 0, &mut cache, &mut step));
        if self.has_budget && !self.has_begun && status == INVALID {
            return false;
        }
        right(status);
        self.has_begun = true;
        assert!(cache.kv_len as usize <= self.kv_len);
        self.kv_len = cache.kv_len as usize;
        self.attends = step.attends == 1;
        assert!(self.attends || self.kv_len == self.tokens.len(), "the host cannot attend to all tokens");
        if self.kv_len + rows > self.spec.max_tokens as usize {
            self.relayout(rows, given);
        }
        for _ in 0..rows {
            let token = Rc::new(self.token());
            let packing = self.packing();
            packing.put(&mut self.key, &mut self.value, &[self.kv_len], &token);
            self.tokens.push(token);
            self.kv_len += 1;
        }
        self.open = Some(Open { rows, parts: given.from(1, 6) as u32, attended: false });
        self.check();
        true
    }

    fn token(&mut self) -> Dense {
        let Chat { spec, numbers, random, is_plain, .. } = self;
        let elements = (spec.kv_heads * spec.head_dim) as usize;
        let mut row = |dtype: Dtype| -> Vec<u8> {
            let mut bytes = vec![0; elements * dtype.bytes()];
            if *is_plain {
                narrow(dtype, Endian::Native, &numbers[random.below(ROOM)..][..elements], &mut bytes);
            } else {
                // Of some the exponent is small.
                let mask = |random: &mut Random| if random.below(3) == 0 { 0x3F } else { 0xFF };
                bytes.iter_mut().for_each(|byte| *byte = (random.next() >> 40) as u8 & mask(random));
            }
            bytes
        };
        (row(spec.key.words()), row(spec.value.words()))
    }

    /// A step's attention, with queries of small numbers in memory with room for all strides.
    fn step(&mut self, given: &mut Given<'_>) -> mnnkv_attend {
        let Spec { head_dim, .. } = self.spec;
        let rows = self.open.map_or(1, |open| open.rows);
        let (queries, mask) = (self.random.below(ROOM), self.random.below(ROOM));
        // Of f32; the strides of other dtypes fit as well.
        let row = u64::from(head_dim) * 4;
        let strides = match given.flag() && rows <= 40 {
            true => (row + 4 * given.below(8) as u64, (row + 32) * u64::from(self.heads) + 4 * given.below(8) as u64),
            false => (0, 0),
        };
        let mask_tokens = if given.byte() < 64 { given.below(ROOM / rows.max(1)).min(self.tokens.len()) } else { 0 };
        mnnkv_attend {
            struct_size: size::<mnnkv_attend>(),
            dtype: Dtype::F32 as u32,
            heads: self.heads,
            rows: rows as u32,
            head_dim,
            scale: given.pick(&[0.0, 0.3, 1.0]),
            queries: self.numbers[queries..].as_ptr().cast(),
            query_head_stride: strides.0,
            query_row_stride: strides.1,
            output: self.output.as_mut_ptr().cast(),
            output_head_stride: strides.0,
            output_row_stride: strides.1,
            causal: given.flag().into(),
            window: if given.byte() < 64 { given.from(1, 300) as u32 } else { 0 },
            soft_cap: given.pick(&[0.0, 0.0, 0.0, 5.0]),
            mask_tokens: mask_tokens as u32,
            mask: if mask_tokens > 0 { self.numbers[mask..].as_ptr() } else { null() },
            mask_row_stride: 0,
            sinks: if given.byte() < 32 { self.numbers[mask..].as_ptr() } else { null() },
        }
    }

    /// Runs the attention of an open step, if it has not run.
    fn attend(&mut self, given: &mut Given<'_>) {
        let Some(Open { rows, parts, attended }) = self.open else { return };
        if attended || !self.attends || rows == 0 || rows > MOST_ROWS {
            return;
        }
        let step = self.step(given);
        self.output.fill(f32::NAN);
        let layout = layout(&self.spec);
        let cache = self.cache(&layout);
        for part in (0..parts).rev() {
            let status = c!(mnnkv_session_attend(self.session, 0, part, parts, &cache, &step));
            if !self.is_plain && status == INVALID {
                // K that is not finite.
                return self.abort();
            }
            right(status);
        }
        self.open = Some(Open { rows, parts, attended: true });
        if !self.is_plain {
            return;
        }
        let most = self.most();
        let dense = u64::from(step.head_dim) * 4;
        let (by_head, by_row) = match (step.output_head_stride, step.output_row_stride) {
            (0, 0) => (dense, dense * u64::from(self.heads)),
            strides => strides,
        };
        for (row, head) in (0..rows).flat_map(|row| (0..self.heads).map(move |head| (row, head))) {
            let at = (row as u64 * by_row + u64::from(head) * by_head) as usize / 4;
            for x in &self.output[at..][..step.head_dim as usize] {
                // Errors of rotated V are those of all channels.
                assert!(x.abs() <= most * 2.0 + 0.01, "row {row}, head {head}: {x}; V is up to {most}");
            }
        }
    }

    /// The largest |V|.
    fn most(&mut self) -> f32 {
        let dtype = self.spec.value.words();
        for token in &self.tokens[self.tokens.len() - self.open.map_or(0, |open| open.rows)..] {
            let mut numbers = vec![0.0; token.1.len() / dtype.bytes()];
            widen(dtype, Endian::Native, &token.1, &mut numbers);
            self.most = numbers.iter().fold(self.most, |most, x| most.max(x.abs()));
        }
        self.most
    }

    fn end(&mut self, given: &mut Given<'_>) {
        if given.byte() < 24 {
            return self.abort();
        }
        self.attend(given);
        let Some(Open { rows, attended, .. }) = self.open else { return };
        let queries = if attended { rows as u32 } else { 0 };
        self.most();
        let layout = layout(&self.spec);
        let mut cache = self.cache(&layout);
        right(c!(mnnkv_session_end(self.session, 0, 0, queries, &mut cache)));
        assert_eq!(cache.kv_len as usize, self.kv_len);
        self.open = None;
    }

    fn abort(&mut self) {
        let Some(Open { rows, .. }) = self.open.take() else { return };
        self.kv_len -= rows;
        self.tokens.truncate(self.tokens.len() - rows);
        let layout = layout(&self.spec);
        let mut cache = self.cache(&layout);
        right(c!(mnnkv_session_abort(self.session, 0, &mut cache)));
    }

    /// An edit of the history.
    fn keep(&mut self, given: &mut Given<'_>) {
        let logical = self.tokens.len();
        let (mut pairs, mut at) = (Vec::new(), 0);
        if given.flag() {
            pairs.push([0, logical.saturating_sub(given.below(200)) as i32]);
        } else {
            while at < logical && !given.is_empty() && pairs.len() < 60 {
                let begin = (at + given.below(30)).min(logical);
                let count = given.below(200).min(logical - begin);
                pairs.push([begin as i32, count as i32]);
                at = begin + count;
            }
        }
        let layout = layout(&self.spec);
        let mut cache = self.cache(&layout);
        right(c!(mnnkv_session_keep(self.session, 0, pairs.as_ptr().cast(), pairs.len(), &mut cache)));
        self.kv_len = cache.kv_len as usize;
        let kept = pairs.iter().flat_map(|[first, count]| *first as usize..(first + count) as usize);
        self.tokens = kept.map(|at| self.tokens[at].clone()).collect();
    }

    fn save(&mut self) {
        let layout = layout(&self.spec);
        let cache = self.cache(&layout);
        right(c!(mnnkv_session_save(self.session, self.path.0.as_ptr(), &cache, 1, null_mut())));
    }

    /// The cache of a layer that was opened is written by begin.
    fn restore(&mut self) {
        let layout = layout(&self.spec);
        let mut cache = self.cache(&layout);
        right(c!(mnnkv_session_begin(self.session, 0, &mut cache, null_mut())));
        self.kv_len = cache.kv_len as usize;
        right(c!(mnnkv_session_abort(self.session, 0, &mut cache)));
    }

    /// Saves the chat, and goes on from the file in another session, with another layout.
    fn restart(&mut self, given: &mut Given<'_>) {
        self.save();
        c!(mnnkv_session_destroy(self.session));
        self.session = null_mut();
        right(self.make_session());
        let open = |chat: &Chat| c!(mnnkv_session_open(chat.session, chat.path.0.as_ptr()));
        let status = open(self);
        if status == INVALID {
            // A trim had made the budget of the session before larger.
            right(c!(mnnkv_session_trim(self.session, 1 << 30, null_mut())));
            right(open(self));
        } else {
            right(status);
        }
        let (mut logical, mut physical) = (0, 0);
        right(c!(mnnkv_session_lengths(self.session, 0, &mut logical, &mut physical)));
        assert_eq!(logical as usize, self.tokens.len());
        self.kv_len = 0;
        self.relayout(physical as usize, given);
        self.kv_len = physical as usize;
        self.restore();
    }

    fn trim(&mut self, given: &mut Given<'_>) {
        let bytes = if given.flag() { given.any_long() } else { 1000 * given.below(500) as u64 };
        let mut in_use = 0;
        let status = c!(mnnkv_session_trim(self.session, bytes, &mut in_use));
        // One that is too small for the model is refused by begin, or here.
        match (self.has_budget, self.has_begun) {
            (true, true) => right(status),
            (true, false) => assert!(status == OK || status == INVALID),
            (false, _) => assert_eq!(status, INVALID),
        }
        self.check_memory();
    }

    fn check_memory(&self) {
        let (mut text, mut len) = ([0; 16384], 0);
        right(c!(mnnkv_session_report(self.session, text.as_mut_ptr(), text.len(), &mut len)));
        // SAFETY: written with a zero behind it.
        let json = unsafe { CStr::from_ptr(text.as_ptr()) };
        let report: Value = serde_json::from_slice(json.to_bytes()).expect("a report is JSON");
        let Some(memory) = report.get("memory") else { return assert!(!self.has_budget) };
        let number = |name| memory[name].as_u64().unwrap();
        assert_eq!(number("bytes"), number("raw_bytes") + number("block_bytes") + number("working_bytes"));
        assert_eq!(["lost", "failed_reads", "failed_writes", "late_reads"].map(number), [0; 4]);
        if self.is_traced {
            eprintln!("{memory}");
        }
    }

    /// The number that a pointer to queries or to a mask leads to.
    fn number(&mut self, at: *const std::ffi::c_void) -> &mut f32 {
        let at = (at as usize - self.numbers.as_ptr() as usize) / size_of::<f32>();
        &mut self.numbers[at]
    }

    /// An attention with a field that does not fit, or a call that is not due.
    fn wrong(&mut self, given: &mut Given<'_>) {
        let mut step = self.step(given);
        let layout = layout(&self.spec);
        let mut cache = self.cache(&layout);
        let (mut part, mut parts) = (0, 1);
        if let Some(Open { parts: of, attended, .. }) = self.open {
            (part, parts) = (if attended { of - 1 } else { 0 }, of);
        }
        let float = given.float();
        let field = given.below(17);
        match field {
            0 => part = given.any().max(parts),
            1 => parts = given.any().max(65),
            2 => parts = 0,
            3 => cache.kv_len = given.any().max(self.spec.max_tokens + 1),
            4 => step.struct_size = given.any() % size::<mnnkv_attend>(),
            5 => step.dtype = given.any().max(7),
            // The cache's head_dim is larger than 1.
            6 => step.head_dim -= 1,
            7 => step.queries = null(),
            8 => step.output = null_mut(),
            9 => step.output = step.queries.cast_mut(),
            10 => step.output = self.key.as_mut_ptr().cast(),
            11 => step.causal = given.any().max(2),
            12 if !float.is_finite() || float < 0.0 => step.soft_cap = float,
            13 if !float.is_finite() => step.scale = float,
            14 if !float.is_finite() => {
                part = 0;
                *self.number(step.queries) = float;
            }
            15 if !step.mask.is_null() && (float.is_nan() || float == f32::INFINITY) => {
                part = 0;
                *self.number(step.mask.cast()) = float;
            }
            16 if self.heads > 1 => (step.query_head_stride, step.query_row_stride) = (1, 1),
            _ => {
                // Not all rows have attended, or no step is open.
                let heads = u32::from(self.open.is_none());
                let rows = match self.open {
                    Some(Open { rows, attended: false, .. }) if rows > 0 && self.attends => rows as u32,
                    Some(_) => return,
                    None => 1,
                };
                return assert_ne!(c!(mnnkv_session_end(self.session, 0, heads, rows, &mut cache)), OK);
            }
        }
        let status = c!(mnnkv_session_attend(self.session, 0, part, parts, &cache, &step));
        if field == 14 && !float.is_finite() {
            *self.number(step.queries) = 0.5;
        }
        if field == 15 && !step.mask.is_null() {
            *self.number(step.mask.cast()) = 0.5;
        }
        assert!(status != OK && status != Status::Internal as mnnkv_status, "field {field}: status {status}");
    }
}

impl Drop for Chat {
    fn drop(&mut self) {
        // SAFETY: the handle is not used again.
        unsafe { mnnkv_session_destroy(self.session) };
    }
}
