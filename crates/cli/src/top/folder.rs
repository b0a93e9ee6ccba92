//! The folder of a process in `/proc`.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, openat};
use rustix::process::Pid;

/// More than a list of the usual most mappings, 65 530, with long names.
const MOST_TEXT: u64 = 64 << 20;

/// The folder of a process in `/proc`, which stays this one's when its number is given to another process.
pub(super) struct Folder(OwnedFd);

impl Folder {
    pub(super) fn open(pid: Pid) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(openat(rustix::fs::CWD, format!("/proc/{}", pid.as_raw_nonzero()), flags, Mode::empty())?))
    }

    pub(super) fn file(&self, name: &str) -> io::Result<File> {
        Ok(openat(&self.0, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?.into())
    }

    pub(super) fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        self.file(name)?.take(MOST_TEXT).read_to_end(&mut text)?;
        Ok(text)
    }
}
