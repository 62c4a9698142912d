//! Chats that are saved, killed and opened go on as those that never stopped.

use super::chat::Chat;
use super::examples::six_of_ten;
use crate::common::Random;
use crate::host::packing::flash;
use crate::session::tests::shared::Session;
use crate::session::{Host, LayerCache};
use crate::status::{Result, Status};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};

const LAYERS: usize = 2;

/// A path of its own in the temporary folder, at which nothing is, as JSON has it: a backslash of Windows would begin an
/// escape, and a slash does the same there.
pub(in crate::session) struct ChatPath(String);

impl ChatPath {
    pub(in crate::session) fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("mnnkv-chat-{}-{number}.kv", std::process::id()));
        let _ = std::fs::remove_file(&path);
        ChatPath(path.to_str().expect("Unicode").replace('\\', "/"))
    }

    pub(in crate::session) fn text(&self) -> &str {
        &self.0
    }

    pub(super) fn len(&self) -> u64 {
        std::fs::metadata(&self.0).map_or(0, |found| found.len())
    }
}

impl Drop for ChatPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Saves all layers; returns the bytes written.
pub(super) fn save(chat: &mut Chat, path: &ChatPath) -> Result<u64> {
    save_to(chat, Some(path))
}

/// Likewise, to the chat's own file where no path is given.
fn save_to(chat: &mut Chat, path: Option<&ChatPath>) -> Result<u64> {
    let mut caches: Vec<LayerCache<'_>> = chat
        .hosts
        .iter_mut()
        .map(|host| {
            let len = host.len();
            (Some(host.cache()), len)
        })
        .collect();
    chat.session.save(path.map(ChatPath::text), &mut caches)
}

/// Saves the layers of a chat that was opened and has not begun since.
fn save_away(chat: &Chat) -> Result<u64> {
    let mut caches: Vec<LayerCache<'_>> = (0..LAYERS).map(|layer| (None, chat.lengths(layer).1)).collect();
    chat.session.save(None, &mut caches)
}

/// The process ends. Another one has the file, and buffers of another packing, without contents.
fn restart(chat: &mut Chat, config: &Value, path: &ChatPath) {
    // Its file is closed first.
    chat.session = Session::new(b"{}", 1, 1).unwrap();
    chat.session = Session::new(config.to_string().as_bytes(), LAYERS as u32, 1).unwrap();
    chat.session.open(Some(path.text())).unwrap();
    for host in &mut chat.hosts {
        let room = host.layout.max_tokens();
        host.move_to_room_for(room);
        let all = host.range(0, host.len());
        crate::layout::zero(&mut host.cache(), all);
    }
}

/// Attention that depends on the position and the step alone.
fn look(chat: &mut Chat, layer: usize, rows: usize, seed: u64) {
    chat.look(layer, rows, |row, at| ((seed + row as u64 * 31 + u64::from(at) * 17) % 13) as f32 + 0.5);
    chat.begin_whole(layer);
    chat.close(layer, 0, 0).unwrap();
}

fn turns(seed: u64) {
    let mut random = Random::new(seed);
    let mut config = six_of_ten();
    if random.once_in(2) {
        for (key, value) in [
            ("kv_lossless_enable", json!(true)),
            ("kv_lossless_runtime_enable", json!(true)),
            ("kv_lossless_runtime_mode", json!("store")),
            ("kv_lossless_scope", json!("front_n_and_h2o_kept")),
            ("kv_lossless_hot_recent_tokens", json!(4)),
            ("kv_lossless_hot_sink_tokens", json!(0)),
            ("kv_lossless_block_tokens", json!(4)),
        ] {
            config[key] = value;
        }
    }
    if random.once_in(4) {
        config = json!({});
    }
    let spec = flash(random.from(1, 3) as u32, random.from(1, 9) as u32, 4, 96);
    let mut steady = Chat::new(config.clone(), LAYERS as u32, spec);
    let mut chat = Chat::new(config.clone(), LAYERS as u32, spec);
    let path = ChatPath::new();
    let mut is_saved = false;
    for _ in 0..random.from(3, 25) {
        let (rows, seed, what) = (random.from(1, 6), random.next() >> 40, random.below(10));
        for layer in 0..LAYERS {
            let logical = steady.lengths(layer).0;
            if steady.hosts[layer].room() < 8 {
                continue;
            }
            match what {
                0 if logical > 4 => {
                    let cut = logical as i32 / 2;
                    let pairs = [[0, cut], [cut + 2, logical as i32 - cut - 2]];
                    [&mut steady, &mut chat].into_iter().for_each(|chat| chat.keep(layer, &pairs));
                }
                3 if logical > 0 => {
                    let host = &mut chat.hosts[layer];
                    match chat.session.rewritten(layer as u32, 0, 1) {
                        Ok(()) => host.write(0),
                        Err(error) => assert!(error.message().contains("has not begun"), "{error}"),
                    }
                }
                4 => [&mut steady, &mut chat].into_iter().for_each(|chat| {
                    chat.session.pin((seed % 40) as u32, rows as u32, seed % 3 > 0).unwrap();
                }),
                _ => [&mut steady, &mut chat].into_iter().for_each(|chat| look(chat, layer, rows, seed)),
            }
            assert_eq!(chat.positions(layer), steady.positions(layer));
        }
        if random.once_in(3) {
            save(&mut chat, &path).unwrap();
            assert_eq!(save(&mut chat, &path).unwrap(), 0, "nothing is new");
            is_saved = true;
            if random.once_in(2) {
                restart(&mut chat, &config, &path);
            }
        }
    }
    if is_saved {
        save(&mut chat, &path).unwrap();
        restart(&mut chat, &config, &path);
        assert_eq!(save_away(&chat).unwrap(), 0, "a layer that was opened is in the file");
        (0..LAYERS).for_each(|layer| look(&mut chat, layer, 1, 3));
    }
}

#[test]
fn a_chat_that_is_opened_goes_on_as_one_that_never_stopped() {
    for seed in 0..300 {
        let result = std::panic::catch_unwind(|| turns(seed));
        assert!(result.is_ok(), "seed {seed}");
    }
}

#[test]
fn a_save_writes_new_tokens_alone_and_an_edit_writes_none_of_them() {
    let mut chat = Chat::new(json!({}), LAYERS as u32, flash(2, 64, 4, 900));
    let path = ChatPath::new();
    chat.step(0, 800);
    let whole = save(&mut chat, &path).unwrap();
    chat.step(0, 8);
    let turn = save(&mut chat, &path).unwrap();
    assert!(turn < whole / 20, "{turn} and {whole} bytes");
    chat.keep(0, &[[0, 5], [9, 14]]);
    let edit = save(&mut chat, &path).unwrap();
    assert!(edit < 300, "{edit} bytes");
    chat.session.reset(Some(0)).unwrap();
    assert_eq!(chat.lengths(0), (0, 0));
    chat.session.open(None).unwrap();
    assert_eq!(chat.lengths(0), (19, 19));
    chat.begin_whole(0);
}

// Elsewhere a file that is open cannot be replaced.
#[cfg(unix)]
#[test]
fn a_file_that_is_mostly_holes_is_written_anew() {
    let mut chat = Chat::new(json!({}), LAYERS as u32, flash(2, 64, 4, 900));
    let path = ChatPath::new();
    chat.step(0, 800);
    chat.step(1, 300);
    save(&mut chat, &path).unwrap();
    let before = path.len();
    chat.step(1, 8);
    save(&mut chat, &path).unwrap();
    chat.session.reset(Some(0)).unwrap();
    let host = &mut chat.hosts[0];
    host.keep((0..800).map(|_| false));
    save(&mut chat, &path).unwrap();
    chat.step(1, 1);
    save(&mut chat, &path).unwrap();
    assert!(path.len() < before * 3 / 4, "{} of {before} bytes", path.len());
    chat.session.open(None).unwrap();
    chat.begin_whole(1);
}

/// A chat in a file of which more than half is free, so that the next save would write another one.
#[cfg(unix)]
fn with_holes() -> (Chat, ChatPath) {
    let mut chat = Chat::new(json!({}), LAYERS as u32, flash(2, 64, 4, 900));
    let path = ChatPath::new();
    chat.step(0, 800);
    chat.step(1, 50);
    save(&mut chat, &path).unwrap();
    chat.session.reset(Some(0)).unwrap();
    chat.hosts[0].keep((0..800).map(|_| false));
    save(&mut chat, &path).unwrap();
    chat.step(1, 1);
    (chat, path)
}

#[cfg(unix)]
#[test]
fn a_file_that_is_written_anew_keeps_its_rights_and_links_to_it() {
    use std::os::unix::fs::PermissionsExt;
    let (mut chat, path) = with_holes();
    let before = path.len();
    std::fs::set_permissions(path.text(), PermissionsExt::from_mode(0o640)).unwrap();
    save(&mut chat, &path).unwrap();
    let found = std::fs::metadata(path.text()).unwrap();
    assert!(found.len() < before / 2 && found.permissions().mode() & 0o777 == 0o640, "{found:?}");

    let (chat, path) = with_holes();
    drop(chat);
    let (link, session) = (format!("{}-link", path.text()), Session::new(b"{}", LAYERS as u32, 1).unwrap());
    std::os::unix::fs::symlink(path.text(), &link).unwrap();
    session.open(Some(&link)).unwrap();
    session.put("tokens", b"fifty").unwrap();
    session.save(None, &mut [(None, 0), (None, 50)]).unwrap();
    drop(session);
    assert!(crate::sys::files::is_link(link.as_ref()));
    std::fs::remove_file(&link).unwrap();
    let session = Session::new(b"{}", LAYERS as u32, 1).unwrap();
    session.open(Some(path.text())).unwrap();
    assert_eq!(session.section("tokens").unwrap(), b"fifty");
}

#[cfg(unix)]
#[test]
fn a_chat_is_saved_in_its_file_where_no_other_can_be_written() {
    let (mut chat, path) = with_holes();
    let before = path.len();
    // What is there is not the library's.
    let new = format!("{}.mnnkv-new", path.text());
    std::fs::create_dir(&new).unwrap();
    save(&mut chat, &path).unwrap();
    assert!(path.len() > before / 2 && std::fs::metadata(&new).unwrap().is_dir());
    std::fs::remove_dir(&new).unwrap();
    chat.session.open(None).unwrap();
    assert_eq!(chat.lengths(1), (51, 51));
    chat.begin_whole(1);
}

#[test]
fn a_chat_moves_to_another_path_and_the_first_file_stays_as_it_was_saved() {
    let (first, second) = (ChatPath::new(), ChatPath::new());
    let mut chat = Chat::new(json!({}), LAYERS as u32, flash(2, 8, 4, 96));
    chat.step(0, 20);
    chat.session.put("tokens", b"twenty").unwrap();
    save(&mut chat, &first).unwrap();
    chat.step(0, 3);
    save(&mut chat, &second).unwrap();
    assert_eq!(chat.session.section("tokens").unwrap(), b"twenty");
    let other = Chat::new(json!({}), LAYERS as u32, flash(2, 8, 4, 96));
    other.session.open(Some(first.text())).unwrap();
    assert_eq!((other.lengths(0), chat.lengths(0)), ((20, 20), (23, 23)));
    assert_eq!(other.session.open(Some(second.text())).unwrap_err().status(), Status::Busy, "two writers");
    let taken = save(&mut chat, &first).unwrap_err();
    assert_eq!(taken.status(), Status::Io, "{taken}");
    drop(chat);
    other.session.open(Some(second.text())).unwrap();
    assert_eq!(other.session.section("tokens").unwrap(), b"twenty");
    assert_eq!(other.session.section("none").unwrap_err().status(), Status::NotFound);
}

#[test]
fn a_file_that_is_taken_stays_and_the_chat_is_saved_elsewhere() {
    let (own, other) = (ChatPath::new(), ChatPath::new());
    let config = json!({"kv_memory_file": own.text()});
    let mut first = Chat::new(config.clone(), LAYERS as u32, flash(2, 8, 4, 96));
    first.step(0, 20);
    save_to(&mut first, None).unwrap();
    let mut chat = Chat::new(config, LAYERS as u32, flash(2, 8, 4, 96));
    assert!(chat.session.warnings().unwrap().contains("kv_memory_file: "), "without a budget, too");
    chat.step(0, 7);
    assert_eq!(save_to(&mut chat, None).unwrap_err().status(), Status::Busy);
    save_to(&mut chat, Some(&other)).unwrap();
    drop(first);
    let text = ChatPath::new();
    std::fs::write(text.text(), "a file of the user's").unwrap();
    let config = json!({"kv_memory_file": text.text()});
    let mut third = Chat::new(config, LAYERS as u32, flash(2, 8, 4, 96));
    third.step(0, 5);
    for path in [None, Some(&own)] {
        assert_eq!(save_to(&mut third, path).unwrap_err().status(), Status::Io, "{:?}", path.map(ChatPath::text));
    }
    third.session.open(Some(own.text())).unwrap();
    assert_eq!(third.lengths(0), (20, 20));
    assert_eq!(std::fs::read(text.text()).unwrap(), b"a file of the user's");
}

#[test]
fn a_chat_of_another_model_or_of_more_layers_is_refused() {
    let path = ChatPath::new();
    let of = |layers, model: &[u8]| {
        crate::session::Session::for_model(b"{}", b"", layers, 1, Host::default(), model).unwrap()
    };
    let made = of(2, b"a model");
    made.put("tokens", b"").unwrap();
    made.save(Some(path.text()), &mut [(None, 0), (None, 0)]).unwrap();
    let refused = |session: &crate::session::Session, path: Option<&str>| session.open(path).unwrap_err().status();
    assert_eq!(refused(&of(2, b"a model"), Some(path.text())), Status::Busy);
    drop(made);
    assert_eq!(refused(&of(2, b"another"), Some(path.text())), Status::Stale);
    assert_eq!(refused(&of(2, b"a model"), Some("/nowhere/chat.kv")), Status::NotFound);
    assert_eq!(refused(&of(2, b"a model"), None), Status::InvalidArgument);
    of(1, b"a model").open(Some(path.text())).unwrap();
}

#[test]
fn a_layer_that_was_opened_emptied_and_begun_without_a_cache_has_its_next_tokens_there() {
    let (mut chat, path) = (Chat::new(json!({}), LAYERS as u32, flash(2, 8, 4, 96)), ChatPath::new());
    chat.step(0, 20);
    save(&mut chat, &path).unwrap();
    chat.session.open(None).unwrap();
    chat.keep(0, &[]);
    assert_eq!(chat.session.begin_without(0, 0), Ok(0));
    chat.end(0, 3);
    chat.session.rewritten(0, 1, 1).unwrap();
    save(&mut chat, &path).unwrap();
    chat.begin_whole(0);
}

#[test]
fn a_file_with_a_damaged_section_or_without_a_chat_is_refused_and_the_chat_stays() {
    let path = ChatPath::new();
    let mut chat = Chat::new(json!({}), LAYERS as u32, flash(2, 8, 4, 96));
    chat.step(0, 20);
    chat.session.put("tokens", &[7; 2000]).unwrap();
    save(&mut chat, &path).unwrap();
    let mut other = Chat::new(json!({}), LAYERS as u32, flash(2, 8, 4, 96));
    other.step(0, 5);
    drop(chat);
    let mut bytes = std::fs::read(path.text()).unwrap();
    let at = bytes.windows(2000).position(|part| part == [7; 2000]).unwrap();
    bytes[at + 1000] ^= 1;
    std::fs::write(path.text(), &bytes).unwrap();
    let error = other.session.open(Some(path.text())).unwrap_err();
    assert!(error.status() == Status::Corrupt && error.message().contains("section \"tokens\""), "{error}");
    std::fs::write(path.text(), b"MNKVTEMP, and what a session has written").unwrap();
    let error = other.session.open(Some(path.text())).unwrap_err();
    assert!(error.status() == Status::NotFound && error.message().contains(path.text()), "{error}");
    assert_eq!(other.lengths(0), (5, 5));
    other.begin_whole(0);
}
