//! A file that is read and written at offsets, by its path, or bytes that behave like one.

use crate::status::{Error, Result, bail, error};
use crate::sys::files::{self, Use};
use crate::sys::{self, memory};
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Bytes at offsets. Calls of one medium may come from several threads at once; no call reads bytes that another one writes.
#[expect(clippy::len_without_is_empty, reason = "nobody asks a file whether it has a byte")]
pub trait Medium: Send + Sync {
    /// The number of bytes.
    fn len(&self) -> Result<u64>;

    /// Fills `to` from `offset` on; fails where the bytes end before.
    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<()>;

    /// As [`Medium::read_at`], but returns false where the bytes are not in memory and the call would wait for a disk.
    /// CORRUPT: if the bytes end before.
    fn read_now(&self, offset: u64, to: &mut [u8]) -> Result<bool> {
        self.read_at(offset, to).map(|()| true)
    }

    /// Asks for bytes that [`Medium::read_now`] is to find in memory later. Does not wait for them.
    fn prefetch(&self, _range: Range<u64>) {}

    /// Writes all of `from` at `offset`, which is at most the number of bytes.
    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()>;

    /// Returns once all that was written would survive a power failure.
    fn sync(&self) -> Result<()>;

    /// Drops the bytes from `len` on. A medium that cannot do so keeps them.
    fn truncate(&self, _len: u64) -> Result<()> {
        Ok(())
    }
}

/// A medium with a name for errors.
pub struct Storage {
    name: String,
    kind: Kind,
    /// The process that opened it. A child must leave its parent's file as it is.
    process: u32,
}

enum Kind {
    File(LockedFile),
    Host(Box<dyn Medium>),
}

#[expect(clippy::len_without_is_empty, reason = "as of a medium")]
impl Storage {
    /// Makes the file at `path`, which must not exist.
    pub fn create(path: &Path) -> Result<Self> {
        Storage::locked(path, Use::Create)
    }

    /// As [`Storage::create`], with all rights for the owner alone, until [`Storage::take_rights`].
    pub fn create_private(path: &Path) -> Result<Self> {
        Storage::locked(path, Use::CreatePrivate)
    }

    /// Gives a file the owner and the rights of another, as far as the system lets it. Unix; elsewhere a folder's are its files'.
    pub fn take_rights(&self, of: &Storage) {
        if let (Kind::File(to), Kind::File(from)) = (&self.kind, &of.kind) {
            files::take_rights(&to.file, &from.file);
        }
    }

    /// Opens the file at `path`, to read it beside other readers.
    pub fn open(path: &Path) -> Result<Self> {
        Storage::locked(path, Use::Read)
    }

    /// Opens the file at `path`, to read and write it alone.
    pub fn edit(path: &Path) -> Result<Self> {
        Storage::locked(path, Use::Edit)
    }

    fn locked(path: &Path, how: Use) -> Result<Self> {
        let name = memory::format(format_args!("{}", path.display()))?;
        let absolute = files::absolute(path)?;
        let verb = if how.is_new() { "create" } else { "open" };
        match files::open_locked(path, how).map_err(|e| files::failed(verb, path, &e))? {
            Some(file) => Ok(Storage::new(name, Kind::File(LockedFile { file, path: absolute }))),
            None if how == Use::Read => {
                Err(error!(Busy, "{name} is open to be written already, in this process or another"))
            }
            None => Err(error!(Busy, "{name} is open already, in this process or another")),
        }
    }

    /// The bytes of a host.
    pub fn host(name: &str, medium: impl Medium + 'static) -> Result<Self> {
        Ok(Storage::new(memory::text(name)?, Kind::Host(memory::boxed(medium)?)))
    }

    fn new(name: String, kind: Kind) -> Self {
        Storage { name, kind, process: sys::process() }
    }

    /// Whether this process opened it, not one that this one was forked from.
    pub fn is_own(&self) -> bool {
        self.process == sys::process()
    }

    /// The name in errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn medium(&self) -> &dyn Medium {
        match &self.kind {
            Kind::File(file) => file,
            Kind::Host(medium) => &**medium,
        }
    }

    /// [`Medium::len`].
    pub fn len(&self) -> Result<u64> {
        self.medium().len()
    }

    /// [`Medium::read_at`].
    pub fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        self.medium().read_at(offset, to)
    }

    /// [`Medium::read_now`]. Linux and Android; elsewhere the call waits.
    pub fn read_now(&self, offset: u64, to: &mut [u8]) -> Result<bool> {
        self.medium().read_now(offset, to)
    }

    /// [`Medium::prefetch`].
    pub fn prefetch(&self, offset: u64, len: usize) {
        self.medium().prefetch(offset..offset + len as u64);
    }

    /// [`Medium::write_at`].
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.medium().write_at(offset, from)
    }

    /// Says that reads jump: the system reads nothing ahead of them. Linux and Android; elsewhere the system decides.
    pub fn expect_random_reads(&self) {
        if let Kind::File(file) = &self.kind {
            system::expect_random_reads(&file.file);
        }
    }

    /// [`Medium::sync`].
    pub fn sync(&self) -> Result<()> {
        self.medium().sync()
    }

    /// [`Medium::truncate`].
    pub fn truncate(&self, len: u64) -> Result<()> {
        self.medium().truncate(len)
    }

    /// Makes the name of a new file survive a power failure.
    pub fn sync_name(&self) -> Result<()> {
        match &self.kind {
            Kind::File(file) => {
                files::sync_folder_of(&file.path).map_err(|e| files::failed("sync the folder of", &file.path, &e))
            }
            Kind::Host(_) => Ok(()),
        }
    }

    /// Removes a file that could not be completed, or the bytes of a host. Another file that has taken its place stays, and so
    /// does a file of a parent's.
    pub fn remove(&self) {
        if !self.is_own() {
            return;
        }
        // The failure that led here is the one to report.
        let _ = match &self.kind {
            Kind::File(file) if !files::is_at(&file.path, &file.file) => Ok(()),
            Kind::File(file) => files::remove(&file.path).map_err(drop),
            Kind::Host(medium) => medium.truncate(0).map_err(drop),
        };
    }

    /// Whether a file is at its path still, under the name that it was opened by; true of a host's bytes.
    pub fn is_at_path(&self) -> bool {
        match &self.kind {
            Kind::File(file) => files::is_at(&file.path, &file.file),
            Kind::Host(_) => true,
        }
    }

    /// The path of a file from the root on, whatever the working folder is now; `None` of a host's bytes.
    pub fn path(&self) -> Option<&Path> {
        match &self.kind {
            Kind::File(file) => Some(&file.path),
            Kind::Host(_) => None,
        }
    }

    /// Gives a file another path, in place of what is there.
    pub fn rename(&mut self, to: &Path) -> Result<()> {
        let Kind::File(file) = &mut self.kind else { return Ok(()) };
        let (name, path) = (memory::format(format_args!("{}", to.display()))?, files::absolute(to)?);
        files::replace(&file.path, to)?;
        (file.path, self.name) = (path, name);
        Ok(())
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Storage").field(&self.name).finish()
    }
}

/// An open file with its lock.
#[derive(Debug)]
struct LockedFile {
    file: File,
    /// From the root on: the process may change its working folder.
    path: PathBuf,
}

impl LockedFile {
    fn failed(&self, verb: &str, error: &std::io::Error) -> Error {
        files::failed(verb, &self.path, error)
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        // A forked child has its parent's lock, too. Fails on Windows, where files are opened for one process alone, without a lock.
        if let (Kind::File(locked), true) = (&self.kind, self.is_own()) {
            let _ = locked.file.unlock();
        }
    }
}

impl Medium for LockedFile {
    fn len(&self) -> Result<u64> {
        self.file.metadata().map(|found| found.len()).map_err(|e| self.failed("read the length of", &e))
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        system::read_at(&self.file, offset, to).map_err(|e| self.failed("read", &e))
    }

    fn read_now(&self, offset: u64, to: &mut [u8]) -> Result<bool> {
        match system::read_now(&self.file, offset, to) {
            Ok(is_read) => Ok(is_read),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                bail!(Corrupt, "{} ends before byte {}", self.path.display(), offset + to.len() as u64)
            }
            Err(error) => Err(self.failed("read", &error)),
        }
    }

    fn prefetch(&self, range: Range<u64>) {
        system::prefetch(&self.file, &range);
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        system::write_at(&self.file, offset, from).map_err(|e| self.failed("write", &e))
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| self.failed("sync", &e))
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.file.set_len(len).map_err(|e| self.failed("truncate", &e))
    }
}

#[cfg(unix)]
mod system {
    use std::fs::File;
    use std::io;
    use std::os::unix::fs::FileExt;

    pub(super) fn read_at(file: &File, offset: u64, to: &mut [u8]) -> io::Result<()> {
        file.read_exact_at(to, offset)
    }

    pub(super) fn write_at(file: &File, offset: u64, from: &[u8]) -> io::Result<()> {
        file.write_all_at(from, offset)
    }

    pub(super) use advice::{expect_random_reads, prefetch, read_now};

    /// All is advice: a system that refuses it keeps more pages than it needs.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    mod advice {
        use std::fs::File;
        use std::io;
        use std::ops::Range;
        use std::os::fd::AsRawFd;

        fn advise(file: &File, range: &Range<u64>, advice: i32) {
            let (offset, len) = (range.start.try_into(), (range.end - range.start).try_into());
            if let (Ok(offset), Ok(len)) = (offset, len) {
                // SAFETY: an open file; the call touches no memory of the process.
                unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, len, advice) };
            }
        }

        pub(in super::super) fn expect_random_reads(file: &File) {
            advise(file, &(0..0), libc::POSIX_FADV_RANDOM);
        }

        /// The system reads on its own.
        pub(in super::super) fn prefetch(file: &File, range: &Range<u64>) {
            advise(file, range, libc::POSIX_FADV_WILLNEED);
        }

        /// Not by a wrapper of the C library, which old ones lack.
        pub(in super::super) fn read_now(file: &File, offset: u64, to: &mut [u8]) -> io::Result<bool> {
            const NOWAIT: libc::c_int = 8;
            let part = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
            // The lower and the upper half of the offset, of which a 64-bit system reads the first alone.
            let halves = [offset as libc::c_long, (u128::from(offset) >> usize::BITS) as libc::c_long];
            // SAFETY: one part, whose memory is exclusively borrowed.
            let read = unsafe {
                libc::syscall(libc::SYS_preadv2, file.as_raw_fd(), &raw const part, 1, halves[0], halves[1], NOWAIT)
            };
            match usize::try_from(read) {
                Ok(read) if read == to.len() => Ok(true),
                Ok(0) if !to.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
                // A part is in memory, or the file ends.
                Ok(_) => match file.metadata() {
                    Ok(found) if found.len() < offset + to.len() as u64 => Err(io::ErrorKind::UnexpectedEof.into()),
                    _ => Ok(false),
                },
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
                    error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
                    // A system or a file system that cannot tell, or a sandbox that has not heard of the call.
                    error
                        if matches!(
                            error.raw_os_error(),
                            Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL | libc::EPERM)
                        ) =>
                    {
                        super::read_at(file, offset, to).map(|()| true)
                    }
                    error => Err(error),
                },
            }
        }
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    mod advice {
        use std::fs::File;
        use std::ops::Range;

        pub(in super::super) fn expect_random_reads(_: &File) {}

        pub(in super::super) fn prefetch(_: &File, _: &Range<u64>) {}

        pub(in super::super) fn read_now(file: &File, offset: u64, to: &mut [u8]) -> std::io::Result<bool> {
            super::read_at(file, offset, to).map(|()| true)
        }
    }
}

#[cfg(not(unix))]
mod system {
    use std::fs::File;
    use std::io;

    #[cfg(windows)]
    pub(super) fn read_at(file: &File, mut offset: u64, mut to: &mut [u8]) -> io::Result<()> {
        use std::os::windows::fs::FileExt;
        while !to.is_empty() {
            match file.seek_read(to, offset)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => (to, offset) = (&mut to[n..], offset + n as u64),
            }
        }
        Ok(())
    }

    #[cfg(windows)]
    pub(super) fn write_at(file: &File, mut offset: u64, mut from: &[u8]) -> io::Result<()> {
        use std::os::windows::fs::FileExt;
        while !from.is_empty() {
            match file.seek_write(from, offset)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => (from, offset) = (&from[n..], offset + n as u64),
            }
        }
        Ok(())
    }

    #[cfg(not(windows))]
    pub(super) fn read_at(_: &File, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    #[cfg(not(windows))]
    pub(super) fn write_at(_: &File, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn expect_random_reads(_: &File) {}

    pub(super) fn prefetch(_: &File, _: &std::ops::Range<u64>) {}

    pub(super) fn read_now(file: &File, offset: u64, to: &mut [u8]) -> io::Result<bool> {
        read_at(file, offset, to).map(|()| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Status;
    use std::fs;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("mnnkv-storage-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_file_is_removed_and_another_in_its_place_is_not() {
        let (own, moved) = (path("own"), path("moved"));
        let storage = Storage::create(&own).unwrap();
        storage.remove();
        drop(storage);
        assert_eq!(files::kind(&own).unwrap_err().kind(), std::io::ErrorKind::NotFound);

        let storage = Storage::create(&own).unwrap();
        fs::rename(&own, &moved).unwrap();
        fs::write(&own, "kept").unwrap();
        storage.remove();
        assert_eq!(fs::read(&own).unwrap(), b"kept");
        fs::remove_file(&own).unwrap();
        storage.remove();
        drop(storage);
        assert_eq!(fs::read(&moved).unwrap(), b"");
        fs::remove_file(&moved).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_new_name_is_not_taken_for_durable_where_its_folder_cannot_be_opened() {
        let (folder, moved) = (path("folder"), path("moved-folder"));
        fs::create_dir(&folder).unwrap();
        let storage = Storage::create(&folder.join("file")).unwrap();
        storage.sync_name().unwrap();
        fs::rename(&folder, &moved).unwrap();
        assert_eq!(storage.sync_name().unwrap_err().status(), Status::NotFound);
        fs::remove_dir_all(&moved).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_path_that_ends_as_one_of_a_folder_is_refused_for_that() {
        let error = Storage::create(&path("nothing").join("")).unwrap_err();
        assert!(error.to_string().ends_with("names no file"), "{error}");
    }

    #[test]
    fn a_folder_is_no_file() {
        let folder = std::env::temp_dir();
        for error in [Storage::open(&folder), Storage::edit(&folder)].map(Result::unwrap_err) {
            assert_eq!(error.status(), Status::Io);
            assert!(error.to_string().ends_with("it is a folder, not a file"), "{error}");
        }
    }
}
