//! Listing directories without `opendir`, which takes its buffer from the C library's heap: a preloaded object shares that with the program, and a fork
//! may happen while the program is inside `malloc`.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;

use rustix::fs::{CWD, Mode, OFlags, RawDir};

use crate::error::FreezeError;

/// Calls `each` with the numbers among the names in the directory `path`, as `/proc` has them, until it breaks.
pub(super) fn each_number(path: &CStr, each: &mut dyn FnMut(i32) -> ControlFlow<()>) -> Result<(), FreezeError> {
    let failed = |errno: rustix::io::Errno| no_proc(path, errno.into());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(failed)?;
    let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
    let mut list = RawDir::new(directory, &mut buffer);
    while let Some(entry) = list.next() {
        let entry = entry.map_err(failed)?;
        let number = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
        if number.is_some_and(|number| each(number).is_break()) {
            break;
        }
    }
    Ok(())
}

/// The error for a file of `/proc` that cannot be read.
pub(super) fn no_proc(path: &CStr, source: std::io::Error) -> FreezeError {
    FreezeError::NoProc { path: path.to_string_lossy().into_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_told_until_the_caller_has_enough() {
        let mut all = 0;
        each_number(c"/proc/self/fd", &mut |number| {
            assert!(number >= 0);
            all += 1;
            ControlFlow::Continue(())
        })
        .expect("/proc is mounted");
        assert!(all >= 3, "{all}");
        let mut some = 0;
        each_number(c"/proc/self/fd", &mut |_| {
            some += 1;
            ControlFlow::Break(())
        })
        .expect("/proc is mounted");
        assert_eq!(some, 1);
        let error = each_number(c"/proc/self/absent", &mut |_| ControlFlow::Continue(())).expect_err("absent");
        assert!(error.to_string().contains("/proc/self/absent"), "{error}");
    }
}
