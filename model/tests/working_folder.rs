//! A directory at a relative path in a process that changes its working folder. A program of its own: that is shared by
//! all threads.

use mnnkv_model::msmodelslim::{Tag, WriteOptions, Writer};
use mnnkv_model::safetensors::FileDtype;
use std::path::Path;
use std::{env, fs};

#[test]
fn a_directory_at_a_relative_path_is_written_or_removed_after_the_working_folder_has_changed() {
    let folder = env::temp_dir().join(format!("mnnkv-model-working-folder-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    for finished in [false, true] {
        env::set_current_dir(&folder).unwrap();
        let mut writer = Writer::new(Path::new("model"), WriteOptions::default()).unwrap();
        writer.tensor("m.a", Tag::Float, FileDtype::F32, &[1]).unwrap();
        writer.append("m.a", &[0; 4]).unwrap();
        env::set_current_dir(env::temp_dir()).unwrap();
        if finished {
            writer.finish().unwrap();
        }
        drop(writer);
        assert_eq!(folder.join("model/quant_model_description.json").exists(), finished);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), usize::from(finished));
    }
    fs::remove_dir_all(&folder).unwrap();
}
