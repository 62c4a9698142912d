//! Files of relative paths in a process that changes its working folder. A program of its own: that is shared by all threads.

use mnnkv::session::Session;
use std::{env, fs};

#[test]
fn a_chat_file_of_a_relative_path_stays_in_its_folder_when_the_working_folder_changes() {
    let folder = env::temp_dir().join(format!("mnnkv-working-folder-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    fs::create_dir(folder.join("other")).unwrap();
    let names = || fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    env::set_current_dir(&folder).unwrap();
    let config = br#"{"kv_memory_bytes": 2000000, "kv_memory_file": "blocks.kv"}"#;
    let unsaved = Session::with_host(config, b"", 1, 1, mnnkv::session::Host { attends: true }).unwrap();
    let session = Session::new(b"{}", b"", 1, 1).unwrap();
    session.save(Some("chat.kv"), &mut [(None, 0)]).unwrap();
    env::set_current_dir(folder.join("other")).unwrap();
    // It goes with its session.
    drop(unsaved);
    session.put("tokens", b"one").unwrap();
    session.save(None, &mut [(None, 0)]).unwrap();
    // A file that is gone is made anew. Wine keeps its name until it is closed.
    if cfg!(unix) {
        fs::remove_file(folder.join("chat.kv")).unwrap();
    }
    session.put("more", b"two").unwrap();
    session.save(None, &mut [(None, 0)]).unwrap();
    assert_eq!(fs::read_dir(folder.join("other")).unwrap().count(), 0);
    assert!(folder.join("chat.kv").exists() && names().len() == 2, "{:?}", names());
    drop(session);
    let session = Session::new(b"{}", b"", 1, 1).unwrap();
    session.open(folder.join("chat.kv").to_str()).unwrap();
    assert_eq!(session.section("tokens").unwrap(), b"one");
    drop(session);

    // The same path is of another file in another folder: of a chat that is opened or saved, and of a prefix.
    let tokens = |session: &Session| session.section("tokens").unwrap();
    let of = |config: &[u8]| Session::new(config, b"", 1, 1).unwrap();
    for name in ["here", "there"] {
        fs::create_dir(folder.join(name)).unwrap();
        env::set_current_dir(folder.join(name)).unwrap();
        let session = of(b"{}");
        session.put("tokens", name.as_bytes()).unwrap();
        session.save(Some("chat.kv"), &mut [(None, 0)]).unwrap();
    }
    env::set_current_dir(folder.join("here")).unwrap();
    let (session, prefix) = (of(b"{}"), br#"{"kv_quant": "k8v4", "kv_memory_base": "chat.kv"}"#);
    let host = || mnnkv::session::Host { attends: true };
    let begun = Session::with_host(prefix, b"", 1, 1, host()).unwrap();
    assert_eq!(tokens(&begun), b"here");
    env::set_current_dir(folder.join("there")).unwrap();
    assert_eq!(tokens(&Session::with_host(prefix, b"", 1, 1, host()).unwrap()), b"there");
    drop(begun);
    env::set_current_dir(folder.join("here")).unwrap();
    session.open(Some("chat.kv")).unwrap();
    assert_eq!(tokens(&session), b"here");
    env::set_current_dir(folder.join("there")).unwrap();
    session.open(Some("chat.kv")).unwrap();
    assert_eq!(tokens(&session), b"there");
    env::set_current_dir(&folder).unwrap();
    session.save(Some("chat.kv"), &mut [(None, 0)]).unwrap_err();
    fs::remove_file("chat.kv").unwrap();
    session.save(Some("chat.kv"), &mut [(None, 0)]).unwrap();
    drop(session);
    let session = of(b"{}");
    session.open(Some("chat.kv")).unwrap();
    assert_eq!(tokens(&session), b"there");
    drop(session);
    env::set_current_dir(env::temp_dir()).unwrap();
    fs::remove_dir_all(&folder).unwrap();
}
