//! Names of entries: they contain everything known of a copy.

use std::fmt;
use std::os::fd::RawFd;

use palimpsest_sys::numa::NodeId;
use rustix::process::Pid;
use sha2::{Digest, Sha256};

/// Identifies contents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Key(String);

impl Key {
    /// Returns the key of these bytes: their SHA-256, the same in every program. It only finds copies; their bytes show
    /// whether they are right.
    pub(crate) fn of(content: &[u8]) -> Self {
        Self(Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Returns one of sixteen groups of keys.
    pub(super) fn group(&self) -> &str {
        &self.0[..1]
    }
}

/// An entry, which says that a process has a copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Name {
    key: Key,
    node: NodeId,
    /// The inode of the pid name space in which the process has its number.
    pub(super) namespace: u64,
    pub(super) process: Pid,
    pub(super) descriptor: RawFd,
    pub(super) inode: u64,
}

impl Name {
    pub(super) fn new(key: &Key, node: NodeId, descriptor: RawFd, inode: u64) -> Self {
        let process = rustix::process::getpid();
        Self { key: key.clone(), node, namespace: pid_namespace(), process, descriptor, inode }
    }

    pub(super) fn is_of(&self, key: &Key, node: NodeId) -> bool {
        self.key == *key && self.node == node
    }

    /// Returns whether a process with that number exists.
    pub(super) fn process_is_there(&self) -> bool {
        rustix::process::test_kill_process(self.process) != Err(rustix::io::Errno::SRCH)
    }

    /// Parses exactly what [`Display`](fmt::Display) writes.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let key = parts.next().filter(|key| key.len() == 64 && key.bytes().all(is_digit))?;
        let mut number = || parts.next().and_then(|part| part.parse::<u64>().ok());
        let name = Self {
            key: Key(key.to_owned()),
            node: NodeId(number()?.try_into().ok()?),
            namespace: number()?,
            process: Pid::from_raw(number()?.try_into().ok()?)?,
            descriptor: number()?.try_into().ok()?,
            inode: number()?,
        };
        // Accepts no other spelling: what is removed must be what was read.
        (name.to_string() == text).then_some(name)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key: Key(key), node, namespace, process, descriptor, inode } = self;
        write!(formatter, "{key}-{}-{namespace}-{}-{descriptor}-{inode}", node.0, process.as_raw_nonzero())
    }
}

/// Returns the pid name space of this process; 0 without `/proc`, where nothing can be found anyway.
pub(super) fn pid_namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let name = Name::new(&Key::of(b"abc"), NodeId(3), 200, 77);
        let text = name.to_string();
        // FIPS 180-2, B.1.
        assert!(text.starts_with("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad-3-"), "{text}");
        assert_eq!(Name::parse(&text), Some(name.clone()));
        assert!(name.is_of(&Key::of(b"abc"), NodeId(3)) && !name.is_of(&Key::of(b"abc"), NodeId(2)));
        assert!(!name.is_of(&Key::of(b"abd"), NodeId(3)) && name.process_is_there());
        for other in
            [text.to_uppercase(), format!("{text}-1"), text.replace("-3-", "-03-"), text.replace("-3-", "-+3-")]
        {
            assert_eq!(Name::parse(&other), None, "{other}");
        }
        assert_eq!(Name::parse("lock-0"), None);
    }

    proptest! {
        #[test]
        fn no_name_panics(text in "[0-9a-f]{60,66}(-[0-9+ ]{0,21}){4,6}") {
            let _ = Name::parse(&text);
        }
    }
}
