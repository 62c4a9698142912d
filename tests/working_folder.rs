//! Files of relative paths in a process that changes its working folder. A program of its own: that is shared by all threads.

use mnnkv::snapshot::Storage;
use std::path::Path;
use std::{env, fs};

#[test]
fn a_file_of_a_relative_path_is_removed_after_the_working_folder_has_changed() {
    let folder = env::temp_dir().join(format!("mnnkv-working-folder-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    env::set_current_dir(&folder).unwrap();
    let storage = Storage::create(Path::new("file")).unwrap();
    assert_eq!(storage.name(), "file");
    env::set_current_dir(env::temp_dir()).unwrap();
    storage.sync_name().unwrap();
    storage.remove();
    drop(storage);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    fs::remove_dir(&folder).unwrap();
}
