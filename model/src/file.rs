//! Files of a model: read by position, written completely or not at all.

use mnnkv::status::{Result, bail, error};
use mnnkv::sys::files::{self, Kind, failed};
use mnnkv::sys::memory;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Bytes that a reader copies by position: a file, or bytes in memory.
pub trait Source {
    /// Length in bytes.
    fn len(&self) -> u64;

    /// Whether the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `to` with the bytes from `offset` on.
    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<()>;

    /// The `len` bytes from `offset` on. The range is checked before memory is allocated, so a length from a file
    /// cannot allocate more than the file has.
    fn read_vec(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            bail!(Corrupt, "offset {offset}: {len} bytes expected, {} are left", self.len().saturating_sub(offset));
        }
        let len =
            usize::try_from(len).map_err(|_| error!(OutOfMemory, "offset {offset}: no memory for {len} bytes"))?;
        let mut bytes = memory::filled(0, len)?;
        self.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }
}

impl Source for [u8] {
    fn len(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        let from = usize::try_from(offset).ok().and_then(|at| self.get(at..)?.get(..to.len()));
        let Some(from) = from else {
            bail!(
                Corrupt,
                "offset {offset}: {} bytes expected, {} are left",
                to.len(),
                Source::len(self).saturating_sub(offset)
            );
        };
        to.copy_from_slice(from);
        Ok(())
    }
}

/// A regular file, open for reading, with its length at that time. Any thread may read.
#[derive(Debug)]
pub struct ModelFile {
    file: File,
    path: PathBuf,
    len: u64,
}

impl ModelFile {
    /// Opens a regular file; links are followed. NOT_FOUND: if it does not exist. IO: if it cannot be read.
    pub fn open(path: &Path) -> Result<Self> {
        // Checked first: opening a pipe would block until its other end opens.
        match files::kind(path).map_err(|e| failed("open", path, &e))? {
            Kind::File => {}
            Kind::Folder => bail!(InvalidArgument, "{} is a directory; a file expected", path.display()),
            _ => bail!(InvalidArgument, "{} is not a regular file", path.display()),
        }
        let file = files::open(path).map_err(|e| failed("open", path, &e))?;
        let len = file.metadata().map_err(|e| failed("look at", path, &e))?.len();
        Ok(ModelFile { file, path: files::copied(path)?, len })
    }
}

impl Source for ModelFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        read_exact_at(&self.file, offset, to).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => error!(
                Io,
                "{} ends within the {} bytes at offset {offset}; it had {} bytes when it was opened",
                self.path.display(),
                to.len(),
                self.len
            ),
            _ => failed("read", &self.path, &e),
        })
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, offset: u64, to: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, to, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut offset: u64, mut to: &mut [u8]) -> io::Result<()> {
    while !to.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, to, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                to = &mut to[n..];
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// A file that gets its name when it is complete. Until [`NewFile::finish`] an older file of that name stays unchanged;
/// without it no file is left.
///
/// The contents of `name` are written to `.name.part` in the same folder, which one writer at a time may hold. A killed
/// process leaves that file; the next writer of the name takes it over.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    path: PathBuf,
    /// The file of the contents until they are complete; `None` once it is gone.
    unfinished: Option<PathBuf>,
    /// Bytes that are not yet in the file.
    waiting: Vec<u8>,
}

impl NewFile {
    /// Bytes per write.
    const RUN: usize = 1 << 16;

    /// Begins a file beside `path`, in an existing folder. IO: if another writer holds this name.
    pub fn create(path: &Path) -> Result<Self> {
        let Some(name) = path.file_name() else {
            bail!(InvalidArgument, "{} names no file", path.display());
        };
        let hidden = files::text(&[".".as_ref(), name, ".part".as_ref()], 0)?;
        let unfinished = files::join(path.parent().unwrap_or(Path::new("")), &hidden)?;
        let path = files::copied(path)?;
        let mut waiting = Vec::new();
        memory::reserve(&mut waiting, Self::RUN)?;
        // [`NewFile::finish`] checks again. A refusal should not take as long as what is written.
        files::check_replaceable(&path)?;
        let beside = |e: io::Error| failed("create a file beside", &path, &e);
        let Some(file) = files::open_alone(&unfinished).map_err(beside)? else {
            bail!(Io, "cannot create {}: another writer has begun {}", path.display(), unfinished.display());
        };
        let new = NewFile { file, path, unfinished: Some(unfinished), waiting };
        new.file.set_len(0).map_err(|e| failed("write", &new.path, &e))?;
        Ok(new)
    }

    /// Appends bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() > Self::RUN - self.waiting.len() {
            self.flush()?;
        }
        if bytes.len() >= Self::RUN {
            return self.file.write_all(bytes).map_err(|e| failed("write", &self.path, &e));
        }
        memory::extend(&mut self.waiting, bytes)
    }

    fn flush(&mut self) -> Result<()> {
        self.file.write_all(&self.waiting).map_err(|e| failed("write", &self.path, &e))?;
        self.waiting.clear();
        Ok(())
    }

    /// Syncs the contents. What remains to [`NewFile::finish`] needs no room on the disk.
    pub fn sync(&mut self) -> Result<()> {
        self.flush()?;
        self.file.sync_all().map_err(|e| failed("write", &self.path, &e))
    }

    /// Syncs the contents, renames the file, and syncs the name.
    pub fn finish(mut self) -> Result<()> {
        self.sync()?;
        if let Some(unfinished) = &self.unfinished {
            files::replace(unfinished, &self.path)?;
            self.unfinished = None;
        }
        files::sync_folder_of(&self.path).map_err(|e| failed("sync the folder of", &self.path, &e))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // The file is still open, so no other writer holds it.
        if let Some(unfinished) = &self.unfinished {
            let _ = files::remove(unfinished);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mnnkv::status::Status;
    use std::fs;

    /// A folder of its own for a test, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("mnnkv-file-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_that_shrinks_while_it_is_open_is_an_error_that_says_so() {
        let folder = Folder::new("shrinks");
        let path = folder.0.join("weights");
        fs::write(&path, [7; 100]).unwrap();
        let file = ModelFile::open(&path).unwrap();
        let mut bytes = [0; 20];
        file.read_at(80, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 20]);
        File::options().write(true).open(&path).unwrap().set_len(90).unwrap();
        let error = file.read_at(80, &mut bytes).unwrap_err();
        assert_eq!(error.status(), Status::Io);
        assert!(error.message().contains("offset 80") && error.message().contains("100 bytes"), "{error}");
    }

    #[test]
    fn lengths_are_checked_before_memory_is_taken() {
        let bytes = [1u8, 2, 3];
        assert_eq!(bytes[..].read_vec(1, 2).unwrap(), [2, 3]);
        for (offset, len) in [(0, 4), (3, 1), (4, 0), (1, u64::MAX), (u64::MAX, 1)] {
            let error = bytes[..].read_vec(offset, len).unwrap_err();
            assert_eq!(error.status(), Status::Corrupt);
            assert!(error.message().contains(&format!("offset {offset}")), "{error}");
        }
    }

    #[test]
    fn what_is_no_file_is_refused_by_name() {
        let folder = Folder::new("kinds");
        for (name, status) in [("absent", Status::NotFound), (".", Status::InvalidArgument)] {
            let error = ModelFile::open(&folder.0.join(name)).unwrap_err();
            assert_eq!(error.status(), status);
            assert!(error.message().contains("mnnkv-file-kinds"), "{error}");
        }
        #[cfg(unix)]
        {
            let link = folder.0.join("loop");
            std::os::unix::fs::symlink(&link, &link).unwrap();
            assert_eq!(ModelFile::open(&link).unwrap_err().status(), Status::Io);
        }
    }

    #[test]
    fn a_new_file_appears_when_it_is_complete_and_leaves_nothing_otherwise() {
        let folder = Folder::new("new");
        let path = folder.0.join("out.bin");
        fs::write(&path, "old").unwrap();
        let mut file = NewFile::create(&path).unwrap();
        file.write(b"half of it").unwrap();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(folder.names(), ["out.bin"]);
        let mut file = NewFile::create(&path).unwrap();
        file.write(b"new").unwrap();
        file.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(folder.names(), ["out.bin"]);
        assert_eq!(NewFile::create(&folder.0.join("no/such/file")).unwrap_err().status(), Status::NotFound);
        assert_eq!(NewFile::create(&folder.0).unwrap_err().status(), Status::InvalidArgument);
    }

    #[test]
    fn the_unfinished_file_of_a_killed_run_is_taken_over() {
        let folder = Folder::new("killed");
        let path = folder.0.join("out.bin");
        let mut file = NewFile::create(&path).unwrap();
        file.write(&[7; 100_000]).unwrap();
        // A killed process closes its files and removes nothing.
        file.unfinished = None;
        drop(file);
        assert_eq!(folder.names(), [".out.bin.part"]);
        let mut file = NewFile::create(&path).unwrap();
        file.write(b"new").unwrap();
        file.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(folder.names(), ["out.bin"]);
    }

    #[test]
    fn two_writers_of_one_name_do_not_destroy_each_others_file() {
        let folder = Folder::new("two");
        let path = folder.0.join("out.bin");
        let mut first = NewFile::create(&path).unwrap();
        first.write(&[1; 100_000]).unwrap();
        let error = NewFile::create(&path).unwrap_err();
        assert_eq!(error.status(), Status::Io);
        assert!(error.message().contains(".out.bin.part"), "{error}");
        first.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), [1; 100_000]);
        // The name is free again, also after a writer that gives up.
        drop(NewFile::create(&path).unwrap());
        assert_eq!(folder.names(), ["out.bin"]);
        assert_eq!(fs::read(&path).unwrap(), [1; 100_000]);
    }

    #[test]
    fn writers_in_threads_leave_one_whole_file_and_nothing_else() {
        let folder = Folder::new("threads");
        let path = folder.0.join("out.bin");
        std::thread::scope(|scope| {
            for number in 0..8u8 {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..50 {
                        let Ok(mut file) = NewFile::create(path) else { continue };
                        file.write(&[number; 10]).unwrap();
                        if number.is_multiple_of(2) {
                            file.finish().unwrap();
                        }
                    }
                });
            }
        });
        let bytes = fs::read(&path).unwrap();
        assert!(bytes == [bytes[0]; 10] && bytes[0].is_multiple_of(2), "{bytes:?}");
        assert_eq!(folder.names(), ["out.bin"]);
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_regular_file_is_never_replaced() {
        use std::os::unix::ffi::OsStrExt;
        use std::os::unix::fs::{FileTypeExt, symlink};

        let folder = Folder::new("special");
        let [pipe, socket, nowhere, link, target] =
            ["pipe", "socket", "nowhere", "link", "target"].map(|name| folder.0.join(name));
        let make_pipe = || {
            let name = std::ffi::CString::new(pipe.as_os_str().as_bytes()).unwrap();
            // SAFETY: the path ends with a zero.
            assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        };
        let refused = |result: Result<()>, path: &Path, what: &str| {
            let error = result.unwrap_err();
            assert_eq!(error.status(), Status::InvalidArgument);
            assert_eq!(error.message(), format!("{} is {what}; a file expected", path.display()));
        };
        make_pipe();
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        symlink(folder.0.join("absent"), &nowhere).unwrap();
        for (path, what) in [(&pipe, "a pipe"), (&socket, "a socket"), (&nowhere, "a symbolic link to nothing")] {
            refused(NewFile::create(path).map(drop), path, what);
        }
        refused(NewFile::create(&folder.0).map(drop), &folder.0, "a directory");
        // A pipe that comes while the file is written.
        fs::remove_file(&pipe).unwrap();
        let file = NewFile::create(&pipe).unwrap();
        make_pipe();
        refused(file.finish(), &pipe, "a pipe");
        assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
        assert!(fs::symlink_metadata(&socket).unwrap().file_type().is_socket());
        assert!(fs::symlink_metadata(&nowhere).unwrap().is_symlink());
        // A link to a file is replaced, and the file that it leads to stays.
        fs::write(&target, "kept").unwrap();
        symlink(&target, &link).unwrap();
        let mut file = NewFile::create(&link).unwrap();
        file.write(b"new").unwrap();
        file.finish().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_file());
        assert_eq!((fs::read(&link).unwrap(), fs::read(&target).unwrap()), (b"new".to_vec(), b"kept".to_vec()));
        let mut names = folder.names();
        names.sort();
        assert_eq!(names, ["link", "nowhere", "pipe", "socket", "target"]);
    }

    #[cfg(unix)]
    #[test]
    fn an_unfinished_file_that_is_a_link_is_not_followed() {
        let folder = Folder::new("link");
        fs::write(folder.0.join("precious"), "kept").unwrap();
        std::os::unix::fs::symlink(folder.0.join("precious"), folder.0.join(".out.bin.part")).unwrap();
        assert_eq!(NewFile::create(&folder.0.join("out.bin")).unwrap_err().status(), Status::Io);
        assert_eq!(fs::read(folder.0.join("precious")).unwrap(), b"kept");
    }

    #[test]
    fn the_folder_is_synced_once_the_file_has_its_name() {
        let folder = Folder::new("synced");
        files::synced::take();
        let mut file = NewFile::create(&folder.0.join("out.bin")).unwrap();
        file.write(b"all of it").unwrap();
        assert_eq!(files::synced::take().0, 0);
        file.finish().unwrap();
        assert_eq!(files::synced::take(), (1, files::synced::mark(&folder.0)));
    }

    #[cfg(unix)]
    #[test]
    fn what_the_system_said_is_in_the_message() {
        let folder = Folder::new("words");
        let error = ModelFile::open(&folder.0.join("absent")).unwrap_err();
        let said = io::Error::from_raw_os_error(libc::ENOENT).to_string();
        assert!(error.message().ends_with(&said), "{error}; {said}");
        let long = ModelFile::open(&folder.0.join("x".repeat(5000))).unwrap_err();
        assert_eq!(long.status(), Status::Io);
        assert!(long.message().contains("os error"), "{long}");
        let zero = ModelFile::open(Path::new("a\0b")).unwrap_err();
        assert!(zero.message().contains("invalid input"), "{zero}");
    }
}
