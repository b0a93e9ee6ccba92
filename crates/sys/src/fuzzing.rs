//! Inner parsers, for the fuzz targets (feature `fuzzing`).

use crate::async_io::uring::{Progress, Told};
use crate::pages::vmas::Vma;
use crate::threads::task::parse_stat;

/// Parses the text of a thread's `stat`: whether it has ended, the number of threads of its process, and when it was
/// started.
pub fn stat(text: &[u8]) -> Option<(bool, usize, u64)> {
    let stat = parse_stat(text)?;
    Some((stat.has_ended(), stat.threads, stat.started))
}

/// Parses the first record of `smaps`, as far as its line of flags: where the mapping begins, and the number that
/// stands for its flags.
pub fn smaps_record(text: &[u8]) -> Option<(usize, u32)> {
    Vma::parse_first(text).map(|vma| (vma.start, vma.flags.bits()))
}

/// Parses the lines of an io_uring's `fdinfo`.
pub fn ring(text: &[u8]) -> Option<Progress> {
    let mut told = Told::default();
    text.split(|byte| *byte == b'\n').for_each(|line| told.take(line));
    told.all()
}
