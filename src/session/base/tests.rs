use super::{BASES, Base};
use crate::attend::Step;
use crate::common::Random;
use crate::dtype::Dtype;
use crate::host::packing::flash;
use crate::layout::{Cache, CacheRef, Layout, scatter};
use crate::session::tests::saved::ChatPath;
use crate::session::{Host, Queries, Session};
use crate::status::Status;
use std::sync::Mutex;

const DIMS: usize = 24;
const KV_HEADS: usize = 2;
const HEADS: usize = 4;

/// A chat of one layer.
struct Chat {
    session: Session,
    layout: Layout,
    key: Vec<u8>,
    value: Vec<u8>,
    len: u32,
}

impl Chat {
    fn new(config: &str) -> crate::status::Result<Self> {
        let layout = Layout::new(&flash(KV_HEADS as u32, DIMS as u32, 4, 400)).unwrap();
        let session = Session::for_model(config.as_bytes(), b"", 1, 1, Host { attends: true }, b"model")?;
        let (key, value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
        let len = session.lengths(0).unwrap().physical;
        Ok(Chat { session, layout, key, value, len })
    }

    /// A step of some tokens, of the numbers of a seed. Returns the output of its rows.
    fn step(&mut self, tokens: usize, seed: u64) -> Vec<f32> {
        let mut random = Random::new(seed);
        let mut rows = |count: usize| -> Vec<u8> {
            (0..count)
                .flat_map(|_| half::f16::from_f32(random.below(2001) as f32 / 1000.0 - 1.0).to_le_bytes())
                .collect()
        };
        let (keys, values) = (rows(KV_HEADS * tokens * DIMS), rows(KV_HEADS * tokens * DIMS));
        let data = rows(HEADS * tokens * DIMS);
        let Chat { session, layout, key, value, len } = self;
        let begun = session.begin(0, Some(Cache::new(layout, key, value).unwrap()), *len).unwrap();
        let range = layout.range(begun.kv_len, tokens as u32).unwrap();
        scatter(&mut Cache::new(layout, key, value).unwrap(), range, &keys, &values).unwrap();
        *len = begun.kv_len + tokens as u32;
        let output = Mutex::new(vec![0.0; tokens * HEADS * DIMS]);
        if begun.attends {
            let row = DIMS * 2;
            let queries = Queries {
                dtype: Dtype::F16,
                heads: HEADS,
                rows: tokens,
                dims: DIMS,
                head_stride: row,
                row_stride: HEADS * row,
                scale: 0.0,
                data: &data,
            };
            let step = Step { queries, is_causal: true, window: None, soft_cap: None, sinks: None, mask: None };
            let cache = CacheRef::new(layout, key, value).unwrap();
            let mut write = |row: usize, head: usize, x: &[f32]| {
                output.lock().unwrap()[(row * HEADS + head) * DIMS..][..DIMS].copy_from_slice(x);
            };
            session.attend(0, (&cache, *len), &step, (0, 1), &mut write).unwrap();
        }
        let rows = if begun.attends { tokens as u32 } else { 0 };
        session.end(0, 0, rows, Cache::new(layout, key, value).unwrap(), *len).unwrap();
        output.into_inner().unwrap()
    }

    /// Where the prefix is in memory.
    fn base(&self) -> *const Base {
        &raw const *self.session.state().unwrap().base.as_ref().unwrap().0
    }

    fn save(&mut self, path: &ChatPath) {
        let Chat { session, layout, key, value, len } = self;
        session.save(Some(path.text()), &mut [(Some(Cache::new(layout, key, value).unwrap()), *len)]).unwrap();
    }
}

/// A prefix of 700 tokens in a file.
fn prefix(path: &ChatPath) -> Chat {
    let mut chat = Chat::new(r#"{"kv_quant": "k8v4"}"#).unwrap();
    (0..14).for_each(|at| drop(chat.step(50, at)));
    chat.session.put("tokens", b"700").unwrap();
    chat.save(path);
    chat
}

#[test]
fn chats_over_a_base_share_its_blocks_and_attend_as_one_that_has_its_own() {
    let path = ChatPath::new();
    let mut alone = prefix(&path);
    let own = alone.session.memory_stats().unwrap().block_bytes;
    // It has the file to write to.
    let config = format!(r#"{{"kv_memory_bytes": 200000, "kv_memory_base": "{}"}}"#, path.text());
    assert_eq!(Chat::new(&config).map(drop).unwrap_err().status(), Status::Busy);
    alone.session.open(None).unwrap();
    let second = ChatPath::new();
    alone.save(&second);
    let mut chats = [Chat::new(&config).unwrap(), Chat::new(&config).unwrap()];
    for chat in &chats {
        let stats = chat.session.memory_stats().unwrap();
        assert_eq!(chat.session.lengths(0).unwrap().logical, 700);
        assert_eq!(chat.session.section("tokens").unwrap(), b"700");
        assert!(stats.base_bytes > own / 2 && stats.block_bytes < own / 5, "{stats:?} {own}");
    }
    for at in 0..20 {
        let expected = alone.step(3, 100 + at);
        chats.iter_mut().for_each(|chat| assert!(chat.step(3, 100 + at) == expected, "step {at}"));
    }
    // An edit of one chat is none of another's.
    let Chat { session, layout, key, value, len } = &mut chats[0];
    *len = session.keep(0, &[[0, 100], [200, 500]], Cache::new(layout, key, value).unwrap(), *len).unwrap();
    assert!(chats[1].step(1, 7) == alone.step(1, 7));
    // A save has all of it, also without the base, and shares again with it.
    let saved = ChatPath::new();
    chats[1].save(&saved);
    let before = chats[1].step(1, 9);
    drop(chats);
    let mut again = Chat::new(r#"{"kv_memory_bytes": 200000}"#).unwrap();
    again.session.open(Some(saved.text())).unwrap();
    again.len = again.session.lengths(0).unwrap().physical;
    assert!(again.step(1, 9) == before);
    assert_eq!(again.session.memory_stats().unwrap().base_bytes, 0);
    drop(again);
    let mut shared = Chat::new(&config).unwrap();
    shared.session.open(Some(saved.text())).unwrap();
    shared.len = shared.session.lengths(0).unwrap().physical;
    let stats = shared.session.memory_stats().unwrap();
    assert!(stats.base_bytes > own / 2 && stats.block_bytes < own / 2, "{stats:?}");
    assert!(shared.step(1, 9) == before);
}

#[test]
fn a_base_is_in_memory_once_until_its_last_session_goes() {
    let paths = [ChatPath::new(), ChatPath::new()];
    let [first, second] = paths.each_ref().map(|path| {
        drop(prefix(path));
        let config = format!(r#"{{"kv_memory_bytes": 200000, "kv_memory_base": "{}"}}"#, path.text());
        move || Chat::new(&config).unwrap()
    });
    let is_known = || {
        let bases = BASES.get(|| Ok(Mutex::default())).unwrap().lock().unwrap();
        bases.iter().any(|base| base.file.storage().path() == Some(paths[0].text().as_ref()))
    };
    let (one, other, beside) = (first(), second(), first());
    assert!(one.base() == beside.base() && one.base() != other.base());
    drop(one);
    assert!(is_known() && first().base() == beside.base());
    drop(beside);
    assert!(!is_known());
}

#[test]
fn a_base_that_cannot_be_read_makes_no_session() {
    let path = ChatPath::new();
    let config = format!(r#"{{"kv_memory_mb": 1, "kv_memory_base": "{}"}}"#, path.text());
    assert_eq!(Chat::new(&config).map(drop).unwrap_err().status(), Status::NotFound);
    drop(prefix(&path));
    let raw = config.replace(r#""kv_memory_mb": 1, "#, "");
    assert_eq!(Chat::new(&raw).map(drop).unwrap_err().status(), Status::Unsupported);
    let other = Session::for_model(config.as_bytes(), b"", 1, 1, Host { attends: true }, b"another");
    assert_eq!(other.map(drop).unwrap_err().status(), Status::Stale);
    Chat::new(&config).unwrap();
    let mut bytes = std::fs::read(path.text()).unwrap();
    let at = bytes.len() / 2;
    bytes[at..at + 64].fill(0xA5);
    std::fs::write(path.text(), &bytes).unwrap();
    assert_eq!(Chat::new(&config).map(drop).unwrap_err().status(), Status::Corrupt);
}
