//! Files by the standard library, which allocates for paths, and by Windows where that gives too little.

use super::{File, Kind, Path, PathBuf, Result, Use, copied, failed, io};
use std::fs;
#[cfg(windows)]
use system::{FILE_FLAG_OPEN_REPARSE_POINT, FILE_SHARE_DELETE, FILE_SHARE_READ, identity, unless_shared};

#[cfg(windows)]
mod system {
    use super::{File, io};
    use std::ffi::c_void;
    use std::os::windows::io::AsRawHandle;

    pub(super) const FILE_SHARE_READ: u32 = 1;
    /// Others may still remove and rename the file.
    pub(super) const FILE_SHARE_DELETE: u32 = 4;
    pub(super) const FILE_FLAG_OPEN_REPARSE_POINT: u32 = 0x20_0000;
    const ERROR_SHARING_VIOLATION: i32 = 32;

    /// `None`: the file is open for another use, and not shared with this one.
    pub(super) fn unless_shared(opened: io::Result<File>) -> io::Result<Option<File>> {
        match opened {
            Err(e) if e.raw_os_error() == Some(ERROR_SHARING_VIOLATION) => Ok(None),
            result => result.map(Some),
        }
    }

    /// BY_HANDLE_FILE_INFORMATION.
    #[repr(C)]
    #[derive(Default)]
    struct Information {
        attributes: u32,
        times: [u32; 6],
        volume: u32,
        size: [u32; 2],
        links: u32,
        index: [u32; 2],
    }

    #[link(name = "kernel32")]
    unsafe extern "system" {
        fn GetFileInformationByHandle(file: *mut c_void, information: *mut Information) -> i32;
    }

    /// The volume of a file, and the file's number there.
    pub(super) fn identity(file: &File) -> Option<(u32, [u32; 2])> {
        let mut found = Information::default();
        // SAFETY: the handle is open, and there is room for the answer, which is integers.
        let is_known = unsafe { GetFileInformationByHandle(file.as_raw_handle(), &mut found) } != 0;
        is_known.then_some((found.volume, found.index))
    }
}

pub(super) fn kind(path: &Path) -> io::Result<Kind> {
    let kind = fs::metadata(path)?.file_type();
    Ok(if kind.is_file() {
        Kind::File
    } else if kind.is_dir() {
        Kind::Folder
    } else {
        Kind::Other
    })
}

pub(super) fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).or_else(|_| copied(path))
}

pub(super) fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink())
}

pub(super) fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// Shares the file with no other; the system closes it when its process ends.
#[cfg(windows)]
pub(super) fn open_alone(path: &Path) -> io::Result<Option<File>> {
    use std::os::windows::fs::OpenOptionsExt;

    let mut options = File::options();
    options.write(true).create(true).truncate(false).share_mode(FILE_SHARE_DELETE);
    // A link is opened itself, and then refused.
    let Some(file) = unless_shared(options.custom_flags(FILE_FLAG_OPEN_REPARSE_POINT).open(path))? else {
        return Ok(None);
    };
    if file.metadata()?.is_file() { Ok(Some(file)) } else { Err(io::ErrorKind::AlreadyExists.into()) }
}

#[cfg(not(windows))]
pub(super) fn open_alone(path: &Path) -> io::Result<Option<File>> {
    File::options().write(true).create(true).truncate(false).open(path).map(Some)
}

pub(super) fn open_locked(path: &Path, how: Use) -> io::Result<Option<File>> {
    let mut options = File::options();
    options.read(true).write(how != Use::Read).create_new(how.is_new());
    #[cfg(windows)]
    {
        use std::os::windows::fs::OpenOptionsExt;

        options.share_mode(FILE_SHARE_DELETE | if how == Use::Read { FILE_SHARE_READ } else { 0 });
        match unless_shared(options.open(path)) {
            // What the system says of a folder.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied && path.is_dir() => {
                Err(io::ErrorKind::IsADirectory.into())
            }
            result => result,
        }
    }
    #[cfg(not(windows))]
    options.open(path).map(Some)
}

pub(super) fn take_rights(_: &File, _: &File) {}

pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)
}

#[cfg(windows)]
pub(super) fn is_at(path: &Path, file: &File) -> bool {
    use std::os::windows::fs::OpenOptionsExt;

    // Without access to its contents, which no other use refuses.
    let named = File::options().access_mode(0).open(path).ok().and_then(|named| identity(&named));
    named.is_some() && named == identity(file)
}

#[cfg(not(windows))]
pub(super) fn is_at(_: &Path, _: &File) -> bool {
    true
}

pub(super) fn remove(path: &Path) -> io::Result<()> {
    fs::remove_file(path)
}

pub(super) fn create_folder(path: &Path) -> io::Result<()> {
    fs::create_dir(path)
}

pub(super) fn remove_folder(path: &Path) -> io::Result<()> {
    fs::remove_dir(path)
}

pub(super) fn names(path: &Path, visit: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
    for entry in fs::read_dir(path).map_err(|e| failed("list", path, &e))? {
        let name = entry.map_err(|e| failed("list", path, &e))?.file_name();
        if let Some(name) = name.to_str() {
            visit(name)?;
        }
    }
    Ok(())
}

/// The system keeps names by itself.
pub(super) fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

pub(super) fn reason(_: i32, _: &mut [u8]) -> Option<&str> {
    None
}
