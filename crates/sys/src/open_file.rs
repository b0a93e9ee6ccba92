//! Which descriptors are of one open file.

use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;

use crate::errno::last_errno;

/// `KCMP_FILE` of `include/uapi/linux/kcmp.h`.
const FILE: i32 = 0;

/// Whether both descriptors of this process are of one open file, so that they share offset and flags (`kcmp(2)`).
///
/// # Errors
///
/// The kernel's: it lacks the call (`CONFIG_KCMP`), or a filter forbids it.
pub fn is_one_open_file(first: impl AsFd, second: impl AsFd) -> Result<bool, Errno> {
    let process = std::process::id();
    let (first, second) = (first.as_fd().as_raw_fd(), second.as_fd().as_raw_fd());
    // SAFETY: compares two descriptors of this process.
    match unsafe { libc::syscall(libc::SYS_kcmp, process, process, FILE, first, second) } {
        -1 => Err(last_errno()),
        order => Ok(order == 0),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_duplicate_is_of_one_open_file_and_another_open_is_not() {
        let [first, second] = [(); 2].map(|()| File::open("/proc/self/exe").unwrap());
        let copy = first.try_clone().unwrap();
        match is_one_open_file(&first, &copy) {
            Err(errno) => println!("skipped: kcmp is refused: {errno}"),
            told => {
                assert_eq!(told, Ok(true));
                assert_eq!(is_one_open_file(&first, &second), Ok(false));
            }
        }
    }
}
