//! The file system without hidden allocations.
//!
//! The standard library copies paths to the heap and lists folders through it, and aborts where that fails. On Unix
//! these functions call the system themselves, with paths on the stack. Elsewhere they are the standard library's.

use crate::status::{Error, Result, Status, bail};
use crate::sys::memory;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

#[cfg(not(unix))]
mod portable;

#[cfg(not(unix))]
use portable as system;
#[cfg(unix)]
use unix as system;

/// The type of a file, links followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Folder,
    Device,
    Pipe,
    Socket,
    Other,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::File => "a regular file",
            Kind::Folder => "a directory",
            Kind::Device => "a device",
            Kind::Pipe => "a pipe",
            Kind::Socket => "a socket",
            Kind::Other => "no regular file",
        })
    }
}

/// Returns the type of the file at `path`.
pub fn kind(path: &Path) -> io::Result<Kind> {
    system::kind(path)
}

/// Opens a file for reading.
pub fn open(path: &Path) -> io::Result<File> {
    system::open(path)
}

/// Opens the file at `path` for writing alone, or makes it. Contents that it has stay.
///
/// `None`: another writer has it open. The file is the caller's until it is closed.
pub fn open_alone(path: &Path) -> io::Result<Option<File>> {
    system::open_alone(path)
}

/// How [`open_locked`] opens a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Reads, beside other readers.
    Read,
    /// Reads and writes, alone.
    Edit,
    /// Makes a file that does not exist, to read and write it alone.
    Create,
    /// Makes one that other users cannot open, on Unix.
    CreatePrivate,
}

impl Use {
    /// Whether the file does not exist before.
    pub fn is_new(self) -> bool {
        matches!(self, Use::Create | Use::CreatePrivate)
    }
}

/// Opens a file with a lock that lasts until it is closed, on systems and file systems with locks.
///
/// `None`: the file is locked against this use.
pub fn open_locked(path: &Path, how: Use) -> io::Result<Option<File>> {
    system::open_locked(path, how)
}

/// Gives a file the owner, the group and the rights of another, as far as the system lets it.
pub fn take_rights(to: &File, from: &File) {
    system::take_rights(to, from);
}

/// Fails unless nothing is at `path`, or a regular file, or a symbolic link to one: only those may be replaced. A rename
/// asks nothing: as root it puts a regular file in the place of a device that other programs need.
/// INVALID_ARGUMENT: the text has the path, and what it is.
pub fn check_replaceable(path: &Path) -> Result<()> {
    match kind(path) {
        Ok(Kind::File) => Ok(()),
        Ok(other) => bail!(InvalidArgument, "{} is {other}; a file expected", path.display()),
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("look at", path, &e)),
        // A link that leads nowhere may be of a disk that is not mounted: its owner wants it back.
        Err(_) if system::is_link(path) => {
            bail!(InvalidArgument, "{} is a symbolic link to nothing; a file expected", path.display())
        }
        Err(_) => Ok(()),
    }
}

/// Gives a file another name, in place of what [`check_replaceable`] lets go. A link is replaced, and what it leads to
/// stays. No system checks and renames at once: what comes to `to` between the two is not seen.
pub fn replace(from: &Path, to: &Path) -> Result<()> {
    check_replaceable(to)?;
    system::rename(from, to).map_err(|e| failed("write", to, &e))
}

/// Removes a file.
pub fn remove(path: &Path) -> io::Result<()> {
    system::remove(path)
}

/// Whether the file at `path` is this one; true on systems that cannot tell.
pub fn is_at(path: &Path, file: &File) -> bool {
    system::is_at(path, file)
}

/// Whether a symbolic link is at `path`.
pub fn is_link(path: &Path) -> bool {
    system::is_link(path)
}

/// Makes a folder.
pub fn create_folder(path: &Path) -> io::Result<()> {
    system::create_folder(path)
}

/// Removes an empty folder.
pub fn remove_folder(path: &Path) -> io::Result<()> {
    system::remove_folder(path)
}

/// Calls `visit` with the names in a folder, in no order. Names that are not UTF-8 are left out.
pub fn names(path: &Path, mut visit: impl FnMut(&str) -> Result<()>) -> Result<()> {
    system::names(path, &mut visit)
}

/// Blocks until the names in the folder of `path` are on the disk, on systems that offer it.
pub fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    #[cfg(any(test, feature = "test-hooks"))]
    synced::note(folder);
    system::sync_folder(folder)
}

/// Returns the path of `name` in `folder`: `folder.join(name)`.
pub fn join(folder: &Path, name: impl AsRef<OsStr>) -> Result<PathBuf> {
    let name = name.as_ref();
    let mut path = PathBuf::from(text(&[folder.as_os_str()], 1 + name.len())?);
    #[expect(clippy::disallowed_methods, reason = "room is reserved above")]
    path.push(name);
    Ok(path)
}

/// Returns the path from the root on, by the working folder of now. Where that is unknown, or the path would be too long for the
/// system, it is the path as given.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    system::absolute(path)
}

/// Returns a copy of a path.
pub fn copied(path: &Path) -> Result<PathBuf> {
    Ok(text(&[path.as_os_str()], 0)?.into())
}

/// Returns the parts one after the other, with room for `more` bytes behind them.
pub fn text(parts: &[&OsStr], more: usize) -> Result<OsString> {
    let mut text = OsString::new();
    let len = parts.iter().map(|part| part.len()).sum::<usize>() + more;
    text.try_reserve_exact(len).map_err(|_| memory::out_of_memory(len))?;
    parts.iter().for_each(|part| text.push(part));
    Ok(text)
}

/// The error of a failed call: the action, the path and the system's reason.
pub fn failed(verb: &str, path: &Path, error: &io::Error) -> Error {
    let status = match error.kind() {
        io::ErrorKind::NotFound => Status::NotFound,
        io::ErrorKind::OutOfMemory => Status::OutOfMemory,
        _ => Status::Io,
    };
    Error::formatted(status, format_args!("cannot {verb} {}: {}", path.display(), Reason(error, path)))
}

/// The system's reason to refuse a path. The `Display` of the error itself allocates.
struct Reason<'a>(&'a io::Error, &'a Path);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.raw_os_error() {
            _ if self.0.kind() == io::ErrorKind::IsADirectory => f.write_str(match kind(self.1) {
                Ok(Kind::Folder) => "it is a folder, not a file",
                _ => "the path of a folder, which ends so, names no file",
            }),
            None if self.0.kind() == io::ErrorKind::Unsupported => f.write_str("it is not a regular file"),
            Some(code) => {
                let mut room = [0; 256];
                match system::reason(code, &mut room) {
                    Some(text) => write!(f, "{text} (os error {code})"),
                    None => write!(f, "{} (os error {code})", self.0.kind()),
                }
            }
            None => self.0.kind().fmt(f),
        }
    }
}

#[cfg(unix)]
mod unix {
    use super::{File, Kind, Path, PathBuf, Result, Use, copied, failed, io, join};
    use std::ffi::{CStr, OsStr, c_char, c_int, c_uint};
    use std::os::fd::{AsRawFd, FromRawFd};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::MetadataExt;

    // With 32-bit words the plain functions refuse large files.
    #[cfg(not(all(target_os = "linux", not(target_env = "musl"))))]
    use libc::{lstat, open as open_file, readdir, stat};
    #[cfg(all(target_os = "linux", not(target_env = "musl")))]
    use libc::{lstat64 as lstat, open64 as open_file, readdir64 as readdir, stat64 as stat};

    /// The longest path that a system takes, with its zero.
    const PATH: usize = 4096;

    /// Calls `call` with the path as a C string.
    fn with<T>(path: &Path, call: impl FnOnce(&CStr) -> io::Result<T>) -> io::Result<T> {
        let bytes = path.as_os_str().as_bytes();
        let mut room = [0; PATH];
        let Some(to) = room.get_mut(..bytes.len()).filter(|_| bytes.len() < PATH) else {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        };
        to.copy_from_slice(bytes);
        match CStr::from_bytes_with_nul(&room[..=bytes.len()]) {
            Ok(path) => call(path),
            Err(_) => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    pub(super) fn absolute(path: &Path) -> Result<PathBuf> {
        let mut room = [0; PATH];
        // SAFETY: there is room for as many bytes as is said.
        if path.is_absolute() || unsafe { libc::getcwd(room.as_mut_ptr().cast(), room.len()) }.is_null() {
            return copied(path);
        }
        let folder = CStr::from_bytes_until_nul(&room).unwrap_or_default().to_bytes();
        // Linux has "(unreachable)" for a folder outside of the root of the process.
        if !folder.starts_with(b"/") || folder.len() + 1 + path.as_os_str().len() >= PATH {
            return copied(path);
        }
        join(Path::new(OsStr::from_bytes(folder)), path)
    }

    fn checked(result: c_int) -> io::Result<c_int> {
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
    }

    fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            match call() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    fn open_with(path: &Path, flags: c_int) -> io::Result<File> {
        open_as(path, flags, 0o666)
    }

    /// `rights`: of a new file, less the process's mask.
    fn open_as(path: &Path, flags: c_int, rights: c_uint) -> io::Result<File> {
        let descriptor = with(path, |path| {
            // SAFETY: the path ends with a zero; the mode is as wide as variadic arguments are.
            again(|| checked(unsafe { open_file(path.as_ptr(), flags | libc::O_CLOEXEC, rights) }))
        })?;
        // SAFETY: the descriptor is open and has no other owner.
        Ok(unsafe { File::from_raw_fd(descriptor) })
    }

    pub(super) fn kind(path: &Path) -> io::Result<Kind> {
        let mut found = std::mem::MaybeUninit::<stat>::zeroed();
        // SAFETY: the path ends with a zero, and there is room for the answer.
        with(path, |path| again(|| checked(unsafe { stat(path.as_ptr(), found.as_mut_ptr()) })))?;
        // SAFETY: zeroed, which is a value of a struct of integers, and then written.
        let found = unsafe { found.assume_init() };
        // A u32 or a u16, and not always the type of the constants.
        Ok(match found.st_mode as libc::mode_t & libc::S_IFMT {
            libc::S_IFREG => Kind::File,
            libc::S_IFDIR => Kind::Folder,
            libc::S_IFCHR | libc::S_IFBLK => Kind::Device,
            libc::S_IFIFO => Kind::Pipe,
            libc::S_IFSOCK => Kind::Socket,
            _ => Kind::Other,
        })
    }

    pub(super) fn is_link(path: &Path) -> bool {
        let mut found = std::mem::MaybeUninit::<stat>::zeroed();
        // SAFETY: the path ends with a zero, and there is room for the answer.
        let seen = with(path, |path| again(|| checked(unsafe { lstat(path.as_ptr(), found.as_mut_ptr()) })));
        // SAFETY: zeroed, which is a value of a struct of integers.
        seen.is_ok() && unsafe { found.assume_init() }.st_mode as libc::mode_t & libc::S_IFMT == libc::S_IFLNK
    }

    pub(super) fn is_at(path: &Path, file: &File) -> bool {
        let mut named = std::mem::MaybeUninit::<stat>::zeroed();
        // SAFETY: the path ends with a zero, and there is room for the answer.
        let seen = with(path, |path| again(|| checked(unsafe { stat(path.as_ptr(), named.as_mut_ptr()) })));
        // SAFETY: zeroed, which is a value of a struct of integers.
        let named = unsafe { named.assume_init() };
        #[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
        let named = (named.st_dev as u64, named.st_ino as u64);
        seen.is_ok() && file.metadata().is_ok_and(|open| named == (open.dev(), open.ino()))
    }

    pub(super) fn open(path: &Path) -> io::Result<File> {
        open_with(path, libc::O_RDONLY)
    }

    /// Locks the file until its process ends. On a file system without locks two writers of one file conflict.
    pub(super) fn open_alone(path: &Path) -> io::Result<Option<File>> {
        loop {
            let file = open_with(path, libc::O_WRONLY | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_NONBLOCK)?;
            // SAFETY: the descriptor is open.
            match again(|| checked(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) })) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                _ => {}
            }
            let open = file.metadata()?;
            if !open.is_file() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            // Its owner may have renamed or removed it since it was opened.
            let mut named = std::mem::MaybeUninit::<stat>::zeroed();
            // SAFETY: the path ends with a zero, and there is room for the answer.
            match with(path, |path| again(|| checked(unsafe { lstat(path.as_ptr(), named.as_mut_ptr()) }))) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(e),
                Ok(_) => {}
            }
            // SAFETY: zeroed, which is a value of a struct of integers, and then written.
            let named = unsafe { named.assume_init() };
            #[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
            if (named.st_dev as u64, named.st_ino as u64) == (open.dev(), open.ino()) {
                return Ok(Some(file));
            }
        }
    }

    pub(super) fn open_locked(path: &Path, how: Use) -> io::Result<Option<File>> {
        let (flags, lock) = match how {
            Use::Read => (libc::O_RDONLY, libc::LOCK_SH),
            Use::Edit => (libc::O_RDWR, libc::LOCK_EX),
            Use::Create | Use::CreatePrivate => (libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, libc::LOCK_EX),
        };
        let rights = if how == Use::CreatePrivate { 0o600 } else { 0o666 };
        // A pipe that nothing writes to would block.
        let file = open_as(path, flags | libc::O_NONBLOCK, rights)?;
        let kind = file.metadata()?;
        if !kind.is_file() {
            return Err(if kind.is_dir() { io::ErrorKind::IsADirectory } else { io::ErrorKind::Unsupported }.into());
        }
        // SAFETY: the descriptor is open.
        match again(|| checked(unsafe { libc::flock(file.as_raw_fd(), lock | libc::LOCK_NB) })) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            _ => Ok(Some(file)),
        }
    }

    pub(super) fn take_rights(to: &File, from: &File) {
        let Ok(found) = from.metadata() else { return };
        let keep = libc::uid_t::MAX;
        // SAFETY: the descriptor is open.
        let owns = |user| unsafe { libc::fchown(to.as_raw_fd(), user, found.gid()) } == 0;
        // Of another group than the file's nobody may read it.
        let most = if owns(found.uid()) || owns(keep) { 0o777 } else { 0o707 };
        // SAFETY: the descriptor is open.
        unsafe { libc::fchmod(to.as_raw_fd(), (found.mode() & most) as libc::mode_t) };
    }

    pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
        // SAFETY: both paths end with a zero.
        with(from, |from| with(to, |to| checked(unsafe { libc::rename(from.as_ptr(), to.as_ptr()) }))).map(drop)
    }

    pub(super) fn remove(path: &Path) -> io::Result<()> {
        // SAFETY: the path ends with a zero.
        with(path, |path| checked(unsafe { libc::unlink(path.as_ptr()) })).map(drop)
    }

    pub(super) fn create_folder(path: &Path) -> io::Result<()> {
        // SAFETY: the path ends with a zero.
        with(path, |path| checked(unsafe { libc::mkdir(path.as_ptr(), 0o777) })).map(drop)
    }

    pub(super) fn remove_folder(path: &Path) -> io::Result<()> {
        // SAFETY: the path ends with a zero.
        with(path, |path| checked(unsafe { libc::rmdir(path.as_ptr()) })).map(drop)
    }

    /// An open folder.
    struct Folder(*mut libc::DIR);

    impl Drop for Folder {
        fn drop(&mut self) {
            // SAFETY: open, and not used afterwards.
            unsafe { libc::closedir(self.0) };
        }
    }

    pub(super) fn names(path: &Path, visit: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
        let folder = with(path, |path| {
            // SAFETY: the path ends with a zero.
            let folder = unsafe { libc::opendir(path.as_ptr()) };
            if folder.is_null() { Err(io::Error::last_os_error()) } else { Ok(Folder(folder)) }
        });
        let folder = folder.map_err(|e| failed("list", path, &e))?;
        loop {
            set_errno(0);
            // SAFETY: the folder is open, and no other thread has it.
            let entry = unsafe { readdir(folder.0) };
            if entry.is_null() {
                let error = io::Error::last_os_error();
                return match error.raw_os_error() {
                    None | Some(0) => Ok(()),
                    Some(_) => Err(failed("list", path, &error)),
                };
            }
            // SAFETY: an entry is valid until the next one is read; its name ends with a zero.
            let name = unsafe { CStr::from_ptr((&raw const (*entry).d_name).cast::<c_char>()) };
            match name.to_str() {
                Ok("." | "..") | Err(_) => {}
                Ok(name) => visit(name)?,
            }
        }
    }

    /// Tells the end of a folder from a failure to read it.
    fn set_errno(code: c_int) {
        // SAFETY: the place is this thread's.
        unsafe {
            #[cfg(any(target_vendor = "apple", target_os = "freebsd"))]
            let place = libc::__error();
            #[cfg(any(target_os = "android", target_os = "netbsd", target_os = "openbsd"))]
            let place = libc::__errno();
            #[cfg(not(any(
                target_vendor = "apple",
                target_os = "freebsd",
                target_os = "android",
                target_os = "netbsd",
                target_os = "openbsd"
            )))]
            let place = libc::__errno_location();
            place.write(code);
        }
    }

    pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
        let folder = match open_with(path, libc::O_RDONLY | libc::O_DIRECTORY) {
            Ok(folder) => folder,
            Err(e) => {
                return match e.raw_os_error() {
                    // A folder that may be written but not read; a file system whose folders cannot be opened.
                    Some(libc::EACCES | libc::EPERM | libc::EINVAL | libc::ENOTSUP | libc::ENOSYS) => Ok(()),
                    _ => Err(e),
                };
            }
        };
        match folder.sync_all() {
            // Not every file system syncs folders.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOTSUP | libc::EBADF)) => Ok(()),
            result => result,
        }
    }

    pub(super) fn reason(code: c_int, room: &mut [u8]) -> Option<&str> {
        // SAFETY: there is room for as many bytes as is said.
        if unsafe { libc::strerror_r(code, room.as_mut_ptr().cast(), room.len()) } != 0 {
            return None;
        }
        CStr::from_bytes_until_nul(room).ok()?.to_str().ok()
    }
}

/// The folders that this thread synced, for tests. Allocates nothing, since those refuse memory.
#[cfg(any(test, feature = "test-hooks"))]
pub mod synced {
    use std::cell::Cell;
    use std::hash::{DefaultHasher, Hash, Hasher};
    use std::path::Path;

    thread_local! {
        static FOLDERS: Cell<(u32, u64)> = const { Cell::new((0, 0)) };
    }

    /// The mark of a path.
    pub fn mark(folder: &Path) -> u64 {
        let mut hasher = DefaultHasher::new();
        folder.hash(&mut hasher);
        hasher.finish()
    }

    pub(super) fn note(folder: &Path) {
        FOLDERS.set((FOLDERS.get().0 + 1, mark(folder)));
    }

    /// The number of folders since the last call, and the mark of the last one.
    pub fn take() -> (u32, u64) {
        FOLDERS.take()
    }
}
