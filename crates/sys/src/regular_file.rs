//! Opens files that others name: what is no regular file is refused, before it can make the caller wait or has an
//! effect.

use std::fmt::{self, Display, Formatter};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat};

/// Why a file was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenRegularError {
    /// There is none, or it may not be read.
    #[error("cannot open {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The path leads to something else.
    #[error("{} is {kind} and no regular file; name the file that you mean", path.display())]
    NotRegular {
        /// The path.
        path: PathBuf,
        /// What is there.
        kind: FileKind,
    },
}

/// What is no regular file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// A folder.
    Directory,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A device: of characters, or of blocks.
    Device,
    /// Something that the kernel has no usual name for.
    Unknown,
}

impl Display for FileKind {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Directory => "a directory",
            Self::Fifo => "a named pipe",
            Self::Socket => "a socket",
            Self::Device => "a device",
            Self::Unknown => "something unknown",
        })
    }
}

/// Opens a regular file to read it; follows links. How much of it to read is the caller's to limit: it may grow.
///
/// Opening a pipe could make the caller wait, and opening a device may do something. So what the path leads to is
/// looked at before; and again afterwards, since somebody may have put another thing there.
///
/// # Errors
///
/// [`OpenRegularError`].
pub fn open_regular(path: &Path) -> Result<File, OpenRegularError> {
    let stat = rustix::fs::stat(path).map_err(|errno| refused(path, errno.into()))?;
    must_be_regular(path, &stat)?;
    open_at_once(path)
}

/// Opens without waiting, even for a pipe or a terminal, and keeps only what is a regular file.
fn open_at_once(path: &Path) -> Result<File, OpenRegularError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| refused(path, errno.into()))?;
    let stat = rustix::fs::fstat(&file).map_err(|errno| refused(path, errno.into()))?;
    must_be_regular(path, &stat)?;
    Ok(file.into())
}

fn refused(path: &Path, source: io::Error) -> OpenRegularError {
    OpenRegularError::Open { path: path.to_owned(), source }
}

fn must_be_regular(path: &Path, stat: &Stat) -> Result<(), OpenRegularError> {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => FileKind::Directory,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice | FileType::BlockDevice => FileKind::Device,
        FileType::Symlink | FileType::Unknown => FileKind::Unknown,
    };
    Err(OpenRegularError::NotRegular { path: path.to_owned(), kind })
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use rustix::io::FdFlags;

    use super::*;

    fn kind_of(result: Result<File, OpenRegularError>, named: &Path) -> FileKind {
        let error = result.expect_err("no regular file");
        let words = error.to_string();
        match error {
            OpenRegularError::NotRegular { path, kind } => {
                assert_eq!(path, named);
                assert!(words.starts_with(&format!("{} is {kind} and", named.display())), "{words}");
                kind
            }
            OpenRegularError::Open { source, .. } => panic!("{}: {source}", named.display()),
        }
    }

    fn errno_of(path: &Path) -> rustix::io::Errno {
        match open_regular(path) {
            Err(OpenRegularError::Open { path: told, source }) => {
                assert_eq!(told, path);
                rustix::io::Errno::from_io_error(&source).expect("the kernel's")
            }
            other => panic!("{}: {other:?}", path.display()),
        }
    }

    /// Fails on: a file whose reads a later `exec` inherits; one that was opened so that a pipe would make it wait.
    #[test]
    fn files_are_opened_also_through_links() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "bytes").expect("it can be written");
        symlink("file", &link).expect("a link");
        for path in [&file, &link] {
            let mut opened = open_regular(path).expect("a regular file");
            let mut bytes = String::new();
            opened.read_to_string(&mut bytes).expect("it can be read");
            assert_eq!(bytes, "bytes");
            assert!(rustix::io::fcntl_getfd(&opened).expect("it is open").contains(FdFlags::CLOEXEC));
            assert!(rustix::fs::fcntl_getfl(&opened).expect("it is open").contains(OFlags::NONBLOCK));
        }
    }

    /// Both looks are tested: the first by itself, and the second as if the first had seen something else.
    #[test]
    fn everything_else_is_refused_by_its_kind() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), FileType::Fifo, Mode::RWXU, 0).expect("a FIFO");
        // With a writer, so that a call that waits for one fails below, and does not wait for ever.
        let _writer =
            rustix::fs::open(path("fifo"), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).expect("it is ours");
        let _listener = UnixListener::bind(path("socket")).expect("a socket");
        symlink("fifo", path("link")).expect("a link");
        let null = PathBuf::from("/dev/null");
        for (named, kind) in [
            (folder.path().to_owned(), FileKind::Directory),
            (path("fifo"), FileKind::Fifo),
            (path("link"), FileKind::Fifo),
            (null, FileKind::Device),
        ] {
            assert_eq!(kind_of(open_regular(&named), &named), kind);
            assert_eq!(kind_of(open_at_once(&named), &named), kind);
        }
        // The kernel opens no socket.
        assert_eq!(kind_of(open_regular(&path("socket")), &path("socket")), FileKind::Socket);
    }

    #[test]
    fn what_is_not_there_is_told() {
        use rustix::io::Errno;
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        symlink("nothing", path("dangling")).expect("a link");
        symlink("itself", path("itself")).expect("a link");
        assert_eq!(errno_of(&path("nothing")), Errno::NOENT);
        assert_eq!(errno_of(&path("dangling")), Errno::NOENT);
        assert_eq!(errno_of(&path("itself")), Errno::LOOP);
        assert_eq!(errno_of(Path::new("/a\0b")), Errno::INVAL);
    }
}
