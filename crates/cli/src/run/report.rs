//! Where to report, and whether to complain: as the command line says, else the environment.

use std::env;
use std::ffi::OsString;

use rustix::fs::stat;

use crate::run::arguments::Arguments;

/// The variable that says where to report.
pub(super) const PLACE: &str = "PALIMPSEST_REPORT";

/// The variable that says not to complain.
pub(super) const QUIET: &str = "PALIMPSEST_QUIET";

/// Returns where to report; an empty variable counts as not set.
pub(super) fn place(arguments: &Arguments) -> Option<OsString> {
    arguments.report.clone().or_else(|| env::var_os(PLACE)).filter(|place| !place.is_empty())
}

/// Whether not to complain.
pub(super) fn is_quiet(arguments: &Arguments) -> bool {
    arguments.quiet || env::var_os(QUIET).is_some_and(|value| value == "1")
}

/// Returns the place as programs get it: a descriptor with the device and the inode of what it stands for now, zeros if
/// for nothing. Programs close descriptors that they do not know, and open their own files under the same numbers.
pub(super) fn handed_on(mut place: OsString) -> OsString {
    let number = place.to_str().and_then(|place| place.strip_prefix("fd:")).and_then(|number| number.parse().ok());
    if let Some((device, inode)) = number.and_then(file) {
        place.push(format!(":{device}:{inode}"));
    }
    place
}

/// Returns the device and the inode behind a descriptor; `None` without `/proc`, or if there can be no such descriptor.
fn file(number: i32) -> Option<(u64, u64)> {
    let folder = "/proc/self/fd";
    stat(folder).ok().filter(|_| number >= 0)?;
    let found = stat(format!("{folder}/{number}")).map(|found| (found.st_dev, found.st_ino));
    Some(found.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// Fails on: a descriptor that every program may take for its own, and one that is closed.
    #[test]
    fn a_descriptor_is_handed_on_with_its_file() {
        let file = File::open("/proc/self/exe").expect("a program has a file");
        let (place, found) = (format!("fd:{}", file.as_raw_fd()), file.metadata().expect("it is open"));
        let with_file = format!("{place}:{}:{}", found.dev(), found.ino());
        assert_eq!(handed_on(place.into()), OsStr::new(&with_file));
        assert_eq!(handed_on("fd:1000000".into()), "fd:1000000:0:0");
        for other in ["stderr", "fd:-1", "fd:x", "fd:3:26:4711", "/tmp/report", "fd:"] {
            assert_eq!(handed_on(other.into()), other);
        }
    }
}
