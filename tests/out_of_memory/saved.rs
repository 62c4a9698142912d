//! A chat that is saved and opened.

use crate::chat::{Calls, Shortage};
use crate::host::packing::flash;
use crate::host::{Host, expand};
use crate::runtime::each_call;
use mnnkv::ffi::status::{MNNKV_OK, mnnkv_status};
use mnnkv::layout::zero;
use mnnkv::session::{self, Session};
use mnnkv::status::Result;
use std::path::Path;

/// The status of a Rust call, and its value.
fn status<T>(result: Result<T>, value: &mut Option<T>) -> mnnkv_status {
    match result {
        Ok(made) => {
            *value = Some(made);
            MNNKV_OK
        }
        Err(error) => error.status().code(),
    }
}

fn turns(config: &str, path: &Path, shortage: Shortage) -> Calls {
    let mut calls = Calls { shortage, made: 0, refusals: 0, failures: 0 };
    let make = || {
        let host = session::Host { attends: config.contains("quant") };
        Session::for_model(config.as_bytes(), b"", 1, 1, host, b"model").unwrap()
    };
    let (mut session, mut layer, mut done) = (make(), Host::new(flash(2, 16, 8, 300), 1), None);
    for turn in 0..2 {
        let (len, before) = (layer.len(), session.positions(0, None).unwrap());
        session.begin(0, Some(layer.cache()), len).unwrap();
        let left: Vec<u32> = expand(&session.positions(0, None).unwrap()).collect();
        layer.keep(expand(&before).map(|at| left.contains(&at)));
        layer.append(130);
        let len = layer.len();
        session.end(0, 0, 0, layer.cache(), len).unwrap();
        calls.run("put", || status(session.put("tokens", &[turn; 30]), &mut done));
        let (path, mut cache) = (path.to_str(), layer.cache());
        let mut save = || session.save(path, &mut [(Some(cache.reborrow()), len)]).map(drop);
        calls.run("save", || status(save(), &mut done));
    }
    let (len, first, path) = (layer.len(), path, &path.with_extension("moved"));
    let mut cache = layer.cache();
    let mut save = || session.save(path.to_str(), &mut [(Some(cache.reborrow()), len)]).map(drop);
    calls.run("save elsewhere", || status(save(), &mut done));
    std::fs::remove_file(first).unwrap();
    let (before, len) = (session.positions(0, Some(0)).unwrap(), layer.len());
    drop(session);
    session = make();
    calls.run("open", || status(session.open(path.to_str()), &mut done));
    assert_eq!(session.positions(0, Some(0)).unwrap(), before);
    let mut bytes = None;
    calls.run("section", || status(session.section("tokens"), &mut bytes));
    assert_eq!(bytes.as_deref(), Some(&[1; 30][..]));
    layer.move_to_room_for(len as usize);
    let all = layer.range(0, len);
    zero(&mut layer.cache(), all);
    let positions = session.positions(0, None).unwrap();
    let mut cache = layer.cache();
    calls.run("begin", || status(session.begin(0, Some(cache.reborrow()), len).map(drop), &mut done));
    let left: Vec<u32> = expand(&session.positions(0, None).unwrap()).collect();
    layer.tokens =
        expand(&positions).zip(layer.tokens.clone()).filter(|(at, _)| left.contains(at)).map(|(_, t)| t).collect();
    layer.check_tokens(false);
    drop(session);
    std::fs::remove_file(path).unwrap();
    calls
}

#[test]
#[cfg_attr(not(unix), ignore = "paths are opened by the standard library, which aborts when memory runs out")]
fn saves_lose_nothing_and_leave_no_half_of_a_file() {
    for (name, config) in [("save", "{}"), ("save blocks", r#"{"kv_quant": "k8v4"}"#)] {
        let path = std::env::temp_dir().join(format!("mnnkv-out-of-memory-{}-{}", std::process::id(), config.len()));
        assert!(each_call(name, |shortage| turns(config, &path, shortage)) > 50);
    }
}
