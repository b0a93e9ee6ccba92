//! Reads names that are numbers, in directories of `/proc`.
//!
//! `opendir` takes its buffer from the C library's heap: a preloaded object shares that with the program, and a fork
//! may happen while the program is inside `malloc`.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;

use rustix::fs::{OFlags, RawDir};
use rustix::io::Errno;

use crate::brief_file::BriefFile;

/// Calls `each` with the numbers among the names in the directory `path` until it breaks. Does not use the heap.
///
/// # Errors
///
/// The kernel's.
pub fn each_number(path: &CStr, each: &mut dyn FnMut(i32) -> ControlFlow<()>) -> Result<(), Errno> {
    let directory = BriefFile::open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
    let mut list = RawDir::new(directory, &mut buffer);
    while let Some(entry) = list.next() {
        let number = entry?.file_name().to_str().ok().and_then(|name| name.parse().ok());
        if number.is_some_and(|number| each(number).is_break()) {
            break;
        }
    }
    Ok(())
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
        .unwrap();
        assert!(all >= 3, "{all}");
        let mut some = 0;
        each_number(c"/proc/self/fd", &mut |_| {
            some += 1;
            ControlFlow::Break(())
        })
        .unwrap();
        assert_eq!(some, 1);
        assert_eq!(each_number(c"/proc/self/absent", &mut |_| ControlFlow::Continue(())), Err(Errno::NOENT));
    }
}
