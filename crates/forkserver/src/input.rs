//! Where a run's test case comes from.

use std::io::Read;

use palimpsest_sys::memory::sysv::SharedBytes;

/// Bytes before a test case in shared memory: its length.
pub(crate) const HEADER: usize = 4;
/// The longest test case that AFL++ makes, in bytes. Standard input is read no further.
const LONGEST: u64 = 1 << 20;

/// The place of test cases.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TestCase {
    /// A word with the length, then the bytes.
    Shared(SharedBytes),
    /// Standard input, which the fuzzer rewinds before each run.
    StandardInput,
}

impl TestCase {
    /// Calls `target` with the present test case.
    pub(crate) fn give_to(self, target: &mut dyn FnMut(&[u8])) {
        match self {
            Self::Shared(segment) => {
                let header = segment.start.cast::<u32>();
                // SAFETY: the segment begins with the word, is page-aligned, and the fuzzer writes it between runs
                // alone.
                let len = unsafe { header.read() } as usize;
                let len = len.min(segment.len.saturating_sub(HEADER));
                // SAFETY: the segment is longer than its header.
                let bytes = unsafe { segment.start.add(HEADER) };
                // SAFETY: `len` bytes follow the header in the segment, which stays attached, and the fuzzer does not
                // write them before this run has ended.
                target(unsafe { std::slice::from_raw_parts(bytes.as_ptr(), len) });
            }
            Self::StandardInput => {
                let mut bytes = Vec::new();
                // A test case that cannot be read to its end is as good as any other: the fuzzer sees what it reaches.
                let _ = std::io::stdin().lock().take(LONGEST).read_to_end(&mut bytes);
                target(&bytes);
            }
        }
    }
}

/// Puts a test case, or as much of it as fits, where [`TestCase::Shared`] finds it.
///
/// # Safety
///
/// 1. The segment is longer than its header, and nobody else uses it now.
pub(crate) unsafe fn place(segment: SharedBytes, bytes: &[u8]) {
    let len = bytes.len().min(segment.len - HEADER);
    // SAFETY: (1) the segment is page-aligned and begins with the word. No segment is longer than a word can tell:
    // `HostOptions` sees to it.
    unsafe { segment.start.cast::<u32>().write(u32::try_from(len).unwrap_or(u32::MAX)) };
    // SAFETY: (1) the segment is longer than its header.
    let place = unsafe { segment.start.add(HEADER) };
    // SAFETY: (1) `len` bytes fit behind the header, and `bytes` is not in memory that nobody else uses.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.as_ptr(), len) };
}
